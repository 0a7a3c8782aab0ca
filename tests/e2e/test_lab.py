"""The lab as a person meets it: a second run, the next steps as printed, a foreign kubeconfig, Ctrl-C, a second lab."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

pytestmark = [pytest.mark.lab, pytest.mark.engine]

CLONE = Path(__file__).resolve().parents[2]
MYRIAD = str(Path(sys.executable).with_name("myriad"))
FOREIGN = "apiVersion: v1\nkind: Config\ncurrent-context: prod\nclusters: [this is not YAML that anybody could read\n"


def myriad(*arguments: str, timeout: int = 600, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a verb in this clone."""
    clean = {key: value for key, value in os.environ.items() if key not in ("KUBECONFIG", "MYRIAD_INVENTORY")}
    return subprocess.run(
        [MYRIAD, *arguments], cwd=CLONE, env={**clean, **environment}, capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip


@pytest.fixture
def foreign_home(tmp_path: Path) -> Path:
    """A home folder whose ~/.kube/config belongs to another cluster, and cannot even be parsed."""
    config = tmp_path / "home" / ".kube" / "config"
    config.parent.mkdir(parents=True)
    config.write_text(FOREIGN)
    os.utime(config, (1, 1))
    return tmp_path / "home"


@pytest.fixture
def cache() -> str:
    """The cache of the user who runs the tests, for runs with another home."""
    return os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")


def test_a_second_run_changes_nothing_and_leaves_a_foreign_kubeconfig_alone(
    lab: Any, foreign_home: Path, cache: str
) -> None:
    before = {name: host["container"] for name, host in lab.hosts.items()}
    done = myriad("lab", "up", HOME=str(foreign_home), XDG_CACHE_HOME=cache)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "site ready, nothing changed, 3 of 3 nodes take work" in done.stdout
    assert "ansible-playbook playbooks/site.yml -i inventories/lab" in done.stdout
    after = json.loads((CLONE / ".lab" / "state.json").read_text())["hosts"]
    assert {name: host["container"] for name, host in after.items()} == before
    config = foreign_home / ".kube" / "config"
    assert config.read_text() == FOREIGN
    assert config.stat().st_mtime == 1
    assert sorted(path.name for path in config.parent.iterdir()) == ["config"]


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh"])
def test_the_next_steps_work_as_printed_in_the_same_shell(shell: str, lab: Any, foreign_home: Path, cache: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    from myriad.lab.up import next_steps

    steps = [line[17:] for line in next_steps()]
    script = "set -e\n" + "\n".join(step for step in steps if not step.startswith("make lab-down"))
    done = subprocess.run(
        [shell], input=script, cwd=CLONE, capture_output=True, text=True, timeout=120, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(foreign_home), "XDG_CACHE_HOME": cache, "TERM": "dumb"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hall1.b1.r2" in done.stdout
    assert (foreign_home / ".kube" / "config").read_text() == FOREIGN


def test_status_tells_of_every_node(lab: Any) -> None:
    done = myriad("lab", "status", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {node["node"]: node["allocatable"] for node in report["verdict"]} == {"gpu1": 8, "gpu2": 8, "gpu3": 8}
    assert {entry["container"] for entry in report["nodes"].values()} == {"running"}
    text = myriad("lab", "status").stdout
    assert "gpu3  hall1/b1/r2  8 / 8" in text


def test_a_fault_reaches_the_kubelet_and_goes_again(lab: Any) -> None:
    def allocatable() -> str:
        return str(lab.kubectl("get", "node", "gpu3", "-o", r"jsonpath={.status.allocatable.nvidia\.com/gpu}"))

    assert allocatable() == "8"
    try:
        assert myriad("lab", "fault", "gpu3", "ecc", "--gpu", "5").returncode == 0
        _until(lambda: allocatable() == "7", 60)
        assert "2" in lab.ssh(
            "gpu3", "nvidia-smi --query-gpu=ecc.errors.uncorrected.volatile.total --format=csv,noheader"
        )
        status = myriad("lab", "status")
        assert status.returncode == 4
        assert "8 GPUs expected, 7 allocatable" in status.stdout
    finally:
        myriad("lab", "fault", "gpu3", "ecc", "--clear")
    _until(lambda: allocatable() == "8", 60)
    wrong = myriad("lab", "fault", "gpu9", "ecc", "--gpu", "0")
    assert wrong.returncode == 1
    assert "It has cp1, gpu1, gpu2, gpu3." in wrong.stderr


def test_the_double_registers_again_when_the_kubelet_restarts(lab: Any) -> None:
    lab.ssh("gpu2", "systemctl restart kubelet")

    def allocatable() -> str:
        return str(lab.kubectl("get", "node", "gpu2", "-o", r"jsonpath={.status.allocatable.nvidia\.com/gpu}"))

    time.sleep(5)
    _until(lambda: allocatable() == "8", 90)


def _heed_ctrl_c() -> None:
    """As a program in a terminal: one that is started in a shell's background inherits that Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_in_the_site_phase_is_a_sentence_and_the_next_run_goes_on(lab: Any) -> None:
    process = subprocess.Popen(
        [MYRIAD, "lab", "up", "--full", "--no-jobs"], cwd=CLONE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True, preexec_fn=_heed_ctrl_c,
    )  # fmt: skip
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith("site "):
            time.sleep(4)
            os.killpg(process.pid, signal.SIGINT)
            break
    rest = process.stdout.read()
    process.stdout.close()
    assert process.wait(timeout=120) == 130, said + rest
    assert "stopped in phase site; nothing is broken, the next `make lab` goes on from here" in rest
    assert "Traceback" not in rest
    again = myriad("lab", "up", "--no-jobs")
    assert again.returncode == 0, again.stdout + again.stderr


# A second lab of another clone


@pytest.fixture
def second_clone(tmp_path: Path) -> Iterator[Path]:
    """A clone of its own with one node; what it leaves is removed by its name even when the test fails."""
    clone = tmp_path / "second"
    shutil.copytree(CLONE / "inventories" / "lab", clone / "inventories" / "lab")
    for name in ("pyproject.toml", "stack.lock.yml", "galaxy.yml", "ansible.cfg"):
        shutil.copy(CLONE / name, clone / name)
    pool = {"hosts": {"g1": {"myriad_location": "hall1/b1/r1"}}}
    tree = {"all": {"children": {"gpu_nodes": {"children": {"pool_h100": pool}}}}}
    (clone / "inventories" / "lab" / "hosts.yml").write_text(json.dumps(tree))
    yield clone
    myriad("lab", "down", "--clone", str(clone))


def _objects(client: docker.DockerClient, label: str) -> dict[str, list[str]]:
    filters = {"label": f"dev.myriad.lab={label}"}
    return {
        "containers": [str(item.name) for item in client.containers.list(all=True, filters=filters)],
        "networks": [str(item.name) for item in client.networks.list(filters=filters)],
    }


@pytest.fixture
def client() -> Iterator[docker.DockerClient]:
    found = docker.from_env()
    yield found
    found.close()


def test_a_second_clone_has_a_lab_of_its_own_and_lab_down_leaves_nothing_of_it(
    lab: Any, second_clone: Path, client: docker.DockerClient
) -> None:
    volumes = {str(item.name) for item in client.volumes.list()}
    up = ("lab", "up", "--nodes-only", "--clone", str(second_clone))
    first = myriad(*up)
    assert first.returncode == 0, first.stdout + first.stderr
    state = json.loads((second_clone / ".lab" / "state.json").read_text())
    assert state["name"] != lab.state["name"]
    assert state["subnet"] != lab.state["subnet"]
    # Named is the network that has the subnet a lab wants first: this lab's, or that of one which was there before.
    assert re.search(r"10\.77\.0\.0/24 is taken by Docker's network myriad-[0-9a-f]{6}", first.stdout), first.stdout
    key, known = second_clone / ".lab" / "ssh" / "id_ed25519", second_clone / ".lab" / "known_hosts"
    ssh = ["ssh", "-i", str(key), "-o", f"UserKnownHostsFile={known}", "-o", "BatchMode=yes"]
    answer = subprocess.run(
        [*ssh, f"root@{state['hosts']['g1']['address']}", "systemctl is-system-running; hostname; nvidia-smi -L"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert re.match(r"running\ng1\nGPU 0: NVIDIA H100", answer.stdout), answer.stdout + answer.stderr

    again = myriad(*up)
    assert "g1 is up" in again.stdout
    assert json.loads((second_clone / ".lab" / "state.json").read_text())["hosts"] == state["hosts"]

    client.containers.get(state["hosts"]["g1"]["container"]).kill()
    stopped = myriad(*up)
    assert "g1 was stopped: it is started" in stopped.stdout
    assert stopped.returncode == 0

    down = myriad("lab", "down", "--clone", str(second_clone))
    assert down.returncode == 0, down.stdout + down.stderr
    # Other labs of this machine may be up too.
    assert re.search(rf"settings and engine stay: .*\b{lab.state['name']}\b.* up on this machine", down.stdout)
    assert "make lab-clean removes the caches too" in down.stdout
    assert _objects(client, state["name"]) == {"containers": [], "networks": []}
    assert {str(item.name) for item in client.volumes.list()} <= volumes
    assert not (second_clone / ".lab").exists()
    assert myriad("lab", "down", "--clone", str(second_clone)).returncode == 0, "a second time is fine"
    assert client.containers.get(lab.container("cp1")).status == "running", "the first lab is untouched"


def test_ctrl_c_while_nodes_are_made_is_gone_on_from(lab: Any, second_clone: Path) -> None:
    process = subprocess.Popen(
        [MYRIAD, "lab", "up", "--nodes-only", "--clone", str(second_clone)], cwd=CLONE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True, preexec_fn=_heed_ctrl_c,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("node image"):
            time.sleep(0.3)
            os.killpg(process.pid, signal.SIGINT)
            break
    rest = process.stdout.read()
    process.stdout.close()
    code = process.wait(timeout=60)
    assert code == 130, rest
    assert "stopped in phase nodes" in rest
    again = myriad("lab", "up", "--nodes-only", "--clone", str(second_clone))
    assert again.returncode == 0, again.stdout + again.stderr


def _until(true: Any, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < until, "the condition did not come true"
        time.sleep(0.5)
