"""`myriad why JOB`: the first cause, the numbers, and what would unblock it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from myriad.cli import _cluster as cluster
from myriad.cli.output import console, emit_json
from myriad.errors import InputError
from myriad.kube.client import JOBS
from myriad.scheduler.cache import Cache
from myriad.scheduler.evidence import gather
from myriad.scheduler.inquiry import why_job
from myriad.scheduler.objects import WorkloadView
from myriad.scheduler.rules import steered_to


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def why(
        job: Annotated[str, typer.Argument(help="Name of the job, or NAMESPACE/NAME.")],
        namespace: Annotated[
            str | None, typer.Option("--namespace", "-n", help="Namespace; without it all teams' are searched.")
        ] = None,
        json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
        kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    ) -> None:
        """Why a job waits: the first cause, with numbers, who holds what it needs, and what would unblock it."""
        api = cluster.reach(kubeconfig)
        where, name = cluster.split_job(job, namespace)
        cache, missing = cluster.read_cluster(api)
        if where is None:
            where = _namespace_of(api, cache, name)
        answer = why_job(cache, where, name, evidence=gather(api, where, name))
        if answer is None:
            raise InputError(
                f"there is no job {name} in namespace {where}",
                hint=f"`kubectl get jobs -n {where}` lists those that exist",
            )
        decisions = cluster.ask_extension(api, "/v1/decisions", {"job": f"{where}/{name}", "limit": "5"})
        if json_:
            document: dict[str, Any] = answer.as_dict()
            document["not_readable"] = missing
            document["decisions"] = decisions if decisions is not None else []
            document["extension_answers"] = decisions is not None
            emit_json(document)
            return
        console.print(answer.text(), markup=False)
        steering = _steering_text(cache.view_of_job(where, name))
        if steering:
            console.print(f"  {'steering':<12}{steering}", markup=False)
        last = decisions[-1] if decisions else None
        if last:
            console.print(f"  {'decided':<12}{_decision_text(last)}", markup=False)
        if decisions is None:
            console.print("  (the extension does not answer: no decision is shown, and gangs may go unsteered)")
        if missing:
            console.print(f"  (these credentials may not read {', '.join(missing)}: the answer may lack them)")


def _namespace_of(api: Any, cache: Cache, name: str) -> str:
    namespaces = cluster.namespaces_of_teams(cache)
    found = [n for n in namespaces if cache.view_of_job(n, name) is not None]
    if not found:
        # A job that names no queue, or that Kueue has not seen yet, has no Workload.
        found = [n for n in namespaces if api.find(JOBS, name, namespace=n) is not None]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"there is a job {name} in {len(found)} namespaces: {', '.join(found)}", hint="say which with -n NAMESPACE"
        )
    raise InputError(
        f"no team has a job {name}; looked in {', '.join(namespaces) or 'no namespace: none has a queue'}",
        hint="give -n NAMESPACE for a job elsewhere; `myriad queue` lists what waits",
    )


def _steering_text(view: WorkloadView | None) -> str:
    """What the admission check says of a gang that waits."""
    if view is None or not view.waiting:
        return ""
    if view.check is None:
        return "not steered: the check is not attached to its queue"
    target = steered_to(view.check.updates)
    return f"to {target} as soon as it gets quota" if target and view.check.state == "Ready" else ""


def _decision_text(record: dict[str, Any]) -> str:
    text = str(record.get("reason") or "")
    if record["event"] in ("assigned", "outcome"):
        nodes = record.get("assigned") or record.get("nodes") or {}
        text = f"on {', '.join(list(nodes)[:8])}"
    return f"{record['event']} at {record['time']}: {text}"
