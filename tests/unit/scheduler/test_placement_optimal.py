"""The planner against brute force on small random clusters: same tier, never too much on a node, whole or nothing."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from myriad.scheduler.model import Gang, NodeInfo, PlacementPolicy, Plan, Refusal
from myriad.scheduler.placement import plan, tiers
from myriad.scheduler.snapshot import Snapshot

LEVELS = ("room", "block", "rack")
TIERS = tiers(LEVELS)
DEPTH = {"room": 1, "block": 2, "rack": 3}


def domain(node: NodeInfo, tier: str) -> tuple[str, ...] | None:
    """The node's domain of a tier, spelled out again apart from the planner; None = it has none."""
    if tier == "cluster":
        return ()
    if tier == "node":
        return (*node.location, node.name)
    path = node.location[: DEPTH[tier]]
    return path if len(path) == DEPTH[tier] and all(path) else None


def brute_force_tier(snapshot: Snapshot, gang: Gang) -> int | None:
    """Rank of the narrowest tier of any placement, pod by pod over all nodes, or None where there is none."""
    nodes = snapshot.nodes
    free = {n.name: {r: int(snapshot.free[k, i]) for r, k in snapshot.row.items()} for i, n in enumerate(nodes)}
    pods = [p for p in gang.podsets for _ in range(p.count)]

    def search(k: int, allowed: list[NodeInfo], first: int, home: dict[str, tuple[str, ...] | None]) -> bool:
        if k == len(pods):
            return True
        p = pods[k]
        begin = first if k and pods[k - 1] is p else 0
        for j in range(begin, len(allowed)):
            node = allowed[j]
            room = free[node.name]
            if any(room.get(r, 0) < a for r, a in p.requests.items()) or room["pods"] < 1:
                continue
            new_home = home
            if p.topology.mode == "required":
                at = domain(node, p.topology.level)
                if at is None or home.get(p.name, at) != at:
                    continue
                new_home = {**home, p.name: at}
            for r, a in p.requests.items():
                room[r] -= a
            room["pods"] -= 1
            found = search(k + 1, allowed, j, new_home)
            for r, a in p.requests.items():
                room[r] += a
            room["pods"] += 1
            if found:
                return True
        return False

    usable = [n for n in nodes if n.ready and not n.cordoned]
    for rank, tier in enumerate(TIERS):
        for d in sorted({domain(n, tier) for n in usable} - {None}, key=str):
            if search(0, [n for n in usable if domain(n, tier) == d], 0, {}):
                return rank
    return None


# Unlabelled nodes are part of the cases, so that the missing domain is tried too.
POLICY = PlacementPolicy(whole_location_only=False)


def dice(seed: int) -> random.Random:
    """Dice of a seed: the cases are random but the same on every run."""
    return random.Random(seed)  # noqa: S311


def random_case(rng: random.Random, make: SimpleNamespace) -> tuple[Snapshot, Gang]:
    nodes = []
    for k in range(rng.randint(2, 9)):
        location = f"h{rng.randint(1, 2)}/b{rng.randint(1, 2)}/r{rng.randint(1, 2)}"
        if rng.random() < 0.05:
            location = location.rsplit("/", rng.randint(1, 2))[0]
        nodes.append(make.node(f"n{k}", location, gpus=rng.choice([2, 4, 8, 8, 8]), cordoned=rng.random() < 0.08))
    uses = [
        make.use(f"p{k}", n.name, rng.randint(0, n.allocatable[make.GPU]), cpu_milli=rng.choice([0, 32_000, 60_000]))
        for k, n in enumerate(nodes)
        if rng.random() < 0.6
    ]
    podsets = []
    for k in range(rng.choice([1, 1, 2, 3])):
        topology = rng.choice(["", "", "required rack", "required block", "preferred rack", "preferred block"])
        gpus = rng.choice([0, 1, 1, 2, 3, 4, 5, 8])
        cpu = rng.choice([1000, 8000, 30_000])
        requests = {"cpu_milli": cpu, **({make.GPU: gpus} if gpus else {})}
        podsets.append(
            make.podset(rng.randint(1, 4 if k else 5), gpus, name=f"s{k}", topology=topology, requests=requests)
        )
    return Snapshot.build(nodes, uses), make.gang(*podsets)


def assert_sound(snapshot: Snapshot, gang: Gang, outcome: Plan | Refusal) -> None:
    """Whole gang, nothing over-allocated, no node that may not be used, required domains kept."""
    if not isinstance(outcome, Plan):
        return
    placed = {p.podset: p for p in outcome.placements}
    use: dict[str, dict[str, int]] = {}
    for p in gang.podsets:
        if not p.count:
            continue
        assert placed[p.name].pods == p.count
        for node, pods in placed[p.name].nodes:
            assert pods > 0
            info = snapshot.nodes[snapshot.index[node]]
            assert info.ready
            assert not info.cordoned
            for r, a in {**p.requests, "pods": 1}.items():
                use.setdefault(node, {})[r] = use.get(node, {}).get(r, 0) + a * pods
        if p.topology.mode == "required":
            homes = {domain(snapshot.nodes[snapshot.index[n]], p.topology.level) for n, _ in placed[p.name].nodes}
            assert len(homes) == 1
            assert None not in homes
    for node, amounts in use.items():
        for r, a in amounts.items():
            assert a <= int(snapshot.free[snapshot.row[r], snapshot.index[node]])


@pytest.mark.parametrize("seed", range(200))
def test_tier_equals_brute_force(seed: int, make: SimpleNamespace) -> None:
    snapshot, gang = random_case(dice(seed), make)
    outcome = plan(snapshot, gang, POLICY)
    assert_sound(snapshot, gang, outcome)
    best = brute_force_tier(snapshot, gang)
    if best is None:
        assert isinstance(outcome, Refusal), f"planned {outcome} where no placement exists"
        return
    assert isinstance(outcome, Plan), f"refused ({outcome.sentence}) where tier {TIERS[best]} fits"
    # Who prefers a level is content with it: below the narrowest start of the podsets, nearer is not sought.
    content = min(TIERS.index(p.topology.level) if p.topology.mode == "preferred" else 0 for p in gang.podsets)
    assert max(TIERS.index(outcome.tier), content) == max(best, content)


def test_the_random_cases_are_worth_something(make: SimpleNamespace) -> None:
    """Both answers, every tier and several podsets occur among the 200 cases."""
    seen: dict[str, int] = {}
    for seed in range(200):
        snapshot, gang = random_case(dice(seed), make)
        outcome = plan(snapshot, gang, POLICY)
        key = outcome.tier if isinstance(outcome, Plan) else outcome.kind
        seen[key] = seen.get(key, 0) + 1
        if len(gang.podsets) > 1 and isinstance(outcome, Plan):
            seen["several podsets"] = seen.get("several podsets", 0) + 1
    assert all(seen.get(k, 0) >= 5 for k in (*TIERS, "never", "not_now", "several podsets")), seen


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_never_over_allocates_and_is_whole_or_nothing(seed: int, make: SimpleNamespace) -> None:
    snapshot, gang = random_case(dice(seed), make)
    assert_sound(snapshot, gang, plan(snapshot, gang, POLICY))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_same_inputs_same_plan_whatever_the_order_they_came_in(seed: int, make: SimpleNamespace) -> None:
    snapshot, gang = random_case(dice(seed), make)
    shuffled = list(snapshot.nodes)
    pods = snapshot.pods()
    dice(seed + 1).shuffle(shuffled)
    dice(seed + 2).shuffle(pods)
    again = Snapshot.build(shuffled, pods)
    assert again.digest() == snapshot.digest()
    assert plan(again, gang, POLICY) == plan(snapshot, gang, POLICY)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_more_room_never_turns_yes_into_no_nor_makes_the_tier_worse(seed: int, make: SimpleNamespace) -> None:
    snapshot, gang = random_case(dice(seed), make)
    before = plan(snapshot, gang, POLICY)
    freed = snapshot.clone()
    for pod in snapshot.pods()[::2]:
        freed.remove_pod(pod.uid)
    after = plan(freed, gang, POLICY)
    if isinstance(before, Plan):
        assert isinstance(after, Plan)
        content = min(TIERS.index(p.topology.level) if p.topology.mode == "preferred" else 0 for p in gang.podsets)
        assert max(TIERS.index(after.tier), content) <= max(TIERS.index(before.tier), content)
    if isinstance(before, Refusal) and before.kind == "never":
        assert isinstance(after, Refusal)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_a_plan_fits_when_it_is_carried_out(seed: int, make: SimpleNamespace) -> None:
    snapshot, gang = random_case(dice(seed), make)
    outcome = plan(snapshot, gang, POLICY)
    if isinstance(outcome, Refusal):
        assert outcome.sentence
        return
    for placement in outcome.placements:
        spec = next(p for p in gang.podsets if p.name == placement.podset)
        for node, pods in placement.nodes:
            for k in range(pods):
                use = make.use(f"{placement.podset}-{node}-{k}", node)
                snapshot.apply_pod(type(use)(use.uid, node, spec.requests))
    used_nodes = [snapshot.index[n] for n in outcome.nodes]
    assert (snapshot.free[:, used_nodes] >= 0).all()
