"""The brake for evictions and taints of Myriad's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from myriad.scheduler import brake
from myriad.scheduler.brake import Ask, Brake, NodeState, State, trouble

NOW = datetime(2026, 11, 30, 15, 0, tzinfo=UTC)
CALM = State(leader_since=NOW - timedelta(hours=1))


def cluster(silent: dict[str, float] | None = None, *, blocks: int = 5, racks: int = 5, nodes: int = 10) -> Brake:
    """Nodes bBrRnN; `silent`: name prefix -> seconds since when such nodes are not ready."""
    found = {}
    for b in range(blocks):
        for r in range(racks):
            for n in range(nodes):
                name = f"b{b}r{r}n{n}"
                since = next((s for prefix, s in (silent or {}).items() if name.startswith(prefix)), None)
                at = None if since is None else NOW - timedelta(seconds=since)
                found[name] = NodeState(name, ("hall1", f"b{b}", f"r{r}"), at)
    return Brake(found, {"vision": 40})


def ask(*nodes: str, what: str = "vision/clip", kind: brake.Kind = "evict", team: str = "vision") -> Ask:
    return Ask(kind, what, nodes, team, "budget")


def test_a_calm_cluster_grants_and_counts() -> None:
    verdict, state = cluster().ask(CALM, ask("b0r0n0"), NOW)
    assert verdict.allowed and len(state.deeds) == 1
    again, after = cluster().ask(state, ask("b0r0n0"), NOW)
    assert again.allowed and after == state


def test_f1_many_nodes_not_ready_together_is_the_control_plane() -> None:
    site = cluster({"b0": 60, "b1": 90})
    verdict, _ = site.ask(CALM, ask("b3r0n0"), NOW)
    assert not verdict.allowed and "100 of 250 nodes of the cluster" in verdict.reason
    assert "suspect the control plane" in verdict.reason


def test_one_dead_node_or_a_few_over_days_stop_nobody() -> None:
    assert cluster({"b0r0n0": 60}).ask(CALM, ask("b3r0n0"), NOW)[0].allowed
    slowly = {f"b{b}r{r}n0": 3600.0 * (b * 5 + r + 1) for b in range(5) for r in range(5)}
    assert cluster(slowly).ask(CALM, ask("b3r0n1"), NOW)[0].allowed


def test_f4_a_partition_of_one_domain_is_seen_though_the_cluster_is_large() -> None:
    found = trouble(cluster({"b2r": 30}, blocks=50).nodes.values())
    assert found is not None and found.scope == "hall1/b2" and len(found.not_ready) == 50


def test_a_small_cluster_stops_when_more_than_half_of_it_is_silent() -> None:
    three = {f"n{i}": NodeState(f"n{i}", ("h", "b", "r"), NOW if i < 2 else None) for i in range(3)}
    assert not Brake(three).ask(CALM, ask("n2"), NOW)[0].allowed
    one = {**three, "n1": NodeState("n1", ("h", "b", "r"))}
    assert Brake(one).ask(CALM, ask("n2"), NOW)[0].allowed


def test_f2_after_an_outage_of_the_api_nodes_get_time_to_report() -> None:
    away = brake.outage_begins(CALM)
    assert "does not answer" in cluster().ask(away, ask("b0r0n0"), NOW)[0].reason
    back = brake.outage_ends(away, NOW)
    verdict, _ = cluster().ask(back, ask("b0r0n0"), NOW + timedelta(seconds=30))
    assert not verdict.allowed and verdict.retry_s == 90
    assert cluster().ask(back, ask("b0r0n0"), NOW + timedelta(seconds=121))[0].allowed
    assert brake.outage_ends(back, NOW + timedelta(hours=1)) == back


def test_f3_a_new_leader_evicts_nothing_at_first() -> None:
    fresh = brake.leads(brake.follows(CALM), NOW)
    assert "just become the leader" in cluster().ask(fresh, ask("b0r0n0"), NOW + timedelta(seconds=59))[0].reason
    assert cluster().ask(fresh, ask("b0r0n0"), NOW + timedelta(seconds=61))[0].allowed
    assert brake.leads(fresh, NOW + timedelta(hours=1)) == fresh
    assert not cluster().ask(brake.follows(CALM), ask("b0r0n0"), NOW)[0].allowed


def test_f5_the_blast_radius_is_capped_and_opens_again() -> None:
    site, state, granted = cluster(), CALM, 0
    for i in range(50):
        node = f"b{i % 5}r{i // 10}n{i % 10}"
        verdict, state = site.ask(state, ask(node, what=f"t{i}/job", team=f"t{i}"), NOW)
        granted += verdict.allowed
    # A twentieth of 250 nodes within ten minutes.
    assert granted == 12 and "12 is the most at a time" in verdict.reason and verdict.retry_s == 600
    later = NOW + timedelta(minutes=10)
    assert site.ask(state, ask("b0r0n0", what="x/y"), later)[0].allowed


def test_a_team_and_a_block_have_caps_of_their_own() -> None:
    site, state = cluster(blocks=40), CALM
    words = []
    for i in range(20):
        verdict, state = site.ask(state, ask(f"b{i}r0n0", what=f"vision/{i}"), NOW)
        words.append(verdict.reason)
    assert words.count("") == 10 and "team vision" in words[-1]
    taints = CALM
    for i in range(20):
        verdict, taints = site.ask(taints, ask(f"b0r{i % 5}n{i // 5}", what=f"d{i}", kind="taint", team=""), NOW)
    assert not verdict.allowed and "block hall1/b0" in verdict.reason


def test_one_gang_that_is_larger_than_a_cap_can_still_be_asked_to_leave() -> None:
    large = ask(*(f"b{b}r{r}n0" for b in range(5) for r in range(5)))
    verdict, state = cluster().ask(CALM, large, NOW)
    assert verdict.allowed
    assert not cluster().ask(state, ask("b0r0n1", what="vision/next"), NOW)[0].allowed
