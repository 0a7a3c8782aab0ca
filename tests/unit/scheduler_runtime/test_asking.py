"""When a queue asks the check: while a gang waits in it, and for a while longer."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from myriad.kube.kinds import ADMISSION_CHECKS, CLUSTER_QUEUES, NODES, WORKLOADS
from myriad.scheduler.attach import is_attached
from myriad.scheduler.deadman import DETACHED_AT
from myriad.scheduler.model import Gang, PodSet
from myriad.scheduler.protect import Protection, operations

QUOTA = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor h100"
TOPOLOGY = "couldn't assign flavors to pod set main: topology \"myriad\" doesn't allow to fit any of 1 pod(s)"


def asks(world: Any, name: str = "vision-h100") -> bool:
    return is_attached(world.api.get(CLUSTER_QUEUES, name), "myriad")


def refused(make: Any, name: str, message: str = QUOTA, **more: Any) -> Any:
    return make.workload(name, state=None, conditions={"QuotaReserved": ("False", message)}, **more)


def test_a_job_that_fits_costs_its_workload_nothing(on_demand: Any, make: Any) -> None:
    on_demand.put(WORKLOADS, make.workload("a", state=None, assigned={"n0": 1, "n7": 1}, admitted=True))
    on_demand.run(2)
    assert not on_demand.api.writes and not asks(on_demand)
    (record,) = on_demand.records("assigned")
    assert record.assigned == {"n0": 1, "n7": 1}, "and what TAS did with it is recorded all the same"
    assert ("Job/a", "MyriadPlaced", "placed on n0, n7 (hall1/b1)") in on_demand.api.events


def test_what_tas_did_is_compared_with_the_own_plan(on_demand: Any, make: Any) -> None:
    body = make.workload("a", state=None, assigned={"n0": 1, "n7": 1}, admitted=True)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for condition in body["status"]["conditions"]:
        condition["lastTransitionTime"] = now
    on_demand.put(WORKLOADS, body)
    on_demand.run()
    (record,) = on_demand.records("assigned")
    assert record.agree is False and (record.tier, record.assigned_tier) == ("rack", "block")


def test_while_a_gang_waits_its_queue_asks_and_a_while_longer(on_demand: Any, make: Any) -> None:
    on_demand.put(CLUSTER_QUEUES, make.cluster_queue("speech-h100", team="speech"))
    on_demand.put(WORKLOADS, refused(make, "a"))
    on_demand.run()
    assert asks(on_demand) and not asks(on_demand, "speech-h100")
    on_demand.now += 1000
    on_demand.run()
    assert asks(on_demand), "it still waits"
    on_demand.drop(WORKLOADS, "vision/job-a")
    on_demand.now += 299
    on_demand.run()
    assert asks(on_demand)
    on_demand.now += 2
    on_demand.run()
    assert not asks(on_demand)
    before = len(on_demand.api.writes)
    on_demand.run(3)
    assert len(on_demand.api.writes) == before


@pytest.mark.parametrize(
    ("message", "pods", "wanted"),
    [(QUOTA, 2, True), (TOPOLOGY, 1, True), (QUOTA, 1, False), ("", 2, False)],
)
def test_who_may_be_helped(on_demand: Any, make: Any, message: str, pods: int, wanted: bool) -> None:
    """Quota alone is Kueue's affair where one pod waits for it, and who was not looked at yet waits for nothing."""
    body = refused(make, "a", message, pods=pods) if message else make.workload("a", pods=pods, state=None)
    on_demand.put(WORKLOADS, body)
    on_demand.run()
    assert asks(on_demand) is wanted


def test_one_that_came_this_moment_may_pass_by_itself(on_demand: Any, make: Any) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    on_demand.put(WORKLOADS, refused(make, "a", created=now))
    on_demand.run()
    assert not asks(on_demand)


def test_what_no_state_of_the_cluster_can_hold_is_told_so_and_asks_for_nothing(on_demand: Any, make: Any) -> None:
    on_demand.put(WORKLOADS, refused(make, "a", pods=9))
    on_demand.run(2)
    assert [e for e in on_demand.api.events if e[1] == "MyriadRefused"]
    on_demand.now += 301
    on_demand.run(2)
    assert not asks(on_demand)


def test_all_queues_of_a_pool_ask_while_a_domain_of_it_is_kept(on_demand: Any, make: Any) -> None:
    """Who may pass into it needs a toleration, and only the check gives it."""
    on_demand.put(CLUSTER_QUEUES, make.cluster_queue("speech-h100", team="speech"))
    gang = Gang(name="g", namespace="vision", podsets=(PodSet(name="main", count=1),), uid="u")
    kept = Protection(
        uid=gang.uid, workload="vision/job-g", job="vision/g", nodes=("n0",), since=1.0, until=2.0, expires=3.0
    )
    node = on_demand.api.get(NODES, "n0")
    for change in operations(node, kept) or ():
        parts = [p.replace("~1", "/") for p in change["path"].strip("/").split("/")]
        if change["op"] == "test":
            continue
        target = node
        for part in parts[:-1]:
            target = target.setdefault(part, {})
        if isinstance(target, list):
            target.append(change["value"])
        else:
            target[parts[-1]] = change["value"]
    on_demand.put(NODES, node)
    on_demand.run()
    assert asks(on_demand) and asks(on_demand, "speech-h100")


def test_a_new_leader_lets_a_queue_that_asks_go_on_for_a_while(on_demand: Any, make: Any) -> None:
    queue = make.cluster_queue()
    queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": "myriad"}]}
    on_demand.put(CLUSTER_QUEUES, queue)
    on_demand.now += 299
    on_demand.run()
    assert asks(on_demand)
    on_demand.now += 301
    on_demand.run()
    assert not asks(on_demand)


def test_the_mark_of_the_dead_man_goes_though_no_queue_asks_again(on_demand: Any) -> None:
    check = on_demand.api.get(ADMISSION_CHECKS, "myriad")
    check["metadata"]["annotations"] = {DETACHED_AT: "2026-11-30T12:00:00Z"}
    on_demand.put(ADMISSION_CHECKS, check)
    on_demand.run()
    assert not on_demand.api.get(ADMISSION_CHECKS, "myriad")["metadata"]["annotations"]
    assert not asks(on_demand)
