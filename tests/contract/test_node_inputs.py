"""What is left out of a node's inputs is read by no role that runs on nodes: a change of it would be missed there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from myriad.roles import load_yaml

ROOT = Path(__file__).parents[2]
#: Users of the registry are names of teams; they are inputs of their own (plugin_utils/inputs.node_digest).
APART = {"site_registry_users"}


def cluster_only() -> tuple[str, ...]:
    text = (ROOT / "plugins" / "plugin_utils" / "inputs.py").read_text()
    found = re.search(r"^CLUSTER_ONLY = \((.*?)\)$", text, re.MULTILINE)
    assert found is not None
    return tuple(re.findall(r'"(\w+)"', found.group(1)))


def names_in(value: Any) -> set[str]:
    return set(re.findall(r"[a-z_][a-z0-9_]*", str(value)))


def tainted(bindings: dict[str, Any]) -> set[str]:
    """The names that are left out, and every binding that follows from one of them."""
    found = set(cluster_only())
    while True:
        more = {name for name, value in bindings.items() if names_in(value) & found} - APART - found
        if not more:
            return found
        found |= more


def node_roles() -> list[str]:
    """Roles of plays that run on hosts, not over the API from the controller."""
    named = set()
    for path in (ROOT / "playbooks").glob("*.yml"):
        for play in yaml.safe_load(path.read_text()):
            if play.get("connection") == "local":
                continue
            named |= {item["role"] if isinstance(item, dict) else item for item in play.get("roles", [])}
            named |= {
                task["ansible.builtin.import_role"]["name"]
                for task in play.get("tasks", [])
                if "ansible.builtin.import_role" in task
            }
    return sorted(name.removeprefix("myriad.gpu.") for name in named)


@pytest.mark.parametrize("role", node_roles())
def test_a_role_on_nodes_reads_nothing_that_is_left_out(role: str) -> None:
    bindings = yaml.safe_load((ROOT / "playbooks" / "vars" / "stack.yml").read_text())
    left_out = tainted(bindings)
    folder = ROOT / "roles" / role
    read = (
        names_in(load_yaml(folder / "defaults" / "main.yml")) if (folder / "defaults" / "main.yml").exists() else set()
    )
    for path in [*folder.glob("tasks/*.yml"), *folder.glob("vars/*.yml"), *folder.rglob("*.j2")]:
        read |= names_in(path.read_text())
    assert read & left_out == set()


def test_the_roles_and_what_follows_are_found() -> None:
    assert {"node_base", "container_runtime", "kubernetes_node", "registry"} <= set(node_roles())
    assert "kueue" not in node_roles()
    bindings = yaml.safe_load((ROOT / "playbooks" / "vars" / "stack.yml").read_text())
    assert {"myriad_teams", "site_grace_s", "site_policy_objects"} <= tainted(bindings)
