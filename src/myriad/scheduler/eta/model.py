"""What an estimate is made from, and what it says. Pure data: seconds are relative to now unless a name says `_at`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Reclaim = Literal["Never", "LowerPriority", "Any"]

DAY_S = 86400.0
HORIZON_S = 14 * DAY_S
"""Nobody plans by an estimate beyond two weeks; what starts later is told as that."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What makes one job like another: who runs it, under which name, how large."""

    team: str
    family: str
    gpus: int


def family_of(name: str) -> str:
    """A job's name without what changes from run to run: counters, dates, random suffixes.

    `bert-ft-20261130-3` and `bert-ft-20261201-1` are one family; a name that is nothing but such parts stays whole.
    """
    kept = [part for part in re.split(r"[-_.]", name) if part and not _changes(part)]
    return "-".join(kept) or name


def _changes(part: str) -> bool:
    """Whether a part of a name looks counted or drawn: digits (`7`, `v2`, `run12`), a hash, a generated suffix."""
    if re.fullmatch(r"[a-z]{0,4}\d+", part):
        return True
    if len(part) >= 6 and re.fullmatch(r"[0-9a-f]+", part) and any(c.isdigit() for c in part):
        return True
    # Kubernetes' own suffixes have five characters of an alphabet without vowels.
    return len(part) == 5 and bool(re.fullmatch(r"[bcdfghjklmnpqrstvwxz2456789]{5}", part))


@dataclass(frozen=True, slots=True)
class Run:
    """One job of the past, for run times and arrivals. Times are epoch seconds.

    Attributes:
        run_s: from Admitted to Finished; None for one that has not ended (it still counts as an arrival).
        limit_s: its enforced limit, None without one.
        queue: its ClusterQueue.
    """

    uid: str
    kind: Kind
    queue: str
    submitted_at: float
    run_s: float | None
    limit_s: float | None
    pods: int
    gpus_per_pod: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class QueueState:
    """A ClusterQueue in one pool. GPUs; None = no limit given."""

    name: str
    nominal: int
    cohort: str = ""
    borrow_limit: int | None = None
    lend_limit: int | None = None
    weight: float = 1.0
    strict: bool = False
    """StrictFIFO: whoever stands first holds up the rest."""
    stopped: bool = False
    preempts_own: bool = False
    """withinClusterQueue: LowerPriority."""
    reclaims: Reclaim = "Never"
    """reclaimWithinCohort: whom of the borrowers it may evict for its nominal quota."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that holds quota. `nodes`: GPUs by node. `limit_s`: seconds that its limit still leaves it."""

    uid: str
    queue: str
    kind: Kind
    gpus: int
    elapsed_s: float
    limit_s: float | None = None
    nodes: Mapping[str, int] = field(default_factory=dict)
    priority: int = 0


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that waits. `level`: the topology level that its pods must share, "" for none. Order is the list's."""

    uid: str
    queue: str
    kind: Kind
    pods: int
    gpus_per_pod: int
    limit_s: float | None = None
    priority: int = 0
    level: str = ""

    @property
    def gpus(self) -> int:
        """GPUs of all pods."""
        return self.pods * self.gpus_per_pod


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node that takes work: its GPUs in all and now free, and the domain it stands in by level."""

    name: str
    gpus: int
    free: int
    domains: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolState:
    """Everything about one pool at one moment. `waiting` stands in Kueue's order within each queue.

    Attributes:
        cohorts: GPUs that cohorts have of their own beside their queues' quotas.
        grace_s: an evicted job may hold its GPUs this long.
        admissions_per_s: how fast Kueue admits when there is room for many at once.
    """

    queues: tuple[QueueState, ...]
    nodes: tuple[NodeState, ...]
    running: tuple[RunningJob, ...]
    waiting: tuple[WaitingJob, ...]
    cohorts: Mapping[str, int] = field(default_factory=dict)
    grace_s: float = 300.0
    admissions_per_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Eta:
    """When a job may start: seconds from now, an 80 % interval, and what it rests on.

    Attributes:
        low_s, mid_s, high_s: the 10th, 50th and 90th percentile; None where that lies beyond the horizon.
        basis: in words.
        held: share of like estimates that held in the last month, None where too few were judged.
        judged: how many those were.
    """

    low_s: float | None
    mid_s: float | None
    high_s: float | None
    basis: str
    held: float | None = None
    judged: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "low_s": _rounded(self.low_s),
            "mid_s": _rounded(self.mid_s),
            "high_s": _rounded(self.high_s),
            "basis": self.basis,
            "held_last_month": None if self.held is None else round(self.held, 3),
            "judged_last_month": self.judged,
        }


def epoch(timestamp: Any) -> float | None:
    """Seconds since the epoch of a Kubernetes timestamp; None for none. Raises ValueError for another text."""
    if not isinstance(timestamp, str) or not timestamp:
        return None
    return datetime.fromisoformat(timestamp).timestamp()


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else float(round(seconds))
