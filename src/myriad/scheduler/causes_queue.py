"""What the queue of a job, its ClusterQueue and its Workload hold against it. Pure: no I/O, reads a cache.

Where a kind is not in the cache because the caller may not read it, what Kueue says on the LocalQueue and the Workload
takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from myriad.kube.kinds import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    NAMESPACES,
    RESOURCE_FLAVORS,
    TOPOLOGIES,
    WORKLOADS,
)
from myriad.scheduler.cache import Cache
from myriad.scheduler.causes import QUEUE_LABEL, Cause, Evidence, annotations_of, labels_of, read_refusal
from myriad.scheduler.model import POOL_LABEL, is_gpu_resource, parse_quantity
from myriad.scheduler.objects import TEAM_LABEL, WorkloadView, seconds_since
from myriad.scheduler.subject import FRAMEWORKS, close_names
from myriad.scheduler.words import duration

Json = dict[str, Any]

HOLD_REASON = "myriad.dev/hold-reason"
HOLD_UNTIL = "myriad.dev/hold-until"
HOLD_BY = "myriad.dev/held-by"
_SILENT_CHECK_S = 30.0
_NOT_MANAGED_S = 15.0


@dataclass(frozen=True, slots=True)
class Looking:
    """What a question is asked with.

    Attributes:
        cache: the cluster, or the part of it that may be read.
        namespace: of the job.
        evidence: what was read beside the cache.
        now: the time.
        missing: kinds that the caller may not read, by plural name.
        evicted: jobs that may be stopping for this one; None = all that the cache has.
    """

    cache: Cache
    namespace: str
    evidence: Evidence
    now: datetime
    missing: frozenset[str] = frozenset()
    evicted: Sequence[WorkloadView] | None = None


def queue_causes(ask: Looking, queue_name: str) -> list[Cause]:
    """What is wrong between the job and a working ClusterQueue."""
    cache, namespace = ask.cache, ask.namespace
    if LOCAL_QUEUES.plural in ask.missing:
        return []
    local = cache.object(LOCAL_QUEUES, f"{namespace}/{queue_name}")
    if local is None:
        return [_no_local_queue(ask, queue_name)]
    held = _stop(local, f"LocalQueue {queue_name}", ask)
    if held:
        return [held]
    name = str(local["spec"]["clusterQueue"])
    if CLUSTER_QUEUES.plural in ask.missing:
        return _from_local_status(local, queue_name)
    queue = cache.object(CLUSTER_QUEUES, name)
    if queue is None:
        known = close_names(name, [q["metadata"]["name"] for q in cache.listing(CLUSTER_QUEUES)])
        did = f"; did you mean {' or '.join(known)}?" if known else ""
        return [
            Cause(
                "queue",
                f"LocalQueue {queue_name} leads to ClusterQueue {name}, which does not exist{did}",
                (f"create ClusterQueue {name}, or make LocalQueue {queue_name} anew for the right one",),
            )
        ]
    held = _stop(queue, f"ClusterQueue {name}", ask) or _inactive(ask, queue) or _other_namespace(ask, queue)
    return [held] if held else []


def _no_local_queue(ask: Looking, queue_name: str) -> Cause:
    everywhere = ask.cache.listing(LOCAL_QUEUES)
    here = sorted(q["metadata"]["name"] for q in everywhere if q["metadata"]["namespace"] == ask.namespace)
    there = sorted(q["metadata"]["namespace"] for q in everywhere if q["metadata"]["name"] == queue_name)
    text = f"namespace {ask.namespace} has no queue {queue_name} (label {QUEUE_LABEL})"
    close = close_names(queue_name, here)
    if close:
        text += f"; did you mean {close[0]}?"
    elif there:
        text += f"; one of that name is in {', '.join(there[:3])}: a job can only use its own namespace's"
    if here:
        return Cause("queue", text, (f"set the label {QUEUE_LABEL} to one of: {', '.join(here)}",))
    return Cause("queue", f"{text}, nor any other", ("ask for a queue in this namespace, or submit in your team's",))


def _stop(body: Json, what: str, ask: Looking) -> Cause | None:
    """A Hold or drain: by whom, why, and until when, as far as the object says so."""
    policy = (body.get("spec") or {}).get("stopPolicy") or "None"
    if policy == "None":
        return None
    notes = annotations_of(body)
    kind, _, name = what.partition(" ")
    who = notes.get(HOLD_BY) or ask.evidence.stopped_by.get(f"{kind}/{name}", "")
    by = f" by {who}" if who else ""
    why = f": {notes[HOLD_REASON].rstrip('.')}" if notes.get(HOLD_REASON) else ""
    until = f", until {notes[HOLD_UNTIL]}" if notes.get(HOLD_UNTIL) else ""
    rest = "" if why or until else ": it takes no job until somebody resumes it"
    return Cause(
        "queue",
        f"{what} is stopped ({policy}{by}{until}){why}{rest}",
        (f"wait until {notes[HOLD_UNTIL]}",) if until else ("whoever stopped it sets its stopPolicy back to None",),
    )


def _from_local_status(local: Json, name: str) -> list[Cause]:
    """What a user who may not read ClusterQueues learns from the LocalQueue."""
    for condition in (local.get("status") or {}).get("conditions") or []:
        if condition["type"] == "Active" and condition["status"] == "False":
            reason = {
                "ClusterQueueDoesNotExist": "its ClusterQueue does not exist",
                "ClusterQueueIsInactive": "its ClusterQueue is not active",
                "Stopped": "it is stopped",
            }.get(str(condition.get("reason")), str(condition.get("message") or condition.get("reason")))
            return [Cause("queue", f"LocalQueue {name} takes no job: {reason}", ("ask whoever runs the cluster",))]
    return []


def _inactive(ask: Looking, queue: Json) -> Cause | None:
    """Why a ClusterQueue is not active: Kueue's reason, and what would mend it."""
    name = queue["metadata"]["name"]
    for condition in (queue.get("status") or {}).get("conditions") or []:
        if condition["type"] != "Active" or condition["status"] != "False":
            continue
        reason = str(condition.get("reason") or "")
        said = str(condition.get("message") or reason).removeprefix("Can't admit new workloads: ").rstrip(".")
        unblock = {
            "FlavorNotFound": f"create the ResourceFlavor, or name another in ClusterQueue {name}{_flavors(ask)}",
            "AdmissionCheckNotFound": f"create the AdmissionCheck, or take it out of ClusterQueue {name}",
            "AdmissionCheckInactive": "bring back the controller of the AdmissionCheck, or take it out of the queue",
            "TopologyNotFound": "create the Topology that the ResourceFlavor names",
            "Terminating": "somebody deletes the queue: submit to another",
        }.get(reason, "ask whoever runs the cluster")
        return Cause("queue", f"ClusterQueue {name} is not active: {said}", (unblock,), {"reason": reason})
    return None


def _flavors(ask: Looking) -> str:
    names = sorted(f["metadata"]["name"] for f in ask.cache.listing(RESOURCE_FLAVORS))
    return f" (there are {', '.join(names[:8])})" if names else ""


def _other_namespace(ask: Looking, queue: Json) -> Cause | None:
    selector = (queue.get("spec") or {}).get("namespaceSelector")
    namespace = ask.cache.object(NAMESPACES, ask.namespace)
    name = queue["metadata"]["name"]
    if namespace is None:
        return None
    if selector is None:
        text = f"ClusterQueue {name} takes jobs from no namespace: it has no namespaceSelector"
        return Cause("queue", text, (f"give ClusterQueue {name} a namespaceSelector",))
    if selects(selector, labels_of(namespace)):
        return None
    team = labels_of(queue).get(TEAM_LABEL)
    of = f" of team {team}" if team else ""
    return Cause(
        "queue",
        f"ClusterQueue {name}{of} takes no jobs from namespace {ask.namespace}: its labels do not match "
        f"{selector_words(selector)}",
        (f"submit to a queue of your own team, or label the namespace {ask.namespace}",),
    )


def selects(selector: Json, labels: Mapping[str, str]) -> bool:
    """Kubernetes' rule for label selectors; the empty selector takes everything."""
    if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    for expression in selector.get("matchExpressions") or []:
        key, values = expression["key"], expression.get("values") or []
        holds = {
            "In": labels.get(key) in values and key in labels,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }.get(expression["operator"], False)
        if not holds:
            return False
    return True


def selector_words(selector: Json) -> str:
    """`a=b, c in (d, e)`."""
    words = [f"{k}={v}" for k, v in (selector.get("matchLabels") or {}).items()]
    for e in selector.get("matchExpressions") or []:
        values = f" ({', '.join(e['values'])})" if e.get("values") else ""
        words.append(f"{e['key']} {e['operator']}{values}")
    return ", ".join(words)


# Jobs without a Workload


def unmanaged_causes(ask: Looking, created: str) -> list[Cause]:
    """Why Kueue has made no Workload: no queue label, a queue that is not there, an integration that is off."""
    evidence = ask.evidence
    name = labels_of(evidence.job).get(QUEUE_LABEL)
    if not name:
        queues = sorted(
            q["metadata"]["name"]
            for q in ask.cache.listing(LOCAL_QUEUES)
            if q["metadata"]["namespace"] == ask.namespace
        )
        there = ", ".join(queues) or "(the namespace has none)"
        label = f"set the label {QUEUE_LABEL}"
        return [Cause("queue", f"the job names no queue: {label} to one of {there}", (f"{label} on the job",))]
    found = queue_causes(ask, name)
    framework = FRAMEWORKS.get(evidence.kind, "")
    if evidence.frameworks is not None and framework and framework not in evidence.frameworks:
        found.append(
            Cause(
                "queue",
                f"Kueue does not manage {evidence.kind}s here: its integration {framework} is off, so the job's queue "
                "label does nothing",
                (f"switch {framework} on in Kueue's configuration (integrations.frameworks)",),
            )
        )
    elif not found and seconds_since(created, ask.now) > _NOT_MANAGED_S and evidence.frameworks is None:
        off = f", if its integration {framework} is off" if framework not in ("", "batch/job") else ""
        found.append(
            Cause(
                "workload",
                f"Kueue has made no Workload of it in {duration(seconds_since(created, ask.now))}: it does not run, or "
                f"does not manage {evidence.kind}s{off}",
                ("kubectl -n kueue-system get pods; kubectl -n kueue-system logs deploy/kueue-controller-manager",),
            )
        )
    return found


# Workloads


def workload_causes(ask: Looking, view: WorkloadView) -> list[Cause]:
    """Deactivation, refused and failed checks, and what Kueue's own refusal says beyond GPUs and nodes."""
    body = ask.cache.object(WORKLOADS, view.key) or {}
    status = body.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    found: list[Cause] = []
    if not view.active:
        found.append(_held(body) or _deactivated(view, conditions))
    if not view.admitted:
        found.extend(_check_causes(ask, view, status))
    if view.waiting:
        found.extend(_refusal_causes(ask, view))
    return found


def _held(body: Json) -> Cause | None:
    """A Workload that the extension itself holds, for a budget or a time limit."""
    notes = annotations_of(body)
    if not notes.get(HOLD_BY):
        return None
    until = notes.get(HOLD_UNTIL, "")
    reason = notes.get(HOLD_REASON, "").rstrip(".") or f"held for its {notes[HOLD_BY]}"
    return Cause(
        "deactivated",
        reason + (f", until {until}" if until and until not in reason else ""),
        (f"wait until {until}" if until else "mend what it says, or ask whoever keeps the budgets",),
        {"held_by": notes[HOLD_BY], "until": until},
    )


def _deactivated(view: WorkloadView, conditions: Mapping[str, Json]) -> Cause:
    evicted = conditions.get("Evicted") or {}
    reason = str(evicted.get("reason") or "") if evicted.get("status") == "True" else ""
    said = str(evicted.get("message") or "").rstrip(".")
    if "MaximumExecutionTime" in reason:
        return Cause("deactivated", f"stopped by its time limit: {said}", ("submit it again with a longer limit",))
    if "RequeuingLimit" in reason:
        text = f"given up by Kueue after too many starts that did not get ready: {said}"
        return Cause("deactivated", text, (f"find out why its pods do not get ready; then {_reactivate(view)}",))
    if "AdmissionCheck" in reason:
        return Cause(
            "deactivated", f"an admission check rejected it: {said}", (f"mend that; then {_reactivate(view)}",)
        )
    why = f" ({said})" if said and reason.startswith("Deactivated") and "deactivated" not in said.lower() else ""
    return Cause(
        "deactivated", f"its Workload is deactivated: somebody set spec.active to false{why}", (_reactivate(view),)
    )


def _reactivate(view: WorkloadView) -> str:
    patch = '\'{"spec":{"active":true}}\''
    return f"kubectl -n {view.gang.namespace} patch workload {view.workload} --type merge -p {patch}"


def _check_causes(ask: Looking, view: WorkloadView, status: Json) -> list[Cause]:
    found = []
    for entry in status.get("admissionChecks") or []:
        name, state = entry["name"], entry["state"]
        said = " ".join(str(entry.get("message") or "").split())
        words = f": {said}" if said else ""
        since = seconds_since(str(entry.get("lastTransitionTime") or ""), ask.now)
        if state in ("Retry", "Rejected"):
            verb = "asks to try again later" if state == "Retry" else "rejects it"
            found.append(Cause("check", f"the admission check {name} {verb}{words}"))
        elif state == "Pending" and view.quota_reserved and name == ask.cache.check_name and since > _SILENT_CHECK_S:
            found.append(
                Cause(
                    "check",
                    f"it has its quota and nodes, but the extension has not answered its check for {duration(since)}",
                    ("kubectl -n myriad-system get pods; kubectl -n myriad-system logs deploy/myriad-scheduler",),
                )
            )
        elif state == "Pending" and view.quota_reserved and ADMISSION_CHECKS.plural not in ask.missing:
            check = ask.cache.object(ADMISSION_CHECKS, name)
            active = (check or {}).get("status", {}).get("conditions") or []
            if check is None or any(c["type"] == "Active" and c["status"] == "False" for c in active):
                what = "does not exist" if check is None else "is not active: its controller does not run"
                found.append(Cause("check", f"waits for the admission check {name}, which {what}{words}"))
    return found


def _refusal_causes(ask: Looking, view: WorkloadView) -> list[Cause]:
    """Kueue's refusal where it is about something that quota of GPUs and the planner do not answer."""
    refusal = read_refusal(view.quota_message)
    if refusal is None:
        return []
    where = ask.cache.cluster_queue_of(view) or "its ClusterQueue"
    resource = refusal.resource
    if refusal.kind == "uncovered":
        queue = ask.cache.object(CLUSTER_QUEUES, where) or {}
        covered = [r for g in (queue.get("spec") or {}).get("resourceGroups") or [] for r in g["coveredResources"]]
        only = f" (it covers {', '.join(covered)})" if covered else ""
        if resource in covered:
            return []  # the queue was corrected since Kueue looked
        text = f"ClusterQueue {where} has no quota for {resource}{only}, and the job asks for it"
        return [Cause("quota", text, (f"add {resource} to the queue, or do not ask for it",), never=True)]
    if refusal.kind == "beyond" and not is_gpu_resource(resource):
        text = f"asks for {refusal.asked} {resource}; ClusterQueue {where} can never give more than {refusal.most}"
        return [
            Cause("quota", text, (f"ask for {refusal.most} {resource} or less",), {"resource": resource}, never=True)
        ]
    if refusal.kind == "unused" and not is_gpu_resource(resource):
        numbers = resource_numbers(ask.cache, where, resource)
        text = f"waits for quota of {resource}: {refusal.more} more needed than ClusterQueue {where} has left{numbers}"
        return [Cause("quota", text, (), {"resource": resource, "more": refusal.more})]
    if refusal.kind == "level":
        levels = [
            level["nodeLabel"]
            for t in ask.cache.listing(TOPOLOGIES)
            for level in t["spec"]["levels"]
            if t["metadata"]["name"] == "myriad"
        ]
        asked = sorted({p.topology.level for p in view.gang.podsets if p.topology.level})
        text = f"asks for the topology level {', '.join(asked)}, which the cluster's topology does not have"
        there = f"use one of {', '.join(levels)}" if levels else "correct the topology annotation"
        return [Cause("topology", text, (there,), never=True)]
    if refusal.kind in ("affinity", "taint"):
        what = f"taint {refusal.more}" if refusal.kind == "taint" else "node selector or affinity"
        return [Cause("topology", f"flavor {refusal.flavor} of ClusterQueue {where} does not take it: {what}")]
    if refusal.kind == "other" and "validation failed" in refusal.message:
        return [Cause("pods", refusal.message, ("correct the requests of its containers",), never=True)]
    if refusal.kind == "other" and "LimitRange" in refusal.message:
        return [Cause("pods", refusal.message, ("ask for what the namespace's LimitRange allows",), never=True)]
    return []


def resource_numbers(cache: Cache, queue_name: str, resource: str) -> str:
    """ " (8 in all, 6 in use)" of a resource that is not GPUs, as the ClusterQueue's own status counts."""
    queue = cache.object(CLUSTER_QUEUES, queue_name)
    if queue is None:
        return ""
    nominal = sum(
        parse_quantity(r.get("nominalQuota") or 0)
        for g in (queue.get("spec") or {}).get("resourceGroups") or []
        for f in g.get("flavors") or []
        for r in f.get("resources") or []
        if r["name"] == resource
    )
    used = sum(
        parse_quantity(r.get("total") or 0)
        for f in (queue.get("status") or {}).get("flavorsReservation") or []
        for r in f.get("resources") or []
        if r["name"] == resource
    )
    return f" ({float(nominal):g} in all, {float(used):g} in use)"


def evicted_jobs(cache: Cache) -> list[WorkloadView]:
    """Jobs that are evicted and may still be stopping."""
    return [v for v in cache.views() if v.evicted and not v.finished]


def preempted_for(ask: Looking, view: WorkloadView) -> list[WorkloadView]:
    """Jobs that were preempted for this one and have not left their nodes yet."""
    cache = ask.cache
    found = []
    for other in evicted_jobs(cache) if ask.evicted is None else ask.evicted:
        if other.key == view.key:
            continue
        body = cache.object(WORKLOADS, other.key) or {}
        for condition in (body.get("status") or {}).get("conditions") or []:
            if condition["type"] == "Preempted" and condition["status"] == "True":
                said = str(condition.get("message") or "")
                if f"UID: {view.gang.uid}," in said and (other.quota_reserved or cache.pods_of(other)):
                    found.append(other)
    return found


def pool_of(cache: Cache, queue_name: str) -> str:
    """The pool of a ClusterQueue, "" where it is not known."""
    return labels_of(cache.object(CLUSTER_QUEUES, queue_name)).get(POOL_LABEL, "")


def queue_names(cache: Cache, namespace: str) -> Sequence[str]:
    """LocalQueues of a namespace."""
    return sorted(q["metadata"]["name"] for q in cache.listing(LOCAL_QUEUES) if q["metadata"]["namespace"] == namespace)
