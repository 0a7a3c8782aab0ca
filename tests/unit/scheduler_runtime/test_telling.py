"""The first cause as a condition and an Event: on change only, the new first, within a budget."""

from __future__ import annotations

import copy
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from myriad.kube.client import ApiError
from myriad.kube.kinds import JOBS, PYTORCH_JOBS, WORKLOADS
from myriad.scheduler.events import EventSink
from myriad.scheduler.telling import Pace, Series, Telling, Writer

Json = dict[str, Any]


class Recorder:
    """An API that keeps what is written on jobs and Workloads."""

    def __init__(self) -> None:
        self.writes: list[tuple[str, str, str, Json]] = []
        self.events: list[tuple[str, str]] = []
        self.error: Exception | None = None
        self.stored: Json = {}

    def patch(self, resource: Any, name: str, body: Json, *, kind: str = "merge", **_: Any) -> Json:
        if self.error is not None:
            raise self.error
        self.writes.append((resource.plural, name, kind, copy.deepcopy(body)))
        return body

    def get(self, *_: Any, **__: Any) -> Json:
        return copy.deepcopy(self.stored)

    def create_event(self, about: Json, *, reason: str, message: str, **_: Any) -> None:
        self.events.append((f"{about['kind']}/{about['metadata']['name']}", message))

    def conditions(self, plural: str, name: str) -> list[Json]:
        return [b["status"]["conditions"][-1] for p, n, _, b in self.writes if (p, n) == (plural, name)]


class Desk:
    """Observer and writer over the cluster in memory."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.api = Recorder()
        events = EventSink(self.api, interval_s=60, clock=lambda: world.now)  # type: ignore[arg-type]
        stop = threading.Event()
        stop.set()  # nobody waits for the pace here, and no thread is started
        self.writer = Writer(
            self.api,
            events,
            Series(CollectorRegistry()),
            per_s=1000,
            stop=stop,  # type: ignore[arg-type]
        )
        self.telling = Telling(world.cache, self.writer, event_interval_s=60, clock=lambda: world.now)

    def step(self) -> None:
        self.world.now += 10
        self.telling.step()
        while self.writer.write_one():
            pass


@pytest.fixture
def desk(world: Any) -> Desk:
    return Desk(world)


def held(make: Any, name: str = "first") -> Json:
    return make.workload(name, pods=4, assigned={f"n{i}": 1 for i in range(4)}, admitted=True)  # type: ignore[no-any-return]


def test_the_first_cause_is_written_once_on_job_and_workload_and_as_an_event(desk: Desk, make: Any) -> None:
    desk.world.put(WORKLOADS, held(make))
    desk.world.put(WORKLOADS, make.workload("a"))
    for _ in range(4):
        desk.step()
    (on_job,) = desk.api.conditions("jobs", "a")
    assert on_job["type"] == "myriad.dev/Waiting" and on_job["status"] == "True"
    assert on_job["reason"] == "WaitingForQuota" and on_job["message"].startswith("waits for quota: needs 16 GPUs")
    assert desk.api.conditions("workloads", "job-a") == [on_job]
    assert [e for e in desk.api.events if e[0] == "Job/a"] == [("Job/a", on_job["message"])]
    # A Job's list is atomic: only a strategic merge leaves the job controller's own entries.
    assert {k for p, _, k, _ in desk.api.writes if p == "jobs"} == {"strategic"}


def test_what_passes_by_itself_is_not_written_on_a_job_that_just_came(desk: Desk, make: Any) -> None:
    """Five writes for each of hundreds that come at once and get in would slow down all of them."""
    new, old = make.workload("a"), make.workload("b")
    new["metadata"]["creationTimestamp"] = datetime.now(UTC).isoformat(timespec="seconds")
    for body in (new, old):
        body["status"].pop("conditions", None)
        desk.world.put(WORKLOADS, body)
    desk.step()
    assert desk.api.conditions("jobs", "a") == []
    assert [c["reason"] for c in desk.api.conditions("jobs", "b")] == ["NotYetReached"]
    new["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    desk.world.put(WORKLOADS, new)
    desk.step()
    assert len(desk.api.conditions("jobs", "a")) == 1


def test_f11_figures_that_move_are_not_written_each_time(desk: Desk, make: Any) -> None:
    desk.world.put(WORKLOADS, held(make))
    desk.world.put(WORKLOADS, make.workload("a", priority=1))
    desk.world.put(WORKLOADS, make.workload("b"))
    desk.step()
    assert "2nd in the queue" in desk.api.conditions("jobs", "b")[0]["message"]
    desk.world.drop(WORKLOADS, "vision/job-a")
    desk.step()
    assert len(desk.api.conditions("jobs", "b")) == 1  # only its place has changed
    for _ in range(7):
        desk.step()
    assert "1st in the queue" in desk.api.conditions("jobs", "b")[1]["message"]  # a minute later it is said


def test_a_write_that_fails_oddly_does_not_end_the_others(desk: Desk, make: Any) -> None:
    desk.world.put(WORKLOADS, held(make))
    desk.world.put(WORKLOADS, make.workload("a"))
    desk.api.error = ValueError("a proxy's page where JSON was expected")
    desk.step()
    assert desk.api.writes == []
    desk.api.error = None
    desk.world.put(WORKLOADS, make.workload("b"))
    desk.step()
    assert desk.api.conditions("jobs", "b")


def test_c3_what_no_longer_holds_is_taken_back(desk: Desk, make: Any) -> None:
    desk.world.put(WORKLOADS, held(make))
    desk.world.put(WORKLOADS, make.workload("a"))
    desk.step()
    desk.world.drop(WORKLOADS, "vision/job-first")
    desk.world.put(WORKLOADS, make.workload("a", assigned={"n0": 1, "n1": 1}, admitted=True))
    desk.step()
    assert [c["status"] for c in desk.api.conditions("jobs", "a")] == ["True", "False"]
    assert [c["status"] for c in desk.api.conditions("workloads", "job-a")] == ["True", "False"]


def test_a_new_leader_repeats_nothing_that_stands_there(world: Any, make: Any) -> None:
    world.put(WORKLOADS, held(make))
    body = make.workload("a")
    world.put(WORKLOADS, body)
    first = Desk(world)
    first.step()
    (said,) = first.api.conditions("workloads", "job-a")
    body["status"]["conditions"].append(said)
    world.put(WORKLOADS, body)
    second = Desk(world)
    second.step()
    assert second.api.writes == [] and second.api.events == []


def test_a_pytorchjob_keeps_the_conditions_of_its_operator(desk: Desk, make: Any) -> None:
    body = make.workload("p", gpus=16)
    body["metadata"]["ownerReferences"][0] |= {"kind": "PyTorchJob", "apiVersion": "kubeflow.org/v1"}
    created = {"type": "Created", "status": "True"}
    desk.api.stored = {
        "metadata": {"uid": "job-uid-p", "resourceVersion": "7"},
        "status": {"conditions": [created, {"type": "myriad.dev/Waiting", "status": "False"}]},
    }
    desk.world.put(WORKLOADS, body)
    desk.step()
    (patch,) = [b for p, _, _, b in desk.api.writes if p == PYTORCH_JOBS.plural]
    assert patch["metadata"]["resourceVersion"] == "7"
    kept, ours = patch["status"]["conditions"]
    assert kept == created and ours["reason"] == "NeverFits" and "no node of pool h100 has 16 GPUs" in ours["message"]


def test_without_the_right_on_jobs_the_workload_still_says_it(desk: Desk, make: Any) -> None:
    desk.world.put(WORKLOADS, held(make))
    desk.world.put(WORKLOADS, make.workload("a"))
    real = desk.api.patch

    def refuse(resource: Any, name: str, body: Json, **more: Any) -> Json:
        if resource is JOBS:
            raise ApiError(403, "Forbidden", "no", where="test")
        return real(resource, name, body, **more)

    desk.api.patch = refuse  # type: ignore[method-assign]
    desk.step()
    assert len(desk.api.conditions("workloads", "job-a")) == 1 and desk.api.events
    desk.world.put(WORKLOADS, make.workload("b"))
    desk.step()
    assert len(desk.api.conditions("workloads", "job-b")) == 1


def test_f12_the_pace_falls_when_the_api_server_is_slow_and_comes_back() -> None:
    now = [0.0]
    pace = Pace(100.0, clock=lambda: now[0])
    waits = [pace.wait_s() for _ in range(3)]
    assert waits[0] == 0.0 and waits[2] > 0
    pace.answered(0.01, refused=True)
    pace.answered(3.0, refused=False)
    assert pace.rate == 25.0
    for _ in range(200):
        pace.answered(0.01, refused=False)
    assert pace.rate == 100.0
    for _ in range(50):
        pace.answered(5.0, refused=False)
    assert pace.rate == 1.0  # never silent


def test_a20_an_admitted_gang_without_nodes_is_told_why(desk: Desk, make: Any) -> None:
    from myriad.kube.kinds import PODS

    desk.world.put(WORKLOADS, make.workload("a", pods=1, assigned={"n0": 1}, admitted=True))
    body = make.pod("a-0", of="a", phase="Pending")
    said = "0/8 nodes are available: 8 Insufficient nvidia.com/gpu."
    body["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    ]
    desk.world.put(PODS, body)
    desk.step()
    (condition,) = desk.api.conditions("jobs", "a")
    assert condition["message"] == f"admitted, not placeable: kube-scheduler finds no node: {said}"
