"""What an explanation is made from and what it is: the facts of a job, its ledger, who holds what, the answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from myriad.scheduler.causes import Cause
from myriad.scheduler.model import Gang

State = Literal[
    "never", "quota", "placement", "check", "gated", "not_reached", "starting", "running", "finished", "held", "fits",
    "queue", "external",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class AheadJob:
    """A job in front in the same queue. ``position`` counts from 1."""

    name: str
    owner: str = ""
    gpus: int = 0
    pods: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Holder:
    """A running job that holds what the waiting one needs.

    ``ends_in_s``: seconds until its limit ends it, None = it has no limit. ``uids``: its pods, for what-if.
    ``terminating``: its pods are stopping but still hold their GPUs.
    """

    name: str
    team: str = ""
    gpus: int = 0
    ends_in_s: float | None = None
    borrowed_gpus: int = 0
    uids: tuple[str, ...] = ()
    terminating: bool = False


@dataclass(frozen=True, slots=True)
class QuotaView:
    """The ledger of one team in one pool, in GPUs, and the queue as Kueue orders it.

    ``used`` counts what the team has, ``borrowed`` the part of it above nominal; ``lent`` is the part of its nominal
    quota that others use now. ``cohort_free``: what others of the cohort leave unused and lend now. ``borrow_limit``:
    None = no limit.
    """

    team: str
    pool: str
    nominal: int
    used: int
    borrowed: int = 0
    lent: int = 0
    borrow_limit: int | None = 0
    cohort_free: int = 0
    position: int = 0
    queue_length: int = 0
    ahead: tuple[AheadJob, ...] = ()
    holders: tuple[Holder, ...] = ()
    stopped: str = ""
    """Why the queue takes nothing (a Hold, an inactive ClusterQueue), as a sentence, or ""."""

    @property
    def left(self) -> int:
        """GPUs that the team can still get now: its own that are unused, and what it may borrow."""
        own = max(0, self.nominal - self.used - self.lent)
        may = (
            self.cohort_free if self.borrow_limit is None else min(self.cohort_free, self.borrow_limit - self.borrowed)
        )
        return own + max(0, may)

    @property
    def most(self) -> int | None:
        """GPUs that the team can hold at the very most; None = the cohort's whole."""
        return None if self.borrow_limit is None else self.nominal + self.borrow_limit


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a Workload."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is known of the waiting job apart from quota and placement.

    ``causes`` are what the layers around quota and placement hold against it (a missing PVC, a ResourceQuota, a
    webhook that refuses), ``problems`` such causes as bare sentences. ``pending_checks`` are admission checks that are
    not Ready yet, with their message. ``gates`` are scheduling gates left on its pods. ``victims`` are jobs that are
    stopping to make room for this one. ``odd`` is what is worth saying of a job that runs.
    """

    gang: Gang
    waiting_s: float = 0.0
    has_workload: bool = True
    quota_reserved: bool = False
    admitted: bool = False
    admitted_s: float = 0.0
    finished: bool = False
    succeeded: bool | None = None
    evicted: bool = False
    suspended_by_user: bool = False
    pods_ready: int = 0
    pods_expected: int = 0
    nodes: Mapping[str, int] = field(default_factory=dict)
    pending_checks: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    victims: tuple[Holder, ...] = ()
    odd: tuple[str, ...] = ()
    ended: str = ""
    """How a finished job ended, in its controller's words."""
    told: str = ""
    """The first cause as the extension has written it on the job: for those who may not read what it follows from."""
    set_back: str = ""
    """When Kueue tries again, where it set the job back."""
    conditions: tuple[Condition, ...] = ()
    evaluated: bool = True
    """Whether Kueue has looked at it since it came or changed; False = "not yet reached", not "refused"."""
    unschedulable: str = ""
    """What the pod scheduler says of an admitted gang's pod that it cannot place (condition PodScheduled)."""


@dataclass(frozen=True, slots=True)
class Eta:
    """When it may start: seconds from now with an interval and its basis in words."""

    seconds: float
    low_s: float
    high_s: float
    basis: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The explanation. ``lines`` are (heading, text) in the order shown; `text` lays them out as `myriad why` does."""

    job: str
    state: State
    first_cause: str
    title: str
    lines: tuple[tuple[str, str], ...] = ()
    unblocks: tuple[str, ...] = ()
    looked_at: tuple[str, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """The answer as people read it: a title and indented lines under headings."""
        width = max([len(h) for h, _ in self.lines] + [9]) + 3
        out = [self.title]
        for heading, text in self.lines:
            for k, line in enumerate(text.split("\n")):
                out.append(f"  {(heading if k == 0 else ''):<{width}}{line}".rstrip())
        return "\n".join(out)

    def as_dict(self) -> dict[str, Any]:
        """The same for ``--json``."""
        return {
            "job": self.job,
            "state": self.state,
            "first_cause": self.first_cause,
            "lines": [{"about": h, "text": t} for h, t in self.lines],
            "unblocks": list(self.unblocks),
            "looked_at": list(self.looked_at),
            "numbers": dict(self.numbers),
        }
