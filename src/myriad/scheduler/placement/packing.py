"""How pods are laid on the nodes of one domain. Pure arithmetic over numpy arrays.

`capacity` says how many pods of a demand each node holds; `Packer.pack` lays all demands of a gang into one range of
nodes, greedily first (few nodes, best fit last) and, where that fails for several podsets, by an exact search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from myriad.scheduler.model import CPU, MEMORY, PODS, Gang, PlacementPolicy, PodSet
from myriad.scheduler.snapshot import BoolArray, IntArray, Snapshot

FloatArray = npt.NDArray[np.float64]

DOUBT = 1.0
"""A node penalty of this size or more is a doubt about the node: avoided wherever the tier does not get worse."""

_MAX_CHOICES = 64  # combinations of domains for bound podsets that are packed with the whole gang
_MAX_OPTIONS = 4096  # ways to mix podsets on one node before the exact search gives up


@dataclass(slots=True)
class Demand:
    """Podsets of a gang that ask for the same thing, taken together.

    Attributes:
        podsets: the podsets' names and counts, in the gang's order.
        count: pods in all.
        rows, amounts: the resources of one pod as snapshot rows; missing = a resource that no node has.
        mask: (N,) nodes that may take such a pod.
        start, limit: the narrowest rank to try and the broadest rank allowed (0 = node ... levels + 1 = cluster).
        gpus: GPUs of one pod.
        spec: the first of the podsets, for sentences.
    """

    podsets: list[tuple[str, int]]
    count: int
    rows: IntArray
    amounts: IntArray
    missing: tuple[str, ...]
    mask: BoolArray
    start: int
    limit: int
    gpus: int
    spec: PodSet
    weight: tuple[int, ...] = field(default=())


def capacity(demand: Demand, free: IntArray, mask: BoolArray) -> IntArray:
    """(n,) pods of the demand that each node holds: floor(min over resources(free / asked)), at most the count.

    ``free`` is (R, n) and ``mask`` (n,), both of the same range of nodes.
    """
    if demand.missing:
        return np.zeros(mask.shape, dtype=np.int64)
    rows = free[demand.rows]
    held = (rows // demand.amounts[:, None]).min(axis=0)
    return np.where(mask, np.clip(held, 0, demand.count), 0)


def demands_of(
    snapshot: Snapshot,
    gang: Gang,
    policy: PlacementPolicy,
    *,
    tier_rank: dict[str, int],
    use_min_count: bool = False,
) -> list[Demand]:
    """The gang's podsets as demands, the ones that ask for the same merged, the largest first. Empty ones are left out.

    ``tier_rank`` maps level names and their label keys to a rank (see `Demand`).
    """
    top = max(tier_rank.values())
    merged: dict[object, Demand] = {}
    for p in gang.podsets:
        count = p.min_count if use_min_count and p.min_count is not None else p.count
        if count <= 0:
            continue
        rank = tier_rank.get(p.topology.level, top)
        requests = tuple(sorted((r, a) for r, a in p.requests.items() if a > 0 and r != PODS))
        limit = rank if p.topology.mode == "required" else top
        start = rank if p.topology.mode == "preferred" else 0
        key = (
            requests,
            tuple(sorted(p.node_selector.items())),
            p.affinity,
            p.tolerations,
            limit,
            start,
            p.gpu_resource,
        )
        # Podsets that are each bound to a domain may go to different ones, so they are not one demand.
        known = merged.get(key if limit == top else (key, p.name))
        if known is not None:
            known.podsets.append((p.name, count))
            known.count += count
            continue
        asked = [*((r, a) for r, a in requests if r in snapshot.row), (PODS, 1)]
        merged[key if limit == top else (key, p.name)] = Demand(
            podsets=[(p.name, count)],
            count=count,
            rows=np.array([snapshot.row[r] for r, _ in asked], dtype=np.int64),
            amounts=np.array([a for _, a in asked], dtype=np.int64),
            missing=tuple(r for r, _ in requests if r not in snapshot.row),
            mask=snapshot.eligible(p, gang.pool) & located(snapshot, limit, policy),
            start=start,
            limit=limit,
            gpus=p.gpus_per_pod,
            spec=p,
            weight=(p.gpus_per_pod, int(p.requests.get(CPU, 0)), int(p.requests.get(MEMORY, 0))),
        )
    return sorted(merged.values(), key=lambda d: d.weight, reverse=True)


def located(snapshot: Snapshot, limit: int, policy: PlacementPolicy) -> BoolArray:
    """(N,) nodes whose place is known as far as the demand and the policy need it."""
    if policy.whole_location_only:
        return snapshot.located
    depth = len(snapshot.levels)
    if 0 < limit <= depth:
        level = snapshot.level[depth - limit]
        return level.valid[level.gid]
    return np.ones(len(snapshot.nodes), dtype=np.bool_)


def choose(cap: IntArray, need: int, *ties: npt.NDArray[np.generic]) -> tuple[IntArray, int]:
    """Cover ``need`` with few bins: largest first, the last one by best fit.

    Returns the bins taken whole (positions) and the bin taken in part or exactly (-1 = none). ``ties`` order bins of
    equal capacity, most important first. The caller has checked that the capacities suffice.
    """
    positions = np.arange(len(cap))
    order = np.lexsort((positions, *reversed(ties), -cap))
    sizes = cap[order]
    before = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    # The first place in the order where the rest fits into one bin.
    j = int(np.argmax(need - before <= sizes))
    rest = need - int(before[j])
    fits = order[j:][sizes[j:] >= rest]
    last = int(fits[np.lexsort((fits, *(t[fits] for t in reversed(ties)), cap[fits]))[0]])
    return order[:j], last


class Packer:
    """Lays the demands of one gang into ranges of nodes of a snapshot.

    Attributes:
        free: (R, N) free amounts.
        caps: per demand (N,) the pods that each node holds when it is the only demand.
        complete: False once an exact search was cut short, so that a failure proves nothing.
    """

    def __init__(
        self, snapshot: Snapshot, demands: Sequence[Demand], policy: PlacementPolicy, penalty: FloatArray | None
    ) -> None:
        self.snapshot = snapshot
        self.demands = list(demands)
        self.policy = policy
        self.free = snapshot.free
        self.penalty = penalty
        self.doubt: BoolArray | None = penalty >= DOUBT if penalty is not None else None
        self.caps = [capacity(d, self.free, d.mask) for d in self.demands]
        self.complete = True
        self._budget = policy.search_limit

    # -- one gang ------------------------------------------------------------------------------------------------

    def pack(self, lo: int, hi: int, rank: int) -> list[IntArray] | None:
        """Per demand (hi - lo,) pods by node of the range, or None where the gang does not fit there.

        ``rank`` is the tier of the range; demands bound to a narrower tier each get one domain of theirs inside it.
        """
        bound = [k for k, d in enumerate(self.demands) if d.limit < rank]
        if not bound:
            return self._pack_flat(range(len(self.demands)), lo, hi, rank, {})
        for tried, ranges in enumerate(self._choices(bound, lo, hi)):
            if tried >= _MAX_CHOICES:
                self.complete = False
                break
            packed = self._pack_flat(range(len(self.demands)), lo, hi, rank, ranges)
            if packed is not None:
                return packed
        return None

    def _choices(self, bound: Sequence[int], lo: int, hi: int) -> Iterator[dict[int, tuple[int, int]]]:
        """Domains for the bound demands, best fit first: every combination of ranges that can hold them together.

        Demands of one podset group share a range. A range that more than one of them would use is packed for real
        before the search goes deeper, so that a pair that cannot share a rack is found out once.
        """
        groups: dict[object, list[int]] = {}
        for k in bound:
            groups.setdefault(self.demands[k].spec.group or k, []).append(k)
        units = list(groups.values())
        options = [self._ranges(members, lo, hi) for members in units]
        shared: dict[tuple[int, int, tuple[int, ...]], bool] = {}

        def share(outer: tuple[int, int], ranges: dict[int, tuple[int, int]]) -> bool:
            inside = tuple(sorted(k for k, (a, b) in ranges.items() if outer[0] <= a and b <= outer[1]))
            if len(inside) < 2:
                return True
            key = (*outer, inside)
            if key not in shared:
                narrow = {k: ranges[k] for k in inside}
                shared[key] = self._pack_flat(inside, *outer, 1, narrow) is not None
            return shared[key]

        def extend(u: int, ranges: dict[int, tuple[int, int]]) -> Iterator[dict[int, tuple[int, int]]]:
            if u == len(units):
                yield ranges
                return
            for chosen in options[u]:
                self._budget -= 1
                if self._budget < 0:
                    self.complete = False
                    return
                more = {**ranges, **dict.fromkeys(units[u], chosen)}
                # The range itself, and every wider one chosen before that encloses it.
                around = {chosen, *(r for r in ranges.values() if r[0] <= chosen[0] and chosen[1] <= r[1])}
                if all(share(outer, more) for outer in sorted(around)):
                    yield from extend(u + 1, more)

        return extend(0, {})

    def _ranges(self, members: Sequence[int], lo: int, hi: int) -> list[tuple[int, int]]:
        """Domains of the members' narrowest required level inside the range that hold each member, fullest first."""
        limit = min(self.demands[k].limit for k in members)
        if limit == 0:
            starts = np.arange(lo, hi)
            stops = starts + 1
            inside = np.ones(hi - lo, dtype=np.bool_)
            held = [self.caps[k][lo:hi] for k in members]
        else:
            level = self.snapshot.level[len(self.snapshot.level) - limit]
            starts, stops = level.starts, level.stops
            inside = (starts >= lo) & (stops <= hi) & level.valid
            held = [level.sums(self.caps[k]) for k in members]
        for k, sums in zip(members, held, strict=True):
            inside = inside & (sums >= self.demands[k].count)
        fits = sorted((sum(int(h[g]) for h in held), int(starts[g]), int(stops[g])) for g in np.flatnonzero(inside))
        return [(a, b) for _, a, b in fits]

    def _pack_flat(
        self, chosen: Sequence[int], lo: int, hi: int, rank: int, ranges: dict[int, tuple[int, int]]
    ) -> list[IntArray] | None:
        """Pack the chosen demands into lo..hi, those in ``ranges`` into their own part of it."""
        free = self.free[:, lo:hi].copy()
        out: list[IntArray] = []
        used: BoolArray | None = None
        masks = []
        for k in chosen:
            mask = self.demands[k].mask[lo:hi]
            if k in ranges:
                a, b = ranges[k]
                mask = mask.copy()
                mask[: a - lo] = False
                mask[b - lo :] = False
            masks.append(mask)
        for k, mask in zip(chosen, masks, strict=True):
            d = self.demands[k]
            cap = self.caps[k][lo:hi] if used is None and k not in ranges else capacity(d, free, mask)
            if int(cap.sum()) < d.count:
                return self._pack_exact(chosen, lo, hi, masks) if len(chosen) > 1 else None
            counts = self._near(cap, d.count, lo, hi, rank, used, free, d)
            out.append(counts)
            free[d.rows] -= d.amounts[:, None] * counts[None, :]
            used = counts > 0 if used is None else used | (counts > 0)
        return out

    def _near(
        self,
        cap: IntArray,
        need: int,
        lo: int,
        hi: int,
        rank: int,
        used: BoolArray | None,
        free: IntArray,
        d: Demand,
    ) -> IntArray:
        """Place one demand, close to what the gang already has: its nodes, then its racks, its blocks, ..."""
        counts = np.zeros(hi - lo, dtype=np.int64)
        key = int(np.argmax(d.amounts)) if not d.gpus else int(np.flatnonzero(d.rows == self._gpu_row(d))[0])
        waste = free[d.rows[key]] - cap * int(d.amounts[key])
        for near in self._rings(lo, hi, rank, used):
            for sound in (True, False):
                if need == 0:
                    return counts
                able = cap - counts
                if near is not None:
                    able = np.where(near, able, 0)
                if sound:
                    if self.doubt is None:
                        continue
                    able = np.where(self.doubt[lo:hi], 0, able)
                take = min(need, int(able.sum()))
                if take:
                    counts += self._spread(able, take, lo, hi, max(rank, 1), waste)
                    need -= take
        return counts

    def _gpu_row(self, d: Demand) -> int:
        return self.snapshot.row[d.spec.gpu_resource]

    def _rings(self, lo: int, hi: int, rank: int, used: BoolArray | None) -> Iterator[BoolArray | None]:
        if used is not None:
            yield used
            for level in reversed(self.snapshot.level[max(0, len(self.snapshot.level) - rank + 1) :]):
                gid = level.gid[lo:hi]
                ring = np.isin(gid, gid[used])
                yield ring
        yield None

    def _spread(self, able: IntArray, need: int, lo: int, hi: int, rank: int, waste: IntArray) -> IntArray:
        """(hi - lo,) pods by node: as few child domains as possible, then in the last of them again, down to nodes."""
        counts = np.zeros(hi - lo, dtype=np.int64)
        a, b = 0, hi - lo
        levels = self.snapshot.level
        depth = len(levels) - rank + 1  # index of the level whose domains are this domain's children
        while depth < len(levels):
            level = levels[depth]
            g0, g1 = int(level.gid[lo + a]), int(level.gid[lo + b - 1]) + 1
            if g1 - g0 > 1:
                starts = np.maximum(level.starts[g0:g1] - lo, a)
                sums = np.add.reduceat(able[a:b], starts - a)
                whole, last = choose(sums, need)
                stops = np.append(starts[1:], b)
                for g in whole:
                    s, e = int(starts[g]), int(stops[g])
                    counts[s:e] = able[s:e]
                    need -= int(sums[g])
                a, b = int(starts[last]), int(stops[last])
                if need == int(sums[last]):
                    counts[a:b] = able[a:b]
                    return counts
            depth += 1
        ties: list[npt.NDArray[np.generic]] = [waste[a:b]]
        if self.penalty is not None:
            ties.insert(0, self.penalty[lo + a : lo + b])
        whole, last = choose(able[a:b], need, *ties)
        counts[a + whole] = able[a + whole]
        counts[a + last] = need - int(able[a + whole].sum())
        return counts

    # -- exact search --------------------------------------------------------------------------------------------

    def _pack_exact(self, chosen: Sequence[int], lo: int, hi: int, masks: Sequence[BoolArray]) -> list[IntArray] | None:
        """Node by node, keep every vector of pods placed so far that no other vector equals or exceeds.

        Exact for any mix of resources; bounded by the policy's search_limit (then `complete` turns False).
        """
        demands = [self.demands[k] for k in chosen]
        goal = tuple(d.count for d in demands)
        alone = np.stack([capacity(d, self.free[:, lo:hi], m) for d, m in zip(demands, masks, strict=True)])
        if (alone.sum(axis=1) < np.array(goal)).any():
            return None
        nodes = np.flatnonzero(alone.any(axis=0))
        nodes = nodes[np.lexsort((nodes, *(-row[nodes] for row in reversed(alone))))]
        rows = np.unique(np.concatenate([d.rows for d in demands]))
        cached: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        start = (0,) * len(goal)
        frontier: list[tuple[int, ...]] = [start]
        back: list[dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]]] = []
        for i in nodes:
            column = self.free[:, lo + int(i)]
            key = (*column[rows].tolist(), *(bool(m[i]) for m in masks))
            options = cached.get(key)
            if options is None:
                options = cached[key] = self._options(demands, column, alone[:, i])
            step: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]] = {}
            for state in frontier:
                for option in options:
                    new = tuple(min(s + o, g) for s, o, g in zip(state, option, goal, strict=True))
                    step.setdefault(new, (state, option))
                    self._budget -= 1
                if self._budget < 0:
                    self.complete = False
                    return None
            back.append(step)
            if goal in step:
                return self._unwind(back, goal, nodes, hi - lo)
            frontier = _undominated(step)
        return None

    def _options(self, demands: Sequence[Demand], column: IntArray, most: IntArray) -> list[tuple[int, ...]]:
        """Mixes of pods that fill one node, none of them smaller than another in every podset."""
        mixes: list[tuple[int, ...]] = []

        def extend(k: int, left: IntArray, chosen: tuple[int, ...]) -> None:
            if len(mixes) > _MAX_OPTIONS:
                self.complete = False
                return
            d = demands[k]
            room = min(int((left[d.rows] // d.amounts).min()), int(most[k]))
            if k == len(demands) - 1:
                mixes.append((*chosen, max(room, 0)))
                return
            for n in range(max(room, 0), -1, -1):
                rest = left.copy()
                rest[d.rows] -= d.amounts * n
                extend(k + 1, rest, (*chosen, n))

        extend(0, column, ())
        return _undominated(mixes)

    def _unwind(
        self,
        back: Sequence[dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]]],
        goal: tuple[int, ...],
        nodes: IntArray,
        width: int,
    ) -> list[IntArray]:
        out = [np.zeros(width, dtype=np.int64) for _ in goal]
        left = list(goal)
        state = goal
        for step, i in zip(reversed(back), reversed(nodes[: len(back)].tolist()), strict=True):
            state, option = step[state]
            for k, n in enumerate(option):
                # What came before covers at least `state`, so only the difference is needed here.
                take = min(n, max(0, left[k] - state[k]))
                out[k][i] = take
                left[k] -= take
        return out


def _undominated(states: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    kept: list[tuple[int, ...]] = []
    for s in sorted(set(states), reverse=True):
        if not any(all(a >= b for a, b in zip(k, s, strict=True)) for k in kept):
            kept.append(s)
    return kept
