"""`myriad decisions JOB`: what was decided for a job, on which state, and what became of it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from myriad.cli import _cluster as cluster
from myriad.cli.output import emit_json
from myriad.errors import InputError, MyriadError
from myriad.scheduler.model import place


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def decisions(
        job: Annotated[str, typer.Argument(help="Name of the job, or NAMESPACE/NAME.")],
        namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace.")] = None,
        json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
        kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    ) -> None:
        """Decision records of a job, oldest first."""
        api = cluster.reach(kubeconfig)
        where, name = cluster.split_job(job, namespace)
        # Also tells a cluster that does not answer from an extension that does not.
        api.get_raw("/version")
        records = cluster.ask_extension(api, "/v1/decisions", {"job": f"{where}/{name}" if where else f"/{name}"})
        if records is None:
            raise MyriadError(
                "the extension does not answer, and it keeps the decision records",
                where="service myriad-scheduler in namespace myriad-system",
                hint="kubectl -n myriad-system get pods; kubectl -n myriad-system logs deploy/myriad-scheduler",
            )
        if not records:
            raise InputError(f"no decision is recorded for {job}", hint="`myriad queue` lists the jobs that are known")
        if json_:
            emit_json(records)
            return
        table = Table(box=None, pad_edge=False, header_style="dim")
        for head in ("time", "event", "job", "place", "nodes", ""):
            table.add_column(head, overflow="fold", no_wrap=head in ("time", "event", "job"))
        for record in records:
            table.add_row(*_row(record))
        cluster.print_table(table)


def _row(record: dict[str, Any]) -> list[str]:
    nodes = record.get("assigned") if record["event"] == "assigned" else record.get("nodes")
    names = list(nodes or {})
    agree = {True: "as planned", False: "differs from the plan", None: ""}[record.get("agree")]
    return [
        record["time"],
        record["event"],
        f"{record.get('namespace', '')}/{record['name']}",
        place(record["domain"]) if record.get("domain") else str(record.get("assigned_tier", "")),
        ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else ""),
        escape(str(record.get("reason") or agree)),
    ]
