"""What the work beside steering is made from: a look at the cluster, a way to it, a place for its words."""

from __future__ import annotations

from dataclasses import dataclass

from myriad.kube.client import Api
from myriad.scheduler.cache import Cache
from myriad.scheduler.events import EventSink
from myriad.scheduler.metrics import Metrics
from myriad.scheduler.records import RecordBook
from myriad.scheduler.settings import Settings


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an observer is made from."""

    api: Api
    cache: Cache
    settings: Settings
    decisions: RecordBook
    events: EventSink
    metrics: Metrics
