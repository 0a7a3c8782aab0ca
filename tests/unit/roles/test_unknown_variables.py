"""A misspelt variable of a role is told from one that is not a role's."""

from pathlib import Path

import pytest

from myriad.roles import declared_variables, role_of, unknown_variables

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
