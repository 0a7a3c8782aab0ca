"""Views on a snapshot beside the plan itself: what fits now, after which job, which node replaces a dead one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from myriad.scheduler.model import DEFAULT_GPU_RESOURCE, Gang, PlacementPolicy, Plan, PodSet
from myriad.scheduler.placement.planner import plan
from myriad.scheduler.placement.tiers import tiers
from myriad.scheduler.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class LargestGang:
    """The largest gang of whole nodes that fits now in one domain of a tier."""

    tier: str
    domain: tuple[str, ...]
    nodes: int
    gpus: int
    domain_nodes: int
    """GPU nodes of the domain in all, whatever their state."""


def fragmentation(
    snapshot: Snapshot, *, pool: str = "", gpu_resource: str = DEFAULT_GPU_RESOURCE
) -> tuple[LargestGang, ...]:
    """Per tier from node to cluster, the largest gang of whole free nodes that fits now (node: the most free GPUs)."""
    probe = PodSet("probe", 1, {gpu_resource: 1}, gpu_resource=gpu_resource)
    labelled = snapshot.label_mask(probe, pool)
    alloc = snapshot.amounts(snapshot.alloc, gpu_resource)
    free = np.maximum(snapshot.amounts(snapshot.free, gpu_resource), 0)
    open_now = snapshot.eligible(probe, pool) & (alloc > 0)
    whole = open_now & (free == alloc)
    out: list[LargestGang] = []
    for tier in tiers(snapshot.levels):
        if not len(snapshot.nodes):
            out.append(LargestGang(tier, (), 0, 0, 0))
        elif tier == "node":
            room = np.where(open_now, free, 0)
            i = int(np.argmax(room))
            out.append(LargestGang(tier, snapshot.group_path("node", i), int(whole[i]), int(room[i]), 1))
        elif tier == "cluster":
            count = int((labelled & (alloc > 0)).sum())
            out.append(LargestGang(tier, (), int(whole.sum()), int(alloc[whole].sum()), count))
        else:
            level = snapshot.level[snapshot.levels.index(tier)]
            gpus = np.where(level.valid, level.sums(np.where(whole, alloc, 0)), -1)
            g = int(np.argmax(gpus))
            a, b = int(level.starts[g]), int(level.stops[g])
            nodes = int(whole[a:b].sum()) if gpus[g] > 0 else 0
            count = int((labelled & (alloc > 0))[a:b].sum())
            out.append(LargestGang(tier, level.paths[g] if gpus[g] >= 0 else (), nodes, max(0, int(gpus[g])), count))
    return tuple(out)


def tier_of_assignment(snapshot: Snapshot, nodes: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """The tier and domain that an assignment made by somebody else (TAS) really has."""
    return snapshot.tier_of(nodes)


def first_end_that_fits(
    snapshot: Snapshot,
    gang: Gang,
    ends: Sequence[tuple[str, Sequence[str]]],
    policy: PlacementPolicy | None = None,
) -> tuple[int, Plan] | None:
    """After which running job's end the gang has a place.

    Args:
        ends: running jobs in the order in which they are expected to end: (name, uids of its pods).

    Returns:
        The index of that job and the plan then, or None where even the end of all does not help. Room only grows as
        jobs end, so the index is found by halving: about log2(jobs) plans.
    """

    def after(k: int) -> Plan | None:
        trial = snapshot.clone()
        for _, uids in ends[: k + 1]:
            for uid in uids:
                trial.remove_pod(uid)
        outcome = plan(trial, gang, policy)
        return outcome if isinstance(outcome, Plan) else None

    if not ends:
        return None
    last = after(len(ends) - 1)
    if last is None:
        return None
    lo, hi, best = 0, len(ends) - 1, last
    while lo < hi:
        middle = (lo + hi) // 2
        found = after(middle)
        if found is not None:
            hi, best = middle, found
        else:
            lo = middle + 1
    return hi, best


def plan_elastic(snapshot: Snapshot, gang: Gang, policy: PlacementPolicy | None = None) -> Plan | None:
    """The plan with the most pods for a gang that may start with fewer (``min_count``), or None where it may not.

    All elastic podsets shrink in step from their count to their minimum. Fewer pods never need more room, so the share
    is found by halving.
    """
    span = max((p.count - p.min_count for p in gang.podsets if p.min_count is not None), default=0)
    if span <= 0:
        return None

    def less(k: int) -> Plan | None:
        podsets = tuple(
            replace(p, count=max(p.min_count, p.count - k)) if p.min_count is not None else p for p in gang.podsets
        )
        outcome = plan(snapshot, replace(gang, podsets=podsets), policy)
        return outcome if isinstance(outcome, Plan) else None

    best = less(span)
    lo, hi = 0, span
    while best is not None and lo < hi:
        middle = (lo + hi) // 2
        found = less(middle)
        if found is not None:
            hi, best = middle, found
        else:
            lo = middle + 1
    return best


def replacement_for(
    snapshot: Snapshot, gang: Gang, podset: str, *, dead: str, keeps: Mapping[str, int]
) -> tuple[str, str] | None:
    """A node for the pods that stood on a dead node: near the rest of the gang, and none that the gang already uses.

    Args:
        dead: the node that is lost.
        keeps: pods by node of the whole gang, the dead node's too.

    Returns:
        (node, narrowest tier of the gang afterwards), or None where no single node takes those pods. A node that the
        gang already uses is taken only where no other node keeps the tier.
    """
    spec = next((p for p in gang.podsets if p.name == podset), None)
    lost = keeps.get(dead, 0)
    if spec is None or not lost:
        return None
    others = [n for n in keeps if n != dead and keeps[n]]
    probe = replace(spec, count=lost, min_count=None)
    trial = snapshot.clone()
    known = trial.index.get(dead)
    if known is not None:
        trial.update_node(replace(trial.nodes[known], ready=False))
    mask = trial.eligible(probe, gang.pool)
    free = trial.free
    room = mask.copy()
    for resource, amount in {**probe.requests, "pods": 1}.items():
        room &= trial.amounts(free, resource) >= amount * lost
    order = tiers(trial.levels)
    ranked = []
    for i in np.flatnonzero(room):
        name = trial.nodes[i].name
        tier, _ = trial.tier_of([*others, name])
        left = int(trial.amounts(free, spec.gpu_resource)[i]) - spec.gpus_per_pod * lost
        ranked.append((order.index(tier) if others else 0, name in others, left, name, tier))
    if not ranked:
        return None
    _, _, _, name, tier = min(ranked)
    return name, tier


def drained(snapshot: Snapshot, uids: Iterable[str]) -> Snapshot:
    """A copy of the cluster without these pods; one sum for all of them, however many."""
    gone = set(uids)
    trial = snapshot.clone()
    stay = [pod for pod in snapshot.pods() if pod.uid not in gone]
    trial.recount(stay)
    return trial
