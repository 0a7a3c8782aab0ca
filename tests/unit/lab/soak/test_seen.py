"""Objects of the API, of the engine and of a kubelet, reduced to what a soak judges."""

from __future__ import annotations

import json
from typing import Any

from myriad.lab.soak.observe import node_seen
from myriad.lab.soak.seen import devices_seen, moment, pods_seen, workloads_seen

Json = dict[str, Any]
AT = "2026-11-30T12:00:05Z"
OWNER = {"kind": "Job", "name": "gang", "uid": "j", "apiVersion": "batch/v1", "controller": True}


def body(**more: Any) -> Json:
    return {"metadata": {"name": "gang-0", "namespace": "vision", "uid": "p0", "ownerReferences": [OWNER]}, **more}


def containers(gpus: int) -> list[Json]:
    return [{"name": "x", "resources": {"limits": {"nvidia.com/gpu": gpus}}}] if gpus else [{"name": "x"}]


def test_times_of_the_api_and_of_the_engine_are_the_same_clock() -> None:
    assert moment("2026-11-30T12:00:05Z") == 1796040005.0
    assert abs(moment("2026-11-30T12:00:05.250000000Z") - 1796040005.25) < 1e-6
    assert moment("2026-11-30T13:00:05.123456+01:00") == 1796040005.123456
    assert [moment(text) for text in ("", None, "0001-01-01T00:00:00Z", "yesterday")] == [0.0] * 4


def test_a_pod_is_read_and_those_without_gpus_are_left_out() -> None:
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": AT}
    bound = body(
        spec={"nodeName": "gpu1", "containers": containers(4)}, status={"phase": "Running", "conditions": [condition]}
    )
    waits = body(
        spec={"containers": containers(4)},
        status={"phase": "Pending", "conditions": [{**condition, "status": "False"}]},
    )
    seen, waiting = pods_seen([bound, body(spec={"containers": containers(0)}), waits])
    assert (seen.name, seen.job, seen.node, seen.gpus, seen.holds) == ("vision/gang-0", "vision/gang", "gpu1", 4, True)
    assert seen.scheduled == 1796040005 and waiting.scheduled == 0 and not waiting.holds


def test_a_pod_in_its_grace_holds_its_gpus_until_it_is_over() -> None:
    leaving = body(spec={"nodeName": "gpu1", "containers": containers(4)}, status={"phase": "Running"})
    leaving["metadata"]["deletionTimestamp"] = AT
    over = body(spec={"nodeName": "gpu1", "containers": containers(4)}, status={"phase": "Failed"})
    first, second = pods_seen([leaving, over])
    assert first.is_leaving and first.holds and second.is_terminal and not second.holds and not second.is_succeeded


def workload(*conditions: tuple[str, str, str], **status: Any) -> Json:
    usage = {
        "name": "main",
        "flavors": {"nvidia.com/gpu": "h100"},
        "resourceUsage": {"nvidia.com/gpu": "8"},
        "count": 2,
    }
    topology = {
        "levels": ["kubernetes.io/hostname"],
        "slices": [
            {
                "domainCount": 2,
                "valuesPerLevel": [{"individual": {"roots": ["gpu1", "gpu2"]}}],
                "podCounts": {"universal": 1},
            }
        ],
    }
    admission = {"clusterQueue": "vision-h100", "podSetAssignments": [{**usage, "topologyAssignment": topology}]}
    return {
        "metadata": {"name": "job-gang", "namespace": "vision", "uid": "w", "ownerReferences": [OWNER]},
        "spec": {"podSets": [{"name": "main", "count": 2, "template": {"spec": {"containers": containers(4)}}}]},
        "status": {
            "admission": admission,
            "conditions": [
                {"type": t, "status": s, "lastTransitionTime": f"2026-11-30T12:00:{at}Z"} for t, s, at in conditions
            ],
            **status,
        },
    }  # fmt: skip


HELD = ("QuotaReserved", "True", "04"), ("Admitted", "True", "05")


def test_an_admitted_workload_holds_its_gpus_where_it_was_put() -> None:
    (seen,) = workloads_seen([workload(*HELD)])
    assert (seen.job, seen.gpus, seen.holds_quota, seen.admitted, seen.ended) == ("vision/gang", 8, True, 1796040005, 0)
    assert seen.gpus_by_node == {"gpu1": 4, "gpu2": 4}


def test_the_first_end_counts_and_the_end_of_an_earlier_admission_does_not() -> None:
    (both,) = workloads_seen([workload(*HELD, ("Finished", "True", "30"), ("Evicted", "True", "20"))])
    assert both.ended == 1796040020 and both.is_finished and both.gpus_by_node == {}
    (older,) = workloads_seen([workload(*HELD, ("Evicted", "False", "20"))])
    assert older.ended == 0 and older.evicted == 0
    (gone,) = workloads_seen(
        [workload(("Admitted", "False", "21"), ("Evicted", "True", "20"), ("QuotaReserved", "False", "21"))]
    )
    assert gone.admitted == 0 and gone.evicted == 1796040020 and not gone.holds_quota and gone.gpus_by_node == {}


def test_a_gang_whose_first_pods_have_ended_no_longer_says_where_it_holds_what() -> None:
    (seen,) = workloads_seen([workload(*HELD, reclaimablePods=[{"name": "main", "count": 1}])])
    assert seen.holds_quota and seen.gpus_by_node == {}


def test_a_node_is_read_with_its_gate_s_own_word() -> None:
    record = {"open": False, "since": "2026-11-30T11:00:00Z", "boot": "b.7", "checks": []}
    taints = [
        {"key": "myriad.dev/gpu-not-ready", "effect": "NoSchedule"},
        {"key": "x", "value": "y", "effect": "NoExecute"},
    ]
    status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": "8"}}
    metadata = {"name": "gpu1", "labels": {"a": "b"}, "annotations": {"myriad.dev/gate": json.dumps(record)}}
    found = node_seen({"metadata": metadata, "spec": {"unschedulable": True, "taints": taints}, "status": status}, 12.5)
    assert (found.is_ready, found.gpus, found.is_open, found.is_cordoned, found.started) == (True, 8, False, True, 12.5)
    assert (found.boot, found.gate_since) == ("b.7", "2026-11-30T11:00:00Z")
    assert found.taints == {"myriad.dev/gpu-not-ready=:NoSchedule", "x=y:NoExecute"}
    theirs = {"key": "myriad.dev/gpu-not-ready", "value": "alice", "effect": "NoSchedule"}
    assert node_seen({"metadata": {"name": "n"}, "spec": {"taints": [theirs]}}, 0.0).is_open, "somebody else's"


def test_a_kubelet_s_account_of_devices_is_read() -> None:
    def entry(pod: str, devices: list[str], resource: str = "nvidia.com/gpu") -> Json:
        return {
            "PodUID": pod,
            "ContainerName": "x",
            "ResourceName": resource,
            "DeviceIDs": {"-1": devices},
            "AllocResp": "",
        }

    entries = [entry("a", ["GPU-0", "GPU-1"]), entry("b", ["GPU-1"]), entry("c", ["1"], "rdma/hca")]
    found = devices_seen({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1})
    assert found == {"GPU-0": {"a"}, "GPU-1": {"a", "b"}}
    assert devices_seen({"Data": {"PodDeviceEntries": None}}) == {}
