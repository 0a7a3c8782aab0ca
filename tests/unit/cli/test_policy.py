"""`myriad policy`: fields of a difference, and the kinds in which leftovers are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from myriad.cli.policy import PRUNED, field_differences

ROOT = Path(__file__).parents[3]


def test_a_difference_is_told_field_by_field() -> None:
    live = {
        "spec": {"weight": 1, "rows": [{"name": "cpu", "nominalQuota": "8"}, {"name": "gpu", "nominalQuota": "16"}]}
    }
    wanted = {
        "spec": {"weight": 1, "rows": [{"name": "gpu", "nominalQuota": "8"}, {"name": "cpu", "nominalQuota": "8"}]},
        "metadata": {"labels": {"myriad.dev/team": "vision"}},
    }
    assert list(field_differences(live, wanted)) == [
        {"field": "metadata", "live": None, "described": {"labels": {"myriad.dev/team": "vision"}}},
        {"field": "spec.rows.gpu.nominalQuota", "live": "16", "described": "8"},
    ]
    labels = field_differences({"a": {"x.y/z": 1}}, {"a": {"x.y/z": 2}})
    assert [entry["field"] for entry in labels] == ["a[x.y/z]"]
    assert list(field_differences([1, 2], [2, 1], "list")) == [{"field": "list", "live": [1, 2], "described": [2, 1]}]


@pytest.mark.parametrize("role", ["cluster_policy", "team_access"])
def test_leftovers_are_looked_for_where_the_role_looks(role: str) -> None:
    defaults = yaml.safe_load((ROOT / "roles" / role / "defaults/main.yml").read_text())
    kinds = [tuple(kind.rsplit("/", 1)) for kind in defaults[f"{role}_prune_kinds"]]
    assert sorted(kinds) == sorted(PRUNED[role.replace("_", "-")])
