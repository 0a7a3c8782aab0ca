"""Reboots on the lab: unattended recovery with an open gate, and a node that goes down in the middle of a site run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import CLONE, Lab, PlaybookRun, environment, playbook_command
from .followed import until

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.engine]

MYRIAD = str(Path(sys.executable).with_name("myriad"))
MARKS = ("myriad.dev/cordon-owner", "myriad.dev/reboot")


def node(lab: Lab, name: str) -> dict[str, Any]:
    return dict(json.loads(lab.kubectl("get", "node", name, "-o", "json")))


def gate(found: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(found["metadata"].get("annotations", {}).get("myriad.dev/gate") or "{}"))


def takes_work(lab: Lab, name: str) -> bool:
    found = node(lab, name)
    taints = {taint["key"] for taint in found["spec"].get("taints") or []}
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in found["status"]["conditions"])
    return (
        ready
        and gate(found).get("open") is True
        and not taints
        and not found["spec"].get("unschedulable")
        and found["status"]["allocatable"].get("nvidia.com/gpu") == "8"
    )


def boot(lab: Lab, name: str) -> str:
    """When process 1 of the node began."""
    return lab.ssh(name, "sed 's/.*) //' /proc/1/stat | cut -d' ' -f20").strip()


def myriad(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MYRIAD, *arguments], cwd=CLONE, env={**os.environ, "ANSIBLE_NOCOLOR": "1"}, capture_output=True, text=True,
        timeout=400, check=False,
    )  # fmt: skip


def test_d8_nodes_that_need_no_reboot_are_left_alone(lab: Lab) -> None:
    done = myriad("reboot", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no node is rebooted" in done.stdout
    assert "cp1, gpu1, gpu2, gpu3: needs no reboot" in done.stdout


def test_t13_d7_a_node_comes_back_to_work_by_itself(lab: Lab) -> None:
    """Asked for by a package's hook, drained, restarted; kubelet, device plugin, agent and gate come up unattended."""
    lab.ssh("gpu2", "touch /run/reboot-required; echo libc6 > /run/reboot-required.pkgs")
    before = {name: boot(lab, name) for name in ("gpu1", "gpu2", "gpu3")}
    done = myriad("reboot", "gpu1", "gpu2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "packages ask for it: libc6" in done.stdout
    assert "1 node rebooted and back at work" in done.stdout
    after = {name: boot(lab, name) for name in before}
    assert [name for name in before if before[name] != after[name]] == ["gpu2"]
    found = node(lab, "gpu2")
    assert takes_work(lab, "gpu2"), found["spec"]
    assert gate(found)["run"] == found["metadata"]["annotations"]["myriad.dev/gate-run"], "judged after the reboot"
    assert not set(MARKS) & set(found["metadata"]["annotations"])
    assert myriad("reboot", "gpu2").stdout.count("needs no reboot") == 1


def test_t13_a_node_that_goes_down_in_the_middle_of_a_site_run(lab: Lab, playbook: PlaybookRun, tmp_path: Path) -> None:
    """The run names it and the others are done; the same run again converges, and the gate is judged anew."""
    events = tmp_path / "first.jsonl"
    process = subprocess.Popen(
        playbook_command("site", "-e", "site_full=true"), cwd=CLONE, env=environment(MYRIAD_EVENTS=str(events)),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        until(
            lambda: events.exists() and '"role": "container_runtime"' in events.read_text(), 120,
            "the run came to the container runtime",
        )  # fmt: skip
        subprocess.run(["docker", "restart", "--time", "10", lab.container("gpu3")], check=True, capture_output=True)
        output, _ = process.communicate(timeout=240)
    finally:
        process.kill()
        process.wait()
    again = playbook("site")
    assert again.code == 0, f"{output[-1500:]}\n---\n{again.output[-3000:]}"
    until(lambda: takes_work(lab, "gpu3"), 120, "gpu3 takes work again")
    third = playbook("site")
    assert third.code == 0 and not third.changed_tasks(), third.changed_tasks()
