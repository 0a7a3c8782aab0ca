"""Nodes that have a gang's images are taken between equal places, and never at the cost of a better one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from myriad.fleet.labels import warm_label
from myriad.scheduler.model import PlacementPolicy, Plan
from myriad.scheduler.objects import pod_set
from myriad.scheduler.placement import plan
from myriad.scheduler.placement.warm import COLD, cold_penalty
from myriad.scheduler.replay import inputs_of, replay

TORCH = "sha256:" + "a" * 64
TOOLS = "sha256:" + "b" * 64
RACKS = {"n1": "h/b1/r1", "n2": "h/b1/r1", "n3": "h/b1/r2", "n4": "h/b1/r2", "n5": "h/b2/r3", "n6": "h/b2/r3"}


def warmed(snapshot: Any, **images: list[str]) -> Any:
    for name, digests in images.items():
        node = snapshot.nodes[snapshot.index[name]]
        snapshot.update_node(replace(node, labels={**node.labels, **{warm_label(d): "true" for d in digests}}))
    return snapshot


def gang(make: SimpleNamespace, pods: int, *images: str) -> Any:
    found = make.gang(make.podset(pods, 8))
    return replace(found, podsets=tuple(replace(podset, images=images) for podset in found.podsets))


def planned(outcome: Any) -> Plan:
    assert isinstance(outcome, Plan), outcome
    return outcome


class TestPenalty:
    def test_each_missing_image_costs_its_share(self, make: SimpleNamespace) -> None:
        snapshot = warmed(make.cluster(RACKS), n1=[TORCH, TOOLS], n2=[TORCH])
        found = cold_penalty(snapshot, gang(make, 1, TORCH, TOOLS))
        assert found is not None
        by_node = {node.name: found[i] for i, node in enumerate(snapshot.nodes)}
        assert by_node == pytest.approx({"n1": 0, "n2": COLD / 2, "n3": COLD, "n4": COLD, "n5": COLD, "n6": COLD})

    def test_where_nobody_prewarms_nothing_costs(self, make: SimpleNamespace) -> None:
        assert cold_penalty(make.cluster(RACKS), gang(make, 1, TORCH)) is None
        assert cold_penalty(warmed(make.cluster(RACKS), n1=[TORCH]), gang(make, 1)) is None


class TestChoice:
    def test_the_warm_rack_wins_between_equals(self, make: SimpleNamespace) -> None:
        cold = planned(plan(make.cluster(RACKS), gang(make, 2, TORCH)))
        for rack in (("n1", "n2"), ("n3", "n4"), ("n5", "n6")):
            snapshot = warmed(make.cluster(RACKS), **{name: [TORCH] for name in rack})
            found = planned(plan(snapshot, gang(make, 2, TORCH)))
            if rack[0] in ("n1", "n3") and "n5" in cold.nodes:
                # The block of four stays whole: that is worth more than a pull.
                assert set(found.nodes) == {"n5", "n6"}
            else:
                assert set(found.nodes) == set(rack)

    def test_a_node_of_the_same_rack_that_is_warm_is_taken_first(self, make: SimpleNamespace) -> None:
        flat = {"n1": "h/b/r", "n2": "h/b/r", "n3": "h/b/r"}
        for name in flat:
            snapshot = warmed(make.cluster(flat), **{name: [TORCH]})
            assert planned(plan(snapshot, gang(make, 1, TORCH))).nodes == {name: 1}

    def test_a_nearer_tier_is_worth_a_pull(self, make: SimpleNamespace) -> None:
        snapshot = warmed(make.cluster({"n1": "h/b/r1", "n2": "h/b/r2", "n3": "h/b/r2"}), n1=[TORCH], n2=[TORCH])
        found = planned(plan(snapshot, gang(make, 2, TORCH)))
        assert found.tier == "rack" and set(found.nodes) == {"n2", "n3"}

    def test_the_reason_says_how_many_are_warm(self, make: SimpleNamespace) -> None:
        snapshot = warmed(make.cluster({"n1": "h/b/r", "n2": "h/b/r"}), n1=[TORCH])
        assert planned(plan(snapshot, gang(make, 2, TORCH))).reason.endswith("images warm on 1 of 2 nodes")
        assert "warm" not in planned(plan(snapshot, gang(make, 2))).reason

    def test_a_decision_can_be_made_again_from_its_record(self, make: SimpleNamespace) -> None:
        snapshot = warmed(make.cluster(RACKS), n5=[TORCH], n6=[TORCH])
        job = gang(make, 1, TORCH)
        inputs = inputs_of(snapshot, job, PlacementPolicy())
        outcome, digest = replay(inputs)
        assert planned(outcome).nodes == planned(plan(snapshot, job)).nodes
        assert digest == inputs["hash"]


def test_only_images_by_digest_count() -> None:
    body = {
        "template": {
            "spec": {
                "initContainers": [{"image": f"r.internal/tools@{TOOLS}"}],
                "containers": [
                    {"image": f"r.internal/torch:2.12@{TORCH}"},
                    {"image": "r.internal/sidecar:1"},
                    {},
                ],
            }
        }
    }
    assert pod_set(body).images == (TORCH, TOOLS)
