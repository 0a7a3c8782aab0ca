"""What a notice says of quota: counted from the Workloads, whatever Kueue has written first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from myriad.kube.kinds import WORKLOADS
from myriad.scheduler.notices.facts import cause_of
from myriad.scheduler.notices.gather import build, held_at

RELEASED = {"Admitted": ("False", "NoReservation", ""), "QuotaReserved": ("False", "Pending", "")}


def eviction(world: Any, job: str = "clip-ft") -> Any:
    body = world.api.find(WORKLOADS, f"job-{job}", namespace="vision")
    cause = cause_of(body)
    assert cause is not None
    return build(world.api, world.cache, body, cause, policy=world.policy, now=world.now, count=0)


@pytest.mark.parametrize("released", [False, True], ids=["still-held", "given-back"])
def test_what_was_borrowed_does_not_depend_on_what_kueue_wrote_first(world: Any, make: Any, released: bool) -> None:
    """16 of vision's own run on, 16 beyond them are taken back: the same before and after the quota was released."""
    hours_ago = {"Admitted": world.now - timedelta(hours=3), "QuotaReserved": world.now - timedelta(hours=3)}
    world.put(WORKLOADS, make.workload("old", times=hours_ago))
    world.preempt()
    if released:
        body = make.workload("clip-ft", conditions={**make.preempted(), **RELEASED}, at=world.now)
        world.put(WORKLOADS, body)
    found = eviction(world)
    assert (found.borrowed, found.reclaimed) == (16, 8)


def test_several_victims_of_one_moment_count_and_earlier_ones_do_not(world: Any, make: Any) -> None:
    for job, ago in (("earlier", 600), ("same", 0)):
        at = world.now - timedelta(seconds=ago)
        world.put(WORKLOADS, make.workload(job, conditions={**make.preempted(), **RELEASED}, at=at))
    world.preempt()
    assert held_at(world.cache, "vision-h100", world.now) == 32


def test_what_took_the_place_in_the_same_queue_was_not_held_then(world: Any, make: Any) -> None:
    world.preempt()
    world.put(WORKLOADS, make.workload("new", at=world.now + timedelta(seconds=2)))
    assert held_at(world.cache, "vision-h100", world.now) == 16
