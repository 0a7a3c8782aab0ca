"""A rollout played through before a byte moves: how long, at which rates, and what a few bad nodes do to it. Pure.

Discrete events over fluid flows. Every pull is a flow through two links, the uplink of its rack and its registry; rates
are max-min fair under the links' capacities and under the most that one node draws. Nodes of one rack that pull from
one registry (a cell) have the same rate, so a node's end is an amount of flow of its cell, known when it starts: an
event costs O(log n) for the heaps and one vector operation over the cells, whatever the number of nodes.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from myriad.prewarm import waves
from myriad.prewarm.limits import Limits
from myriad.prewarm.verdict import NodeOutcome, may_go_on
from myriad.prewarm.waves import Node
from myriad.prewarm.words import seconds_text

Strategy = Literal["waves", "all-at-once", "one-by-one"]
STRATEGIES: tuple[Strategy, ...] = ("waves", "all-at-once", "one-by-one")
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_EPS = 1e-9


@dataclass(frozen=True, slots=True)
class Scene:
    """What is rolled out, and over which network.

    Attributes:
        image_gb: compressed bytes that each node fetches, in GB.
        registry_capacity_gbit, rack_capacity_gbit: what the links carry; the limits are the part a rollout may take.
        tail_s: time after the last byte: unpacking the rest, pinning, the proof, and the way to the node and back.
        stall_s: after so long a pull that stands still is given up.
        lost_s: after so long a node that does not answer is given up.
        bad: nodes that do not get the image, with how: `refused` (no room, at once), `stalled` (in the middle of the
            pull), `unreachable`, or `broken` (the image does not start there, after the whole pull).
        workers: nodes that are worked on at a time, whatever the slots are (forks of the controller).
    """

    image_gb: float = 10.0
    registry_capacity_gbit: float = 40.0
    rack_capacity_gbit: float = 20.0
    tail_s: float = 20.0
    stall_s: float = 120.0
    lost_s: float = 10.0
    bad: dict[str, str] = field(default_factory=dict)
    workers: int = 400


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a rollout went.

    Attributes:
        strategy: which one.
        total_s: until the last node was done, or until it stopped.
        warm, failed, untouched: nodes.
        peak_rack_gbit, peak_registry_gbit: the most that one of them carried.
        over_rack_s, over_registry_s: how long some rack, some registry carried more than its limit.
        p50_s, p99_s: how long one pull took, from its first byte to warm.
        wave_ends_s: when each wave ended.
        stopped: why no further wave began; empty where all did.
        events: what the simulation worked through.
    """

    strategy: str
    total_s: float
    warm: int
    failed: int
    untouched: int
    peak_rack_gbit: float
    peak_registry_gbit: float
    over_rack_s: float
    over_registry_s: float
    p50_s: float
    p99_s: float
    wave_ends_s: tuple[float, ...]
    stopped: str
    events: int

    def document(self) -> dict[str, Any]:
        """For JSON, with numbers of a readable length."""
        return {
            name: [round(one, 1) for one in value]
            if isinstance(value := getattr(self, name), tuple)
            else round(value, 3)
            if isinstance(value, float)
            else value
            for name in self.__slots__
        }


def grid(nodes: int, *, racks: int, blocks: int) -> tuple[Node, ...]:
    """A site of equal racks in equal blocks, one registry a block: names, racks and registries."""
    result = []
    for k in range(nodes):
        rack = k * racks // nodes
        block = rack * blocks // racks
        result.append(Node(f"gpu{k + 1:05d}", f"b{block + 1:02d}/r{rack + 1:03d}", f"registry-b{block + 1:02d}"))
    return tuple(result)


def bad_nodes(nodes: Sequence[Node], share: float, *, seed: str = "") -> dict[str, str]:
    """That share of the nodes, scattered: a third each without room, standing still, and out of reach."""
    order = waves.spread(nodes, seed=f"bad {seed}")
    kinds = ("refused", "stalled", "unreachable")
    return {node.name: kinds[k % 3] for k, node in enumerate(order[: round(share * len(nodes))])}


def simulate(
    nodes: Sequence[Node], limits: Limits, scene: Scene, strategy: Strategy = "waves", *, seed: str = ""
) -> Outcome:
    """Play one rollout through.

    Args:
        nodes: those that wait.
        limits: caps; only `waves` keeps them.
        scene: what and where.
        strategy: `waves`; `all-at-once`, where every node begins at the first second; `one-by-one`.
        seed: of the order and the jitter.
    """
    if strategy == "waves":
        rollout = list(waves.plan(nodes, seed=seed))
        slots: tuple[float, float, float] = (limits.registry_slots, limits.rack_slots, scene.workers)
    elif strategy == "all-at-once":
        rollout, slots = [tuple(nodes)], (math.inf, math.inf, math.inf)
    else:
        rollout, slots = [waves.spread(nodes, seed=seed)], (1, 1, 1)
    network = _Network(nodes, limits, scene)
    jitter_s = limits.jitter_s if strategy == "waves" else 0.0
    outcomes: list[NodeOutcome] = []
    stopped = ""
    wave_ends: list[float] = []
    for number, wave in enumerate(rollout):
        outcomes += network.run(wave, slots, jitter_s, seed)
        wave_ends.append(network.now)
        if strategy == "waves" and number + 1 < len(rollout):
            stopped = may_go_on(outcomes, limits, first=number == 0)
            if stopped:
                break
    warm = sum(one.good for one in outcomes)
    took = np.array([one.seconds for one in outcomes if one.good] or [0.0])
    return Outcome(
        strategy=strategy,
        total_s=network.now,
        warm=warm,
        failed=len(outcomes) - warm,
        untouched=len(nodes) - len(outcomes),
        peak_rack_gbit=network.peak_rack,
        peak_registry_gbit=network.peak_registry,
        over_rack_s=network.over_rack_s,
        over_registry_s=network.over_registry_s,
        p50_s=float(np.percentile(took, 50)),
        p99_s=float(np.percentile(took, 99)),
        wave_ends_s=tuple(wave_ends),
        stopped=stopped.split("\n")[0],
        events=network.events,
    )


class _Network:
    """Links, cells and the clock. Rates in Gbit/s, amounts in Gbit, times in seconds."""

    def __init__(self, nodes: Sequence[Node], limits: Limits, scene: Scene) -> None:
        self._limits, self._scene = limits, scene
        racks = {name: k for k, name in enumerate(sorted({node.rack for node in nodes}))}
        registries = {name: k for k, name in enumerate(sorted({node.registry for node in nodes}))}
        pairs = sorted({(racks[node.rack], registries[node.registry]) for node in nodes})
        index = {pair: k for k, pair in enumerate(pairs)}
        self._cell = {node.name: index[racks[node.rack], registries[node.registry]] for node in nodes}
        self._rack: Ints = np.array([rack for rack, _ in pairs], dtype=np.int64)
        self._registry: Ints = np.array([registry for _, registry in pairs], dtype=np.int64)
        self._racks, self._registries = len(racks), len(registries)
        self._flows: Ints = np.zeros(len(pairs), dtype=np.int64)
        self._volume: Floats = np.zeros(len(pairs))
        self._goal: Floats = np.full(len(pairs), np.inf)
        self._rate: Floats = np.zeros(len(pairs))
        self._ends: list[list[tuple[float, str]]] = [[] for _ in pairs]
        self._timers: list[tuple[float, int, str, str]] = []
        self._began: dict[str, float] = {}
        self._kept: set[str] = set()
        self.now = 0.0
        self.events = 0
        self.peak_rack = self.peak_registry = 0.0
        self.over_rack_s = self.over_registry_s = 0.0

    def run(
        self, wave: Sequence[Node], slots: tuple[float, float, float], jitter_s: float, seed: str
    ) -> list[NodeOutcome]:
        """One wave to its end."""
        queues: list[deque[tuple[int, str]]] = [deque() for _ in self._ends]
        for order, node in enumerate(wave):
            queues[self._cell[node.name]].append((order, node.name))
        heads: Floats = np.array([queue[0][0] if queue else np.inf for queue in queues], dtype=np.float64)
        free_registry: Floats = np.full(self._registries, slots[0], dtype=np.float64)
        free_rack: Floats = np.full(self._racks, slots[1], dtype=np.float64)
        workers = slots[2]
        done: list[NodeOutcome] = []
        while len(done) < len(wave):
            while workers > 0:
                ready = np.where((free_registry[self._registry] > 0) & (free_rack[self._rack] > 0), heads, np.inf)
                cell = int(np.argmin(ready))
                if not np.isfinite(ready[cell]):
                    break
                _, name = queues[cell].popleft()
                heads[cell] = queues[cell][0][0] if queues[cell] else np.inf
                workers -= 1
                free_registry[self._registry[cell]] -= 1
                free_rack[self._rack[cell]] -= 1
                self._timer(waves.jitter(name, jitter_s, seed=seed), "knock", name)
            self._share()
            for outcome in self._step():
                done.append(outcome)
                cell = self._cell[outcome.node]
                workers += 1
                free_registry[self._registry[cell]] += 1
                free_rack[self._rack[cell]] += 1
        return done

    def _timer(self, after_s: float, what: str, name: str) -> None:
        heapq.heappush(self._timers, (self.now + after_s, self.events, what, name))
        self.events += 1

    def _share(self) -> None:
        """Max-min fair rates by filling: all flows rise together, and stop where their link is full."""
        flows = self._flows.astype(np.float64)
        rate = np.where(flows > 0, self._limits.node_gbit, 0.0)
        rack = self._carried(self._rack, flows * rate, self._racks)
        registry = self._carried(self._registry, flows * rate, self._registries)
        scene = self._scene
        if (rack > scene.rack_capacity_gbit + _EPS).any() or (registry > scene.registry_capacity_gbit + _EPS).any():
            rate = self._filled(flows)
            rack = self._carried(self._rack, flows * rate, self._racks)
            registry = self._carried(self._registry, flows * rate, self._registries)
        self._rate = rate
        self._loads = (float(rack.max(initial=0.0)), float(registry.max(initial=0.0)))
        self.peak_rack = max(self.peak_rack, self._loads[0])
        self.peak_registry = max(self.peak_registry, self._loads[1])

    def _carried(self, link: Ints, load: Floats, links: int) -> Floats:
        return cast(Floats, np.bincount(link, weights=load, minlength=links))

    def _filled(self, flows: Floats) -> Floats:
        scene, limits = self._scene, self._limits
        rate = np.zeros(len(flows))
        rising = flows > 0
        left = {"rack": np.full(self._racks, scene.rack_capacity_gbit),
                "registry": np.full(self._registries, scene.registry_capacity_gbit)}  # fmt: skip
        links = {"rack": self._rack, "registry": self._registry}
        while rising.any():
            step = limits.node_gbit - float(rate[rising].max())
            counts = {}
            for name, link in links.items():
                counts[name] = self._carried(link, np.where(rising, flows, 0.0), len(left[name]))
                busy = counts[name] > 0
                step = min(step, float((left[name][busy] / counts[name][busy]).min()))
            rate[rising] += step
            full = rate >= limits.node_gbit - _EPS
            for name, link in links.items():
                left[name] = np.maximum(0.0, left[name] - step * counts[name])
                full |= ((left[name] <= _EPS) & (counts[name] > 0))[link]
            rising &= ~full
        return rate

    def _step(self) -> list[NodeOutcome]:
        """To the next event, and what it brings."""
        with np.errstate(divide="ignore", invalid="ignore"):
            wait = np.where(self._rate > 0, (self._goal - self._volume) / self._rate, np.inf)
        cell = int(np.argmin(wait)) if len(wait) else 0
        flow_s = max(0.0, float(wait[cell]))
        timer_s = max(0.0, self._timers[0][0] - self.now) if self._timers else np.inf
        passed = min(flow_s, timer_s)
        self.now += passed
        self._volume += self._rate * passed
        limits = self._limits
        self.over_rack_s += passed if self._loads[0] > limits.rack_gbit + _EPS else 0.0
        self.over_registry_s += passed if self._loads[1] > limits.registry_gbit + _EPS else 0.0
        self.events += 1
        if timer_s <= flow_s:
            _, _, what, name = heapq.heappop(self._timers)
            return self._rang(what, name)
        _, name = heapq.heappop(self._ends[cell])
        self._flows[cell] -= 1
        self._aim(cell)
        stalled = self._scene.bad.get(name) == "stalled"
        self._timer(self._scene.stall_s if stalled else self._scene.tail_s, "end", name)
        return []

    def _rang(self, what: str, name: str) -> list[NodeOutcome]:
        fate = self._scene.bad.get(name, "")
        if what == "knock":
            self._began[name] = self.now
            if fate in ("refused", "unreachable"):
                self._timer(self._scene.lost_s if fate == "unreachable" else 1.0, "end", name)
                return []
            amount = self._scene.image_gb * 8 * (0.5 if fate == "stalled" else 1.0)
            cell = self._cell[name]
            heapq.heappush(self._ends[cell], (self._volume[cell] + amount, name))
            self._flows[cell] += 1
            self._aim(cell)
            return []
        words = {
            "refused": "no room for it",
            "stalled": f"nothing moved in {self._scene.stall_s:.0f} s",
            "unreachable": "it does not answer",
            "broken": "no container starts from it",
        }
        outcome = {"": "pulled", "refused": "refused", "unreachable": "unreachable"}.get(fate, "failed")
        took = self.now - self._began[name]
        return [NodeOutcome(name, outcome, sentence=words.get(fate, ""), seconds=took)]

    def _aim(self, cell: int) -> None:
        self._goal[cell] = self._ends[cell][0][0] if self._ends[cell] else np.inf


def table(outcomes: Sequence[Outcome], limits: Limits) -> list[str]:
    """The strategies side by side, as lines."""
    heads = ("strategy", "total", "one pull p50/p99", f"rack peak (cap {limits.rack_gbit:g} Gbit/s)",
             f"registry peak (cap {limits.registry_gbit:g} Gbit/s)", "warm", "failed", "untouched")  # fmt: skip
    rows = [heads]
    for one in outcomes:
        over = [f" over it {seconds_text(s)}" if s else "" for s in (one.over_rack_s, one.over_registry_s)]
        rows.append(
            (one.strategy, seconds_text(one.total_s), f"{seconds_text(one.p50_s)} / {seconds_text(one.p99_s)}",
             f"{one.peak_rack_gbit:.3g}{over[0]}", f"{one.peak_registry_gbit:.3g}{over[1]}", str(one.warm),
             str(one.failed), str(one.untouched))
        )  # fmt: skip
    widths = [max(len(row[k]) for row in rows) for k in range(len(heads))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
