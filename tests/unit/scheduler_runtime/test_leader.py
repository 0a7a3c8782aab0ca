"""One leader at a time, and a quick hand-over."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from myriad.errors import MyriadError
from myriad.kube.kinds import LEASES
from myriad.scheduler.leader import LeaderElection


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def election(api: Any, name: str, clock: Clock, changes: list[bool] | None = None) -> LeaderElection:
    seen = changes if changes is not None else []
    return LeaderElection(
        api,
        namespace="myriad-system",
        name="myriad-scheduler",
        identity=name,
        lease_duration_s=15,
        renew_deadline_s=10,
        retry_period_s=0.01,
        stop=threading.Event(),
        changed=seen.append,
        clock=clock,
    )


def test_the_first_leads_and_the_second_waits_until_it_is_silent(world: Any, clock: Clock) -> None:
    a, b = election(world.api, "a", clock), election(world.api, "b", clock)
    a.step()
    b.step()
    assert a.is_leader() and not b.is_leader() and b.holder == "a"
    for _ in range(5):
        clock.now += 8
        a.step()
        b.step()
    assert a.is_leader() and not b.is_leader()
    clock.now += 14
    b.step()
    assert not b.is_leader()
    clock.now += 2
    b.step()
    assert b.is_leader()
    lease = world.api.get(LEASES, "myriad-scheduler", namespace="myriad-system")
    assert lease["spec"]["leaseTransitions"] == 1 and lease["spec"]["holderIdentity"] == "b"


def test_a_leader_that_cannot_renew_stops_before_another_may_start(
    world: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: list[bool] = []
    a = election(world.api, "a", clock, changes)
    a.step()

    def down(*_: Any, **__: Any) -> Any:
        raise MyriadError("no answer")

    monkeypatch.setattr(world.api, "find", down)
    clock.now += 9
    a.step()
    assert a.is_leader()
    clock.now += 1.5
    assert not a.is_leader(), "even between two attempts"
    a.step()
    assert changes == [True, False]


def test_whoever_is_second_gets_a_conflict_and_follows(world: Any, clock: Clock) -> None:
    a, b = election(world.api, "a", clock), election(world.api, "b", clock)
    a.step()
    a.release()
    real = world.api.find

    def slow(*arguments: Any, **more: Any) -> Any:
        found = real(*arguments, **more)
        world.api.find = real
        b.step()
        return found

    world.api.find = slow
    a.step()
    assert b.is_leader() and not a.is_leader()


def test_a_released_lease_is_taken_at_once(world: Any, clock: Clock) -> None:
    changes: list[bool] = []
    a, b = election(world.api, "a", clock, changes), election(world.api, "b", clock)
    a.step()
    b.step()
    a.release()
    b.step()
    assert b.is_leader() and not a.is_leader() and changes == [True, False]
    a.release()  # a follower has nothing to give back
    assert world.api.get(LEASES, "myriad-scheduler", namespace="myriad-system")["spec"]["holderIdentity"] == "b"


def test_the_thread_gives_the_lease_back_at_its_end(world: Any, clock: Clock) -> None:
    stop = threading.Event()
    a = election(world.api, "a", clock)
    a._stopping = stop
    a.start()
    for _ in range(500):
        if a.is_leader():
            break
        stop.wait(0.01)
    assert a.is_leader()
    stop.set()
    a.join(timeout=5)
    assert world.api.get(LEASES, "myriad-scheduler", namespace="myriad-system")["spec"]["holderIdentity"] == ""
