"""From Kubernetes 1.34 to the lock's on the lab, under two gangs: killed twice, held up by a budget, unnoticed by both.

`python -m myriad.lab.testing -m slow -n0 -s tests/e2e/test_upgrade.py` brings up nodes and nothing more (`myriad lab up
--nodes-only`), because it begins with an older cluster: the older Kubernetes is built from its Go module into a bundle
of its own, which takes minutes the first time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
sys.path.insert(0, str(Path(__file__).parent))
from gangs import Size
from older import VERSION, older_lock
from test_gangs import sleeping_job

from myriad.stack.build import build_bundle
from myriad.stack.lock import load_lock
from myriad.stack.settings import read_settings

from .conftest import CLONE, Lab, PlaybookRun
from .followed import until

Json = dict[str, Any]
pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.engine]

MYRIAD = str(Path(sys.executable).with_name("myriad"))
WEB: Json = {
    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
    "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": "gpu3"}, "terminationGracePeriodSeconds": 1,
                 "containers": [{"name": "web", "image": "registry.myriad.internal/myriad/gang-check:0.1.0",
                                 "command": ["python3", "-c", "import time; time.sleep(3600)"],
                                 "resources": {"requests": {"cpu": "10m"}}}]}}},
}  # fmt: skip


def kubelets(lab: Lab) -> dict[str, str]:
    """Node to the version of its kubelet."""
    nodes = json.loads(lab.kubectl("get", "nodes", "-o", "json"))["items"]
    return {node["metadata"]["name"]: node["status"]["nodeInfo"]["kubeletVersion"] for node in nodes}


def takes_work(lab: Lab) -> set[str]:
    """GPU nodes that are Ready, show their GPUs and carry no taint."""
    return {
        node["metadata"]["name"]
        for node in json.loads(lab.kubectl("get", "nodes", "-o", "json"))["items"]
        if int(node["status"]["allocatable"].get("nvidia.com/gpu", 0)) == 8
        and not node["spec"].get("taints")
        and any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])
    }


def closed(lab: Lab) -> dict[str, str]:
    """Nodes that take no new pods, with who closed them."""
    found = {}
    for node in json.loads(lab.kubectl("get", "nodes", "-o", "json"))["items"]:
        if node["spec"].get("unschedulable"):
            owner = node["metadata"]["annotations"].get("myriad.dev/cordon-owner", "{}")
            found[node["metadata"]["name"]] = str(json.loads(owner).get("by", ""))
    return found


def pods_of(lab: Lab, namespace: str, job: str) -> dict[str, tuple[str, int]]:
    """Running pods of a job: uid to node and restarts."""
    items = json.loads(lab.kubectl("get", "pods", "-n", namespace, "-l", f"job-name={job}", "-o", "json"))["items"]
    return {
        pod["metadata"]["uid"]: (pod["spec"]["nodeName"], pod["status"]["containerStatuses"][0]["restartCount"])
        for pod in items
        if pod["status"]["phase"] == "Running" and pod["status"].get("containerStatuses")
    }


def upgrade(*arguments: str, timeout_s: int = 900) -> tuple[int, Json]:
    """`myriad upgrade ... --json` to its end."""
    done = subprocess.run(
        [MYRIAD, "upgrade", *arguments, "--json"], cwd=CLONE, capture_output=True, text=True, timeout=timeout_s,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"}, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("{"), done.stdout[-2000:] + done.stderr[-4000:]
    document = json.loads(done.stdout)
    if document["exit_code"] == 2:
        print(done.stderr[-4000:])
    return done.returncode, document


def killed_in(task: str, log: Path) -> None:
    """Begin an upgrade and kill all of it with SIGKILL when the task has been running for a moment."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [MYRIAD, "upgrade", "run"], cwd=CLONE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"},
        )  # fmt: skip
    try:
        until(lambda: task in log.read_text() or process.poll() is not None, 300, f"the run came to {task!r}")
        time.sleep(1.5)
        assert process.poll() is None, log.read_text()[-3000:]
    finally:
        # One that has ended by itself has nobody left to kill, and its own words are the error.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_t14_d2_d9_an_upgrade_under_two_gangs_killed_twice_and_held_up_by_a_budget(
    lab: Lab, playbook: PlaybookRun, tmp_path: Path
) -> None:
    began = time.monotonic()

    def step(name: str, **figures: Any) -> None:
        print(json.dumps({"step": name, "at_s": round(time.monotonic() - began), **figures}), flush=True)

    if (CLONE / ".lab" / "kubeconfig").exists() and kubelets(lab)["cp1"] != f"v{VERSION}":
        pytest.skip("the lab runs the lock's Kubernetes already: `make lab-down`, then `myriad lab up --nodes-only`")
    settings = read_settings()
    lock = load_lock(older_lock(CLONE / "stack.lock.yml", tmp_path / "older.lock.yml"))
    old = settings.cache / "bundles" / f"older-{VERSION}-{settings.arch}"
    build_bundle(lock, old, settings, lambda event: None)
    step("older bundle")
    first = playbook("site", "-e", f"site_bundle={old}")
    assert first.code == 0, first.output[-4000:]
    assert set(kubelets(lab).values()) == {f"v{VERSION}"}
    until(lambda: takes_work(lab) == {"gpu1", "gpu2", "gpu3"}, 120, "all nodes take work")
    step("site", version=VERSION)

    lab.kubectl("create", "-f", "-", text=json.dumps(sleeping_job(Size("train", "vision", 2, 8), 3600)))
    train = until(lambda: len(p := pods_of(lab, "vision", "train")) == 2 and p, 120, "the first gang runs")
    lab.kubectl("create", "-f", "-", text=json.dumps(sleeping_job(Size("tune", "speech", 2, 4), 3600)))
    tune = until(lambda: len(p := pods_of(lab, "speech", "tune")) == 2 and p, 120, "the second gang runs")
    assert {where for where, _ in train.values()} == {"gpu1", "gpu2"}
    assert {where for where, _ in tune.values()} == {"gpu3"}
    step("gangs run")

    code, plan = upgrade("plan")
    assert code == 4, plan
    assert plan["control_plane"] == ["cp1"]
    assert plan["order"] == []
    assert set(plan["left"]) == {"gpu1", "gpu2", "gpu3"}
    assert all(reason.startswith("the job ") for reason in plan["left"].values())
    step("plan", seconds=plan["seconds"])

    killed_in("What kubeadm made on this host is of the version", tmp_path / "first.log")
    step("killed in the control plane")
    assert (pods_of(lab, "vision", "train"), pods_of(lab, "speech", "tune")) == (train, tune)
    lab.kubectl("delete", "job", "-n", "speech", "tune", "--wait=true")
    gone = ("get", "pods", "-n", "speech", "-l", "job-name=tune", "-o", "name")
    until(lambda: not lab.kubectl(*gone).strip(), 60, "its pods have ended")
    lab.kubectl("create", "-f", "-", text=json.dumps(WEB))
    lab.kubectl("create", "pdb", "web", "--selector=app=web", "--min-available=1")
    lab.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    code, report = upgrade("run", "--no-site")
    assert (code, report["failures"]) == (4, {}), report
    assert "budget web" in report["left"]["gpu3"], report["left"]
    assert closed(lab) == {}, "nodes that were left are as they were"
    versions = kubelets(lab)
    assert {name for name, version in versions.items() if version == f"v{VERSION}"} == {"gpu1", "gpu2", "gpu3"}
    assert json.loads(lab.kubectl("get", "deployment", "web", "-o", "json"))["status"]["availableReplicas"] == 1
    assert pods_of(lab, "vision", "train") == train
    step("control plane; a node held up by a budget", seconds=report["seconds"], reason=report["left"]["gpu3"])
    lab.kubectl("delete", "pdb", "web")
    lab.kubectl("delete", "deployment", "web")

    killed_in("Programs of Kubernetes", tmp_path / "second.log")
    assert closed(lab) == {"gpu3": "upgrade"}
    step("killed on a node")
    code, report = upgrade("run", "--no-site")
    assert (code, report["failures"], closed(lab)) == (4, {}, {}), report
    assert kubelets(lab)["gpu3"] == versions["cp1"]
    assert pods_of(lab, "vision", "train") == train, "the gang never stopped"
    step("third node", seconds=report["seconds"])

    lab.kubectl("delete", "job", "-n", "vision", "train", "--wait=true")
    gone = ("get", "pods", "-n", "vision", "-l", "job-name=train", "-o", "name")
    until(lambda: not lab.kubectl(*gone).strip(), 60, "its pods have ended")
    code, report = upgrade("run")
    assert (code, report["failures"], closed(lab)) == (0, {}, {}), report
    assert set(kubelets(lab).values()) == {versions["cp1"]}
    step("everything at the lock", seconds=report["seconds"])
    looked = subprocess.run([MYRIAD, "drift", "--json"], cwd=CLONE, capture_output=True, text=True, check=False)
    assert json.loads(looked.stdout)["differences"] == [], looked.stdout
    code, plan = upgrade("plan")
    assert (code, plan["order"], plan["control_plane"]) == (0, [], [])
