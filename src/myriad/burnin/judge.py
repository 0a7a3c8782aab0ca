"""What measured bandwidths mean: a node is judged by its pairs, a pair by its slower direction. Pure.

A slow node is slow with every partner, while its partners are fast with each other; so the median over a node's pairs
is its speed, and one slow cable between two nodes spoils neither. The same is true of NCCL's bus bandwidth of pairs.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from myriad.fleet.problems import natural

Word = Literal["ok", "below", "slow", "not measured"]

FEWEST_FOR_MEDIAN = 3
"""Of two nodes nobody can tell which one is slow: both see the same link."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One measured pair on one rail, in gigabytes (10^9) a second, by its slower direction."""

    one: str
    other: str
    rail: str
    gb_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """One node on one rail.

    Attributes:
        gb_s: median over its pairs; None where nothing was measured.
        word: `below` the threshold, `slow` beside the others, `ok`.
        cause: one sentence; empty when ok.
        slowest: the partner with whom it was slowest.
    """

    node: str
    rail: str
    gb_s: float | None
    word: Word
    cause: str = ""
    slowest: str = ""

    def as_dict(self, threshold: float | None) -> dict[str, Any]:
        """For `--json`."""
        return {
            "node": self.node,
            "rail": self.rail,
            "gb_s": self.gb_s,
            "threshold_gb_s": threshold,
            "verdict": self.word,
            "cause": self.cause,
            "slowest_partner": self.slowest,
        }


def pairs_of(results: Iterable[Mapping[str, Any]]) -> list[Pair]:
    """Pairs from what each node received: `{"node": .., "rails": {rail: {partner: GB/s}}}` of every pod.

    A pair of which only one direction is known counts by that one.
    """
    seen: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for result in results:
        node = str(result["node"])
        for rail, partners in result["rails"].items():
            for partner, speed in partners.items():
                one, other = sorted((node, str(partner)), key=natural)
                seen[one, other, str(rail)].append(float(speed))
    return [Pair(one, other, rail, min(speeds)) for (one, other, rail), speeds in seen.items()]


def judge(
    nodes: Iterable[str],
    pairs: Iterable[Pair],
    *,
    threshold: float | None = None,
    of_median: float = 0.8,
    reference: Iterable[str] = (),
) -> list[Verdict]:
    """A verdict for each node and rail, in natural order.

    Args:
        nodes: those that are judged.
        pairs: what was measured.
        threshold: gigabytes a second that each must reach; None compares with the others only.
        of_median: a node below this part of the median of all nodes is slow.
        reference: nodes that only served as partners; they count for the median and get no verdict.
    """
    judged = sorted(dict.fromkeys(nodes), key=natural)
    known = {*judged, *reference}
    measured: dict[str, dict[str, list[tuple[float, str]]]] = defaultdict(lambda: defaultdict(list))
    for pair in pairs:
        if not {pair.one, pair.other} <= known:
            continue
        measured[pair.rail][pair.one].append((pair.gb_s, pair.other))
        measured[pair.rail][pair.other].append((pair.gb_s, pair.one))
    verdicts = []
    for rail in sorted(measured, key=natural) or [""]:
        speeds = {node: statistics.median(speed for speed, _ in rows) for node, rows in measured[rail].items()}
        middle = statistics.median(speeds.values()) if speeds else 0.0
        for node in judged:
            if node not in speeds:
                verdicts.append(Verdict(node, rail, None, "not measured", f"{node} measured nothing"))
                continue
            speed = speeds[node]
            slowest = min(measured[rail][node])[1]
            if threshold is not None and speed < threshold:
                cause = f"{node} reaches {speed:.3g} GB/s on {rail}, the pool's threshold is {threshold:.3g}"
                if len(speeds) >= FEWEST_FOR_MEDIAN and speed < of_median * middle:
                    cause += f"; the others reach {middle:.3g} (median): it is this node"
                elif len(speeds) >= FEWEST_FOR_MEDIAN:
                    cause += f"; the others are no faster ({middle:.3g} median): switch, settings or threshold"
                verdicts.append(Verdict(node, rail, speed, "below", cause, slowest))
            elif len(speeds) >= FEWEST_FOR_MEDIAN and speed < of_median * middle:
                cause = (
                    f"{node} reaches {speed:.3g} GB/s on {rail}, {100 * speed / middle:.0f} % of the median "
                    f"{middle:.3g}: the others are faster with each other than with it"
                )
                verdicts.append(Verdict(node, rail, speed, "slow", cause, slowest))
            else:
                verdicts.append(Verdict(node, rail, speed, "ok", slowest=slowest))
    return sorted(verdicts, key=lambda verdict: (natural(verdict.node), natural(verdict.rail)))


def tournament(nodes: Iterable[str], rounds: int) -> list[list[tuple[str, str]]]:
    """Rounds of disjoint pairs by the circle method, at most `rounds` of them: every node once a round, or rests."""
    players: list[str | None] = [*sorted(dict.fromkeys(nodes), key=natural)]
    if len(players) % 2:
        players.append(None)
    half = len(players) // 2
    result = []
    for _ in range(min(rounds, len(players) - 1)):
        result.append(
            [
                (one, other)
                for one, other in zip(players[:half], reversed(players[half:]), strict=True)
                if one is not None and other is not None
            ]
        )
        players = [players[0], players[-1], *players[1:-1]]
    return result
