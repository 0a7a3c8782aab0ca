"""The simulated rollout: caps are never exceeded, nobody is forgotten, and the arithmetic of simple cases holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myriad.prewarm.limits import Limits
from myriad.prewarm.simulate import STRATEGIES, Scene, Strategy, bad_nodes, grid, simulate, table
from myriad.prewarm.waves import Node

FATES = ("refused", "stalled", "unreachable", "broken")


@st.composite
def sites(draw: st.DrawFn) -> tuple[tuple[Node, ...], Limits, Scene]:
    """Random sites: uneven racks, racks that pull from several registries, odd caps, bad nodes of every kind."""
    count = draw(st.integers(1, 60))
    racks, registries = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    nodes = tuple(
        Node(f"n{k}", f"r{draw(st.integers(0, racks - 1))}", f"g{draw(st.integers(0, registries - 1))}")
        for k in range(count)
    )
    node_gbit = draw(st.floats(0.5, 10))
    limits = Limits(
        registry_gbit=node_gbit * draw(st.floats(1, 20)),
        rack_gbit=node_gbit * draw(st.floats(1, 6)),
        registry_nodes=draw(st.integers(1, 30)),
        rack_nodes=draw(st.integers(1, 10)),
        node_gbit=node_gbit,
        jitter_s=draw(st.floats(0, 5)),
        failure_share=draw(st.floats(0, 1)),
        failures=draw(st.integers(0, 5)),
    )
    bad = {node.name: draw(st.sampled_from(FATES)) for node in nodes if draw(st.integers(0, 9)) == 0}
    scene = Scene(
        image_gb=draw(st.floats(0.1, 20)),
        # The links carry at least what the limits allow.
        registry_capacity_gbit=limits.registry_gbit * draw(st.floats(1, 3)),
        rack_capacity_gbit=limits.rack_gbit * draw(st.floats(1, 3)),
        tail_s=draw(st.floats(0, 60)),
        bad=bad,
        workers=draw(st.integers(1, 80)),
    )
    return nodes, limits, scene


@settings(max_examples=60, deadline=None)
@given(sites())
def test_waves_never_exceed_a_cap_and_forget_nobody(site: tuple[tuple[Node, ...], Limits, Scene]) -> None:
    nodes, limits, scene = site
    found = simulate(nodes, limits, scene, "waves")
    assert found.peak_rack_gbit <= limits.rack_gbit * (1 + 1e-6)
    assert found.peak_registry_gbit <= limits.registry_gbit * (1 + 1e-6)
    assert (found.over_rack_s, found.over_registry_s) == (0, 0)
    assert found.warm + found.failed + found.untouched == len(nodes)
    assert bool(found.untouched) == bool(found.stopped)
    good = [node for node in nodes if node.name not in scene.bad]
    if not found.stopped:
        assert found.warm == len(good)


@settings(max_examples=30, deadline=None)
@given(sites(), st.sampled_from(STRATEGIES))
def test_no_strategy_moves_more_than_a_link_carries(
    site: tuple[tuple[Node, ...], Limits, Scene], strategy: Strategy
) -> None:
    nodes, limits, scene = site
    found = simulate(nodes, limits, scene, strategy)
    assert found.peak_rack_gbit <= scene.rack_capacity_gbit * (1 + 1e-6)
    assert found.peak_registry_gbit <= scene.registry_capacity_gbit * (1 + 1e-6)
    # No faster than the busiest registry's link lets through all that left it.
    for registry in {node.registry for node in nodes}:
        pulled = [n for n in nodes if n.registry == registry and n.name not in scene.bad]
        if not found.untouched and pulled:
            floor_s = len(pulled) * scene.image_gb * 8 / scene.registry_capacity_gbit
            assert found.total_s >= floor_s * (1 - 1e-6)


def test_one_node_takes_what_its_link_takes_and_the_tail() -> None:
    found = simulate([Node("a", "r", "g")], Limits(jitter_s=0), Scene(image_gb=10, tail_s=20))
    assert found.total_s == pytest.approx(10 * 8 / 2.5 + 20)


def test_ten_nodes_at_once_share_a_registry_fairly() -> None:
    nodes = [Node(f"n{k}", f"r{k}", "g") for k in range(10)]
    scene = Scene(image_gb=1, registry_capacity_gbit=10, rack_capacity_gbit=100, tail_s=0)
    found = simulate(nodes, Limits(registry_gbit=5), scene, "all-at-once")
    assert found.total_s == pytest.approx(10 * 8 / 10)
    assert found.over_registry_s == pytest.approx(found.total_s)
    assert found.peak_registry_gbit == pytest.approx(10)


def test_max_min_gives_the_unhindered_what_the_hindered_cannot_use() -> None:
    # Three of a full rack share 3 Gbit/s; the one elsewhere takes what its own link allows, not a quarter.
    nodes = [*(Node(f"a{k}", "full", "g") for k in range(3)), Node("b", "empty", "g")]
    scene = Scene(image_gb=1, registry_capacity_gbit=6, rack_capacity_gbit=3, tail_s=0)
    found = simulate(nodes, Limits(node_gbit=5, registry_gbit=6, rack_gbit=5), scene, "all-at-once")
    # b: 8 Gbit at 3 Gbit/s (the rest of the registry) = 2.67 s; the others: 1 Gbit/s each = 8 s.
    assert found.total_s == pytest.approx(8.0)
    assert found.p50_s == pytest.approx(8.0)


def test_a_bad_image_costs_one_node_and_not_all_of_them() -> None:
    nodes = grid(200, racks=25, blocks=2)
    scene = Scene(bad={node.name: "broken" for node in nodes})
    found = simulate(nodes, Limits(), scene, "waves")
    assert (found.failed, found.untouched) == (1, 199)
    assert "the first wave has to succeed" in found.stopped
    assert simulate(nodes, Limits(), scene, "all-at-once").failed == 200


def test_three_percent_bad_nodes_hold_nobody_up() -> None:
    nodes = grid(1250, racks=160, blocks=10)
    clean = simulate(nodes, Limits(), Scene())
    assert (clean.warm, clean.peak_registry_gbit, clean.over_registry_s) == (1250, 20, 0)
    spoilt = simulate(nodes, Limits(), Scene(bad=bad_nodes(nodes, 0.03)))
    assert spoilt.stopped == "" and spoilt.failed == 38 and spoilt.warm == 1212
    assert spoilt.total_s < clean.total_s + Scene().stall_s
    assert spoilt.peak_registry_gbit <= Limits().registry_gbit


def test_the_order_of_the_three_strategies() -> None:
    nodes = grid(250, racks=32, blocks=2)
    by_waves, at_once, singly = (simulate(nodes, Limits(), Scene(), strategy) for strategy in STRATEGIES)
    assert at_once.total_s < by_waves.total_s < singly.total_s / 8
    assert at_once.over_registry_s > 0 and at_once.peak_registry_gbit > Limits().registry_gbit
    rows = table([by_waves, at_once, singly], Limits())
    assert rows[0].startswith("strategy") and [row.split()[0] for row in rows[1:]] == list(STRATEGIES)


def test_a_larger_site_costs_events_in_proportion() -> None:
    small = simulate(grid(100, racks=16, blocks=2), Limits(), Scene())
    large = simulate(grid(1000, racks=160, blocks=20), Limits(), Scene())
    assert large.events <= 12 * small.events
