"""When a waiting job starts: futures of the queues played forward, judged when it does. Pure but for `store`."""

from myriad.scheduler.eta.durations import RunTimes
from myriad.scheduler.eta.estimate import History, estimate, start_times
from myriad.scheduler.eta.model import (
    Eta,
    Kind,
    NodeState,
    PoolState,
    QueueState,
    Run,
    RunningJob,
    WaitingJob,
    family_of,
)

__all__ = [
    "Eta",
    "History",
    "Kind",
    "NodeState",
    "PoolState",
    "QueueState",
    "Run",
    "RunTimes",
    "RunningJob",
    "WaitingJob",
    "estimate",
    "family_of",
    "start_times",
]
