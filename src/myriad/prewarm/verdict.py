"""Whether the next wave begins, and what all of it came to. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from myriad.prewarm.limits import Limits

GOOD = frozenset({"warm", "pulled", "pinned", "proven"})
UNREACHABLE = "unreachable"
WAITING = "waiting"
_MANY = 20


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """What came of one node.

    Attributes:
        node: its name.
        outcome: warm, pulled, pinned, proven, refused, failed, unreachable or waiting (its wave never began).
        wave: which one, from 1; 0 where it needed none.
        sentence: why, where it is not warm.
        registry: where it pulled from.
        tried: registries that did not serve it before that, each with the reason.
        fetched_bytes, seconds: what it fetched, and how long the pull took.
        details: the module's own results by image.
    """

    node: str
    outcome: str
    wave: int = 0
    sentence: str = ""
    registry: str = ""
    tried: tuple[str, ...] = ()
    fetched_bytes: int = 0
    seconds: float = 0.0
    details: tuple[Mapping[str, Any], ...] = field(default=())

    @property
    def good(self) -> bool:
        """Whether the node has its images warm."""
        return self.outcome in GOOD


def may_go_on(outcomes: Sequence[NodeOutcome], limits: Limits, *, first: bool) -> str:
    """Why no further wave begins; empty where it does.

    A node that is full or away says nothing about the image, and is counted all the same: if one in twenty nodes has no
    room, the rollout has been planned wrongly, and that is better known after 1 % of them.

    Args:
        outcomes: of the nodes that were tried so far.
        limits: the share, and the number that is always allowed.
        first: whether the wave that ended was the first one, a single node: it has to succeed.
    """
    bad = [one for one in outcomes if not one.good and one.outcome != WAITING]
    if not bad:
        return ""
    if not first and len(bad) <= max(limits.failures, int(limits.failure_share * len(outcomes))):
        return ""
    share = len(bad) / len(outcomes)
    allowed = "the first wave has to succeed" if first else f"{limits.failure_share:.0%} may"
    shown = [f"  {one.node}  {one.outcome}: {one.sentence}" for one in bad[:_MANY]]
    more = [f"  and {len(bad) - _MANY} more"] if len(bad) > _MANY else []
    return "\n".join(
        [f"{len(bad)} of {len(outcomes)} nodes did not get their images ({share:.0%}; {allowed}):", *shown, *more]
    )


def summary(outcomes: Sequence[NodeOutcome]) -> dict[str, int]:
    """Nodes by outcome, the frequent ones first."""
    counts: dict[str, int] = {}
    for one in outcomes:
        counts[one.outcome] = counts.get(one.outcome, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def exit_code(outcomes: Sequence[NodeOutcome]) -> int:
    """0 all are warm, 2 some failed, were refused or wait, 3 some could not be reached and the rest are warm."""
    bad = {one.outcome for one in outcomes if not one.good}
    if not bad:
        return 0
    return 3 if bad == {UNREACHABLE} else 2
