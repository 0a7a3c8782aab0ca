"""Stuck pods, half gangs and pods that nobody owns."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from myriad.kube.client import ApiError
from myriad.kube.kinds import NODES, PODS, WORKLOADS
from myriad.scheduler.notices.aftermath import Aftermath
from myriad.scheduler.notices.book import Book
from myriad.scheduler.notices.facts import Eviction, Party
from myriad.scheduler.notices.trouble import half_gone, ownerless, stuck
from myriad.scheduler.objects import workload_view


def test_d14_a_victim_that_does_not_end_is_named_with_what_its_node_says(make: Any) -> None:
    told = make.now - timedelta(seconds=30)
    pod = make.pod("clip-0", "clip", grace_s=30, deleted_at=told)
    over = make.now + timedelta(seconds=0)
    assert stuck([pod], {"g1": True}, over + timedelta(seconds=59)) == []
    late = over + timedelta(minutes=10)
    words = {ready: stuck([pod], nodes, late)[0].sentence(late) for ready, nodes in (
        ("yes", {"g1": True}), ("no", {"g1": False}), ("gone", {})
    )}  # fmt: skip
    assert all("should have ended 10 min ago and still holds 8 GPUs of g1" in text for text in words.values())
    assert "cannot be killed" in words["yes"] and "--force" not in words["yes"]
    assert "out-of-service" in words["no"] and "powered off for certain" in words["no"]
    assert "--force" in words["gone"]


def test_a_pod_that_ended_and_is_held_by_a_finalizer_says_which(make: Any) -> None:
    pod = make.pod("a", "clip", grace_s=0, deleted_at=make.now, phase="Failed", finalizers=["x.io/backup"])
    late = make.now + timedelta(minutes=5)
    assert "x.io/backup holds the object" in stuck([pod], {"g1": True}, late)[0].sentence(late)
    assert stuck([make.pod("b", "clip", grace_s=0, deleted_at=make.now, phase="Failed")], {"g1": True}, late) == []


def view_of(body: Any) -> Any:
    return workload_view(body, check_name="myriad")


def test_d2_d25_a_gang_of_which_a_part_is_gone_is_named_and_what_it_holds(make: Any) -> None:
    view = view_of(make.workload("clip", pods=4))
    here = [make.pod(f"clip-{i}", "clip") for i in range(3)]
    gone = make.pod("clip-3", "clip", deleted_at=make.now)
    gone["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    later = make.now + timedelta(seconds=200)
    half = half_gone(view, [*here, gone], later, patience_s=120)
    assert half is not None and (half.missing, half.pods, half.gpus) == (1, 4, 24)
    assert "evicted one by one (PreemptionByScheduler)" in half.sentence(later) and "24 GPUs" in half.sentence(later)
    # Its controller has a while to make it again; and a gang that is evicted whole is none.
    assert half_gone(view, [*here, gone], make.now + timedelta(seconds=60), patience_s=120) is None
    evicted = view_of(make.workload("clip", pods=4, conditions=make.preempted()))
    assert half_gone(evicted, [*here, gone], later, patience_s=120) is None
    # Pods that left no trace count from when that was seen.
    assert half_gone(view, here, later, patience_s=120) is None
    assert half_gone(view, here, later, patience_s=120, seen_at=make.now) is not None
    # A pod that failed an hour ago and was made again is not the one that is missing.
    old = make.pod("clip-3-old", "clip", phase="Failed")
    ended = {"finishedAt": "2026-11-30T13:00:00Z", "exitCode": 1}
    old["status"]["containerStatuses"] = [{"state": {"terminated": ended}}]
    assert half_gone(view, [*here, old, gone], make.now + timedelta(seconds=60), patience_s=120) is None
    assert half_gone(view, [*here, old, gone], later, patience_s=120) == half


def test_pods_that_ended_well_and_elastic_gangs_are_not_half_gone(make: Any) -> None:
    later = make.now + timedelta(seconds=600)
    view = view_of(make.workload("clip", pods=2))
    done = [make.pod("a", "clip"), make.pod("b", "clip", phase="Succeeded", exit_code=0)]
    assert half_gone(view, done, later, patience_s=120, seen_at=make.now) is None
    body = make.workload("clip", pods=4)
    body["spec"]["podSets"][0]["minCount"] = 2
    two = [make.pod(f"c{i}", "clip") for i in range(2)]
    assert half_gone(view_of(body), two, later, patience_s=120, seen_at=make.now) is None


def test_d23_a_pod_that_nobody_owns_is_warned_of(make: Any) -> None:
    bare = make.pod("bare", "")
    assert "belongs to no Job" in ownerless(bare)
    assert ownerless(make.pod("owned", "clip")) == ""
    assert ownerless(make.pod("ended", "", phase="Succeeded")) == ""
    bare["spec"]["containers"][0]["resources"] = {}
    assert ownerless(bare) == ""


# The observer


class Tail:
    """An aftermath with a world."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.book = Book(world.api)
        self.after = Aftermath(
            api=world.api, cache=world.cache, book=self.book, policy=lambda: world.policy, now=lambda: world.now
        )

    def step(self, after_s: float = 5.0) -> None:
        self.world.wait(after_s)
        self.after.step()

    def reasons(self) -> list[str]:
        return sorted(e["reason"] for e in self.world.events())

    def evicted(self, **changes: Any) -> str:
        stamp = f"{self.world.now:%Y-%m-%dT%H:%M:%SZ}"
        values: dict[str, Any] = {
            "victim": Party("vision", "clip-ft", "vision", uid="uid-clip-ft", gpus=16),
            "preemptor": Party("speech", "asr-prod", "speech", uid="uid-asr-prod"),
            "grace_s": 30,
            **changes,
        }
        e = Eviction(
            f"uid-clip-ft.{stamp.replace(':', '').replace('-', '')}", stamp, "Preempted",
            policy="InCohortReclamation", seen_at=stamp, sigterm_at=stamp, **values,
        )  # fmt: skip
        self.book.append(e.id, "eviction", e.as_dict())
        return e.id


def test_what_became_of_an_eviction_is_recorded_step_by_step(world: Any, make: Any) -> None:
    tail = Tail(world)
    world.preempt()
    identity = tail.evicted()
    tail.step()
    assert tail.book.fact(identity, "ended") is None
    saved = f"{world.now:%Y-%m-%dT%H:%M:%SZ}"
    for i in range(2):
        world.put(
            PODS,
            make.pod(
                f"clip-ft-{i}", "clip-ft", phase="Failed", exit_code=143, deleted_at=world.now,
                annotations={"myriad.dev/last-checkpoint": saved},
            ),
        )  # fmt: skip
    tail.step()
    assert (tail.book.fact(identity, "ended") or {})["saved_at"] == saved
    world.put(WORKLOADS, make.workload("asr-prod", namespace="speech", pods=1))
    tail.step()
    assert (tail.book.fact(identity, "preemptor") or {})["started"] is True
    world.put(WORKLOADS, make.workload("clip-ft"))
    tail.step()
    assert tail.book.fact(identity, "again") is not None


def test_d21_exit_0_after_sigterm_is_told_to_the_owner_once(world: Any, make: Any) -> None:
    tail = Tail(world)
    world.preempt()
    tail.evicted()
    world.put(PODS, make.pod("clip-ft-0", "clip-ft", phase="Succeeded", exit_code=0, deleted_at=world.now))
    for _ in range(3):
        tail.step()
    assert tail.reasons().count("MyriadExitZero") == 2  # Job and Workload


def test_d10_an_eviction_for_nothing_is_told_after_the_grace(world: Any) -> None:
    tail = Tail(world)
    world.preempt()
    identity = tail.evicted()
    tail.step(60)
    assert tail.book.fact(identity, "preemptor") is None
    tail.step(60)
    assert (tail.book.fact(identity, "preemptor") or {})["why"] == "waits"
    assert "MyriadPreemptedInVain" in tail.reasons()


def test_d13_an_impossible_preemptor_is_told_at_once(world: Any, make: Any) -> None:
    tail = Tail(world)
    world.preempt()
    identity = tail.evicted()
    body = make.workload("asr-prod", namespace="speech", conditions={"Admitted": ("False", "", "")})
    body["metadata"]["annotations"] = {"myriad.dev/refused": "no node of pool h100 has 16 GPUs"}
    world.put(WORKLOADS, body)
    tail.step()
    assert (tail.book.fact(identity, "preemptor") or {})["why"] == "impossible"


def test_a_loop_is_told_once_over_restarts(world: Any) -> None:
    tail = Tail(world)
    world.preempt()
    for _ in range(3):
        tail.evicted()
        world.wait(120)
    tail.step()
    tail.step()
    told = tail.reasons().count("MyriadPreemptionLoop")
    again = Tail(world)
    again.book.load()
    again.step()
    assert told == 4 and again.reasons().count("MyriadPreemptionLoop") == told


def test_d14_a_stuck_victim_is_told(world: Any) -> None:
    tail = Tail(world)
    world.put(NODES, {"metadata": {"name": "g0"}, "spec": {}, "status": {}})
    world.preempt(pods=1)
    tail.step(301)
    assert "MyriadStuck" not in tail.reasons()
    tail.step(61)
    assert tail.reasons().count("MyriadStuck") == 2


def test_what_an_api_server_has_no_time_for_is_told_later(world: Any) -> None:
    tail = Tail(world)
    world.put(NODES, {"metadata": {"name": "g0"}, "spec": {}, "status": {}})
    world.preempt(pods=1)
    busy = ApiError(429, "TooManyRequests", "too many requests", where="events")
    world.api.fail["events"] = [busy, ApiError(503, "ServiceUnavailable", "etcd has no leader", where="events")]
    tail.step(362)
    assert tail.reasons() == []
    tail.step()
    assert tail.reasons().count("MyriadStuck") == 2


def test_a_checkpoint_that_is_not_promised_is_warned_of_at_submit_and_never_later(world: Any, make: Any) -> None:
    waits = {"Admitted": ("False", "", "")}
    created = f"{world.now:%Y-%m-%dT%H:%M:%SZ}"
    world.put(WORKLOADS, make.workload("new", conditions=waits, created=created))
    world.put(WORKLOADS, make.workload("old", conditions=waits))
    promised = {"myriad.dev/checkpoint-interval": "15m"}
    world.put(WORKLOADS, make.workload("good", conditions=waits, created=created, annotations=promised))
    tail = Tail(world)
    tail.step()
    tail.step()
    (event,) = [e for e in world.events() if e["reason"] == "MyriadCheckpoint"]
    assert event["involvedObject"]["name"] == "new" and event["involvedObject"]["kind"] == "Job"
    Tail(world).step()
    assert tail.reasons().count("MyriadCheckpoint") == 1
