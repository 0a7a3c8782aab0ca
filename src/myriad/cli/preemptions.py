"""`myriad preemptions [JOB]`: who was evicted for whom, by which rule, and what it cost."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from myriad.cli import _cluster as cluster
from myriad.cli.output import console, emit_json
from myriad.errors import InputError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import WORKLOADS
from myriad.scheduler.notices.book import Book
from myriad.scheduler.notices.facts import Eviction, stamp
from myriad.scheduler.notices.report import chosen, from_workload, read_all, report, row, since_when

_MOST = 1000


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def preemptions(
        job: Annotated[str, typer.Argument(help="Name of a job, or NAMESPACE/NAME; all jobs without it.")] = "",
        namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Only this namespace.")] = None,
        since: Annotated[str, typer.Option(help="Not older than 24h, 7d or a time.")] = "",
        json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
        kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    ) -> None:
        """Evictions, oldest first: for whom, by which rule, what was at risk, how often; pairs and loops."""
        now = datetime.now(UTC)
        start = since_when(since, now)
        api = cluster.reach(kubeconfig)
        where, name = cluster.split_job(job, namespace)
        found, source = _read(api, where or "", name)
        known = chosen(found, namespace=where or "", job=name, since=start)
        if name and not known and not _exists(api, where, name, found):
            raise InputError(f"no job {job} is known", hint="`myriad queue` lists those that run or wait")
        document = report(known, now=now)
        if json_:
            emit_json({**document, "source": source, "since": stamp(start)})
            return
        _show(known, document, name, source)


def _read(api: Api, namespace: str, job: str) -> tuple[list[Eviction], str]:
    """Records from the extension; else from its ConfigMaps; else what the Workloads themselves still say."""
    # Also tells a cluster that does not answer from an extension that does not.
    api.get_raw("/version")
    answer = cluster.ask_extension(api, "/v1/preemptions", {"limit": str(_MOST)})
    if isinstance(answer, list):
        return read_all(answer), "records"
    book = Book(api)
    try:
        book.load()
        return read_all(r.facts["eviction"] for r in book if "eviction" in r.facts), "records"
    except ApiError as error:
        if error.status not in (401, 403):
            raise
    workloads, _ = api.list(WORKLOADS, namespace=namespace or None)
    return sorted((e for w in workloads if (e := from_workload(w))), key=lambda e: e.at), "workloads"


def _exists(api: Api, namespace: str | None, job: str, found: list[Eviction]) -> bool:
    if any(e.victim.job == job for e in found):
        return True
    for body in api.list(WORKLOADS, namespace=namespace)[0]:
        owners = [o["name"] for o in body["metadata"].get("ownerReferences") or []]
        if job in (body["metadata"]["name"], *owners):
            return True
    return False


def _show(evictions: list[Eviction], document: dict[str, Any], job: str, source: str) -> None:
    if not evictions:
        console.print(f"{job} was not evicted in that time" if job else "nobody was evicted in that time")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in ("time (UTC)", "job", "for", "rule", "at risk", "time no."):
        table.add_column(head, overflow="fold", no_wrap=head in ("time (UTC)", "job"))
    for e in evictions[-200:]:
        table.add_row(*(escape(cell) for cell in row(e)))
    cluster.print_table(table)
    if len(evictions) > 200:
        console.print(f"... and {len(evictions) - 200} before: --since narrows them, --json has all")
    if job:
        console.print()
        console.print(document["evictions"][-1]["text"], markup=False)
    often = [p for p in document["pairs"] if p["times"] > 1]
    if often:
        console.print()
    for pair in often[:10]:
        words = (
            f"{pair['preemptor']} preempted {pair['victim']} {pair['times']} times, {pair['gpu_h']} GPU-hours at risk"
        )
        console.print(words, markup=False)
    for loop in document["loops"]:
        console.print(f"LOOP  {loop['text']}", markup=False)
    if source == "workloads":
        console.print(
            "(these credentials reach neither the extension nor its records: shown is what the Workloads still say, "
            "the last eviction of each job that exists)"
        )
