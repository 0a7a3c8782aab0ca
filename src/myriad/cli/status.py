"""`myriad status`: nodes and their gates, queues, and whether gangs are steered."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from myriad.cli import _cluster as cluster
from myriad.cli.output import console, emit_json
from myriad.scheduler.braking import OFF
from myriad.scheduler.inquiry import status_report

_SHOWN = 40


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def status(
        json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
        all_: Annotated[bool, typer.Option("--all", help="Every node, not only those that take no work.")] = False,
        kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    ) -> None:
        """Nodes, gates, what fits now. Exit code 4 where a node takes no work."""
        api = cluster.reach(kubeconfig)
        cache, _ = cluster.read_cluster(api)
        report = status_report(cache)
        live = cluster.ask_extension(api, "/v1/status")
        report["extension"] = live["extension"] if live else None
        report["brake"] = cluster.brakes(api)
        report["dead_man_asleep"] = cluster.dead_man_asleep(api)
        if json_:
            emit_json(report)
        else:
            _show(report, every=all_)
        if report["nodes_taking_work"] < report["nodes_total"]:
            raise typer.Exit(4)


def _show(report: dict[str, Any], *, every: bool) -> None:
    nodes = report["nodes"]
    shown = nodes if every or len(nodes) <= _SHOWN else [n for n in nodes if not n["takes_work"]]
    if shown:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for head in ("node", "place", "pool", "GPUs expected/allocatable", "in use", "gate", ""):
            table.add_column(head)
        for node in shown:
            expected = "?" if node["expected_gpus"] is None else node["expected_gpus"]
            table.add_row(
                node["node"],
                node["place"],
                node["pool"],
                f"{expected} / {node['allocatable_gpus']}",
                str(node["used_gpus"]),
                node["gate"],
                escape(trouble(node)),
            )
        cluster.print_table(table)
    console.print(
        f"{report['nodes_taking_work']} of {report['nodes_total']} nodes take work; "
        f"{report['gpus_used']} of {report['gpus_allocatable']} GPUs in use; "
        f"{report['jobs_running']} jobs hold quota, {report['jobs_waiting']} wait",
        markup=False,
    )
    largest = [f for f in report["fits_now"] if f["whole_nodes"]]
    if largest:
        words = "; ".join(f"{f['gpus']} GPUs in one {f['tier']} ({f['place']})" for f in largest)
        console.print(f"fits now      {words}", markup=False)
    extension = report["extension"]
    if extension is None:
        console.print("extension     does not answer", markup=False)
    else:
        behind = f"; its cache lacks {', '.join(extension['cache_behind'])}" if extension["cache_behind"] else ""
        mode = ", in shadow: records what it would do and changes nothing" if extension.get("shadow") else ""
        console.print(f"extension     led by {extension['leader'] or 'nobody'}{mode}{behind}", markup=False)
        ledger = extension.get("ledger") or {}
        if ledger.get("error_since"):
            wait = f"{ledger['queued']} facts wait on disk"
            console.print(
                f"ledger        its database does not answer since {ledger['error_since']}; {wait}", markup=False
            )
        if not extension.get("brake", True):
            console.print(
                f"brake         {OFF}: set it to true, and look at what is tainted (myriad why)", markup=False
            )
    if report["dead_man_asleep"]:
        console.print(f"dead-man      does not look: {report['dead_man_asleep']}", markup=False)
    for trip in report["brake"]:
        console.print(f"brake         {trip['says']}", markup=False)
    if report["queues_not_steered"]:
        since = f"   {report['unsteered']}" if report["unsteered"] else ""
        console.print(f"not steered   {', '.join(report['queues_not_steered'])}{since}", markup=False)


def trouble(node: dict[str, Any]) -> str:
    """Why a node of `status_report` takes no work, in one line; empty where it does."""
    if node["takes_work"]:
        return ""
    causes = []
    if not node["ready"]:
        causes.append("not ready")
    if node["cordoned"]:
        causes.append(f"cordoned (kubectl uncordon {node['node']})")
    if node["gate"] == "closed":
        causes.append(f"{node['gate_reason'] or 'the node agent has not judged it yet'} (myriad gate {node['node']})")
    if not node["allocatable_gpus"]:
        causes.append("no GPU allocatable")
    return ", ".join(causes)
