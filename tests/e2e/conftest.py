"""What the end-to-end tests share: the running lab of this clone, ssh to its nodes, and site runs with their events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CLONE = Path(__file__).resolve().parents[2]
LAB = CLONE / ".lab"


@dataclass
class Lab:
    """The lab of this clone."""

    state: dict[str, Any]

    @property
    def hosts(self) -> dict[str, Any]:
        return dict(self.state["hosts"])

    def ssh(self, host: str, command: str, *, check: bool = True, timeout: int = 120) -> str:
        """Run a shell command on a node and give its output back."""
        done = subprocess.run(
            [
                "ssh", "-i", str(LAB / "ssh" / "id_ed25519"), "-o", f"UserKnownHostsFile={LAB / 'known_hosts'}",
                "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", f"root@{self.hosts[host]['address']}", command,
            ],
            capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"{host}: {command}\n{done.stdout}{done.stderr}")
        return done.stdout

    def kubectl(self, *arguments: str, check: bool = True, text: str | None = None) -> str:
        """The lab's own kubectl with the lab's own kubeconfig."""
        done = subprocess.run(
            [str(LAB / "bin" / "kubectl"), "--kubeconfig", str(LAB / "kubeconfig"), *arguments],
            capture_output=True, text=True, input=text, timeout=300, check=False,
            env={**os.environ, "KUBECACHEDIR": str(LAB / "kube-cache")},
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def container(self, host: str) -> str:
        """Name of the container that is the node; it stays the same when the node is made anew."""
        return f"{self.state['name']}-{host}"


@dataclass
class Run:
    """One finished ansible-playbook with the events that the callback wrote."""

    code: int
    output: str
    events: list[dict[str, Any]] = field(default_factory=list)

    def results(self, *, changed: bool | None = None) -> list[dict[str, Any]]:
        """Results of tasks, optionally only the changed (or unchanged) ones."""
        rows = [event for event in self.events if event.get("event") == "result"]
        return rows if changed is None else [row for row in rows if bool(row.get("changed")) == changed]

    def changed_tasks(self) -> set[tuple[str, str, str]]:
        """(host, role, task) of every task that changed something, or would."""
        return {(row["host"], row.get("role") or "", row["task"]) for row in self.results(changed=True)}


PlaybookRun = Callable[..., Run]


def environment(**extra: str) -> dict[str, str]:
    """The environment of a playbook run from this clone."""
    return {**os.environ, "ANSIBLE_CONFIG": str(CLONE / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", **extra}


def playbook_command(name: str, *arguments: str) -> list[str]:
    """ansible-playbook of this Python environment for one of the project's playbooks on the lab."""
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    return [program, f"playbooks/{name}.yml", "-i", "inventories/lab", *arguments]


@pytest.fixture(scope="session")
def lab() -> Lab:
    """The running lab; `make lab` makes it."""
    state = LAB / "state.json"
    if not state.exists():
        pytest.fail("no lab is up in this clone: run `make lab` first")
    return Lab(json.loads(state.read_text()))


@pytest.fixture
def playbook(tmp_path: Path) -> PlaybookRun:
    """Run one of the project's playbooks on the lab to its end."""

    def run(name: str, *arguments: str, timeout: int = 600, **extra: str) -> Run:
        events = tmp_path / f"events-{len(list(tmp_path.iterdir()))}.jsonl"
        done = subprocess.run(
            playbook_command(name, *arguments), cwd=CLONE, env=environment(MYRIAD_EVENTS=str(events), **extra),
            capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        rows = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
        return Run(done.returncode, done.stdout + done.stderr, rows)

    return run
