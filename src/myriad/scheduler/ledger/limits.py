"""How long a job may run: what it asked for, what its pool gives it, or that it is not taken. Pure.

A limit bounds what a job can cost, so it stands behind the ledger's projections, the ETA and backfill. What a job asks
for is its label `kueue.x-k8s.io/max-exec-time-seconds`, which Kueue enforces; a pool's default and maximum are
enforced by the extension in the same way: the Workload is deactivated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from myriad.scheduler.policy import PoolPolicy

LIMIT_LABEL = "kueue.x-k8s.io/max-exec-time-seconds"

Basis = Literal["asked", "default", "maximum", "none"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A verdict on a job's time limit.

    Attributes:
        seconds: how long it may run once admitted; None = without end.
        basis: whose figure that is.
        refused: the pool takes no such job.
        sentence: what its owner is told; empty where the job simply gets what it asked for.
    """

    seconds: int | None
    basis: Basis
    refused: bool
    sentence: str

    @property
    def by_us(self) -> bool:
        """Whether Kueue knows nothing of it, so that the extension has to end the job."""
        return self.basis in ("default", "maximum")


def judge_limit(asked_s: int | None, pool: str, rules: PoolPolicy) -> Limit:
    """What becomes of a job's time limit in a pool.

    Args:
        asked_s: its own limit in seconds; None for none.
        pool: the pool's name.
        rules: the pool's rules. Services of an inference pool run without end.
    """
    if rules.use == "inference":
        return Limit(asked_s, "asked" if asked_s else "none", False, "")
    most = _seconds(rules.max_hours)
    if asked_s:
        if most is None or asked_s <= most:
            return Limit(asked_s, "asked", False, "")
        return Limit(
            most,
            "maximum",
            False,
            f"it asks for {hours_words(asked_s)} and will be ended after {hours_words(most)}: pool {pool} allows no "
            f"more. Save a checkpoint before that",
        )
    if rules.unlimited == "refuse":
        upto = f" of up to {most}" if most else ""
        return Limit(
            None,
            "none",
            True,
            f"pool {pool} takes no job without a time limit: set the label {LIMIT_LABEL} to its seconds{upto} "
            f"(`myriad job new --hours`)",
        )
    given = _seconds(rules.default_hours)
    if rules.unlimited == "default" and given is not None and (most is None or given <= most):
        return Limit(
            given,
            "default",
            False,
            f"it has no time limit and will be ended after {hours_words(given)}, the default of pool {pool}: set the "
            f"label {LIMIT_LABEL} for another",
        )
    if most is not None:
        return Limit(
            most,
            "maximum",
            False,
            f"it has no time limit and will be ended after {hours_words(most)}: pool {pool} allows no more. Set the "
            f"label {LIMIT_LABEL} for less",
        )
    return Limit(None, "none", False, "")


def hours_words(seconds: float) -> str:
    """`6 h`, `1.5 h`, `20 min`, `45 s`."""
    if seconds >= 3600:
        return f"{seconds / 3600:,.1f}".removesuffix(".0") + " h"
    return f"{seconds // 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _seconds(hours: float | None) -> int | None:
    return None if hours is None else max(1, round(hours * 3600))
