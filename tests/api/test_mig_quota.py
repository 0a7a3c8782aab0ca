"""Slices of GPUs on a real Kueue: one flavor for the pool, each profile with a row of quota of its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from myriad.fleet import check, inventory_from_groups, objects_for_cluster_policy
from myriad.kube.client import Api

sys.path.insert(0, str(Path(__file__).parent))
from apiserver import AT_HAND, ControlPlane, control_plane, fake_node, gang_job

pytestmark = [AT_HAND, pytest.mark.slow]
SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
#: gpu1 is cut into 7 small slices a GPU, gpu2 into 2 large ones; the team owns 4 of the 16 GPUs.
MIG = {"layout": {"1g.10gb": 7}, "hosts": {"gpu2": {"layout": ["3g.40gb", "3g.40gb"]}}}
DESCRIPTION = {
    "myriad_cluster": {"name": "lab", "topology_levels": ["room", "block", "rack"]},
    "myriad_pools": {"h100": {"model": "H100-SXM5-80GB", "use": "inference", "mig": MIG}},
    "myriad_teams": {"vision": {"namespaces": ["vision"], "quota": {"h100": 4}}},
}
GROUPS = {"all": ["cp1", "gpu1", "gpu2"], "control_plane": ["cp1"], "gpu_nodes": ["gpu1", "gpu2"]}


def sliced_node(name: str, rack: str, resource: str, count: int) -> dict[str, Any]:
    """A node whose GPUs are cut."""
    node = fake_node(name, ("hall1", "b1", rack))
    for kind in ("allocatable", "capacity"):
        amounts = {key: value for key, value in node["status"][kind].items() if key != "nvidia.com/gpu"}
        node["status"][kind] = {**amounts, resource: str(count)}
    return node


def slices(name: str, resource: str, pods: int) -> dict[str, Any]:
    """A Job of pods with a slice each."""
    job = gang_job(name, pods=pods, gpus=1)
    resources = job["spec"]["template"]["spec"]["containers"][0]["resources"]
    for part, amounts in list(resources.items()):
        resources[part] = {**{key: value for key, value in amounts.items() if key != "nvidia.com/gpu"}, resource: "1"}
    return job


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("mig") / "plane") as running:
        checked = check(
            inventory_from_groups(
                DESCRIPTION,
                {**GROUPS, "pool_h100": ["gpu1", "gpu2"]},
                locations={"gpu1": "hall1/b1/r1", "gpu2": "hall1/b1/r2"},
            )
        )
        assert [problem for problem in checked.problems if problem.severity == "error"] == []
        policy = [
            item
            for item in objects_for_cluster_policy(checked.fleet)
            if item["kind"] == "Namespace" or item["apiVersion"].startswith("kueue.")
        ]
        running.apply([sliced_node("gpu1", "r1", SMALL, 56), sliced_node("gpu2", "r2", LARGE, 16), *policy])
        yield running


def workload(api: Api, job: str, *, admitted: bool, timeout_s: float = 60.0) -> dict[str, Any]:
    """The Workload of a job, when it is admitted, or when Kueue has said why it is not."""
    end = time.monotonic() + timeout_s
    found: dict[str, Any] = {}
    while time.monotonic() < end:
        items = api.get_raw("/apis/kueue.x-k8s.io/v1beta2/namespaces/vision/workloads")["items"]
        for found in (item for item in items if item["metadata"]["ownerReferences"][0]["name"] == job):
            states = {c["type"]: c for c in (found.get("status") or {}).get("conditions") or []}
            if states.get("Admitted", {}).get("status") == "True" and admitted:
                return found
            if states.get("QuotaReserved", {}).get("status") == "False" and not admitted:
                return found
        time.sleep(0.5)
    raise AssertionError(f"{job} is {'not ' if admitted else ''}admitted after {timeout_s} s: {found.get('status')}")


def usage(api: Api, wanted: dict[str, str], timeout_s: float = 60.0) -> dict[str, str]:
    """What Kueue counts as used of these resources; its status follows an admission after a moment."""
    end = time.monotonic() + timeout_s
    while True:
        status = api.get_raw("/apis/kueue.x-k8s.io/v1beta2/clusterqueues/vision-h100")["status"]
        rows = [row for flavor in status["flavorsUsage"] for row in flavor["resources"]]
        found = {row["name"]: row["total"] for row in rows if row["name"] in wanted}
        if found == wanted or time.monotonic() > end:
            return found
        time.sleep(0.5)


def test_each_profile_has_its_own_quota_in_one_flavor(plane: ControlPlane, api: Api) -> None:
    plane.apply([slices("small", SMALL, 14)])
    assignment = workload(api, "small", admitted=True)["status"]["admission"]["podSetAssignments"][0]
    assert set(assignment["flavors"].values()) == {"h100"}
    assert "gpu1" in str(assignment["topologyAssignment"]) and "gpu2" not in str(assignment["topologyAssignment"])

    plane.apply([slices("one-more", SMALL, 1)])
    status = workload(api, "one-more", admitted=False)["status"]
    assert SMALL in str(status["conditions"]), "Kueue names the profile that is used up"

    plane.apply([slices("large", LARGE, 4)])
    assignment = workload(api, "large", admitted=True)["status"]["admission"]["podSetAssignments"][0]
    assert "gpu2" in str(assignment["topologyAssignment"])
    wanted = {SMALL: "14", LARGE: "4"}
    assert usage(api, wanted) == wanted
