"""Answers from a cache: why a job waits, what stands in the queues, how the cluster is. Pure: no I/O.

The extension asks its live cache; the command line fills one from the API with the caller's own credentials and asks
the same functions, so both say the same and `myriad why` works while the extension is down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from myriad.kube.kinds import CLUSTER_QUEUES, COHORTS, LOCAL_QUEUES, NODES, PODS, WORKLOADS
from myriad.scheduler.asking import mark_of, unsteered
from myriad.scheduler.attach import is_attached, is_ours
from myriad.scheduler.cache import Cache
from myriad.scheduler.causes import Evidence
from myriad.scheduler.causes_queue import Looking
from myriad.scheduler.explain import AheadJob, Answer, Eta, Holder, QuotaView, why
from myriad.scheduler.job_facts import ends_in_s, facts_of, without_workload, workload_of
from myriad.scheduler.model import (
    POOL_LABEL,
    Gang,
    Outcome,
    Refusal,
    is_gpu_resource,
    parse_quantity,
    place,
)
from myriad.scheduler.objects import TEAM_LABEL, WorkloadView, owner_of, seconds_since
from myriad.scheduler.placement import first_end_that_fits, fits_ever, fragmentation, plan
from myriad.scheduler.snapshot import EXPECTED_LABEL, Snapshot

Json = dict[str, Any]

PLACEMENT = "free nodes"
"""In `missing`: pods of other namespaces are hidden, so that nodes look emptier than they are."""
QUOTA = "used quota"
"""In `missing`: Workloads of other namespaces are hidden."""


def outcome_of(snapshot: Snapshot, gang: Gang) -> Outcome:
    """The planner's word for a gang now: a plan, or the refusal; "never" is asked first."""
    return fits_ever(snapshot, gang) or plan(snapshot, gang)


def why_job(
    cache: Cache,
    namespace: str,
    job: str,
    *,
    evidence: Evidence | None = None,
    now: datetime | None = None,
    missing: Iterable[str] = (),
    eta: Callable[[WorkloadView], Eta | None] | None = None,
) -> Answer | None:
    """The answer for one job; None where neither a Workload nor an object of that name is known.

    Args:
        cache: the cluster, or what of it the caller may read.
        namespace, job: where and what.
        evidence: what was read beside the cache.
        now: the time.
        missing: kinds that are not in the cache because the caller may not read them.
        eta: when a waiting gang may start.
    """
    evidence = evidence or Evidence()
    now = now or datetime.now(UTC)
    ask = Looking(cache, namespace, evidence, now, frozenset(missing))
    view = workload_of(ask, job)
    if view is None:
        return without_workload(ask, job) if evidence.job or evidence.pods else None
    snapshot = cache.snapshot()
    quota = None if {CLUSTER_QUEUES.plural, QUOTA} & ask.missing else quota_view(cache, view, now=now)
    outcome: Outcome | None = None
    holders: tuple[Holder, ...] = ()
    after: Holder | None = None
    if {NODES.plural, PLACEMENT} & ask.missing:
        pass  # nothing is known of the nodes: Kueue's words and the extension's stand for the planner's
    elif not (view.quota_reserved or view.finished):
        outcome = outcome_of(snapshot, view.gang)
        if isinstance(outcome, Refusal) and outcome.kind == "not_now":
            holders = holders_of(cache, view, now=now)
            after = _first_end(snapshot, view.gang, holders)
    elif view.admitted and not view.finished:
        holders = leaving(cache, view, now=now)
    return why(
        facts_of(ask, view),
        quota=quota,
        placement=outcome,
        holders=holders,
        after=after,
        eta=eta(view) if eta is not None and view.waiting else None,
        looked_at=_looked_at(ask),
    )


def first_sentence(cache: Cache, view: WorkloadView, snapshot: Snapshot, *, now: datetime) -> tuple[str, str]:
    """State and first cause of a waiting gang, for an Event: cheaper than the whole answer."""
    ask = Looking(cache, view.gang.namespace, Evidence(), now)
    answer = why(facts_of(ask, view), quota=quota_view(cache, view, now=now), placement=outcome_of(snapshot, view.gang))
    return answer.state, answer.first_cause


def _looked_at(ask: Looking) -> tuple[str, ...]:
    seen = ["events"] if "events" in ask.evidence.looked_at or not ask.evidence.looked_at else []
    seen += ["Workload", "admission checks"]
    if not {CLUSTER_QUEUES.plural, LOCAL_QUEUES.plural, QUOTA} & ask.missing:
        seen.append("quota")
    if not {NODES.plural, PLACEMENT} & ask.missing:
        seen += ["placement", "nodes"]
    return (*seen, *(layer for layer in ask.evidence.looked_at if layer not in seen))


def leaving(cache: Cache, view: WorkloadView, *, now: datetime) -> tuple[Holder, ...]:
    """Who still holds GPUs on the nodes that an admitted gang was given: pods that are stopping."""
    nodes = set(view.nodes)
    found: dict[str, Holder] = {}
    for pod in cache.listing(PODS):
        use = cache.use(pod["metadata"]["uid"])
        if use is None or not use.terminating or use.node not in nodes:
            continue
        gpus = sum(n for name, n in use.requests.items() if is_gpu_resource(name))
        owner = use.owner.rpartition("/")[2]
        old = found.get(owner)
        ends = max(ends_in_s(pod, now), (old.ends_in_s or 0.0) if old else 0.0)
        total = gpus + (old.gpus if old else 0)
        found[owner] = Holder(owner, pod["metadata"]["namespace"], total, ends, terminating=True)
    return tuple(h for h in found.values() if h.gpus)


# Quota


def gpu_amounts(cache: Cache, queue: Json) -> dict[str, int]:
    """Nominal GPUs, borrowing limit (-1 = none given), lending limit (-1), used and borrowed of a ClusterQueue."""
    used = cache.gpus_held().get(queue["metadata"]["name"], 0)
    numbers = {"nominal": 0, "borrow_limit": -1, "lend_limit": -1, "used": used}
    for group in queue["spec"].get("resourceGroups") or []:
        for flavor in group.get("flavors") or []:
            for resource in flavor.get("resources") or []:
                if is_gpu_resource(resource["name"]):
                    numbers["nominal"] += int(parse_quantity(resource.get("nominalQuota") or 0))
                    for key, name in (("borrow_limit", "borrowingLimit"), ("lend_limit", "lendingLimit")):
                        if resource.get(name) is not None:
                            numbers[key] = max(0, numbers[key]) + int(parse_quantity(resource[name]))
    numbers["borrowed"] = max(0, used - numbers["nominal"])
    return numbers


def _lent_now(cache: Cache, queue: Json) -> int:
    """GPUs that the rest of the cohort leaves unused and lends."""
    root = root_cohort(cache, queue["spec"].get("cohortName") or "")
    if not root:
        return 0
    pool = (queue["metadata"].get("labels") or {}).get(POOL_LABEL)
    free = 0
    for other in cache.listing(CLUSTER_QUEUES):
        same_pool = (other["metadata"].get("labels") or {}).get(POOL_LABEL) == pool
        if other["metadata"]["name"] == queue["metadata"]["name"] or not same_pool:
            continue
        if root_cohort(cache, other["spec"].get("cohortName") or "") != root:
            continue
        amounts = gpu_amounts(cache, other)
        # What others borrow comes out of what is unused, so a negative remainder counts too.
        unused = amounts["nominal"] - amounts["used"]
        if amounts["lend_limit"] >= 0:
            unused = min(unused, amounts["lend_limit"])
        free += unused
    return max(0, free)


def root_cohort(cache: Cache, name: str) -> str:
    """The root of a cohort's tree; a circle of parents ends where it was entered."""
    seen: set[str] = set()
    while name and name not in seen:
        seen.add(name)
        parent = ((cache.object(COHORTS, name) or {}).get("spec") or {}).get("parentName")
        if not parent:
            return name
        name = parent
    return name


def quota_view(cache: Cache, view: WorkloadView, *, now: datetime, names: bool = True) -> QuotaView | None:
    """The ledger and the queue that a Workload stands in; None where its queue is unknown.

    Without `names` who is ahead and who holds what is left out: that is what costs.
    """
    name = cache.cluster_queue_of(view)
    queue = cache.object(CLUSTER_QUEUES, name) if name else None
    if queue is None:
        return None
    amounts = gpu_amounts(cache, queue)
    in_queue = cache.waiting().get(name, []) if view.waiting and names else []
    position = next((i + 1 for i, other in enumerate(in_queue) if other.key == view.key), 0)
    labels = queue["metadata"].get("labels") or {}
    in_cohort = bool(queue["spec"].get("cohortName"))
    limit: int | None = 0
    if in_cohort:
        limit = None if amounts["borrow_limit"] < 0 else amounts["borrow_limit"]
    return QuotaView(
        team=view.gang.team or labels.get(TEAM_LABEL) or name,
        pool=labels.get(POOL_LABEL, ""),
        nominal=amounts["nominal"],
        used=amounts["used"],
        borrowed=amounts["borrowed"],
        borrow_limit=limit,
        cohort_free=_lent_now(cache, queue),
        position=position,
        queue_length=len(in_queue),
        ahead=tuple(
            AheadJob(v.gang.name, v.gang.namespace, v.gang.gpus, v.gang.pods, i + 1)
            for i, v in enumerate(in_queue[: max(0, position - 1)])
        ),
        holders=_running(cache, [name], now) if names else (),
        stopped=_stopped(cache, view, queue),
    )


def _stopped(cache: Cache, view: WorkloadView, queue: Json) -> str:
    local = cache.object(LOCAL_QUEUES, f"{view.gang.namespace}/{view.local_queue}") or {}
    for what, body in ((f"LocalQueue {view.local_queue}", local), (f"ClusterQueue {queue['metadata']['name']}", queue)):
        policy = (body.get("spec") or {}).get("stopPolicy") or "None"
        if policy != "None":
            return f"{what} is stopped ({policy}): it takes no job until somebody resumes it"
    for condition in (queue.get("status") or {}).get("conditions") or []:
        if condition["type"] == "Active" and condition["status"] == "False":
            cause = condition.get("message") or condition.get("reason")
            return f"ClusterQueue {queue['metadata']['name']} is not active: {cause}"
    return ""


# Who holds what


def _running(cache: Cache, queues: Sequence[str], now: datetime) -> tuple[Holder, ...]:
    holders = []
    for view in cache.views():
        if view.quota_reserved and not view.finished and cache.cluster_queue_of(view) in queues:
            holders.append(_holder(cache, view, now))
    return tuple(h for h in holders if h.gpus)


def holders_of(cache: Cache, view: WorkloadView, *, now: datetime) -> tuple[Holder, ...]:
    """Who holds GPUs of the pool that a gang waits for: gangs under Kueue, and pods outside it."""
    found = [
        _holder(cache, other, now)
        for other in cache.views()
        if other.quota_reserved and not other.finished and other.gang.pool == view.gang.pool
    ]
    known = {uid for h in found for uid in h.uids}
    outside: dict[str, tuple[int, list[str]]] = {}
    for pod in cache.listing(PODS):
        uid = pod["metadata"]["uid"]
        use = cache.use(uid)
        if use is None or uid in known:
            continue
        gpus = sum(n for name, n in use.requests.items() if is_gpu_resource(name))
        total, uids = outside.get(owner_of(pod), (0, []))
        outside[owner_of(pod)] = (total + gpus, [*uids, uid])
    found += [
        Holder(f"{name} (outside every queue)", "", gpus, None, 0, tuple(u)) for name, (gpus, u) in outside.items()
    ]
    return tuple(h for h in found if h.gpus)


def _holder(cache: Cache, view: WorkloadView, now: datetime) -> Holder:
    body = cache.object(WORKLOADS, view.key) or {}
    limit = (body.get("spec") or {}).get("maximumExecutionTimeSeconds")
    ends: float | None = None
    if limit:
        status = body.get("status") or {}
        by_type = {c["type"]: c for c in status.get("conditions") or []}
        run_s = seconds_since(by_type.get("Admitted", {}).get("lastTransitionTime") or "", now)
        ends = max(0.0, float(limit) - run_s - float(status.get("accumulatedPastExecutionTimeSeconds") or 0))
    pods = cache.pods_of_workload(view)
    uids = tuple(p["metadata"]["uid"] for p in pods) + cache.reserved_uids(view)
    stopping = bool(pods) and all(p["metadata"].get("deletionTimestamp") for p in pods)
    if stopping:
        ends = max(ends_in_s(p, now) for p in pods)
    team = view.gang.team or view.gang.namespace
    return Holder(view.gang.name, team, view.gang.gpus, ends, 0, uids, terminating=stopping)


def _first_end(snapshot: Snapshot, gang: Gang, holders: Sequence[Holder]) -> Holder | None:
    ends = sorted((h for h in holders if h.ends_in_s is not None), key=lambda h: (h.ends_in_s or 0.0, h.name))
    found = first_end_that_fits(snapshot, gang, [(h.name, h.uids) for h in ends])
    return ends[found[0]] if found else None


# Reports


def queue_report(cache: Cache, team: str = "", *, now: datetime | None = None) -> list[Json]:
    """One entry a ClusterQueue: quota, use, and the waiting jobs in order with their reason."""
    now = now or datetime.now(UTC)
    snapshot = cache.snapshot()
    waiting = cache.waiting()
    report = []
    left_alone = set(unsteered(cache))
    for queue in sorted(cache.listing(CLUSTER_QUEUES), key=lambda q: str(q["metadata"]["name"])):
        name = queue["metadata"]["name"]
        labels = queue["metadata"].get("labels") or {}
        if team and labels.get(TEAM_LABEL) != team:
            continue
        amounts = gpu_amounts(cache, queue)
        jobs = []
        for i, view in enumerate(waiting.get(name, [])):
            state, cause = first_sentence(cache, view, snapshot, now=now) if i < 100 else ("", "")
            jobs.append(
                {
                    "position": i + 1,
                    "namespace": view.gang.namespace,
                    "job": view.gang.name,
                    "size": view.gang.size(),
                    "gpus": view.gang.gpus,
                    "priority": view.gang.priority,
                    "waiting_s": round(seconds_since(view.created, now), 1),
                    "state": state,
                    "reason": cause,
                }
            )
        running = [
            {
                "namespace": v.gang.namespace,
                "job": v.gang.name,
                "size": v.gang.size(),
                "gpus": v.gang.gpus,
                "admitted": v.admitted,
                "nodes": v.nodes,
            }
            for v in cache.views()
            if v.quota_reserved and not v.finished and cache.cluster_queue_of(v) == name
        ]
        report.append(
            {
                "cluster_queue": name,
                "team": labels.get(TEAM_LABEL, ""),
                "pool": labels.get(POOL_LABEL, ""),
                "cohort": queue["spec"].get("cohortName") or "",
                "nominal_gpus": amounts["nominal"],
                "used_gpus": amounts["used"],
                "borrowed_gpus": amounts["borrowed"],
                "lent_by_others_now": _lent_now(cache, queue),
                "steered": name not in left_alone,
                "asks": is_attached(queue, cache.check_name),
                "running": running,
                "waiting": jobs,
            }
        )
    return report


def status_report(cache: Cache) -> Json:
    """Nodes, pools, what fits now, and whether gangs are steered."""
    snapshot = cache.snapshot()
    nodes = []
    for node in sorted(snapshot.nodes, key=lambda n: (n.location, n.name)):
        expected = node.labels.get(EXPECTED_LABEL, "")
        gpus = [name for name in node.allocatable if is_gpu_resource(name)]
        allocatable = sum(node.allocatable[name] for name in gpus)
        if not node.pool and not allocatable:
            continue
        column = snapshot.index[node.name]
        used = sum(int(snapshot.used[snapshot.row[name], column]) for name in gpus)
        nodes.append(
            {
                "node": node.name,
                "pool": node.pool,
                "place": place(node.location),
                "expected_gpus": int(expected) if expected.isdigit() else None,
                "allocatable_gpus": allocatable,
                "used_gpus": used,
                "gate": "closed" if node.gate_closed else "open",
                "gate_reason": node.gate_reason,
                "ready": node.ready,
                "cordoned": node.cordoned,
                "takes_work": node.usable and not node.gate_closed and allocatable > 0,
            }
        )
    queues = [q for q in cache.listing(CLUSTER_QUEUES) if is_ours(q)]
    left_alone = unsteered(cache)
    views = cache.views()
    return {
        "nodes": nodes,
        "nodes_total": len(nodes),
        "nodes_taking_work": sum(bool(n["takes_work"]) for n in nodes),
        "gpus_allocatable": sum(int(str(n["allocatable_gpus"])) for n in nodes),
        "gpus_used": sum(int(str(n["used_gpus"])) for n in nodes),
        "jobs_running": sum(v.quota_reserved and not v.finished for v in views),
        "jobs_waiting": sum(v.waiting for v in views),
        "queues": len(queues),
        "queues_not_steered": left_alone,
        "unsteered": mark_of(cache) if left_alone else "",
        "fits_now": [
            {"tier": f.tier, "place": place(f.domain), "whole_nodes": f.nodes, "gpus": f.gpus}
            for f in fragmentation(snapshot)
        ],
    }
