"""A job on its way through a simulated cluster, and the cluster at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from myriad.scheduler.model import Gang, PodSet
from myriad.scheduler.objects import CheckEntry
from myriad.scheduler.rules import with_updates
from myriad.scheduler.snapshot import Snapshot
from myriad.sim.jobs import SimJob
from myriad.sim.trace import JobRecord

PENDING = CheckEntry("Pending", "", (), "")


@dataclass(slots=True, eq=False)
class Run:
    """A job on its way. ``epoch`` grows with each admission and eviction: what was due before is void then.

    ``state``: new, waiting, reserved (quota and nodes, our check still Pending), admitted, done.
    """

    job: SimJob
    order: tuple[int, float, int]
    gang: Gang
    record: JobRecord
    check: CheckEntry = PENDING
    state: str = "new"
    epoch: int = 0
    place: dict[int, int] = field(default_factory=dict)
    bound: dict[int, int] = field(default_factory=dict)
    reserved_s: float = 0.0
    admitted_s: float = 0.0
    running_since: float | None = None
    progress_s: float = 0.0
    partly_since: float | None = None
    shape: object = None

    @property
    def team(self) -> str:
        """Whose quota it holds."""
        return self.job.team

    @property
    def gpus(self) -> int:
        """GPUs of all pods."""
        return self.job.gpus

    @property
    def gpus_per_pod(self) -> int:
        """GPUs of a pod."""
        return self.job.gpus_per_pod

    @property
    def priority(self) -> int:
        """Of its class."""
        return self.job.priority

    @property
    def podset(self) -> PodSet:
        """As Kueue sees it: with what our check's answer adds."""
        if self.check.state == "Ready" and self.check.updates:
            return with_updates(self.gang, self.check.updates).podsets[0]
        return self.gang.podsets[0]


@dataclass(frozen=True, slots=True)
class Observation:
    """The cluster at one moment, for `observe`.

    Attributes:
        t_s: the moment.
        waiting: jobs in their queues' order, by team.
        running: jobs that hold nodes, with the time of their admission.
        admissions: how many admissions there were so far.
        snapshot: the cluster as Myriad's cache would have it; not to be changed.
    """

    t_s: float
    waiting: Mapping[str, Sequence[SimJob]]
    running: Sequence[tuple[SimJob, float]]
    admissions: int
    snapshot: Snapshot
