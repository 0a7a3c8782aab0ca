"""The brake: how many may close, what is said, who has to be asked, and what it costs the API server."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from myriad.agent.brake import (
    CONFIG_MAPS,
    NAMESPACE,
    SIZES,
    WINDOW,
    Brake,
    Claim,
    Place,
    Sizes,
    State,
    cap,
    decide,
    release,
    sizes,
    trips,
)
from myriad.kube.client import ApiError

from .gate_cases import Clock, FakeApi

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("kind", "nodes", "allowed"),
    [
        ("pool", 1, 1), ("pool", 2, 1), ("pool", 3, 1), ("pool", 4, 2), ("pool", 8, 4), ("pool", 9, 4),
        ("pool", 200, 4), ("pool", 1250, 25), ("pool", 5000, 100), ("block", 3, 1), ("block", 64, 7),
        ("rack", 2, 1), ("rack", 4, 2), ("rack", 18, 9), ("pool", 0, 1),
    ],
)  # fmt: skip
def test_l2_caps_have_a_sensible_bound_for_small_clusters(kind: Any, nodes: int, allowed: int) -> None:
    """NVSentinel #1852: a breaker at half of the nodes trips in every small cluster, or lets all of it close."""
    assert cap(kind, nodes) == allowed


def place(number: int) -> Place:
    """Racks of 4 nodes, blocks of 16 racks."""
    rack = number // 4
    return Place.of("h100", ("hall1", f"b{rack // 16}", f"r{rack}"))


def sizes_of(count: int) -> Json:
    """What SIZES says of a pool of `count` nodes."""
    racks = Counter(place(n).rack for n in range(count))
    blocks = Counter(place(n).block for n in range(count))
    return {"h100": {"nodes": count, "blocks": dict(blocks), "racks": dict(racks)}}


def world(count: int) -> tuple[FakeApi, Clock]:
    api, clock = FakeApi(), Clock()
    data = {"sizes": json.dumps(sizes_of(count))}
    api.put(CONFIG_MAPS, {"metadata": {"name": SIZES, "namespace": NAMESPACE}, "data": data})
    api.calls.clear()
    return api, clock


def brake(api: FakeApi, clock: Clock) -> Brake:
    return Brake(api, now=clock.now, sleep=lambda _: None)  # type: ignore[arg-type]


def state_of(api: FakeApi) -> State:
    return State.parse(api.objects["configmaps", "myriad-brake-h100"]["data"]["state"])


def test_1250_nodes_of_which_5_percent_fail_at_once_stop_and_say_so() -> None:
    api, clock = world(1250)
    failing = random.Random(7).sample(range(1250), 63)  # noqa: S311 - no secret
    decisions = {}
    for n in failing:
        clock.s += 0.01
        decisions[n] = brake(api, clock).ask(f"g{n:04}", place(n), "Xid 119")
    granted = [n for n, decision in decisions.items() if decision.granted]
    held = [decision for decision in decisions.values() if not decision.granted]
    assert len(granted) == 25, "a fiftieth of the pool"
    pool_trips = [d for d in held if d.tripped and "of pool h100" in d.held]
    assert len(pool_trips) == 1, "said once, not by every node"
    first = failing[len(granted) + sum("of pool" not in d.held for d in held if d.tripped)]
    assert pool_trips[0].held == (
        f"the brake is on: 25 of 1250 nodes of pool h100 closed within 10 minutes, and g{first:04} would be one "
        "more (Xid 119); suspect what they share (control plane, roll-out, fabric, power) first; let go with: "
        "myriad gate --release h100"
    )
    # Each node reads the sizes and the state; only those that close, and the one that stops, write.
    verbs = Counter(verb for verb, _, _ in api.calls)
    assert verbs["get"] == 2 * 63
    assert verbs["create"] + verbs["replace"] == 25 + sum(d.tripped for d in held)
    assert len(state_of(api).text()) < 4000

    # They ask again and again while they wait: reads, and a note about once a minute from one of them.
    api.calls.clear()
    for _ in range(10):
        clock.s += 37
        for n in set(failing) - set(granted):
            assert not brake(api, clock).ask(f"g{n:04}", place(n), "Xid 119").granted
    verbs = Counter(verb for verb, _, _ in api.calls)
    assert verbs["replace"] <= 12
    says = trips([api.objects["configmaps", "myriad-brake-h100"]], clock.now())
    assert [entry["scope"] for entry in says] == ["pool h100"] and says[0]["pool"] == "h100"


def test_1250_agents_that_ask_in_the_same_moment_still_close_no_more_than_allowed() -> None:
    """Every read of the state is followed by somebody else's write as long as there are others: compare-and-swap."""
    api, clock = world(1250)
    waiting = [n * 20 for n in range(60)]
    granted: list[int] = []

    def ask_next() -> None:
        n = waiting.pop()
        if brake(api, clock).ask(f"g{n:04}", place(n), "Xid 74").granted:
            granted.append(n)

    busy = False

    def intrude(plural: str, name: str) -> None:
        nonlocal busy
        if name == "myriad-brake-h100" and waiting and not busy:
            busy = True
            ask_next()
            busy = False

    api.after_read = intrude
    while waiting:
        ask_next()
    assert len(granted) == len(set(granted)) == 25
    assert set(state_of(api).claims) == {f"g{n:04}" for n in granted}
    writes = sum(verb in ("create", "replace") for verb, _, _ in api.calls)
    assert writes < 4 * 60


def test_5000_healthy_nodes_cost_nothing_and_the_widest_scope_is_told() -> None:
    api, clock = world(5000)
    assert api.calls == []
    # One whole rack of four: two close, the others wait, and the rest of the pool is free to.
    answers = [brake(api, clock).ask(f"g{n:04}", place(n), "PDU") for n in range(4)]
    assert [a.granted for a in answers] == [True, True, False, False]
    assert answers[2].held.startswith("the brake is on: 2 of 4 nodes of rack hall1/b0/r0 closed within 10 minutes")
    assert brake(api, clock).ask("g0400", place(400), "PDU").granted


def test_l2_a_lab_of_three_closes_one_at_a_time() -> None:
    api, clock = world(3)
    assert brake(api, clock).ask("g0000", place(0), "a").granted
    assert not brake(api, clock).ask("g0001", place(1), "b").granted
    assert brake(api, clock).ask("g0000", place(0), "a").granted, "who was closed is not counted twice"
    brake(api, clock).forget("g0000", place(0))
    held = brake(api, clock).ask("g0001", place(1), "b")
    assert not held.granted, "a brake that is on stays on while somebody waits"
    clock.s += WINDOW.total_seconds() + 61
    assert brake(api, clock).ask("g0001", place(1), "b").granted, "nobody waited any more: it let go by itself"


def test_a_single_node_may_close() -> None:
    api, clock = world(1)
    assert brake(api, clock).ask("g0000", place(0), "a").granted


def test_claims_run_out_after_the_window() -> None:
    api, clock = world(100)
    for n in range(0, 80, 20):
        assert brake(api, clock).ask(f"g{n:04}", place(n), "a").granted
    clock.s += WINDOW.total_seconds() + 1
    assert brake(api, clock).ask("g0099", place(99), "a").granted
    assert set(state_of(api).claims) == {"g0099"}


def test_let_go_by_a_person_it_starts_anew_and_tells_who_waits_first() -> None:
    api, clock = world(3)
    brake(api, clock).ask("g0000", place(0), "a")
    assert not brake(api, clock).ask("g0001", place(1), "b").granted
    before = brake(api, clock).release("h100")
    assert list(before.trips) == ["pool h100"]
    told = brake(api, clock).ask("g0001", place(1), "b", waits_since="")
    assert (told.granted, told.held, told.released) == (False, "", "2026-11-29T21:00:00Z")
    assert state_of(api).claims == {}
    assert brake(api, clock).ask("g0001", place(1), "b", waits_since=told.released).granted


def test_a_brake_that_everybody_writes_to_holds() -> None:
    api, clock = world(100)

    def conflict(*_: Any, **__: Any) -> Any:
        raise ApiError(409, "Conflict", "x", where="test")

    api.create = conflict  # type: ignore[method-assign]
    answer = brake(api, clock).ask("g0000", place(0), "a")
    assert not answer.granted and answer.held.startswith("the brake could not be asked (6 others wrote first)")
    with pytest.raises(ApiError, match="kept changing"):
        brake(api, clock).release("h100")


def test_a_refusal_is_no_conflict() -> None:
    api, clock = world(100)

    def refuse(*_: Any, **__: Any) -> Any:
        raise ApiError(403, "Forbidden", "x", where="test")

    api.create = refuse  # type: ignore[method-assign]
    with pytest.raises(ApiError, match="403"):
        brake(api, clock).ask("g0000", place(0), "a")


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"claims": {"a": 1}}', '{"trips": {"pool x": {}}}'])
def test_a_state_that_cannot_be_read_counts_anew(text: str | None) -> None:
    assert State.parse(text) == State()


def test_the_state_reads_back_as_it_was_written() -> None:
    clock = Clock()
    state = State()
    size = Sizes(3)
    for name in ("a", "b"):
        _, state = decide(state, size, name, Place("p", "b", "r"), "cause", clock.now())
    assert State.parse(state.text()) == state
    assert State.parse(release(state, clock.now()).text()) == State(released=clock.now())


def test_unknown_sizes_count_as_one_node() -> None:
    clock = Clock()
    state = State({"other": Claim(clock.now() - timedelta(minutes=1), "b", "r")})
    decision, _ = decide(state, Sizes(), "a", Place("p", "b", "r"), "cause", clock.now())
    assert not decision.granted
    assert "1 node of pool p closed within" in decision.held


@pytest.mark.parametrize("data", [{}, {"sizes": "{"}, {"sizes": '{"h100": 3}'}, {"sizes": "[]"}])
def test_sizes_that_cannot_be_read_are_unknown(data: Json) -> None:
    api, clock = FakeApi(), Clock()
    api.put(CONFIG_MAPS, {"metadata": {"name": SIZES}, "data": data})
    assert brake(api, clock).sizes("h100") == Sizes()


def test_sizes_follow_from_the_descriptions_labels() -> None:
    def node(pool: str | None, *path: str) -> Json:
        labels = {
            f"myriad.dev/{level}": ".".join(path[: depth + 1])
            for depth, level in enumerate(("room", "block", "rack")[: len(path)])
        }
        labels |= {"myriad.dev/gpu-model": "H100", **({"myriad.dev/pool": pool} if pool else {})}
        return {"metadata": {"name": "n", "labels": labels}}

    nodes = [node("h100", "hall1", "b1", "r1"), node("h100", "hall1", "b1", "r1"), node("h100", "hall1", "b1", "r2")]
    assert sizes([*nodes, node("a10", "hall2", "b1", "r1"), node(None, "hall1", "b1", "r1"), node("flat")]) == {
        "h100": {"nodes": 3, "blocks": {"hall1.b1": 3}, "racks": {"hall1.b1.r1": 2, "hall1.b1.r2": 1}},
        "a10": {"nodes": 1, "blocks": {"hall2.b1": 1}, "racks": {"hall2.b1.r1": 1}},
        "flat": {"nodes": 1, "blocks": {}, "racks": {}},
    }
