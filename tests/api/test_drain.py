"""Draining against a real API server: real eviction, real budgets, dry runs, and pods whose kubelet lets them go.

Needs the programs of `apiserver.py`, no lab, no containers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apiserver
import pytest
from apiserver import ControlPlane

from myriad.kube.client import Api, connect
from myriad.kube.drain import (
    CORDON_ANNOTATION,
    Cordon,
    DrainBlockedError,
    DrainError,
    DrainOptions,
    drain,
    preflight,
    release,
)
from myriad.kube.kinds import DISRUPTION_BUDGETS, NODES, PODS

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    apiserver.AT_HAND,
]

BY = DrainOptions(by="reboot", reason="the driver was upgraded", deadline_s=30, poll_s=0.3)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, an API server and kubelets of fake nodes; no scheduler, so pods name their node."""
    with apiserver.api_server(tmp_path_factory.mktemp("api") / "plane", namespaces=["vision"], kubelets=True) as plane:
        yield plane


@pytest.fixture
def api(plane: ControlPlane) -> Iterator[Api]:
    """A client, with three fresh nodes and nothing on them."""
    api = connect(plane.kubeconfig)
    for name in ("gpu1", "gpu2", "gpu3"):
        api.delete(NODES, name)
        api.create(NODES, apiserver.fake_node(name, ("hall1", "b1", "r1")))
    yield api
    for pod in api.list(PODS, namespace="vision")[0]:
        api._json("DELETE", PODS.path("vision", pod["metadata"]["name"]), body={"gracePeriodSeconds": 0})
    for budget in api.list(DISRUPTION_BUDGETS, namespace="vision")[0]:
        api.delete(DISRUPTION_BUDGETS, budget["metadata"]["name"], namespace="vision")
    api.close()


def run_pod(api: Api, name: str, on: str, *, owner: str = "Job", **labels: str) -> None:
    """A pod that runs on a node."""
    owners = [{"apiVersion": "batch/v1", "kind": owner, "name": "job", "uid": f"u-{name}", "controller": True}]
    api.create(
        PODS,
        {
            "metadata": {
                "name": name, "namespace": "vision", "labels": labels, "ownerReferences": owners if owner else [],
            },
            "spec": {
                "nodeName": on, "terminationGracePeriodSeconds": 1,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "registry.invalid/x:1"}],
            },
        },
        namespace="vision",
    )  # fmt: skip
    end = time.monotonic() + 20
    while api.get(PODS, name, namespace="vision").get("status", {}).get("phase") != "Running":
        assert time.monotonic() < end, f"{name} does not run"
        time.sleep(0.1)


def budget(plane: ControlPlane, name: str, *, allows: int, **match: str) -> None:
    """A budget with the status that its controller would give it."""
    plane.apply(
        [
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": name, "namespace": "vision"},
                "spec": {"minAvailable": 1, "selector": {"matchLabels": match}},
            }
        ]
    )
    status = {
        "disruptionsAllowed": allows, "currentHealthy": 1 + allows, "desiredHealthy": 1, "expectedPods": 2,
        "observedGeneration": 1,
    }  # fmt: skip
    text = json.dumps({"status": status})
    plane.kubectl("patch", "pdb", name, "-n", "vision", "--subresource=status", "--type=merge", "-p", text)


def closed(api: Api) -> set[str]:
    return {node["metadata"]["name"] for node in api.list(NODES)[0] if node["spec"].get("unschedulable")}


def names(api: Api) -> set[str]:
    return {pod["metadata"]["name"] for pod in api.list(PODS, namespace="vision")[0]}


def test_nodes_are_emptied_together_and_given_back_as_they_were_found(api: Api, plane: ControlPlane) -> None:
    plane.kubectl("cordon", "gpu2")
    plane.kubectl("taint", "node", "gpu1", "site.example/health=bad:NoSchedule")
    run_pod(api, "a-0", "gpu1")
    run_pod(api, "b-0", "gpu2")
    run_pod(api, "daemon", "gpu1", owner="DaemonSet")
    run_pod(api, "c-0", "gpu3")
    foreseen, _ = drain(api, ["gpu1", "gpu2"], BY)
    assert {node: [p.name for p in pods] for node, pods in foreseen.pods.items()} == {"gpu1": ["a-0"], "gpu2": ["b-0"]}
    assert names(api) == {"daemon", "c-0"}
    assert closed(api) == {"gpu1", "gpu2"}
    cordon = Cordon.of(api.get(NODES, "gpu1"))
    assert cordon is not None and (cordon.by, cordon.before) == ("reboot", False)
    assert release(api, ["gpu1", "gpu2", "gpu3"], by="reboot") == ["gpu1", "gpu2"]
    assert closed(api) == {"gpu2"}, "d1: a cordon that somebody else had set is left alone"
    assert api.get(NODES, "gpu1")["spec"]["taints"][0]["key"] == "site.example/health"
    assert CORDON_ANNOTATION not in (api.get(NODES, "gpu2")["metadata"].get("annotations") or {})


def test_t14_d3_the_budget_that_forbids_an_eviction_is_named_before_anything_is_touched(
    api: Api, plane: ControlPlane
) -> None:
    run_pod(api, "db-0", "gpu1", app="db")
    run_pod(api, "train-0", "gpu1")
    budget(plane, "db", allows=0, app="db")
    before = api.get(NODES, "gpu1")["metadata"]["resourceVersion"]
    with pytest.raises(DrainBlockedError) as caught:
        drain(api, ["gpu1", "gpu2"], BY)
    assert "vision/db-0 on gpu1: budget db (allows 0): Cannot evict pod" in str(caught.value)
    assert names(api) == {"db-0", "train-0"} and closed(api) == set()
    assert api.get(NODES, "gpu1")["metadata"]["resourceVersion"] == before


def test_a_dry_run_evicts_nobody(api: Api, plane: ControlPlane) -> None:
    run_pod(api, "a-0", "gpu1", app="a")
    budget(plane, "a", allows=1, app="a")
    assert preflight(api, ["gpu1"], BY).blockers == ()
    assert api.get(PODS, "a-0", namespace="vision")["metadata"].get("deletionTimestamp") is None
    assert api.get(DISRUPTION_BUDGETS, "a", namespace="vision")["status"]["disruptionsAllowed"] == 1


def test_t14_d2_a_pod_that_will_not_go_in_time_leaves_the_node_as_it_was(api: Api, plane: ControlPlane) -> None:
    run_pod(api, "stuck-0", "gpu1")
    finalizer = '{"metadata":{"finalizers":["example.org/wait"]}}'
    plane.kubectl("patch", "pod", "stuck-0", "-n", "vision", "--type=merge", "-p", finalizer)
    try:
        with pytest.raises(DrainError, match="vision/stuck-0 on gpu1: it is stopping"):
            drain(api, ["gpu1"], DrainOptions(by="reboot", deadline_s=3, poll_s=0.3))
        assert closed(api) == set()
        assert CORDON_ANNOTATION not in (api.get(NODES, "gpu1")["metadata"].get("annotations") or {})
    finally:
        plane.kubectl(
            "patch", "pod", "stuck-0", "-n", "vision", "--type=merge", "-p", '{"metadata":{"finalizers":null}}'
        )


def test_the_module_drains_predicts_and_gives_back(api: Api, plane: ControlPlane, tmp_path: Path) -> None:
    run_pod(api, "a-0", "gpu1")
    run_pod(api, "db-0", "gpu2", app="db")
    budget(plane, "db", allows=0, app="db")

    def module(arguments: str, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                str(Path(sys.executable).with_name("ansible")), "localhost", "-m", "myriad.gpu.node_drain",
                "-a", f"kubeconfig={plane.kubeconfig} by=reboot {arguments}", *options,
            ],
            cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.minimal"},
        )  # fmt: skip

    assert '"changed": true' in module("nodes=gpu1", "--check").stdout.lower()
    assert names(api) == {"a-0", "db-0"} and closed(api) == set()
    done = module("nodes=gpu1,gpu2")
    assert done.returncode == 2 and "vision/db-0 on gpu2: budget db (allows 0)" in done.stdout + done.stderr
    done = module("nodes=gpu1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert names(api) == {"db-0"} and closed(api) == {"gpu1"}
    assert '"changed": false' in module("nodes=gpu1").stdout
    assert '"changed": true' in module("nodes=gpu1,gpu3 state=undrained").stdout
    assert closed(api) == set()
    assert '"changed": false' in module("nodes=gpu1,gpu3 state=undrained").stdout
