"""What goes wrong elsewhere and must not here; the ids are those of the project's case list."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from myriad.scheduler.model import (
    Expression,
    NodeTerm,
    PlacementPolicy,
    Plan,
    Refusal,
    Taint,
    Toleration,
)
from myriad.scheduler.placement import (
    first_end_that_fits,
    fits_ever,
    fragmentation,
    plan,
    plan_elastic,
    replacement_for,
    tier_of_assignment,
)
from myriad.scheduler.snapshot import Snapshot

RACKS = {"n1": "h/b1/r1", "n2": "h/b1/r1", "n3": "h/b1/r2", "n4": "h/b1/r2", "n5": "h/b2/r3", "n6": "h/b2/r3"}


def planned(outcome: Plan | Refusal) -> Plan:
    assert isinstance(outcome, Plan), outcome
    return outcome


def refused(outcome: Plan | Refusal, kind: str) -> Refusal:
    assert isinstance(outcome, Refusal), outcome
    assert outcome.kind == kind, outcome
    return outcome


class TestNever:
    def test_a_pod_larger_than_every_node_says_how_to_split(self, make: SimpleNamespace) -> None:
        snapshot = make.cluster({"n1": "h/b/r", "n2": "h/b/r"})
        refusal = refused(plan(snapshot, make.gang(make.podset(8, 16))), "never")
        assert refusal.sentence == "no node of pool h100 has 16 GPUs (8 at most); split it into pods of 8 or fewer"

    def test_a5_one_cpu_more_than_any_node(self, make: SimpleNamespace) -> None:
        node = make.node("n1", allocatable={"cpu_milli": 72_000, "memory_bytes": 1 << 30, "pods": 110})
        gang = make.gang(make.podset(1, 0, requests={"cpu_milli": 73_000}))
        refusal = fits_ever([node], gang)
        assert refusal is not None
        assert refusal.sentence == "no node of pool h100 has 73 CPUs (72 at most); ask for 72 CPUs or less a pod"
        assert fits_ever([node], make.gang(make.podset(1, 0, requests={"cpu_milli": 72_000}))) is None

    def test_a4_an_impossible_gang_reserves_nothing_and_the_small_one_is_placed(self, make: SimpleNamespace) -> None:
        snapshot = make.cluster({"n1": "h/b/r", "n2": "h/b/r"})
        before = snapshot.digest()
        refused(plan(snapshot, make.gang(make.podset(1, 12))), "never")
        assert snapshot.digest() == before
        planned(plan(snapshot, make.gang(make.podset(2, 8))))

    def test_each_resource_alone_but_no_node_with_both(self, make: SimpleNamespace) -> None:
        big = make.node("cpu", allocatable={"cpu_milli": 200_000, "memory_bytes": 1 << 40, "pods": 110, make.GPU: 1})
        gang = make.gang(make.podset(1, 8, requests={"cpu_milli": 100_000, make.GPU: 8}))
        refusal = fits_ever([big, make.node("gpu")], gang)
        assert refusal is not None
        assert refusal.sentence.startswith("no single node of pool h100 has 100 CPUs and 8 GPUs together")

    def test_the_largest_block_is_named_with_its_size(self, make: SimpleNamespace) -> None:
        shape = {f"n{k}": f"h/b{k // 5}/r{k // 5}" for k in range(10)}
        refusal = refused(plan(make.cluster(shape), make.gang(make.podset(8, 8, topology="required block"))), "never")
        assert refusal.sentence == "needs 64 H100 in one block; the largest block has 40"

    def test_more_than_the_pool(self, make: SimpleNamespace) -> None:
        refusal = refused(plan(make.cluster(RACKS), make.gang(make.podset(9, 8))), "never")
        assert refusal.sentence == "needs 9 x 8 = 72 H100; pool h100 can hold 48 of them in pods of 8"

    def test_unknown_pool_selector_and_resource_are_named(self, make: SimpleNamespace) -> None:
        snapshot = make.cluster(RACKS)
        assert (
            "no node belongs to pool b200"
            in refused(plan(snapshot, make.gang(make.podset(1, 1), pool="b200")), "never").sentence
        )
        gang = make.gang(make.podset(1, 1, node_selector={"disk": "ssd"}))
        assert "no node of pool h100 has the label disk=ssd" in refused(plan(snapshot, gang), "never").sentence
        gang = make.gang(make.podset(1, 0, requests={"amd.com/gpu": 1}))
        assert "no node of pool h100 has any amd.com/gpu" in refused(plan(snapshot, gang), "never").sentence

    def test_a_foreign_taint_is_named_but_what_passes_is_not_never(self, make: SimpleNamespace) -> None:
        foreign = [make.node("n1", taints=(Taint("team", "speech"),))]
        refusal = fits_ever(foreign, make.gang(make.podset(1, 1)))
        assert refusal is not None
        assert "team=speech:NoSchedule" in refusal.sentence
        passing = make.node(
            "n1",
            cordoned=True,
            ready=False,
            taints=(Taint("myriad.dev/gpu-not-ready"), Taint("node.kubernetes.io/not-ready", effect="NoExecute")),
            labels={"myriad.dev/gpu-expected": "8"},
            allocatable={"cpu_milli": 64_000, "memory_bytes": 1 << 40, "pods": 110, make.GPU: 6},
        )
        assert fits_ever([passing], make.gang(make.podset(1, 8))) is None

    def test_podsets_that_fit_alone_but_not_together(self, make: SimpleNamespace) -> None:
        gang = make.gang(make.podset(1, 5, name="a"), make.podset(1, 4, name="b"))
        refusal = refused(plan(make.cluster({"n1": "h/b/r"}), gang), "never")
        assert "do not fit together even on an empty cluster" in refusal.sentence

    def test_what_runs_on_every_node_counts_for_never(self, make: SimpleNamespace) -> None:
        agent = replace(make.use("agent", "n1", cpu_milli=500), permanent=True)
        gang = make.gang(make.podset(1, 0, requests={"cpu_milli": 64_000}))
        snapshot = Snapshot.build([make.node("n1")], [make.use("job", "n1", 8)])
        assert fits_ever(snapshot, gang) is None
        snapshot.apply_pod(agent)
        sentence = "no node of pool h100 has 64 CPUs (63.5 at most); ask for 63.5 CPUs or less a pod"
        assert refused(plan(snapshot, gang), "never").sentence == sentence
        assert refused(plan(Snapshot.build([make.node("n1")], [agent]), gang), "never").sentence == sentence
        what_if = snapshot.clone()
        what_if.remove_pod("agent")
        assert fits_ever(what_if, gang) is None
        assert fits_ever(snapshot, gang) is not None

    def test_an_elastic_gang_is_judged_by_its_smallest_count(self, make: SimpleNamespace) -> None:
        nodes = [make.node("n1"), make.node("n2")]
        assert fits_ever(nodes, make.gang(make.podset(4, 8, min_count=2))) is None
        assert fits_ever(nodes, make.gang(make.podset(4, 8, min_count=3))) is not None

    def test_f9_an_empty_cache_proves_nothing(self, make: SimpleNamespace) -> None:
        assert fits_ever([], make.gang(make.podset(1, 1))) is None
        refused(plan(Snapshot.build([]), make.gang(make.podset(1, 1))), "not_now")


class TestNotNow:
    def test_the_sentence_of_the_tour(self, make: SimpleNamespace) -> None:
        shape = {f"gpu03{k:02d}": f"hall1/b3/r{k // 4}" for k in range(10, 18)}
        shape |= {f"gpu04{k:02d}": f"hall1/b4/r{k}" for k in range(10, 18)}
        snapshot = make.cluster(shape, {f"gpu04{k}": 8 for k in range(10, 16)})
        for name in ("gpu0312", "gpu0313"):
            node = snapshot.nodes[snapshot.index[name]]
            snapshot.update_node(make.node(name, "/".join(node.location), cordoned=True, cordoned_by="alice"))
        closed = {"taints": (Taint("myriad.dev/gpu-not-ready"),), "gate_reason": "fabric not complete"}
        snapshot.update_node(
            make.node("gpu0317", "/".join(snapshot.nodes[snapshot.index["gpu0317"]].location), **closed)
        )
        refusal = refused(plan(snapshot, make.gang(make.podset(8, 8, topology="required block"))), "not_now")
        assert refusal.sentence == "needs 64 H100 in one block; the largest free set is 40, in hall1/b3"
        assert refusal.details == (
            "hall1/b3: 5 whole nodes free, 2 cordoned by alice (gpu0312, gpu0313), "
            "1 closed by its gate (gpu0317: fabric not complete)",
        )
        assert refusal.numbers["gpus"] == 64
        assert refusal.numbers["largest_gpus"] == 40
        # Uncordoning alone would leave it at 7 nodes of 8.
        assert refusal.unblocks == ("bring back gpu0312, gpu0313, gpu0317",)

    def test_b15_b21_the_sum_fits_but_no_node_does(self, make: SimpleNamespace) -> None:
        snapshot = make.cluster(RACKS, dict.fromkeys(RACKS, 4))
        refusal = refused(plan(snapshot, make.gang(make.podset(2, 8))), "not_now")
        assert refusal.sentence == (
            "needs 16 H100 in pods of 8; room for 0 is free now (24 are free, but in pieces smaller than 8 a node)"
        )

    def test_uncordoning_is_offered_only_where_it_helps(self, make: SimpleNamespace) -> None:
        nodes = [make.node("n1"), make.node("n2", cordoned=True), make.node("n3", cordoned=True)]
        assert refused(plan(Snapshot.build(nodes), make.gang(make.podset(3, 8))), "not_now").unblocks == (
            "uncordon n2, n3",
        )
        busy = Snapshot.build(nodes, [make.use("p", "n1", 8)])
        assert refused(plan(busy, make.gang(make.podset(3, 8))), "not_now").unblocks == ()

    def test_bringing_back_closed_and_unready_nodes_is_offered(self, make: SimpleNamespace) -> None:
        closed = make.node("n2", taints=(Taint("myriad.dev/gpu-not-ready"),))
        lost = make.node("n3", ready=False, taints=(Taint("node.kubernetes.io/unreachable", effect="NoExecute"),))
        foreign = make.node("n4", taints=(Taint("team", "speech"),))
        nodes = [make.node("n1"), closed, lost, foreign]
        assert refused(plan(Snapshot.build(nodes), make.gang(make.podset(3, 8))), "not_now").unblocks == (
            "bring back n2, n3",
        )
        assert refused(plan(Snapshot.build(nodes), make.gang(make.podset(4, 8))), "never").kind == "never"

    def test_b5_terminating_pods_still_hold_their_gpus(self, make: SimpleNamespace) -> None:
        snapshot = Snapshot.build([make.node("n1")], [make.use("p", "n1", 8, terminating=True)])
        refused(plan(snapshot, make.gang(make.podset(1, 8))), "not_now")
        snapshot.apply_pod(make.use("p", "n1", 8, terminating=True))
        refused(plan(snapshot, make.gang(make.podset(1, 1))), "not_now")
        assert snapshot.remove_pod("p")
        planned(plan(snapshot, make.gang(make.podset(1, 8))))

    def test_b6_nodes_without_their_labels_are_named(self, make: SimpleNamespace) -> None:
        snapshot = Snapshot.build([make.node("n1"), make.node("n2", "hall1")])
        refusal = refused(plan(snapshot, make.gang(make.podset(2, 8))), "never")
        assert "pool h100 can hold 8" in refusal.sentence
        busy = Snapshot.build([make.node("n1"), make.node("n2", "hall1"), make.node("n3")], [make.use("p", "n1", 8)])
        refusal = refused(plan(busy, make.gang(make.podset(2, 8))), "not_now")
        assert refusal.counts["unlabelled"] == 1
        assert "1 without the label of a block or rack (n2)" in refusal.details[0]
        only = Snapshot.build([make.node("n2", "hall1")])
        assert "lacks a label of its place" in refused(plan(only, make.gang(make.podset(1, 1))), "never").sentence

    def test_c8_the_scarce_resource_is_named(self, make: SimpleNamespace) -> None:
        snapshot = Snapshot.build([make.node("n1")], [make.use("p", "n1", 0, cpu_milli=60_000)])
        gang = make.gang(make.podset(1, 8, requests={make.GPU: 8, "cpu_milli": 8000}))
        sentence = refused(plan(snapshot, gang), "not_now").sentence
        assert sentence.endswith("1 node has GPUs free but too few CPUs")

    def test_pod_slots_count(self, make: SimpleNamespace) -> None:
        node = make.node("n1", allocatable={"cpu_milli": 64_000, "memory_bytes": 1 << 40, "pods": 3, make.GPU: 8})
        snapshot = Snapshot.build([node], [make.use("daemon", "n1")])
        assert planned(plan(snapshot, make.gang(make.podset(2, 1)))).tier == "node"
        refusal = refused(plan(snapshot, make.gang(make.podset(3, 1))), "not_now")
        assert refusal.sentence == ("needs 3 H100; room for 2 is free now; 1 node has GPUs free but too few pod slots")

    def test_e10_allocatable_below_what_runs_counts_as_nothing_free(self, make: SimpleNamespace) -> None:
        snapshot = Snapshot.build([make.node("n1", gpus=4), make.node("n2")], [make.use("p", "n1", 8)])
        assert planned(plan(snapshot, make.gang(make.podset(1, 8)))).nodes == {"n2": 1}
        refused(plan(snapshot, make.gang(make.podset(1, 4, name="a"), make.podset(1, 8, name="b"))), "not_now")

    def test_nothing_open_names_every_class(self, make: SimpleNamespace) -> None:
        nodes = [
            make.node("n1", ready=False),
            make.node("n2", cordoned=True),
            make.node("n3", taints=(Taint("myriad.dev/reserved", "c"),)),
        ]
        sentence = refused(plan(Snapshot.build(nodes), make.gang(make.podset(1, 8))), "not_now").sentence
        assert sentence.startswith("no node can take it now: ")
        for words in ("1 not ready (n1)", "1 cordoned (n2)", "1 tainted myriad.dev/reserved=c:NoSchedule (n3)"):
            assert words in sentence


class TestChoice:
    def test_b11_fills_one_switch_before_the_next(self, make: SimpleNamespace) -> None:
        shape = {f"n{k}": f"h/b/s{k // 2}" for k in range(6)}
        found = planned(plan(make.cluster(shape), make.gang(make.podset(4, 8))))
        assert found.nodes == {"n0": 1, "n1": 1, "n2": 1, "n3": 1}

    def test_b16_the_fullest_rack_that_fits(self, make: SimpleNamespace) -> None:
        shape = {**{f"a{k}": "h/b/r1" for k in range(4)}, **{f"c{k}": "h/b/r2" for k in range(4)}}
        found = planned(plan(make.cluster(shape, {"c0": 8}), make.gang(make.podset(2, 8))))
        assert found.domain == ("h", "b", "r2")
        assert [c.leftover for c in found.candidates] == [8, 16]

    def test_b16_of_equal_racks_the_one_in_the_fullest_block(self, make: SimpleNamespace) -> None:
        shape = {f"n{b}{r}{k}": f"h/b{b}/r{b}{r}" for b in range(2) for r in range(2) for k in range(2)}
        found = planned(plan(make.cluster(shape, {"n100": 8}), make.gang(make.podset(2, 8))))
        assert found.domain == ("h", "b1", "r11")

    def test_gangs_gather_in_the_block_that_is_broken_already(self, make: SimpleNamespace) -> None:
        # The rack of b2 would be left with a free node, the ones of b1 are an exact fit: but b1 is whole.
        shape = {f"a{k}": f"h/b1/r{k // 2}" for k in range(8)} | {f"c{k}": f"h/b2/r{4 + k // 4}" for k in range(8)}
        snapshot = make.cluster(shape, {"c0": 8, "c4": 8, "c5": 8, "c6": 8, "c7": 8})
        found = planned(plan(snapshot, make.gang(make.podset(2, 8))))
        assert found.domain == ("h", "b2", "r4")
        assert {g.tier: g.nodes for g in fragmentation(snapshot)}["block"] == 8
        racks = PlacementPolicy(keep_whole="room")
        assert planned(plan(snapshot, make.gang(make.podset(2, 8)), racks)).domain[1] == "b1"

    def test_a_whole_node_is_not_broken_where_pieces_do(self, make: SimpleNamespace) -> None:
        snapshot = make.cluster(RACKS, {"n2": 6})
        assert planned(plan(snapshot, make.gang(make.podset(1, 2)))).nodes == {"n2": 1}
        assert planned(plan(snapshot, make.gang(make.podset(2, 2)))).score.broken == 1

    def test_content_with_the_preferred_level_uses_pieces_of_the_fullest_rack(self, make: SimpleNamespace) -> None:
        snapshot = make.cluster(RACKS, {"n3": 4, "n4": 4})
        found = planned(plan(snapshot, make.gang(make.podset(2, 4, topology="preferred rack"))))
        assert found.nodes == {"n3": 1, "n4": 1}

    def test_master_and_workers_stand_together(self, make: SimpleNamespace) -> None:
        gang = make.gang(make.podset(1, 1, name="master"), make.podset(3, 4, name="workers"))
        found = planned(plan(make.cluster(RACKS), gang))
        assert found.tier == "rack"
        assert sum(found.nodes.values()) == 4
        assert len(found.nodes) == 2
        assert {p.podset: p.pods for p in found.placements} == {"master": 1, "workers": 3}

    def test_equal_podsets_are_one_demand_and_keep_their_names(self, make: SimpleNamespace) -> None:
        gang = make.gang(make.podset(1, 8, name="master"), make.podset(3, 8, name="workers"))
        found = planned(plan(make.cluster(RACKS), gang))
        assert found.tier == "block"
        assert [(p.podset, p.pods) for p in found.placements] == [("master", 1), ("workers", 3)]

    def test_mixed_podsets_where_greedy_alone_fails(self, make: SimpleNamespace) -> None:
        # The two 3-GPU pods have to share n1 with nothing else of size 2; largest first on n2 would strand a pod.
        nodes = [make.node("n1", gpus=6), make.node("n2", gpus=4)]
        gang = make.gang(make.podset(2, 3, name="a"), make.podset(2, 2, name="b"))
        assert planned(plan(Snapshot.build(nodes), gang)).nodes == {"n1": 2, "n2": 2}

    def test_required_racks_of_two_podsets_may_differ_unless_grouped(self, make: SimpleNamespace) -> None:
        pair = [make.podset(2, 8, name=n, topology="required rack") for n in ("a", "b")]
        found = planned(plan(make.cluster(RACKS), make.gang(*pair)))
        assert found.tier == "block"
        assert {p.tier for p in found.placements} == {"rack"}
        grouped = [make.podset(1, 8, name=n, topology="required rack", group="g") for n in ("a", "b")]
        snapshot = make.cluster(RACKS, {"n1": 8, "n3": 8})
        assert planned(plan(snapshot, make.gang(*grouped))).nodes == {"n5": 1, "n6": 1}
        refused(plan(make.cluster(RACKS, {"n1": 8, "n3": 8, "n5": 8}), make.gang(*grouped)), "not_now")

    def test_required_hostname(self, make: SimpleNamespace) -> None:
        gang = make.gang(make.podset(2, 4, topology="required kubernetes.io/hostname"))
        assert planned(plan(make.cluster(RACKS), gang)).tier == "node"
        snapshot = make.cluster(RACKS, dict.fromkeys(RACKS, 4))
        assert "in one node" in refused(plan(snapshot, gang), "not_now").sentence

    def test_level_by_its_label_key(self, make: SimpleNamespace) -> None:
        gang = make.gang(make.podset(3, 8, topology="required myriad.dev/rack"))
        assert "one rack" in refused(plan(make.cluster(RACKS), gang), "never").sentence

    def test_doubtful_nodes_last_but_never_at_the_cost_of_the_tier(self, make: SimpleNamespace) -> None:
        snapshot = make.cluster(RACKS)
        penalty = np.zeros(6)
        penalty[snapshot.index["n1"]] = 2.0
        assert "n1" not in planned(plan(snapshot, make.gang(make.podset(2, 8)), node_penalty=penalty)).nodes
        only = make.cluster({"n1": "h/b/r1", "n2": "h/b/r1", "n3": "h/b/r2"})
        penalty = np.array([2.0, 0.0, 0.0])
        found = planned(plan(only, make.gang(make.podset(2, 8)), node_penalty=penalty))
        assert found.tier == "rack"
        assert found.score.doubtful == 1

    def test_warm_nodes_win_between_equals(self, make: SimpleNamespace) -> None:
        snapshot = make.cluster(RACKS)
        penalty = np.full(6, 0.2)
        penalty[[snapshot.index["n5"], snapshot.index["n6"]]] = 0.0
        assert planned(plan(snapshot, make.gang(make.podset(1, 8)), node_penalty=penalty)).nodes == {"n5": 1}
        assert planned(plan(snapshot, make.gang(make.podset(2, 8)), node_penalty=penalty)).nodes == {"n5": 1, "n6": 1}

    def test_a9_empty_podsets_are_ignored(self, make: SimpleNamespace) -> None:
        gang = make.gang(make.podset(0, 16, name="old"), make.podset(1, 8, name="new"))
        found = planned(plan(make.cluster(RACKS), gang))
        assert [p.podset for p in found.placements] == ["new"]
        assert planned(plan(make.cluster(RACKS), make.gang(make.podset(0, 8)))).nodes == {}

    def test_tier_weights(self, make: SimpleNamespace) -> None:
        policy = PlacementPolicy(tier_weights={"rack": 2.5})
        assert planned(plan(make.cluster(RACKS), make.gang(make.podset(2, 8)), policy)).cost == 2.5
        assert planned(plan(make.cluster(RACKS), make.gang(make.podset(4, 8)), policy)).cost == 2.0

    def test_the_selector_pins_a_podset_to_its_domain(self, make: SimpleNamespace) -> None:
        levels = ("room", "block", "rack")
        found = planned(plan(make.cluster(RACKS), make.gang(make.podset(2, 8))))
        assert found.selector("main", levels) == {"myriad.dev/rack": "h.b2.r3"}
        assert planned(plan(make.cluster(RACKS), make.gang(make.podset(1, 8)))).selector("main", levels) == {
            "kubernetes.io/hostname": "n5"
        }
        assert planned(plan(make.cluster(RACKS), make.gang(make.podset(6, 8)))).selector("main", levels) == {
            "myriad.dev/room": "h"
        }


class TestConstraints:
    @pytest.mark.parametrize(
        ("expression", "nodes"),
        [
            (Expression("disk", "In", ("ssd", "nvme")), {"n1", "n2"}),
            (Expression("disk", "NotIn", ("ssd",)), {"n2", "n3", "n4"}),
            (Expression("disk", "Exists"), {"n1", "n2", "n3"}),
            (Expression("disk", "DoesNotExist"), {"n4"}),
            (Expression("age", "Gt", ("2",)), {"n3"}),
            (Expression("age", "Lt", ("3",)), {"n1", "n2"}),
            (Expression("age", "Gt", ("many",)), set()),
        ],
    )
    def test_affinity_operators(self, make: SimpleNamespace, expression: Expression, nodes: set[str]) -> None:
        labels = [{"disk": "ssd", "age": "1"}, {"disk": "nvme", "age": "2"}, {"disk": "hdd", "age": "3"}, {}]
        snapshot = Snapshot.build([make.node(f"n{k + 1}", labels=x) for k, x in enumerate(labels)])
        mask = snapshot.eligible(make.podset(1, 1, affinity=(NodeTerm((expression,)),)))
        assert {n.name for n, ok in zip(snapshot.nodes, mask, strict=True) if ok} == nodes

    def test_terms_are_ored_expressions_anded_and_an_empty_term_matches_nothing(self, make: SimpleNamespace) -> None:
        snapshot = make.cluster(RACKS)
        by_name = NodeTerm(fields=(Expression("metadata.name", "In", ("n3",)),))
        rack = NodeTerm((Expression("myriad.dev/rack", "In", ("h.b2.r3",)), Expression("gone", "DoesNotExist")))
        both = snapshot.eligible(make.podset(1, 1, affinity=(by_name, rack)))
        assert {n.name for n, ok in zip(snapshot.nodes, both, strict=True) if ok} == {"n3", "n5", "n6"}
        assert not snapshot.eligible(make.podset(1, 1, affinity=(NodeTerm(),))).any()

    def test_taints_and_tolerations(self, make: SimpleNamespace) -> None:
        taints = (Taint("myriad.dev/reserved", "c"), Taint("soft", effect="PreferNoSchedule"))
        snapshot = Snapshot.build([make.node("n1", taints=taints), make.node("n2", taints=taints[1:])])

        def open_to(*tolerations: Toleration) -> int:
            return int(snapshot.eligible(make.podset(1, 1, tolerations=tolerations)).sum())

        assert open_to() == 1
        assert open_to(Toleration("myriad.dev/reserved", "Equal", "c")) == 2
        assert open_to(Toleration("myriad.dev/reserved", "Equal", "d")) == 1
        assert open_to(Toleration("myriad.dev/reserved", "Exists", effect="NoExecute")) == 1
        assert open_to(Toleration(operator="Exists")) == 2

    def test_b20_a_node_with_two_models_is_not_placed_by_product(self, make: SimpleNamespace) -> None:
        snapshot = Snapshot.build([make.node("n1", mixed_gpus=True), make.node("n2")], [make.use("p", "n2", 8)])
        refused(plan(snapshot, make.gang(make.podset(1, 8))), "not_now")
        by_product = make.podset(1, 8, node_selector={"nvidia.com/gpu.product": "H100"})
        refused(plan(snapshot, make.gang(by_product, pool="")), "never")
        assert planned(plan(snapshot, make.gang(make.podset(1, 8), pool=""))).nodes == {"n1": 1}

    def test_two_gpu_resources_by_pool(self, make: SimpleNamespace) -> None:
        amd = {"cpu_milli": 64_000, "memory_bytes": 1 << 40, "pods": 110, "amd.com/gpu": 8}
        snapshot = Snapshot.build([make.node("n1"), make.node("m1", pool="mi300", allocatable=amd)])
        podset = make.podset(1, 0, requests={"amd.com/gpu": 8}, gpu_resource="amd.com/gpu")
        assert planned(plan(snapshot, make.gang(podset, pool="mi300"))).nodes == {"m1": 1}
        refused(plan(snapshot, make.gang(podset, pool="h100")), "never")


class TestViews:
    def test_fragmentation_per_tier(self, make: SimpleNamespace) -> None:
        snapshot = make.cluster(RACKS, {"n1": 1, "n5": 2})
        found = {g.tier: (g.nodes, g.gpus, g.domain) for g in fragmentation(snapshot, pool="h100")}
        assert found["node"] == (1, 8, ("h", "b1", "r1", "n2"))
        assert found["rack"] == (2, 16, ("h", "b1", "r2"))
        assert found["block"] == (3, 24, ("h", "b1"))
        assert found["cluster"] == (4, 32, ())
        assert all(g.nodes == 0 for g in fragmentation(make.cluster(RACKS, dict.fromkeys(RACKS, 1))))

    def test_first_end_that_fits(self, make: SimpleNamespace) -> None:
        snapshot = make.cluster(RACKS, dict.fromkeys(RACKS, 8))
        ends = [(f"job-{n}", [f"pod-{n}"]) for n in ("n1", "n3", "n5", "n2", "n4")]
        found = first_end_that_fits(snapshot, make.gang(make.podset(2, 8, topology="required rack")), ends)
        assert found is not None
        assert ends[found[0]][0] == "job-n2"
        assert found[1].nodes == {"n1": 1, "n2": 1}
        assert first_end_that_fits(snapshot, make.gang(make.podset(6, 8)), ends) is None
        assert snapshot.remove_pod("pod-n1")  # the snapshot itself was not changed

    def test_b7_the_replacement_keeps_the_rack_and_does_not_double_a_node(self, make: SimpleNamespace) -> None:
        shape = {**{f"a{k}": "h/b/r1" for k in range(4)}, "c0": "h/b/r2"}
        snapshot = make.cluster(shape)
        gang = make.gang(make.podset(3, 4))
        keeps = {"a0": 1, "a1": 1, "a2": 1}
        assert replacement_for(snapshot, gang, "main", dead="a0", keeps=keeps) == ("a3", "rack")
        snapshot.apply_pod(make.use("other", "a3", 8))
        # The rack comes before a node of its own: a1 has room for a second pod, c0 would cost the tier.
        assert replacement_for(snapshot, gang, "main", dead="a0", keeps=keeps) == ("a1", "rack")
        assert replacement_for(snapshot, gang, "main", dead="b9", keeps=keeps) is None

    def test_an_elastic_gang_starts_with_what_fits(self, make: SimpleNamespace) -> None:
        snapshot = make.cluster(RACKS, {"n1": 8, "n2": 8})
        gang = make.gang(make.podset(6, 8, min_count=2), make.podset(1, 0, name="head"))
        found = plan_elastic(snapshot, gang)
        assert found is not None
        assert {p.podset: p.pods for p in found.placements} == {"main": 4, "head": 1}
        assert plan_elastic(snapshot, make.gang(make.podset(6, 8, min_count=5))) is None
        assert plan_elastic(snapshot, make.gang(make.podset(2, 8))) is None

    def test_tier_of_an_assignment(self, make: SimpleNamespace) -> None:
        snapshot = make.cluster(RACKS)
        assert tier_of_assignment(snapshot, ["n1"]) == ("node", ("h", "b1", "r1", "n1"))
        assert tier_of_assignment(snapshot, ["n1", "n2"]) == ("rack", ("h", "b1", "r1"))
        assert tier_of_assignment(snapshot, ["n1", "n5"]) == ("room", ("h",))
        assert tier_of_assignment(snapshot, ["n1", "elsewhere"]) == ("cluster", ())
