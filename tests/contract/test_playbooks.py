"""Playbooks are lists of hosts and roles, every inventory parses, and no variable is misspelt."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from myriad.roles import declared_variables, unknown_variables

ROOT = Path(__file__).parents[2]
PLAYBOOKS = sorted((ROOT / "playbooks").glob("*.yml"))
INVENTORIES = sorted(folder for folder in (ROOT / "inventories").iterdir() if folder.is_dir())
ROLES = sorted(folder.name for folder in (ROOT / "roles").iterdir() if (folder / "tasks").is_dir())
DECLARED = declared_variables(ROOT / "roles")
PLAY_KEYS = {
    "name", "hosts", "gather_facts", "connection", "vars", "vars_files", "roles", "tasks", "pre_tasks", "post_tasks",
    "serial", "any_errors_fatal", "max_fail_percentage", "order", "become", "environment", "tags", "strategy",
    "throttle", "ignore_unreachable", "module_defaults", "check_mode",
}  # fmt: skip
#: What a playbook may do besides roles: choose hosts, look, assert, and record.
PLAY_MODULES = re.compile(
    r"ansible\.builtin\.(import_role|include_role|group_by|assert|add_host|meta)$|myriad\.gpu\.\w+$"
)
TASK_WORDS = {
    "name", "register", "when", "changed_when", "failed_when", "vars", "run_once", "delegate_to", "check_mode", "tags",
    "become", "no_log",
}  # fmt: skip


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of this environment at the clone's root."""
    program = Path(sys.executable).parent / command[0]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"}
    return subprocess.run(
        [str(program), *command[1:]],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def variable_names(value: Any) -> set[str]:
    """Every key of a mapping and of the mappings inside it."""
    if isinstance(value, dict):
        return {str(key) for key in value}.union(*(variable_names(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(variable_names(item) for item in value))
    return set()


@pytest.mark.parametrize("path", PLAYBOOKS, ids=relative)
def test_a_playbook_is_a_list_of_hosts_and_roles(path: Path) -> None:
    for play in yaml.safe_load(path.read_text()):
        assert play.get("name"), "a play without a name"
        if "ansible.builtin.import_playbook" in play:
            continue
        assert set(play) <= PLAY_KEYS, sorted(set(play) - PLAY_KEYS)
        for part in ("tasks", "pre_tasks", "post_tasks"):
            for task in play.get(part, []):
                modules = [key for key in task if key not in TASK_WORDS]
                assert len(modules) == 1, f"{path.name}: {task.get('name')}: {modules}"
                assert PLAY_MODULES.match(modules[0]), (
                    f"{path.name}: {task['name']} calls {modules[0]}: logic in a playbook"
                )


@pytest.mark.parametrize("path", PLAYBOOKS, ids=relative)
def test_what_runs_on_the_controller_never_becomes_root_there(path: Path) -> None:
    """An inventory whose user becomes root by sudo says so for all hosts; the controller's own user stays who he is."""
    for play in yaml.safe_load(path.read_text()):
        if play.get("connection") == "local":
            assert play.get("vars", {}).get("ansible_become") is False, f"{path.name}: {play['name']}"


@pytest.mark.parametrize("path", PLAYBOOKS, ids=relative)
def test_the_roles_of_a_playbook_exist(path: Path) -> None:
    for play in yaml.safe_load(path.read_text()):
        named = [item["role"] if isinstance(item, dict) else item for item in play.get("roles", [])]
        for task in play.get("tasks", []):
            for module in ("ansible.builtin.import_role", "ansible.builtin.include_role"):
                if module in task:
                    entry = task[module].get("tasks_from", "main")
                    named.append(task[module]["name"])
                    assert not entry.endswith(".yml"), f"{entry}: with the extension ansible skips the spec"
        for name in named:
            assert name.startswith("myriad.gpu."), f"{name} is no full name"
            assert name.removeprefix("myriad.gpu.") in ROLES, f"{name} is no role"


@pytest.mark.parametrize("path", PLAYBOOKS, ids=relative)
def test_a_playbook_passes_the_syntax_check(path: Path) -> None:
    done = run("ansible-playbook", str(path), "--syntax-check", "-i", "inventories/lab")
    assert done.returncode == 0, done.stderr


def test_every_role_stands_in_the_site() -> None:
    plays = yaml.safe_load((ROOT / "playbooks" / "site.yml").read_text())
    named = {item["role"] if isinstance(item, dict) else item for play in plays for item in play.get("roles", [])}
    assert {name.removeprefix("myriad.gpu.") for name in named} == set(ROLES)


@pytest.mark.parametrize("inventory", INVENTORIES, ids=relative)
def test_an_inventory_parses_and_has_hosts(inventory: Path) -> None:
    done = run("ansible-inventory", "-i", str(inventory), "--list", "--limit", "all")
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    assert json.loads(done.stdout)["_meta"]["hostvars"], "no host"


def inventory_files() -> list[Path]:
    return sorted(path for folder in INVENTORIES for path in folder.rglob("*.yml"))


@pytest.mark.parametrize("path", [*inventory_files(), *PLAYBOOKS, *(ROOT / "molecule").rglob("*.yml")], ids=relative)
def test_no_variable_of_a_role_is_misspelt(path: Path) -> None:
    assert unknown_variables(variable_names(yaml.safe_load(path.read_text())), DECLARED) == []


def test_a_misspelt_variable_would_be_found() -> None:
    names = variable_names({"all": {"vars": {"kueue_replica": 1, "pools": [{"kueue_replicas": 2}]}}})
    assert {"kueue_replica", "kueue_replicas"} <= names
    assert len(unknown_variables(names, DECLARED)) == 1


def site_plays() -> list[dict[str, Any]]:
    plays: list[dict[str, Any]] = yaml.safe_load((ROOT / "playbooks" / "site.yml").read_text())
    return [play for play in plays if play.get("roles")]


def role_names(play: dict[str, Any]) -> list[str]:
    names = [item["role"] if isinstance(item, dict) else item for item in play["roles"]]
    return [name.removeprefix("myriad.gpu.") for name in names]


def site_order() -> list[str]:
    """Every role once, in the order in which the site comes to it."""
    return list(dict.fromkeys(role for play in site_plays() for role in role_names(play)))


@pytest.mark.parametrize("role", ROLES)
def test_a_scenario_runs_its_role_on_the_hosts_of_the_site(role: str) -> None:
    """One play, the same kind of hosts, the same bindings as in site.yml."""
    converge = yaml.safe_load((ROOT / "molecule" / role / "converge.yml").read_text())
    assert len(converge) == 1
    assert role_names(converge[0])[-1] == role
    plays = [play for play in site_plays() if role in role_names(play)]
    chosen = re.compile(r":&site_(work|cluster_\w+|fabric|mig)|:!(control_plane|site_api)")
    hosts = {chosen.sub("", play["hosts"]) for play in plays}
    # A pattern that depends on the inventory names its hosts first; of the control planes one speaks for all.
    hosts |= {found[1] for pattern in hosts if (found := re.match(r"\{\{ '([^']+)' if ", pattern))}
    hosts |= {"control_plane[0]", "control_plane"} if "site_api" in hosts else set()
    # Nodes get ready beside further control planes; either is a host of the role.
    hosts |= {"gpu_nodes"} if "gpu_nodes:control_plane" in hosts else set()
    hosts |= {"control_plane:gpu_nodes"} if "site_work" in hosts else set()
    hosts |= {"control_plane[0]"} if any("groups['registry']" in pattern for pattern in hosts) else set()
    assert converge[0]["hosts"] in hosts
    assert converge[0]["vars_files"] == ["../../playbooks/vars/stack.yml"]
    assert converge[0].get("connection") in {play.get("connection") for play in plays}


@pytest.mark.parametrize("role", ROLES)
def test_a_scenario_prepares_with_roles_that_the_site_runs_before(role: str) -> None:
    path = ROOT / "molecule" / role / "prepare.yml"
    order = site_order()
    if not path.exists():
        assert order.index(role) == 0, f"{role} has nothing before it"
        return
    imported = {Path(play["ansible.builtin.import_playbook"]).parent.name for play in yaml.safe_load(path.read_text())}
    assert len(imported) == 1, "a scenario names the one before it, which names what it needs itself"
    before = imported.pop()
    assert order.index(before) < order.index(role) or {before, role} == {"kubernetes_control_plane", "kubernetes_node"}


@pytest.mark.parametrize("inventory", INVENTORIES, ids=relative)
def test_an_inventory_describes_a_site_without_error(inventory: Path) -> None:
    done = run("myriad", "validate", "-i", str(inventory), "--json")
    assert done.returncode == 0, done.stdout


def test_the_playbooks_of_the_scenarios_pass_the_syntax_check() -> None:
    playbooks = sorted(str(path) for path in (ROOT / "molecule").glob("*/*.yml") if path.name != "molecule.yml")
    assert len(playbooks) > len(ROLES)
    done = run("ansible-playbook", "--syntax-check", "-i", "inventories/molecule", *playbooks)
    assert done.returncode == 0, done.stderr
