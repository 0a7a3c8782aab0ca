"""The site's rules: what the description says is what the extension reads, and no document makes reading fail."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from myriad.fleet import check, objects_for_cluster_policy
from myriad.fleet.site_policy import policy_document
from myriad.inventory import read_inventory
from myriad.kube.kinds import CONFIG_MAPS
from myriad.scheduler import policy
from myriad.scheduler.cache import Cache
from myriad.scheduler.policy import SitePolicy

ROOT = Path(__file__).parents[3]
SHAPES: list[Any] = [None, 7, -1, 1.5, float("nan"), "text", "", ["list"], [7], {"a": 1}, {"a": {"b": 1}}, True]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The document of the lab's description, as it comes back from the API server."""
    loaded: dict[str, Any] = json.loads(
        json.dumps(policy_document(check(read_inventory(ROOT / "inventories/lab")).fleet))
    )
    return loaded


def test_the_document_is_read_as_it_was_described(document: dict[str, Any]) -> None:
    read = SitePolicy.read(document)
    assert read.cluster == "lab" and read.levels == ("room", "block", "rack")
    assert read.priorities == {"urgent": 1000, "normal": 500, "scavenge": 100}
    assert dataclasses.asdict(read.preemption) == document["preemption"]
    assert dataclasses.asdict(read.protection) == document["protection"]
    assert dataclasses.asdict(read.pools["h100"]) == document["pools"]["h100"]
    vision = read.teams["vision"]
    assert (vision.quota, vision.weight, vision.cohort) == ({"h100": 16}, 2.0, "research")
    assert vision.gpu_hours == {"h100": policy.Budget(5000, "month")}
    assert read.team_of("speech") == "speech" and read.team_of("kube-system") == ""


def test_without_a_document_there_are_defaults() -> None:
    read = SitePolicy.read({})
    assert read == SitePolicy() and read == SitePolicy.of_config_map(None)
    assert read.preemption.grace_s == 300 and read.protection.level == "block"
    assert read.pool("unknown").unlimited == "allow" and read.limit_s("unknown", None) is None


@pytest.mark.parametrize("value", SHAPES, ids=repr)
def test_no_document_makes_reading_fail(document: dict[str, Any], value: Any) -> None:
    assert isinstance(SitePolicy.read(value), SitePolicy)
    assert isinstance(SitePolicy.of_config_map({"data": {"policy.json": value}}), SitePolicy)
    for key in document:
        assert isinstance(SitePolicy.read(document | {key: value}), SitePolicy)
    for part in ("preemption", "protection", "idle"):
        for key, given in document[part].items():
            read = getattr(SitePolicy.read(document | {part: document[part] | {key: value}}), part)
            assert type(getattr(read, key)) is type(given), f"{part}.{key} keeps its type"
    for part, name in (("pools", "h100"), ("teams", "vision")):
        for key in document[part][name]:
            changed = document | {part: {name: document[part][name] | {key: value}}}
            assert name in getattr(SitePolicy.read(changed), part)


def test_a_job_without_a_limit_gets_its_pools_default() -> None:
    pools = {
        "h100": {"default_hours": 1.5, "unlimited": "default"},
        "a100": {"default_hours": 1.5, "unlimited": "allow"},
    }
    read = SitePolicy.read({"pools": pools})
    assert read.limit_s("h100", None) == 5400
    assert read.limit_s("h100", 60) == 60
    assert read.limit_s("a100", None) is None


def test_targets_of_a_team_are_those_that_are_described() -> None:
    read = SitePolicy.read(
        {
            "teams": {"vision": {"notify": ["oncall", "nobody"]}},
            "notify_targets": {
                "oncall": {"kind": "apprise", "secret": "notify/vision"},
                "other": {"kind": "webhook", "url": "https://alerts.example.com/x"},
            },
        }
    )
    assert read.targets_of("vision") == {"oncall": policy.NotifyTarget("apprise", "", "notify", "vision")}
    assert read.targets_of("unknown") == {}


def test_the_cache_follows_the_config_map() -> None:
    cache = Cache(check_name="myriad")
    assert cache.policy() == SitePolicy()
    fleet = check(read_inventory(ROOT / "inventories/lab")).fleet
    (rules,) = [o for o in objects_for_cluster_policy(fleet) if o["kind"] == "ConfigMap"]
    cache.replace(CONFIG_MAPS.plural, [rules])
    assert cache.policy().cluster == "lab" and set(cache.policy().teams) == {"vision", "speech"}
    other = {**rules, "metadata": {"name": "myriad-policy", "namespace": "vision"}, "data": {"policy.json": "{}"}}
    cache.upsert(CONFIG_MAPS.plural, other)
    assert cache.policy().cluster == "lab", "a ConfigMap of that name elsewhere is somebody's own"
    cache.upsert(CONFIG_MAPS.plural, rules | {"data": {"policy.json": "{"}})
    assert cache.policy() == SitePolicy()
    cache.remove(CONFIG_MAPS.plural, rules)
    assert cache.policy() == SitePolicy()
