"""`myriad why JOB`: the first cause, the numbers, and what would unblock it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from myriad.cli import _cluster as cluster
from myriad.cli._scope import own_namespace, read_what_is_allowed
from myriad.cli.output import console, emit_json
from myriad.errors import InputError, MyriadError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import NAMESPACES
from myriad.kube.listing import listed
from myriad.scheduler.cache import Cache
from myriad.scheduler.evidence import gather
from myriad.scheduler.explain import Answer, Eta
from myriad.scheduler.inquiry import PLACEMENT, QUOTA, why_job
from myriad.scheduler.objects import WorkloadView
from myriad.scheduler.queue_view import eta_of
from myriad.scheduler.rules import steered_to
from myriad.scheduler.subject import find_subject, names_like, split_subject

STARTED, NEVER, FAILED, STILL_WAITING = 0, 1, 2, 4
_LOOK_S = 2.0
_FULL_LOOK_S = 15.0


@dataclass(frozen=True, slots=True)
class _Question:
    api: Api
    kind: str
    namespace: str
    name: str


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def why(
        job: Annotated[str, typer.Argument(help="NAME, KIND/NAME, NAMESPACE/NAME or NAMESPACE/KIND/NAME.")],
        namespace: Annotated[
            str | None, typer.Option("--namespace", "-n", help="Namespace; without it all teams' are searched.")
        ] = None,
        watch: Annotated[
            bool, typer.Option("--watch", "-w", help="Go on until it starts; says each time the cause changes.")
        ] = False,
        timeout_s: Annotated[
            float, typer.Option("--timeout", min=0, help="Seconds that --watch waits; 0 = for ever.")
        ] = 0.0,
        json_: Annotated[bool, typer.Option("--json", help="One JSON document (one a line with --watch).")] = False,
        kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    ) -> None:
        """Why a job waits: the first cause, with numbers, who holds what it needs, and what would unblock it.

        With --watch the exit code says how it ended: 0 it started, 1 it can never run, 2 it failed or is gone,
        4 it still waits.
        """
        if timeout_s and not watch:
            raise InputError("--timeout goes with --watch", hint="add --watch, or leave --timeout out")
        api = cluster.reach(kubeconfig)
        kind, before, name = split_subject(job)
        if namespace and before and namespace != before:
            raise InputError(f"the job is given as {job}, but -n says {namespace}", hint="give the namespace once")
        where = before or namespace or _find_namespace(api, kind, name, kubeconfig)
        question = _Question(api, kind, where, name)
        if watch:
            raise typer.Exit(_watch(question, timeout_s, json_))
        answer, cache, missing = _ask(question)
        _show(question, answer, cache, missing, json_)


def _ask(question: _Question) -> tuple[Answer, Cache, frozenset[str]]:
    cache, missing = read_what_is_allowed(question.api, question.namespace)
    evidence = gather(question.api, question.namespace, question.name, question.kind)
    answer = why_job(cache, question.namespace, question.name, evidence=evidence, missing=missing, eta=_eta(cache))
    if answer is None:
        raise _unknown(question)
    return answer, cache, frozenset({*missing, *evidence.unread})


def _eta(cache: Cache) -> Callable[[WorkloadView], Eta | None]:
    """The estimate that the extension has put on the Workload."""
    return lambda view: eta_of(cache, view, now=datetime.now(UTC))


def _unknown(question: _Question) -> InputError:
    where, name = question.namespace, question.name
    like = names_like(question.api, where, name)
    if like:
        hint = f"did you mean {' or '.join(like)}?"
    else:
        hint = f"`kubectl get jobs,pytorchjobs,deployments,pods -n {where}` lists what exists"
    return InputError(f"there is no {question.kind or 'job'} {name} in namespace {where}", hint=hint)


def _show(question: _Question, answer: Answer, cache: Cache, missing: frozenset[str], json_: bool) -> None:
    hidden = sorted(missing - {PLACEMENT, QUOTA})
    records, silence = _decisions(question)
    if json_:
        document: dict[str, Any] = answer.as_dict()
        document["not_readable"] = hidden
        document["decisions"] = records or []
        document["extension_answers"] = records is not None
        emit_json(document)
        return
    console.print(answer.text(), markup=False)
    steering = _steering_text(cache.view_of_job(question.namespace, question.name))
    if steering:
        console.print(f"  {'steering':<12}{steering}", markup=False)
    if records:
        console.print(f"  {'decided':<12}{_decision_text(records[-1])}", markup=False)
    if silence:
        console.print(f"  ({silence})", markup=False)
    if hidden:
        console.print(f"  (these credentials may not read {', '.join(hidden)}: the answer may lack them)")
    elif {PLACEMENT, QUOTA} & missing:
        console.print("  (these credentials see one namespace: what others hold is known as far as Kueue says it)")


def _decisions(question: _Question) -> tuple[list[dict[str, Any]] | None, str]:
    """The newest decisions about the job, and why there are none to be had."""
    params = {"job": f"{question.namespace}/{question.name}", "limit": "5"}
    try:
        records: Any = question.api.get_raw(
            f"{cluster.SERVICE}/v1/decisions", params=params, headers=cluster.extension_headers(question.api)
        )
        return list(records), ""
    except ApiError as error:
        if error.status in (401, 403):
            return None, "these credentials may not ask the extension: no decision is shown"
    except (MyriadError, ValueError):
        pass
    return None, "the extension does not answer: no decision is shown, and gangs may go unsteered"


# Watching


def _watch(
    question: _Question,
    timeout_s: float,
    json_: bool,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Ask again until the job starts or cannot; each change of the cause is a line."""
    began = clock()
    said, last_full = "", float("-inf")
    cache: Cache | None = None
    missing: frozenset[str] = frozenset()
    while True:
        if cache is None or clock() - last_full >= _FULL_LOOK_S:
            cache, missing = read_what_is_allowed(question.api, question.namespace)
            last_full = clock()
        else:
            _refresh(question, cache)
        evidence = gather(question.api, question.namespace, question.name, question.kind)
        answer = why_job(cache, question.namespace, question.name, evidence=evidence, missing=missing, eta=_eta(cache))
        if answer is None:
            if not said:
                raise _unknown(question)
            console.print(f"{question.name} is gone")
            return FAILED
        code = _ended(answer)
        if answer.first_cause != said:
            said = answer.first_cause
            if json_:
                emit_json(answer.as_dict())
            else:
                console.print(f"{time.strftime('%H:%M:%S')}  {answer.title}\n          {said}", markup=False)
        if code is not None:
            return code
        if timeout_s and clock() - began >= timeout_s:
            if not json_:
                console.print(f"still waiting after {timeout_s:g} s", markup=False)
            return STILL_WAITING
        sleep(_LOOK_S if not timeout_s else max(0.0, min(_LOOK_S, timeout_s - (clock() - began))))


def _refresh(question: _Question, cache: Cache) -> None:
    """The job's own namespace anew; the rest of the cluster is read less often."""
    from myriad.kube.kinds import LOCAL_QUEUES, PODS, WORKLOADS

    for resource in (WORKLOADS, LOCAL_QUEUES, PODS):
        items = listed(question.api, resource, namespace=question.namespace)
        if items is None:
            continue
        known = {
            o["metadata"]["name"]: o
            for o in cache.listing(resource)
            if o["metadata"].get("namespace") == question.namespace
        }
        for item in items:
            known.pop(item["metadata"]["name"], None)
            cache.upsert(resource.plural, item)
        for gone in known.values():
            cache.remove(resource.plural, gone)


def _ended(answer: Answer) -> int | None:
    if answer.state == "running":
        return STARTED
    if answer.state == "finished":
        return FAILED if answer.first_cause.startswith("failed") else STARTED
    return NEVER if answer.state == "never" else None


# Names


def _find_namespace(api: Api, kind: str, name: str, kubeconfig: str | None) -> str:
    """The namespace that has a job of that name: of those that belong to teams, or the caller's own."""
    try:
        api.list(NAMESPACES)
    except ApiError as error:
        if error.status not in (401, 403):
            raise
        return own_namespace(kubeconfig)
    cache, _ = cluster.read_cluster(api)
    namespaces = cluster.namespaces_of_teams(cache)
    found = [n for n in namespaces if cache.view_of_job(n, name) is not None]
    if not found:
        # A job that names no queue, or that Kueue has not seen yet, has no Workload.
        found = [n for n in namespaces if find_subject(api, n, name, kind)[0] is not None]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"there is a job {name} in {len(found)} namespaces: {', '.join(found)}", hint="say which with -n NAMESPACE"
        )
    like = [f"{n}/{other}" for n in namespaces[:20] for other in names_like(api, n, name)]
    raise InputError(
        f"no team has a job {name}; looked in {', '.join(namespaces) or 'no namespace: none has a queue'}",
        hint=f"did you mean {' or '.join(like[:3])}?"
        if like
        else "give -n NAMESPACE for a job elsewhere; `myriad queue` lists what waits",
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
