"""MIG layouts: the vendor's placements, what fits, what a description may say, what Kueue and the node are told."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import pytest

from myriad.fleet import inventory_from_groups, mig
from myriad.fleet.check import Checked, check
from myriad.fleet.objects import objects_for_cluster_policy

A100 = "A100-SXM4-80GB"
GROUPS = {"control_plane": ["cp1"], "gpu_nodes": ["n1", "n2"], "pool_cut": ["n1", "n2"]}


def checked(pool: dict[str, Any], **teams: Any) -> Checked:
    description = {
        "myriad_pools": {"cut": {"model": A100, "gpus_per_node": 8, "use": "inference", **pool}},
        "myriad_teams": {"web": {"namespaces": ["web"], "quota": {"cut": 3}, **teams}},
    }
    return check(inventory_from_groups(description, GROUPS, locations={"n1": "h/b/r", "n2": "h/b/r"}))


def faults(pool: dict[str, Any]) -> list[str]:
    return [f"{problem.subject} {problem.message}" for problem in checked(pool).errors]


@pytest.mark.parametrize(
    ("model", "profile", "starts"),
    [
        # MIG user guide, `nvidia-smi mig -lgipp` of an A100 40 GB.
        ("A100-SXM4-40GB", "1g.5gb", (0, 1, 2, 3, 4, 5, 6)),
        ("A100-SXM4-40GB", "1g.5gb+me", (0, 1, 2, 3, 4, 5, 6)),
        ("A100-SXM4-40GB", "1g.10gb", (0, 2, 4, 6)),
        ("A100-SXM4-40GB", "2g.10gb", (0, 2, 4)),
        ("A100-SXM4-40GB", "3g.20gb", (0, 4)),
        ("A100-SXM4-40GB", "4g.20gb", (0,)),
        ("A100-SXM4-40GB", "7g.40gb", (0,)),
        ("A30", "1g.6gb", (0, 1, 2, 3)),
        ("A30", "2g.12gb", (0, 2)),
        ("A30", "4g.24gb", (0,)),
    ],
)
def test_places_are_those_of_the_vendors_guide(model: str, profile: str, starts: tuple[int, ...]) -> None:
    shape = mig.geometry(model)
    assert shape is not None and shape.profiles[profile].starts == starts


@pytest.mark.parametrize("model", ["A100-SXM4-80GB", "H200", "H100-NVL-94GB", "B200", "GB200", "H20", "A30"])
def test_every_profile_fills_a_card_as_often_as_the_catalog_says(model: str) -> None:
    shape = mig.geometry(model)
    assert shape is not None
    for profile in shape.profiles.values():
        assert mig.placement(model, ((profile.name, profile.count),)) is not None, profile
        most = max(n for n in range(1, 9) if mig._place([profile] * n, frozenset()) is not None)
        assert most >= profile.count
    assert mig.geometry("L40S") is None


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ({"1g.10gb": 7}, None),
        (["3g.40gb", "3g.40gb"], None),
        (["1g.10gb", "2g.20gb", "4g.40gb"], None),
        ("7g.80gb", None),
        ("whole", None),
        ({"4g.40gb": 1, "3g.40gb": 1}, None),
        ({"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2}, None),
        ({"1g.10gb": 8}, "asks for 8 x 1g.10gb; one A100-SXM4-80GB holds 7"),
        ({"4g.40gb": 2}, "asks for 2 x 4g.40gb; one A100-SXM4-80GB holds 1"),
        ({"3g.40gb": 2, "1g.10gb": 1}, "needs 7 compute and 9 memory slices (2 x 3g.40gb, 1 x 1g.10gb); "
         "one A100-SXM4-80GB has 7 and 8"),
        ({"4g.40gb": 1, "1g.20gb": 1, "2g.20gb": 1, "1g.10gb": 1}, "needs 8 compute and 9 memory slices"),
        ({"2g.20gb": 3, "1g.20gb": 1, "1g.10gb": 1}, "needs 8 compute and 9 memory slices"),
        ({"1g.5gb": 7}, 'names the profile "1g.5gb", which A100-SXM4-80GB does not have: 1g.10gb, '),
    ],
)  # fmt: skip
def test_a_layout_fits_or_says_why_not(written: Any, fault: str | None) -> None:
    found = mig.layout_fault(A100, mig.read_layout(written))
    assert (found is None) == (fault is None), found
    assert fault is None or (found or "").startswith(fault)


def test_the_driver_is_asked_in_an_order_in_which_every_layout_that_fits_is_made() -> None:
    """The double places as the driver does: greedily, in its own order of places."""
    from myriad.lab.double import mig as driver
    from myriad.lab.gpus import gpu_document

    shape = mig.geometry(A100)
    assert shape is not None
    document = gpu_document("n1", A100, 1)
    gpu = document["gpus"][0]
    document, _ = driver.set_mode(document, gpu, on=True, busy=False)
    names = [name for name in shape.profiles if "+" not in name]
    tried = 0
    for size in range(1, 8):
        for chosen in itertools.combinations_with_replacement(names, size):
            layout = mig.read_layout(list(chosen))
            if any(count > shape.profiles[name].count for name, count in layout) or not mig.placement(A100, layout):
                continue
            made, _ = driver.create(document, gpu, list(mig.creation_order(A100, layout)), compute=True)
            assert len(driver.devices(made, gpu)) == size, layout
            tried += 1
    assert tried > 40


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        ({"mig": {"1g.10gb": 7}, "use": "training"},
         "myriad_pools.cut.mig cuts the cards of a training pool: slices have no NVLink to each other"),
        ({"mig": {"1g.10gb": 8}}, "myriad_pools.cut.mig asks for 8 x 1g.10gb; one A100-SXM4-80GB holds 7"),
        ({"mig": {"1g.5gb": 7}}, 'myriad_pools.cut.mig names the profile "1g.5gb", which A100-SXM4-80GB does not'),
        ({"mig": {"layout": {"1g.10gb": 7}, "gpus": {"8": "whole"}}}, "(gpus) names GPU 8; a node of this pool has"),
        ({"mig": {"layout": {"1g.10gb": 7}, "gpus": {"x": "whole"}}}, 'names the GPUs "x"; write an index'),
        ({"mig": {"layout": {"1g.10gb": 7}, "hosts": {"n3": {"layout": "whole"}}}},
         'myriad_pools.cut.mig.hosts.n3 is not a node of pool cut; known: n1, n2'),
        ({"mig": {"layout": {"1g.10gb": 7}, "gpus": {0: "whole"}, "strategy": "single"}},
         "has the strategy single and more than one kind of slice"),
        ({"mig": {"layout": {"1g.10gb": 7}, "stratgy": "single"}}, 'has the key "stratgy", which it does not know'),
        ({"mig": {"1g.10gb": 0}}, "gives 1g.10gb the count 0; a count is a whole number, 1 or more"),
        ({"mig": 7}, "is 7; write profiles with counts, for example {1g.10gb: 7}"),
        ({"model": "L40S", "mig": {"1g.6gb": 2}}, "cuts the card, and L40S cannot be cut"),
        ({"sharing": {"replicas": 4}, "use": "training"}, "lets 4 pods take turns on one GPU of a training pool"),
        ({"sharing": {"replicas": 4}, "mig": {"1g.10gb": 7}}, "is given beside mig; cut the cards or share them"),
        ({"sharing": {"replicas": 0}}, "myriad_pools.cut.sharing.replicas is 0; replicas are a whole number"),
    ],
)  # fmt: skip
def test_a_wrong_cut_is_told_at_its_key(pool: dict[str, Any], words: str) -> None:
    found = faults(pool)
    assert any(words in fault for fault in found), found


def test_whole_cards_are_the_default_and_a_training_pool_may_be_cut_on_purpose() -> None:
    whole = checked({})
    assert not whole.errors and mig.node_layout(whole.fleet.pools["cut"].mig, model=A100, host="n1", gpus=8) == {}
    assert faults({"use": "training", "mig": {"layout": {"3g.40gb": 2}, "training_allowed": True}}) == []


def test_sharing_is_offered_for_inference_with_its_warning() -> None:
    found = checked({"sharing": {"replicas": 4}})
    assert not found.errors
    assert any("nothing between their memories" in problem.message for problem in found.warnings)
    assert _quotas(found)["nvidia.com/gpu"] == "12"


def _quotas(found: Checked) -> dict[str, str]:
    queue = next(item for item in objects_for_cluster_policy(found.fleet) if item["kind"] == "ClusterQueue")
    group = queue["spec"]["resourceGroups"][0]
    rows = group["flavors"][0]["resources"]
    assert [row["name"] for row in rows] == group["coveredResources"], "Kueue insists on the order"
    return {row["name"]: row["nominalQuota"] for row in rows if row["name"].startswith("nvidia")}


@pytest.mark.parametrize(
    ("cut", "quotas"),
    [
        ({}, {"nvidia.com/gpu": "3"}),
        ({"1g.10gb": 7}, {"nvidia.com/mig-1g.10gb": "21"}),
        ({"layout": {"1g.10gb": 7}, "strategy": "single"}, {"nvidia.com/gpu": "21"}),
        ({"3g.40gb": 1, "1g.10gb": 4}, {"nvidia.com/mig-1g.10gb": "12", "nvidia.com/mig-3g.40gb": "3"}),
        ({"layout": {"1g.10gb+me": 1}}, {"nvidia.com/mig-1g.10gb.me": "3"}),
        # Half of the cards whole: 3 GPUs are 1.5 whole ones (1 is counted) and 1.5 x 7 slices.
        ({"layout": {"1g.10gb": 7}, "gpus": {"0-3": "whole"}}, {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "10"}),
    ],
)
def test_quotas_stay_in_gpus_and_become_slices(cut: dict[str, Any], quotas: dict[str, str]) -> None:
    found = checked({"mig": cut})
    assert not found.errors, found.errors
    assert _quotas(found) == quotas


def test_one_gpu_or_one_host_may_be_cut_otherwise() -> None:
    cut = mig.read_cut(
        {
            "layout": ["1g.10gb"] * 7,
            "gpus": {"2,6-7": "whole"},
            "hosts": {"n2": {"layout": "7g.80gb", "gpus": {0: "whole"}}},
        }
    )
    assert mig.node_layout(cut, model=A100, host="n1", gpus=8) == {
        str(index): [] if index in (2, 6, 7) else ["1g.10gb"] * 7 for index in range(8)
    }
    assert mig.node_resources(cut, host="n1", gpus=8) == {"nvidia.com/mig-1g.10gb": 35, "nvidia.com/gpu": 3}
    assert mig.node_resources(cut, host="n2", gpus=8) == {"nvidia.com/mig-7g.80gb": 7, "nvidia.com/gpu": 1}
    assert mig.shares_per_gpu(cut, hosts={"n1": 8, "n2": 8}, gpus=8) == {
        "nvidia.com/gpu": Fraction(4, 16),
        "nvidia.com/mig-1g.10gb": Fraction(35, 16),
        "nvidia.com/mig-7g.80gb": Fraction(7, 16),
    }  # fmt: skip


def test_two_pools_with_two_strategies_are_refused() -> None:
    description = {
        "myriad_pools": {
            "cut": {"model": A100, "use": "inference", "mig": {"1g.10gb": 7}},
            "other": {"model": A100, "use": "inference", "mig": {"layout": {"1g.10gb": 7}, "strategy": "single"}},
        }
    }
    groups = {"control_plane": ["cp1"], "gpu_nodes": ["n1", "n2"], "pool_cut": ["n1"], "pool_other": ["n2"]}
    found = check(inventory_from_groups(description, groups, locations={"n1": "h/b/r", "n2": "h/b/r"}))
    assert any("one strategy for the whole cluster" in problem.message for problem in found.errors)
