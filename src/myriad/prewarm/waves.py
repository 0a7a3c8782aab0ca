"""Who goes in which wave, and in which order. Pure; the same seed gives the same plan."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SHARES = (0.01, 0.10, 1.0)
"""Part of the nodes that is done when a wave ends, after the first one, which is a single node."""
SMALL = 10
"""A site with so few nodes has two waves: 1 % of it is no node, and a wave for each node tests nothing new."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node that waits for images.

    Attributes:
        name: its name.
        rack: its place, as one text; nodes of one rack share an uplink.
        registry: address of the registry that it pulls from first.
    """

    name: str
    rack: str = ""
    registry: str = ""


def ends(total: int) -> tuple[int, ...]:
    """How many nodes are done when each wave ends: 1, 1 %, 10 %, all. Each wave has at least one node more."""
    if total <= 0:
        return ()
    if total <= SMALL:
        return (1, total) if total > 1 else (1,)
    found = [1]
    for share in SHARES:
        end = min(total, math.ceil(total * share))
        if end > found[-1]:
            found.append(end)
    return tuple(found)


def plan(nodes: Sequence[Node], *, warm: int = 0, seed: str = "") -> tuple[tuple[Node, ...], ...]:
    """The waves of the nodes that wait.

    A rollout that was broken off goes on where it was: waves that warm nodes have filled already are passed over.

    Args:
        nodes: those that wait.
        warm: how many nodes have the images already.
        seed: another seed takes other nodes first.
    """
    waiting = spread(nodes, seed=seed)
    done, waves, at = warm, [], 0
    for end in ends(warm + len(nodes)):
        if end <= done:
            continue
        waves.append(waiting[at : at + end - done])
        at += end - done
        done = end
    return tuple(waves)


def spread(nodes: Sequence[Node], *, seed: str = "") -> tuple[Node, ...]:
    """The nodes in an order that goes round registries, and within each of them round racks.

    Whoever takes them from the front never meets a long row of one rack, whose slots would be full while others idle.
    """
    by_registry: dict[str, dict[str, list[Node]]] = {}
    for node in sorted(nodes, key=lambda node: _mark(seed, node.name)):
        by_registry.setdefault(node.registry, {}).setdefault(node.rack, []).append(node)
    queues = [deque(_round(racks)) for _, racks in sorted(by_registry.items(), key=lambda item: _mark(seed, item[0]))]
    result: list[Node] = []
    while queues:
        for queue in queues:
            result.append(queue.popleft())
        queues = [queue for queue in queues if queue]
    return tuple(result)


def _round(racks: Mapping[str, list[Node]]) -> list[Node]:
    rows = list(racks.values())
    longest = max(map(len, rows))
    return [row[k] for k in range(longest) for row in rows if k < len(row)]


def jitter(node: str, most_s: float, *, seed: str = "") -> float:
    """How long a node waits before its pull, from 0 to `most_s`; the same in every run."""
    return int(_mark(seed, node)[:8], 16) / 0xFFFFFFFF * most_s


def _mark(seed: str, name: str) -> str:
    return hashlib.sha256(f"{seed} {name}".encode()).hexdigest()
