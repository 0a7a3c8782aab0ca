"""Wire formats: nodes, pods, and Kueue's Workload."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from myriad.scheduler.objects import (
    assignment_of,
    levels_of,
    location_of,
    node_info,
    pod_requests,
    pod_use,
    seconds_since,
    workload_view,
)

LEVELS = ("room", "block", "rack")


def test_levels_leave_the_host_out() -> None:
    labels = ["myriad.dev/room", "cloud.example/block", "kubernetes.io/hostname"]
    assert levels_of({"spec": {"levels": [{"nodeLabel": x} for x in labels]}}) == ("room", "cloud.example/block")
    assert levels_of(None) == ()


@pytest.mark.parametrize(
    ("labels", "path"),
    [
        ({"room": "h", "block": "h.b", "rack": "h.b.r"}, ("h", "b", "r")),
        ({"room": "h.1", "block": "h.1.b.2", "rack": "h.1.b.2.r"}, ("h.1", "b.2", "r")),
        ({"room": "h", "block": "x", "rack": "x.r"}, ("h", "x", "r")),
        ({"room": "h", "rack": "h.b.r"}, ("h",)),
        ({}, ()),
    ],
)
def test_a_location_is_read_as_far_as_it_is_labelled(labels: dict[str, str], path: tuple[str, ...]) -> None:
    assert location_of({f"myriad.dev/{k}": v for k, v in labels.items()}, LEVELS) == path


def test_a_node_is_ready_only_when_it_says_so(make: Any) -> None:
    body = make.node("n0")
    assert node_info(body, LEVELS).usable
    body["status"]["conditions"][0]["status"] = "Unknown"
    assert not node_info(body, LEVELS).ready
    body = make.node("n0")
    body["spec"] = {"unschedulable": True, "taints": [{"key": "myriad.dev/gpu-not-ready", "effect": "NoSchedule"}]}
    checks = [{"check": "pci", "ok": True}, {"check": "driver", "ok": False, "cause": "7 of 8"}]
    body["metadata"]["annotations"] = {"myriad.dev/gate": json.dumps({"checks": checks})}
    info = node_info(body, LEVELS)
    assert info.cordoned and info.gate_closed and info.gate_reason == "7 of 8"
    body["metadata"]["annotations"] = {"myriad.dev/gate": "{"}
    assert node_info(body, LEVELS).gate_reason == ""


SIDECAR = {"resources": {"requests": {"cpu": "1"}}, "restartPolicy": "Always"}


def container(**requests: str) -> dict[str, Any]:
    return {"resources": {"requests": requests}}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [container(cpu="1"), container(cpu="500m")]}, 1500),
        ({"containers": [container(cpu="1")], "initContainers": [container(cpu="3")]}, 3000),
        ({"containers": [container(cpu="1")], "initContainers": [SIDECAR]}, 2000),
        (
            {
                "containers": [container(cpu="1")],
                "initContainers": [SIDECAR, container(cpu="3")],
            },
            4000,
        ),
        ({"containers": [container(cpu="1")], "overhead": {"cpu": "250m"}}, 1250),
        ({"containers": [container(cpu="1")], "resources": {"requests": {"cpu": "4"}}}, 4000),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, 2000),
        ({"containers": [{}]}, 0),
    ],
)  # fmt: skip
def test_a_pod_counts_as_the_scheduler_counts_it(spec: dict[str, Any], cpu: int) -> None:
    assert pod_requests(spec).get("cpu_milli", 0) == cpu


def test_a_terminating_pod_still_holds_its_gpus_and_a_finished_one_does_not(make: Any) -> None:
    leaving = make.pod("p", node_name="n0", deletionTimestamp="2026-01-01T00:00:00Z")
    use = pod_use(leaving)
    assert use is not None and use.terminating and use.requests["nvidia.com/gpu"] == 8
    assert pod_use(make.pod("p", node_name="n0", phase="Succeeded")) is None
    assert pod_use(make.pod("p")) is None


def test_an_assignment_is_unpacked_in_every_form() -> None:
    def topology(*slices: Any) -> Any:
        return {
            "podSetAssignments": [{"name": "main", "topologyAssignment": {"levels": ["h"], "slices": list(slices)}}]
        }

    common = {"individual": {"prefix": "gpu", "suffix": ".site", "roots": ["1", "2"]}}
    packed = {"domainCount": 2, "valuesPerLevel": [common], "podCounts": {"universal": 3}}
    plain = {
        "domainCount": 2,
        "valuesPerLevel": [{"universal": "block"}, {"individual": {"roots": ["a", "b"]}}],
        "podCounts": {"individual": [1, 2]},
    }
    assert assignment_of(topology(packed)) == {"main": {"gpu1.site": 3, "gpu2.site": 3}}
    assert assignment_of(topology(plain)) == {"main": {"a": 1, "b": 2}}
    assert assignment_of({"podSetAssignments": [{"name": "main"}]}) is None
    assert assignment_of({}) is None


def test_a_workload_is_read_whole(make: Any) -> None:
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]
            }
        }
    }
    body = make.workload(
        "a", pods=3, priority=7, pod_spec={"affinity": affinity, "nodeSelector": {"x": "y"}}, updates=[{"name": "main"}]
    )
    body["spec"]["podSets"][0] |= {"minCount": 2, "topologyRequest": {"required": "myriad.dev/rack"}}
    view = workload_view(body, check_name="myriad", pool="h100", team="vision")
    (podset,) = view.gang.podsets
    assert (view.gang.name, view.key, view.gang.priority) == ("a", "vision/job-a", 7)
    assert (podset.count, podset.min_count, podset.gpus_per_pod) == (3, 2, 8)
    assert podset.affinity[0].expressions[0].values == ("ssd",)
    assert (podset.topology.mode, podset.topology.level) == ("required", "rack")
    assert view.waiting and view.steerable and view.check is not None and len(view.check.updates) == 1


@pytest.mark.parametrize(
    "field", ["podSetSliceRequiredTopology", "podsetSliceRequiredTopologyConstraints", "podSetGroupName"]
)
def test_slices_and_groups_are_not_steered(make: Any, field: str) -> None:
    body = make.workload("a")
    body["spec"]["podSets"][0]["topologyRequest"] = {"preferred": "myriad.dev/rack", field: "x"}
    assert not workload_view(body, check_name="myriad").steerable


def test_ages_are_never_negative() -> None:
    now = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert seconds_since("2026-01-01T00:00:00Z", now) == 60
    assert seconds_since("2026-01-01T00:02:00Z", now) == 0
    assert seconds_since("", now) == 0
