"""What the loop writes, and above all what it does not: every rule of docs/adr/0010-steering.md."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from myriad.errors import MyriadError
from myriad.kube.client import ApiError, Json
from myriad.kube.kinds import ADMISSION_CHECKS, CLUSTER_QUEUES, NODES, PODS, WORKLOADS

RACK = "myriad.dev/rack"


def workload_writes(world: Any) -> list[Any]:
    return [w for w in world.api.writes if w[0] == "workloads"]


def test_the_check_is_made_active_before_it_is_attached(world: Any, make: Any) -> None:
    check = world.api.get(ADMISSION_CHECKS, "myriad")
    check["status"] = {}
    world.put(ADMISSION_CHECKS, check)
    world.put(CLUSTER_QUEUES, make.cluster_queue("speech-h100"))
    world.run()
    assert [w[0] for w in world.api.writes] == ["admissionchecks"]
    world.run()
    assert world.api.writes[-1][1] == "speech-h100"
    assert world.api.writes[-1][2]["spec"] == {"admissionChecksStrategy": {"admissionChecks": [{"name": "myriad"}]}}


@pytest.mark.parametrize("change", ["absent", "foreign"])
def test_without_its_own_check_nothing_is_attached(world: Any, make: Any, change: str) -> None:
    if change == "absent":
        world.drop(ADMISSION_CHECKS, "myriad")
    else:
        check = world.api.get(ADMISSION_CHECKS, "myriad")
        check["spec"]["controllerName"] = "somebody.else"
        world.put(ADMISSION_CHECKS, check)
    world.put(CLUSTER_QUEUES, make.cluster_queue("speech-h100"))
    world.run()
    assert world.api.writes == []


def test_queues_outside_the_description_are_left_alone(world: Any, make: Any) -> None:
    queue = make.cluster_queue("foreign")
    queue["metadata"]["labels"] = {}
    world.put(CLUSTER_QUEUES, queue)
    world.run()
    assert world.api.writes == []


def test_an_entry_for_some_flavors_only_is_widened(world: Any, make: Any) -> None:
    queue = make.cluster_queue()
    queue["spec"]["resourceGroups"][0]["flavors"].append({"name": "a100", "resources": []})
    queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": "myriad", "onFlavors": ["h100"]}]}
    world.put(CLUSTER_QUEUES, queue)
    world.run()
    assert world.api.writes[-1][2]["spec"] == {"admissionChecksStrategy": {"admissionChecks": [{"name": "myriad"}]}}


def test_a_gang_with_an_assignment_is_accepted_without_a_selector(world: Any, make: Any) -> None:
    stale = [{"name": "main", "nodeSelector": {RACK: "hall1.b1.r1"}}]
    world.put(WORKLOADS, make.workload("a", assigned={"n0": 1, "n1": 1}, updates=stale))
    world.run(2)
    entry = world.entry("a")
    assert entry["state"] == "Ready" and entry["podSetUpdates"] == []
    assert len(workload_writes(world)) == 1
    (record,) = world.records("assigned")
    assert record.assigned == {"n0": 1, "n1": 1} and record.agree is True
    assert ("Job/a", "MyriadPlaced", "placed on n0, n1 (hall1/b1/r0)") in world.api.events


def test_a_difference_from_the_own_plan_is_recorded(world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("a", assigned={"n0": 1, "n7": 1}))
    world.run()
    (record,) = world.records("assigned")
    assert record.agree is False and record.tier == "rack" and record.assigned_tier == "block"
    assert world.metrics.differences._value.get() == 1


def test_a_waiting_gang_that_fits_is_steered(world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("a", conditions={"QuotaReserved": ("False", "insufficient quota")}))
    world.run(3)
    entry = world.entry("a")
    assert entry["state"] == "Ready"
    assert entry["podSetUpdates"] == [{"name": "main", "nodeSelector": {RACK: "hall1.b1.r0"}}]
    assert len(workload_writes(world)) == 1
    (record,) = world.records("steered")
    assert record.nodes == {"n0": 1, "n1": 1} and record.inputs.startswith("sha256:")


def test_a_waiting_gang_that_fits_nowhere_now_is_left_to_kueue(world: Any, make: Any) -> None:
    for i in range(8):
        world.put(PODS, make.pod(f"p{i}", node_name=f"n{i}", gpus=1))
    world.put(WORKLOADS, make.workload("a"))
    world.run(2)
    assert world.entry("a")["state"] == "Pending" and not workload_writes(world)


def test_a_gang_is_released_when_its_domain_fills_up_and_steered_elsewhere(world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("a", pods=4))
    world.run(2)
    assert world.entry("a")["podSetUpdates"][0]["nodeSelector"] == {RACK: "hall1.b1.r0"}
    world.put(PODS, make.pod("intruder", node_name="n0"))
    world.run()
    # Kueue's webhook refuses a change in place: first back to Pending.
    assert world.entry("a")["state"] == "Pending" and world.entry("a")["podSetUpdates"] == []
    world.run()
    assert world.entry("a")["podSetUpdates"][0]["nodeSelector"] == {RACK: "hall1.b1.r1"}
    world.put(PODS, make.pod("second", node_name="n7"))
    world.run(2)
    # Only the block is left; nothing narrower holds four whole nodes.
    assert world.entry("a")["podSetUpdates"][0]["nodeSelector"] == {"myriad.dev/block": "hall1.b1"}
    world.put(PODS, make.pod("third", node_name="n6"))
    world.put(PODS, make.pod("fourth", node_name="n5"))
    world.put(PODS, make.pod("fifth", node_name="n4"))
    world.run(3)
    assert world.entry("a")["state"] == "Pending" and world.entry("a")["podSetUpdates"] == []


def test_a_better_domain_is_no_reason_to_write(world: Any, make: Any) -> None:
    for i in range(4):
        world.put(PODS, make.pod(f"p{i}", node_name=f"n{i}"))
    world.put(WORKLOADS, make.workload("a"))
    world.run(2)
    assert world.entry("a")["podSetUpdates"][0]["nodeSelector"] == {RACK: "hall1.b1.r1"}
    for i in range(2):
        world.drop(PODS, f"vision/p{i}")
    written = len(workload_writes(world))
    world.run(3)
    assert len(workload_writes(world)) == written


def test_gangs_are_planned_in_order_and_not_onto_the_same_nodes(world: Any, make: Any) -> None:
    for i, (name, priority) in enumerate((("late", 0), ("urgent", 10), ("early", 0))):
        created = f"2026-01-01T00:00:0{3 - i}Z"
        world.put(WORKLOADS, make.workload(name, pods=4, priority=priority, created=created))
    world.run(2)
    # Two racks for three gangs: by priority, then by age; the last is left to Kueue.
    selectors = {n: world.entry(n).get("podSetUpdates", []) for n in ("urgent", "early", "late")}
    assert selectors["urgent"] and selectors["early"] and not selectors["late"]
    assert selectors["urgent"] != selectors["early"]


def test_a_gang_of_the_same_second_does_not_push_a_steered_one_from_its_domain(world: Any, make: Any) -> None:
    first = make.workload("first", pods=4)
    first["metadata"]["uid"] = "z"
    world.put(WORKLOADS, first)
    world.run(2)
    led = world.entry("first")["podSetUpdates"]
    second = make.workload("second", pods=4)
    second["metadata"]["uid"] = "a"
    world.put(WORKLOADS, second)
    world.run(2)
    assert led and world.entry("first")["podSetUpdates"] == led
    assert world.entry("second")["podSetUpdates"] and world.entry("second")["podSetUpdates"] != led


def test_only_the_first_of_a_long_queue_are_planned(world: Any, make: Any) -> None:
    from myriad.scheduler.settings import Settings

    world.steering._settings = Settings(planned_per_queue=1)
    world.put(WORKLOADS, make.workload("a", pods=1, gpus=1))
    world.put(WORKLOADS, make.workload("b", pods=1, gpus=1, created="2026-01-02T00:00:00Z"))
    world.run(2)
    assert world.entry("a")["state"] == "Ready" and world.entry("b")["state"] == "Pending"


@pytest.mark.parametrize(
    "state",
    [
        {"conditions": {"Evicted": ("True", "")}},
        {"conditions": {"Evicted": ("True", "")}, "assigned": {"n0": 2}},
        {"conditions": {"Finished": ("True", "")}},
        {"active": False},
        {"state": "Retry"},
        {"state": "Rejected"},
        {"state": None},
        {"assigned": {"n0": 2}, "state": "Ready", "updates": [{"name": "main", "nodeSelector": {RACK: "hall1.b1.r0"}}]},
    ],
)
def test_nothing_is_written_where_nothing_may_be_written(world: Any, make: Any, state: dict[str, Any]) -> None:
    body = make.workload("a", gpus=4, **state)
    world.put(WORKLOADS, body)
    world.run(2)
    assert not workload_writes(world)


@pytest.mark.parametrize(("stands", "sent_back"), [(False, True), (True, False)])
def test_a_gang_whose_nodes_came_without_the_selector_in_its_entry_goes_back_once(
    world: Any, make: Any, *, stands: bool, sent_back: bool
) -> None:
    """Seen at 1,250 nodes: Kueue chose before the entry was there, and admitted with ours, written in between. Its pods
    fit no node. A gang of which a pod stands is none of these: there a node's label has changed."""
    away = [{"name": "main", "nodeSelector": {RACK: "hall1.b1.r1"}}]
    world.put(WORKLOADS, make.workload("a", assigned={"n0": 2}, state="Ready", updates=away, admitted=True))
    if stands:
        world.put(PODS, make.pod("a-0", of="a", node_name="n0"))
    world.run(3)
    assert [w[2]["status"]["admissionChecks"][0]["state"] for w in workload_writes(world)] == ["Retry"] * sent_back
    if sent_back:
        assert "led away from" in world.entry("a")["message"] and world.entry("a")["podSetUpdates"] == []


def test_a_gang_that_kueue_has_not_looked_at_yet_is_not_steered(world: Any, make: Any) -> None:
    """Kueue looks at a new gang at once: what is written meanwhile may come between its look and its admission."""
    new = make.workload("a")
    new["metadata"]["creationTimestamp"] = datetime.now(UTC).isoformat(timespec="seconds")
    new["status"].pop("conditions", None)
    world.put(WORKLOADS, new)
    world.run(2)
    assert not workload_writes(world)
    new["status"]["conditions"] = [{"type": "QuotaReserved", "status": "False", "message": "insufficient quota"}]
    world.put(WORKLOADS, new)
    world.run(2)
    assert world.entry("a")["podSetUpdates"] == [{"name": "main", "nodeSelector": {RACK: "hall1.b1.r0"}}]


def test_a_workload_that_is_being_deleted_is_left_alone(world: Any, make: Any) -> None:
    body = make.workload("a")
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.put(WORKLOADS, body)
    world.run(2)
    assert not workload_writes(world)


def test_a_change_in_between_is_a_conflict_and_is_looked_at_again(world: Any, make: Any) -> None:
    """Kueue reserves quota between our look and our write: the selector must not land on that assignment."""
    waiting = make.workload("a", pods=2)
    world.put(WORKLOADS, waiting)
    assigned = make.workload("a", pods=2, assigned={"n6": 1, "n7": 1})
    world.api.before_write = lambda: world.api.put(WORKLOADS, assigned) and None
    world.run()
    assert world.metrics.conflicts._value.get() == 1
    assert world.entry("a")["state"] == "Pending"
    world.run()
    assert world.entry("a") | {"lastTransitionTime": ""} == {
        "name": "myriad",
        "state": "Ready",
        "message": "accepted as placed by Kueue: n6, n7",
        "lastTransitionTime": "",
        "podSetUpdates": [],
    }


def test_other_checks_on_the_workload_are_not_touched(world: Any, make: Any) -> None:
    body = make.workload("a")
    other = {"name": "budget", "state": "Pending", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    body["status"]["admissionChecks"].append(other)
    world.put(WORKLOADS, body)
    world.run(2)
    after = world.api.get(WORKLOADS, "job-a", namespace="vision")["status"]["admissionChecks"]
    assert after[1] == other and after[0]["state"] == "Ready"


def test_a_gang_that_can_never_fit_is_told_once_and_not_deactivated(world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("huge", gpus=16))
    world.run(3)
    told = [e for e in world.api.events if e[1] == "MyriadRefused"]
    assert [e[0] for e in told] == ["Job/huge", "Workload/job-huge"]
    assert "no node of pool h100 has 16 GPUs (8 at most)" in told[0][2]
    body = world.api.get(WORKLOADS, "job-huge", namespace="vision")
    assert body["metadata"]["annotations"]["myriad.dev/refused"] == told[0][2]
    assert body["spec"].get("active") is None and world.entry("huge")["state"] == "Pending"
    assert len(world.records("refused")) == 1
    world.put(NODES, make.node("big1", ("hall1", "b2", "r1"), gpus=16))
    world.put(NODES, make.node("big2", ("hall1", "b2", "r1"), gpus=16))
    world.run(2)
    body = world.api.get(WORKLOADS, "job-huge", namespace="vision")
    assert "myriad.dev/refused" not in body["metadata"]["annotations"]
    assert world.entry("huge")["state"] == "Ready"


def test_a_refusal_that_met_a_change_in_between_is_noted_by_the_next_pass(world: Any, make: Any) -> None:
    """The reason's own observer writes the same Workload: the refusal must not be lost with one conflict."""
    huge = make.workload("huge", gpus=16)
    world.put(WORKLOADS, huge)
    world.api.before_write = lambda: world.api.put(WORKLOADS, huge) and None
    world.run()
    assert world.metrics.conflicts._value.get() == 1
    world.run(2)
    told = [e for e in world.api.events if e[1] == "MyriadRefused"]
    body = world.api.get(WORKLOADS, "job-huge", namespace="vision")
    assert body["metadata"]["annotations"]["myriad.dev/refused"] == told[0][2]
    assert len(told) == 2 and len(world.records("refused")) == 1


def test_a_pool_without_a_node_refuses_nobody_for_good(world: Any, make: Any) -> None:
    for i in range(8):
        world.drop(NODES, f"n{i}")
    world.put(WORKLOADS, make.workload("a"))
    world.run(2)
    assert not [e for e in world.api.events if e[1] == "MyriadRefused"]


def parked(make: Any, **more: Any) -> Any:
    message = "couldn't assign flavors to pod set main: topology \"myriad\" doesn't allow to fit any of 2 pod(s)"
    return make.workload("a", conditions={"QuotaReserved": ("False", message)}, **more)


def nudges(world: Any) -> list[Any]:
    return [w[2]["spec"]["admissionChecksStrategy"] for w in world.api.writes if w[0] == "clusterqueues"]


def test_kueue_is_asked_to_look_again_at_a_gang_that_it_parked_and_that_fits(world: Any, make: Any) -> None:
    world.put(WORKLOADS, parked(make))
    world.run(2)
    assert world.entry("a")["state"] == "Ready" and not nudges(world)
    world.now += 3.1
    world.run()
    assert nudges(world) == [{"admissionChecks": [{"name": "myriad", "onFlavors": ["h100"]}]}]
    world.now += 5
    world.run()
    assert len(nudges(world)) == 1, "not again so soon"
    world.now += 6
    world.run()
    assert nudges(world)[1] == {"admissionChecks": [{"name": "myriad"}]}, "and back, which changes the spec again"
    for _ in range(100):
        world.now += 10
        world.run()
    assert len(nudges(world)) < 14, "ever more rarely where it does not help"


@pytest.mark.parametrize("message", ["insufficient unused quota for nvidia.com/gpu in flavor h100, 16 more needed", ""])
def test_kueue_is_not_asked_again_when_quota_is_the_reason(world: Any, make: Any, message: str) -> None:
    world.put(WORKLOADS, make.workload("a", conditions={"QuotaReserved": ("False", message)}))
    world.run(2)
    world.now += 100
    world.run(2)
    assert not nudges(world)


def test_kueue_is_not_asked_again_while_the_gang_fits_nowhere(world: Any, make: Any) -> None:
    for i in range(8):
        world.put(PODS, make.pod(f"p{i}", node_name=f"n{i}"))
    world.put(WORKLOADS, parked(make))
    world.run(2)
    world.now += 100
    world.run(2)
    assert not nudges(world)
    world.drop(PODS, "vision/p0")
    world.drop(PODS, "vision/p1")
    world.run(2)
    world.now += 3.1
    world.run()
    assert len(nudges(world)) == 1


def test_where_the_pods_really_stand_is_recorded_once(world: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # A pass is fast: both outcomes may carry the same time.
    monkeypatch.setattr("myriad.scheduler.steering.utc_now", lambda: "2026-11-30T20:44:07.254Z")
    world.put(WORKLOADS, make.workload("a", assigned={"n0": 1, "n1": 1}, state="Ready", admitted=True))
    world.put(PODS, make.pod("a-0", node_name="n0", of="a"))
    world.run()
    assert not world.records("outcome")
    world.put(PODS, make.pod("a-1", node_name="n1", of="a"))
    world.run(2)
    (record,) = world.records("outcome")
    assert record.nodes == {"n0": 1, "n1": 1} and record.agree is True
    world.drop(PODS, "vision/a-1")
    world.put(PODS, make.pod("a-1b", node_name="n5", of="a"))
    world.run(2)
    assert world.records("outcome")[-1].agree is False


def _succeeded(pod: Json, at: str) -> Json:
    ended = {"name": "x", "state": {"terminated": {"exitCode": 0, "finishedAt": at}}}
    return pod | {"status": {"phase": "Succeeded", "containerStatuses": [ended]}}


def test_pods_that_succeeded_before_the_gang_came_back_stand_in_no_plan(world: Any, make: Any) -> None:
    """An eviction in the middle: the gang comes back for the pods that it still needs, and only these are judged."""
    back = make.workload("a", assigned={"n0": 1}, pods=3, state="Ready", admitted=True)
    for condition in back["status"]["conditions"]:
        if condition["type"] == "QuotaReserved":
            condition["lastTransitionTime"] = "2026-11-30T09:41:52Z"
    world.put(PODS, _succeeded(make.pod("a-0", node_name="n0", of="a"), "2026-11-30T09:40:59Z"))
    world.put(PODS, _succeeded(make.pod("a-1", node_name="n1", of="a"), "2026-11-30T09:40:59Z"))
    world.put(WORKLOADS, back)
    world.run()
    assert not world.records("outcome")
    (view,) = [v for v in world.cache.views() if v.gang.name == "a"]
    assert len(world.cache.reserved_uids(view)) == 1, "its pod is yet to come, though another one was on that node"
    world.put(PODS, make.pod("a-2", node_name="n0", of="a"))
    world.run(2)
    (record,) = world.records("outcome")
    assert (record.nodes, record.agree) == ({"n0": 1}, True)
    assert not world.cache.reserved_uids(view)


def test_an_admission_that_is_over_before_anybody_looks_is_recorded_all_the_same(world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("a", assigned={"n0": 2}, state="Ready", admitted=True))
    world.put(WORKLOADS, make.workload("a"))
    world.put(WORKLOADS, make.workload("a", assigned={"n1": 2}, state="Ready", admitted=True))
    world.run(3)
    assert [record.assigned for record in world.records("assigned")] == [{"n0": 2}, {"n1": 2}]
    world.drop(WORKLOADS, "vision/job-a")
    world.run(2)
    assert len(world.records("assigned")) == 2, "what was recorded while it stood is not recorded when it goes"


def test_pods_that_take_their_grace_belong_to_the_admission_before(world: Any, make: Any) -> None:
    leaving = make.pod("a-old", node_name="n0", of="a", deletionTimestamp="2026-11-30T09:41:50Z")
    world.put(WORKLOADS, make.workload("a", assigned={"n0": 1, "n1": 1}, state="Ready", admitted=True))
    world.put(PODS, leaving)
    world.put(PODS, make.pod("a-1", node_name="n1", of="a"))
    world.run()
    assert not world.records("outcome"), "one of its pods is yet to come"
    (view,) = [v for v in world.cache.views() if v.gang.name == "a"]
    assert len(world.cache.reserved_uids(view)) == 1
    assert world.cache.use("pod-a-old") is not None, "until it is gone it holds its GPUs"
    world.drop(PODS, "vision/a-old")
    world.put(PODS, make.pod("a-0", node_name="n0", of="a"))
    world.run(2)
    (record,) = world.records("outcome")
    assert (record.nodes, record.agree) == ({"n0": 1, "n1": 1}, True)


def test_a_disk_that_refuses_records_does_not_hold_gangs_up(
    world: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Any) -> bool:
        raise MyriadError("the decision log cannot be written: No space left on device")

    monkeypatch.setattr(world.book, "append", full)
    world.put(WORKLOADS, make.workload("a", assigned={"n0": 1, "n1": 1}))
    world.run()
    assert world.entry("a")["state"] == "Ready"


def test_a_write_that_the_server_refuses_is_counted_and_the_pass_goes_on(
    world: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = copy.copy(world.api.patch)

    def refuse(resource: Any, name: str, body: Any, **more: Any) -> Any:
        if name == "job-a":
            raise ApiError(422, "Invalid", "no", where="test")
        return real(resource, name, body, **more)

    monkeypatch.setattr(world.api, "patch", refuse)
    world.put(WORKLOADS, make.workload("a", pods=1, gpus=1))
    world.put(WORKLOADS, make.workload("b", pods=1, gpus=1))
    world.run()
    assert world.entry("a")["state"] == "Pending" and world.entry("b")["state"] == "Ready"
    assert world.metrics.refused_writes._value.get() == 1


def test_another_leader_does_not_record_again_what_is_recorded(world: Any, make: Any) -> None:
    from myriad.scheduler.events import EventSink
    from myriad.scheduler.metrics import Metrics
    from myriad.scheduler.settings import Settings
    from myriad.scheduler.steering import Steering

    world.put(WORKLOADS, make.workload("a", pods=1, assigned={"n0": 1}, state="Ready", admitted=True))
    world.put(PODS, make.pod("a-0", node_name="n0", of="a"))
    world.run(2)
    before = len(world.book.newest(1000))
    sink = EventSink(world.api, interval_s=60)
    world.steering = Steering(
        api=world.api,
        cache=world.cache,
        settings=Settings(identity="other"),
        decisions=world.book,
        events=sink,
        metrics=Metrics(),
    )
    world.run(2)
    assert len(world.book.newest(1000)) == before == 2


def test_a_pass_that_outlives_its_leadership_writes_no_more(world: Any, make: Any) -> None:
    """Another replica leads since the pass began: what it still wanted to write is the other's business."""
    answers = iter([True, True, False])
    world.put(WORKLOADS, make.workload("a", assigned={"n0": 1, "n1": 1}))
    world.put(WORKLOADS, make.workload("b", assigned={"n2": 1, "n3": 1}))
    world.steering._leads = lambda: next(answers, False)
    with pytest.raises(MyriadError, match="leads no more"):
        world.run()
    assert len(workload_writes(world)) == 1
