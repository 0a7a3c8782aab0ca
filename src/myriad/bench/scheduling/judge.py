"""Figures of an arm and of several seeds: percentiles, intervals, tiers against the optimum, free blocks. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from myriad.bench.scheduling.jobs import GPUS_PER_NODE

TIERS = ("node", "rack", "block", "room", "cluster")
"""From the narrowest to the broadest."""

_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
         2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045)  # fmt: skip
"""97.5 % points of Student's distribution for 1 to 29 degrees of freedom; 1.96 beyond."""

IntArray = npt.NDArray[np.int64]


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that ``share`` of the values do not exceed; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def interval(values: Sequence[float]) -> dict[str, float] | None:
    """Mean and 95 % confidence interval by Student's t; of one value there is no interval."""
    if not values:
        return None
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"mean": round(mean, 4), "n": 1}
    t = _T975[len(values) - 2] if len(values) - 2 < len(_T975) else 1.96
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": round(mean, 4), "low": round(mean - half, 4), "high": round(mean + half, 4), "n": len(values)}


@dataclass(frozen=True)
class Site:
    """Where nodes stand.

    Attributes:
        names: of all nodes, those of one domain side by side.
        paths: (room, block, rack) of each.
    """

    names: tuple[str, ...]
    paths: tuple[tuple[str, str, str], ...]

    def tier(self, nodes: Iterable[str]) -> int:
        """Rank in `TIERS` of the narrowest domain that holds all these nodes."""
        index = self.index
        found = {index[n] for n in nodes}
        if len(found) <= 1:
            return 0
        paths = {self.paths[i] for i in found}
        for depth, rank in ((3, 1), (2, 2), (1, 3)):
            if len({p[:depth] for p in paths}) == 1:
                return rank
        return 4

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Place of each name."""
        return {name: i for i, name in enumerate(self.names)}

    def starts(self, rank: int) -> IntArray:
        """First node of every domain of a tier."""
        if rank == 0:
            return np.arange(len(self.names))
        if rank == 4:
            return np.zeros(1, dtype=np.int64)
        paths = [p[: 4 - rank] for p in self.paths]
        return np.array([i for i, p in enumerate(paths) if not i or p != paths[i - 1]], dtype=np.int64)

    def narrowest(self, free: IntArray, pods: int, gpus: int) -> int | None:
        """Rank of the narrowest tier of which one domain has room for all pods; None where there is none."""
        room = np.maximum(free, 0) // gpus
        for rank in range(len(TIERS)):
            if np.add.reduceat(room, self.starts(rank)).max() >= pods:
                return rank
        return None

    def blocks(self, free: IntArray) -> dict[str, int]:
        """Wholly free nodes: of the freest rack, block and room, and of the cluster."""
        whole = (free >= GPUS_PER_NODE).astype(np.int64)
        return {TIERS[rank]: int(np.add.reduceat(whole, self.starts(rank)).max()) for rank in (1, 2, 3, 4)}


def site_of(nodes: int) -> Site:
    """So many nodes: 8 to a rack, 16 racks to a block, 5 blocks to a room; of 1,250 there are 157 racks, 10 blocks."""
    paths = tuple((f"hall{k // 640 + 1}", f"b{k // 128 + 1:02d}", f"r{k // 8 + 1:03d}") for k in range(nodes))
    return Site(tuple(f"g{k:05d}" for k in range(nodes)), paths)


@dataclass(frozen=True, slots=True)
class Stay:
    """One job on its nodes.

    Attributes:
        key: of the job.
        since, until: when it took them and left them; until None: it did not.
        nodes: pods by node.
        gpus: of each pod.
    """

    key: str
    since: float
    until: float | None
    nodes: Mapping[str, int]
    gpus: int


@dataclass(frozen=True, slots=True)
class TierUse:
    """A gang's tier: what it got, and the narrowest that had room for it at that moment (ranks in `TIERS`)."""

    key: str
    used: int
    optimum: int


def tiers_used(site: Site, stays: Sequence[Stay]) -> list[TierUse]:
    """The tiers of all gangs, by playing who came and went in the order in which it happened."""
    index = site.index
    free = np.full(len(site.names), GPUS_PER_NODE, dtype=np.int64)
    events = [(s.since, 1, k) for k, s in enumerate(stays)] + [
        (s.until, 0, k) for k, s in enumerate(stays) if s.until is not None
    ]
    found = []
    for _, comes, k in sorted(events):
        stay = stays[k]
        if comes:
            pods = sum(stay.nodes.values())
            if pods > 1:
                used = site.tier(stay.nodes)
                best = site.narrowest(free, pods, stay.gpus)
                # None: a job that ended a moment ago is seen to leave a moment too late.
                found.append(TierUse(stay.key, used, used if best is None else min(best, used)))
        for node, pods in stay.nodes.items():
            free[index[node]] -= (1 if comes else -1) * pods * stay.gpus
    return found


def free_after(site: Site, stays: Sequence[Stay], only: frozenset[str]) -> IntArray:
    """(N,) GPUs free of each node when only these jobs are there."""
    index = site.index
    free = np.full(len(site.names), GPUS_PER_NODE, dtype=np.int64)
    for stay in stays:
        if stay.key in only:
            for node, pods in stay.nodes.items():
                free[index[node]] -= pods * stay.gpus
    return free
