"""Who asks the brake, and what it makes of the live cluster."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from myriad.kube.kinds import NODES, WORKLOADS
from myriad.scheduler.brake import Ask
from myriad.scheduler.braking import Braking
from myriad.scheduler.protect import Protection
from myriad.scheduler.protect_choice import Decision
from myriad.scheduler.protecting import Protecting
from myriad.scheduler.settings import Settings
from myriad.scheduler.surroundings import Surroundings

START = datetime(2026, 11, 30, 15, 0, tzinfo=UTC)
TAINT = Ask("taint", "the domain for vision/large", ("n0",), by="protection")


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def braking(world: Any, clock: Clock) -> Braking:
    made = Braking(world.cache, now=clock)
    made.follow()
    return made


def silence(world: Any, *names: str, cordoned: bool = False) -> None:
    """These nodes stop reporting at one time."""
    for name in names:
        body = world.api.get(NODES, name)
        body["status"]["conditions"] = [
            {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-11-30T14:58:00Z"}
        ]
        body["spec"]["unschedulable"] = cordoned
        world.put(NODES, body)


def follows(braking: Braking, clock: Clock, seconds: int) -> None:
    for _ in range(seconds // 5):
        clock.wait(5)
        braking.follow()


def test_f3_a_leader_taints_nothing_in_its_first_minute(braking: Braking, clock: Clock) -> None:
    assert "just become the leader" in braking.ask(TAINT).reason
    follows(braking, clock, 65)
    assert braking.ask(TAINT).allowed


def test_f2_after_a_gap_in_which_nobody_followed_it_waits_two_minutes(braking: Braking, clock: Clock) -> None:
    follows(braking, clock, 600)
    clock.wait(45)
    braking.follow()
    assert "the API server was away" in braking.ask(TAINT).reason
    follows(braking, clock, 110)
    assert not braking.ask(TAINT).allowed
    follows(braking, clock, 15)
    assert braking.ask(TAINT).allowed


def test_f1_nodes_that_fell_silent_together_stop_it_until_they_are_back(
    world: Any, braking: Braking, clock: Clock
) -> None:
    follows(braking, clock, 65)
    silence(world, "n4", "n5", "n6")
    assert "3 of 8 nodes" in braking.ask(TAINT).reason and "suspect the control plane" in braking.ask(TAINT).reason
    for name in ("n4", "n5", "n6"):
        body = world.api.get(NODES, name)
        body["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        world.put(NODES, body)
    assert braking.ask(TAINT).allowed


def test_whoever_has_looked_and_cordoned_them_lets_it_go_on(world: Any, braking: Braking, clock: Clock) -> None:
    follows(braking, clock, 65)
    silence(world, "n4", "n5", "n6", cordoned=True)
    assert braking.trouble() is None and braking.ask(TAINT).allowed


class Calls:
    """Takes what would be written: nodes, and words for owners."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.nodes: list[str] = []

    def patch(self, resource: Any, name: str, body: Any, **_: Any) -> None:
        assert resource is NODES
        self.nodes.append(name)

    def tell(self, about: Any, reason: str, text: str) -> None:
        self.told.append(text)


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def protecting(world: Any, braking: Braking, make: Any, calls: Calls) -> Protecting:
    world.put(WORKLOADS, make.workload("large", pods=2))
    return Protecting(
        Surroundings(calls, world.cache, Settings(), world.book, calls, world.metrics),  # type: ignore[arg-type]
        braking=braking,
    )


def domain(world: Any, *nodes: str) -> Protection:
    view = world.cache.view_of_job("vision", "large")
    return Protection(view.gang.uid, view.key, "vision/large", nodes, 0.0, 100.0, 1000.0)


def test_a_domain_is_tainted_only_with_the_brakes_word(
    world: Any, protecting: Protecting, braking: Braking, clock: Clock, calls: Calls
) -> None:
    nodes = {n["metadata"]["name"]: n for n in copy.deepcopy(world.api.list(NODES)[0])}
    wanted = Decision(protect=(domain(world, "n0", "n1"),))
    protecting._apply(wanted, nodes, {}, world.cache.snapshot(), 0.0)
    assert not calls.nodes
    assert "no domain is kept for it: this replica has just become the leader" in calls.told[0]
    follows(braking, clock, 65)
    protecting._apply(wanted, nodes, {}, world.cache.snapshot(), 0.0)
    assert calls.nodes == ["n0", "n1"]


def test_what_stands_is_kept_whatever_the_brake_says(world: Any, protecting: Protecting, calls: Calls) -> None:
    """A new leader in its first minute goes on with the domain that it finds."""
    nodes = {n["metadata"]["name"]: n for n in copy.deepcopy(world.api.list(NODES)[0])}
    stands = domain(world, "n0", "n1")
    protecting._apply(Decision(protect=(stands,)), nodes, {stands.uid: stands}, world.cache.snapshot(), 0.0)
    assert calls.nodes == ["n0", "n1"]


def test_off_it_lets_everything_through_and_says_so(world: Any, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    off = Braking(world.cache, enabled=False, now=clock)
    assert "brake is off (MYRIAD_SCHEDULER_BRAKE=false)" in caplog.text
    silence(world, "n4", "n5", "n6", "n7")
    assert off.ask(TAINT).allowed, "in the first minute of a leader, and in an outage"
    assert off.trouble() is not None, "what it would have waited for is still seen"


def test_the_setting_reaches_whoever_taints(world: Any, make: Any, calls: Calls) -> None:
    settings = Settings.from_env({"MYRIAD_SCHEDULER_BRAKE": "false"})
    world.put(WORKLOADS, make.workload("large", pods=2))
    parts = Surroundings(calls, world.cache, settings, world.book, calls, world.metrics)  # type: ignore[arg-type]
    nodes = {n["metadata"]["name"]: n for n in copy.deepcopy(world.api.list(NODES)[0])}
    silence(world, "n4", "n5", "n6")
    Protecting(parts)._apply(Decision(protect=(domain(world, "n0", "n1"),)), nodes, {}, world.cache.snapshot(), 0.0)
    assert calls.nodes == ["n0", "n1"]
    assert Settings.from_env({}).brake, "it is on where nobody says otherwise"
