"""Protected domains: who gets one, which nodes, who may pass, and what is written on a node."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from myriad.scheduler.model import (
    DEFAULT_GPU_RESOURCE,
    RESERVED_TAINT,
    Gang,
    PodSet,
    PodUse,
    Taint,
    TopologyRequest,
)
from myriad.scheduler.policy import ProtectionPolicy
from myriad.scheduler.protect import RESERVED_ANNOTATION, Doors, Protection, operations, sentence, standing
from myriad.scheduler.protect_choice import Decision, Waiter, decide
from myriad.scheduler.snapshot import Snapshot
from myriad.sim import SimConfig, TeamQuota, site_nodes

NOW = 1_000_000.0
HOUR = 3600.0
POLICY = ProtectionPolicy(after_s=7200, max_domains=1, max_share=0.5, level="block")
SITE = SimConfig(nodes=16, racks=4, blocks=2, rooms=1, teams={"vision": TeamQuota(128)})


def full(ends_h: dict[int, float | None] | None = None) -> tuple[Snapshot, dict[str, float]]:
    """16 nodes in 4 racks and 2 blocks, each held by one job that ends after so many hours (None: never)."""
    snapshot = Snapshot.build(site_nodes(SITE))
    ends = {}
    for i, node in enumerate(snapshot.nodes):
        hours = (ends_h or {}).get(i, 4.0)
        snapshot.apply_pod(PodUse(f"p{i}", node.name, {DEFAULT_GPU_RESOURCE: 8}))
        if hours is not None:
            ends[f"p{i}"] = NOW + hours * HOUR
    return snapshot, ends


def gang(pods: int = 4, name: str = "big", gpus: int = 8, topology: TopologyRequest | None = None) -> Gang:
    podset = PodSet("main", pods, {DEFAULT_GPU_RESOURCE: gpus}, topology=topology or TopologyRequest())
    return Gang(name, "vision", (podset,), uid=f"uid-{name}", priority=100, pool="h100")


def waiter(asked: Gang | None = None, *, hours: float = 3.0, **more: Any) -> Waiter:
    asked = asked or gang()
    return Waiter(asked, f"vision/wl-{asked.name}", hours * HOUR, **more)


def judge(
    snapshot: Snapshot,
    ends: dict[str, float],
    waiting: list[Waiter],
    stands: dict[str, Protection] | None = None,
    policy: ProtectionPolicy = POLICY,
    now: float = NOW,
) -> Decision:
    return decide(snapshot, waiting, ends, stands or {}, policy, now=now, grace_s=300.0)


def test_c20_a_gang_that_waited_too_long_gets_the_nodes_that_are_free_soonest() -> None:
    snapshot, ends = full({8: 1.0, 9: 1.5, 12: 0.5, 15: 2.0, 0: 0.1})
    (found,) = judge(snapshot, ends, [waiter()]).protect
    # All of one block; the other has one early node and then waits for 4 h.
    assert found.nodes == ("gpu00008", "gpu00009", "gpu00012", "gpu00015")
    assert found.until == NOW + 2 * HOUR + 300 and found.expires == found.until + 900


def test_c20_whoever_waits_for_less_gets_none() -> None:
    snapshot, ends = full()
    assert judge(snapshot, ends, [waiter(hours=1.9)]) == Decision()
    assert judge(snapshot, ends, [waiter(overtaken=False)]) == Decision()
    # One GPU finds its place as soon as anything ends: it does not starve.
    assert judge(snapshot, ends, [waiter(gang(1, gpus=1))]) == Decision()


def test_a_gang_that_has_a_place_now_gets_none() -> None:
    snapshot, ends = full()
    for i in range(4):
        snapshot.remove_pod(f"p{i}")
    assert judge(snapshot, ends, [waiter()]) == Decision()


def test_jobs_without_a_limit_hold_a_domain_up_for_ever_so_others_are_chosen() -> None:
    snapshot, ends = full(dict.fromkeys(range(5, 16)))
    (found,) = judge(snapshot, ends, [waiter()]).protect
    assert found.nodes == ("gpu00000", "gpu00001", "gpu00002", "gpu00003")
    (refused,) = judge(snapshot, ends, [waiter(gang(6))]).refused
    assert "11 nodes run jobs without a time limit" in refused.sentence


@pytest.mark.parametrize(
    ("policy", "asked", "more", "said"),
    [
        (replace(POLICY, max_share=0.2), gang(4), {}, "32 GPUs are more than may be protected at once: 25 of 128 GPUs"),
        (POLICY, gang(4), {"quota": 24}, "its queue can hold 24 GPUs by quota and borrowing, 32 are asked"),
        (POLICY, gang(17), {}, "more than may be protected"),
        (replace(POLICY, max_share=9.0), gang(17), {}, "no domain of this cluster holds the gang"),
    ],
)
def test_the_cost_is_bounded_and_the_reason_has_numbers(
    policy: ProtectionPolicy, asked: Gang, more: dict[str, Any], said: str
) -> None:
    snapshot, ends = full()
    decision = judge(snapshot, ends, [waiter(asked, **more)], policy=policy)
    assert not decision.protect and said in decision.refused[0].sentence


def test_only_so_many_domains_at_once_and_none_where_the_site_wants_none() -> None:
    snapshot, ends = full()
    decision = judge(snapshot, ends, [waiter(hours=3), waiter(gang(2, "other"), hours=4)])
    assert [p.uid for p in decision.protect] == ["uid-other"]
    assert "used up (1): one is kept for vision/other" in decision.refused[0].sentence
    assert judge(snapshot, ends, [waiter()], policy=replace(POLICY, max_domains=0)) == Decision()


def test_f1_while_many_nodes_are_silent_together_no_domain_is_chosen() -> None:
    snapshot, ends = full()
    for i in (13, 14, 15):
        snapshot.update_node(replace(snapshot.nodes[i], ready=False))
    decision = judge(snapshot, ends, [waiter()])
    assert not decision.protect and "3 of 16 nodes are not ready" in decision.refused[0].sentence


def test_a_gang_larger_than_a_block_gets_nodes_of_both() -> None:
    snapshot, ends = full({i: float(i + 1) for i in range(16)})
    (found,) = judge(snapshot, ends, [waiter(gang(10))], policy=replace(POLICY, max_share=1.0)).protect
    assert found.nodes == tuple(f"gpu{i:05d}" for i in range(10))


def test_a_required_rack_is_one_rack() -> None:
    snapshot, ends = full({0: 0.1, 4: 0.1, 8: 0.1, 12: 0.1, 13: 1.0, 14: 1.0, 15: 1.0})
    (found,) = judge(snapshot, ends, [waiter(gang(4, topology=TopologyRequest("required", "rack")))]).protect
    assert found.nodes == ("gpu00012", "gpu00013", "gpu00014", "gpu00015")


def protected(snapshot: Snapshot, protection: Protection) -> Snapshot:
    for name in protection.nodes:
        node = snapshot.nodes[snapshot.index[name]]
        snapshot.update_node(replace(node, taints=(*node.taints, Taint(RESERVED_TAINT, protection.uid))))
    return snapshot


def test_a_protection_ends_when_its_gang_started_was_deleted_or_it_did_not_help() -> None:
    snapshot, ends = full()
    (kept,) = judge(snapshot, ends, [waiter()]).protect
    protected(snapshot, kept)
    stands = {kept.uid: kept}
    assert judge(snapshot, ends, [waiter()], stands) == Decision()
    ((_, why),) = judge(snapshot, ends, [], stands).release
    assert "started, ended or was deleted" in why
    ((_, why),) = judge(snapshot, ends, [waiter()], stands, now=kept.expires).release
    assert "did not let its gang in" in why
    # And it is not tried again at once.
    assert judge(snapshot, ends, [waiter(given_up_s=60.0)]) == Decision()
    assert judge(snapshot, ends, [waiter(given_up_s=7200.0)]).protect


def test_a_node_that_dies_in_a_protected_domain_is_made_up_for() -> None:
    snapshot, ends = full({i: 0.5 + i / 10 for i in range(8)})
    (kept,) = judge(snapshot, ends, [waiter()]).protect
    protected(snapshot, kept)
    snapshot.update_node(replace(snapshot.nodes[1], ready=False))
    (topped,) = judge(snapshot, ends, [waiter()], {kept.uid: kept}).protect
    assert set(topped.nodes) == {"gpu00000", "gpu00002", "gpu00003", "gpu00004"}
    assert topped.since == kept.since and topped.until >= kept.until


def test_only_jobs_that_end_in_time_pass_and_the_time_comes_only_nearer() -> None:
    snapshot, ends = full({8: 1.0, 9: 1.5, 12: 0.5, 15: 2.0})
    (kept,) = judge(snapshot, ends, [waiter()]).protect
    protected(snapshot, kept)
    doors = Doors.of(snapshot, {kept.uid: kept}, ends, NOW)
    small = gang(1, "small", gpus=1)
    assert doors.passes(small, 2 * HOUR).backfill == (kept.toleration,)
    assert doors.passes(small, 2 * HOUR + 1).backfill == ()
    assert doors.passes(small, None).backfill == ()
    own = doors.passes(gang(), None)
    assert own.own == (kept.toleration,) and own.domain == {"myriad.dev/block": "hall1.b02"}
    # The longest of its holders ended early: then 1.5 h is the end for all.
    snapshot.remove_pod("p15")
    assert Doors.of(snapshot, {kept.uid: kept}, ends, NOW).closes[kept.uid] == NOW + 1.5 * HOUR


# -- what stands on the nodes --------------------------------------------------------------------------------------


def node(name: str, taints: list[dict[str, str]] | None = None, mark: str | None = None) -> dict[str, Any]:
    annotations = {RESERVED_ANNOTATION: mark} if mark is not None else {"other": "x"}
    metadata = {"name": name, "resourceVersion": "7", "annotations": annotations}
    return {"metadata": metadata, "spec": {"taints": taints} if taints else {}}


KEPT = Protection("uid-big", "vision/wl-big", "vision/big", ("n1", "n2"), NOW, NOW + HOUR, NOW + 2 * HOUR)
TAINT = {"key": RESERVED_TAINT, "value": "uid-big", "effect": "NoSchedule"}


def patched(body: dict[str, Any], protection: Protection | None) -> dict[str, Any]:
    """The node after the operations, as an API server would apply them."""
    changes = operations(body, protection)
    assert not changes or changes[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    out = json.loads(json.dumps(body))
    for change in changes[1:]:
        path = [p.replace("~1", "/") for p in change["path"].split("/")[1:]]
        target = out
        for part in path[:-1]:
            target = target[part]
        if change["op"] == "remove":
            del target[path[-1]]
        else:
            target[path[-1]] = change["value"]
    return out  # type: ignore[no-any-return]


def test_a_restart_reads_from_the_nodes_what_stands() -> None:
    nodes = [patched(node("n1"), KEPT), patched(node("n2", [{"key": "a", "effect": "NoExecute"}]), KEPT), node("n3")]
    assert standing(nodes) == {"uid-big": KEPT}
    assert operations(nodes[0], KEPT) == []
    freed = patched(nodes[1], None)
    assert freed["spec"]["taints"] == [{"key": "a", "effect": "NoExecute"}]
    assert RESERVED_ANNOTATION not in freed["metadata"]["annotations"]


@pytest.mark.parametrize(
    "foreign",
    [
        node("n1", [{**TAINT, "value": "someone"}]),
        node("n1", [TAINT]),
        node("n1", [TAINT], mark="not json"),
        node("n1", [TAINT], mark='{"uid": "uid-big"}'),
        node("n1", [TAINT], mark="[1]"),
        node("n1", [{**TAINT, "effect": "NoExecute"}], mark=replace(KEPT, uid="x").annotation()),
    ],
)
def test_a_taint_that_we_did_not_set_is_left_alone(foreign: dict[str, Any]) -> None:
    assert standing([foreign]) == {}
    assert patched(foreign, None)["spec"]["taints"] == foreign["spec"]["taints"]


def test_a_node_that_somebody_else_keeps_is_not_taken() -> None:
    assert operations(node("n1", [{**TAINT, "value": "someone"}]), KEPT) == []


def test_what_the_owner_reads() -> None:
    snapshot, ends = full({8: 1.0, 9: 1.5, 12: 0.5, 15: 2.0})
    (kept,) = judge(snapshot, ends, [waiter()]).protect
    assert sentence(kept, snapshot, now=NOW) == (
        "4 nodes in hall1/b02 are kept for it (taint myriad.dev/reserved); by limits and grace they are free in "
        "2 h 5 min at the latest"
    )
