"""Values of any kind at any place of a description: sentences, and never an exception."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from myriad.fleet import Problem, RawInventory, check
from myriad.fleet.source import KeyPath
from myriad.inventory import read_inventory

SMALL = Path(__file__).parents[3] / "inventories" / "small"
ODD: list[Any] = [
    None, [], {}, "", -1, 0, 1e400, float("nan"), True, False, "x", [None], [[]], {"a": None}, {None: 1}, {1: 2}, [{}],
    "9" * 40, 10**30, -0.5, ["x"] * 3, {"h100": "8"}, {"h100": None}, {"h100": []}, {"h100": {}}, "\n", "a b", {"": ""},
]  # fmt: skip
KEYS: list[Any] = [None, 1, True, "", "x y", "A", "é"]
FULL: dict[str, Any] = {
    "myriad_teams": {
        "vision": {
            "namespaces": ["vision"], "quota": {"h100": 8}, "weight": 2, "cohort": "everyone", "borrow": {"h100": 2},
            "lend": {"h100": 1}, "reserve": {"h100": 1}, "gpu_hours": {"h100": {"budget": 10, "period": "month"}},
            "projects": {"llm": {"gpu_hours": {"h100": {"budget": 5}}}}, "notify": ["oncall"], "groups": ["g"],
            "users": ["u"], "pod_security": "baseline",
        },
        "speech": {"namespaces": ["speech"], "quota": {"h100": 8}, "cohort": "everyone"},
    },
    "myriad_pools": {
        "h100": {
            "model": "H100-SXM5-80GB", "gpus_per_node": 8, "use": "training", "engine": "kueue", "cpu_per_gpu": 24,
            "memory_per_gpu": "240Gi",
        },
        "cut": {"model": "A100-SXM4-80GB", "use": "inference", "mig": {"1g.10gb": 7}},
        "shared": {"model": "L40S", "use": "inference", "sharing": {"replicas": 4}},
    },
    "myriad_images": {"warm": [{"image": "gang-check", "pools": ["h100"]}]},
    "myriad_topology": {"switches": {"tor-r1": "unknown"}, "accept": ["gpu1"]},
    "myriad_fabric": {"h100": {"kind": "roce", "rails": [{"interface": "ens1f0np0"}]}},
    "myriad_burn_in": {"h100": {"gb_s": 300}},
    "myriad_notify": {"oncall": {"kind": "webhook", "url": "https://alerts.example.com/vision"}},
    "myriad_protection": {"after_s": 7200},
    "myriad_idle": {"threshold_percent": 5, "after_s": 1800},
    "myriad_admission": {"rules": {"image-digest": "deny"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def raw() -> RawInventory:
    """The small site with every part of a description in it."""
    found = read_inventory(SMALL)
    found.variables |= FULL
    return found


def paths(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every place of a value."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from paths(inner, (*path, index))


def told(raw: RawInventory, path: KeyPath, value: Any) -> list[Problem]:
    """Problems of the description with another value at one place."""
    before, holder = raw.variables, copy.deepcopy(raw.variables)
    raw.variables = holder
    try:
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = copy.deepcopy(value)  # type: ignore[index]
        return list(check(raw).problems)
    finally:
        raw.variables = before


def test_any_value_at_any_place_ends_in_sentences(raw: RawInventory) -> None:
    places = list(paths(raw.variables))
    assert len(places) > 80
    jobs = [(place, value) for place in places for value in ODD]
    jobs += [((*place, key), {}) for place in places for key in KEYS if isinstance(_at(raw, place), dict)]
    for place, value in jobs:
        for problem in told(raw, place, value):
            assert problem.message and problem.subject, (place, value, problem)


def _at(raw: RawInventory, place: KeyPath) -> Any:
    value: Any = raw.variables
    for step in place:
        value = value[step]
    return value


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("gpu_hours",), {"budget": 10}, "gpu_hours.budget: is 10; it is budgets by pool, for example {h100: {budget"),
        (("gpu_hours", "h100"), 10, "gpu_hours.h100: is 10; it is budgets by pool"),
        (("projects",), {"llm": {"gpu_hours": {"budget": 3}}}, "gpu_hours.budget: is 3; it is budgets by pool"),
        (("quota",), -0.5, "quota: is -0.5; it is GPUs by pool, for example {h100: 8}"),
        (("quota",), 16, "quota: is 16; it is GPUs by pool, for example {h100: 8}"),
    ],
)
def test_a_shape_that_is_another_is_told_with_an_example(
    raw: RawInventory, path: KeyPath, value: Any, said: str
) -> None:
    sentences = [f"{problem.key}: {problem.message}" for problem in told(raw, ("myriad_teams", "vision", *path), value)]
    assert any(said in sentence for sentence in sentences), sentences
