"""A misspelt variable of a role is told from one that is not a role's."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from myriad.cli import validate
from myriad.fleet.problems import Origin
from myriad.fleet.source import RawSetting
from myriad.inventory import read_inventory
from myriad.roles import (
    declared_options,
    declared_variables,
    role_of,
    roles_folder,
    setting_problems,
    unknown_variables,
)

ROOT = Path(__file__).parents[3]

DECLARED = {
    "kueue": frozenset({"kueue_replicas", "kueue_wait_s"}),
    "kubernetes_node": frozenset({"kubernetes_node_labels"}),
    "kubernetes_node_pool": frozenset({"kubernetes_node_pool_size"}),
}


def test_what_is_declared_or_nobodys_passes() -> None:
    assert unknown_variables(["kueue_replicas", "kubernetes_node_pool_size", "my_own", "kueue"], DECLARED) == []


def test_a_misspelt_name_is_told_with_what_was_meant() -> None:
    assert unknown_variables(["kueue_replica"], DECLARED) == [
        'kueue_replica is no variable of the role kueue; did you mean "kueue_replicas"?'
    ]


def test_a_name_like_no_other_is_told_where_the_names_are() -> None:
    assert unknown_variables(["kueue_colour"], DECLARED) == [
        "kueue_colour is no variable of the role kueue; roles/kueue/README.md lists them"
    ]


@pytest.mark.parametrize(
    ("name", "role"),
    [("kubernetes_node_pool_x", "kubernetes_node_pool"), ("kubernetes_node_x", "kubernetes_node"), ("other_x", None)],
)
def test_the_longest_role_name_owns_a_variable(name: str, role: str | None) -> None:
    assert role_of(name, DECLARED) == role


def test_specs_are_read_with_defaults_that_hold_templates(tmp_path: Path) -> None:
    folder = tmp_path / "door" / "meta"
    folder.mkdir(parents=True)
    (folder / "argument_specs.yml").write_text(
        'argument_specs: {main: {options: {door_key: {default: !unsafe "{{ key }}"}}}}\n'
    )
    assert declared_variables(tmp_path) == {"door": frozenset({"door_key"})}


OPTIONS: dict[str, dict[str, dict[str, object]]] = {
    "kueue": {
        "kueue_replicas": {"type": "int"},
        "kueue_log": {"type": "str", "choices": ["info", "debug"]},
        "kueue_wait": {"type": "bool"},
        "kueue_queues": {"type": "list", "elements": "dict", "options": {"name": {"type": "str", "required": True}}},
    },
}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("kueue_replicas", "many", 'is "many"; it has to be a whole number'),
        ("kueue_wait", "maybe", 'is "maybe"; it has to be yes or no (true or false)'),
        ("kueue_log", "debgu", 'is "debgu"; it may be info, debug; did you mean "debug"?'),
        ("kueue_queues", {"name": "a"}, "it has to be a list"),
        ("kueue_queues", ["a"], "has an item that is not a mapping of names to values"),
        ("kueue_queues", [{"nam": "a"}], "missing required arguments: name found in kueue_queues"),
        ("kueue_replica", 1, 'is no variable of the role kueue; did you mean "kueue_replicas"?'),
    ],
)
def test_a_value_that_the_role_refuses_is_told_with_what_is_allowed(name: str, value: object, said: str) -> None:
    origin = Origin("group_vars/all.yml", 3)
    found = list(setting_problems([RawSetting(name, value, "group all", origin)], OPTIONS))
    assert any(said in problem.message for problem in found), found
    assert {(problem.key, problem.origin, problem.severity) for problem in found} == {(name, origin, "error")}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kueue_replicas", "3"),
        ("kueue_wait", "yes"),
        ("kueue_log", "{{ loud | ternary('debug', 'info') }}"),
        ("kueue_queues", [{"name": "{{ team }}"}]),
        ("kueue_queues", [{"name": "a"}]),
        ("somebody_elses", object()),
    ],
)
def test_what_ansible_takes_is_taken(name: str, value: object) -> None:
    assert list(setting_problems([RawSetting(name, value, "group all")], OPTIONS)) == []


def test_hosts_and_groups_are_named(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "hosts.yml").write_text(
        "all:\n  children:\n    gpu_nodes:\n      hosts:\n"
        "        gpu1: {gpu_driver_channel: runfile}\n        gpu2: {gpu_driver_channel: runfile}\n"
    )
    (tmp_path / "group_vars" / "gpu_nodes.yml").write_text("gpu_driver_module: closed\n")
    raw = read_inventory(tmp_path)
    found = list(setting_problems(raw.settings, declared_options(roles_folder())))
    by_subject = {problem.subject: problem for problem in found}
    assert '(group gpu_nodes) is "closed"; it may be auto, open, proprietary' in by_subject["gpu_driver_module"].message
    assert by_subject["gpu_driver_module"].origin == Origin(str(tmp_path / "group_vars" / "gpu_nodes.yml"), 1)
    assert "runfile is refused" in by_subject["gpu1"].message


def test_validate_says_them_with_the_description(tmp_path: Path) -> None:
    for path in (ROOT / "inventories" / "lab").rglob("*.yml"):
        target = tmp_path / path.relative_to(ROOT / "inventories" / "lab")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text())
    (tmp_path / "group_vars" / "all" / "more.yml").write_text("kueue_replica: 3\n")
    app = typer.Typer()
    validate.register(app)
    said = CliRunner().invoke(app, ["-i", str(tmp_path)])
    assert said.exit_code == 1
    assert "kueue_replica" in said.output
    assert "is no variable of the role kueue" in said.output
