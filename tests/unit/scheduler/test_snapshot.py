"""The snapshot: incremental changes give the same state as building anew; clones do not leak; quantities are exact."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from myriad.errors import InputError
from myriad.scheduler.model import (
    Gang,
    NodeInfo,
    PodUse,
    Taint,
    gpus_words,
    level_label,
    parse_quantity,
    place,
    resources_from_kubernetes,
)
from myriad.scheduler.placement import plan
from myriad.scheduler.snapshot import Snapshot

ANY = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def random_change(
    rng: random.Random, make: SimpleNamespace, nodes: dict[str, NodeInfo], pods: dict[str, PodUse], *targets: Any
) -> None:
    """One change, made to the plain dictionaries and to every target."""
    what = rng.choice(["pod", "pod", "gone", "cordon", "taint", "label", "node", "drop", "resource", "move"])
    name = f"n{rng.randint(0, 7)}"
    node = nodes.get(name)
    if what == "pod":
        pod = make.use(f"p{rng.randint(0, 9)}", name, rng.randint(0, 4), cpu_milli=500, terminating=rng.random() < 0.3)
        pods[pod.uid] = pod
        for t in targets:
            t.apply_pod(pod)
        return
    if what == "gone":
        uid = f"p{rng.randint(0, 9)}"
        known = pods.pop(uid, None) is not None
        assert all(t.remove_pod(uid) == known for t in targets)
        return
    if what == "drop":
        known = nodes.pop(name, None) is not None
        assert all(t.remove_node(name) == known for t in targets)
        return
    if node is None or what == "node":
        node = make.node(name, f"h{rng.randint(1, 2)}/b1/r{rng.randint(1, 3)}")
    if what == "cordon":
        node = replace(node, cordoned=not node.cordoned)
    elif what == "taint":
        node = replace(node, taints=() if node.taints else (Taint(f"k{rng.randint(1, 2)}"),))
    elif what == "label":
        node = replace(node, labels={**node.labels, "disk": rng.choice(["ssd", "hdd"])})
    elif what == "resource":
        node = replace(node, allocatable={**node.allocatable, f"example.com/x{rng.randint(1, 2)}": 1})
    elif what == "move":
        node = replace(node, location=("h9", "b9", "r9")[: rng.randint(1, 3)])
    nodes[name] = node
    for t in targets:
        t.update_node(node)


def same(a: Snapshot, b: Snapshot, gangs: list[Gang]) -> None:
    assert [n.name for n in a.nodes] == [n.name for n in b.nodes]
    for resource in {*a.resources, *b.resources}:
        assert (a.amounts(a.free, resource) == b.amounts(b.free, resource)).all()
    for gang in gangs:
        assert plan(a, gang) == plan(b, gang)
    # A resource that no node has any more may stay as an empty row; the nodes themselves are equal.
    if a.resources == b.resources:
        assert a.digest() == b.digest()


@ANY
@given(seed=st.integers(0, 2**32 - 1))
def test_changes_one_by_one_equal_building_anew(seed: int, make: SimpleNamespace) -> None:
    rng = random.Random(seed)  # noqa: S311
    nodes: dict[str, NodeInfo] = {}
    pods: dict[str, PodUse] = {}
    live = Snapshot.build([])
    gangs = [
        make.gang(make.podset(2, 4)),
        make.gang(make.podset(1, 1, node_selector={"disk": "ssd"})),
        make.gang(make.podset(3, 8, topology="required rack")),
    ]
    for _ in range(rng.randint(1, 40)):
        random_change(rng, make, nodes, pods, live)
        if rng.random() < 0.3:
            plan(live, rng.choice(gangs))  # fills the caches that the next change has to keep right
    same(live, Snapshot.build(list(nodes.values()), list(pods.values())), gangs)


@ANY
@given(seed=st.integers(0, 2**32 - 1))
def test_a_clone_and_its_source_never_see_each_other(seed: int, make: SimpleNamespace) -> None:
    rng = random.Random(seed)  # noqa: S311
    nodes: dict[str, NodeInfo] = {}
    pods: dict[str, PodUse] = {}
    live = Snapshot.build([])
    gangs = [make.gang(make.podset(2, 4)), make.gang(make.podset(9, 8))]
    for _ in range(15):
        random_change(rng, make, nodes, pods, live)
    for gang in gangs:
        plan(live, gang)
    clone = live.clone()
    clone_nodes, clone_pods = dict(nodes), dict(pods)
    for _ in range(15):
        random_change(rng, make, nodes, pods, live)
        random_change(rng, make, clone_nodes, clone_pods, clone)
    same(live, Snapshot.build(list(nodes.values()), list(pods.values())), gangs)
    same(clone, Snapshot.build(list(clone_nodes.values()), list(clone_pods.values())), gangs)


def test_the_same_pod_twice_counts_once(make: SimpleNamespace) -> None:
    snapshot = make.cluster({"n1": "h/b/r"})
    for _ in range(3):
        snapshot.apply_pod(make.use("p", "n1", 4))
    assert int(snapshot.amounts(snapshot.free, make.GPU)[0]) == 4
    snapshot.apply_pod(make.use("p", "n1", 2))
    assert int(snapshot.amounts(snapshot.free, make.GPU)[0]) == 6
    assert int(snapshot.amounts(snapshot.free, "pods")[0]) == 109
    assert snapshot.remove_pod("p")
    assert not snapshot.remove_pod("p")


def test_a_pod_that_comes_before_its_node_counts_when_the_node_comes(make: SimpleNamespace) -> None:
    snapshot = Snapshot.build([], [make.use("p", "n1", 8)])
    snapshot.update_node(make.node("n1"))
    assert int(snapshot.amounts(snapshot.free, make.GPU)[0]) == 0
    assert snapshot.pod("p") == make.use("p", "n1", 8)
    assert snapshot.pod("q") is None


def test_version_grows_with_every_change(make: SimpleNamespace) -> None:
    snapshot = make.cluster({"n1": "h/b/r"})
    seen = [snapshot.version]
    for change in (
        lambda: snapshot.apply_pod(make.use("p", "n1", 1)),
        lambda: snapshot.apply_pod(make.use("p", "n1", 1, terminating=True)),
        lambda: snapshot.remove_pod("p"),
        lambda: snapshot.update_node(make.node("n1", "h/b/r", cordoned=True)),
        lambda: snapshot.remove_node("n1"),
    ):
        change()
        seen.append(snapshot.version)
    assert seen == sorted(set(seen))
    version = snapshot.version
    snapshot.remove_pod("unknown")
    assert snapshot.version == version


def test_a_missing_level_makes_no_common_domain(make: SimpleNamespace) -> None:
    snapshot = Snapshot.build([make.node("n1", "hall1"), make.node("n2", "hall1"), make.node("n3", "hall1/b1")])
    rack, room = snapshot.level[2], snapshot.level[0]
    assert len(rack.starts) == 3
    assert not rack.valid.any()
    assert room.paths == [("hall1",)]
    assert snapshot.tier_of(["n1", "n2"]) == ("room", ("hall1",))


def test_other_levels_than_three(make: SimpleNamespace) -> None:
    nodes = [make.node(f"n{k}", f"z{k // 2}") for k in range(4)]
    snapshot = Snapshot.build(nodes, levels=("zone",))
    found = plan(snapshot, make.gang(make.podset(2, 8)))
    assert (found.tier, found.domain) == ("zone", ("z0",))
    flat = Snapshot.build([make.node("n1", ""), make.node("n2", "")], levels=())
    assert plan(flat, make.gang(make.podset(2, 8))).tier == "cluster"


def test_rows_are_summed_by_domain(make: SimpleNamespace) -> None:
    snapshot = make.cluster({"n1": "h/b/r1", "n2": "h/b/r1", "n3": "h/b/r2"})
    assert snapshot.level[2].sums(np.array([1, 2, 4])).tolist() == [3, 4]
    assert snapshot.inside(("h", "b", "r1")).tolist() == [True, True, False]
    assert snapshot.inside(("h", "b", "r2", "n3")).tolist() == [False, False, True]
    assert snapshot.inside(()).all()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("500m", 0.5),
        ("16Gi", 16 * 2**30),
        ("1e3", 1000),
        ("1.5k", 1500),
        ("2E", 2e18),
        (4, 4),
        ("100n", 1e-7),
    ],
)
def test_quantities(text: str | int, value: float) -> None:
    assert float(parse_quantity(text)) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "eight", "1 Gi", "1gi", "Gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a Kubernetes quantity"):
        parse_quantity(text)


def test_requests_round_up_and_allocatable_down() -> None:
    amounts = {"cpu": "1500.5m", "memory": "1Gi", "nvidia.com/gpu": "8"}
    assert resources_from_kubernetes(amounts) == {"cpu_milli": 1501, "memory_bytes": 2**30, "nvidia.com/gpu": 8}
    assert resources_from_kubernetes(amounts, round_up=False)["cpu_milli"] == 1500
    assert resources_from_kubernetes(None) == {}


def test_words() -> None:
    assert place(("h", "b1")) == "h/b1"
    assert place(()) == "the cluster"
    assert level_label("rack") == "myriad.dev/rack"
    assert level_label("example.com/row") == "example.com/row"
    assert [gpus_words(1), gpus_words(8), gpus_words(1, "H100")] == ["1 GPU", "8 GPUs", "1 H100"]
