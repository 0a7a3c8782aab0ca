"""Nodes that leave are named one by one: the playbook that resets them takes any pattern of hosts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from myriad.fleet.names import several_fault

CLONE = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("gpu1", None),
        ("gpu9", None),
        ("GPU_9.lan", None),
        ("all", '"all" is a group'),
        ("gpu_nodes", '"gpu_nodes" is a group'),
        ("registry", '"registry" is a group'),
        ("gpu*", '"gpu*" is a pattern'),
        ("cp1:gpu1", '"cp1:gpu1" is a pattern'),
        ("!gpu1", '"!gpu1" is a pattern'),
        ("gpu[1:4]", '"gpu[1:4]" is a pattern'),
        ("@failed", '"@failed" is a pattern'),
        ("~gpu.+", '"~gpu.+" is a pattern'),
        ("", '"" is a pattern'),
    ],
)
def test_what_ansible_would_take_for_several_hosts(name: str, fault: str | None) -> None:
    assert several_fault(name, {"gpu1", "registry"}, {"all", "gpu_nodes", "registry"}) == fault


def test_a_group_or_a_pattern_is_never_removed() -> None:
    """The real playbook on a site that no machine is: it ends on the controller, before the cluster is asked."""
    program = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [str(program), "playbooks/remove_node.yml", "-i", "inventories/small", "-e", "remove_node=gpu2,all,gpu*"],
        cwd=CLONE, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert '"all" is a group; "gpu*" is a pattern: nodes are named one by one' in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.startswith(("gpu1 ", "gpu2 "))], "no host was reached"
