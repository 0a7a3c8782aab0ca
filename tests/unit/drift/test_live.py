"""Fields, objects, Nodes and versions that no description asked for."""

from __future__ import annotations

from typing import Any

from myriad.drift.live import by_hand, nodes_against, strays, versions
from myriad.drift.objects import differences
from myriad.kube.objects import SET_LABEL

Json = dict[str, Any]


def managed(manager: str, fields: Json, **more: Any) -> Json:
    return {"manager": manager, "operation": "Update", "time": "2026-11-30T08:00:00Z", "fieldsV1": fields, **more}


ENV = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"manager"}': {
    "f:env": {".": {}, 'k:{"name":"FOO"}': {".": {}, "f:name": {}, "f:value": {}}}}}}}}}  # fmt: skip


def test_a_variable_that_somebody_added_to_a_deployment() -> None:
    entries = [managed("myriad-kueue", {"f:spec": {"f:replicas": {}}}, operation="Apply"), managed("kubectl-set", ENV)]
    deployment = {"metadata": {"namespace": "kueue-system", "name": "kueue", "managedFields": entries}}
    found = by_hand("Deployment", deployment)
    assert {item["item"] for item in found} == {
        "Deployment kueue-system/kueue spec.template.spec.containers[name=manager].env[name=FOO].name",
        "Deployment kueue-system/kueue spec.template.spec.containers[name=manager].env[name=FOO].value",
    }
    assert {item["by"] for item in found} == {"kubectl-set, 2026-11-30T08:00:00Z"}


def test_programs_of_the_cluster_status_and_restarts_are_no_change_by_hand() -> None:
    restarted = {
        "f:spec": {"f:template": {"f:metadata": {"f:annotations": {"f:kubectl.kubernetes.io/restartedAt": {}}}}}
    }
    entries = [
        managed(
            "kube-controller-manager", {"f:metadata": {"f:annotations": {"f:deployment.kubernetes.io/revision": {}}}}
        ),
        # Fills ClusterRoles that aggregate others, as Kueue's do.
        managed("clusterrole-aggregation-controller", {"f:rules": {}}),
        managed("kubectl-rollout", restarted),
        managed("kubectl", {"f:status": {"f:replicas": {}}}, subresource="status"),
    ]
    assert by_hand("Deployment", {"metadata": {"name": "a", "managedFields": entries}}) == []


def test_objects_that_the_description_did_not_make() -> None:
    ours = {"metadata": {"name": "vision-h100", "labels": {SET_LABEL: "cluster-policy"}}}
    mine = {"metadata": {"name": "mine", "managedFields": [managed("kubectl-create", {"f:spec": {}})]}}
    system = {"metadata": {"name": "system-node-critical", "managedFields": [managed("kube-apiserver", {})]}}
    found = strays("ClusterQueue", [ours, mine, system], ignored_prefixes=("system-",))
    assert [(item["item"], item["found"]) for item in found] == [("ClusterQueue mine", "made by hand")]


def test_nodes_against_the_description() -> None:
    taint = managed("kubectl-taint", {"f:spec": {"f:taints": {}}})
    label = managed("kubectl-label", {"f:metadata": {"f:labels": {"f:myriad.dev/rack": {}, "f:mine": {}}}})
    cordon = managed("kubectl-cordon", {"f:spec": {"f:unschedulable": {}}})
    nodes = [
        {"metadata": {"name": "gpu1", "managedFields": [taint, label]}},
        {"metadata": {"name": "gpu2", "managedFields": [cordon]}, "spec": {"unschedulable": True}},
        {"metadata": {"name": "stranger"}},
    ]
    found, notes = nodes_against(["gpu1", "gpu2", "gpu3"], nodes)
    assert [(item["kind"], item["item"], item["found"]) for item in found] == [
        ("node", "gpu3", "absent"),
        ("node", "stranger", "a Node"),
        ("field", "Node gpu1 metadata.labels.myriad.dev/rack", "set by hand"),
    ]
    assert notes == ["gpu2 was cordoned by hand (kubectl-cordon, 2026-11-30T08:00:00Z)"]
    # What Myriad itself closed is told by its annotation.
    nodes[1]["metadata"]["annotations"] = {"myriad.dev/cordon-owner": "{}"}
    assert nodes_against(["gpu1", "gpu2", "gpu3"], nodes)[1] == []


def test_versions_that_run_against_the_lock() -> None:
    locked = {"kubernetes": "1.35.4", "containerd": "2.3.4", "etcd": "3.6.14"}
    node = {"metadata": {"name": "gpu1"}, "status": {"nodeInfo": {
        "kubeletVersion": "v1.34.4", "containerRuntimeVersion": "containerd://2.3.4"}}}  # fmt: skip

    def pod(component: str, tag: str) -> Json:
        containers = [{"image": f"registry.myriad.internal/{component}:{tag}"}]
        return {
            "metadata": {"labels": {"component": component}},
            "spec": {"nodeName": "cp1", "containers": containers},
        }

    found = versions(locked, [node], [pod("kube-apiserver", "v1.35.4"), pod("etcd", "3.6.13")])
    assert [(item["item"], item["expected"], item["found"]) for item in found] == [
        ("kubelet of gpu1", "1.35.4", "v1.34.4"),
        ("etcd of cp1", "3.6.14", "3.6.13"),
    ]


SPEC = "spec: {{containers: [{{name: m, args: {}}}]}}\n"


def test_a_prediction_becomes_fields() -> None:
    def entry(name: str, before: str, after: str) -> dict[str, str]:
        return {"before_header": name, "after_header": name, "before": before, "after": after}

    found = differences(
        "kueue",
        [
            entry("ClusterQueue a", "spec: {quota: '1', new: 2}\n", "spec: {quota: '16'}\n"),
            entry("Deployment x/b", SPEC.format("[a]"), SPEC.format("[a, b]")),
            entry("Topology gone", "", "spec: {}\n"),
            entry("Topology extra", "spec: {}\n", ""),
        ],
    )
    assert [(item["item"], item["expected"], item["found"]) for item in found] == [
        ("ClusterQueue a spec.new", "absent", "2"),
        ("ClusterQueue a spec.quota", "16", "1"),
        ("Deployment x/b spec.containers[m].args", "[a, b]", "[a]"),
        ("Topology gone", "present", "absent"),
        ("Topology extra", "absent", "present"),
    ]


def test_the_port_of_a_registry_is_no_version() -> None:
    def pod(image: str) -> Json:
        labels = {"component": "kube-apiserver"}
        return {"metadata": {"labels": labels}, "spec": {"nodeName": "cp1", "containers": [{"image": image}]}}

    locked = {"kubernetes": "1.35.4"}
    assert versions(locked, [], [pod("registry.lan:5000/kube-apiserver@sha256:0")]) == []
    assert versions(locked, [], [pod("registry.lan:5000/kube-apiserver:v1.35.4@sha256:0")]) == []
    (found,) = versions(locked, [], [pod("registry.lan:5000/kube-apiserver:v1.34.4")])
    assert (found["item"], found["found"]) == ("kube-apiserver of cp1", "v1.34.4")
