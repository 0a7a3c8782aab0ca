"""Kubernetes and Kueue objects (raw JSON) read into the planner's data classes. Pure.

One place knows the wire format of Kueue v1beta2's Workload: gang, conditions, own check entry, and the nodes that
Topology-Aware Scheduling assigned.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from myriad.scheduler.model import (
    DEFAULT_GPU_RESOURCE,
    HOSTNAME_LABEL,
    LABEL_PREFIX,
    POOL_LABEL,
    Expression,
    Gang,
    NodeInfo,
    NodeTerm,
    PodSet,
    PodUse,
    Taint,
    Toleration,
    TopologyRequest,
    add_resources,
    is_gpu_resource,
    level_label,
    parse_quantity,
    resources_from_kubernetes,
)

Json = dict[str, Any]

WORKLOAD_ANNOTATION = "kueue.x-k8s.io/workload"
PODSET_LABEL = "kueue.x-k8s.io/podset"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
REFUSED_ANNOTATION = "myriad.dev/refused"
"""On a Workload: why no state of this cluster can hold it."""
TEAM_LABEL = "myriad.dev/team"
GATE_ANNOTATION = "myriad.dev/gate"
CORDONED_BY_ANNOTATION = "myriad.dev/cordoned-by"
MIXED_GPUS_LABEL = "myriad.dev/gpu-mixed"

Assignment = dict[str, dict[str, int]]
"""podset -> node -> pods, as TAS assigned them."""


# Nodes and pods


def levels_of(topology: Json | None) -> tuple[str, ...]:
    """Level names, broadest first, of a Kueue Topology; the hostname level is not one of them."""
    if topology is None:
        return ()
    labels = [level["nodeLabel"] for level in topology["spec"]["levels"]]
    return tuple(label.removeprefix(LABEL_PREFIX) for label in labels if label != HOSTNAME_LABEL)


def location_of(labels: Mapping[str, str], levels: Sequence[str]) -> tuple[str, ...]:
    """The path of a node from its level labels, as far down as they are set.

    A label's value is the whole path joined by dots (`hall1.b1.r1`); a value that does not begin with its parent's
    (labels of another tool) counts as it is.
    """
    path: list[str] = []
    parent = ""
    for level in levels:
        value = labels.get(level_label(level))
        if not value:
            break
        # A label of another tool carries its own step, whatever that looks like.
        path.append(value if "/" in level or not parent else value.removeprefix(parent + "."))
        parent = value
    return tuple(path)


def node_info(node: Json, levels: Sequence[str]) -> NodeInfo:
    """A node as the planner sees it."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or [])
    return NodeInfo(
        name=metadata["name"],
        labels=labels,
        taints=tuple(
            Taint(key=t["key"], value=t.get("value") or "", effect=t.get("effect") or "NoSchedule")
            for t in spec.get("taints") or []
        ),
        cordoned=bool(spec.get("unschedulable")),
        ready=ready and not metadata.get("deletionTimestamp"),
        location=location_of(labels, levels),
        pool=labels.get(POOL_LABEL, ""),
        allocatable=resources_from_kubernetes(status.get("allocatable"), round_up=False),
        mixed_gpus=labels.get(MIXED_GPUS_LABEL) == "true",
        cordoned_by=annotations.get(CORDONED_BY_ANNOTATION, ""),
        gate_reason=_gate_reason(annotations.get(GATE_ANNOTATION, "")),
    )


def _gate_reason(annotation: str) -> str:
    """The first failed check of the node agent's report, as it wrote it."""
    try:
        report = json.loads(annotation) if annotation else {}
    except ValueError:
        return ""
    for check in report.get("checks") or []:
        if not check.get("ok"):
            return str(check.get("cause") or check.get("check") or "")
    return ""


def pod_requests(spec: Json) -> dict[str, int]:
    """What the scheduler counts for a pod: the sum of its containers and sidecars, or a larger init step, plus
    overhead (https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers).
    """
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or []:
        requests = _requests(container)
        if container.get("restartPolicy") == "Always":
            sidecars = add_resources(sidecars, requests)
            step = sidecars
        else:
            step = add_resources(sidecars, requests)
        peak = _largest(peak, step)
    running = add_resources(sidecars, *(_requests(c) for c in spec.get("containers") or []))
    whole = (spec.get("resources") or {}).get("requests")
    if whole:
        # Pod-level requests stand for all containers together, for the resources that they name.
        running |= resources_from_kubernetes(whole)
    overhead = resources_from_kubernetes(spec.get("overhead") or {})
    return add_resources(_largest(running, peak), overhead)


def _requests(container: Json) -> dict[str, int]:
    resources = container.get("resources") or {}
    # A limit without a request is the request (and for extended resources they are equal).
    return resources_from_kubernetes((resources.get("limits") or {}) | (resources.get("requests") or {}))


def _largest(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: max(a.get(name, 0), b.get(name, 0)) for name in {**a, **b}}


def pod_is_terminal(pod: Json) -> bool:
    """Whether the pod's containers are gone for good: only then are its GPUs free again."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def succeeded_at(pod: Json) -> str:
    """When the last container of a pod that succeeded ended, RFC 3339; empty for every other pod."""
    status = pod.get("status") or {}
    if status.get("phase") != "Succeeded":
        return ""
    ends = [(c.get("state") or {}).get("terminated") or {} for c in status.get("containerStatuses") or []]
    return max((str(end.get("finishedAt") or "") for end in ends), default="")


def pod_use(pod: Json) -> PodUse | None:
    """What a bound pod takes; None for one that holds nothing (not bound yet, or terminal)."""
    metadata, spec = pod["metadata"], pod["spec"]
    if not spec.get("nodeName") or pod_is_terminal(pod):
        return None
    return PodUse(
        uid=metadata["uid"],
        node=spec["nodeName"],
        requests=pod_requests(spec),
        terminating=bool(metadata.get("deletionTimestamp")),
        owner=owner_of(pod),
    )


def owner_of(obj: Json) -> str:
    """`namespace/name` of the controller of an object, or of the object itself."""
    metadata = obj["metadata"]
    for owner in metadata.get("ownerReferences") or []:
        if owner.get("controller"):
            return f"{metadata.get('namespace', '')}/{owner['name']}"
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


def workload_key_of_pod(pod: Json) -> str:
    """`namespace/name` of the Workload that TAS placed this pod for; empty for any other pod."""
    metadata = pod["metadata"]
    name = (metadata.get("annotations") or {}).get(WORKLOAD_ANNOTATION)
    return f"{metadata['namespace']}/{name}" if name else ""


# Workloads


@dataclass(frozen=True, slots=True)
class PodSetUpdate:
    """What an AdmissionCheck adds to the pods of one podset."""

    name: str
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()

    def to_api(self) -> Json:
        """The entry of `podSetUpdates`."""
        body: Json = {"name": self.name}
        if self.node_selector:
            body["nodeSelector"] = dict(self.node_selector)
        if self.tolerations:
            body["tolerations"] = [_toleration_to_api(t) for t in self.tolerations]
        return body

    @classmethod
    def from_api(cls, body: Json) -> PodSetUpdate:
        """Read an entry of `podSetUpdates`."""
        return cls(
            name=body["name"],
            node_selector=dict(body.get("nodeSelector") or {}),
            tolerations=tuple(toleration(t) for t in body.get("tolerations") or []),
        )


@dataclass(frozen=True, slots=True)
class CheckEntry:
    """Our entry of `status.admissionChecks`."""

    state: str
    message: str
    updates: tuple[PodSetUpdate, ...]
    since: str


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """A Workload read once: the gang and where it stands on its way.

    Attributes:
        gang: what is asked for.
        resource_version: what a write must be based on.
        check: our entry, None where Kueue does not list the check.
        quota_reserved, admitted, evicted, finished, active: as conditions and spec say.
        quota_message: Kueue's own reason while quota is not reserved.
        assignment: nodes by podset, None where TAS assigned none (no admission, or a flavor without topology).
        cluster_queue: where quota is reserved; empty before.
        steerable: False where the gang uses topology slices or podset groups, which the planner does not know.
        gpus_held: GPUs of its quota reservation; 0 before.
        job: kind, apiVersion, name and uid of the owner, {} where nobody owns it.
        workload: the Workload's own name (the gang bears the job's).
        reserved_at: when quota was reserved or was lost last, RFC 3339; empty before.
    """

    gang: Gang
    resource_version: str
    check: CheckEntry | None
    quota_reserved: bool
    admitted: bool
    evicted: bool
    finished: bool
    active: bool
    deleting: bool
    quota_message: str
    assignment: Assignment | None
    cluster_queue: str
    local_queue: str
    created: str
    steerable: bool
    gpus_held: int
    job: Mapping[str, str]
    workload: str
    reserved_at: str = ""

    @property
    def key(self) -> str:
        """`namespace/name` of the Workload."""
        return f"{self.gang.namespace}/{self.workload}"

    @property
    def waiting(self) -> bool:
        """Whether it stands in a queue: wants to run and holds no quota."""
        return self.active and not (self.quota_reserved or self.finished or self.deleting)

    @property
    def nodes(self) -> dict[str, int]:
        """Assigned pods by node, over all podsets."""
        total: dict[str, int] = {}
        for by_node in (self.assignment or {}).values():
            for node, pods in by_node.items():
                total[node] = total.get(node, 0) + pods
        return total


def workload_view(workload: Json, *, check_name: str, pool: str = "", team: str = "") -> WorkloadView:
    """Read a Workload.

    Args:
        workload: the object.
        check_name: our AdmissionCheck.
        pool: the pool of its ClusterQueue, where known.
        team: the team of its namespace, where known.
    """
    metadata, spec, status = workload["metadata"], workload["spec"], workload.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    job = _owner(metadata)
    gang = Gang(
        name=job.get("name") or metadata["name"],
        namespace=metadata["namespace"],
        podsets=tuple(pod_set(p) for p in spec.get("podSets") or []),
        uid=metadata.get("uid", ""),
        priority=int(spec.get("priority") or 0),
        queue=spec.get("queueName") or "",
        team=team,
        pool=pool,
    )
    admission = status.get("admission") or {}
    return WorkloadView(
        gang=gang,
        resource_version=metadata.get("resourceVersion", ""),
        check=_check(status, check_name),
        quota_reserved=_is_true(conditions, "QuotaReserved"),
        admitted=_is_true(conditions, "Admitted"),
        evicted=_is_true(conditions, "Evicted"),
        finished=_is_true(conditions, "Finished"),
        active=spec.get("active") is not False,
        deleting=bool(metadata.get("deletionTimestamp")),
        quota_message=str(conditions.get("QuotaReserved", {}).get("message") or ""),
        assignment=assignment_of(admission),
        cluster_queue=admission.get("clusterQueue") or "",
        local_queue=spec.get("queueName") or "",
        created=metadata.get("creationTimestamp") or "",
        steerable=not any(_is_sliced(p.get("topologyRequest") or {}) for p in spec.get("podSets") or []),
        gpus_held=_gpus_held(admission),
        job=job,
        workload=metadata["name"],
        reserved_at=str(conditions.get("QuotaReserved", {}).get("lastTransitionTime") or ""),
    )


def _gpus_held(admission: Json) -> int:
    return sum(
        int(parse_quantity(amount))
        for podset in admission.get("podSetAssignments") or []
        for name, amount in (podset.get("resourceUsage") or {}).items()
        if is_gpu_resource(name)
    )


def assignment_of(admission: Json) -> Assignment | None:
    """Nodes by podset from `status.admission`; None where no podset has a topology assignment."""
    found: Assignment = {}
    for podset in admission.get("podSetAssignments") or []:
        topology = podset.get("topologyAssignment")
        if topology:
            nodes: dict[str, int] = {}
            for values, pods in _domains(topology):
                # The hostname is the narrowest level; where a topology has it, it is the only one kept.
                nodes[values[-1]] = nodes.get(values[-1], 0) + pods
            found[podset.get("name", "main")] = nodes
    return found or None


def _domains(topology: Json) -> Iterator[tuple[tuple[str, ...], int]]:
    """Unpack a TopologyAssignment of v1beta2: slices with common prefixes, suffixes and counts taken out."""
    for part in topology.get("slices") or []:
        count = int(part["domainCount"])
        columns = [_unpack(level, count) for level in part["valuesPerLevel"]]
        pods = part["podCounts"]
        counts = pods.get("individual") or [pods["universal"]] * count
        for i in range(count):
            yield tuple(column[i] for column in columns), int(counts[i])


def _unpack(level: Json, count: int) -> list[str]:
    if level.get("universal") is not None:
        return [str(level["universal"])] * count
    individual = level["individual"]
    prefix, suffix = individual.get("prefix") or "", individual.get("suffix") or ""
    return [f"{prefix}{root}{suffix}" for root in individual["roots"]]


def _check(status: Json, name: str) -> CheckEntry | None:
    for entry in status.get("admissionChecks") or []:
        if entry["name"] == name:
            return CheckEntry(
                state=entry["state"],
                message=entry.get("message") or "",
                updates=tuple(PodSetUpdate.from_api(u) for u in entry.get("podSetUpdates") or []),
                since=entry.get("lastTransitionTime") or "",
            )
    return None


def _is_true(conditions: Mapping[str, Json], kind: str) -> bool:
    return conditions.get(kind, {}).get("status") == "True"


def _owner(metadata: Json) -> dict[str, str]:
    for owner in metadata.get("ownerReferences") or []:
        if owner.get("controller"):
            return {k: owner[k] for k in ("apiVersion", "kind", "name", "uid")}
    return {}


def pod_set(body: Json) -> PodSet:
    """A podset of a Workload: name, count, pod template, topology request."""
    spec = (body.get("template") or {}).get("spec") or {}
    requests = pod_requests(spec)
    gpus = sorted(name for name in requests if is_gpu_resource(name))
    required = (spec.get("affinity") or {}).get("nodeAffinity", {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    return PodSet(
        name=body.get("name", "main"),
        count=int(body.get("count", 1)),
        requests=requests,
        min_count=body.get("minCount"),
        gpu_resource=gpus[0] if gpus else DEFAULT_GPU_RESOURCE,
        node_selector=spec.get("nodeSelector") or {},
        affinity=tuple(_node_term(t) for t in required.get("nodeSelectorTerms") or []),
        tolerations=tuple(toleration(t) for t in spec.get("tolerations") or []),
        topology=_topology_request(body.get("topologyRequest") or {}),
        images=_digests(spec),
    )


def _digests(spec: Json) -> tuple[str, ...]:
    """Digests of the containers' images, without those that only a tag names."""
    containers = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    parts = (str(container.get("image") or "").rpartition("@") for container in containers)
    return tuple(sorted({digest for name, at, digest in parts if at and name}))


def _is_sliced(request: Json) -> bool:
    return any(name.startswith(("podSetSlice", "podsetSlice", "podSetGroup", "podsetGroup")) for name in request)


def _topology_request(body: Json) -> TopologyRequest:
    if body.get("required"):
        return TopologyRequest("required", body["required"].removeprefix(LABEL_PREFIX))
    if body.get("preferred"):
        return TopologyRequest("preferred", body["preferred"].removeprefix(LABEL_PREFIX))
    return TopologyRequest()


def _node_term(body: Json) -> NodeTerm:
    return NodeTerm(
        expressions=tuple(_expression(e) for e in body.get("matchExpressions") or []),
        fields=tuple(_expression(e) for e in body.get("matchFields") or []),
    )


def _expression(body: Json) -> Expression:
    return Expression(body["key"], body["operator"], tuple(body.get("values") or ()))


def toleration(body: Json) -> Toleration:
    """A toleration as the planner sees it."""
    return Toleration(
        key=body.get("key") or "",
        operator=body.get("operator") or "Equal",
        value=body.get("value") or "",
        effect=body.get("effect") or "",
    )


def _toleration_to_api(t: Toleration) -> Json:
    body: Json = {"operator": t.operator}
    if t.key:
        body["key"] = t.key
    if t.operator != "Exists":
        body["value"] = t.value
    if t.effect:
        body["effect"] = t.effect
    return body


def seconds_since(timestamp: str, now: datetime) -> float:
    """Age of a Kubernetes timestamp; 0 for an empty one."""
    if not timestamp:
        return 0.0
    return max(0.0, (now - datetime.fromisoformat(timestamp)).total_seconds())
