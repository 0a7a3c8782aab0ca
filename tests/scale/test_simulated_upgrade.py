"""`myriad upgrade run` with its real playbook: simulated hosts, a real API server, Nodes that show what the hosts run.

Killed with SIGKILL in the middle of a wave and given again; a node with a running job is left, and done later.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
import apiserver
from apiserver import ControlPlane

from myriad.kube.client import Api, connect
from myriad.kube.kinds import CONFIG_MAPS, NODES, PODS
from myriad.lab.simulated import host as hosts
from myriad.lab.simulated import site as simulated

Json = dict[str, Any]
pytestmark = [pytest.mark.slow, apiserver.AT_HAND]

ROOT = Path(__file__).resolve().parents[2]
OLD, NEW = "v1.34.4", "v1.35.4"
KUBELET = "node_state kubernetes_node kubelet.service"
IMAGES = ("pause", "myriad/gang-check", "myriad/extension", "myriad/agent", "etcd", "coredns")
LABEL = {"batch.kubernetes.io/job-name": "train"}


class Site:
    """Four hosts in two racks, and the Nodes that they are."""

    def __init__(self, folder: Path, plane: ControlPlane, api: Api) -> None:
        self.api, self.folder = api, folder
        bundle = simulated.write_bundle(folder / "bundle", images=IMAGES)
        self.site = simulated.write_site(folder / "site", 4, bundle=bundle)
        self.site.kubeconfig.write_bytes(plane.kubeconfig.read_bytes())
        for number, name in enumerate(self.site.names):
            rack = f"hall1.b1.r{number // 2 + 1}"
            api.create(NODES, {"metadata": {"name": name, "labels": {"myriad.dev/rack": rack}}})
            self.runs(name, OLD)
        config = {"ClusterConfiguration": "etcd: {local: {imageTag: 0.9.0}}\ndns: {imageTag: 1.0.0}\n"}
        body = {"metadata": {"name": "kubeadm-config", "namespace": "kube-system"}, "data": config}
        api.create(CONFIG_MAPS, body, namespace="kube-system")
        self.ended = threading.Event()
        self.kubelets = threading.Thread(target=self._follow, daemon=True)
        self.kubelets.start()

    def runs(self, name: str, version: str) -> None:
        """A kubelet of a version says that it is Ready."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        info = dict.fromkeys(
            ("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion",
             "kubeProxyVersion", "operatingSystem", "architecture"), ""
        )  # fmt: skip
        status = {"conditions": [ready], "nodeInfo": {**info, "kubeletVersion": version}}
        self.api.patch(NODES, name, {"status": status}, subresource="status")

    def _follow(self) -> None:
        """The kubelet that a host was told to start is the one that its Node shows."""
        while not self.ended.wait(0.3):
            for name in self.site.names:
                started = hosts.load(self.site.hosts, simulated.address_of(name)).done.get(KUBELET)
                if started and self.versions()[name] == OLD:
                    self.runs(name, NEW)

    def versions(self) -> dict[str, str]:
        return {n["metadata"]["name"]: n["status"]["nodeInfo"]["kubeletVersion"] for n in self.api.list(NODES)[0]}

    def closed(self) -> list[str]:
        return sorted(n["metadata"]["name"] for n in self.api.list(NODES)[0] if n["spec"].get("unschedulable"))

    def command(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        program = str(Path(sys.executable).with_name("myriad"))
        command = [program, "upgrade", *arguments, "-i", str(self.site.inventory), "--limit", "gpu_nodes"]
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_CONNECTION_PLUGINS": str(Path(simulated.__file__).parent / "connection"),
            "ANSIBLE_TRANSPORT": "simulated",
            "ANSIBLE_NOCOLOR": "1",
            "MYRIAD_SIMULATED": str(self.site.hosts),
            "MYRIAD_SIMULATED_ANSWER_S": "0",
            "MYRIAD_SIMULATED_TIMEOUT_S": "1",
        }
        return command, environment

    def upgrade(self, *arguments: str) -> tuple[int, Json]:
        command, environment = self.command(*arguments, "--json")
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout.startswith("{"), done.stdout[-2000:] + done.stderr[-4000:]
        document = json.loads(done.stdout)
        assert not document["failures"], done.stderr[-4000:]
        return done.returncode, document

    def killed_in(self, task: str) -> None:
        """Begin an upgrade, and kill all of it with SIGKILL when it has come to a task."""
        command, environment = self.command("run", "--no-site")
        log = self.folder / "killed.log"
        environment["ANSIBLE_STDOUT_CALLBACK"] = "ansible.builtin.default"
        with log.open("w") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            end = time.monotonic() + 400
            while task not in log.read_text():
                assert process.poll() is None and time.monotonic() < end, log.read_text()[-4000:]
                time.sleep(0.1)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Site]:
    with apiserver.api_server(tmp_path / "plane", namespaces=["vision"]) as plane:
        api = connect(plane.kubeconfig)
        site = Site(tmp_path / "world", plane, api)
        yield site
        site.ended.set()
        site.kubelets.join()
        api.close()


def test_a_killed_upgrade_goes_on_where_it_was_and_a_job_is_not_disturbed(made: Site) -> None:
    one, two, three, four = made.site.names
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u-train", "controller": True}
    container = {"name": "main", "image": "registry.invalid/x:1", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    pod = {"metadata": {"name": "train-0", "namespace": "vision", "labels": LABEL, "ownerReferences": [owner]},
           "spec": {"nodeName": two, "containers": [container]}}  # fmt: skip
    uid = made.api.create(PODS, pod, namespace="vision")["metadata"]["uid"]

    code, plan = made.upgrade("plan")
    assert (code, plan["waves"]) == (4, [[one, three], [four]]), plan
    assert plan["left"] == {two: "the job vision/train runs on it"}
    assert plan["changes"][one] == [{"item": "kubelet", "old": "1.34.4", "new": "1.35.4"}]
    assert made.closed() == [], "a plan touches nothing"

    made.killed_in("What kubeadm made on this host is of the version")
    assert made.closed() == [one, three], "the wave that was under way"
    code, report = made.upgrade("run", "--no-site")
    assert code == 4, report
    assert sorted(report["waves"][0]) == [one, three], "what was begun goes first"
    assert made.closed() == []
    assert made.versions() == {one: NEW, two: OLD, three: NEW, four: NEW}
    assert made.api.get(PODS, "train-0", namespace="vision")["metadata"]["uid"] == uid
    text = made.api.get(CONFIG_MAPS, "kubeadm-config", namespace="kube-system")["data"]["ClusterConfiguration"]
    assert "imageTag: 1.0.0" in text and "0.9.0" not in text

    made.api._json("DELETE", PODS.path("vision", "train-0"), body={"gracePeriodSeconds": 0})
    code, report = made.upgrade("run", "--no-site")
    assert (code, report["waves"], made.closed()) == (0, [[two]], [])
    assert set(made.versions().values()) == {NEW}
    code, plan = made.upgrade("plan")
    assert (code, plan["waves"], plan["left"]) == (0, [], {})
