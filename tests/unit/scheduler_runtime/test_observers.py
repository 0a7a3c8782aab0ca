"""Observers: called after changes and at their interval, by the leader alone; one that fails ends no other."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import pytest

from myriad.errors import MyriadError
from myriad.scheduler.cache import Cache
from myriad.scheduler.observers import Observer, Observing


@dataclass
class Counting:
    name: str = "counting"
    interval_s: float = 3600.0
    calls: int = 0
    error: Exception | None = None
    called: threading.Event = field(default_factory=threading.Event)

    def step(self) -> None:
        self.calls += 1
        self.called.set()
        if self.error is not None:
            raise self.error


def observing(*observers: Observer, leads: list[bool], stop: threading.Event) -> Observing:
    cache = Cache(check_name="myriad")
    return Observing(observers, cache=cache, may_act=lambda: leads[0], stop=stop)


def test_only_the_leader_acts_and_a_new_one_starts_at_once() -> None:
    stop, leads, one = threading.Event(), [False], Counting()
    thread = observing(one, leads=leads, stop=stop)
    thread.start()
    time.sleep(0.6)
    assert one.calls == 0
    leads[0] = True
    assert one.called.wait(10)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("error", [MyriadError("the database does not answer"), ValueError("a fault of ours")])
def test_one_that_fails_does_not_end_the_others(error: Exception) -> None:
    stop, broken, whole = threading.Event(), Counting(name="broken", error=error), Counting(name="whole")
    thread = observing(broken, whole, leads=[True], stop=stop)
    thread.start()
    assert whole.called.wait(10) and broken.calls >= 1
    stop.set()
    thread.join(10)
    assert thread.call(whole) and not thread.call(broken)
