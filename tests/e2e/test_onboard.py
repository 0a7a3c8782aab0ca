"""A description from what is there, on the lab: `myriad init` from its machines, `myriad adopt` from its cluster.

make lab && .venv/bin/pytest -n0 tests/e2e/test_onboard.py
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from myriad.fleet import Fleet, check
from myriad.inventory import read_inventory

from .conftest import CLONE, LAB, Lab

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.engine]

MYRIAD = str(Path(sys.executable).with_name("myriad"))
KUBECONFIG = str(LAB / "kubeconfig")
WATCHED = (
    "nodes", "clusterqueues", "localqueues", "cohorts", "resourceflavors", "topologies", "workloadpriorityclasses",
    "priorityclasses", "namespaces",
)  # fmt: skip


def myriad(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [MYRIAD, *arguments], cwd=CLONE, env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, f"myriad {' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return done.stdout


def described(path: Path) -> Fleet:
    checked = check(read_inventory(path))
    assert checked.errors == []
    return checked.fleet


@pytest.fixture(scope="module")
def wanted() -> Fleet:
    return described(CLONE / "inventories" / "lab")


def sums(lab: Lab, host: str) -> str:
    """What a probe must not change: everything that Myriad and Kubernetes have written on a node."""
    return lab.ssh(host, "find /etc /var/lib/myriad /root /tmp -xdev -type f ! -name '*.log' | sort | md5sum")


def test_init_describes_the_lab_from_its_machines(lab: Lab, wanted: Fleet, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    before = {host: sums(lab, host) for host in lab.hosts}
    document = json.loads(
        myriad(
            "init", "--hosts", ",".join(record["address"] for record in lab.hosts.values()), "--out", str(out),
            "--key", str(LAB / "ssh" / "id_ed25519"), "--ssh-option", f"UserKnownHostsFile={LAB / 'known_hosts'}",
            # The lab's GPUs stand in a tree of their own, as its inventory says.
            "--sysfs", "/var/lib/myriad-lab/sys", "--json",
        )
    )  # fmt: skip
    assert {host: sums(lab, host) for host in lab.hosts} == before
    fleet = described(out)
    assert sorted(fleet.hosts) == sorted(lab.hosts)
    assert [host.name for host in fleet.control_plane] == ["cp1"]
    for name, host in wanted.hosts.items():
        found = fleet.hosts[name]
        assert (found.gpus, found.gpu_model, found.address) == (host.gpus, host.gpu_model, lab.hosts[name]["address"])
    assert all("was set up by Myriad before" in " ".join(host["notes"]) for host in document["hosts"])
    assert "valid" in myriad("validate", "-i", str(out))


def test_a_host_that_is_not_there_is_named_with_the_others(lab: Lab, tmp_path: Path) -> None:
    first = next(iter(lab.hosts.values()))["address"]
    nowhere = f"{first.rpartition('.')[0]}.253"
    done = subprocess.run(
        [
            MYRIAD, "init", "--hosts", f"{first},{nowhere}", "--out", str(tmp_path / "mine"),
            "--key", str(LAB / "ssh" / "id_ed25519"), "--ssh-option", f"UserKnownHostsFile={LAB / 'known_hosts'}",
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 3 and nowhere in done.stderr and "nothing was written" in done.stderr
    assert not (tmp_path / "mine").exists()


def versions(lab: Lab) -> str:
    """Hash of the specs and labels of everything that adopt reads: statuses move by themselves."""
    rows: list[Any] = []
    for kind in WATCHED:
        for body in json.loads(lab.kubectl("get", kind, "-A", "-o", "json"))["items"]:
            meta = body["metadata"]
            rows.append([kind, meta["name"], meta.get("labels"), body.get("spec"), meta.get("generation")])
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def test_adopt_describes_the_lab_from_its_cluster(lab: Lab, wanted: Fleet, tmp_path: Path) -> None:
    out = tmp_path / "lab"
    before = versions(lab)
    document = json.loads(myriad("adopt", "--kubeconfig", KUBECONFIG, "--out", str(out), "--name", "lab", "--json"))
    assert versions(lab) == before
    fleet = described(out)
    assert fleet.pools == wanted.pools and fleet.priorities == wanted.priorities
    assert fleet.cluster.topology_levels == wanted.cluster.topology_levels
    assert {n: (h.location, h.pool, h.gpus, h.is_control_plane) for n, h in fleet.hosts.items()} == {
        n: (h.location, h.pool, h.gpus, h.is_control_plane) for n, h in wanted.hosts.items()
    }
    for name, team in wanted.teams.items():
        assert (fleet.teams[name].quota, fleet.teams[name].cohort) == (team.quota, team.cohort)
    assert "Myriad's own policy" in {gap["subject"] for gap in document["not_described"]}
    assert "valid" in myriad("validate", "-i", str(out))


def test_the_gap_is_what_a_description_cannot_read_back(lab: Lab, tmp_path: Path) -> None:
    """After adopting a cluster that Myriad made its site rules differ, and nothing of hosts, queues or shares."""
    out = tmp_path / "lab"
    myriad("adopt", "--kubeconfig", KUBECONFIG, "--out", str(out), "--name", "lab")
    done = subprocess.run(
        [MYRIAD, "policy", "diff", "-i", str(out), "--kubeconfig", KUBECONFIG, "--json"],
        cwd=CLONE, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 4), done.stderr
    kinds = {entry["object"].split()[0].split("/")[-1] for entry in json.loads(done.stdout)["differences"]}
    assert not kinds & {"ClusterQueue", "LocalQueue", "Cohort", "ResourceFlavor", "Topology", "WorkloadPriorityClass"}


def attached(lab: Lab, *, wanted: bool, timeout_s: float = 90.0) -> bool:
    """Wait until ClusterQueues ask the check, or none does."""
    path = "jsonpath={.items[*].spec.admissionChecksStrategy}"
    end = time.monotonic() + timeout_s
    while (found := "myriad" in lab.kubectl("get", "clusterqueues", "-o", path)) != wanted and time.monotonic() < end:
        time.sleep(1.0)
    return found


def test_in_shadow_the_extension_takes_its_check_back_and_says_so(lab: Lab) -> None:
    """The switch on the running lab, both ways: by the variable that the role sets."""
    deployment = ("-n", "myriad-system", "deployment/myriad-scheduler")
    rollout = ("rollout", "status", *deployment, "--timeout=180s")
    try:
        # By default a queue asks while a gang waits in it: here all do, so that there is something to take back.
        lab.kubectl("set", "env", *deployment, "MYRIAD_SCHEDULER_ATTACH=always")
        lab.kubectl(*rollout)
        assert attached(lab, wanted=True)
        lab.kubectl("set", "env", *deployment, "MYRIAD_SCHEDULER_SHADOW=true")
        lab.kubectl(*rollout)
        assert not attached(lab, wanted=False)
        assert "in shadow" in myriad("status", "--kubeconfig", KUBECONFIG)
        lab.kubectl("set", "env", *deployment, "MYRIAD_SCHEDULER_SHADOW-")
        lab.kubectl(*rollout)
        assert attached(lab, wanted=True)
    finally:
        lab.kubectl("set", "env", *deployment, "MYRIAD_SCHEDULER_SHADOW-", "MYRIAD_SCHEDULER_ATTACH-")
        lab.kubectl(*rollout)
