"""Diagnoses: each case of the field as a finding with figures, and advice that tells causes apart."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from myriad.errors import MyriadError
from myriad.kube.kinds import CLUSTER_QUEUES, NODES, PODS, WORKLOADS
from myriad.scheduler.diagnose import Outside, Usage, advise, report
from myriad.scheduler.diagnose.observer import Diagnosing
from myriad.scheduler.diagnose.prometheus import usage_from
from myriad.scheduler.diagnose.use import Measured

NOW = datetime(2026, 1, 1, 2, tzinfo=UTC)  # two hours after everything in the fixtures
LEVELS = ("room", "block", "rack")


def kinds(world: Any, **outside: Any) -> dict[str, Any]:
    return {f.kind: f for f in report(world.cache, Outside(**outside), now=NOW)}


def partly(world: Any, make: Any, name: str, nodes: tuple[str, str]) -> None:
    world.put(WORKLOADS, make.workload(name, assigned=dict.fromkeys(nodes, 1), admitted=True))
    world.put(PODS, make.pod(f"{name}-0", of=name, node_name=nodes[0]))


def test_d2_part_of_a_gang_that_holds_gpus_is_stranded(world: Any, make: Any) -> None:
    partly(world, make, "half", ("n0", "n1"))
    found = kinds(world)["stranded_gang"]
    assert found.gpus == 8 and "1 of its 2 pods hold 8 GPUs for 2 h" in found.sentence and found.job["name"] == "half"
    world.put(PODS, make.pod("half-1", of="half", node_name="n1"))
    assert "stranded_gang" not in kinds(world)


def test_p10_an_elastic_gang_is_stranded_below_its_least_number_only(world: Any, make: Any) -> None:
    body = make.workload("bends", pods=3, assigned={"n0": 1, "n1": 1, "n2": 1}, admitted=True)
    body["spec"]["podSets"][0]["minCount"] = 2
    world.put(WORKLOADS, body)
    for number in (0, 1):
        world.put(PODS, make.pod(f"bends-{number}", of="bends", node_name=f"n{number}"))
    assert "stranded_gang" not in kinds(world), "it has lost a worker, and goes on"
    world.drop(PODS, "vision/bends-1")
    assert "1 of its 3 pods" in kinds(world)["stranded_gang"].sentence


def test_a16_gangs_that_hold_and_wait_in_a_ring(world: Any, make: Any) -> None:
    partly(world, make, "one", ("n0", "n1"))
    assert "wait_cycle" not in kinds(world)
    partly(world, make, "two", ("n2", "n3"))
    found = kinds(world)["wait_cycle"]
    assert "vision/one waits for vision/two waits for vision/one" in found.sentence and found.gpus == 16
    assert "evict vision/" in found.next


def test_a20_quota_without_a_pod_on_a_node_is_a_phantom(world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("ghost", assigned={"n0": 1, "n1": 1}, admitted=True))
    found = kinds(world)["phantom_reservation"]
    assert found.gpus == 16 and "none of its pods has a node" in found.sentence


def test_b8_unhealthy_nodes_that_are_not_replaced(world: Any, make: Any) -> None:
    body = make.workload("ill", assigned={"n0": 1, "n1": 1}, admitted=True)
    body["status"]["unhealthyNodes"] = [{"name": "n0"}]
    world.put(WORKLOADS, body)
    assert "n0 marked unhealthy" in kinds(world)["unhealthy_nodes"].sentence


def test_f1_nodes_that_fell_silent_together_point_at_the_control_plane(world: Any, make: Any) -> None:
    for i in range(5):
        body = make.node(f"n{i}", ("hall1", "b1", f"r{i // 4}"))
        body["status"]["conditions"] = [
            {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T01:00:00Z"}
        ]
        world.put(NODES, body)
    found = kinds(world)["silent_together"]
    assert "5 of 8 nodes of the cluster" in found.sentence and "suspect the control plane" in found.sentence
    assert "kubectl cordon" in found.next


@pytest.mark.parametrize("stuck", [False, True])
def test_e11_f6_gpus_held_by_a_node_that_is_not_ready(world: Any, make: Any, stuck: bool) -> None:
    body = make.node("n0", ("hall1", "b1", "r0"))
    body["status"]["conditions"] = [
        {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T01:00:00Z"}
    ]
    world.put(NODES, body)
    more = {"deletionTimestamp": "2026-01-01T01:05:00Z"} if stuck else {}
    world.put(PODS, make.pod("a-0", of="a", node_name="n0", **more))
    found = kinds(world)["dead_holder"]
    assert found.gpus == 8 and "n0 is not ready for 1 h" in found.sentence
    assert ("out-of-service" in found.next) is stuck


def test_f25_two_schedulers_on_one_pool(world: Any, make: Any) -> None:
    world.put(PODS, make.pod("a-0", node_name="n0"))
    assert "two_schedulers" not in kinds(world)
    body = make.pod("b-0", node_name="n1")
    body["spec"]["schedulerName"] = "volcano"
    world.put(PODS, body)
    assert "pool h100 are bound by 2 schedulers: default-scheduler" in kinds(world)["two_schedulers"].sentence


def test_b17_a_kubelet_that_refuses_the_same_job_again_and_again(world: Any, make: Any) -> None:
    owner = [{"kind": "Job", "name": "numa", "uid": "u", "controller": True}]
    for k in range(3):
        body = make.pod(f"numa-{k}", node_name="n0", phase="Failed", ownerReferences=owner)
        body["status"]["reason"] = "TopologyAffinityError"
        world.put(PODS, body)
    found = kinds(world)["rejections"]
    assert found.about == "vision/numa" and found.numbers["count"] == 3 and "n0 has refused 3 pods" in found.sentence


def test_f7_a_gang_that_can_never_fit_at_the_head_of_a_strict_queue(world: Any, make: Any) -> None:
    queue = make.cluster_queue()
    queue["spec"]["queueingStrategy"] = "StrictFIFO"
    world.put(CLUSTER_QUEUES, queue)
    world.put(WORKLOADS, make.workload("pill", gpus=16, priority=9))
    world.put(WORKLOADS, make.workload("good"))
    found = kinds(world)["poison_pill"]
    assert "no node of pool h100 has 16 GPUs" in found.sentence and "1 behind it wait" in found.sentence


def test_c17_silence_of_kueue(world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("quiet"))
    assert "looked at 1 waiting job not once" in kinds(world)["silence"].sentence
    world.put(WORKLOADS, make.workload("quiet", conditions={"QuotaReserved": ("False", "waits")}))
    assert "silence" not in kinds(world)


def group(name: str, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "vision", "creationTimestamp": "2026-01-01T00:00:00Z", **more}
    return {"metadata": metadata, "spec": {"minResources": {"nvidia.com/gpu": "16"}}, "status": {"phase": "Inqueue"}}


def test_a8_a9_podgroups_that_reserve_for_nobody(world: Any, make: Any) -> None:
    owner = {"ownerReferences": [{"kind": "Job", "name": "x", "uid": "u"}]}
    done = group("done", **owner)
    done["status"]["phase"] = "Completed"
    found = kinds(world, pod_groups=[group("lost"), group("empty", **owner), done])
    assert found["orphan_podgroup"].about == "vision/lost" and found["orphan_podgroup"].gpus == 16
    assert found["phantom_reservation"].about == "vision/empty"
    world.put(PODS, make.pod("p", annotations={"scheduling.k8s.io/group-name": "empty"}))
    assert "phantom_reservation" not in kinds(world, pod_groups=[group("empty", **owner)])


def test_f24_an_aggregated_api_that_does_not_answer(world: Any) -> None:
    down = {"type": "Available", "status": "False", "reason": "MissingEndpoints"}
    service = {"metadata": {"name": "v1beta2.visibility.kueue.x-k8s.io"}, "status": {"conditions": [down]}}
    assert "hang in Terminating" in kinds(world, visibility=[service])["visibility_down"].sentence


def test_idle_holders_with_owner_and_cost_and_no_shared_node(world: Any, make: Any) -> None:
    world.put(PODS, make.pod("lazy-0", node_name="n0"))
    world.put(PODS, make.pod("busy-0", node_name="n1"))
    world.put(PODS, make.pod("half-0", node_name="n2", gpus=4))
    world.put(PODS, make.pod("half-1", node_name="n2", gpus=4))
    usage = Usage(3600.0, {"n0": 1.0, "n1": 80.0, "n2": 0.0})
    found = [f for f in report(world.cache, Outside(usage=usage), now=NOW) if f.kind == "idle_holder"]
    assert [f.about for f in found] == ["vision/lazy-0"]
    assert "8 GPU-hours idle so far" in found[0].sentence and found[0].gpus == 8
    short = Outside(usage=Usage(60.0, {"n0": 1.0}))
    assert not [f for f in report(world.cache, short, now=NOW) if f.kind == "idle_holder"]


def test_an_event_is_written_once_and_gauges_follow(world: Any, make: Any) -> None:
    partly(world, make, "half", ("n0", "n1"))
    registry = CollectorRegistry()
    now = [0.0]
    observer = Diagnosing(world.api, world.cache, registry, clock=lambda: now[0])
    for _ in range(3):
        observer.step()
        now[0] += 31
    assert [e for e in world.api.events if e[1] == "MyriadStrandedGang"].__len__() == 1
    assert registry.get_sample_value("myriad_scheduler_findings_gpus", {"kind": "stranded_gang"}) == 8
    world.put(PODS, make.pod("half-1", of="half", node_name="n1"))
    observer.step()
    assert registry.get_sample_value("myriad_scheduler_findings", {"kind": "stranded_gang"}) is None


def test_the_leader_finds_idle_holders_itself_and_asks_prometheus_now_and_then(world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("sleepy", pods=1, assigned={"n0": 1}, admitted=True))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "sleepy", "uid": "job-sleepy", "controller": True}
    world.put(PODS, make.pod("sleepy-0", of="sleepy", node_name="n0", ownerReferences=[owner]))
    asked: list[int] = []

    def measured(window_s: int) -> Usage:
        asked.append(window_s)
        if len(asked) == 2:
            raise MyriadError("Prometheus does not answer", where="http://prom", hint="")
        return Usage(float(window_s), {"n0": 1.0}, "node agent")

    registry, now = CollectorRegistry(), [0.0]
    observer = Diagnosing(world.api, world.cache, registry, usage=measured, clock=lambda: now[0])

    def idle() -> float | None:
        return registry.get_sample_value("myriad_scheduler_findings", {"kind": "idle_holder"})

    observer.step()
    assert idle() == 1.0 and asked == [1800], "over as long as the policy calls it idle"
    told = [e for e in world.api.events if e[1] == "MyriadIdleHolder"]
    assert told and told[0][0] == "Job/sleepy" and "uses 1 % at most for 30 min" in told[0][2]
    now[0] = 31.0
    observer.step()
    assert asked == [1800] and idle() == 1.0
    now[0] = 400.0
    observer.step()
    assert len(asked) == 2 and idle() is None, "what nobody measures is not claimed"


# Advice


def test_a_spread_job_and_a_data_starved_job_are_told_apart() -> None:
    common = {"gpu_percent": 40.0}
    spread = advise(
        Measured(**common, communication_percent=45.0, loader_s=0.01, step_s=0.5),
        levels=LEVELS, tier="room", best_tier="rack", where=("hall1",),
    )  # fmt: skip
    starved = advise(
        Measured(**common, communication_percent=45.0, loader_s=0.2, step_s=0.5),
        levels=LEVELS, tier="room", best_tier="rack",
    )  # fmt: skip
    assert spread.verdict == "spread" and "across a room (hall1) where one rack could hold it" in spread.sentence
    assert starved.verdict == "data_starved" and "40 % of a step" in starved.sentence and "nsys" in starved.next


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (Measured(gpu_percent=60, communication_percent=50, loader_s=0.0, step_s=1.0), "communication"),
        (Measured(gpu_percent=95, sm_occupancy_percent=10, memory_percent=20), "small_kernels"),
        (Measured(gpu_percent=95, sm_occupancy_percent=80), "well_used"),
        (Measured(gpu_percent=1), "idle"),
        (Measured(gpu_percent=40), "unknown"),
        (Measured(), "unknown"),
    ],
)
def test_other_causes(measured: Measured, verdict: str) -> None:
    assert advise(measured, levels=LEVELS, tier="rack", best_tier="rack").verdict == verdict


def test_usage_from_prometheus_takes_dcgm_where_the_agent_is_not_scraped() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        rows = []
        if "DCGM" in request.content.decode():
            rows = [{"metric": {"Hostname": "n0"}, "value": [1, "3.5"]}]
        return httpx.Response(200, json={"data": {"result": rows}})

    usage = usage_from("http://prom", 1800, transport=httpx.MockTransport(answer))
    assert usage.percent == {"n0": 3.5} and usage.source == "DCGM exporter"
    for reply in (httpx.Response(200, json={"data": {"result": []}}), httpx.Response(500), httpx.Response(200)):
        with pytest.raises(MyriadError, match="Prometheus"):
            usage_from("http://prom", 60, transport=httpx.MockTransport(lambda _, r=reply: r))


def test_jobs_that_wait_with_a_reason_are_no_finding(world: Any, make: Any) -> None:
    for k in range(300):
        world.put(WORKLOADS, make.workload(f"w{k}", conditions={"QuotaReserved": ("False", "waits")}))
    found = report(world.cache, now=NOW + timedelta(hours=1))
    assert found == []
