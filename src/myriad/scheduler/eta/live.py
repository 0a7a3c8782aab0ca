"""The pools of a live cluster as the estimator sees them, read from the cache. Pure: no I/O."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from myriad.kube.kinds import CLUSTER_QUEUES, COHORTS, LOCAL_QUEUES, RESOURCE_FLAVORS, WORKLOADS
from myriad.scheduler.cache import Cache
from myriad.scheduler.eta.after import Departure, after
from myriad.scheduler.eta.estimate import History
from myriad.scheduler.eta.model import (
    Kind,
    NodeState,
    PoolState,
    QueueState,
    Reclaim,
    Run,
    RunningJob,
    WaitingJob,
    epoch,
    family_of,
)
from myriad.scheduler.inquiry import root_cohort
from myriad.scheduler.model import (
    DEFAULT_GPU_RESOURCE,
    POOL_LABEL,
    Gang,
    PodSet,
    is_gpu_resource,
    parse_quantity,
)
from myriad.scheduler.objects import WorkloadView, seconds_since, toleration
from myriad.scheduler.policy import SitePolicy

Json = dict[str, Any]


def limit_of(workload: Json) -> float | None:
    """The enforced limit of a Workload in seconds; None without one."""
    limit = (workload.get("spec") or {}).get("maximumExecutionTimeSeconds")
    return float(limit) if limit else None


def kind_of(gang: Gang) -> Kind:
    """What a gang is like."""
    return Kind(gang.team or gang.namespace, family_of(gang.name), gang.gpus)


def pool_of_queue(queue: Json) -> str:
    """The pool of a ClusterQueue: its label, or its first flavor with GPUs (a queue that Myriad did not render)."""
    labels = queue["metadata"].get("labels") or {}
    return labels.get(POOL_LABEL) or next((flavor for flavor, _ in _gpu_quotas(queue)), "")


def _gpu_quotas(body: Json) -> list[tuple[str, Json]]:
    """(flavor, quota of a GPU resource) pairs of a ClusterQueue or Cohort."""
    return [
        (flavor["name"], resource)
        for group in (body.get("spec") or {}).get("resourceGroups") or []
        for flavor in group.get("flavors") or []
        for resource in flavor.get("resources") or []
        if is_gpu_resource(resource["name"])
    ]


def _sum(quotas: Iterable[Json], key: str) -> int | None:
    given = [int(parse_quantity(q[key])) for q in quotas if q.get(key) is not None]
    return sum(given) if given else None


def queue_state(cache: Cache, queue: Json) -> QueueState:
    """A ClusterQueue."""
    spec = queue["spec"]
    quotas = [quota for _, quota in _gpu_quotas(queue)]
    preemption = spec.get("preemption") or {}
    weight = (spec.get("fairSharing") or {}).get("weight")
    return QueueState(
        name=queue["metadata"]["name"],
        nominal=_sum(quotas, "nominalQuota") or 0,
        cohort=root_cohort(cache, spec.get("cohortName") or ""),
        borrow_limit=_sum(quotas, "borrowingLimit"),
        lend_limit=_sum(quotas, "lendingLimit"),
        weight=float(parse_quantity(weight)) if weight is not None else 1.0,
        strict=spec.get("queueingStrategy") == "StrictFIFO",
        stopped=bool(stop_of(queue)),
        preempts_own=(preemption.get("withinClusterQueue") or "Never") != "Never",
        reclaims=_reclaims(preemption.get("reclaimWithinCohort")),
    )


def _reclaims(value: Any) -> Reclaim:
    return value if value in ("LowerPriority", "Any") else "Never"


def stop_of(queue: Json) -> str:
    """Why a LocalQueue or ClusterQueue takes nothing; empty where it does."""
    kind = "LocalQueue" if queue["metadata"].get("namespace") else "ClusterQueue"
    policy = (queue.get("spec") or {}).get("stopPolicy") or "None"
    if policy != "None":
        return f"{kind} {queue['metadata']['name']} is stopped ({policy})"
    for condition in (queue.get("status") or {}).get("conditions") or []:
        if condition["type"] == "Active" and condition["status"] == "False":
            cause = condition.get("message") or condition.get("reason") or "no reason is given"
            return f"{kind} {queue['metadata']['name']} is not active: {cause}"
    return ""


def held_back(cache: Cache, view: WorkloadView) -> str:
    """Why nothing of a waiting job's queues moves; empty where something does."""
    local = cache.object(LOCAL_QUEUES, f"{view.gang.namespace}/{view.local_queue}")
    queue = cache.object(CLUSTER_QUEUES, cache.cluster_queue_of(view))
    return next((text for body in (queue, local) if body is not None and (text := stop_of(body))), "")


def pool_states(cache: Cache, *, now: datetime | None = None, policy: SitePolicy | None = None) -> dict[str, PoolState]:
    """Every pool that a ClusterQueue gives GPUs of."""
    now = now or datetime.now(UTC)
    policy = policy or SitePolicy()
    queues: dict[str, list[QueueState]] = defaultdict(list)
    pool_of: dict[str, str] = {}
    for body in cache.listing(CLUSTER_QUEUES):
        pool = pool_of_queue(body)
        if pool:
            queues[pool].append(queue_state(cache, body))
            pool_of[body["metadata"]["name"]] = pool
    cohorts = _cohort_quotas(cache)
    running: dict[str, list[RunningJob]] = defaultdict(list)
    for view in cache.views():
        name = cache.cluster_queue_of(view)
        pool = pool_of.get(name, "")
        if view.quota_reserved and not view.finished and pool:
            running[pool].append(_running(cache, view, name, pool, now, policy))
    waiting: dict[str, list[WaitingJob]] = defaultdict(list)
    for name, views in cache.waiting().items():
        pool = pool_of.get(name, "")
        for view in views if pool else []:
            if not held_back(cache, view):
                waiting[pool].append(_waiting(cache, view, name, pool, policy))
    return {
        pool: PoolState(
            queues=tuple(states),
            nodes=nodes_of(cache, pool),
            running=tuple(running[pool]),
            waiting=tuple(waiting[pool]),
            cohorts={name: gpus for (name, flavor), gpus in cohorts.items() if flavor == pool},
            grace_s=float(policy.preemption.grace_s),
        )
        for pool, states in queues.items()
    }


def states_after(
    cache: Cache, evicted: Sequence[tuple[WorkloadView, str]], *, now: datetime, policy: SitePolicy
) -> dict[str, PoolState]:
    """The pools of gangs that were evicted just now, as they are once those have left (`after`).

    Args:
        cache: the cluster.
        evicted: each with the uid of the Workload that takes its place; "" for none.
        now: an aware time.
        policy: the site's.
    """
    states = pool_states(cache, now=now, policy=policy)
    departures: dict[str, list[Departure]] = defaultdict(list)
    for view, preemptor in evicted:
        other = cache.view_of_uid(preemptor) if preemptor else None
        job = _as_waiting(cache, view, policy)
        # Who takes GPUs of another pool is told by that pool's own state.
        taker = _as_waiting(cache, other, policy) if other and other.gang.pool == view.gang.pool else None
        if job is not None and view.gang.pool in states:
            departures[view.gang.pool].append(Departure(job, _place(cache, view), taker))
    return {pool: after(states[pool], gone) for pool, gone in departures.items()}


def _as_waiting(cache: Cache, view: WorkloadView, policy: SitePolicy) -> WaitingJob | None:
    queue = cache.cluster_queue_of(view)
    return _waiting(cache, view, queue, view.gang.pool, policy) if queue else None


def _place(cache: Cache, view: WorkloadView) -> int:
    """How many of its queue go before a gang that comes back to it, as Kueue orders."""
    mine = (-view.gang.priority, view.created, view.gang.uid)
    waiting = cache.waiting().get(cache.cluster_queue_of(view), [])
    return sum(
        (-v.gang.priority, v.created, v.gang.uid) < mine and not held_back(cache, v)
        for v in waiting
        if v.key != view.key
    )


def _cohort_quotas(cache: Cache) -> dict[tuple[str, str], int]:
    """GPUs that cohorts have of their own, by (root cohort, flavor)."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    for body in cache.listing(COHORTS):
        for flavor, quota in _gpu_quotas(body):
            root = root_cohort(cache, body["metadata"]["name"])
            found[root, flavor] += int(parse_quantity(quota.get("nominalQuota") or 0))
    return found


def nodes_of(cache: Cache, pool: str) -> tuple[NodeState, ...]:
    """Nodes of a pool that take work now, with what is free there."""
    snapshot = cache.snapshot()
    resources = [name for name in snapshot.resources if is_gpu_resource(name)] or [DEFAULT_GPU_RESOURCE]
    flavor = cache.object(RESOURCE_FLAVORS, pool) or {}
    tolerations = tuple(toleration(t) for t in (flavor.get("spec") or {}).get("tolerations") or [])
    alloc = np.sum([snapshot.amounts(snapshot.alloc, r) for r in resources], axis=0)
    free = np.sum([snapshot.amounts(snapshot.free, r) for r in resources], axis=0)
    probe = PodSet("probe", 1, {resources[0]: 1}, gpu_resource=resources[0], tolerations=tolerations)
    open_now = snapshot.eligible(probe, pool) & (alloc > 0)
    found = []
    for i in np.flatnonzero(open_now):
        node = snapshot.nodes[int(i)]
        domains = {
            level: "/".join(node.location[: k + 1])
            for k, level in enumerate(snapshot.levels)
            if len(node.location) > k and all(node.location[: k + 1])
        }
        found.append(NodeState(node.name, int(alloc[i]), max(0, int(free[i])), domains))
    return tuple(found)


def elapsed_of(workload: Json, now: datetime) -> float:
    """Seconds that an admitted Workload has run, those before an eviction too: its limit counts them."""
    status = workload.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    since = conditions.get("Admitted") or {}
    run_s = seconds_since(since.get("lastTransitionTime") or "", now) if since.get("status") == "True" else 0.0
    return run_s + float(status.get("accumulatedPastExecutionTimeSeconds") or 0)


def _running(cache: Cache, view: WorkloadView, queue: str, pool: str, now: datetime, policy: SitePolicy) -> RunningJob:
    body = cache.object(WORKLOADS, view.key) or {}
    elapsed = elapsed_of(body, now)
    limit = limit_of(body)
    per_pod = {p.name: p.gpus_per_pod for p in view.gang.podsets}
    nodes: dict[str, int] = defaultdict(int)
    for podset, by_node in (view.assignment or cache.pods_of(view)).items():
        for node, pods in by_node.items():
            nodes[node] += pods * per_pod.get(podset, 0)
    return RunningJob(
        uid=view.gang.uid,
        queue=queue,
        kind=kind_of(view.gang),
        gpus=view.gpus_held or view.gang.gpus,
        elapsed_s=elapsed,
        limit_s=None if limit is None else max(0.0, limit - elapsed),
        nodes={node: gpus for node, gpus in nodes.items() if gpus},
        priority=view.gang.priority,
    )


def _waiting(cache: Cache, view: WorkloadView, queue: str, pool: str, policy: SitePolicy) -> WaitingJob:
    body = cache.object(WORKLOADS, view.key) or {}
    limit = limit_of(body)
    limit = policy.limit_s(pool, None if limit is None else round(limit))
    per_pod, pods, level = shape_of(view.gang)
    return WaitingJob(
        uid=view.gang.uid,
        queue=queue,
        kind=kind_of(view.gang),
        pods=pods,
        gpus_per_pod=per_pod,
        limit_s=None if limit is None else float(limit),
        priority=view.gang.priority,
        level=level,
    )


def shape_of(gang: Gang) -> tuple[int, int, str]:
    """GPUs of a pod, pods and required level, with all podsets counted in pods of the largest one.

    An elastic podset counts with its least number: that is what it waits for.
    """
    counts = [(p, p.count if p.min_count is None else p.min_count) for p in gang.podsets]
    per_pod = max((p.gpus_per_pod for p, n in counts if n), default=0)
    level = next((p.topology.level for p, _ in counts if p.topology.mode == "required"), "")
    if per_pod == 0:
        return 0, sum(n for _, n in counts), level
    gpus = sum(p.gpus_per_pod * n for p, n in counts)
    return per_pod, math.ceil(gpus / per_pod), level


def run_of(view: WorkloadView, workload: Json, queue: str) -> Run | None:
    """A Workload as a run of the past: with its run time where it finished, as an arrival only where it did not."""
    status = workload.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    admitted, finished = conditions.get("Admitted") or {}, conditions.get("Finished") or {}
    submitted = epoch(view.created)
    if submitted is None:
        return None
    run_s: float | None = None
    end, begin = epoch(finished.get("lastTransitionTime")), epoch(admitted.get("lastTransitionTime"))
    if view.finished and end is not None and begin is not None and admitted.get("status") == "True":
        run_s = max(0.0, end - begin) + float(status.get("accumulatedPastExecutionTimeSeconds") or 0)
    per_pod, pods, _ = shape_of(view.gang)
    return Run(
        uid=view.gang.uid,
        kind=kind_of(view.gang),
        queue=queue,
        submitted_at=submitted,
        run_s=run_s,
        limit_s=limit_of(workload),
        pods=pods,
        gpus_per_pod=per_pod,
        priority=view.gang.priority,
    )


def runs_in(cache: Cache) -> list[Run]:
    """Every Workload that is still there, as the past."""
    found = []
    for view in cache.views():
        body = cache.object(WORKLOADS, view.key)
        run = run_of(view, body, cache.cluster_queue_of(view)) if body else None
        if run is not None:
            found.append(run)
    return found


def history_of(cache: Cache, earlier: Iterable[Run] = ()) -> History:
    """What is known of the past: runs kept from earlier, and the Workloads that are still there (which win)."""
    runs: dict[str, Run] = {run.uid: run for run in earlier}
    runs |= {run.uid: run for run in runs_in(cache)}
    return History(list(runs.values()))
