"""A notice says when its job starts again, made by the estimator over the same cluster."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from myriad.kube.kinds import NODES, WORKLOADS
from myriad.scheduler.eta.observer import Estimating
from myriad.scheduler.notices.book import Book
from myriad.scheduler.notices.courier import Note
from myriad.scheduler.notices.observer import Notices


class Courier:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def send(self, target: str, note: Note) -> None:
        self.notes.append(note)

    def put_down(self) -> bool:
        return False


def node(name: str) -> dict[str, Any]:
    labels = {"myriad.dev/pool": "h100", "kubernetes.io/hostname": name}
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }


@pytest.fixture
def site(world: Any, make: Any) -> Any:
    """vision has 16 of its own: an old job with 30 min left, and one that is evicted for speech."""
    for i in range(4):
        world.put(NODES, node(f"g{i}"))
    since = world.now - timedelta(minutes=30)
    old = make.workload("old", times={"Admitted": since, "QuotaReserved": since})
    old["spec"]["maximumExecutionTimeSeconds"] = 3600
    world.put(WORKLOADS, old)
    world.courier = Courier()
    world.eta = Estimating(world.api, world.cache, None, CollectorRegistry(), clock=world.clock)
    world.notices = Notices(
        api=world.api,
        cache=world.cache,
        book=Book(world.api),
        courier=world.courier,
        policy=lambda: world.policy,
        eta=lambda pairs: world.eta.of_evicted(pairs),
        now=lambda: world.now,
        clock=world.clock,
    )
    world.notices.step()
    return world


def test_it_says_when_it_comes_back_though_nobody_has_estimated_it_yet(site: Any) -> None:
    site.eta.step()
    site.preempt()
    site.wait(0.25)
    site.notices.step()
    (note,) = site.courier.notes
    eviction = note.body["eviction"]
    # The old job ends by its limit in half an hour and a grace; what the victim held went to its preemptor.
    assert 0 < eviction["eta_low_s"] <= eviction["eta_s"] <= eviction["eta_high_s"] <= 1800 + 300
    assert "It goes back to the queue (1st, about " in note.text


def test_a_notice_does_not_wait_for_estimates_that_take_long(site: Any) -> None:
    site.eta.step()
    site.eta._took_s = 3.0
    site.preempt()
    site.wait(0.25)
    site.notices.step()
    (note,) = site.courier.notes
    assert "eta_s" not in note.body["eviction"] and "It goes back to the queue (1st)." in note.text


def test_an_estimator_that_fails_costs_the_estimate_alone(site: Any) -> None:
    def broken(pairs: Any) -> Any:
        raise ZeroDivisionError

    site.eta.step()
    site.eta.of_evicted = broken
    site.preempt()
    site.wait(0.25)
    site.notices.step()
    assert len(site.courier.notes) == 1


def test_whoever_is_deactivated_gets_none(site: Any, make: Any) -> None:
    site.eta.step()
    site.preempt()
    ended = {"Evicted": ("True", "DeactivatedDueToMaximumExecutionTimeExceeded", "")}
    site.put(WORKLOADS, make.workload("clip-ft", conditions=ended, at=site.now))
    site.wait(0.25)
    site.notices.step()
    (note,) = site.courier.notes
    assert "eta_s" not in note.body["eviction"] and "It does not go back to the queue" in note.text


def test_jobs_that_are_gone_are_remembered_by_their_history_alone(site: Any, make: Any) -> None:
    """The extension runs for months, and a site has thousands of jobs a day."""
    site.eta.step()
    assert "uid-old" in site.eta._came
    site.drop(WORKLOADS, "vision/job-old")
    site.wait(61)
    site.eta.step()
    assert "uid-old" not in site.eta._came | site.eta._ended
    assert [run.uid for run in site.eta.history.submitted] == ["uid-old"]
