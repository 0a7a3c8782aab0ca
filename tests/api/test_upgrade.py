"""Upgrades and drift against a real API server: the way back, changes by hand with their owners, blockers of a plan."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apiserver
import pytest
import yaml
from apiserver import ControlPlane

from myriad.drift.objects import differences
from myriad.drift.read import look
from myriad.kube.apply import Applier, Options
from myriad.kube.chart import render
from myriad.kube.client import Api, connect
from myriad.kube.drain import CORDON_ANNOTATION
from myriad.kube.kinds import DEPLOYMENTS, NODES, PODS
from myriad.kube.reboot import NotBackError
from myriad.upgrade.held import hold, let_go
from myriad.upgrade.node import Waits, finish
from myriad.upgrade.plan import BY, Limits, Look, Target
from myriad.upgrade.read import planned
from myriad.upgrade.rollback import applied, back, keep, newest_kept

Json = dict[str, Any]
pytestmark = [apiserver.AT_HAND, pytest.mark.slow]

SYSTEM = "kueue-system"
SET = "kueue"
QUEUE: Json = {
    "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "vision"},
    "spec": {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [
        {"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "16"}]}]}]},
}  # fmt: skip
VERSIONS = {"kubernetes": "1.35.4", "containerd": "2.3.4"}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with apiserver.api_server(tmp_path_factory.mktemp("api") / "plane", namespaces=["vision"], kubelets=True) as plane:
        yield plane


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[Api]:
    api = connect(plane.kubeconfig)
    yield api
    api.close()


@pytest.fixture(scope="module")
def kueue(api: Api) -> list[Json]:
    """Kueue's own chart, applied as the role does; nobody serves its webhooks here."""
    chart = Path(apiserver.find_chart() or "")
    text = render(Path(apiserver.find("helm") or ""), chart, name="kueue", namespace=SYSTEM)
    without = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "APIService")
    objects = [obj for obj in yaml.load_all(text, yaml.CSafeLoader) if obj and obj["kind"] not in without]
    objects.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    for obj in objects:
        if obj["kind"] == "CustomResourceDefinition":
            obj["spec"].pop("conversion", None)
    Applier(api, Options(set_name=SET, prune=True)).apply(objects)
    Applier(api, Options(set_name="cluster-policy", prune=True)).apply([QUEUE])
    return objects


def test_the_way_back_is_what_was_applied(api: Api, kueue: list[Json], tmp_path: Path) -> None:
    """An upgrade that changes, adds and drops objects; back is the same as before, also where defaults were added."""
    before = applied(api, SET)
    assert len(before) == len(kueue)
    kept = keep(api, SET, tmp_path, "new")
    assert kept is not None
    assert keep(api, SET, tmp_path, "new") == kept, "a run that is repeated keeps nothing new"
    newer = copy.deepcopy([obj for obj in kueue if obj["metadata"]["name"] != "kueue-metrics-reader"])
    deployment = next(obj for obj in newer if obj["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.myriad.internal/kueue:0.99"
    deployment["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "NEW", "value": "1"}]
    newer.append(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new", "namespace": SYSTEM}, "data": {}}
    )
    changed = Applier(api, Options(set_name=SET, prune=True)).apply(newer)
    assert changed.created and changed.changed
    foretold = back(api, SET, kept, dry_run=True)
    outcome = back(api, SET, newest_kept(tmp_path, SET) or kept)
    assert f"ConfigMap {SYSTEM}/new" in outcome.pruned
    assert (foretold.created, foretold.changed, foretold.pruned) == (outcome.created, outcome.changed, outcome.pruned)
    assert applied(api, SET) == before
    live = api.get(DEPLOYMENTS, "kueue-controller-manager", namespace=SYSTEM)
    assert not live["spec"]["template"]["spec"]["containers"][0].get("env")
    # The next run with the older lock finds nothing to do.
    assert not Applier(api, Options(set_name=SET, prune=True)).apply(kueue).is_changed


def test_drift_of_a_cluster_that_nobody_touched_is_empty(api: Api, kueue: list[Json]) -> None:
    for node in api.list(NODES)[0]:
        api.delete(NODES, node["metadata"]["name"])
    assert look(api, [], VERSIONS) == ([], [])


@pytest.mark.parametrize(
    ("change", "undo", "item"),
    [
        (["set", "env", "deployment/kueue-controller-manager", "-n", SYSTEM, "FOO=1"],
         ["set", "env", "deployment/kueue-controller-manager", "-n", SYSTEM, "FOO-"],
         f"Deployment {SYSTEM}/kueue-controller-manager spec.template.spec.containers[name=manager].env"),
        (["annotate", "clusterqueue", "vision", "mine=1"], ["annotate", "clusterqueue", "vision", "mine-"],
         "ClusterQueue vision metadata.annotations.mine"),
        (["create", "priorityclass", "mine", "--value=1000000"], ["delete", "priorityclass", "mine"],
         "PriorityClass mine"),
        (["label", "configmap", "kueue-manager-config", "-n", SYSTEM, "mine=1"],
         ["label", "configmap", "kueue-manager-config", "-n", SYSTEM, "mine-"],
         f"ConfigMap {SYSTEM}/kueue-manager-config metadata.labels.mine"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_somebody_added_is_named_with_its_owner(
    plane: ControlPlane, api: Api, kueue: list[Json], change: list[str], undo: list[str], item: str
) -> None:
    plane.kubectl(*change)
    found, _notes = look(api, [], VERSIONS)
    assert found and all(entry["item"].startswith(item) for entry in found), found
    assert all(entry["by"].startswith("kubectl") for entry in found), found
    plane.kubectl(*undo)
    assert look(api, [], VERSIONS) == ([], [])


def test_what_somebody_changed_is_named_field_by_field(plane: ControlPlane, api: Api, kueue: list[Json]) -> None:
    path = "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota"
    plane.kubectl("patch", "clusterqueue", "vision", "--type=json", "-p",
                  json.dumps([{"op": "replace", "path": path, "value": "1"}]))  # fmt: skip
    outcome = Applier(api, Options(set_name="cluster-policy", prune=True, dry_run=True)).apply([QUEUE])
    found = differences("cluster-policy", outcome.diff)
    named = [(entry["item"], entry["expected"], entry["found"]) for entry in found]
    where = "ClusterQueue vision spec.resourceGroups[0].flavors[h100].resources[nvidia.com/gpu].nominalQuota"
    assert named == [(where, "16", "1")]
    assert Applier(api, Options(set_name="cluster-policy", prune=True)).apply([QUEUE]).is_changed
    assert look(api, [], VERSIONS) == ([], [])


def test_nodes_without_a_host_and_hosts_without_a_node(plane: ControlPlane, api: Api, kueue: list[Json]) -> None:
    api.create(NODES, apiserver.fake_node("gpu1", ("hall1", "b1", "r1")))
    plane.kubectl("cordon", "gpu1")
    found, notes = look(api, ["gpu2"], VERSIONS)
    kinds = [(entry["kind"], entry["item"], entry["found"]) for entry in found if entry["kind"] == "node"]
    assert kinds == [("node", "gpu2", "absent"), ("node", "gpu1", "a Node")]
    assert len(notes) == 1
    assert notes[0].startswith("gpu1 was cordoned by hand (")
    api.delete(NODES, "gpu1")


TARGET = Target({"kubernetes": "1.35.4"}, {"kubelet": ("new", "1.35.4")})
OLD = Look({"kubelet": "old"})


@pytest.fixture
def nodes(api: Api) -> Iterator[list[str]]:
    """Three nodes with kubelets of an older version and an API server that is at the lock."""
    names = ["gpu1", "gpu2", "gpu3"]
    for number, name in enumerate(names):
        api.create(NODES, apiserver.fake_node(name, ("hall1", "b1", f"r{number}")))
    yield names
    for pod in api.list(PODS, namespace="vision")[0]:
        api._json("DELETE", PODS.path("vision", pod["metadata"]["name"]), body={"gracePeriodSeconds": 0})
    for name in names:
        api.delete(NODES, name)


def gang(api: Api, name: str, *on: str) -> None:
    """A job with a pod that holds a GPU on each of these nodes."""
    for number, node in enumerate(on):
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"u-{name}", "controller": True}
        body = {
            "metadata": {"name": f"{name}-{number}", "namespace": "vision", "ownerReferences": [owner],
                         "labels": {"batch.kubernetes.io/job-name": name}},
            "spec": {"nodeName": node, "tolerations": [{"operator": "Exists"}], "containers": [
                {"name": "main", "image": "registry.invalid/x:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        }  # fmt: skip
        api.create(PODS, body, namespace="vision")


def plan_now(api: Api, jobs: str = "wait", batch: int = 10) -> Any:
    names = [node["metadata"]["name"] for node in api.list(NODES)[0]]
    limits = Limits(jobs=jobs, batch=batch)  # type: ignore[arg-type]
    looks = dict.fromkeys(names, OLD)
    return planned(api, looks, TARGET, {}, limits, control_plane_hosts=[], unmanaged=False)


def test_d3_a_budget_that_blocks_one_node_is_reported_before_anything_is_touched(
    plane: ControlPlane, api: Api, nodes: list[str]
) -> None:
    gang(api, "web", "gpu2")
    plane.kubectl("create", "pdb", "web", "-n", "vision", "--selector=batch.kubernetes.io/job-name=web",
                  "--min-available=1")  # fmt: skip
    try:
        found = plan_now(api, "checkpoint")
        assert set(found.order) == {"gpu1", "gpu3"}
        assert "vision/web-0 would not leave" in found.left["gpu2"], found.left
        assert "budget" in found.left["gpu2"]
        assert all(not node["spec"].get("unschedulable") for node in api.list(NODES)[0])
    finally:
        plane.kubectl("delete", "pdb", "web", "-n", "vision")


def test_nodes_of_a_running_gang_are_held_and_given_back_as_they_were(api: Api, nodes: list[str]) -> None:
    gang(api, "train", "gpu1", "gpu2")
    found = plan_now(api)
    assert found.order == ["gpu3"]
    assert hold(api, found.left) == ["gpu1", "gpu2"]
    held = api.get(NODES, "gpu1")
    assert held["spec"]["unschedulable"]
    # Held, the job runs on; the next plan leaves them for the same reason.
    again = plan_now(api)
    assert (again.order, again.left) == (["gpu3"], found.left)
    assert let_go(api, again.left) == ["gpu1", "gpu2"]
    assert not api.get(NODES, "gpu1")["spec"].get("unschedulable")
    assert CORDON_ANNOTATION not in (api.get(NODES, "gpu1")["metadata"].get("annotations") or {})


def test_d5_a_node_whose_kubelet_does_not_come_stays_closed_with_the_reason_and_goes_first(
    api: Api, nodes: list[str]
) -> None:
    running = api.get(NODES, "gpu2")["status"]["nodeInfo"].get("kubeletVersion") or "unknown"
    with pytest.raises(NotBackError, match=r"not 9\.9\.9") as caught:
        finish(api, "gpu2", "9.9.9", waits=Waits(ready_s=0.5, gate_s=0.5, poll_s=0.1))
    assert running.removeprefix("v") in str(caught.value)
    closed = api.get(NODES, "gpu2")
    assert closed["spec"]["unschedulable"]
    assert json.loads(closed["metadata"]["annotations"][CORDON_ANNOTATION])["by"] == BY
    assert plan_now(api, batch=1).waves[0] == ("gpu2",)
