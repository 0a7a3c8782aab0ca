"""The role node_portrait and an agent against a real API server: custom resource, policy, a node that comes back.

Needs the programs of `apiserver.py`, no lab, no containers: the agent's node is a recorded machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apiserver
import pytest
import yaml
from apiserver import ControlPlane, until

from myriad.agent.collect.assemble import collectors
from myriad.agent.collect.source import Recorded
from myriad.agent.loop import Agent, Looking
from myriad.agent.settings import Settings
from myriad.fleet.portrait import LEASE_NAMESPACE, LEASE_PREFIX, Portrait, fresh
from myriad.kube.client import Api, ApiError, connect
from myriad.kube.kinds import LEASES, NODE_PORTRAITS, NODES

ROOT = Path(__file__).resolve().parents[2]
MACHINES = ROOT / "tests" / "fixtures" / "machines"
GATE = {"key": "myriad.dev/gpu-not-ready", "effect": "NoSchedule"}
DESCRIBED = {
    "myriad.dev/room": "hall1", "myriad.dev/block": "hall1.b1", "myriad.dev/rack": "hall1.b1.r1",
    "myriad.dev/pool": "h100", "myriad.dev/gpu-model": "H100-SXM5-80GB", "myriad.dev/gpu-expected": "8",
}  # fmt: skip

pytestmark = [
    apiserver.AT_HAND,
]


class Machine:
    """A recorded machine that can be swapped for another."""

    def __init__(self, name: str) -> None:
        self.become(name)

    def become(self, name: str) -> None:
        self.inner = Recorded(MACHINES / name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def run_role(plane: ControlPlane, folder: Path, *arguments: str, **variables: Any) -> dict[str, int]:
    """Run the role as the site does; returns the recap's counts."""
    spec = {
        "labels": DESCRIBED,
        "expected": {"gpus": 8, "model": "H100-SXM5-80GB", "location": ["hall1", "b1", "r1"]},
    }
    given = {
        "node_portrait_kubeconfig": str(plane.kubeconfig),
        "node_portrait_image": f"registry.invalid/agent@sha256:{'0' * 64}",
        # This API server allows no privileged pods.
        "node_portrait_privileged_enabled": False,
        "node_portrait_nodes": [
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu1", "labels": DESCRIBED}}
        ],
        "node_portrait_specs": {"gpu1": spec},
        "ansible_python_interpreter": sys.executable,
        **variables,
    }
    play = [{"hosts": "localhost", "connection": "local", "gather_facts": False,
             "roles": ["myriad.gpu.node_portrait"]}]  # fmt: skip
    (folder / "play.yml").write_text(yaml.safe_dump(play))
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-e", json.dumps(given),
         *arguments, str(folder / "play.yml")],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
             "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    recap = re.search(r"localhost\s+: (.*)", done.stdout)
    assert recap is not None
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", recap[1])}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and an API server on which the role ran."""
    with apiserver.api_server(tmp_path_factory.mktemp("api") / "plane") as plane:
        assert run_role(plane, plane.work, "--check")["changed"] == 2
        assert run_role(plane, plane.work)["changed"] == 2
        yield plane


def join(admin: Api, name: str, **labels: str) -> None:
    """A kubelet registers its Node as it does: tainted, then with amounts in its status."""
    admin.create(NODES, {"metadata": {"name": name, "labels": labels}, "spec": {"taints": [GATE]}})
    amounts = {"nvidia.com/gpu": "8", "cpu": "64", "memory": "256Gi", "pods": "110"}
    status = {
        "capacity": amounts, "allocatable": amounts,
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": None}],
    }  # fmt: skip
    admin.patch(NODES, name, {"status": status}, subresource="status")


@pytest.fixture
def admin(plane: ControlPlane) -> Iterator[Api]:
    api = connect(plane.kubeconfig)
    for name in ("gpu1", "gpu2"):
        api.delete(NODES, name)
        join(api, name)
    yield api
    api.close()


def agent_api(plane: ControlPlane, node: str) -> Api:
    """The API as the agent's pod on a node has it: a token bound to that pod."""
    name = f"myriad-agent-{node}"
    plane.kubectl("delete", "pod", name, "-n", LEASE_NAMESPACE, "--ignore-not-found", "--force", "--grace-period=0")
    plane.apply(
        [
            {
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": LEASE_NAMESPACE},
                "spec": {
                    "serviceAccountName": "myriad-agent", "nodeName": node, "terminationGracePeriodSeconds": 0,
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": "agent", "image": "registry.invalid/x:1"}],
                },
            }
        ]
    )  # fmt: skip
    token = plane.kubectl(
        "create", "token", "myriad-agent", "-n", LEASE_NAMESPACE, "--bound-object-kind=Pod",
        f"--bound-object-name={name}",
    ).strip()  # fmt: skip
    path = plane.work / f"{name}.conf"
    path.write_text(yaml.safe_dump(apiserver._kubeconfig(plane.url, plane.ca, token)))
    return connect(path)


@pytest.fixture
def machine() -> Machine:
    return Machine("h100-sxm5-x8")


@pytest.fixture
def agent(plane: ControlPlane, admin: Api, machine: Machine) -> Iterator[Agent]:
    """An agent that runs, looking every half second."""
    api = agent_api(plane, "gpu1")
    settings = Settings("gpu1", interval_s=0.5, lease_s=1)
    source: Any = machine
    agent = Agent(api, settings, looking=Looking("gpu1", source, collectors()))
    stop = threading.Event()
    thread = threading.Thread(target=agent.run, args=(stop,))
    thread.start()
    yield agent
    stop.set()
    agent.changed.set()
    thread.join(10)
    api.close()


def is_complete(admin: Api) -> bool:
    node = admin.get(NODES, "gpu1")
    labels = node["metadata"].get("labels") or {}
    return (
        labels.items() >= DESCRIBED.items()
        and labels.get("myriad.dev/gpu-count") == "8"
        and GATE not in (node["spec"].get("taints") or [])
    )


def test_a_second_run_of_the_role_changes_nothing(plane: ControlPlane) -> None:
    assert run_role(plane, plane.work)["changed"] == 0


@pytest.mark.usefixtures("agent")
def test_portrait_labels_gate_and_lease_of_a_node(plane: ControlPlane, admin: Api) -> None:
    until(lambda: is_complete(admin), "labels and gate do not come")
    until(lambda: "open" in plane.kubectl("get", "nodeportraits"), "the summary does not come")
    table = plane.kubectl("get", "nodeportraits").splitlines()
    assert table[0].split() == ["NAME", "GPUS", "MODEL", "DRIVER", "GATE", "AGE"]
    assert table[1].split()[:5] == ["gpu1", "8", "H100-SXM5-80GB", "590.48.01", "open"]
    body = admin.get(NODE_PORTRAITS, "gpu1")
    portrait = Portrait.model_validate(body["status"])
    # The API server dropped nothing of what the agent wrote.
    assert portrait.document() == body["status"] and len(portrait.gpus) == 8 and len(portrait.nics) == 8
    lease = admin.get(LEASES, f"{LEASE_PREFIX}gpu1", namespace=LEASE_NAMESPACE)
    assert fresh(body["status"], lease, datetime.now(UTC)) == ""


@pytest.mark.usefixtures("agent")
def test_a_node_deleted_and_joined_again_comes_back_without_a_run(admin: Api) -> None:
    until(lambda: is_complete(admin), "labels and gate do not come")
    before = admin.get(NODES, "gpu1")["metadata"]["labels"]
    admin.delete(NODES, "gpu1")
    time.sleep(0.5)
    join(admin, "gpu1", **{"kubernetes.io/hostname": "gpu1"})
    until(lambda: is_complete(admin), "labels and gate do not come back")
    after = admin.get(NODES, "gpu1")["metadata"]["labels"]
    assert {k: v for k, v in after.items() if "myriad" in k} == {k: v for k, v in before.items() if "myriad" in k}


@pytest.mark.usefixtures("agent")
def test_a_quiet_node_is_not_written(admin: Api) -> None:
    until(lambda: is_complete(admin), "labels and gate do not come")
    time.sleep(1.5)
    name = f"{LEASE_PREFIX}gpu1"
    node, body = admin.get(NODES, "gpu1"), admin.get(NODE_PORTRAITS, "gpu1")
    lease = admin.get(LEASES, name, namespace=LEASE_NAMESPACE)
    time.sleep(4.0)
    assert admin.get(NODES, "gpu1")["metadata"]["resourceVersion"] == node["metadata"]["resourceVersion"]
    assert admin.get(NODE_PORTRAITS, "gpu1")["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"]
    renewed = admin.get(LEASES, name, namespace=LEASE_NAMESPACE)["spec"]["renewTime"]
    assert renewed != lease["spec"]["renewTime"]


@pytest.mark.usefixtures("agent")
def test_a_card_that_dies_shows(admin: Api, machine: Machine) -> None:
    until(lambda: is_complete(admin), "labels and gate do not come")
    machine.become("h100-one-lost")
    until(
        lambda: admin.get(NODE_PORTRAITS, "gpu1")["status"]["summary"].get("gpus") == 7, "the portrait does not change"
    )
    until(lambda: admin.get(NODES, "gpu1")["metadata"]["labels"]["myriad.dev/gpu-count"] == "7", "the label does not")
    status = admin.get(NODE_PORTRAITS, "gpu1")["status"]
    assert status["gpus"][3]["fault"].startswith("GPU is lost") and status["summary"]["cause"]


def test_an_agent_writes_to_its_own_node_portrait_and_lease_only(plane: ControlPlane, admin: Api) -> None:
    del admin
    api = agent_api(plane, "gpu2")
    try:
        end = time.monotonic() + 10
        while True:  # a policy takes a moment until it is in force
            try:
                api.patch(NODES, "gpu1", {"metadata": {"annotations": {"example.com/a": "1"}}})
            except ApiError as error:
                assert "its own node" in error.message
                break
            assert time.monotonic() < end, "the agent of gpu2 may write to gpu1"
            time.sleep(0.2)
        api.patch(NODES, "gpu2", {"metadata": {"annotations": {"example.com/a": "1"}}})
        with pytest.raises(ApiError, match="its own node"):
            api.patch(NODE_PORTRAITS, "gpu1", {"status": {"node": "gpu1"}}, subresource="status")
        with pytest.raises(ApiError, match="its own node"):
            lease = {"metadata": {"name": f"{LEASE_PREFIX}gpu1", "namespace": LEASE_NAMESPACE}, "spec": {}}
            api.create(LEASES, lease, namespace=LEASE_NAMESPACE)
        # What no rule gives is refused by RBAC: the spec of a portrait, and Nodes as such.
        for call in (
            lambda: api.patch(NODE_PORTRAITS, "gpu2", {"spec": {}}),
            lambda: api.delete(NODES, "gpu2"),
        ):
            with pytest.raises(ApiError, match="403"):
                call()
    finally:
        api.close()


def test_a_node_that_is_no_longer_described_loses_its_portrait(plane: ControlPlane, admin: Api) -> None:
    run_role(plane, plane.work)
    assert run_role(plane, plane.work, node_portrait_specs={})["changed"] == 1
    assert admin.find(NODE_PORTRAITS, "gpu1") is None
    assert run_role(plane, plane.work)["changed"] == 1
