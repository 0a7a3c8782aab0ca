"""Queues, quotas, priorities, topology and labels in the cluster are those of the description."""

import json
from typing import Any

import pytest

testinfra_hosts = ["ansible://control_plane"]


def quantity(value: Any) -> int:
    """A count as the API writes it."""
    return int(str(value))


def queues(variables: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """ClusterQueue name to (team, pool) for every quota that the description gives."""
    return {
        f"{team}-{pool}": (team, pool)
        for team, spec in variables["myriad_teams"].items()
        for pool in spec.get("quota", {})
    }


def test_the_topology_has_the_described_levels(cluster: Any, variables: dict[str, Any]) -> None:
    levels = [level["nodeLabel"] for level in cluster.get("topologies.kueue.x-k8s.io", "myriad")["spec"]["levels"]]
    described = [f"myriad.dev/{level}" for level in variables["myriad_cluster"]["topology_levels"]]
    assert levels == [*described, "kubernetes.io/hostname"]


def test_every_pool_has_a_flavor_on_the_topology(cluster: Any, variables: dict[str, Any]) -> None:
    for pool in variables["myriad_pools"]:
        spec = cluster.get("resourceflavors.kueue.x-k8s.io", pool)["spec"]
        assert spec["nodeLabels"]["myriad.dev/pool"] == pool
        assert spec["topologyName"] == "myriad"


def test_every_team_has_a_queue_with_its_quota_in_each_pool(cluster: Any, variables: dict[str, Any]) -> None:
    found = {item["metadata"]["name"]: item for item in cluster.get("clusterqueues.kueue.x-k8s.io")}
    assert set(queues(variables)) <= set(found)
    for name, (team, pool) in queues(variables).items():
        spec = found[name]["spec"]
        quotas = {
            resource["name"]: resource["nominalQuota"]
            for group in spec["resourceGroups"]
            for flavor in group["flavors"]
            if flavor["name"] == pool
            for resource in flavor["resources"]
        }
        assert quantity(quotas["nvidia.com/gpu"]) == variables["myriad_teams"][team]["quota"][pool]
        assert found[name]["metadata"]["labels"]["myriad.dev/team"] == team
        assert found[name]["metadata"]["labels"]["myriad.dev/pool"] == pool


def test_every_queue_is_active(cluster: Any, variables: dict[str, Any]) -> None:
    for name in queues(variables):
        conditions = cluster.get("clusterqueues.kueue.x-k8s.io", name)["status"]["conditions"]
        assert {item["type"]: item["status"] for item in conditions}["Active"] == "True", conditions


def test_a_namespace_of_a_team_has_a_queue_for_each_pool(cluster: Any, variables: dict[str, Any]) -> None:
    for name, (team, pool) in queues(variables).items():
        for namespace in variables["myriad_teams"][team]["namespaces"]:
            assert cluster.get("namespace", namespace)["metadata"]["labels"]["myriad.dev/team"] == team
            assert cluster.get("localqueues.kueue.x-k8s.io", pool, namespace)["spec"]["clusterQueue"] == name


@pytest.mark.parametrize("kind", ["workloadpriorityclasses.kueue.x-k8s.io", "priorityclasses.scheduling.k8s.io"])
def test_priorities_are_the_described_ones(cluster: Any, variables: dict[str, Any], kind: str) -> None:
    found = {item["metadata"]["name"]: item for item in cluster.get(kind)}
    for name, value in variables["myriad_priorities"].items():
        assert found[name]["value"] == value


def test_kueue_is_the_only_one_that_preempts(cluster: Any, variables: dict[str, Any]) -> None:
    found = {item["metadata"]["name"]: item for item in cluster.get("priorityclasses.scheduling.k8s.io")}
    assert {found[name]["preemptionPolicy"] for name in variables["myriad_priorities"]} == {"Never"}


def test_every_node_says_where_it_stands(cluster: Any, variables: dict[str, Any]) -> None:
    nodes = {item["metadata"]["name"]: item["metadata"]["labels"] for item in cluster.get("nodes")}
    for name in variables["groups"]["gpu_nodes"]:
        for level in variables["myriad_cluster"]["topology_levels"]:
            assert nodes[name][f"myriad.dev/{level}"]


def test_the_extension_is_told_the_rules_of_the_site(cluster: Any, variables: dict[str, Any]) -> None:
    document = json.loads(cluster.get("configmap", "myriad-policy", "myriad-system")["data"]["policy.json"])
    assert document["cluster"] == variables["myriad_cluster"]["name"]
    assert set(document["teams"]) == set(variables["myriad_teams"])
    assert {name: pool["use"] for name, pool in document["pools"].items()} == {
        name: pool.get("use", "training") for name, pool in variables["myriad_pools"].items()
    }


def test_every_admission_rule_is_bound_and_none_fails_closed(cluster: Any) -> None:
    found = cluster.get("validatingadmissionpolicies")
    policies = {item["metadata"]["name"]: item["spec"] for item in found}
    bindings = {item["spec"]["policyName"] for item in cluster.get("validatingadmissionpolicybindings")}
    # Those of other roles guard single objects of their own, and may fail closed.
    sets = {item["metadata"]["name"]: item["metadata"].get("labels", {}).get("myriad.dev/set") for item in found}
    ours = {name for name, of in sets.items() if of == "cluster-policy"}
    assert ours and ours <= bindings
    assert {policies[name]["failurePolicy"] for name in ours} == {"Ignore"}
