"""What-if: where a gang that nobody has submitted would go, who would have to leave for it, or whose end makes room;
and what fits at all, tier by tier. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from myriad.errors import InputError
from myriad.kube.kinds import CLUSTER_QUEUES, NODES, PODS, RESOURCE_FLAVORS, WORKLOADS
from myriad.scheduler.cache import Cache
from myriad.scheduler.eta.live import elapsed_of, limit_of, pool_of_queue, queue_state, stop_of
from myriad.scheduler.model import (
    DEFAULT_GPU_RESOURCE,
    Gang,
    Plan,
    PodSet,
    TopologyRequest,
    gpus_words,
    is_gpu_resource,
    level_label,
    place,
)
from myriad.scheduler.notices.checkpoint import LAST_CHECKPOINT, Unreadable, parse_time
from myriad.scheduler.objects import TEAM_LABEL, WorkloadView, owner_of, seconds_since, toleration
from myriad.scheduler.placement import fits_ever, fragmentation, plan
from myriad.scheduler.quota_view import left_of
from myriad.scheduler.snapshot import Snapshot
from myriad.scheduler.words import duration

Json = dict[str, Any]

_MOST_DOMAINS = 16


@dataclass(frozen=True, slots=True)
class Leaver:
    """A running job and what it would cost to stop it.

    Attributes:
        lost_gpu_s: GPU-seconds since its last checkpoint, or since it started where it reported none.
        ends_in_s: until its limit, None without one.
        uids: its pods and stand-ins in the snapshot.
        outside: no Workload: nobody can preempt it by quota.
    """

    job: str
    namespace: str
    team: str
    priority: int
    gpus: int
    lost_gpu_s: float
    checkpoint_known: bool
    ends_in_s: float | None
    uids: tuple[str, ...]
    nodes: tuple[str, ...]
    outside: bool = False

    def as_dict(self) -> Json:
        """For `--json`."""
        return {
            "job": self.job,
            "namespace": self.namespace,
            "team": self.team,
            "priority": self.priority,
            "gpus": self.gpus,
            "lost_gpu_hours": round(self.lost_gpu_s / 3600, 2),
            "checkpoint_known": self.checkpoint_known,
            "ends_in_s": None if self.ends_in_s is None else round(self.ends_in_s),
            "outside_queues": self.outside,
        }


def leavers(cache: Cache, snapshot: Snapshot, *, now: datetime) -> list[Leaver]:
    """Everything that holds GPUs, each job once."""
    found: list[Leaver] = []
    known: set[str] = set()
    for view in cache.views():
        if not view.quota_reserved or view.finished:
            continue
        uids = cache.uids_of(view)
        known.update(uids)
        body = cache.object(WORKLOADS, view.key) or {}
        limit, elapsed = limit_of(body), elapsed_of(body, now)
        since = checkpoint_at(cache, view, now)
        unsaved = elapsed if since is None else min(elapsed, max(0.0, now.timestamp() - since))
        gpus = view.gpus_held or view.gang.gpus
        if gpus:
            found.append(
                Leaver(
                    view.gang.name,
                    view.gang.namespace,
                    view.gang.team or view.gang.namespace,
                    view.gang.priority,
                    gpus,
                    unsaved * gpus,
                    since is not None,
                    None if limit is None else max(0.0, limit - elapsed),
                    uids,
                    tuple(sorted(_nodes(snapshot, uids))),
                )
            )
    outside: dict[str, list[Json]] = defaultdict(list)
    for pod in cache.listing(PODS):
        if pod["metadata"]["uid"] not in known and cache.use(pod["metadata"]["uid"]) is not None:
            outside[owner_of(pod)].append(pod)
    for name, pods in outside.items():
        namespace, _, job = name.rpartition("/")
        uids = tuple(p["metadata"]["uid"] for p in pods)
        uses = [use for u in uids if (use := cache.use(u)) is not None]
        gpus = sum(n for use in uses for r, n in use.requests.items() if is_gpu_resource(r))
        age = max((seconds_since((p.get("status") or {}).get("startTime") or "", now) for p in pods), default=0.0)
        if gpus:
            nodes = tuple(sorted({use.node for use in uses}))
            found.append(Leaver(job, namespace, "", 0, gpus, age * gpus, False, None, uids, nodes, outside=True))
    return found


def _nodes(snapshot: Snapshot, uids: Iterable[str]) -> set[str]:
    return {use.node for uid in uids if (use := snapshot.pod(uid)) is not None}


def checkpoint_at(cache: Cache, view: WorkloadView, now: datetime) -> float | None:
    """When a job last saved, as the annotation on its Workload or pods says; None where it says nothing usable."""
    times = []
    for body in (cache.object(WORKLOADS, view.key) or {}, *cache.pods_of_workload(view)):
        text = ((body.get("metadata") or {}).get("annotations") or {}).get(LAST_CHECKPOINT)
        try:
            times += [parse_time(text, now).timestamp()] if text else []
        except Unreadable:
            continue  # its owner is told at submit; here it counts as one that never saved
    return max(times, default=None)


# What fits now


def fragmentation_report(cache: Cache, pool: str = "") -> Json:
    """Per pool: the largest gang of whole nodes by tier, and GPUs that are free but stranded.

    A free GPU is stranded where its node is not wholly free: no pod that wants a whole node can use it.
    """
    snapshot = cache.snapshot()
    names = pools_of(cache, snapshot)
    if pool and pool not in names:
        raise InputError(f'no pool is called "{pool}"', hint=f"there are {', '.join(names) or 'none with GPUs yet'}")
    report = []
    for name in [pool] if pool else names:
        resource = resource_of(snapshot, name)
        alloc = snapshot.amounts(snapshot.alloc, resource)
        free = np.maximum(snapshot.amounts(snapshot.free, resource), 0)
        probe = _podset(cache, name, 1, 1, resource, "")
        mine = snapshot.label_mask(probe, name) & (alloc > 0)
        open_now = snapshot.eligible(probe, name) & mine
        stranded = int(free[open_now & (free < alloc)].sum())
        total_free = int(free[open_now].sum())
        broken = [
            {"node": snapshot.nodes[int(i)].name, "free_gpus": int(free[i]), "of": int(alloc[i])}
            for i in np.flatnonzero(open_now & (free < alloc) & (free > 0))
        ]
        broken.sort(key=lambda n: (-int(str(n["free_gpus"])), str(n["node"])))
        report.append(
            {
                "pool": name,
                "nodes": int(mine.sum()),
                "nodes_taking_work": int(open_now.sum()),
                "gpus": int(alloc[mine].sum()),
                "free_gpus": total_free,
                "stranded_gpus": stranded,
                "stranded_share": round(stranded / total_free, 3) if total_free else 0.0,
                "free_on_nodes_out_of_work": int(free[mine & ~open_now].sum()),
                "largest_gang": [
                    {
                        "tier": f.tier,
                        "place": place(f.domain),
                        "whole_nodes": f.nodes,
                        "gpus": f.gpus,
                        "of_nodes": f.domain_nodes,
                    }
                    for f in fragmentation(_with_tolerations(snapshot, probe), pool=name, gpu_resource=resource)
                ],
                "partly_free": broken[:50],
            }
        )
    return {"pools": report}


def _with_tolerations(snapshot: Snapshot, probe: PodSet) -> Snapshot:
    """The snapshot without the taints that every pod of the flavor tolerates: views ask with a bare pod."""
    if not probe.tolerations:
        return snapshot
    trial = snapshot.clone()
    for node in list(trial.nodes):
        kept = tuple(t for t in node.taints if not any(x.tolerates(t) for x in probe.tolerations))
        if kept != node.taints:
            trial.update_node(replace(node, taints=kept))
    return trial


def pools_of(cache: Cache, snapshot: Snapshot) -> list[str]:
    """Pools that have GPU nodes or a queue."""
    gpus = np.zeros(len(snapshot.nodes), dtype=np.int64)
    for name in snapshot.resources:
        if is_gpu_resource(name):
            gpus += snapshot.amounts(snapshot.alloc, name)
    found = {node.pool for i, node in enumerate(snapshot.nodes) if node.pool and gpus[i]}
    found |= {pool for q in cache.listing(CLUSTER_QUEUES) if (pool := pool_of_queue(q))}
    return sorted(found)


def resource_of(snapshot: Snapshot, pool: str) -> str:
    """The GPU resource that most nodes of a pool have."""
    mine = np.array([node.pool == pool for node in snapshot.nodes], dtype=np.bool_)
    best, most = DEFAULT_GPU_RESOURCE, 0
    for name in snapshot.resources:
        if is_gpu_resource(name):
            amount = int(snapshot.amounts(snapshot.alloc, name)[mine].sum()) if len(mine) else 0
            if amount > most:
                best, most = name, amount
    return best


def _podset(cache: Cache, pool: str, pods: int, gpus: int, resource: str, level: str) -> PodSet:
    flavor = cache.object(RESOURCE_FLAVORS, pool) or {}
    tolerations = tuple(toleration(t) for t in (flavor.get("spec") or {}).get("tolerations") or [])
    wish = TopologyRequest("required", level) if level else TopologyRequest()
    return PodSet("main", pods, {resource: gpus}, gpu_resource=resource, tolerations=tolerations, topology=wish)


# One gang


def fit_report(
    cache: Cache,
    *,
    nodes: int,
    gpus: int,
    pool: str = "",
    team: str = "",
    level: str = "",
    priority: int | None = None,
    now: datetime | None = None,
    missing: Iterable[str] = (),
) -> Json:
    """Where a gang of `nodes` pods of `gpus` GPUs would go: now, after somebody leaves, after somebody ends, or never.

    Args:
        cache: the cluster.
        nodes, gpus: pods, and GPUs of each.
        pool: where; may be left out where there is one pool (or the team has one).
        team: whose quota is asked too.
        level: topology level that all pods must share.
        priority: jobs of a higher one are never asked to leave; without it everybody may be.
        now: the time.
        missing: kinds that the caller may not read.

    Raises:
        InputError: a number, pool, team or level that makes no sense.
    """
    now = now or datetime.now(UTC)
    if nodes < 1 or gpus < 1:
        raise InputError(f"a gang of {nodes} nodes x {gpus} GPUs is none", hint="give --nodes and --gpus of 1 or more")
    unseen = sorted(set(missing))
    if NODES.plural in unseen:
        raise InputError(
            "these credentials may not read nodes, so nobody can say what fits",
            hint="ask for the ClusterRole myriad-viewer, or look at the page of the extension",
        )
    snapshot = cache.snapshot()
    pool = _pool(cache, snapshot, pool, team)
    level = _level(snapshot, level)
    resource = resource_of(snapshot, pool)
    gang = Gang(
        name=f"{nodes} x {gpus}",
        namespace=team or "what-if",
        podsets=(_podset(cache, pool, nodes, gpus, resource, level),),
        priority=priority or 0,
        team=team,
        pool=pool,
    )
    report: Json = {
        "nodes": nodes,
        "gpus_per_node": gpus,
        "gpus": nodes * gpus,
        "pool": pool,
        "team": team,
        "level": level,
        "quota": _quota(cache, gang, team, pool),
        "not_readable": unseen,
        "leave": None,
        "after": None,
    }
    never = fits_ever(snapshot, gang)
    outcome = never or plan(snapshot, gang)
    if isinstance(outcome, Plan):
        return report | {"fits": "now", "sentence": f"fits now: {outcome.reason}", **_where(outcome)}
    report |= {"fits": "never" if never else "not_now", "sentence": outcome.sentence, "details": list(outcome.details)}
    if never:
        return report | {"unblocks": list(outcome.unblocks)}
    running = leavers(cache, snapshot, now=now)
    report["leave"] = _cheapest(snapshot, gang, running, priority)
    report["after"] = _after(snapshot, gang, running)
    report["unblocks"] = list(outcome.unblocks)
    return report


def _where(found: Plan) -> Json:
    return {"tier": found.tier, "place": place(found.domain), "on": found.nodes}


def _pool(cache: Cache, snapshot: Snapshot, pool: str, team: str) -> str:
    names = pools_of(cache, snapshot)
    if team:
        teams: dict[str, set[str]] = defaultdict(set)
        for queue in cache.listing(CLUSTER_QUEUES):
            owner = (queue["metadata"].get("labels") or {}).get(TEAM_LABEL)
            if owner:
                teams[owner].add(pool_of_queue(queue))
        if team not in teams:
            raise InputError(f'no team is called "{team}"', hint=f"there are {', '.join(sorted(teams)) or 'none yet'}")
        if pool and pool not in teams[team]:
            raise InputError(
                f"team {team} has no queue in pool {pool}", hint=f"it has {', '.join(sorted(teams[team]))}"
            )
        names = sorted(teams[team])
    if pool and pool not in names:
        raise InputError(f'no pool is called "{pool}"', hint=f"there are {', '.join(names) or 'none with GPUs yet'}")
    if pool:
        return pool
    if len(names) == 1:
        return names[0]
    if not names:
        raise InputError("the cluster has no pool with GPUs yet", hint="`myriad status` shows its nodes")
    raise InputError(f"there are {len(names)} pools: {', '.join(names)}", hint="say which with --pool")


def _level(snapshot: Snapshot, level: str) -> str:
    known = {*snapshot.levels, *(level_label(name) for name in snapshot.levels)}
    if level in ("", "node", "host", "kubernetes.io/hostname"):
        return "kubernetes.io/hostname" if level else ""
    if level not in known:
        raise InputError(
            f'there is no topology level "{level}"', hint=f"the levels are {', '.join(snapshot.levels)}, node"
        )
    return level


def _quota(cache: Cache, gang: Gang, team: str, pool: str) -> Json | None:
    """Whether the team's quota would do; None without a team."""
    if not team:
        return None
    used = cache.gpus_held()
    mine, peers = None, []
    stopped = ""
    for queue in cache.listing(CLUSTER_QUEUES):
        if pool_of_queue(queue) == pool:
            state = queue_state(cache, queue)
            peers.append(state)
            if (queue["metadata"].get("labels") or {}).get(TEAM_LABEL) == team:
                mine, stopped = state, stop_of(queue)
    if mine is None:
        return None
    left = left_of(mine, peers, used)
    most = left_of(mine, peers, {})
    words = f"{team} has {left} GPUs left of {mine.nominal} in pool {pool}"
    if most < gang.gpus:
        words = f"{team} can never hold {gang.gpus} GPUs in pool {pool}: {most} at the very most"
    elif left < gang.gpus:
        words += f"; {gang.gpus - left} more needed"
    if stopped:
        words += f"; {stopped}"
    return {
        "left_gpus": left,
        "most_gpus": most,
        "suffices": left >= gang.gpus and not stopped,
        "ever": most >= gang.gpus,
        "waiting_ahead": len(cache.waiting().get(mine.name, [])),
        "sentence": words,
    }


def _cheapest(snapshot: Snapshot, gang: Gang, running: Sequence[Leaver], priority: int | None) -> Json | None:
    """The jobs whose end costs least and makes room: the lowest priority first, then the fewest GPU-seconds lost.

    Domain by domain: the jobs of a domain are taken by (priority, loss for each GPU that they free there) until the
    gang fits, then those that turn out not to be needed are put back, the dearest first. The cheapest domain wins.
    Exact would be a knapsack; what is found is minimal (no job of it can stay) and feasible (the planner agrees).
    """
    may = [j for j in running if not j.outside and (priority is None or j.priority <= priority)]
    if not may:
        return None
    best: tuple[tuple[int, float, int], list[Leaver], Plan] | None = None
    for inside in _domains(snapshot, gang):
        there = [j for j in may if not inside.isdisjoint(j.nodes)] if inside else may
        order = sorted(there, key=lambda j: (j.priority, j.lost_gpu_s / max(1, _freed(snapshot, j, inside)), j.job))
        chosen = _until_it_fits(snapshot, gang, order)
        if chosen is None:
            continue
        for job in sorted(chosen, key=lambda j: (-j.priority, -j.lost_gpu_s)):
            rest = [j for j in chosen if j is not job]
            if _without(snapshot, gang, rest) is not None:
                chosen = rest
        found = _without(snapshot, gang, chosen)
        if found is None:
            continue
        cost = (max(j.priority for j in chosen), sum(j.lost_gpu_s for j in chosen), sum(j.gpus for j in chosen))
        if best is None or cost < best[0]:
            best = (cost, chosen, found)
    if best is None:
        return None
    (_, lost, gpus), chosen, found = best
    named = ", ".join(f"{j.namespace}/{j.job} ({gpus_words(j.gpus)})" for j in chosen[:5])
    more = f" and {len(chosen) - 5} more" if len(chosen) > 5 else ""
    return {
        "jobs": [j.as_dict() for j in chosen],
        "gpus": gpus,
        "lost_gpu_hours": round(lost / 3600, 2),
        "highest_priority": best[0][0],
        **_where(found),
        "sentence": f"if {named}{more} left: {lost / 3600:.1f} GPU-hours since their last checkpoints would be lost",
    }


def _domains(snapshot: Snapshot, gang: Gang) -> list[frozenset[str]]:
    """Node names of domains to try, the emptiest first; the empty set stands for the whole cluster."""
    podset = gang.podsets[0]
    mask = snapshot.eligible(podset, gang.pool)
    free = np.maximum(snapshot.amounts(snapshot.free, podset.gpu_resource), 0)
    alloc = snapshot.amounts(snapshot.alloc, podset.gpu_resource)
    found: list[tuple[int, frozenset[str]]] = []
    for level in snapshot.level:
        held = level.sums(np.where(mask, alloc // podset.gpus_per_pod, 0))
        room = level.sums(np.where(mask, free, 0))
        for g in np.flatnonzero(level.valid & (held >= podset.count)):
            names = frozenset(snapshot.nodes[i].name for i in range(int(level.starts[g]), int(level.stops[g])))
            found.append((-int(room[g]), names))
    found.sort(key=lambda x: (x[0], len(x[1])))
    domains = [names for _, names in found[:_MOST_DOMAINS]]
    return domains if podset.topology.level else [*domains, frozenset()]


def _freed(snapshot: Snapshot, job: Leaver, inside: frozenset[str]) -> int:
    if not inside:
        return job.gpus
    uses = [use for uid in job.uids if (use := snapshot.pod(uid)) is not None and use.node in inside]
    return sum(n for use in uses for name, n in use.requests.items() if is_gpu_resource(name))


def _without(snapshot: Snapshot, gang: Gang, gone: Sequence[Leaver]) -> Plan | None:
    trial = snapshot.clone()
    for job in gone:
        for uid in job.uids:
            trial.remove_pod(uid)
    outcome = plan(trial, gang)
    return outcome if isinstance(outcome, Plan) else None


def _until_it_fits(snapshot: Snapshot, gang: Gang, order: Sequence[Leaver]) -> list[Leaver] | None:
    """The shortest beginning of the order after which the gang fits: room only grows, so it is found by halving."""
    if not order or _without(snapshot, gang, order) is None:
        return None
    lo, hi = 1, len(order)
    while lo < hi:
        middle = (lo + hi) // 2
        if _without(snapshot, gang, order[:middle]) is not None:
            hi = middle
        else:
            lo = middle + 1
    return list(order[:hi])


def _after(snapshot: Snapshot, gang: Gang, running: Sequence[Leaver]) -> Json | None:
    """Whose end by its limit makes room, in the order in which limits end."""
    ends = sorted((j for j in running if j.ends_in_s is not None), key=lambda j: (j.ends_in_s or 0.0, j.job))
    chosen = _until_it_fits(snapshot, gang, ends)
    if chosen is None:
        return None
    found = _without(snapshot, gang, chosen)
    last = chosen[-1]
    if found is None or last.ends_in_s is None:
        return None
    return {
        "job": last.job,
        "namespace": last.namespace,
        "in_s": round(last.ends_in_s),
        "ended_by_then": len(chosen),
        **_where(found),
        "sentence": f"when {last.namespace}/{last.job} has ended, by its limit in {duration(last.ends_in_s)} or before",
    }
