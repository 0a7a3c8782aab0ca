"""Nodes that leave, and machines that were installed anew, against a real API server. No lab, no containers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apiserver
import pytest
import yaml
from apiserver import ControlPlane

from myriad.kube.client import Api
from myriad.kube.kinds import LEASES, NODE_PORTRAITS, NODES, PODS
from myriad.kube.membership import LEASE_NAMESPACE, MembershipError, forget, machines, replaced

ROOT = Path(__file__).resolve().parents[2]
OLD, NEW = "a" * 32, "b" * 32

pytestmark = [apiserver.AT_HAND]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and an API server; Nodes, Leases and pods are what a test makes."""
    work = tmp_path_factory.mktemp("api") / "plane"
    with apiserver.api_server(work, namespaces=["vision", LEASE_NAMESPACE]) as plane:
        plane.apply(list(yaml.safe_load_all((ROOT / "roles/node_portrait/files/nodeportraits.yaml").read_text())))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        yield plane


def node(api: Api, name: str, *, seen_s: float, machine_id: str = OLD, **spec: Any) -> None:
    """A Node whose kubelet renewed its Lease so many seconds ago, with a pod and a portrait."""
    body = apiserver.fake_node(name, ("hall1", "b1", "r1"))
    body["spec"] = spec
    api.create(NODES, body)
    known = {"machineID": machine_id, "bootID": "", "systemUUID": "", "kernelVersion": "", "osImage": "",
             "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "linux",
             "architecture": "amd64"}  # fmt: skip
    api.patch(NODES, name, {"status": {"nodeInfo": known}}, subresource="status")
    renewed = (datetime.now(UTC) - timedelta(seconds=seen_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    lease = {"metadata": {"name": name}, "spec": {"holderIdentity": name, "renewTime": renewed}}
    api.create(LEASES, lease, namespace=LEASE_NAMESPACE)
    container = {"name": "main", "image": "registry.invalid/x:1"}
    pod = {"nodeName": name, "terminationGracePeriodSeconds": 300, "containers": [container]}
    api.create(PODS, {"metadata": {"name": f"on-{name}", "namespace": "vision"}, "spec": pod}, namespace="vision")
    portrait = {"apiVersion": "myriad.dev/v1alpha1", "kind": "NodePortrait", "metadata": {"name": name}, "spec": {}}
    api.create(NODE_PORTRAITS, portrait)


@pytest.fixture(autouse=True)
def nodes(api: Api) -> Iterator[None]:
    """gpu1 is alive, gpu2 was last seen an hour ago; both are the old machines."""
    node(api, "gpu1", seen_s=2)
    node(api, "gpu2", seen_s=3600)
    yield
    for name in ("gpu1", "gpu2"):
        api.delete(PODS, f"on-{name}", namespace="vision", now=True)
        api.delete(LEASES, name, namespace=LEASE_NAMESPACE)
        api.delete(NODE_PORTRAITS, name)
        api.delete(NODES, name)


def left(api: Api) -> dict[str, set[str]]:
    """Names of Nodes, portraits and pods."""
    kinds = {"nodes": NODES, "portraits": NODE_PORTRAITS, "pods": PODS}
    return {kind: {o["metadata"]["name"] for o in api.list(resource)[0]} for kind, resource in kinds.items()}


BOTH = {"nodes": {"gpu1", "gpu2"}, "portraits": {"gpu1", "gpu2"}, "pods": {"on-gpu1", "on-gpu2"}}
FIRST = {"nodes": {"gpu1"}, "portraits": {"gpu1"}, "pods": {"on-gpu1"}}


def test_f5_a_machine_that_was_installed_anew_is_forgotten_with_its_pods_and_nothing_else(api: Api) -> None:
    done = replaced(api, {"gpu1": OLD, "gpu2": NEW, "gpu9": NEW})
    assert (done.nodes, done.pods) == (["gpu2"], {"gpu2": ["vision/on-gpu2"]})
    assert left(api) == FIRST
    assert replaced(api, {"gpu1": OLD, "gpu2": NEW}).nodes == []


def test_two_living_machines_of_one_name_are_refused_with_nothing_changed(api: Api) -> None:
    with pytest.raises(MembershipError, match=f"gpu1 is the name of two machines: machine-id {OLD}"):
        replaced(api, {"gpu1": NEW, "gpu2": NEW})
    assert left(api) == BOTH


def test_the_same_machine_and_one_that_said_nothing_are_left_alone(api: Api) -> None:
    assert replaced(api, {"gpu1": OLD, "gpu2": OLD}).nodes == []
    assert replaced(api, {"gpu2": ""}).nodes == []
    assert left(api) == BOTH


def test_a_prediction_tells_and_changes_nothing(api: Api) -> None:
    assert replaced(api, {"gpu2": NEW}, dry_run=True).nodes == ["gpu2"]
    assert left(api) == BOTH


def test_a_node_that_leaves_leaves_nothing_and_a_killed_run_goes_on(api: Api) -> None:
    api.delete(PODS, "on-gpu2", namespace="vision", now=True)
    assert forget(api, ["gpu2", "gpu7"]).nodes == ["gpu2"]
    assert left(api) == FIRST
    assert forget(api, ["gpu2", "gpu7"]).nodes == []


def test_who_is_alive_is_told_by_the_lease(api: Api) -> None:
    assert {one.name: one.alive for one in machines(api, ["gpu1", "gpu2", "gpu7"])} == {"gpu1": True, "gpu2": False}


def test_a_cordon_by_hand_is_told_because_the_new_node_does_not_have_it(api: Api) -> None:
    api.patch(NODES, "gpu2", {"spec": {"unschedulable": True}})
    assert replaced(api, {"gpu2": NEW}).notes == [
        "gpu2 was cordoned by hand; a new Node of that name is open: kubectl cordon gpu2"
    ]
