"""playbooks/reboot.yml against a real API server; the hosts are this machine, with a boot that a script changes.

Nodes, pods, evictions, Leases and annotations are real; a kubelet and an agent are played. Needs the programs of
`apiserver.py`, no lab, no containers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
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
from apiserver import ControlPlane

from myriad.errors import MyriadError
from myriad.kube.client import Api, connect
from myriad.kube.drain import CORDON_ANNOTATION, Cordon
from myriad.kube.kinds import LEASES, NODES, PODS
from myriad.kube.reboot import GATE_ANNOTATION, GATE_RUN_ANNOTATION, REBOOT_ANNOTATION, Mark

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
HOSTS = {"gpu1": "r1", "gpu2": "r1", "gpu3": "r2"}

pytestmark = [
    pytest.mark.slow,
    apiserver.AT_HAND,
]

# The shell of a played host: its boot is a file, and while that says down nothing answers.
SHELL = """#!/bin/sh
case "$*" in *boot_id*) [ "$(cat {state})" = down ] && exit 1; cat {state}; echo 1; exit 0;; esac
exec /bin/sh "$@"
"""
# What its management controller does.
RESTART = """#!/bin/sh
[ -e {folder}/never ] && back=down || back=boot-$(date +%s%N)
setsid sh -c "echo down > {state}; sleep 3; echo $back > {state}" </dev/null >/dev/null 2>&1 &
while [ "$(cat {state})" != down ]; do sleep 0.1; done
echo "$(date +%s%N) {name}" >> {log}
"""


class Site:
    """Three played hosts, their inventory, and their kubelets and agents."""

    def __init__(self, plane: ControlPlane, api: Api, folder: Path) -> None:
        self.plane, self.api, self.folder = plane, api, folder
        self.log = folder / "restarts"
        self.log.write_text("")
        self.gates_open = True
        self._stop = threading.Event()
        hosts = {}
        for name in HOSTS:
            (folder / name).mkdir()
            self.state(name).write_text("boot-1\n")
            for script, text in (("shell", SHELL), ("restart", RESTART)):
                path = folder / name / script
                path.write_text(text.format(state=self.state(name), folder=folder / name, log=self.log, name=name))
                path.chmod(0o755)
            hosts[name] = {
                "ansible_connection": "local",
                "ansible_python_interpreter": sys.executable,
                "ansible_shell_executable": str(folder / name / "shell"),
                "reboot_controller_command": [str(folder / name / "restart")],
            }
        variables = {
            "site_kubeconfig": str(plane.kubeconfig), "reboot_timeout_s": 20, "reboot_ready_timeout_s": 60,
            "reboot_gate_timeout_s": 30, "reboot_drain_timeout_s": 60, "reboot_force": True,
        }  # fmt: skip
        inventory = {
            "control_plane": {"hosts": {}},
            "gpu_nodes": {"hosts": hosts, "vars": variables},
        }
        (folder / "inventory.yml").write_text(yaml.safe_dump(inventory))
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def state(self, name: str) -> Path:
        return self.folder / name / "state"

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _live(self) -> None:
        """Kubelets renew their Leases while their hosts are up; agents answer what the gate is asked."""
        api = connect(self.plane.kubeconfig)
        while not self._stop.wait(0.5):
            for name in HOSTS:
                if self.state(name).read_text().strip() == "down":
                    continue
                with contextlib.suppress(MyriadError):
                    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                    body = {"spec": {"renewTime": now, "holderIdentity": name}}
                    api.patch(LEASES, name, body, namespace="kube-node-lease")
                    annotations = api.get(NODES, name)["metadata"].get("annotations") or {}
                    run = annotations.get(GATE_RUN_ANNOTATION, "")
                    if json.loads(annotations.get(GATE_ANNOTATION, "{}")).get("run") != run:
                        checks = [] if self.gates_open else [{"check": "count", "ok": False, "cause": "7 of 8 GPUs"}]
                        gate = json.dumps({"open": self.gates_open, "run": run, "checks": checks})
                        api.patch(NODES, name, {"metadata": {"annotations": {GATE_ANNOTATION: gate}}})
        api.close()

    def command(self, *arguments: str) -> list[str]:
        program = str(Path(sys.executable).with_name("myriad"))
        return [program, "reboot", "-i", str(self.folder / "inventory.yml"), *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), cwd=ROOT, env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
            capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip

    @property
    def restarts(self) -> list[str]:
        return [line.split()[1] for line in self.log.read_text().splitlines()]

    def node(self, name: str) -> Json:
        return self.api.get(NODES, name)

    def pod(self, name: str, on: str, job: str) -> None:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"u-{job}", "controller": True}
        self.api.create(
            PODS,
            {
                "metadata": {
                    "name": name, "namespace": "vision", "ownerReferences": [owner],
                    "labels": {"batch.kubernetes.io/job-name": job},
                },
                "spec": {
                    "nodeName": on, "terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": "main", "image": "registry.invalid/x:1"}],
                },
            },
            namespace="vision",
        )  # fmt: skip


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, an API server, and what starts and ends the pods of fake nodes."""
    with apiserver.api_server(tmp_path_factory.mktemp("api") / "plane", namespaces=["vision"], kubelets=True) as plane:
        yield plane


@pytest.fixture
def site(plane: ControlPlane, tmp_path: Path) -> Iterator[Site]:
    api = connect(plane.kubeconfig)
    for name, rack in HOSTS.items():
        api.delete(NODES, name)
        api.create(NODES, apiserver.fake_node(name, ("hall1", "b1", rack)))
        api.delete(LEASES, name, namespace="kube-node-lease")
        api.create(LEASES, {"metadata": {"name": name}, "spec": {}}, namespace="kube-node-lease")
    site = Site(plane, api, tmp_path)
    yield site
    site.stop()
    for pod in api.list(PODS, namespace="vision")[0]:
        api._json("DELETE", PODS.path("vision", pod["metadata"]["name"]), body={"gracePeriodSeconds": 0})
    api.close()


def descendants(pid: int) -> list[int]:
    """Everything that a process has started, by its parents; what was set free (setsid and gone) is not among it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        new = children.get(todo.pop(), [])
        found += new
        todo += new
    return found


def clean(site: Site, name: str) -> bool:
    node = site.node(name)
    left = {CORDON_ANNOTATION, REBOOT_ANNOTATION} & set(node["metadata"].get("annotations") or {})
    return not left and not node["spec"].get("unschedulable")


def test_d9_batches_by_rack_and_everything_is_given_back(site: Site) -> None:
    site.pod("a-0", "gpu1", "a")
    done = site.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reboot of 3 of 3 nodes in 2 batches" in done.stdout
    assert set(site.restarts[:2]) == {"gpu1", "gpu3"} and site.restarts[2:] == ["gpu2"]
    assert all(clean(site, name) for name in HOSTS)
    assert site.api.list(PODS, namespace="vision")[0] == [], "it was drained first"


def test_d9_a_gang_stops_once(site: Site) -> None:
    site.pod("bert-0", "gpu1", "bert")
    site.pod("bert-1", "gpu2", "bert")
    done = site.run("--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "vision/bert (2 pods) runs on gpu1, gpu2: it is interrupted once, gpu1, gpu2 go together" in done.stdout
    assert site.restarts == [] and all(clean(site, name) for name in HOSTS), "a prediction touches nothing"
    done = site.run("gpu1", "gpu2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(site.restarts) == ["gpu1", "gpu2"]


def test_t14_a_budget_in_the_way_ends_it_before_anything_is_touched(site: Site) -> None:
    site.pod("db-0", "gpu1", "db")
    name = {"batch.kubernetes.io/job-name": "db"}
    budget = {"minAvailable": 1, "selector": {"matchLabels": name}}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "db", "namespace": "vision"}}
    site.plane.apply([{**body, "spec": budget}])
    status = {
        "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1, "observedGeneration": 1,
    }  # fmt: skip
    text = json.dumps({"status": status})
    site.plane.kubectl("patch", "pdb", "db", "-n", "vision", "--subresource=status", "--type=merge", "-p", text)
    try:
        done = site.run()
    finally:
        site.plane.kubectl("delete", "pdb", "db", "-n", "vision")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "vision/db-0 on gpu1: budget db (allows 0)" in done.stdout
    assert site.restarts == [] and all(clean(site, host) for host in HOSTS)


def test_a_node_that_does_not_come_back_is_left_closed_and_the_others_are_not_touched(site: Site) -> None:
    (site.folder / "gpu3" / "never").write_text("")
    done = site.run()
    assert done.returncode == 3, done.stdout + done.stderr
    assert "takes work again\n  gpu3: it does not answer over SSH, 20 s long; it was left closed\n" in done.stdout
    assert sorted(site.restarts) == ["gpu1", "gpu3"], "gpu2's batch was not begun"
    node = site.node("gpu3")
    cordon, mark = Cordon.of(node), Mark.of(node)
    assert node["spec"]["unschedulable"] and cordon is not None and "does not answer" in cordon.reason
    assert mark is not None and "does not answer" in mark.fault
    assert clean(site, "gpu1") and clean(site, "gpu2")
    # Somebody has repaired it; the same command goes on, and does not send it down again.
    (site.folder / "gpu3" / "never").unlink()
    site.state("gpu3").write_text("boot-repaired\n")
    done = site.run("gpu3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.restarts.count("gpu3") == 1 and clean(site, "gpu3")


def test_d7_a_gate_that_stays_closed_keeps_the_node_out(site: Site) -> None:
    site.gates_open = False
    done = site.run("gpu2")
    assert done.returncode == 3
    assert "its gate is closed: 7 of 8 GPUs" in done.stdout
    assert site.node("gpu2")["spec"]["unschedulable"]
    given = site.run("--give-back", "gpu2", "--kubeconfig", str(site.plane.kubeconfig))
    assert given.returncode == 0, given.stdout + given.stderr
    assert clean(site, "gpu2")


def test_t13_a_controller_killed_in_the_middle_is_gone_on_with(site: Site) -> None:
    process = subprocess.Popen(
        site.command("gpu1"), cwd=ROOT, env={**os.environ, "ANSIBLE_NOCOLOR": "1"}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    end = time.monotonic() + 90
    while not site.restarts:
        assert time.monotonic() < end, "the reboot never began"
        time.sleep(0.05)
    # Ansible's workers lead sessions of their own: a controller that is lost takes them along.
    for pid in (process.pid, *descendants(process.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    node = site.node("gpu1")
    assert node["spec"]["unschedulable"] and Mark.of(node) is not None
    done = site.run("gpu1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.restarts == ["gpu1"], "not sent down a second time"
    assert clean(site, "gpu1")


def test_d1_a_cordon_of_somebody_else_survives(site: Site) -> None:
    site.plane.kubectl("cordon", "gpu2")
    done = site.run("gpu2")
    assert done.returncode == 0, done.stdout + done.stderr
    node = site.node("gpu2")
    assert node["spec"]["unschedulable"]
    assert not {CORDON_ANNOTATION, REBOOT_ANNOTATION} & set(node["metadata"]["annotations"])
