"""One job's own state, put together from its Workload, its object and its pods. Pure: no I/O, reads a cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from myriad.kube.kinds import NAMESPACES, NODES, WORKLOADS
from myriad.scheduler.causes import QUEUE_LABEL, Cause, in_order, labels_of, requeue_words, templates_of
from myriad.scheduler.causes_all import causes_of
from myriad.scheduler.causes_queue import Looking, preempted_for, queue_causes, unmanaged_causes, workload_causes
from myriad.scheduler.explain import why
from myriad.scheduler.facts import Answer, Condition, Holder, JobFacts
from myriad.scheduler.model import Gang, Refusal
from myriad.scheduler.objects import TEAM_LABEL, WorkloadView, node_info, pod_set, seconds_since
from myriad.scheduler.placement import fits_ever

Json = dict[str, Any]

WAITING = "myriad.dev/Waiting"
"""The condition in which the extension writes the first cause."""

_ENDS = {"Complete": True, "SuccessCriteriaMet": True, "Succeeded": True, "Completed": True, "Failed": False}
_AT_ONCE_S = 30.0


def workload_of(ask: Looking, job: str) -> WorkloadView | None:
    """The Workload of what was asked for: by its owner's uid, else by name. Of several, one that waits."""
    evidence = ask.evidence
    body = evidence.job
    uids = {str(p["metadata"].get("uid") or "") for p in evidence.pods}
    if body is not None:
        uids.add(str((body.get("metadata") or {}).get("uid") or ""))
    uids -= {""}
    found = []
    if uids:
        for view in ask.cache.views():
            if view.gang.namespace != ask.namespace:
                continue
            workload = ask.cache.object(WORKLOADS, view.key) or {}
            if any(o.get("uid") in uids for o in (workload.get("metadata") or {}).get("ownerReferences") or []):
                found.append(view)
    if found:
        return min(
            found, key=lambda v: (v.finished, v.admitted, v.quota_reserved, _newest_first(v.created), v.workload)
        )
    return ask.cache.view_of_job(ask.namespace, job)


def _newest_first(created: str) -> tuple[int, ...]:
    return tuple(-ord(c) for c in created)


def facts_of(ask: Looking, view: WorkloadView) -> JobFacts:
    """Everything about a job that has a Workload, apart from quota and placement."""
    body = ask.cache.object(WORKLOADS, view.key) or {"status": {}}
    status = body.get("status") or {}
    conditions = tuple(
        Condition(c["type"], c["status"], c.get("reason") or "", c.get("message") or "")
        for c in status.get("conditions") or []
    )
    by_type = {c["type"]: c for c in status.get("conditions") or []}
    evidence = ask.evidence
    if not evidence.pods and view.quota_reserved:
        evidence = replace(evidence, pods=tuple(ask.cache.pods_of_workload(view)))
    pods = evidence.pods
    finished = by_type.get("Finished", {})
    pending = {}
    if view.quota_reserved:
        pending = {
            e["name"]: e.get("message") or "" for e in status.get("admissionChecks") or [] if e["state"] != "Ready"
        }
    causes: list[Cause] = [*causes_of(evidence, now=ask.now), *workload_causes(ask, view)]
    if view.waiting:
        causes += queue_causes(ask, view.local_queue)
    suspended = _suspended_by_somebody(ask, view) or _done_and_preempted(ask, view)
    if suspended:
        causes.append(suspended)
    return JobFacts(
        gang=view.gang,
        waiting_s=seconds_since(view.created, ask.now),
        quota_reserved=view.quota_reserved,
        admitted=view.admitted,
        admitted_s=seconds_since(by_type.get("Admitted", {}).get("lastTransitionTime") or "", ask.now),
        finished=view.finished,
        succeeded=None if not finished else finished.get("reason") != "Failed",
        ended=_ended(evidence.job) or (" ".join(str(finished.get("message") or "").split()) if view.finished else ""),
        evicted=view.evicted,
        suspended_by_user=not view.active or suspended is not None,
        pods_ready=sum(pod_ready(p) for p in pods),
        pods_expected=view.gang.pods,
        nodes=nodes_of(pods) or view.nodes,
        pending_checks=pending,
        causes=in_order(causes),
        victims=_victims(ask, view),
        odd=odd_things(ask, pods, status),
        conditions=conditions,
        evaluated="QuotaReserved" in by_type,
        set_back=requeue_words(body, ask.now),
        told=told_of(body) or told_of(evidence.job),
    )


def told_of(body: Json | None) -> str:
    """What the extension has written on an object as the first cause; "" where nothing (holds)."""
    for condition in ((body or {}).get("status") or {}).get("conditions") or []:
        if condition.get("type") == WAITING and condition.get("status") == "True":
            return str(condition.get("message") or "")
    return ""


def _suspended_by_somebody(ask: Looking, view: WorkloadView) -> Cause | None:
    """An admitted job that is suspended all the same: somebody has set spec.suspend after Kueue let it go."""
    body = ask.evidence.job
    if body is None or not view.admitted or view.finished or not (body.get("spec") or {}).get("suspend"):
        return None
    conditions = ((ask.cache.object(WORKLOADS, view.key) or {}).get("status") or {}).get("conditions") or []
    since = [str(c.get("lastTransitionTime") or "") for c in conditions if c["type"] == "Admitted"]
    if seconds_since("".join(since[:1]), ask.now) < _AT_ONCE_S:
        return None
    what = f"{ask.evidence.kind.lower()} {view.gang.name}"
    return Cause(
        "suspended",
        "somebody has suspended it (spec.suspend) though Kueue has admitted it: it holds its quota and does not run",
        (f'kubectl -n {ask.namespace} patch {what} --type merge -p \'{{"spec":{{"suspend":false}}}}\'',),
    )


def _done_and_preempted(ask: Looking, view: WorkloadView) -> Cause | None:
    """A Job whose pods had all succeeded in the moment in which it was preempted.

    Kueue takes the start time of what it suspends, the Job controller says Complete of nothing without one, and Kueue
    admits nothing that has no pod left to run: seen with Kubernetes 1.35.4 and Kueue 0.17.0.
    """
    body = ask.evidence.job or {}
    spec, status = body.get("spec") or {}, body.get("status") or {}
    if ask.evidence.kind != "Job" or view.admitted or view.finished or not spec.get("suspend"):
        return None
    met = {c.get("type") for c in status.get("conditions") or [] if c.get("status") == "True"}
    wanted = int(spec.get("completions") or 0)
    succeeded = int(status.get("succeeded") or 0)
    if "Complete" in met or not ("SuccessCriteriaMet" in met or (wanted and succeeded >= wanted)):
        return None
    return Cause(
        "suspended",
        f"all its work was done ({succeeded} of {wanted or succeeded} pods succeeded) in the moment in which it was "
        "preempted: Kubernetes does not call a suspended job complete, and no pod of it is left to run",
        (f"take its results, then kubectl -n {ask.namespace} delete job {view.gang.name}",),
        {"succeeded": succeeded, "completions": wanted},
    )


def _victims(ask: Looking, view: WorkloadView) -> tuple[Holder, ...]:
    if not view.waiting:
        return ()
    found = []
    for other in preempted_for(ask, view):
        pods = [p for p in ask.cache.pods_of_workload(other) if p["metadata"].get("deletionTimestamp")]
        ends = max((ends_in_s(p, ask.now) for p in pods), default=0.0)
        team = other.gang.team or other.gang.namespace
        found.append(Holder(other.gang.name, team, other.gang.gpus, ends, terminating=True))
    return tuple(found)


def ends_in_s(pod: Json, now: datetime) -> float:
    """Seconds until a pod that is being deleted is killed (its deletionTimestamp lies at the end of the grace)."""
    text = str(pod["metadata"].get("deletionTimestamp") or "")
    if not text:
        return 0.0
    return max(0.0, (datetime.fromisoformat(text) - now).total_seconds())


def pod_ready(pod: Json) -> bool:
    """Whether a pod is Ready, or has done its work."""
    status = pod.get("status") or {}
    if status.get("phase") == "Succeeded":
        return True
    if (pod.get("metadata") or {}).get("deletionTimestamp") or status.get("phase") == "Failed":
        return False
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or [])


def nodes_of(pods: Iterable[Json]) -> dict[str, int]:
    """Pods by node, of those that are bound and have not failed."""
    found: dict[str, int] = {}
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if node and (pod.get("status") or {}).get("phase") != "Failed":
            found[node] = found.get(node, 0) + 1
    return found


def odd_things(ask: Looking, pods: Sequence[Json], status: Json) -> tuple[str, ...]:
    """What is worth saying of a job that runs: restarts, nodes that are ill, evictions so far."""
    odd = []
    restarts: Counter[str] = Counter()
    for pod in pods:
        for container in (pod.get("status") or {}).get("containerStatuses") or []:
            if container.get("restartCount"):
                restarts[pod["metadata"]["name"]] += int(container["restartCount"])
    if restarts:
        names = ", ".join(f"{name} x{n}" for name, n in restarts.most_common(3))
        odd.append(f"its containers have restarted {sum(restarts.values())} times ({names})")
    for name in nodes_of(pods):
        body = ask.cache.object(NODES, name)
        if body is not None:
            node = node_info(body, ask.cache.levels)
            if not node.ready:
                odd.append(f"its node {name} is not ready")
            elif node.gate_closed:
                odd.append(f"the gate of its node {name} is closed: {node.gate_reason or 'not proven'}")
    ill = [str(n.get("name")) for n in status.get("unhealthyNodes") or []]
    if ill:
        odd.append(f"Kueue counts its node {', '.join(ill)} as unhealthy and has not replaced it yet")
    evictions = (status.get("schedulingStats") or {}).get("evictions") or []
    if evictions:
        counts = ", ".join(f"{e['reason']} x{e.get('count', 1)}" for e in evictions)
        odd.append(f"it was evicted before: {counts}")
    return tuple(odd)


def _ended(body: Json | None) -> str:
    """How a job ended, as its own conditions say; "" while it has not."""
    for condition in ((body or {}).get("status") or {}).get("conditions") or []:
        if condition.get("type") in _ENDS and condition.get("status") == "True":
            reason, message = str(condition.get("reason") or ""), " ".join(str(condition.get("message") or "").split())
            return f"{message} ({reason})" if reason and message and reason not in message else message or reason
    return ""


def _result(body: Json | None) -> bool | None:
    for condition in ((body or {}).get("status") or {}).get("conditions") or []:
        if condition.get("type") in _ENDS and condition.get("status") == "True":
            return _ENDS[condition["type"]]
    return None


# Without a Workload


def without_workload(ask: Looking, job: str) -> Answer:
    """The answer for an object that Kueue has made no Workload of: not in a queue, or not seen by it."""
    evidence = ask.evidence
    body = evidence.job or {}
    metadata, spec = body.get("metadata") or {}, body.get("spec") or {}
    labels = labels_of(evidence.job)
    created = str(metadata.get("creationTimestamp") or "")
    team = labels_of(ask.cache.object(NAMESPACES, ask.namespace)).get(TEAM_LABEL, "")
    podsets = tuple(
        pod_set({"name": name, "count": count, "template": template})
        for name, count, template in templates_of(evidence.kind, evidence.job)
    )
    gang = Gang(name=job, namespace=ask.namespace, podsets=podsets, team=team)
    pods = evidence.pods
    phase = (body.get("status") or {}).get("phase") if evidence.kind == "Pod" else ""
    result = {"Succeeded": True, "Failed": False}.get(str(phase), _result(evidence.job))
    suspended = bool(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"))
    served = evidence.kind in ("Pod", "PodGroup", "Deployment", "StatefulSet", "LeaderWorkerSet")
    started = bool(pods) or served
    causes = list(causes_of(evidence, now=ask.now))
    managed = labels.get(QUEUE_LABEL)
    if result is None and (suspended or managed or not started):
        # That Kueue made no Workload is news only where nothing says why.
        causes += [c for c in unmanaged_causes(ask, created) if c.layer != "workload" or not causes]
    expected = gang.pods or len(pods)
    ready = sum(pod_ready(p) for p in pods)
    odd = list(odd_things(ask, pods, {}))
    if not managed:
        odd.append("it is in no queue: no quota counts it, and nothing keeps its pods together")
    placement: Refusal | None = None
    if result is None and not nodes_of(pods) and NODES.plural not in ask.missing and podsets:
        placement = fits_ever(ask.cache.snapshot(), gang)
    return why(
        JobFacts(
            gang=gang,
            has_workload=False,
            waiting_s=seconds_since(created, ask.now),
            finished=result is not None,
            succeeded=result,
            ended=_ended(evidence.job) or _pod_end(evidence.job if evidence.kind == "Pod" else None),
            admitted=started and not suspended,
            admitted_s=seconds_since(created, ask.now),
            pods_ready=ready,
            pods_expected=expected,
            nodes=nodes_of(pods),
            suspended_by_user=suspended and not managed and not (body.get("status") or {}).get("conditions"),
            causes=in_order(causes),
            odd=tuple(odd),
            told=told_of(evidence.job),
        ),
        placement=placement,
    )


def _pod_end(pod: Json | None) -> str:
    status = (pod or {}).get("status") or {}
    if status.get("reason"):
        return " ".join(f"{status['reason']}: {status.get('message') or ''}".split()).rstrip(":")
    for container in status.get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            return f"container {container['name']} ended with exit code {ended['exitCode']}"
    return ""
