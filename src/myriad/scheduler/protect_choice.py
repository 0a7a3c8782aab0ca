"""Which gangs get a protected domain, and which nodes it is made of. Pure; see `myriad.scheduler.protect`.

The nodes are those of one domain that are free soonest by the limits of the jobs on them, as few as hold the gang.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from myriad.scheduler.brake import NOT_READY_LEAST, NOT_READY_SHARE
from myriad.scheduler.model import Gang, PlacementPolicy, Plan, PodUse, is_gpu_resource
from myriad.scheduler.placement import plan
from myriad.scheduler.placement.packing import demands_of
from myriad.scheduler.placement.tiers import ranks
from myriad.scheduler.placement.views import drained
from myriad.scheduler.policy import ProtectionPolicy
from myriad.scheduler.protect import Protection
from myriad.scheduler.round import tolerating
from myriad.scheduler.snapshot import BoolArray, IntArray, Snapshot

_SLACK_S = 900.0
"""A protection that has not let its gang in so long after the last holder's limit and grace is given up."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A gang that waits.

    Attributes:
        gang: as it is planned, without tolerations of ours.
        workload: `namespace/name` of its Workload.
        waits_s: since it came or was last evicted.
        quota: the most GPUs that its queue could hold, by nominal quota and borrowing; None = unknown.
        given_up_s: how long ago a protection of it expired; None = never.
        steerable: whether our check's answer may carry tolerations for it.
        overtaken: whether a job that came later, of no higher priority, holds GPUs of its pool. Who is not overtaken
            does not starve: it waits in a queue that moves.
    """

    gang: Gang
    workload: str
    waits_s: float
    quota: int | None = None
    given_up_s: float | None = None
    steerable: bool = True
    overtaken: bool = True


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a gang that waited long enough gets no domain: a sentence for its owner."""

    uid: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done.

    Attributes:
        protect: protections as they should stand: new ones, and ones that need other nodes.
        release: protections that end, each with the reason.
        refused: gangs that waited long enough and get none.
    """

    protect: tuple[Protection, ...] = ()
    release: tuple[tuple[Protection, str], ...] = ()
    refused: tuple[Refused, ...] = ()


def decide(
    snapshot: Snapshot,
    waiting: Sequence[Waiter],
    ends: Mapping[str, float],
    stands: Mapping[str, Protection],
    policy: ProtectionPolicy,
    *,
    now: float,
    grace_s: float,
    placement: PlacementPolicy | None = None,
) -> Decision:
    """What to protect and what to release.

    Args:
        snapshot: the cluster, taints as they stand.
        waiting: every waiting gang of the cluster.
        ends: by uid of a pod in the snapshot, when its job's limit ends it. Pods that are missing here have none.
        stands: `standing` of the nodes.
        policy: the site's bounds.
        now: the time.
        grace_s: what an evicted pod may take to end.
        placement: the planner's inputs.
    """
    placement = placement or PlacementPolicy()
    by_uid = {w.gang.uid: w for w in waiting}
    release: list[tuple[Protection, str]] = []
    protect: list[Protection] = []
    kept: dict[str, Protection] = {}
    for uid, protection in stands.items():
        why = _ended(protection, by_uid.get(uid), policy, now)
        if why:
            release.append((protection, why))
        else:
            kept[uid] = protection
    # Those that are to go: the waiting ones that waited longest of the highest priority stay first.
    order = sorted(kept.values(), key=lambda p: (-by_uid[p.uid].gang.priority, p.since, p.uid))
    for extra in order[max(0, policy.max_domains) :]:
        release.append((extra, "the site keeps fewer domains now (protection.max_domains)"))
        del kept[extra.uid]
    field: _Field | None = None
    for uid, protection in kept.items():
        field = field or _Field(snapshot, ends, now)
        topped = field.topped_up(protection, by_uid[uid].gang, policy, placement, grace_s)
        if topped is not None:
            protect.append(topped)
    refused: list[Refused] = []
    starving = [
        w
        for w in waiting
        if policy.max_domains
        and w.waits_s >= policy.after_s
        and w.overtaken
        and w.steerable
        and w.gang.uid not in kept
        and _takes_a_node(snapshot, w.gang)
        # After one that did not help, the next is tried as late as the first.
        and (w.given_up_s is None or w.given_up_s >= policy.after_s)
    ]
    for w in sorted(starving, key=lambda w: (-w.gang.priority, -w.waits_s, w.gang.uid)):
        if isinstance(plan(snapshot, w.gang, placement), Plan):
            continue  # it has a place: it waits for quota, or starts in a moment
        if (silent := _silent(snapshot)) is not None:
            refused.append(Refused(w.gang.uid, silent))
            continue
        field = field or _Field(snapshot, ends, now)
        outcome = field.choose(w, policy, placement, grace_s, kept=tuple(kept.values()))
        if isinstance(outcome, Protection):
            kept[outcome.uid] = outcome
            protect.append(outcome)
        else:
            refused.append(Refused(w.gang.uid, outcome))
    return Decision(tuple(protect), tuple(release), tuple(refused))


def _ended(protection: Protection, waiter: Waiter | None, policy: ProtectionPolicy, now: float) -> str:
    if waiter is None:
        return "its gang started, ended or was deleted"
    if not policy.max_domains:
        return "the site protects no domains now (protection.max_domains)"
    if now >= protection.expires:
        return "it did not let its gang in within the time that limits and grace allow"
    return ""


def _silent(snapshot: Snapshot) -> str | None:
    """Many nodes that are not ready together are rarely many dead nodes: what is chosen now would be chosen wrongly."""
    silent, every = int((~snapshot.ready).sum()), len(snapshot.nodes)
    if silent < NOT_READY_LEAST or silent < NOT_READY_SHARE * every:
        return None
    return f"{silent} of {every} nodes are not ready: no domain is chosen until it is clear what is wrong"


def _takes_a_node(snapshot: Snapshot, gang: Gang) -> bool:
    """Whether a gang needs a whole node or more: what is smaller finds its place as soon as anything ends."""
    sizes = [snapshot.amounts(snapshot.alloc, p.gpu_resource) for p in gang.podsets if p.gpus]
    return bool(sizes) and bool(snapshot.nodes) and gang.gpus >= max(1, *(int(s.max()) for s in sizes))


class _Field:
    """The nodes as a choice of domains: when each is free by the limits of those that hold it."""

    def __init__(self, snapshot: Snapshot, ends: Mapping[str, float], now: float) -> None:
        self.snapshot = snapshot
        self.now = now
        n = len(snapshot.nodes)
        self.end = np.full(n, now, dtype=np.float64)
        """(N,) when the last GPU pod of each node must have been told to end; infinity where one has no limit."""
        leaving: list[PodUse] = []
        for pod in snapshot.pods():
            i = snapshot.index.get(pod.node)
            if i is None or pod.permanent or not any(a and is_gpu_resource(r) for r, a in pod.requests.items()):
                continue
            # What ends already needs its grace alone.
            end = now if pod.terminating else ends.get(pod.uid, math.inf)
            self.end[i] = max(self.end[i], end)
            if end < math.inf:
                leaving.append(pod)
        self.empty = drained(snapshot, [pod.uid for pod in leaving])

    def choose(
        self,
        waiter: Waiter,
        policy: ProtectionPolicy,
        placement: PlacementPolicy,
        grace_s: float,
        *,
        kept: Sequence[Protection],
    ) -> Protection | str:
        """A domain for a gang, or the sentence why there is none."""
        gang = waiter.gang
        if len(kept) >= policy.max_domains:
            names = ", ".join(p.job for p in kept)
            return f"protected domains are used up ({policy.max_domains}): one is kept for {names}"
        if waiter.quota is not None and gang.gpus > waiter.quota:
            return (
                f"a protected domain would not help: its queue can hold {waiter.quota} GPUs by quota and borrowing, "
                f"{gang.gpus} are asked"
            )
        in_use = {name for p in kept for name in p.nodes}
        others = self._gpus(sorted(in_use), gang)
        pool = int(self._alloc(gang)[self._of_pool(gang)].sum())
        allowed = int(policy.max_share * pool)
        if others + gang.gpus > allowed:
            return (
                f"{gang.gpus} GPUs are more than may be protected at once: {allowed} of {pool} GPUs "
                f"(protection.max_share {policy.max_share:g}), {others} are"
            )
        open_now = ~np.isin(
            np.arange(len(self.end)), [self.snapshot.index[n] for n in in_use if n in self.snapshot.index]
        )
        best: tuple[float, float, tuple[str, ...]] | None = None
        for domain in self._domains(gang, policy, placement):
            nodes = self._soonest(gang, domain & open_now, placement)
            if nodes is None:
                continue
            ends = self.end[[self.snapshot.index[n] for n in nodes]]
            until = float(ends.max())
            found = (until, float((until - ends).sum()), nodes)
            if best is None or found < best:
                best = found
        if best is None:
            return self._no_domain(gang)
        if self._gpus(best[2], gang) + others > allowed:
            return (
                f"the {len(best[2])} nodes that it needs are more than may be protected at once: {allowed} of {pool} "
                f"GPUs (protection.max_share {policy.max_share:g})"
            )
        until = best[0] + grace_s
        return Protection(
            uid=gang.uid,
            workload=waiter.workload,
            job=f"{gang.namespace}/{gang.name}",
            nodes=tuple(sorted(best[2])),
            since=self.now,
            until=until,
            expires=until + max(_SLACK_S, 2 * grace_s),
        )

    def topped_up(
        self, protection: Protection, gang: Gang, policy: ProtectionPolicy, placement: PlacementPolicy, grace_s: float
    ) -> Protection | None:
        """The protection with other nodes where those that it has (some died, or were cordoned) do not suffice."""
        own = tolerating(gang, [protection.toleration])
        have = self._mask(protection.nodes)
        if self._fits(own, have, placement):
            return None
        for domain in self._domains(own, policy, placement, around=protection.nodes):
            nodes = self._soonest(own, domain | have, placement, first=have)
            if nodes is not None:
                until = float(self.end[self._mask(nodes)].max()) + grace_s
                until = max(until, protection.until)
                expires = until + max(_SLACK_S, 2 * grace_s)
                return replace(protection, nodes=tuple(sorted({*nodes})), until=until, expires=expires)
        return None  # it waits for its nodes to come back, or expires

    def _domains(
        self, gang: Gang, policy: ProtectionPolicy, placement: PlacementPolicy, around: Sequence[str] = ()
    ) -> list[BoolArray]:
        """Masks of the domains of the narrowest tier of which one could hold the gang when its holders are gone.

        The search starts at the site's level (`policy.level`), or at the gang's own where it asks for a narrower one.
        """
        snapshot = self.snapshot
        rank_of = ranks(snapshot.levels)
        top = len(snapshot.levels) + 1
        demands = demands_of(snapshot, gang, placement, tier_rank=rank_of)
        if not demands:
            return []
        limit = demands[0].limit if len(demands) == 1 else top
        asked = [rank_of[p.topology.level] for p in gang.podsets if p.topology.mode != "unconstrained"
                 and p.topology.level in rank_of]  # fmt: skip
        start = min([rank_of.get(policy.level, top - 1), *asked])
        for rank in range(min(start, limit), limit + 1):
            if rank > len(snapshot.levels):
                masks = [np.ones(len(snapshot.nodes), dtype=np.bool_)]
            elif rank == 0:
                masks = [np.arange(len(snapshot.nodes)) == i for i in range(len(snapshot.nodes))]
            else:
                level = snapshot.level[len(snapshot.levels) - rank]
                masks = [level.gid == g for g in np.flatnonzero(level.valid)]
            if around:
                near = self._mask(around)
                masks = [m for m in masks if (m & near).any()]
            room = [m for m in masks if self._has_room(gang, m & (self.end < math.inf), placement)]
            if room:
                return room
        return []

    def _has_room(self, gang: Gang, mask: BoolArray, placement: PlacementPolicy) -> bool:
        """A cheap necessary test: each demand alone has room."""
        rank_of = ranks(self.snapshot.levels)
        free = self.empty.free
        for d in demands_of(self.empty, gang, placement, tier_rank=rank_of):
            if d.missing:
                return False
            held = np.where(d.mask & mask, np.clip((free[d.rows] // d.amounts[:, None]).min(axis=0), 0, d.count), 0)
            if int(held.sum()) < d.count:
                return False
        return True

    def _soonest(
        self, gang: Gang, mask: BoolArray, placement: PlacementPolicy, first: BoolArray | None = None
    ) -> tuple[str, ...] | None:
        """The fewest nodes of a domain, those free soonest first, on which the whole gang has a place once drained."""
        eligible = np.logical_or.reduce([self.empty.eligible(p, gang.pool) for p in gang.podsets if p.count])
        usable = np.flatnonzero(mask & eligible & (self.end < math.inf))
        rank = np.zeros(len(self.end)) if first is None else np.where(first, 0, 1)
        order = usable[np.lexsort((usable, self.end[usable], rank[usable]))]
        if not self._fits(gang, self._of(order), placement):
            return None
        lo, hi = 1, len(order)
        while lo < hi:
            middle = (lo + hi) // 2
            if self._fits(gang, self._of(order[:middle]), placement):
                hi = middle
            else:
                lo = middle + 1
        outcome = self._planned(gang, self._of(order[:lo]), placement)
        return tuple(outcome.nodes) if outcome is not None else None

    def _fits(self, gang: Gang, mask: BoolArray, placement: PlacementPolicy) -> bool:
        return self._planned(gang, mask, placement) is not None

    def _planned(self, gang: Gang, mask: BoolArray, placement: PlacementPolicy) -> Plan | None:
        if not self._has_room(gang, mask, placement):
            return None
        trial = self.empty.clone()
        trial.cordoned |= ~mask
        outcome = plan(trial, gang, placement)
        return outcome if isinstance(outcome, Plan) else None

    def _of(self, positions: IntArray) -> BoolArray:
        mask = np.zeros(len(self.end), dtype=np.bool_)
        mask[positions] = True
        return mask

    def _mask(self, names: Iterable[str]) -> BoolArray:
        known = [self.snapshot.index[n] for n in names if n in self.snapshot.index]
        return self._of(np.array(known, dtype=np.int64))

    def _alloc(self, gang: Gang) -> IntArray:
        resource = next((p.gpu_resource for p in gang.podsets if p.gpus), "")
        return self.snapshot.amounts(self.snapshot.alloc, resource)

    def _of_pool(self, gang: Gang) -> BoolArray:
        return np.array([not gang.pool or node.pool == gang.pool for node in self.snapshot.nodes], dtype=np.bool_)

    def _gpus(self, names: Sequence[str], gang: Gang) -> int:
        return int(self._alloc(gang)[self._mask(names) & self._of_pool(gang)].sum())

    def _no_domain(self, gang: Gang) -> str:
        unlimited = int((self._of_pool(gang) & np.isinf(self.end)).sum())
        if unlimited:
            return (
                f"no domain would be free by limits: {unlimited} nodes run jobs without a time limit "
                "(kueue.x-k8s.io/max-exec-time-seconds)"
            )
        return "no domain of this cluster holds the gang, even when every job in it has ended"
