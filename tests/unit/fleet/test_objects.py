"""The Kubernetes objects that follow from a description."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from myriad.fleet import Checked, objects_for_cluster_policy
from myriad.fleet.objects import POLICY_LABELS, UNBOUND_CPU, UNBOUND_MEMORY

Check = Callable[..., Checked]


def by_name(items: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in items if item["kind"] == kind}


def objects(result: Checked) -> list[dict[str, Any]]:
    assert result.errors == []
    return objects_for_cluster_policy(result.fleet)


def quota(queue: dict[str, Any]) -> dict[str, dict[str, str]]:
    (group,) = queue["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    assert [row["name"] for row in flavor["resources"]] == group["coveredResources"]
    return {row["name"]: {key: value for key, value in row.items() if key != "name"} for row in flavor["resources"]}


SHARED = {
    "myriad_pools": {
        "h100": {"model": "H100-SXM5-80GB", "cpu_per_gpu": 12.5, "memory_per_gpu": "1536Gi"},
        "serving": {"model": "H100-SXM5-80GB", "use": "inference"},
    },
    "myriad_cohorts": {"site": {}, "research": {"parent": "site", "weight": 0.5}},
    "myriad_teams": {
        "vision": {
            "namespaces": ["vision-b", "vision-a"],
            "quota": {"h100": 16, "serving": 4},
            "weight": 2,
            "cohort": "research",
            "borrow": {"h100": 8},
            "lend": {"h100": 4, "serving": 0},
        },
        "alone": {"namespaces": ["alone"], "quota": {"serving": 4}},
    },
}
GROUPS = {
    "control_plane": ["cp1"],
    "gpu_nodes": ["gpu1", "gpu2", "gpu3"],
    "pool_h100": ["gpu1", "gpu2"],
    "pool_serving": ["gpu3"],
}


@pytest.fixture
def shared(checked: Check) -> list[dict[str, Any]]:
    return objects(checked(copy.deepcopy(SHARED), groups=GROUPS))


def test_what_is_referred_to_comes_first(shared: list[dict[str, Any]]) -> None:
    kinds = list(dict.fromkeys(item["kind"] for item in shared))
    assert kinds == [
        "Namespace",
        "PriorityClass",
        "WorkloadPriorityClass",
        "Topology",
        "ResourceFlavor",
        "Cohort",
        "ClusterQueue",
        "LocalQueue",
        "ConfigMap",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]
    cohorts = list(by_name(shared, "Cohort"))
    assert cohorts.index("site") < cohorts.index("research")
    assert cohorts.index("site-inference") < cohorts.index("research-inference")


def test_every_object_carries_the_labels_that_prune_looks_for(shared: list[dict[str, Any]]) -> None:
    assert all(POLICY_LABELS.items() <= item["metadata"]["labels"].items() for item in shared)
    keys = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in shared]
    assert len(set(keys)) == len(keys)


def test_rendering_twice_gives_the_same(checked: Check) -> None:
    backwards = copy.deepcopy(SHARED)
    backwards["myriad_teams"] = dict(reversed(backwards["myriad_teams"].items()))
    backwards["myriad_pools"] = dict(reversed(backwards["myriad_pools"].items()))
    assert objects(checked(backwards, groups=GROUPS)) == objects(checked(copy.deepcopy(SHARED), groups=GROUPS))


def test_namespaces_belong_to_their_team(shared: list[dict[str, Any]]) -> None:
    teams = {name: item["metadata"]["labels"]["myriad.dev/team"] for name, item in by_name(shared, "Namespace").items()}
    assert teams == {"vision-a": "vision", "vision-b": "vision", "alone": "alone"}


def test_topology_has_every_level_and_the_host_last(shared: list[dict[str, Any]]) -> None:
    assert by_name(shared, "Topology")["myriad"]["spec"]["levels"] == [
        {"nodeLabel": "myriad.dev/room"},
        {"nodeLabel": "myriad.dev/block"},
        {"nodeLabel": "myriad.dev/rack"},
        {"nodeLabel": "kubernetes.io/hostname"},
    ]


def test_flavors_select_their_pool_and_name_the_topology(shared: list[dict[str, Any]]) -> None:
    spec = by_name(shared, "ResourceFlavor")["h100"]["spec"]
    assert spec == {"nodeLabels": {"myriad.dev/pool": "h100"}, "topologyName": "myriad"}


def test_inference_pools_share_in_a_tree_of_their_own(shared: list[dict[str, Any]]) -> None:
    cohorts = by_name(shared, "Cohort")
    assert {name: item["spec"].get("parentName") for name, item in cohorts.items()} == {
        "site": None,
        "site-inference": None,
        "research": "site",
        "research-inference": "site-inference",
    }
    assert cohorts["research"]["spec"]["fairSharing"] == {"weight": "500m"}
    queues = by_name(shared, "ClusterQueue")
    assert queues["vision-h100"]["spec"]["cohortName"] == "research"
    assert queues["vision-serving"]["spec"]["cohortName"] == "research-inference"


def test_without_inference_pools_there_is_one_tree(checked: Check) -> None:
    assert list(by_name(objects(checked()), "Cohort")) == ["research"]


def test_quotas_of_cpu_and_memory_follow_the_gpus(shared: list[dict[str, Any]]) -> None:
    assert quota(by_name(shared, "ClusterQueue")["vision-h100"]) == {
        "cpu": {"nominalQuota": "200", "borrowingLimit": "100", "lendingLimit": "50"},
        "memory": {"nominalQuota": "24Ti", "borrowingLimit": "12Ti", "lendingLimit": "6Ti"},
        "nvidia.com/gpu": {"nominalQuota": "16", "borrowingLimit": "8", "lendingLimit": "4"},
    }


def test_cpu_and_memory_never_bind_where_nothing_is_said(shared: list[dict[str, Any]]) -> None:
    assert quota(by_name(shared, "ClusterQueue")["vision-serving"]) == {
        "cpu": {"nominalQuota": UNBOUND_CPU},
        "memory": {"nominalQuota": UNBOUND_MEMORY},
        "nvidia.com/gpu": {"nominalQuota": "4", "lendingLimit": "0"},
    }


def test_a_team_without_a_cohort_has_no_limits(shared: list[dict[str, Any]]) -> None:
    queue = by_name(shared, "ClusterQueue")["alone-serving"]
    assert "cohortName" not in queue["spec"]
    assert quota(queue)["nvidia.com/gpu"] == {"nominalQuota": "4"}


def test_queues_are_fair_and_an_owner_takes_back_its_own(shared: list[dict[str, Any]]) -> None:
    spec = by_name(shared, "ClusterQueue")["vision-h100"]["spec"]
    assert spec["fairSharing"] == {"weight": "2"}
    assert spec["namespaceSelector"] == {"matchLabels": {"myriad.dev/team": "vision"}}
    assert spec["preemption"]["reclaimWithinCohort"] == "Any"
    assert spec["preemption"]["withinClusterQueue"] == "LowerPriority"
    assert "admissionChecksStrategy" not in spec, "that field is the extension's"


def test_every_namespace_has_a_queue_for_each_pool_of_its_team(shared: list[dict[str, Any]]) -> None:
    queues = {
        (item["metadata"]["namespace"], item["metadata"]["name"]): item["spec"]["clusterQueue"]
        for item in shared
        if item["kind"] == "LocalQueue"
    }
    assert queues == {
        ("vision-a", "h100"): "vision-h100",
        ("vision-a", "serving"): "vision-serving",
        ("vision-b", "h100"): "vision-h100",
        ("vision-b", "serving"): "vision-serving",
        ("alone", "serving"): "alone-serving",
    }


def test_a_quota_of_nothing_still_makes_a_queue_that_borrows(checked: Check) -> None:
    teams = {
        "vision": {"namespaces": ["vision"], "quota": {"h100": 24}, "cohort": "research"},
        "guest": {"namespaces": ["guest"], "quota": {"h100": 0}, "cohort": "research", "borrow": {"h100": 8}},
    }
    queue = by_name(objects(checked(myriad_teams=teams)), "ClusterQueue")["guest-h100"]
    assert quota(queue)["nvidia.com/gpu"] == {"nominalQuota": "0", "borrowingLimit": "8"}


def test_priorities_exist_twice_and_pods_never_preempt(checked: Check) -> None:
    items = objects(checked(myriad_priorities={"low": 1, "high": 7}))
    classes, workload_classes = by_name(items, "PriorityClass"), by_name(items, "WorkloadPriorityClass")
    assert {name: item["value"] for name, item in classes.items()} == {"high": 7, "low": 1}
    # Each class of Kueue has a twin above all that are not shielded, in the same order.
    assert {name: item["value"] for name, item in workload_classes.items()} == {
        "high": 7,
        "low": 1,
        "high-shielded": 14,
        "low-shielded": 8,
    }
    assert {item["preemptionPolicy"] for item in classes.values()} == {"Never"}
    assert not any(item["globalDefault"] for item in classes.values())


def test_another_resource_is_counted_where_a_pool_names_it(checked: Check) -> None:
    pools = {"h100": {"model": "Ascend910B", "resource": "huawei.com/Ascend910"}}
    queue = by_name(objects(checked(myriad_pools=pools)), "ClusterQueue")["vision-h100"]
    assert quota(queue)["huawei.com/Ascend910"] == {"nominalQuota": "16"}


def test_large_quotas_stand_in_canonical_form(checked: Check) -> None:
    teams = {"vision": {"namespaces": ["vision"], "quota": {"h100": 4000}}}
    queue = by_name(objects(checked(myriad_teams=teams)), "ClusterQueue")["vision-h100"]
    assert quota(queue)["nvidia.com/gpu"] == {"nominalQuota": "4k"}, "the API server would answer 4k to 4000"


def test_volcano_is_rendered_only_for_its_pools(checked: Check) -> None:
    assert not by_name(objects(checked()), "HyperNode")
    pools = {"h100": {"model": "H100-SXM5-80GB", "engine": "volcano"}}
    items = objects(checked(myriad_pools=pools))
    assert by_name(items, "ResourceFlavor")["h100"]["spec"] == {"nodeLabels": {"myriad.dev/pool": "h100"}}
    queue = by_name(items, "Queue")["myriad"]["spec"]
    assert "capability" not in queue and "deserved" not in queue, "Kueue is the only ledger"
    nodes = by_name(items, "HyperNode")
    assert {name: (item["spec"]["tier"], item["spec"]["tierName"]) for name, item in nodes.items()} == {
        "hall1.b1.r1": (1, "rack"),
        "hall1.b1.r2": (1, "rack"),
        "hall1.b1": (2, "block"),
        "hall1": (3, "room"),
    }
    assert nodes["hall1.b1.r1"]["spec"]["members"] == [
        {
            "type": "Node",
            "selector": {
                "labelMatch": {
                    "matchLabels": {"myriad.dev/rack": "hall1.b1.r1"},
                    "matchExpressions": [{"key": "myriad.dev/pool", "operator": "In", "values": ["h100"]}],
                }
            },
        }
    ]
    assert nodes["hall1.b1"]["spec"]["members"] == [
        {"type": "HyperNode", "selector": {"exactMatch": {"name": "hall1.b1.r1"}}},
        {"type": "HyperNode", "selector": {"exactMatch": {"name": "hall1.b1.r2"}}},
    ]


def test_a_service_is_nobodys_victim_and_keeps_its_reserve(checked: Check) -> None:
    variables = copy.deepcopy(SHARED)
    vision = variables["myriad_teams"]["vision"]
    quota = vision["quota"]["serving"]
    vision |= {"lend": {}, "reserve": {"serving": quota - 1}}
    queues = by_name(objects(checked(variables, groups=GROUPS)), "ClusterQueue")
    serving, training = queues["vision-serving"]["spec"], queues["vision-h100"]["spec"]
    assert serving["preemption"]["withinClusterQueue"] == "Never"
    assert training["preemption"]["withinClusterQueue"] == "LowerPriority"
    assert serving["cohortName"] != training["cohortName"], "training can reclaim nothing there"
    rows = {r["name"]: r for r in serving["resourceGroups"][0]["flavors"][0]["resources"]}
    assert rows["nvidia.com/gpu"]["lendingLimit"] == "1"
