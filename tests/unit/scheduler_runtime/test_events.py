"""Events: once, not too often, never a flood."""

from __future__ import annotations

from typing import Any

import pytest

from myriad.kube.client import ApiError
from myriad.scheduler.events import EventSink


def job(n: int = 0) -> Any:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"j{n}", "namespace": "x", "uid": f"u{n}"}}


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def sink(world: Any, clock: list[float]) -> EventSink:
    return EventSink(world.api, interval_s=60, clock=lambda: clock[0])


def test_the_same_sentence_is_told_once(sink: EventSink, world: Any, clock: list[float]) -> None:
    assert sink.tell(job(), "MyriadWaiting", "a")
    clock[0] += 1000
    assert not sink.tell(job(), "MyriadWaiting", "a")
    assert sink.tell(job(), "MyriadWaiting", "b")
    assert len(world.api.events) == 2


def test_a_changing_sentence_is_told_once_an_interval_and_a_new_reason_at_once(
    sink: EventSink, world: Any, clock: list[float]
) -> None:
    assert sink.tell(job(), "MyriadWaiting", "3rd")
    clock[0] += 30
    assert not sink.tell(job(), "MyriadWaiting", "2nd")
    assert sink.tell(job(), "MyriadPlaced", "on n0")
    clock[0] += 31
    assert sink.tell(job(), "MyriadPlaced", "on n1") is False
    clock[0] += 30
    assert sink.tell(job(), "MyriadPlaced", "on n1")


def test_all_together_are_limited(sink: EventSink, clock: list[float]) -> None:
    told = sum(sink.tell(job(i), "MyriadWaiting", "x") for i in range(100))
    assert told == 25
    clock[0] += 2
    assert sum(sink.tell(job(i), "MyriadWaiting", "x") for i in range(100)) == 10


def test_a_namespace_that_takes_no_events_stops_nobody(
    sink: EventSink, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ApiError(403, "Forbidden", "namespace is being terminated", where="test")

    monkeypatch.setattr(world.api, "create_event", refuse)
    assert not sink.tell(job(), "MyriadWaiting", "x")


def test_several_that_speak_of_one_job_in_turn_repeat_nothing(sink: EventSink, clock: list[float]) -> None:
    """A gang that is refused, and for which no domain is kept: two parts of the extension offer that at every look."""
    told = []
    for _ in range(30):
        clock[0] += 2
        told += [reason for reason in ("MyriadRefused", "MyriadProtected") if sink.tell(job(), reason, "as before")]  # type: ignore[arg-type]
    assert told == ["MyriadRefused", "MyriadProtected"]


def test_a_job_that_waits_again_after_it_was_placed_is_told_again(sink: EventSink) -> None:
    assert sink.tell(job(), "MyriadWaiting", "behind speech/asr")
    assert sink.tell(job(), "MyriadPlaced", "on n0")
    assert sink.tell(job(), "MyriadWaiting", "behind speech/asr") and sink.tell(job(), "MyriadPlaced", "on n0")


def test_what_nobody_speaks_of_any_more_is_forgotten(sink: EventSink, clock: list[float]) -> None:
    """A site has thousands of jobs a day, and the extension runs for months."""
    for i in range(1000):
        clock[0] += 60
        sink.tell(job(i), "MyriadWaiting", "x")
        sink.tell(job(0), "MyriadWaiting", "x")
    assert len(sink._told) <= 62
    assert not sink.tell(job(0), "MyriadWaiting", "x"), "one that is spoken of all the time is not told again"
