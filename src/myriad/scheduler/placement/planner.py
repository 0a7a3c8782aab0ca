"""`plan`: tiers from node to cluster, best fit inside a tier, whole gang or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from myriad.scheduler.model import (
    CPU,
    Candidate,
    Gang,
    Outcome,
    PlacementPolicy,
    Plan,
    PodSetPlacement,
    place,
)
from myriad.scheduler.placement.packing import DOUBT, Demand, FloatArray, Packer, demands_of
from myriad.scheduler.placement.refusal import classes_of, refuse
from myriad.scheduler.placement.tiers import ranks, tiers
from myriad.scheduler.placement.warm import cold_penalty, warm_counts
from myriad.scheduler.snapshot import BoolArray, IntArray, Snapshot

_REFINED = 4  # domains of equal fit that are packed for real to compare what they break


def plan(
    snapshot: Snapshot,
    gang: Gang,
    policy: PlacementPolicy | None = None,
    *,
    node_penalty: FloatArray | None = None,
) -> Outcome:
    """Place the whole gang on the nodes that are free now, in the narrowest tier that holds it.

    Args:
        snapshot: the cluster; not changed.
        gang: the job. A podset that *requires* a level gets one domain of that level; one that *prefers* a level is
            content with that level (narrower is not sought) and goes upward from there; others start at the node.
        policy: site's settings; part of a decision's hash.
        node_penalty: (N,) per node of ``snapshot.nodes``: 1 or more is a doubt (avoided where the tier allows), below
            1 a preference between equal fits. Where it is not given, nodes that lack the gang's images cost a little.

    Returns:
        A `Plan`, or a `Refusal` of kind "never" or "not_now". The same inputs give the same answer.
    """
    policy = policy or PlacementPolicy()
    rank_of = ranks(snapshot.levels)
    names = tiers(snapshot.levels)
    demands = demands_of(snapshot, gang, policy, tier_rank=rank_of)
    if not demands:
        empty = Candidate(tier="node", domain=(), capacity_pods=0, leftover=0)
        return Plan("node", (), (), _weight(policy, "node", rank_of), empty, reason="the gang has no pods")
    packer = Packer(snapshot, demands, policy, cold_penalty(snapshot, gang) if node_penalty is None else node_penalty)
    if all(int(c.sum()) >= d.count for c, d in zip(packer.caps, demands, strict=True)):
        # Several demands that are bound to one domain each may stand apart: the gang's own tier has no such bound.
        broadest = demands[0].limit if len(demands) == 1 else len(names) - 1
        for rank in range(min(d.start for d in demands), broadest + 1):
            found = _best(packer, rank, names[rank])
            if found is not None:
                return _as_plan(snapshot, gang, policy, packer, rank_of, found)
    return refuse(snapshot, gang, policy, demands, packer)


def _weight(policy: PlacementPolicy, tier: str, rank_of: dict[str, int]) -> float:
    return float(policy.tier_weights.get(tier, rank_of[tier]))


def _domains(snapshot: Snapshot, rank: int) -> tuple[IntArray, IntArray, BoolArray]:
    """First node, end and validity of every domain of a tier."""
    n = len(snapshot.nodes)
    depth = len(snapshot.levels)
    if rank == 0:
        every = np.arange(n, dtype=np.int64)
        return every, every + 1, np.ones(n, dtype=np.bool_)
    if rank > depth:
        return np.array([0], dtype=np.int64), np.array([n], dtype=np.int64), np.ones(1, dtype=np.bool_)
    level = snapshot.level[depth - rank]
    return level.starts, level.stops, level.valid


@dataclass(frozen=True, slots=True)
class _Found:
    """The best domain of a tier: its score, first node, pods by node per demand, rivals and how many have room."""

    choice: Candidate
    lo: int
    counts: list[IntArray]
    candidates: list[Candidate]
    fitting: int


def _best(packer: Packer, rank: int, tier: str) -> _Found | None:
    """The best domain of a tier with its packing, or None where no domain of the tier holds the gang."""
    snapshot, demands = packer.snapshot, packer.demands
    starts, stops, valid = _domains(snapshot, rank)
    if not len(starts):
        return None

    def by_domain(values: IntArray) -> IntArray:
        return values if rank == 0 else np.add.reduceat(values, starts)

    feasible = valid.copy()
    for d, cap in zip(demands, packer.caps, strict=True):
        feasible &= by_domain(cap) >= d.count
    if len(demands) > 1:
        feasible &= _joint(packer, by_domain)
    found = np.flatnonzero(feasible)
    if not len(found):
        return None

    ranking = _Ranking(packer, rank, tier, found, starts, by_domain)
    packed: list[tuple[tuple[object, ...], Candidate, int, list[IntArray]]] = []
    shown: list[Candidate] = []
    for position, k in enumerate(ranking.order):
        g = int(found[k])
        lo, hi = int(starts[g]), int(stops[g])
        candidate = ranking.candidate(int(k))
        if len(shown) < packer.policy.keep_candidates:
            shown.append(candidate)
        if packed and (packed[0][1].fit() != candidate.fit() or len(packed) >= _REFINED):
            break
        counts = packer.pack(lo, hi, rank)
        if counts is None:
            continue
        broken, penalty = _costs(packer, counts, lo, ranking.scarce)
        candidate = replace(candidate, broken=broken, penalty=penalty)
        packed.append(((*candidate.fit(), broken, penalty, candidate.outer, position), candidate, lo, counts))
    if not packed:
        return None
    _, choice, lo, counts = min(packed, key=lambda p: p[0])
    rest = [c for c in shown if c.domain != choice.domain]
    return _Found(choice, lo, counts, [choice, *rest][: packer.policy.keep_candidates], len(found))


class _Ranking:
    """The figures of a tier's domains that have room, and the order in which they are tried. See `Candidate`."""

    def __init__(
        self,
        packer: Packer,
        rank: int,
        tier: str,
        found: IntArray,
        starts: IntArray,
        by_domain: Callable[[IntArray], IntArray],
    ) -> None:
        snapshot, demands, policy = packer.snapshot, packer.demands, packer.policy
        self.scarce = scarce_row(snapshot, demands)
        self._snapshot, self._tier, self._first = snapshot, tier, starts[found]
        alloc = snapshot.alloc[self.scarce]
        asked = sum(int(d.amounts[d.rows == self.scarce].sum()) * d.count for d in demands)
        free = np.where(np.logical_or.reduce([d.mask for d in demands]), np.maximum(packer.free[self.scarce], 0), 0)
        whole = np.where(free >= alloc, free, 0)
        nothing = np.zeros(len(found), dtype=np.int64)
        self.leftover = by_domain(free)[found] - asked
        self.pods = sum((by_domain(c)[found] for c in packer.caps), nothing)
        self.doubtful = self.cold = nothing
        if packer.penalty is not None:
            for d, cap in zip(demands, packer.caps, strict=True):
                for name, kept in (("doubtful", packer.penalty < DOUBT), ("cold", packer.penalty <= 0)):
                    short = np.maximum(0, d.count - by_domain(np.where(kept, cap, 0))[found])
                    setattr(self, name, getattr(self, name) + short)
        self.breaks = nothing
        if rank == 0:
            self.breaks = ((whole[found] > 0) & (self.leftover > 0)).astype(np.int64)
        levels = snapshot.level[: max(0, len(snapshot.levels) - rank)]
        self.outer = [level.sums(whole)[level.gid[self._first]] for level in reversed(levels)]
        keep = policy.keep_whole or (snapshot.levels[-2] if len(snapshot.levels) > 1 else "")
        names = [level.name for level in reversed(levels)]
        self.around = self.outer[names.index(keep)] if keep in names else nothing
        self.order = np.lexsort(
            (found, *reversed(self.outer), self.leftover, self.cold, self.around, self.breaks, self.doubtful)
        )

    def candidate(self, k: int) -> Candidate:
        """The figures of the k-th domain with room."""
        return Candidate(
            tier=self._tier,
            domain=self._snapshot.group_path(self._tier, int(self._first[k])),
            capacity_pods=int(self.pods[k]),
            leftover=int(self.leftover[k]),
            breaks=int(self.breaks[k]),
            around=int(self.around[k]),
            cold=int(self.cold[k]),
            doubtful=int(self.doubtful[k]),
            outer=tuple(int(o[k]) for o in self.outer),
        )


def _joint(packer: Packer, by_domain: Callable[[IntArray], IntArray]) -> BoolArray:
    """(G,) a cheap necessary test for several demands: what they ask for together is free in the domain."""
    snapshot, demands = packer.snapshot, packer.demands
    ok: BoolArray | None = None
    any_mask = np.logical_or.reduce([d.mask for d in demands])
    for row in np.unique(np.concatenate([d.rows for d in demands])):
        asked = sum(int(d.amounts[d.rows == row].sum()) * d.count for d in demands)
        free = by_domain(np.where(any_mask, np.maximum(packer.free[row], 0), 0))
        ok = free >= asked if ok is None else ok & (free >= asked)
    return ok if ok is not None else np.ones(len(snapshot.nodes), dtype=np.bool_)


def scarce_row(snapshot: Snapshot, demands: Sequence[Demand]) -> int:
    """The resource that fit is measured in: the GPUs of the largest demand, or CPU where the gang asks for none."""
    for d in demands:
        if d.gpus and d.spec.gpu_resource in snapshot.row:
            return snapshot.row[d.spec.gpu_resource]
    return snapshot.row.get(CPU, snapshot.row["pods"])


def _costs(packer: Packer, counts: Sequence[IntArray], lo: int, scarce: int) -> tuple[int, float]:
    """Whole-free nodes that would be used in part, and the sum of penalties of the nodes used."""
    hi = lo + len(counts[0])
    taken = np.zeros(hi - lo, dtype=np.int64)
    used = np.zeros(hi - lo, dtype=np.bool_)
    for d, c in zip(packer.demands, counts, strict=True):
        taken += int(d.amounts[d.rows == scarce].sum()) * c
        used |= c > 0
    alloc, free = packer.snapshot.alloc[scarce, lo:hi], packer.free[scarce, lo:hi]
    broken = int(((free == alloc) & (taken > 0) & (taken < alloc)).sum())
    penalty = float(packer.penalty[lo:hi][used].sum()) if packer.penalty is not None else 0.0
    return broken, round(penalty, 6)


def _as_plan(
    snapshot: Snapshot,
    gang: Gang,
    policy: PlacementPolicy,
    packer: Packer,
    rank_of: dict[str, int],
    found: _Found,
) -> Plan:
    by_podset: dict[str, list[tuple[str, int]]] = {}
    lo = found.lo
    for d, c in zip(packer.demands, found.counts, strict=True):
        queue = [(int(i), int(c[i])) for i in np.flatnonzero(c)]
        for name, count in d.podsets:
            nodes = by_podset.setdefault(name, [])
            while count:
                i, n = queue[0]
                take = min(n, count)
                nodes.append((snapshot.nodes[lo + i].name, take))
                count -= take
                queue[0] = (i, n - take)
                if n == take:
                    queue.pop(0)
    placements = []
    for p in gang.podsets:
        if p.name in by_podset:
            nodes = by_podset[p.name]
            tier, domain = snapshot.tier_of(n for n, _ in nodes)
            placements.append(PodSetPlacement(p.name, tuple(nodes), tier, domain))
    tier, domain = snapshot.tier_of(n for p in placements for n, _ in p.nodes)
    where = f"on {domain[-1]}" if tier == "node" else f"in {place(domain)}"
    reason = f"{gang.size()} {where} ({_tier_words(tier)}); {found.choice.leftover} free left there"
    warm = warm_counts(snapshot, gang, [n for p in placements for n, _ in p.nodes])
    if warm is not None:
        reason += f"; images warm on {warm[0]} of {warm[1]} nodes"
    return Plan(
        tier=tier,
        domain=domain,
        placements=tuple(placements),
        cost=_weight(policy, tier, rank_of),
        score=found.choice,
        candidates=tuple(found.candidates),
        counts={**classes_of(snapshot, gang, packer.demands), "fitting": found.fitting},
        reason=reason,
    )


def _tier_words(tier: str) -> str:
    return "across the cluster" if tier == "cluster" else f"same {tier}"
