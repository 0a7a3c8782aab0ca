"""What each layer holds against one job, as sentences in the order in which they have to be mended. Pure.

A job passes queue, quota, checks, pod creation, gates, volumes, the pod scheduler, the kubelet and the image before it
runs. Each function below reads one layer; `causes_all` puts what they found in order, the first to mend first: a pod
that waits for a volume is also unschedulable, and telling only the latter sends people to the wrong place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from myriad.scheduler.model import parse_quantity
from myriad.scheduler.objects import pod_requests, seconds_since
from myriad.scheduler.words import duration

Json = dict[str, Any]

Layer = Literal[
    "suspended", "deactivated", "finished", "queue", "priority", "workload", "quota", "topology", "check", "pods",
    "resource quota", "gate", "volume", "volcano", "scheduler", "kubelet", "bind", "image", "container", "node", "job",
]  # fmt: skip

_RANK: dict[str, int] = {
    layer: n
    for n, layer in enumerate(
        (
            "suspended", "deactivated", "queue", "priority", "workload", "pods", "resource quota", "volume", "gate",
            "check", "topology", "quota", "kubelet", "bind", "volcano", "scheduler", "image", "container", "node",
            "job",
        )
    )
}  # fmt: skip

RECENT_S = 600.0
"""An older Event tells of a cause that may be long gone; a cause that lasts is reported again and again."""

KUEUE_GATES = ("kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology")
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that stands between a job and its start.

    Attributes:
        layer: which part reports it; orders causes.
        text: the sentence, without a full stop.
        unblocks: what would mend it, each an order to somebody.
        numbers: the figures in it.
        never: no waiting helps: the job or the site has to change.
    """

    layer: Layer
    text: str
    unblocks: tuple[str, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    never: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a job beyond the cache. None = it was not or could not be read, as `unread` says.

    Attributes:
        kind: of the object that was asked for ("Job", "PyTorchJob", "Pod", ...).
        job: the object; None where it does not exist.
        problems: causes that are known already, each a sentence.
        pods: the job's pods, whatever their state.
        events: Events about the job, its Workload and its pods.
        quotas, limit_ranges: ResourceQuotas and LimitRanges of its namespace.
        claims: PersistentVolumeClaims that its pods name; None for one that does not exist.
        priority_classes: names of Kueue's WorkloadPriorityClasses.
        stopped_by: who set the stopPolicy of a queue ("LocalQueue/h100"), as its managed fields say.
        pod_groups, volcano_queues: Volcano's objects that concern the job; None where Volcano is not installed.
        frameworks: kinds that Kueue's configuration manages ("batch/job"); None = not known.
        unread: what these credentials may not read, by plural name.
        looked_at: layers that were read.
    """

    job: Json | None = None
    problems: tuple[str, ...] = ()
    kind: str = "Job"
    pods: tuple[Json, ...] = ()
    events: tuple[Json, ...] = ()
    quotas: tuple[Json, ...] | None = None
    limit_ranges: tuple[Json, ...] | None = None
    claims: Mapping[str, Json | None] | None = None
    priority_classes: frozenset[str] | None = None
    stopped_by: Mapping[str, str] = field(default_factory=dict)
    pod_groups: tuple[Json, ...] | None = None
    volcano_queues: tuple[Json, ...] | None = None
    frameworks: frozenset[str] | None = None
    unread: tuple[str, ...] = ()
    looked_at: tuple[str, ...] = ()


def in_order(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """Causes in the order to mend them, each sentence once."""
    seen: dict[Any, Cause] = {}
    for cause in causes:
        claim = cause.numbers.get("claim")
        seen.setdefault((cause.layer, claim) if claim else cause.text, cause)
    return tuple(sorted(seen.values(), key=lambda c: _RANK.get(c.layer, len(_RANK))))


# What the job itself names


def labels_of(body: Json | None) -> Mapping[str, str]:
    """Labels of an object, {} for none."""
    return ((body or {}).get("metadata") or {}).get("labels") or {}


def annotations_of(body: Json | None) -> Mapping[str, str]:
    """Annotations of an object, {} for none."""
    return ((body or {}).get("metadata") or {}).get("annotations") or {}


def templates_of(kind: str, body: Json | None) -> list[tuple[str, int, Json]]:
    """(name, pods, pod template) of each set of pods that an object makes; [] for a kind that is not known."""
    spec = (body or {}).get("spec") or {}
    if kind == "Pod":
        return [("main", 1, {"metadata": (body or {}).get("metadata") or {}, "spec": spec})]
    if kind == "JobSet":
        return [
            (
                str(r.get("name") or "main"),
                int(r.get("replicas", 1)) * int(((r.get("template") or {}).get("spec") or {}).get("parallelism") or 1),
                ((r.get("template") or {}).get("spec") or {}).get("template") or {},
            )
            for r in spec.get("replicatedJobs") or []
        ]
    replicas = next((v for k, v in spec.items() if k.endswith("ReplicaSpecs") and isinstance(v, dict)), None)
    if replicas is not None:
        return [(name.lower(), int(r.get("replicas") or 1), r.get("template") or {}) for name, r in replicas.items()]
    if "template" in spec:
        count = spec.get("parallelism") if kind == "Job" else spec.get("replicas")
        return [("main", 1 if count is None else int(count), spec["template"] or {})]
    return []


def priority_causes(evidence: Evidence) -> list[Cause]:
    """A WorkloadPriorityClass that does not exist: Kueue then makes no Workload and says so only in its log."""
    name = labels_of(evidence.job).get(PRIORITY_LABEL)
    known = evidence.priority_classes
    if not name or known is None or name in known:
        return []
    there = ", ".join(sorted(known)) or "none"
    return [
        Cause(
            "priority",
            f"there is no WorkloadPriorityClass {name} ({PRIORITY_LABEL}), so Kueue makes no Workload; "
            f"there are: {there}",
            (f"set the label {PRIORITY_LABEL} to one of them, or remove it",),
            never=True,
        )
    ]


# ResourceQuota

_QUOTA_NAMES = {"cpu": "cpu", "memory": "memory", "requests.cpu": "cpu", "requests.memory": "memory"}


def quota_object_causes(evidence: Evidence) -> list[Cause]:
    """A namespace's ResourceQuota that the job's pods do not fit in, all of them together (volcano#1387).

    Judged before the pods exist: a gang whose last pods cannot be created holds its quota and waits for ever.
    """
    if not evidence.quotas or evidence.job is None:
        return []
    status = evidence.job.get("status") or {}
    wanted: dict[str, float] = {}
    pods = 0
    for _, count, template in templates_of(evidence.kind, evidence.job):
        spec = template.get("spec") or {}
        if not spec:
            return []
        pods += count
        for name, amount in pod_requests(spec).items():
            key = {"cpu_milli": "cpu", "memory_bytes": "memory"}.get(name, name)
            value = amount / 1000 if name == "cpu_milli" else float(amount)
            wanted[key] = wanted.get(key, 0.0) + value * count
    made = len([p for p in evidence.pods if (p.get("status") or {}).get("phase") not in ("Succeeded", "Failed")])
    if made >= pods or any(c.get("type") in ("Complete", "Failed") for c in status.get("conditions") or []):
        return []
    share = 1 - made / pods if pods else 0.0
    found = []
    for quota in evidence.quotas:
        hard = (quota.get("status") or {}).get("hard") or (quota.get("spec") or {}).get("hard") or {}
        used = (quota.get("status") or {}).get("used") or {}
        if (quota.get("spec") or {}).get("scopes") or (quota.get("spec") or {}).get("scopeSelector"):
            continue
        for name, limit in hard.items():
            need = float(pods - made) if name in ("pods", "count/pods") else wanted.get(_quota_key(name), 0.0) * share
            left = _amount(limit) - _amount(used.get(name, 0))
            if need > left + 1e-9:
                found.append(_quota_cause(quota, name, need, left, _amount(limit)))
    return found


def _quota_cause(quota: Json, name: str, need: float, left: float, limit: float) -> Cause:
    where = f"ResourceQuota {quota['metadata']['name']}"
    never = need > limit
    text = (
        f"{where} of the namespace leaves {_words(name, max(0.0, left))} of {_words(name, limit)}; the job's pods need "
    )
    return Cause(
        "resource quota",
        text + _words(name, need) + (", more than it ever gives" if never else ", so some of them cannot be made"),
        (f"raise {name} in {where}" + ("" if never else ", or wait until other pods of the namespace end"),),
        {"resource": name, "need": need, "left": left, "limit": limit},
        never=never,
    )


def _quota_key(name: str) -> str:
    return _QUOTA_NAMES.get(name) or name.removeprefix("requests.")


def _amount(text: Any) -> float:
    return float(parse_quantity(text))


def _words(name: str, amount: float) -> str:
    key = _quota_key(name)
    if "memory" in name:
        return f"{amount / 2**30:.4g} GiB of {name}"
    short = "GPUs" if key.endswith("/gpu") else name
    return f"{amount:g} {short}"


# Kueue's words


_UNUSED = re.compile(
    r"insufficient unused quota for (?P<resource>\S+) in flavor (?P<flavor>\S+?), (?P<more>\S+) more needed"
)
_BEYOND = re.compile(
    r"insufficient quota for (?P<resource>\S+) in flavor (?P<flavor>\S+?), previously considered podsets requests "
    r"\((?P<before>[^)]*)\) \+ current podset request \((?P<asked>[^)]*)\) > maximum capacity \((?P<most>[^)]*)\)"
)
_UNCOVERED = re.compile(r"resource (?P<resource>\S+) unavailable in ClusterQueue")
_PREEMPTING = re.compile(r"Pending the preemption of (?P<count>\d+) workload")
_LEVEL = re.compile(r"does not contain the requested level")
_AFFINITY = re.compile(r"flavor (?P<flavor>\S+) doesn't match node affinity")
_TAINT = re.compile(r"untolerated taint (?P<taint>.+?) in flavor (?P<flavor>\S+)")


@dataclass(frozen=True, slots=True)
class QueueRefusal:
    """What Kueue's message says, read.

    Attributes:
        kind: unused (others hold it), beyond (above the maximum), uncovered (the queue has no such resource), level,
            affinity, taint, topology, or other.
        resource, flavor: what it is about.
        more: how much is missing, in the message's own unit.
        asked, most: for `beyond`.
        preempting: workloads that are being preempted for this one.
    """

    kind: Literal["unused", "beyond", "uncovered", "level", "affinity", "taint", "topology", "other"]
    message: str
    resource: str = ""
    flavor: str = ""
    more: str = ""
    asked: str = ""
    most: str = ""
    preempting: int = 0


def read_refusal(message: str) -> QueueRefusal | None:
    """Kueue's reason for not reserving quota; None for an empty message."""
    text = " ".join(message.split())
    if not text:
        return None
    found = _PREEMPTING.search(text)
    preempting = int(found["count"]) if found else 0
    if m := _BEYOND.search(text):
        return QueueRefusal("beyond", text, m["resource"], m["flavor"], "", m["asked"], m["most"], preempting)
    if m := _UNCOVERED.search(text):
        return QueueRefusal("uncovered", text, m["resource"], preempting=preempting)
    if _LEVEL.search(text):
        return QueueRefusal("level", text, preempting=preempting)
    if m := _TAINT.search(text):
        return QueueRefusal("taint", text, flavor=m["flavor"], more=m["taint"], preempting=preempting)
    if m := _AFFINITY.search(text):
        return QueueRefusal("affinity", text, flavor=m["flavor"], preempting=preempting)
    if m := _UNUSED.search(text):
        return QueueRefusal("unused", text, m["resource"], m["flavor"], m["more"], preempting=preempting)
    if "topology" in text:
        return QueueRefusal("topology", text, preempting=preempting)
    return QueueRefusal("other", text, preempting=preempting)


def requeue_words(workload: Json, now: datetime) -> str:
    """ "next try in 3 min (2 tries so far)" for a workload that Kueue set back; "" for others."""
    state = (workload.get("status") or {}).get("requeueState") or {}
    at = str(state.get("requeueAt") or "")
    if not at:
        return ""
    left = -(now - datetime.fromisoformat(at)).total_seconds()
    count = int(state.get("count") or 0)
    tries = f" ({count} {'try' if count == 1 else 'tries'} so far)" if count else ""
    return f"next try in {duration(left)}{tries}" if left > 0 else ""


def recent(events: Sequence[Json], now: datetime) -> list[Json]:
    """Events of the last minutes, newest first."""
    dated = [(when_of(e), e) for e in events]
    fresh = [(when, e) for when, e in dated if seconds_since(when, now) <= RECENT_S]
    return [e for _, e in sorted(fresh, key=lambda pair: pair[0], reverse=True)]


def when_of(event: Json) -> str:
    """When an Event was seen last, in either of the two forms that Kubernetes has."""
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or (event.get("metadata") or {}).get("creationTimestamp")
        or ""
    )
