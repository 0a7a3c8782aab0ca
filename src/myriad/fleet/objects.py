"""The Kubernetes objects that follow from the description, as plain dictionaries in the order to apply them.

Field names are those of Kueue's API kueue.x-k8s.io/v1beta2 (v0.17.0). Quantities stand in canonical form, so that what
the API server returns equals what was sent. `admissionChecksStrategy` is left out on purpose: the scheduler extension
owns that field.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from myriad.fleet import mig, model, quantity
from myriad.fleet import site_policy as rules
from myriad.fleet.admission import POOLS_ANNOTATION, admission_objects
from myriad.fleet.labels import HOSTNAME_LABEL, POOL_LABEL, TEAM_LABEL, level_label
from myriad.fleet.volcano import volcano_objects

KubeObject = dict[str, Any]

KUEUE_API = "kueue.x-k8s.io/v1beta2"
TOPOLOGY_NAME = "myriad"
POLICY_LABELS = {"app.kubernetes.io/managed-by": "myriad", "app.kubernetes.io/component": "cluster-policy"}
"""On every object of the policy: what carries both and is no longer rendered may be pruned."""

# CPU and memory must be covered by a ClusterQueue, or a job that asks for them is never admitted. Where the description
# does not limit them they get more than any cluster has, so that only GPUs decide.
UNBOUND_CPU = quantity.canonical(10**7)
UNBOUND_MEMORY = quantity.canonical(32 * 2**50, binary=True)  # hundreds of such queues still sum up within 64 bits


def objects_for_cluster_policy(fleet: model.Fleet) -> list[KubeObject]:
    """Every object of the policy, in apply order: what is referred to comes first."""
    return [
        *namespaces(fleet),
        *priority_classes(fleet),
        *workload_priority_classes(fleet),
        topology(fleet),
        *resource_flavors(fleet),
        *cohorts(fleet),
        *cluster_queues(fleet),
        *local_queues(fleet),
        policy_map(fleet),
        *admission_objects(fleet, labels=POLICY_LABELS),
        *volcano_objects(fleet, labels=POLICY_LABELS),
    ]


def namespaces(fleet: model.Fleet) -> list[KubeObject]:
    """One Namespace for each namespace of a team, labelled with the team and annotated with its pools."""
    made = []
    for name, team in sorted(fleet.teams.items()):
        for namespace in sorted(set(team.namespaces)):
            security = {"pod-security.kubernetes.io/enforce": team.pod_security}
            body = _object("v1", "Namespace", namespace, labels={TEAM_LABEL: name, **security})
            body["metadata"]["annotations"] = {POOLS_ANNOTATION: ",".join(sorted(team.quota))}
            made.append(body)
    return made


def priority_classes(fleet: model.Fleet) -> list[KubeObject]:
    """PriorityClasses that order pods but never preempt: Kueue is the only preemptor."""
    return [
        _object("scheduling.k8s.io/v1", "PriorityClass", name)
        | {
            "value": value,
            "preemptionPolicy": "Never",
            "globalDefault": False,
            "description": f"Priority {name} of GPU jobs. Only Kueue preempts, by its class of the same name.",
        }
        for name, value in _by_priority(fleet)
    ]


def workload_priority_classes(fleet: model.Fleet) -> list[KubeObject]:
    """Kueue's priority classes: the order of the queue and who may preempt whom.

    Each has a twin `<class>-shielded` above all that are not shielded, in the same order: the extension relabels a
    running job to it for a while. No job is submitted with one (docs/adr/0034).
    """
    values = fleet.priorities.values()
    span = max(values, default=0) - min(values, default=0) + 1
    classes = [
        _object(KUEUE_API, "WorkloadPriorityClass", name)
        | {"value": value, "description": f"Priority {name} of GPU jobs, {value}."}
        for name, value in _by_priority(fleet)
    ]
    twins = [
        _object(KUEUE_API, "WorkloadPriorityClass", f"{name}-shielded")
        | {
            "value": value + span,
            "description": f"Priority {name} while the job is young or about to save. Set by Myriad, never by people.",
        }
        for name, value in _by_priority(fleet)
    ]
    return classes + twins


def topology(fleet: model.Fleet) -> KubeObject:
    """The topology that Kueue's TAS works on: the levels of the description and the host."""
    levels = [level_label(level) for level in fleet.cluster.topology_levels] + [HOSTNAME_LABEL]
    return _object(KUEUE_API, "Topology", TOPOLOGY_NAME) | {"spec": {"levels": [{"nodeLabel": key} for key in levels]}}


def resource_flavors(fleet: model.Fleet) -> list[KubeObject]:
    """One flavor for each pool.

    A pool with engine `kueue` names the topology, so TAS places its jobs; with `volcano` Kueue counts quota only.
    """
    result = []
    for name, pool in sorted(fleet.pools.items()):
        spec: dict[str, Any] = {"nodeLabels": {POOL_LABEL: name}}
        if pool.engine == "kueue":
            spec["topologyName"] = TOPOLOGY_NAME
        result.append(_object(KUEUE_API, "ResourceFlavor", name, labels={POOL_LABEL: name}) | {"spec": spec})
    return result


def cohorts(fleet: model.Fleet) -> list[KubeObject]:
    """The cohort tree, parents first; a second tree for inference pools where there are any."""
    uses = {pool.use for pool in fleet.pools.values()}
    result: list[KubeObject] = []
    for name in _parents_first(fleet):
        cohort = fleet.cohorts[name]
        if "training" in uses or not uses:
            result.append(_cohort(name, cohort.parent, cohort.weight))
        if "inference" in uses:
            parent = model.inference_cohort(cohort.parent) if cohort.parent else None
            result.append(_cohort(model.inference_cohort(name), parent, cohort.weight))
    return result


def cluster_queues(fleet: model.Fleet) -> list[KubeObject]:
    """One ClusterQueue for each team and pool in which the team has a quota (0 included: then all is borrowed)."""
    return [
        _cluster_queue(team_name, team, pool_name, fleet.pools[pool_name], resources_per_gpu(fleet, pool_name))
        for team_name, team in sorted(fleet.teams.items())
        for pool_name in sorted(team.quota)
    ]


def local_queues(fleet: model.Fleet) -> list[KubeObject]:
    """In each namespace of a team one LocalQueue for each of its pools, named like the pool."""
    result = []
    for team_name, team in sorted(fleet.teams.items()):
        for namespace in sorted(set(team.namespaces)):
            for pool_name in sorted(team.quota):
                queue = _object(
                    KUEUE_API,
                    "LocalQueue",
                    pool_name,
                    namespace=namespace,
                    labels={TEAM_LABEL: team_name, POOL_LABEL: pool_name},
                )
                queue["spec"] = {"clusterQueue": model.cluster_queue_name(team_name, pool_name)}
                result.append(queue)
    return result


def policy_map(fleet: model.Fleet) -> KubeObject:
    """The ConfigMap with what the scheduler extension has to know of the description."""
    made = _object("v1", "ConfigMap", rules.CONFIG_MAP, namespace=rules.NAMESPACE)
    return made | {"data": {rules.KEY: rules.policy_text(fleet)}}


def resources_per_gpu(fleet: model.Fleet, pool_name: str) -> dict[str, Fraction]:
    """What one GPU of a pool is counted as: `nvidia.com/gpu` once, or its slices, or the pods that share it."""
    pool = fleet.pools[pool_name]
    return mig.shares_per_gpu(
        pool.mig,
        hosts={host.name: host.gpus for host in fleet.hosts_by_pool.get(pool_name, ())},
        gpus=pool.gpus_per_node,
        resource=pool.resource,
        replicas=pool.sharing.replicas,
    )


def _cluster_queue(
    team_name: str, team: model.Team, pool_name: str, pool: model.Pool, per_gpu: dict[str, Fraction]
) -> KubeObject:
    cohort = model.cohort_of(team, pool)
    spec: dict[str, Any] = {
        "resourceGroups": [
            {
                "coveredResources": ["cpu", "memory", *per_gpu],
                "flavors": [
                    {"name": pool_name, "resources": _quotas(team, pool_name, pool, per_gpu, shares=cohort is not None)}
                ],
            }
        ],
        "queueingStrategy": "BestEffortFIFO",
        "namespaceSelector": {"matchLabels": {TEAM_LABEL: team_name}},
        "preemption": {
            # An owner takes back what is its own whatever the borrower's priority: a borrower that raises its priority
            # (or is shielded) must not keep what others own. So Any, not LowerPriority.
            "reclaimWithinCohort": "Any",
            "borrowWithinCohort": {"policy": "Never"},
            # A service that serves must not go because a batch job of its own team has a higher priority.
            "withinClusterQueue": "Never" if pool.use == "inference" else "LowerPriority",
        },
        "fairSharing": {"weight": quantity.canonical(team.weight)},
    }
    if cohort is not None:
        spec["cohortName"] = cohort
    name = model.cluster_queue_name(team_name, pool_name)
    return _object(KUEUE_API, "ClusterQueue", name, labels={TEAM_LABEL: team_name, POOL_LABEL: pool_name}) | {
        "spec": spec
    }


def _quotas(
    team: model.Team, pool_name: str, pool: model.Pool, per_gpu: dict[str, Fraction], *, shares: bool
) -> list[dict[str, str]]:
    """Quotas of cpu, memory and GPUs, in the order of coveredResources (Kueue insists on it). Slices are counted whole:
    what a quota of GPUs does not fill is left out."""
    gpus = team.quota[pool_name]
    # Kueue refuses limits on a queue without a cohort.
    limits = {
        "borrowingLimit": team.borrow.get(pool_name) if shares else None,
        "lendingLimit": _lendable(team, pool_name) if shares else None,
    }

    def row(resource: str, per_gpu: Fraction | None, unbound: str, *, binary: bool = False) -> dict[str, str]:
        if per_gpu is None:
            return {"name": resource, "nominalQuota": unbound}
        scaled = {"name": resource, "nominalQuota": quantity.canonical(gpus * per_gpu, binary=binary)}
        for field, limit in limits.items():
            if limit is not None:
                scaled[field] = quantity.canonical(limit * per_gpu, binary=binary)
        return scaled

    def whole(resource: str, share: Fraction) -> dict[str, str]:
        counted = {"name": resource, "nominalQuota": quantity.canonical(int(gpus * share))}
        counted.update(
            {field: quantity.canonical(int(limit * share)) for field, limit in limits.items() if limit is not None}
        )
        return counted

    memory, binary = quantity.parse(pool.memory_per_gpu) if pool.memory_per_gpu else (None, True)
    return [
        row("cpu", pool.cpu_per_gpu, UNBOUND_CPU),
        row("memory", memory, UNBOUND_MEMORY, binary=binary),
        *(whole(name, share) for name, share in per_gpu.items()),
    ]


def _lendable(team: model.Team, pool_name: str) -> int | None:
    """GPUs that others may use: at most what `reserve` does not keep. None has no limit."""
    lend, kept = team.lend.get(pool_name), team.reserve.get(pool_name)
    if kept is None:
        return lend
    free = team.quota[pool_name] - kept
    return free if lend is None else min(lend, free)


def _cohort(name: str, parent: str | None, weight: Fraction) -> KubeObject:
    spec: dict[str, Any] = {"fairSharing": {"weight": quantity.canonical(weight)}}
    if parent is not None:
        spec["parentName"] = parent
    return _object(KUEUE_API, "Cohort", name) | {"spec": spec}


def _parents_first(fleet: model.Fleet) -> Iterable[str]:
    depth: dict[str, int] = {}

    def depth_of(name: str) -> int:
        if name not in depth:
            parent = fleet.cohorts[name].parent
            depth[name] = 0 if parent is None else depth_of(parent) + 1
        return depth[name]

    return sorted(fleet.cohorts, key=lambda name: (depth_of(name), name))


def _by_priority(fleet: model.Fleet) -> list[tuple[str, int]]:
    return sorted(fleet.priorities.items(), key=lambda item: (-item[1], item[0]))


def _object(
    api_version: str, kind: str, name: str, *, namespace: str | None = None, labels: dict[str, str] | None = None
) -> KubeObject:
    metadata: dict[str, Any] = {"name": name}
    if namespace is not None:
        metadata["namespace"] = namespace
    metadata["labels"] = {**POLICY_LABELS, **(labels or {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}
