"""Waves, limits, registries and the verdict between waves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myriad.errors import InputError
from myriad.prewarm import waves
from myriad.prewarm.limits import Limits
from myriad.prewarm.registries import Registry, nearest
from myriad.prewarm.rollout import judge_rollout, outcomes_of, plan_rollout
from myriad.prewarm.simulate import grid
from myriad.prewarm.verdict import NodeOutcome, exit_code, may_go_on
from myriad.prewarm.waves import Node


def nodes(count: int) -> list[Node]:
    return [Node(f"gpu{k:04d}", f"r{k // 8}", f"reg{k // 64}") for k in range(count)]


class TestWaves:
    @pytest.mark.parametrize(
        ("total", "ends"),
        [
            (0, ()),
            (1, (1,)),
            (2, (1, 2)),
            (3, (1, 3)),
            (10, (1, 10)),
            (11, (1, 2, 11)),
            (100, (1, 10, 100)),
            (125, (1, 2, 13, 125)),
            (1250, (1, 13, 125, 1250)),
            (5000, (1, 50, 500, 5000)),
        ],
    )
    def test_one_then_one_percent_then_ten_then_the_rest(self, total: int, ends: tuple[int, ...]) -> None:
        assert waves.ends(total) == ends

    @settings(max_examples=50, deadline=None)
    @given(st.integers(0, 400), st.integers(0, 400), st.text(max_size=3))
    def test_every_node_goes_once_and_no_wave_is_empty(self, waiting: int, warm: int, seed: str) -> None:
        found = waves.plan(nodes(waiting), warm=warm, seed=seed)
        assert sorted(node.name for wave in found for node in wave) == [node.name for node in nodes(waiting)]
        assert all(found)

    def test_a_rollout_that_was_broken_off_goes_on_where_it_was(self) -> None:
        whole = waves.plan(nodes(1000))
        assert [len(wave) for wave in whole] == [1, 9, 90, 900]
        rest = waves.plan([node for wave in whole[2:] for node in wave][10:], warm=20)
        assert [len(wave) for wave in rest] == [80, 900], "one node and 1 % are done; of the 10 %, 80 are left"

    def test_the_seed_decides_and_nothing_else(self) -> None:
        assert waves.plan(nodes(50)) == waves.plan(list(reversed(nodes(50))))
        assert waves.plan(nodes(50), seed="b") != waves.plan(nodes(50))

    def test_neighbours_in_the_order_stand_in_different_racks_and_registries(self) -> None:
        order = waves.spread(grid(1250, racks=160, blocks=10))
        assert len({node.registry for node in order[:10]}) == 10
        assert len({node.rack for node in order[:160]}) == 160

    @settings(max_examples=50, deadline=None)
    @given(st.text(max_size=5), st.floats(0, 60), st.text(max_size=5))
    def test_jitter_stays_in_bounds_and_is_the_same_every_time(self, node: str, most: float, seed: str) -> None:
        found = waves.jitter(node, most, seed=seed)
        assert 0 <= found <= most
        assert found == waves.jitter(node, most, seed=seed)


class TestLimits:
    def test_slots_follow_from_both_caps(self) -> None:
        assert (Limits().registry_slots, Limits().rack_slots) == (8, 4)
        assert Limits(registry_nodes=3, rack_nodes=2).registry_slots == 3
        assert Limits(rack_gbit=0.3, node_gbit=0.1).rack_slots == 3, "0.3 / 0.1 is three, whatever floats say"

    @settings(max_examples=50, deadline=None)
    @given(st.floats(0.1, 400), st.floats(0.1, 400), st.floats(0.1, 100), st.integers(1, 500), st.integers(1, 500))
    def test_slots_never_exceed_a_cap(self, registry: float, rack: float, node: float, many: int, few: int) -> None:
        if min(registry, rack) < node:
            return
        limits = Limits(registry_gbit=registry, rack_gbit=rack, node_gbit=node, registry_nodes=many, rack_nodes=few)
        assert 1 <= limits.registry_slots <= many and limits.registry_slots * node <= registry * (1 + 1e-6)
        assert 1 <= limits.rack_slots <= few and limits.rack_slots * node <= rack * (1 + 1e-6)

    @pytest.mark.parametrize(
        ("given_", "words"),
        [
            ({"rack_gbit": 1}, "below the 2.5 Gbit/s that a single node draws"),
            ({"rack_gbits": 10}, '"rack_gbits" is no limit'),
            ({"node_gbit": 0}, "is above 0"),
            ({"node_gbit": -1}, "is above 0"),
            ({"rack_nodes": 2.5}, "is a whole number"),
            ({"rack_nodes": "4"}, "it is a number"),
            ({"rack_nodes": True}, "it is a number"),
            ({"failure_share": 5}, "a share from 0 to 1"),
            ({"failure_share": float("nan")}, "is nan; it is a number with an end"),
            ({"rack_gbit": float("inf")}, "is inf; it is a number with an end"),
            ({"rack_nodes": float("inf")}, "is inf; it is a number with an end"),
            (["rack_gbit"], "they are names with numbers"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, given_: Any, words: str) -> None:
        with pytest.raises(InputError) as refused:
            Limits.read(given_)
        assert words in str(refused.value)

    def test_nothing_given_is_the_default(self) -> None:
        assert Limits.read(None) == Limits.read({}) == Limits()


class TestRegistries:
    registries = (
        Registry("http://a", ("h1", "b1")),
        Registry("http://b", ("h1", "b2")),
        Registry("http://c", ("h2", "b1")),
        Registry("http://d"),
    )

    def test_the_own_block_comes_first_then_the_own_room(self) -> None:
        found = [one.url for one in nearest("gpu1", ("h1", "b2", "r7"), self.registries)]
        assert found[:2] == ["http://b", "http://a"]
        assert set(found[2:]) == {"http://c", "http://d"}

    def test_a_rack_spreads_over_equally_near_ones_always_in_the_same_way(self) -> None:
        twins = (Registry("http://a", ("h1", "b1")), Registry("http://b", ("h1", "b1")))
        first = [nearest(f"gpu{k}", ("h1", "b1", "r1"), twins)[0].url for k in range(200)]
        assert 60 < first.count("http://a") < 140
        assert first == [nearest(f"gpu{k}", ("h1", "b1", "r1"), twins)[0].url for k in range(200)]

    def test_a_block_of_the_same_name_in_another_room_is_not_near(self) -> None:
        assert nearest("gpu1", ("h2", "b1", "r1"), self.registries[:3])[0].url == "http://c"


def bad(count: int, of: int) -> list[NodeOutcome]:
    return [NodeOutcome(f"n{k}", "failed" if k < count else "pulled", 1, "why") for k in range(of)]


class TestVerdict:
    def test_the_first_node_has_to_succeed(self) -> None:
        assert may_go_on(bad(0, 1), Limits(), first=True) == ""
        assert "the first wave has to succeed" in may_go_on(bad(1, 1), Limits(), first=True)

    def test_one_bad_node_of_thirteen_stops_nothing_and_one_in_ten_does(self) -> None:
        assert may_go_on(bad(1, 13), Limits(), first=False) == ""
        assert may_go_on(bad(6, 125), Limits(), first=False) == ""
        stop = may_go_on(bad(13, 125), Limits(), first=False)
        assert stop.startswith("13 of 125 nodes did not get their images (10%; 5% may)")
        assert "n0  failed: why" in stop and "n12  failed: why" in stop, "all of them are named"

    def test_exit_codes(self) -> None:
        assert exit_code(bad(0, 3)) == 0
        assert exit_code(bad(1, 3)) == 2
        away = [NodeOutcome("a", "unreachable"), NodeOutcome("b", "warm")]
        assert exit_code(away) == 3
        assert exit_code([*away, NodeOutcome("c", "refused")]) == 2
        assert exit_code([NodeOutcome("a", "waiting")]) == 2


def look(outcome: str, rack: str = "r", **more: object) -> dict[str, object]:
    return {"outcome": outcome, "rack": rack, "registry": "http://a", "images": [], **more}


class TestRollout:
    def looks(self, cold: int, warm: int = 0) -> dict[str, dict[str, object]]:
        return {
            **{f"c{k:03d}": look("cold", f"r{k // 8}") for k in range(cold)},
            **{f"w{k:03d}": look("warm") for k in range(warm)},
        }

    def test_warm_nodes_leave_and_nodes_without_room_are_told_with_their_numbers(self) -> None:
        found = plan_rollout(
            {
                **self.looks(3, warm=1),
                "full": look("refused", images=[{"sentence": "needs 44.0 GB, 38.2 GB are free"}]),
                "odd": look("failed", msg="containerd does not answer"),
                "loose": look("pinned"),
            },
            Limits(),
        )
        assert found["sizes"] == [4] and set(found["order"]) == {"c000", "c001", "c002", "loose"}
        assert found["refused"] == {"full": "needs 44.0 GB, 38.2 GB are free"}
        assert found["failed"] == {"odd": "containerd does not answer"}
        assert "4 nodes lack images, 1 has them, 1 have no room" in found["text"]
        assert "full  refused: needs 44.0 GB" in found["text"]

    def test_warm_nodes_with_images_that_nobody_wants_are_in_no_wave_and_let_go_of_them(self) -> None:
        looks = {**self.looks(2, warm=2), "w000": look("warm", surplus=["registry/old"])}
        looks["c000"] = look("cold", surplus=["registry/old"])
        found = plan_rollout(looks, Limits())
        assert found["surplus"] == ["w000"], "a node of a wave does it there"
        assert set(found["order"]) == {"c000", "c001"}
        assert "1 of the warm let go of images that nobody wants there any more" in found["text"]
        assert plan_rollout(looks, Limits(), look_only=True)["surplus"] == [], "a look changes nothing"

    def test_the_verdict_counts_waves_before_this_one_only(self) -> None:
        found = plan_rollout(self.looks(100), Limits())
        assert found["sizes"] == [1, 9, 90]
        order = found["order"]
        fine = {host: {"outcome": "pulled"} for host in order[:10]}
        assert judge_rollout(found, {}, order[:1], Limits()) == "", "nothing was tried yet"
        assert judge_rollout(found, fine, order[10:], Limits()) == ""
        spoilt = {**fine, order[0]: {"failed": True, "msg": "no container starts from it"}}
        assert "no container starts from it" in judge_rollout(found, spoilt, order[1:10], Limits())
        lost = {**fine, order[3]: {"unreachable": True, "msg": "gone"}, order[4]: {"unreachable": True}}
        stop = judge_rollout(found, lost, order[10:], Limits())
        assert stop.startswith("2 of 10") and f"{order[3]}  unreachable: gone" in stop

    def test_a_host_that_ansible_lost_without_a_word_counts_as_lost(self) -> None:
        found = plan_rollout(self.looks(100), Limits())
        stop = judge_rollout(found, {}, found["order"][1:10], Limits())
        assert "it was lost before its pull began" in stop

    def test_a_resumed_rollout_has_no_single_first_node(self) -> None:
        found = plan_rollout(self.looks(80, warm=20), Limits())
        assert found["first"] is False and found["sizes"] == [80]

    def test_what_happened_is_known_after_a_run_that_was_killed(self) -> None:
        found = plan_rollout({**self.looks(12, warm=1), "full": look("refused")}, Limits())
        order = found["order"]
        journal = [
            {"host": order[0], "outcome": "pulled", "began": 10.0, "ended": 52.5, "tried": ["http://a: refused"],
             "images": [{"fetched_bytes": 7, "registry": "http://b"}]},
        ]  # fmt: skip
        outcomes = {
            one.node: one for one in outcomes_of([*order, "w000", "full", "dead"], found, journal, {"dead": "no route"})
        }
        first = outcomes[order[0]]
        assert (first.outcome, first.seconds, first.registry, first.fetched_bytes) == ("pulled", 42.5, "http://b", 7)
        assert outcomes[order[5]].outcome == "waiting"
        assert outcomes["w000"].outcome == "warm"
        assert outcomes["full"].outcome == "refused"
        assert (outcomes["dead"].outcome, outcomes["dead"].sentence) == ("unreachable", "no route")
