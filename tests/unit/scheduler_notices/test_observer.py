"""The observer on a cluster in memory: who is told, when, how often, and after a failover."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest

from myriad.errors import MyriadError
from myriad.kube.client import ApiError
from myriad.kube.kinds import JOBS, PODS, WORKLOADS
from myriad.scheduler.notices.book import Book
from myriad.scheduler.notices.courier import Courier as RealCourier
from myriad.scheduler.notices.courier import Note
from myriad.scheduler.notices.observer import Notices
from myriad.scheduler.notices.targets import Address


class Courier:
    """Takes notes and keeps them; one that waits already is taken once, as by the real one."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, Note]] = []

    def send(self, target: str, note: Note) -> None:
        if not any(known.id == note.id for _, known in self.notes):
            self.notes.append((target, note))

    def put_down(self) -> bool:
        return False


class Teller:
    """One replica's observer."""

    def __init__(self, world: Any, courier: Any = None) -> None:
        self.world = world
        self.book = Book(world.api)
        self.courier = Courier() if courier is None else courier(self.book)
        self.notices = Notices(
            api=world.api,
            cache=world.cache,
            book=self.book,
            courier=self.courier,
            policy=lambda: world.policy,
            now=lambda: world.now,
            clock=world.clock,
        )

    def step(self, *, after_s: float = 0.25) -> None:
        self.world.wait(after_s)
        self.notices.step()


@pytest.fixture
def teller(world: Any) -> Teller:
    made = Teller(world)
    made.step()
    return made


def test_an_eviction_is_told_once(world: Any, teller: Teller) -> None:
    world.put(JOBS, _job(world, "clip-ft", {"myriad.dev/last-checkpoint": "2026-11-30T14:58:00Z"}))
    world.preempt()
    for _ in range(5):
        teller.step()
    ((target, note),) = teller.courier.notes
    assert target == "oncall" and note.body["eviction"]["preemptor"]["job"] == "asr-prod"
    assert "Last checkpoint 14:58" in note.text and "about 2 min of 16 GPUs" in note.text
    assert sorted(e["involvedObject"]["kind"] for e in world.events()) == ["Job", "Workload"]
    (record,) = teller.book
    assert record.facts["eviction"]["victim"]["job"] == "clip-ft"


def _job(world: Any, name: str, annotations: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "vision", "uid": f"job-uid-{name}", "annotations": annotations},
    }


def test_a_notice_waits_a_moment_for_the_kill_time_and_no_longer(world: Any, teller: Teller, make: Any) -> None:
    world.preempt()
    for i in range(2):
        world.put(PODS, make.pod(f"clip-ft-{i}", "clip-ft"))
    teller.step()
    assert not teller.courier.notes
    teller.step()
    teller.step()
    assert "killed at about" in teller.courier.notes[0][1].text


def test_a_second_eviction_of_the_same_job_is_another(world: Any, teller: Teller) -> None:
    world.preempt()
    teller.step()
    world.wait(600)
    teller.step()
    world.preempt()
    teller.step()
    assert len({note.id for _, note in teller.courier.notes}) == 2
    assert "This is the 2nd time." in teller.courier.notes[1][1].text


def test_a_restart_tells_nothing_again(world: Any, teller: Teller) -> None:
    world.preempt()
    teller.step()
    teller.book.append(teller.courier.notes[0][1].id, "sent-oncall", {"ok": True})
    again = Teller(world)
    again.step()
    assert not again.courier.notes and len(world.events()) == 2


def test_a_new_leader_goes_on_with_what_was_recorded_and_not_delivered(world: Any, teller: Teller) -> None:
    """The old one wrote the record and died: the Events are made once, the delivery keeps its id."""
    world.preempt()
    world.api.fail["events"] = [MyriadError("killed here"), MyriadError("killed here")]
    teller.step()
    assert not world.events()
    again = Teller(world)
    again.step()
    again.step()
    ((_, before),), ((_, after),) = teller.courier.notes, again.courier.notes
    assert before.id == after.id and before.text == after.text and before.at == after.at
    assert len(world.events()) == 2


def test_a_lease_that_was_late_for_a_moment_costs_no_notice(world: Any) -> None:
    """Too short a gap for another replica to lead; the target's thread had laid its notices aside all the same."""
    leads, answers, got = threading.Event(), [503], []
    leads.set()

    def answer(request: httpx.Request) -> httpx.Response:
        got.append(request.headers["Myriad-Notice"])
        return httpx.Response(answers[0])

    teller = Teller(
        world,
        lambda book: RealCourier(
            address=lambda name: Address(name, "webhook", "http://oncall/hook"),
            record=book.append,
            may_act=leads.is_set,
            backoff_s=0.01,
            clock=world.clock,
            client=httpx.Client(transport=httpx.MockTransport(answer)),
        ),
    )
    try:
        teller.step()
        world.preempt()
        teller.step()
        _until(lambda: got)
        leads.clear()
        _until(lambda: not any(t.name == "notify-oncall" for t in threading.enumerate()))
        leads.set()
        answers[0] = 204
        teller.step()
        _until(lambda: any("sent-oncall" in record.facts for record in teller.book))
    finally:
        teller.courier.close()
    (record,) = teller.book
    assert record.facts["sent-oncall"]["ok"] and len(set(got)) == 1


def _until(check: Callable[[], Any]) -> None:
    for _ in range(500):
        if check():
            return
        time.sleep(0.01)
    raise AssertionError("not within 5 s")


def test_two_leaders_at_once_tell_once(world: Any, teller: Teller) -> None:
    other = Teller(world)
    other.step()
    world.preempt()
    teller.step()
    other.step(after_s=0.0)
    assert len(teller.courier.notes) + len(other.courier.notes) == 1


def test_what_cannot_be_recorded_is_not_told_and_tried_again(world: Any, teller: Teller) -> None:
    world.preempt()
    world.api.fail["configmaps"] = [ApiError(500, "InternalError", "etcd is away", where="test")]
    with pytest.raises(MyriadError):
        teller.step()
    assert not teller.courier.notes and not world.events()
    teller.step()
    assert len(teller.courier.notes) == 1


def test_d23_the_record_outlives_job_workload_and_pods(world: Any, teller: Teller) -> None:
    world.preempt()
    teller.step()
    for i in range(2):
        world.drop(PODS, f"vision/clip-ft-{i}")
    world.drop(WORKLOADS, "vision/job-clip-ft")
    again = Book(world.api)
    again.load()
    (record,) = again
    assert record.facts["eviction"]["victim"]["job"] == "clip-ft"


def test_an_eviction_that_nobody_saw_is_recorded_afterwards(world: Any, make: Any) -> None:
    """Evicted and admitted again while no replica ran: Kueue's statistics and its old words are left."""
    message = "Previously: " + make.message.format(why="reclamation within the cohort")
    again = {"Evicted": ("False", "QuotaReserved", message), "Preempted": ("False", "QuotaReserved", message)}
    stats = {"evictions": [{"reason": "Preempted", "underlyingCause": "", "count": 1}]}
    world.put(WORKLOADS, make.workload("clip-ft", conditions=again, schedulingStats=stats))
    teller = Teller(world)
    teller.step()
    teller.step(after_s=31)
    ((_, note),) = teller.courier.notes
    assert "was stopped before" in note.text and "Nobody could tell it then." in note.text
    # One that was told when it happened is not told again.
    assert note.body["eviction"]["late"] is True


def test_a_told_eviction_is_not_taken_for_a_missed_one(world: Any, teller: Teller, make: Any) -> None:
    world.preempt()
    teller.step()
    message = "Previously: " + make.message.format(why="reclamation within the cohort")
    again = {"Evicted": ("False", "QuotaReserved", message), "Preempted": ("False", "QuotaReserved", message)}
    stats = {"evictions": [{"reason": "Preempted", "underlyingCause": "", "count": 1}]}
    world.wait(60)
    world.put(WORKLOADS, make.workload("clip-ft", conditions=again, schedulingStats=stats, at=world.now))
    teller.step()
    teller.step(after_s=31)
    assert len(teller.courier.notes) == 1


def test_a_hundred_victims_of_one_gang_are_one_record_write(world: Any, teller: Teller) -> None:
    for i in range(100):
        world.preempt(f"small-{i}", pods=1)
    world.api.writes.clear()
    teller.step()
    assert len(teller.courier.notes) == 100
    assert sum(kind == "configmaps" for _, kind, _, _ in world.api.writes) == 1


def test_the_place_in_the_queue_is_by_its_own_priority_not_by_its_shield(world: Any, teller: Teller, make: Any) -> None:
    waits = {"Admitted": ("False", "", "")}
    for name, priority, created in (("older", 500, "09"), ("younger", 500, "11"), ("urgent", 1000, "12")):
        body = make.workload(
            name, conditions=waits, priority=priority, created=f"2026-11-30T{created}:00:00Z", priority_class="x"
        )
        world.put(WORKLOADS, body)
    world.preempt(priority=1501, priority_class="normal-shielded")
    teller.step()
    eviction = teller.courier.notes[0][1].body["eviction"]
    assert eviction["position"] == 3 and eviction["shielded"] is True
    assert eviction["victim"]["priority"] == 500 and eviction["victim"]["priority_class"] == "normal"


def test_an_owner_who_is_deleted_a_namespace_that_refuses_events_and_no_targets_are_no_error(
    world: Any, teller: Teller, make: Any
) -> None:
    body = make.workload("bare", namespace="speech", conditions=make.preempted(), at=world.now)
    body["metadata"]["ownerReferences"] = []
    world.put(WORKLOADS, body)
    world.api.fail["events"] = [ApiError(403, "Forbidden", "the namespace is being terminated", where="test")]
    for _ in range(4):
        teller.step()
    assert not teller.courier.notes and [r.facts["eviction"]["victim"]["job"] for r in teller.book] == ["job-bare"]


def test_kill_times_are_those_of_each_gangs_own_grace(world: Any, teller: Teller, make: Any) -> None:
    world.preempt(pods=1)
    world.put(PODS, make.pod("clip-ft-0", "clip-ft", grace_s=900, deleted_at=world.now))
    told = world.now
    teller.step()
    eviction = teller.courier.notes[0][1].body["eviction"]
    assert eviction["grace_s"] == 900 and eviction["kill_at"] == f"{told + timedelta(seconds=900):%Y-%m-%dT%H:%M:%SZ}"


def test_what_was_evicted_long_before_anybody_looked_is_recorded_and_told_nobody(world: Any, make: Any) -> None:
    """The extension comes to a cluster that has run for months: its owners get no flood of what they know."""
    world.preempt("waits-since-yesterday")
    message = "Previously: " + make.message.format(why="reclamation within the cohort")
    again = {"Evicted": ("False", "QuotaReserved", message), "Preempted": ("False", "QuotaReserved", message)}
    stats = {"evictions": [{"reason": "Preempted", "underlyingCause": "", "count": 1}]}
    world.put(WORKLOADS, make.workload("runs-again", conditions=again, schedulingStats=stats))
    world.wait(24 * 3600)
    teller = Teller(world)
    for _ in range(4):
        teller.step()
    assert not teller.courier.notes and not world.events()
    told = {record.facts["eviction"]["victim"]["job"] for record in teller.book}
    assert told == {"waits-since-yesterday", "runs-again"}
    # Nor by whoever leads next.
    again_leading = Teller(world)
    again_leading.step()
    assert not again_leading.courier.notes and not world.events()
