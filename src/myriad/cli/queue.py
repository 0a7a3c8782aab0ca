"""`myriad queue [TEAM]`: quotas, what holds them, and what waits in which order."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from myriad.cli import _cluster as cluster
from myriad.cli.output import console, emit_json
from myriad.errors import InputError
from myriad.scheduler.explain import duration
from myriad.scheduler.inquiry import queue_report


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def queue(
        team: Annotated[str, typer.Argument(help="Only this team.")] = "",
        json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
        kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    ) -> None:
        """What waits, in order and with the reason, and who holds the quota."""
        cache, _ = cluster.read_cluster(cluster.reach(kubeconfig))
        report = queue_report(cache, team)
        if team and not report:
            teams = sorted({q["team"] for q in queue_report(cache) if q["team"]})
            raise InputError(f'no team is called "{team}"', hint=f"there are {', '.join(teams) or 'none yet'}")
        if json_:
            emit_json(report)
            return
        if not report:
            console.print("no queue is known yet; `myriad site` makes them from the description")
        for entry in report:
            _show(entry)


def _show(entry: dict[str, Any]) -> None:
    name = entry["team"] or entry["cluster_queue"]
    borrowed = f", {entry['borrowed_gpus']} of them borrowed" if entry["borrowed_gpus"] else ""
    lent = f", {entry['lent_by_others_now']} to borrow now" if entry["cohort"] else ""
    steered = "" if entry["steered"] else "   not steered"
    use = f"{entry['used_gpus']} of {entry['nominal_gpus']} GPUs in use"
    console.print(f"{name}  {entry['pool']}   {use}{borrowed}{lent}{steered}", markup=False)
    if not entry["running"] and not entry["waiting"]:
        console.print("  nothing runs, nothing waits\n")
        return
    table = Table(box=None, pad_edge=True, show_header=True, header_style="dim")
    for head in ("", "job", "size", "for", "where or why"):
        table.add_column(head, overflow="fold", no_wrap=head in ("", "job", "for"))
    for job in entry["running"]:
        nodes = list(job["nodes"])
        where = ", ".join(nodes[:6]) + (f" and {len(nodes) - 6} more" if len(nodes) > 6 else "")
        table.add_row("runs" if job["admitted"] else "starts", _job(job), job["size"], "", where)
    for job in entry["waiting"]:
        table.add_row(str(job["position"]), _job(job), job["size"], duration(job["waiting_s"]), escape(job["reason"]))
    cluster.print_table(table)
    console.print()


def _job(job: dict[str, Any]) -> str:
    return f"{job['namespace']}/{job['job']}"
