"""`myriad quota [TEAM]`: what each team has, uses, borrows, lends and has left, and what the hardware cannot honour."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from myriad.cli import _cluster as cluster
from myriad.cli._ledger import balances, hours
from myriad.cli._scope import own_namespace, read_what_is_allowed
from myriad.cli.output import console, emit_json
from myriad.errors import InputError
from myriad.scheduler.inquiry import PLACEMENT, QUOTA
from myriad.scheduler.quota_view import quota_report

Json = dict[str, Any]

_TROUBLES = 8


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def quota(
        team: Annotated[str, typer.Argument(help="Only this team.")] = "",
        json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
        kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    ) -> None:
        """Total, used, borrowed, lent and left by team and pool; capacity apart from what works."""
        with closing(cluster.reach(kubeconfig)) as api:
            cache, missing = read_what_is_allowed(api, own_namespace(kubeconfig))
            report = quota_report(cache, team, missing=missing, balances=balances(api, team))
        if team and not report["quotas"] and "clusterqueues" not in missing:
            teams = sorted({row["team"] for row in quota_report(cache)["quotas"] if row["team"]})
            raise InputError(f'no team is called "{team}"', hint=f"there are {', '.join(teams) or 'none yet'}")
        if json_:
            emit_json(report)
            return
        _show(report)


def _show(report: Json) -> None:
    if not report["quotas"]:
        console.print("no quota can be seen: there is no queue yet, or these credentials may not read ClusterQueues")
    else:
        table = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
        heads = ["team", "pool", "total", "used", "borrowed", "lent", "left", "waiting"]
        budgets = any("gpu_hours" in row for row in report["quotas"])
        heads += ["GPU-hours left"] if budgets else []
        for head in heads:
            right = head not in ("team", "pool")
            table.add_column(head, justify="right" if right else "left", no_wrap=True)
        for row in report["quotas"]:
            cells = [row["team"] or row["cluster_queue"], row["pool"]]
            cells += [str(row[f"{name}_gpus"]) for name in ("total", "used", "borrowed", "lent", "left", "waiting")]
            left = row.get("gpu_hours")
            if budgets:
                cells.append(f"{hours(left['left'])} of {hours(left['budget'])} until {left['until']}" if left else "")
            table.add_row(*(escape(cell) for cell in cells))
        cluster.print_table(table)
        for row in report["quotas"]:
            for note in row["notes"]:
                console.print(f"  {row['team'] or row['cluster_queue']} {row['pool']}: {note}", markup=False)
    for pool in report["pools"]:
        _show_pool(pool)
    for job in report["elsewhere"]:
        console.print(f"{job['namespace']}/{job['job']} {job['cause']}", markup=False)
    hidden = [name for name in report["not_readable"] if name not in (PLACEMENT, QUOTA)]
    if hidden:
        console.print(f"(these credentials may not read {', '.join(hidden)}: the numbers lack them)", markup=False)
    elif report["not_readable"]:
        console.print("(these credentials see one namespace: what other teams use is not counted)")


def _show_pool(pool: Json) -> None:
    words = [f"{pool['capacity']} GPUs on {pool['nodes']} nodes", f"{pool['allocatable']} allocatable"]
    if pool["withdrawn"]:
        words.append(f"{pool['withdrawn']} withdrawn or missing")
    if pool["out_of_work"]:
        words.append(f"{pool['out_of_work']} on nodes that take no work")
    if pool["held_by_dead_nodes"]:
        words.append(f"{pool['held_by_dead_nodes']} held by pods of dead nodes")
    words.append(f"{pool['requested']} requested")
    if pool["outside_queues"]:
        words.append(f"{pool['outside_queues']} of them outside every queue")
    words.append(f"{pool['free']} free")
    console.print(f"\npool {pool['pool'] or '(none)'}: {', '.join(words)}", markup=False)
    if pool["missing"]:
        text = (
            f"promised {pool['promised']}, {pool['usable']} can be used: {pool['missing']} GPUs of quota are not there"
        )
        console.print(f"  {text}", markup=False)
    for node in pool["troubles"][:_TROUBLES]:
        console.print(f"  {node['node']}  {node['cause']}", markup=False)
    if len(pool["troubles"]) > _TROUBLES:
        console.print(f"  and {len(pool['troubles']) - _TROUBLES} more nodes; --json has them all")
