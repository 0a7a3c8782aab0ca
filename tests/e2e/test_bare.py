"""site.yml on bare machines: what --check foretells, and a controller that is killed again and again on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from myriad.runs import parse

from .bare import bare_nodes
from .conftest import CLONE, PlaybookRun, environment, playbook_command

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.timeout(2400)]


def test_t17_check_on_bare_machines_foretells_what_the_run_then_does(playbook: PlaybookRun) -> None:
    """rc 0; at least 90 % of the tasks that then change something, and none that does not."""
    with bare_nodes(CLONE) as paths:
        lab = {"MYRIAD_LAB_STATE": str(paths.state)}
        check = playbook("site", "--check", "--diff", **lab)
        assert check.code == 0, check.output[-3000:]
        run = playbook("site", **lab)
        assert run.code == 0, run.output[-3000:]
        predicted, real = check.changed_tasks(), run.changed_tasks()
        assert sorted(predicted - real) == [], "predicted, and then nothing changed"
        share = len(predicted & real) / len(real)
        print(
            f"{len(real)} tasks changed something, {share:.1%} of them were foretold; not: {sorted(real - predicted)}"
        )
        assert share >= 0.9


#: Where the controller is killed: the first task of each role, and within apt, a download, kubeadm init and join.
BOUNDARIES = (
    "role node_base", "task Packages that every node needs", "role gpu_driver", "role registry",
    "task The registry holds what the lock names",
    "role container_runtime", "task Programs of the container runtime", "task The container runtime runs",
    "role pod_network", "role gpu_toolkit", "role kubernetes_node", "role kubernetes_control_plane",
    "task Start the cluster", "role image_prewarm", "role kueue", "task Join",
    "role device_plugin", "role node_portrait", "role scheduler_extension", "role cluster_policy", "role team_access",
)  # fmt: skip
#: Roles of site.yml that the lab has no host for.
WITHOUT_HOST = {"api_load_balancer", "etcd_backup", "fabric", "metrics", "mig", "training_operator", "volcano"}


def _roles_of_site() -> set[str]:
    plays = yaml.safe_load((CLONE / "playbooks" / "site.yml").read_text())
    entries = [entry for play in plays for entry in play.get("roles", [])]
    return {(entry["role"] if isinstance(entry, dict) else entry).rpartition(".")[2] for entry in entries}


def _reached(path: Path, boundary: str) -> bool:
    kind, _, name = boundary.partition(" ")
    for row in parse(path.read_text().splitlines()) if path.exists() else []:
        if row.get("event") != "task":
            continue
        if kind == "role" and str(row.get("role") or "").rpartition(".")[2] == name:
            return True
        if kind == "task" and str(row["name"]).endswith(name):
            return True
    return False


def test_t18_a_controller_killed_at_every_boundary_is_followed_by_a_run_that_converges(
    playbook: PlaybookRun, tmp_path: Path
) -> None:
    """From bare machines to the end with a SIGKILL at each boundary: every run takes over from a killed one."""
    assert _roles_of_site() - WITHOUT_HOST == {name[len("role ") :] for name in BOUNDARIES if name.startswith("role ")}
    with bare_nodes(CLONE) as paths:
        lab = {"MYRIAD_LAB_STATE": str(paths.state)}
        for number, boundary in enumerate(BOUNDARIES):
            path = tmp_path / f"killed-{number}.jsonl"
            process = subprocess.Popen(
                playbook_command("site"), cwd=CLONE, env=environment(MYRIAD_EVENTS=str(path), **lab),
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            deadline = time.monotonic() + 300
            while time.monotonic() < deadline and process.poll() is None and not _reached(path, boundary):
                time.sleep(0.1)
            assert process.poll() is None, f"the run ended with {process.returncode} before {boundary}"
            time.sleep(0.5)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print(f"killed at {boundary}")
        run = playbook("site", **lab)
        assert run.code == 0, run.output[-3000:]
        again = playbook("site", "-e", "site_full=true", **lab)
        assert again.code == 0, again.output[-3000:]
        assert again.changed_tasks() == set()


def test_reset_leaves_nothing_of_what_was_installed_and_site_runs_again(playbook: PlaybookRun) -> None:
    """reset.yml itself fails on leftovers; the management path stays, or the second run could not begin."""
    with bare_nodes(CLONE) as paths:
        lab = {"MYRIAD_LAB_STATE": str(paths.state)}
        assert playbook("site", **lab).code == 0
        reset = playbook("reset", **lab)
        assert reset.code == 0, reset.output[-3000:]
        again = playbook("site", **lab)
        assert again.code == 0, again.output[-3000:]
        full = playbook("site", "-e", "site_full=true", **lab)
        assert (full.code, full.changed_tasks()) == (0, set()), full.output[-3000:]
