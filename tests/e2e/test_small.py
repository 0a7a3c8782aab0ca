"""Two machines, the first of them control plane and GPU node at once, brought up from bare nodes.

.venv/bin/pytest -n0 tests/e2e/test_small.py
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from myriad.kube.client import connect
from myriad.kube.kinds import JOBS, NODES, PODS
from myriad.lab.state import LabPaths

from .bare import bare_nodes
from .conftest import CLONE, environment, playbook_command

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.engine, pytest.mark.timeout(2400)]

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


def play(paths: LabPaths, *arguments: str) -> str:
    """A site run on the two nodes."""
    command = [word if word != "inventories/lab" else "inventories/lab-small" for word in playbook_command("site")]
    done = subprocess.run(
        [*command, *arguments], cwd=CLONE, env=environment(MYRIAD_LAB_STATE=str(paths.state)),
        capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def site() -> Iterator[LabPaths]:
    with bare_nodes(CLONE, "small", "small") as paths:
        play(paths)
        yield paths


def nodes(paths: LabPaths) -> dict[str, Any]:
    with contextlib.closing(connect(paths.kubeconfig)) as api:
        return {node["metadata"]["name"]: node for node in api.list(NODES)[0]}


def test_the_control_plane_is_a_gpu_node_whose_gate_opens(site: LabPaths) -> None:
    end = time.monotonic() + 180
    while any(node["spec"].get("taints") for node in nodes(site).values()) and time.monotonic() < end:
        time.sleep(2)
    first = nodes(site)["gpu1"]
    labels = first["metadata"]["labels"]
    assert CONTROL_PLANE in labels and labels["myriad.dev/pool"] == "h100" and labels["myriad.dev/rack"] == "rack1"
    assert first["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert {name: node["spec"].get("taints") for name, node in nodes(site).items()} == {"gpu1": None, "gpu2": None}


def test_a_gang_runs_on_both(site: LabPaths) -> None:
    example = CLONE / "docs" / "examples" / "gang.yml"
    job = next(item for item in yaml.safe_load_all(example.read_text()) if item["kind"] == "Job")
    name = job["metadata"]["name"]
    with contextlib.closing(connect(site.kubeconfig)) as api:
        api.create(JOBS, job, namespace="vision")
        end = time.monotonic() + 300
        while not api.get(JOBS, name, namespace="vision").get("status", {}).get("succeeded") and time.monotonic() < end:
            time.sleep(2)
        assert api.get(JOBS, name, namespace="vision")["status"].get("succeeded") == job["spec"]["completions"]
        pods = api.list(PODS, namespace="vision", labels=f"job-name={name}")[0]
    assert {pod["spec"]["nodeName"] for pod in pods} == {"gpu1", "gpu2"}


def test_a_second_run_changes_nothing(site: LabPaths) -> None:
    said = play(site, "-e", "site_full=true")
    assert "changed=0" in said or "nothing changed" in said, said[-1500:]
