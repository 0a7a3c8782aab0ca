"""One look at the cluster, reduced to what a soak judges. Pure.

Times are seconds since the epoch. All clocks of a lab are one clock, that of the machine under it, so what the API
server, a node and the soak itself wrote down may be compared; what Kubernetes writes has whole seconds, rounded down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from myriad.scheduler.model import is_gpu_resource
from myriad.scheduler.objects import pod_is_terminal, pod_requests, workload_view

Json = dict[str, Any]

CHECK = "myriad"
LEASE_S = 15.0
"""A lease that is older leads nobody (`lease_duration_s` of the extension)."""


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod that asks for GPUs.

    Attributes:
        uid, name: of the pod, the name with its namespace.
        job: `namespace/name` of the Job that owns it; empty for others.
        node: empty before it is bound.
        gpus: that it asks for.
        scheduled: when it was bound; 0 before.
        is_terminal: its containers are gone for good, and its GPUs free.
        is_succeeded: it is terminal and did what it should.
        is_leaving: it was told to end and has its grace.
    """

    uid: str
    name: str
    job: str
    node: str
    gpus: int
    scheduled: int = 0
    is_terminal: bool = False
    is_succeeded: bool = False
    is_leaving: bool = False

    @property
    def holds(self) -> bool:
        """Whether its GPUs are taken: it is bound and not over, also while it is leaving."""
        return bool(self.node) and not self.is_terminal


@dataclass(frozen=True, slots=True)
class WorkloadSeen:
    """A Workload of Kueue.

    Attributes:
        uid, job: of the Workload, and the Job that owns it (`namespace/name`).
        gpus: of its quota.
        holds_quota: quota is reserved and it has not finished.
        gpus_by_node: what it was given where; empty where no node is assigned, or part of it was given back.
        admitted: since when it is admitted; 0 where it is not.
        ended: when it was evicted or finished, whichever was first and after `admitted`; 0 where neither.
        evicted: when it was evicted last, admitted or not; 0 where it never was, or was let in again since.
        is_finished: it is over for good.
    """

    uid: str
    job: str
    gpus: int
    holds_quota: bool = False
    gpus_by_node: Mapping[str, int] = field(default_factory=dict)
    admitted: int = 0
    ended: int = 0
    evicted: int = 0
    is_finished: bool = False


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node.

    Attributes:
        gpus: that its kubelet has to give.
        is_open: neither taint of the gate is on it.
        gate_since: since when the gate is open, or closed for its cause, as the node's agent wrote it.
        boot: the start of the node that the gate has judged.
        started: when the node's machine was started last; 0 where that is not known.
        taints: `key=value:effect` of all.
        labels: all.
    """

    name: str
    is_ready: bool = True
    gpus: int = 0
    is_open: bool = True
    gate_since: str = ""
    boot: str = ""
    started: float = 0.0
    is_cordoned: bool = False
    taints: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Look:
    """All that was seen at once. Nodes are asked first, so what is in `pods` may be newer than what is in `nodes`.

    Attributes:
        at: before the first question was asked.
        nodes_read: when the answer about nodes had come.
        ended: when the last answer had come.
        leader, renewed: who leads the extension, and when that was renewed last.
        is_extension_ready: every replica that is wanted is ready.
        unsteered: ClusterQueues from which the dead-man has detached the extension's check.
        has_registry: the registry answers.
        devices: node -> device -> uids of the pods to which its kubelet gave it. Without nodes not asked.
    """

    at: float
    nodes_read: float
    ended: float
    nodes: Mapping[str, NodeSeen] = field(default_factory=dict)
    pods: tuple[PodSeen, ...] = ()
    workloads: tuple[WorkloadSeen, ...] = ()
    leader: str = ""
    renewed: float = 0.0
    is_extension_ready: bool = True
    unsteered: tuple[str, ...] = ()
    has_registry: bool = True
    devices: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)

    @property
    def is_led(self) -> bool:
        """Whether somebody leads the extension."""
        return bool(self.leader) and self.at - self.renewed < LEASE_S


@dataclass(frozen=True, slots=True)
class Charge:
    """A row of the ledger: a Workload is charged for `gpus` from `began` to `ended` (None while it runs).

    `basis` says how the end is known: `condition`, `deleted`, or, where the extension saw none, `event` or `estimated`.
    """

    uid: str
    began: int
    ended: int | None
    gpus: float
    basis: str = "condition"


def moment(text: Any) -> float:
    """A time of Kubernetes, or of the engine (which has nanoseconds), in seconds since the epoch; 0 for none."""
    if not isinstance(text, str) or not text or text.startswith("0001-"):
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def pods_seen(bodies: Iterable[Json]) -> tuple[PodSeen, ...]:
    """The pods that ask for GPUs."""
    found = []
    for body in bodies:
        metadata, spec, status = body["metadata"], body["spec"], body.get("status") or {}
        gpus = sum(int(amount) for name, amount in pod_requests(spec).items() if is_gpu_resource(name))
        if not gpus:
            continue
        times = {
            c["type"]: c.get("lastTransitionTime") for c in status.get("conditions") or [] if c["status"] == "True"
        }
        found.append(
            PodSeen(
                uid=str(metadata["uid"]),
                name=f"{metadata['namespace']}/{metadata['name']}",
                job=_job_of(metadata),
                node=str(spec.get("nodeName") or ""),
                gpus=gpus,
                scheduled=int(moment(times.get("PodScheduled"))),
                is_terminal=pod_is_terminal(body),
                is_succeeded=status.get("phase") == "Succeeded",
                is_leaving=bool(metadata.get("deletionTimestamp")),
            )
        )
    return tuple(found)


def workloads_seen(bodies: Iterable[Json]) -> tuple[WorkloadSeen, ...]:
    """The Workloads of Jobs, by the times of Kueue's own conditions."""
    return tuple(_workload(body) for body in bodies if _job_of(body["metadata"]))


def _workload(body: Json) -> WorkloadSeen:
    view = workload_view(body, check_name=CHECK)
    times = {
        c["type"]: int(moment(c.get("lastTransitionTime")))
        for c in (body.get("status") or {}).get("conditions") or []
        if c["status"] == "True"
    }
    admitted = times.get("Admitted", 0)
    ends = [times[kind] for kind in ("Evicted", "Finished") if times.get(kind, 0) >= max(admitted, 1)]
    # Of a gang whose first pods have ended Kueue gives the rest away, and does not say on which nodes.
    is_shrinking = bool((body.get("status") or {}).get("reclaimablePods"))
    each = {podset.name: podset.gpus_per_pod for podset in view.gang.podsets}
    by_node: dict[str, int] = {}
    for podset, nodes in (view.assignment or {}).items():
        for node, pods in nodes.items():
            by_node[node] = by_node.get(node, 0) + pods * each.get(podset, 0)
    return WorkloadSeen(
        uid=view.gang.uid,
        job=f"{view.gang.namespace}/{view.gang.name}",
        gpus=view.gpus_held,
        holds_quota=view.quota_reserved and not view.finished,
        gpus_by_node=by_node if view.quota_reserved and not (view.finished or is_shrinking) else {},
        admitted=admitted,
        ended=min(ends) if admitted and ends else 0,
        evicted=times.get("Evicted", 0),
        is_finished=view.finished,
    )


def _job_of(metadata: Json) -> str:
    for owner in metadata.get("ownerReferences") or []:
        if owner["kind"] == "Job":
            return f"{metadata['namespace']}/{owner['name']}"
    return ""


def devices_seen(checkpoint: Json) -> dict[str, frozenset[str]]:
    """Device -> uids of the pods that have it, from the kubelet's own account (`kubelet_internal_checkpoint`,
    https://github.com/kubernetes/kubernetes/blob/v1.35.4/pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go).

    The kubelet strikes out pods that are over when it next gives a device away, never later: a device with two pods in
    one account was given twice.
    """
    found: dict[str, set[str]] = {}
    for entry in (checkpoint.get("Data") or {}).get("PodDeviceEntries") or []:
        if not is_gpu_resource(str(entry.get("ResourceName") or "")):
            continue
        for devices in (entry.get("DeviceIDs") or {}).values():
            for device in devices:
                found.setdefault(str(device), set()).add(str(entry["PodUID"]))
    return {device: frozenset(uids) for device, uids in found.items()}
