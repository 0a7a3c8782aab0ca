"""Answers: who holds what, what would unblock it, and what the cluster looks like."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from myriad.kube.kinds import ADMISSION_CHECKS, CLUSTER_QUEUES, COHORTS, LOCAL_QUEUES, NODES, PODS, WORKLOADS
from myriad.scheduler.deadman import DETACHED_AT
from myriad.scheduler.inquiry import Evidence, queue_report, quota_view, status_report, why_job

NOW = datetime(2026, 1, 1, 1, 0, tzinfo=UTC)


def ask(world: Any, name: str, **evidence: Any) -> Any:
    answer = why_job(world.cache, "vision", name, evidence=Evidence(**evidence), now=NOW)
    assert answer is not None
    return answer


def run(make: Any, name: str, nodes: dict[str, int], **more: Any) -> Any:
    return make.workload(name, pods=sum(nodes.values()), assigned=nodes, admitted=True, state="Ready", **more)


def test_quota_names_numbers_holder_and_what_unblocks(world: Any, make: Any) -> None:
    world.put(WORKLOADS, run(make, "long", {f"n{i}": 1 for i in range(4)}, maximumExecutionTimeSeconds=7200))
    world.put(WORKLOADS, make.workload("a"))
    answer = ask(world, "a")
    assert answer.state == "quota"
    assert "needs 16 GPUs, vision has 32, 32 in use; 1st in the queue" in answer.first_cause
    assert "long" in answer.unblocks[0] and "1 h" in answer.unblocks[0]


def test_placement_names_the_pod_outside_every_queue(world: Any, make: Any) -> None:
    for i in range(8):
        world.put(PODS, make.pod(f"bare{i}", node_name=f"n{i}"))
    world.put(WORKLOADS, make.workload("a"))
    answer = ask(world, "a")
    assert answer.state == "placement" and "outside every queue" in answer.text()


def test_a_gang_that_runs_says_where(world: Any, make: Any) -> None:
    world.put(WORKLOADS, run(make, "a", {"n0": 1}))
    ready = make.pod("a-0", of="a", node_name="n0")
    ready["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    world.put(PODS, ready)
    answer = ask(world, "a")
    assert answer.state == "running" and ("nodes", "n0") in answer.lines


def test_a_pod_that_cannot_start_is_the_first_cause(world: Any, make: Any) -> None:
    world.put(WORKLOADS, run(make, "a", {"n0": 1}))
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}, "name": "main"}
    body = make.pod("a-0", of="a", node_name="n0", phase="Pending")
    body["status"]["containerStatuses"] = [waiting]
    world.put(PODS, body)
    assert "ImagePullBackOff: the image cannot be had (no such image)" in ask(world, "a").first_cause


def test_a_job_without_a_queue_is_told_which_there_are(world: Any) -> None:
    job = {"metadata": {"name": "lost", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"suspend": True}}
    assert ask(world, "lost", job=job).state == "held", "nobody but its owner suspends a job without a queue"
    job["spec"]["suspend"] = False
    assert "to one of h100" in ask(world, "lost", job=job).first_cause
    assert why_job(world.cache, "vision", "nope") is None


def test_a_problem_told_by_events_comes_first(world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("a"))
    assert ask(world, "a", problems=("PVC data not found",)).first_cause == "PVC data not found"


def test_a_stopped_queue_says_so(world: Any, make: Any) -> None:
    queue = {"clusterQueue": "vision-h100", "stopPolicy": "Hold"}
    world.put(LOCAL_QUEUES, {"metadata": {"name": "h100", "namespace": "vision"}, "spec": queue})
    world.put(WORKLOADS, make.workload("a"))
    answer = ask(world, "a")
    assert answer.state == "held" and "LocalQueue h100 is stopped (Hold)" in answer.first_cause


def test_what_a_cohort_lends_is_what_is_left_of_all(world: Any, make: Any) -> None:
    world.put(COHORTS, {"metadata": {"name": "research"}, "spec": {"parentName": "all"}})
    world.put(CLUSTER_QUEUES, make.cluster_queue(gpus=16, cohort="research"))
    world.put(CLUSTER_QUEUES, make.cluster_queue("speech-h100", gpus=24, cohort="all", team="speech"))
    lender = make.cluster_queue("nlp-h100", gpus=40, cohort="research", team="nlp")
    lender["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["lendingLimit"] = "8"
    world.put(CLUSTER_QUEUES, lender)
    world.put(CLUSTER_QUEUES, make.cluster_queue("other-h100", gpus=100, cohort="elsewhere", team="other"))
    world.put(WORKLOADS, run(make, "big", {"n0": 1, "n1": 1, "n2": 1}))
    world.put(WORKLOADS, make.workload("a"))
    view = world.cache.view_of_job("vision", "a")
    quota = quota_view(world.cache, view, now=NOW)
    assert quota is not None
    assert (quota.nominal, quota.used, quota.borrowed, quota.borrow_limit) == (16, 24, 8, None)
    # speech leaves 24; nlp lends 8 of its 40 at the most.
    assert quota.cohort_free == 32


def test_the_queue_report_is_in_kueues_order(world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("old", created="2026-01-01T00:00:00Z"))
    world.put(WORKLOADS, make.workload("new", created="2026-01-01T00:30:00Z"))
    world.put(WORKLOADS, make.workload("urgent", created="2026-01-01T00:40:00Z", priority=10))
    (report,) = queue_report(world.cache, "vision", now=NOW)
    assert [j["job"] for j in report["waiting"]] == ["urgent", "old", "new"]
    assert report["waiting"][1]["waiting_s"] == 3600


def test_status_tells_nodes_that_take_no_work(world: Any, make: Any) -> None:
    body = make.node("n0", ("hall1", "b1", "r0"))
    body["spec"] = {"taints": [{"key": "myriad.dev/gpu-not-ready", "effect": "NoSchedule"}]}
    world.put(NODES, body)
    world.put(NODES, {"metadata": {"name": "cp1"}, "spec": {}, "status": {}})
    report = status_report(world.cache)
    assert (report["nodes_total"], report["nodes_taking_work"]) == (8, 7)
    first = next(n for n in report["nodes"] if n["node"] == "n0")
    assert first["gate"] == "closed" and not first["takes_work"] and first["place"] == "hall1/b1/r0"
    assert report["queues_not_steered"] == []
    world.put(CLUSTER_QUEUES, make.cluster_queue("speech-h100"))
    assert status_report(world.cache)["queues_not_steered"] == [], "nobody waits there"
    check = world.api.get(ADMISSION_CHECKS, "myriad")
    check["metadata"]["annotations"] = {DETACHED_AT: "2026-11-30T12:00:00Z"}
    world.put(ADMISSION_CHECKS, check)
    report = status_report(world.cache)
    assert report["queues_not_steered"] == ["speech-h100"] and "since 2026-11-30T12:00:00Z" in report["unsteered"]


@pytest.mark.parametrize(("pods", "message", "is_named"), [
    (2, "insufficient unused quota", True), (1, "insufficient unused quota", False), (2, "", False),
    (1, "topology \"myriad\" doesn't allow to fit any of 1 pod(s)", True),
])  # fmt: skip
def test_a_queue_in_which_a_gang_waits_and_that_asks_nobody_is_named(
    world: Any, make: Any, pods: int, message: str, is_named: bool
) -> None:
    queue = make.cluster_queue()
    world.put(CLUSTER_QUEUES, queue)
    refused = {"QuotaReserved": ("False", message)} if message else {}
    world.put(WORKLOADS, make.workload("a", pods=pods, state=None, conditions=refused))
    assert status_report(world.cache)["queues_not_steered"] == (["vision-h100"] if is_named else [])
    (entry,) = queue_report(world.cache)
    assert (entry["steered"], entry["asks"]) == (not is_named, False)
