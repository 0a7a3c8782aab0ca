"""Kueue's admission as a model: quota in a cohort, topology by TAS, victims of a preemption.

Read in the source of Kueue 0.17: `pkg/cache/scheduler/resource_node.go` (available quota),
`tas_flavor_snapshot.go` (levels from the asked one upward, fewest domains, best fit for the last; a podset without a
wish takes the domains with the *least* free capacity first), `preemption.go` (candidates and their order, fill back).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np

from myriad.scheduler.model import DEFAULT_GPU_RESOURCE, PodSet
from myriad.scheduler.placement.packing import choose
from myriad.scheduler.snapshot import BoolArray, IntArray, Snapshot
from myriad.sim.config import TeamQuota


class Quotas:
    """Quota of one resource, in one flat cohort."""

    def __init__(self, teams: Mapping[str, TeamQuota]) -> None:
        self._teams = dict(teams)
        self.used: dict[str, int] = dict.fromkeys(teams, 0)
        self._guaranteed = {n: max(0, t.nominal - t.lend) if t.lend is not None else 0 for n, t in teams.items()}
        self._shared = sum(t.nominal - self._guaranteed[n] for n, t in teams.items())

    def available(self, team: str) -> int:
        """What the team may still take: its own, and what the cohort lends within its borrowing limit."""
        quota, used, kept = self._teams[team], self.used[team], self._guaranteed[team]
        lent = self._shared - sum(max(0, u - self._guaranteed[n]) for n, u in self.used.items())
        if quota.borrow is not None:
            lent = min(lent, quota.nominal - kept + quota.borrow - max(0, used - kept))
        return max(0, kept - used) + max(0, lent)

    def could_ever(self, team: str) -> int:
        """The most that the team can hold when nobody else holds anything."""
        quota = self._teams[team]
        most = self._guaranteed[team] + self._shared
        return most if quota.borrow is None else min(most, quota.nominal + quota.borrow)

    def borrows(self, team: str, more: int = 0) -> bool:
        """Whether the team holds (with ``more``) beyond its nominal quota."""
        return self.used[team] + more > self._teams[team].nominal


class Tas:
    """Topology-Aware Scheduling over the nodes of a snapshot.

    Attributes:
        used: (N,) GPUs that admitted workloads are assigned, whatever their pods do.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.used: IntArray = np.zeros(len(snapshot.nodes), dtype=np.int64)

    def counts(self, podset: PodSet, pool: str) -> IntArray:
        """(N,) pods of the podset that each node has room for."""
        alloc = self.snapshot.amounts(self.snapshot.alloc, DEFAULT_GPU_RESOURCE)
        mask = self.snapshot.eligible(podset, pool) & self.snapshot.located
        return np.where(mask, np.maximum(alloc - self.used, 0) // podset.gpus_per_pod, 0)

    def assign(self, podset: PodSet, pool: str, *, inside: BoolArray | None = None) -> dict[int, int] | None:
        """Pods by node number, or None where TAS finds no place. ``inside`` limits the nodes (a replacement)."""
        cap = self.counts(podset, pool)
        if inside is not None:
            cap = np.where(inside, cap, 0)
        need = podset.count
        if int(cap.sum()) < need:
            return None
        if podset.topology.mode == "unconstrained":
            return _least_free(cap, need)
        return self._best_fit(cap, podset)

    def _best_fit(self, cap: IntArray, podset: PodSet) -> dict[int, int] | None:
        levels = self.snapshot.level
        names = [level.name for level in levels]
        depth = names.index(podset.topology.level) if podset.topology.level in names else len(levels)
        need = podset.count
        while True:
            sums, starts, stops = self._at(depth, cap)
            if int(sums.max()) >= need:
                fits = np.flatnonzero(sums >= need)
                chosen = [int(fits[np.argmin(sums[fits])])]
                break
            if podset.topology.mode == "required":
                return None
            if depth == 0:
                whole, last = choose(sums, need)
                chosen = sorted({*(int(g) for g in whole), last})
                break
            depth -= 1
        inside = np.zeros(len(cap), dtype=np.bool_)
        for g in chosen:
            inside[int(starts[g]) : int(stops[g])] = True
        for lower in range(depth + 1, len(levels) + 1):
            sums, starts, stops = self._at(lower, np.where(inside, cap, 0))
            whole, last = choose(sums, need)
            if lower == len(levels):
                found = {int(i): int(sums[i]) for i in whole if sums[i]}
                found[last] = found.get(last, 0) + need - sum(found.values())
                return found
            inside = np.zeros(len(cap), dtype=np.bool_)
            for g in (*whole, last):
                inside[int(starts[g]) : int(stops[g])] = True
        # The asked level is the node itself.
        return {chosen[0]: need} if len(chosen) == 1 else _spread(cap, chosen, need)

    def _at(self, depth: int, cap: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        levels = self.snapshot.level
        if depth == len(levels):
            every = np.arange(len(cap), dtype=np.int64)
            return cap, every, every + 1
        level = levels[depth]
        return level.sums(cap), level.starts, level.stops


def _least_free(cap: IntArray, need: int) -> dict[int, int]:
    order = np.argsort(cap, kind="stable")
    sizes = cap[order]
    single = np.flatnonzero(sizes >= need)
    if len(single):
        return {int(order[single[0]]): need}
    found: dict[int, int] = {}
    for i, size in zip(order, sizes, strict=True):
        take = min(int(size), need)
        if take:
            found[int(i)] = take
            need -= take
        if not need:
            break
    return found


def _spread(cap: IntArray, nodes: Iterable[int], need: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for i in sorted(nodes, key=lambda i: -int(cap[i])):
        take = min(int(cap[i]), need)
        if take:
            found[i] = take
            need -= take
    return found


class Holder(Protocol):
    """What the search for victims reads of an admitted job."""

    @property
    def team(self) -> str: ...
    @property
    def gpus(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def reserved_s(self) -> float: ...
    @property
    def place(self) -> Mapping[int, int]: ...
    @property
    def gpus_per_pod(self) -> int: ...


H = TypeVar("H", bound=Holder)


def victims(
    asked: PodSet,
    pool: str,
    *,
    team: str,
    priority: int,
    quotas: Quotas,
    tas: Tas,
    holders: Sequence[H],
) -> list[H]:
    """Whom Kueue would evict for a workload: reclaimWithinCohort Any, withinClusterQueue LowerPriority, no borrowing.

    Candidates of other teams come first (only of teams that borrow, and only where the preemptor stays within its
    nominal quota), then lower priority, then the latest admission. They are taken one by one until quota and topology
    hold; then as many as possible are spared again, in reverse.
    """
    gpus = asked.gpus
    owns = not quotas.borrows(team, gpus)
    candidates = [
        h
        for h in holders
        if (h.team == team and h.priority < priority) or (h.team != team and owns and quotas.borrows(h.team))
    ]
    if not candidates:
        return []
    candidates.sort(key=lambda h: (h.team == team, h.priority, -h.reserved_s))
    kept_quota, kept_used = dict(quotas.used), tas.used.copy()

    def release(h: H, sign: int) -> None:
        quotas.used[h.team] -= sign * h.gpus
        for i, pods in h.place.items():
            tas.used[i] -= sign * pods * h.gpus_per_pod

    def fits() -> bool:
        if quotas.available(team) < gpus:
            return False
        return tas.assign(asked, pool) is not None

    try:
        taken: list[H] = []
        for h in candidates:
            if h.team != team and not quotas.borrows(h.team):
                continue
            release(h, 1)
            taken.append(h)
            if fits():
                break
        else:
            return []
        spared: list[H] = []
        for h in reversed(taken[:-1]):
            release(h, -1)
            if fits():
                spared.append(h)
            else:
                release(h, 1)
        return [h for h in taken if h not in spared]
    finally:
        quotas.used, tas.used = kept_quota, kept_used
