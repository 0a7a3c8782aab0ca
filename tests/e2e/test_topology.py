"""Cables against the description on the lab: switches speak LLDP, two nodes are swapped in a copy of the inventory.

The lab's own description stays as it is. The switches are made for these tests and removed after them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml

from myriad.kube.client import Api, connect
from myriad.kube.kinds import NODE_PORTRAITS, NODES
from myriad.lab.state import LabPaths, require_state
from myriad.lab.switches import switches_down, switches_up
from myriad.lab.topology import read_nodes

from .conftest import CLONE, LAB, Lab, environment
from .followed import until

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.timeout(600)]

TAINT = "myriad.dev/gpu-not-ready"
PLAYBOOK = """
- name: lldpd on the nodes
  hosts: gpu_nodes
  gather_facts: true
  vars_files: [{clone}/playbooks/vars/stack.yml]
  roles: [myriad.gpu.fabric]
"""


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with closing(connect(LAB / "kubeconfig", in_cluster=False)) as admin:
        yield admin


@pytest.fixture(scope="module")
def switches(lab: Lab) -> Iterator[dict[str, str]]:
    """One switch a rack, cabled to the running nodes."""
    state = require_state(LabPaths(CLONE))
    nodes = read_nodes(CLONE / "inventories" / "lab", state.subnet)
    with closing(docker.from_env()) as client:
        try:
            yield switches_up(client, state, nodes)
        finally:
            switches_down(client, state, nodes)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory, switches: dict[str, str]) -> Callable[..., Path]:
    """Copies of the lab's inventory with its switches, and with two nodes changing places."""

    def make(swap: tuple[str, str] | None = None, **topology: Any) -> Path:
        folder = tmp_path_factory.mktemp("site") / "lab"
        shutil.copytree(CLONE / "inventories" / "lab", folder)
        hosts = yaml.safe_load((folder / "hosts.yml").read_text())
        if swap:
            pool = hosts["all"]["children"]["gpu_nodes"]["children"]["pool_h100"]["hosts"]
            pool[swap[0]], pool[swap[1]] = pool[swap[1]], pool[swap[0]]
            (folder / "hosts.yml").write_text(yaml.safe_dump(hosts, sort_keys=False))
        described = {"myriad_topology": {"switches": switches, **topology}}
        (folder / "group_vars" / "all" / "wiring.yml").write_text(yaml.safe_dump(described))
        return folder

    return make


@pytest.fixture(scope="module")
def lldpd(lab: Lab, copy: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> None:
    """lldpd on every GPU node by the role, and each node hears its switch."""
    playbook = tmp_path_factory.mktemp("play") / "lldpd.yml"
    playbook.write_text(PLAYBOOK.format(clone=CLONE))
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    done = subprocess.run(
        [program, str(playbook), "-i", str(copy())],
        cwd=CLONE, capture_output=True, text=True, timeout=300, check=False,
        env=environment(MYRIAD_LAB_STATE=str(LAB / "state.json")),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    for node in ("gpu1", "gpu2", "gpu3"):
        until(
            lambda node=node: "tor-r" in lab.ssh(node, "lldpcli -f json0 show neighbors"), 60, f"{node} hears a switch"
        )


def myriad(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("myriad"))
    known = {"MYRIAD_LAB_STATE": str(LAB / "state.json"), "KUBECONFIG": str(LAB / "kubeconfig")}
    return subprocess.run(
        [program, *arguments], cwd=CLONE, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **known},
    )  # fmt: skip


@pytest.mark.usefixtures("lldpd")
def test_the_lab_stands_where_it_is_described(copy: Callable[..., Path]) -> None:
    done = myriad("topology", "-i", str(copy()), "--ssh")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 nodes stand where the description says" in done.stdout


@pytest.mark.usefixtures("lldpd")
def test_two_nodes_swapped_in_the_description_are_both_named(copy: Callable[..., Path]) -> None:
    """Must-show 4."""
    done = myriad("topology", "-i", str(copy(swap=("gpu2", "gpu3"))), "--ssh")
    assert done.returncode == 4, done.stdout + done.stderr
    print(done.stdout)
    assert (
        "gpu2 is hall1/b1/r2 in the description; its neighbour tor-r1 stands in hall1/b1/r1 (LLDP, eth1" in done.stdout
    )
    assert "gpu2 and gpu3 are swapped" in done.stdout
    accepted = copy(swap=("gpu2", "gpu3"), accept=["gpu2", "gpu3"])
    assert myriad("topology", "-i", str(accepted), "--ssh").returncode == 0


@pytest.mark.usefixtures("lldpd")
def test_the_portraits_tell_the_same(api: Api, copy: Callable[..., Path]) -> None:
    def all_heard() -> bool:
        heard = {
            item["metadata"]["name"]
            for item in api.list(NODE_PORTRAITS)[0]
            if any(
                seen.get("chassis", "").startswith("tor-")
                for seen in (item.get("status") or {}).get("neighbours") or []
            )
        }
        return {"gpu1", "gpu2", "gpu3"} <= heard

    until(all_heard, 90, "every portrait has its switch")
    done = myriad("topology", "-i", str(copy(swap=("gpu2", "gpu3"))), "--json")
    assert done.returncode == 4, done.stdout + done.stderr
    pairs = {(row["node"], row["swapped_with"]) for row in json.loads(done.stdout)["mismatches"]}
    assert pairs == {("gpu2", "gpu3"), ("gpu3", "gpu2")}


@pytest.mark.usefixtures("lldpd")
def test_the_node_stays_out_until_it_is_accepted(api: Api, switches: dict[str, str]) -> None:
    """The agent of gpu3 judges it alone, from its own spec."""
    before = api.get(NODE_PORTRAITS, "gpu3")["spec"]["expected"]

    def closed() -> bool:
        return any(taint["key"] == TAINT for taint in api.get(NODES, "gpu3")["spec"].get("taints") or [])

    assert not closed(), "the gate of gpu3 is closed before the test"
    wrong = {"location": ["hall1", "b1", "r1"], "fabric": {"neighbours": switches}}
    try:
        api.patch(NODE_PORTRAITS, "gpu3", {"spec": {"expected": wrong}})
        until(closed, 60, "the gate closes over the neighbour")
        done = myriad("gate", "gpu3", "--json")
        assert "its neighbour tor-r2 stands in hall1/b1/r2" in done.stdout, done.stdout + done.stderr
        api.patch(NODE_PORTRAITS, "gpu3", {"spec": {"expected": {"accepted": ["topology"]}}})
        until(lambda: not closed(), 60, "the gate opens once the mismatch is accepted")
    finally:
        fabric = before.get("fabric") or {}
        # A merge patch takes a key away by null.
        fabric = {**fabric, "neighbours": {**dict.fromkeys(switches), **(fabric.get("neighbours") or {})}}
        restored = {"location": before.get("location"), "accepted": before.get("accepted"), "fabric": fabric}
        api.patch(NODE_PORTRAITS, "gpu3", {"spec": {"expected": restored}})
    until(lambda: not closed(), 60, "the gate is open as before")


@pytest.mark.usefixtures("lldpd")
def test_burn_in_measures_a_rack_and_a_node_from_elsewhere() -> None:
    done = myriad("burnin", "run", "-i", "inventories/lab", "--rack", "hall1/b1", "--seconds", "1", "--json")
    assert done.returncode in (0, 4), done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert [row["node"] for row in document["nodes"]] == ["gpu1", "gpu2", "gpu3"]
    assert {tuple(pair["nodes"]) for pair in document["pairs"]} == {
        ("gpu1", "gpu2"),
        ("gpu1", "gpu3"),
        ("gpu2", "gpu3"),
    }
    assert all(row["gb_s"] > 0 for row in document["nodes"])
    unreachable = myriad("burnin", "run", "-i", "inventories/lab", "--rack", "hall1/b1/r1", "--gb-s", "100000")
    assert unreachable.returncode == 4 and "the pool's threshold is 1e+05" in unreachable.stdout
