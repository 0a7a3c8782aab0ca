"""What a simulation gives back: every event in order, every job's record, and figures drawn from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from myriad.sim.jobs import SimJob

Kind = Literal[
    "submitted", "steered", "released", "reserved", "admitted", "bound", "started", "evicted", "finished", "limit",
    "never", "node_down", "node_up", "protected", "unprotected",
]  # fmt: skip


class InvariantError(AssertionError):
    """The simulated cluster came into a state that must not be: a fault of ours, with the event that led to it."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. ``subject`` is a job, or a node for node_*; ``detail`` says more."""

    t_s: float
    kind: Kind
    subject: str
    detail: str = ""


@dataclass(slots=True)
class JobRecord:
    """One job's life. Times are seconds since the begin; None = it did not come to that.

    Attributes:
        job: what was asked.
        admitted_s, evicted_s: every admission and eviction.
        started_s: when all its pods ran, the first time.
        finished_s: when it ended by itself or by its limit.
        killed_by_limit: it ended by its limit.
        nodes: pods by node of the last admission.
        tier: how far apart those nodes stand; ``planned_tier``: what our planner had done (with ``compare``).
        partly_bound_s: the longest time that some but not all of its pods held nodes.
        reason: the last reason that its owner would read while it waited.
    """

    job: SimJob
    admitted_s: list[float] = field(default_factory=list)
    evicted_s: list[float] = field(default_factory=list)
    started_s: float | None = None
    finished_s: float | None = None
    killed_by_limit: bool = False
    nodes: dict[str, int] = field(default_factory=dict)
    tier: str = ""
    planned_tier: str = ""
    partly_bound_s: float = 0.0
    reason: str = ""

    @property
    def wait_s(self) -> float | None:
        """From submission to the first start."""
        return None if self.started_s is None else self.started_s - self.job.submit_s


@dataclass(slots=True)
class Trace:
    """A whole simulation.

    Attributes:
        seed: as given.
        gpus: GPUs of the cluster.
        events: in order.
        jobs: by name.
        end_s: when it ended.
        gpu_seconds: GPU-seconds held by running jobs.
        samples: (time, GPUs held, GPUs asked by waiting jobs), at most one a minute.
    """

    seed: int
    gpus: int
    events: list[Event] = field(default_factory=list)
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    end_s: float = 0.0
    gpu_seconds: float = 0.0
    samples: list[tuple[float, int, int]] = field(default_factory=list)

    @property
    def utilisation(self) -> float:
        """Share of the GPUs' time that running jobs held, from the begin to the end."""
        return self.gpu_seconds / (self.gpus * self.end_s) if self.end_s else 0.0

    def utilisation_between(self, since_s: float, until_s: float) -> float:
        """The same between two times, from the samples (each holds until the next)."""
        total = 0.0
        marks = [s for s in self.samples if s[0] < until_s]
        for k, (t, held, _) in enumerate(marks):
            end = marks[k + 1][0] if k + 1 < len(marks) else until_s
            total += held * max(0.0, min(end, until_s) - max(t, since_s))
        return total / (self.gpus * (until_s - since_s)) if until_s > since_s else 0.0

    def of(self, subject: str) -> Iterator[Event]:
        """The events of one job or node."""
        return (e for e in self.events if e.subject == subject)

    def digest(self) -> str:
        """Hash of all events: two runs with one digest are the same run."""
        h = hashlib.sha256()
        for e in self.events:
            h.update(json.dumps([round(e.t_s, 6), e.kind, e.subject, e.detail]).encode())
        return h.hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON-able data."""
        return {
            "seed": self.seed,
            "gpus": self.gpus,
            "end_s": self.end_s,
            "events": [[e.t_s, e.kind, e.subject, e.detail] for e in self.events],
            "jobs": {name: asdict(record) for name, record in self.jobs.items()},
        }
