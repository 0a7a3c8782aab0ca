"""`myriad queue [TEAM]`: quotas, what holds them, and what waits: in which order, why, and until when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from myriad.cli import _cluster as cluster
from myriad.cli._scope import own_namespace, read_what_is_allowed
from myriad.cli.output import console, emit_json
from myriad.errors import InputError, MyriadError
from myriad.kube.client import Api
from myriad.kube.kinds import LOCAL_QUEUES
from myriad.scheduler.cache import Cache
from myriad.scheduler.eta.model import Eta
from myriad.scheduler.explain import duration
from myriad.scheduler.inquiry import QUOTA
from myriad.scheduler.queue_view import eta_words, own_report, positions, queue_report

Json = dict[str, Any]

_VISIBILITY = "/apis/visibility.kueue.x-k8s.io/v1beta2"


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def queue(
        team: Annotated[str, typer.Argument(help="Only this team.")] = "",
        json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
        namespace: Annotated[
            str | None, typer.Option("--namespace", "-n", help="Only the queues of one namespace, own jobs alone.")
        ] = None,
        kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    ) -> None:
        """What waits, in order, with reason and time, and who holds the quota."""
        api = cluster.reach(kubeconfig)
        where = namespace or own_namespace(kubeconfig)
        cache, missing = read_what_is_allowed(api, where)
        if namespace or {"clusterqueues", QUOTA} & missing:
            _show_own(api, cache, where, missing, json_, team)
            return
        report = queue_report(cache, team)
        if team and not report:
            teams = sorted({q["team"] for q in queue_report(cache, etas={}) if q["team"]})
            raise InputError(f'no team is called "{team}"', hint=f"there are {', '.join(teams) or 'none yet'}")
        if json_:
            emit_json(report)
            return
        if not report:
            console.print("no queue is known yet; `myriad site` makes them from the description")
        for entry in report:
            _show(entry)


def _show(entry: Json) -> None:
    name = entry["team"] or entry["cluster_queue"]
    borrowed = f", {entry['borrowed_gpus']} of them borrowed" if entry["borrowed_gpus"] else ""
    lent = f", {entry['lent_by_others_now']} to borrow now" if entry["cohort"] else ""
    steered = "" if entry["steered"] else "   not steered"
    use = f"{entry['used_gpus']} of {entry['nominal_gpus']} GPUs in use"
    console.print(f"{name}  {entry['pool']}   {use}{borrowed}{lent}{steered}", markup=False)
    for warning in entry["warnings"]:
        console.print(f"  warning: {warning}", markup=False)
    if not entry["running"] and not entry["waiting"]:
        console.print("  nothing runs, nothing waits\n")
        return
    _table(entry["running"], entry["waiting"])
    if len(entry["waiting"]) > 1:
        console.print(
            f"  {len(entry['waiting'])} wait: {entry['waiting_gpus']} GPUs in {entry['waiting_pods']} pods",
            markup=False,
        )
    _notes(entry["waiting"])
    console.print()


def _table(running: list[Json], waiting: list[Json]) -> None:
    table = Table(box=None, pad_edge=True, show_header=True, header_style="dim")
    for head in ("", "job", "size", "for", "starts in", "where or why"):
        table.add_column(head, overflow="fold", no_wrap=head in ("", "job", "for"))
    for job in running:
        nodes = list(job["nodes"])
        where = ", ".join(nodes[:6]) + (f" and {len(nodes) - 6} more" if len(nodes) > 6 else "")
        table.add_row("runs" if job["admitted"] else "starts", _job(job), job["size"], "", "", where)
    for job in waiting:
        place = str(job["position"]) if job["position"] is not None else "?"
        never = job.get("state") == "never"
        eta = "never" if never else eta_words(_eta(job["eta"]))
        table.add_row(place, _job(job), job["size"], duration(job["waiting_s"]), eta, escape(job["reason"]))
    cluster.print_table(table)


def _notes(waiting: list[Json]) -> None:
    """How far estimates were true, and who was looked at by nobody."""
    judged = [e for job in waiting if (e := job["eta"]) and e["held_last_month"] is not None]
    if judged:
        held = judged[0]["held_last_month"]
        console.print(f"  {held:.0%} of such estimates held last month; {judged[0]['basis']}", markup=False)
    elif any(job["eta"] for job in waiting):
        basis = next(job["eta"]["basis"] for job in waiting if job["eta"])
        console.print(f"  estimates are not judged yet; {basis}", markup=False)
    for job in waiting:
        evaluation = job["evaluation"]
        if evaluation["alarm"] or evaluation["kind"] in ("not_reached", "unexplained"):
            console.print(f"  {_job(job)}: {evaluation['sentence']}", markup=False)
        if job.get("starving"):
            console.print(
                f"  {_job(job)}: has waited {duration(job['waiting_s'])} while {job['overtaken_by']} jobs that came "
                "later got in; see `myriad why` for a protected domain",
                markup=False,
            )


def _eta(body: Json | None) -> Eta | None:
    return None if body is None else Eta(body["low_s"], body["mid_s"], body["high_s"], body["basis"])


def _job(job: Json) -> str:
    return f"{job['namespace']}/{job['job']}"


# Without the rights of a viewer


def _show_own(api: Api, cache: Cache, where: str, missing: frozenset[str], json_: bool, team: str) -> None:
    places, answered = _places(api, cache, where)
    report = own_report(cache, where, now=datetime.now(UTC), places=places, missing=missing)
    if json_:
        emit_json(report)
        return
    if team:
        console.print(f"(these credentials see namespace {where} alone: {team} is not told apart)", markup=False)
    if not report:
        console.print(f"nothing of namespace {where} runs or waits", markup=False)
    for entry in report:
        console.print(f"{where}  queue {entry['local_queue'] or '(none)'}", markup=False)
        _table(entry["running"], entry["waiting"])
        _notes(entry["waiting"])
    if {"clusterqueues", QUOTA} & missing:
        text = f"these credentials see namespace {where} alone: who is ahead, and what others hold, is not shown"
        if not answered:
            text += "; Kueue's visibility API does not answer them, so the place in the queue is not known either"
        console.print(f"({text})", markup=False)


def _places(api: Api, cache: Cache, where: str) -> tuple[Mapping[tuple[str, str], int], bool]:
    """Places in the ClusterQueues, which Kueue tells to whoever may read the LocalQueue's pending workloads."""
    found: dict[tuple[str, str], int] = {}
    answered = False
    for queue in cache.listing(LOCAL_QUEUES):
        if queue["metadata"]["namespace"] != where:
            continue
        name = queue["metadata"]["name"]
        path = f"{_VISIBILITY}/namespaces/{where}/localqueues/{name}/pendingworkloads"
        try:
            found |= positions(api.get_raw(path, params={"limit": "1000"}))
        except (MyriadError, ValueError):
            continue
        answered = True
    return found, answered
