"""Gangs in an odd state around an eviction: stuck, half gone, owned by nobody. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from myriad.scheduler.explain import duration
from myriad.scheduler.model import gpus_words, is_gpu_resource
from myriad.scheduler.notices.facts import moment
from myriad.scheduler.objects import WorkloadView, pod_requests

Json = dict[str, Any]

MARGIN = timedelta(seconds=60)
"""Past its grace a pod may take a little: volumes, the runtime, the API server."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A pod that should have ended (kueue#6143, kueue#6757).

    Attributes:
        pod: `namespace/name`.
        node: where it stands.
        since: when its grace was over.
        node_ready: whether its node answers; None where the node is gone.
        finalizers: what else holds the object.
        gpus: that it holds.
    """

    pod: str
    node: str
    since: datetime
    node_ready: bool | None
    finalizers: tuple[str, ...]
    gpus: int

    def sentence(self, now: datetime) -> str:
        """What it is, and what to do. Never two actors at once: the node's state decides who may act."""
        late = duration((now - self.since).total_seconds())
        head = f"pod {self.pod} should have ended {late} ago and still holds {gpus_words(self.gpus)} of {self.node}"
        namespace, _, name = self.pod.partition("/")
        if self.finalizers:
            held = ", ".join(self.finalizers)
            return f"{head}: its containers are gone or going, but {held} holds the object: look at who sets it"
        if self.node_ready is None:
            return f"{head}, a node that is gone: `kubectl delete pod {name} -n {namespace} --force` is safe then"
        if not self.node_ready:
            return (
                f"{head}, and the node does not answer. When it is powered off for certain, "
                f"`kubectl taint node {self.node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute` lets its "
                "pods go; before that a force deletion may leave two of them running"
            )
        return (
            f"{head}, which answers: a process that cannot be killed (often in the GPU driver or on a dead mount). "
            f"Look at `myriad gate {self.node}` and the kubelet's log there; a reboot of the node frees it"
        )


def stuck(pods: Iterable[Json], nodes: Mapping[str, bool], now: datetime) -> list[Stuck]:
    """Pods past their grace and the margin.

    Args:
        pods: of evicted or deleted gangs, or all.
        nodes: whether each node is ready.
        now: an aware time.
    """
    found = []
    for pod in pods:
        metadata, spec = pod["metadata"], pod["spec"]
        over = moment(metadata.get("deletionTimestamp"))
        if over is None or now - over <= MARGIN or not spec.get("nodeName"):
            continue
        ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        finalizers = tuple(metadata.get("finalizers") or ())
        if ended and not finalizers:
            continue
        found.append(
            Stuck(
                f"{metadata['namespace']}/{metadata['name']}",
                spec["nodeName"],
                over,
                nodes.get(spec["nodeName"]),
                # The job controller's own is taken off as soon as the pod has ended.
                tuple(f for f in finalizers if f != "batch.kubernetes.io/job-tracking") if ended else (),
                _gpus(pod),
            )
        )
    return sorted(found, key=lambda s: (s.since, s.pod))


def _gpus(pod: Json) -> int:
    return sum(n for name, n in pod_requests(pod["spec"]).items() if is_gpu_resource(name))


@dataclass(frozen=True, slots=True)
class Half:
    """A gang of which a part is gone while the rest holds its GPUs (volcano#4607, trainer#3315).

    Attributes:
        job: `namespace/job`.
        missing: pods that are not there, of `pods`.
        least: how few pods it can run with.
        since: since when, as far as pods say; None where they do not.
        gpus: held by the rest.
        by: how pods went, from their conditions (`PreemptionByScheduler`).
    """

    job: str
    missing: int
    pods: int
    least: int
    since: datetime | None
    gpus: int
    by: str

    def sentence(self, now: datetime) -> str:
        """What it is, and what to do."""
        when = f" since {duration((now - self.since).total_seconds())}" if self.since else ""
        how = f", evicted one by one ({self.by})" if self.by else ""
        return (
            f"{self.missing} of {self.pods} pods of {self.job} are gone{when}{how}, and the rest holds "
            f"{gpus_words(self.gpus)} without being able to go on (it needs {self.least}). Its controller makes them "
            f"again where it can; where it does not, `kubectl delete` of the rest or of the job frees the GPUs"
        )


def half_gone(
    view: WorkloadView, pods: Sequence[Json], now: datetime, *, patience_s: float, seen_at: datetime | None = None
) -> Half | None:
    """Whether a gang that is admitted runs with fewer pods than it can use.

    Args:
        view: an admitted gang.
        pods: its pods.
        now: an aware time.
        patience_s: its controller has so long to make pods again.
        seen_at: since when it was seen so, for pods that left no trace.
    """
    if not view.admitted or view.evicted or view.finished or view.deleting:
        return None
    whole = view.gang.pods
    least = view.gang.least_pods
    here = [p for p in pods if works(p)]
    ended_well = sum((p.get("status") or {}).get("phase") == "Succeeded" for p in pods)
    gone = [p for p in pods if not works(p) and (p.get("status") or {}).get("phase") != "Succeeded"]
    # Pods that ended well are no loss, and a gang that has not begun is not half gone.
    if not here or len(here) + ended_well >= least:
        return None
    missing = whole - len(here) - ended_well
    # What is gone for long was made again: a Job keeps its failed pods. The last to go are those that are missing.
    times = sorted(t for p in gone if (t := _gone_at(p)) is not None)
    since = min(times[-missing:], default=seen_at)
    if since is None or (now - since).total_seconds() < patience_s:
        return None
    return Half(
        f"{view.gang.namespace}/{view.gang.name}",
        missing,
        whole,
        least,
        since,
        sum(_gpus(p) for p in here),
        next((c for p in gone if (c := _disruption(p))), ""),
    )


def works(pod: Json) -> bool:
    """Whether a pod is bound and neither ended nor ending."""
    phase = (pod.get("status") or {}).get("phase")
    return (
        phase in ("Running", "Pending")
        and bool(pod["spec"].get("nodeName"))
        and not (pod["metadata"].get("deletionTimestamp"))
    )


def _gone_at(pod: Json) -> datetime | None:
    told = moment(pod["metadata"].get("deletionTimestamp"))
    if told is not None:
        return told - timedelta(seconds=int(pod["metadata"].get("deletionGracePeriodSeconds") or 0))
    ends = [
        moment(((s.get("state") or {}).get("terminated") or {}).get("finishedAt"))
        for s in (pod.get("status") or {}).get("containerStatuses") or []
    ]
    known = [t for t in ends if t is not None]
    return max(known, default=None)


def _disruption(pod: Json) -> str:
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return str(condition.get("reason") or "")
    return ""


def ownerless(pod: Json) -> str:
    """What to tell about a GPU pod that nothing would make again (KAI#84); "" where something would."""
    metadata = pod["metadata"]
    if metadata.get("ownerReferences") or metadata.get("deletionTimestamp") or not _gpus(pod):
        return ""
    if "kubernetes.io/config.mirror" in (metadata.get("annotations") or {}):
        return ""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return ""
    return (
        f"nothing would make pod {metadata['name']} again once it is preempted, drained or its node fails: it belongs "
        "to no Job. Submit it as a Job with a queue label (`myriad job new`), and it goes back to the queue instead"
    )
