"""The queue, quotas and what-if of a cluster in memory, by the cases that people reported elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from myriad.errors import InputError, MyriadError
from myriad.kube.kinds import CLUSTER_QUEUES, LOCAL_QUEUES, NAMESPACES, NODES, PODS, WORKLOADS
from myriad.scheduler.eta import published
from myriad.scheduler.eta.live import pool_states
from myriad.scheduler.eta.model import Eta
from myriad.scheduler.eta.observer import Estimating
from myriad.scheduler.eta.store import Store
from myriad.scheduler.queue_view import eta_of, evaluation_of, own_report, positions, queue_report
from myriad.scheduler.quota_view import quota_report, share_out
from myriad.scheduler.whatif import fit_report, fragmentation_report

NOW = datetime(2026, 1, 1, 1, 0, tzinfo=UTC)
EARLY = "2026-01-01T00:00:00Z"


def at(minutes: float) -> str:
    return (NOW + timedelta(minutes=minutes)).isoformat().replace("+00:00", "Z")


def fill(world: Any, make: Any, *, limit: int | None = 7200, jobs: int = 2, pods: int = 2) -> None:
    """Jobs of `pods` whole nodes each, admitted, from node n0 on."""
    for i in range(jobs):
        nodes = {f"n{i * pods + k}": 1 for k in range(pods)}
        extra = {"maximumExecutionTimeSeconds": limit} if limit else {}
        world.put(WORKLOADS, make.workload(f"run{i}", pods=pods, assigned=nodes, admitted=True, **extra))


def wait(world: Any, make: Any, name: str, *, refused: str = "insufficient quota", **more: Any) -> None:
    conditions = {"QuotaReserved": ("False", refused)} if refused else {}
    world.put(WORKLOADS, make.workload(name, conditions=conditions, **more))


def rows(world: Any, **more: Any) -> list[Any]:
    (entry,) = queue_report(world.cache, "vision", now=NOW, **more)
    return list(entry["waiting"])


def test_c9_c12_c13_place_and_time_with_bounds_and_basis(world: Any, make: Any) -> None:
    fill(world, make)
    wait(world, make, "next")
    (row,) = rows(world)
    assert row["position"] == 1
    eta = row["eta"]
    # Both ran for an hour of their two.
    assert 0 < eta["low_s"] <= eta["mid_s"] <= eta["high_s"] <= 3700
    assert "2 running jobs, 2 with a time limit" in eta["basis"]


def test_c10_c11_who_is_ahead_by_name_pods_and_gpus(world: Any, make: Any) -> None:
    fill(world, make)
    for i in range(7):
        wait(world, make, f"w{i}", pods=2, gpus=8, created=f"2026-01-01T00:0{i}:00Z")
    last = rows(world)[-1]
    assert last["ahead"]["jobs"] == 6 and last["ahead"]["pods"] == 12 and last["ahead"]["gpus"] == 96
    nearest = last["ahead"]["nearest"]
    assert [n["job"] for n in nearest] == ["w1", "w2", "w3", "w4", "w5"]
    assert nearest[-1] == {"position": 6, "owner": "vision", "namespace": "vision", "job": "w5", "gpus": 16, "pods": 2}


def test_c14_not_reached_is_told_apart_from_refused(world: Any, make: Any) -> None:
    fill(world, make)
    wait(world, make, "refused", refused="16 more needed")
    wait(world, make, "unseen", refused="", created=at(-1))
    by_name = {row["job"]: row["evaluation"] for row in rows(world)}
    assert by_name["refused"]["kind"] == "refused" and "16 more needed" in by_name["refused"]["sentence"]
    assert by_name["unseen"]["kind"] == "not_reached" and by_name["unseen"]["since"] == at(-1)
    assert "has not looked at it since it came, 1 min ago" in by_name["unseen"]["sentence"]


def test_c14_a_changed_job_was_not_looked_at_since(world: Any, make: Any) -> None:
    body = make.workload("changed", conditions={"QuotaReserved": ("False", "no")})
    body["metadata"]["generation"] = 3
    body["status"]["conditions"][0]["observedGeneration"] = 2
    world.put(WORKLOADS, body)
    found = evaluation_of(world.cache, world.cache.view_of_job("vision", "changed"), now=NOW)
    assert found.kind == "not_reached" and "since it was changed" in found.sentence


def test_c14_a_strict_queue_names_the_head_that_holds_up_the_rest(world: Any, make: Any) -> None:
    queue = make.cluster_queue()
    queue["spec"]["queueingStrategy"] = "StrictFIFO"
    world.put(CLUSTER_QUEUES, queue)
    wait(world, make, "head", created=at(-30))
    wait(world, make, "behind", refused="", created=at(-20))
    row = rows(world)[1]
    assert "vision/head stands in front" in row["evaluation"]["sentence"] and not row["evaluation"]["alarm"]


def test_c16_jobs_without_gpus_behind_gpu_jobs_are_warned_of(world: Any, make: Any) -> None:
    wait(world, make, "gpu", created=at(-30))
    wait(world, make, "cpu", gpus=0, created=at(-20))
    (entry,) = queue_report(world.cache, "vision", now=NOW)
    assert any("a ClusterQueue of their own" in w for w in entry["warnings"])


def test_c16_a_queue_of_two_flavors_is_warned_of(world: Any, make: Any) -> None:
    queue = make.cluster_queue()
    flavors = queue["spec"]["resourceGroups"][0]["flavors"]
    flavors.append({"name": "a100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "8"}]})
    world.put(CLUSTER_QUEUES, queue)
    wait(world, make, "gpu")
    (entry,) = queue_report(world.cache, "vision", now=NOW)
    assert any("2 flavors (a100, h100)" in w for w in entry["warnings"])


def test_c17_silence_about_a_job_that_fits_is_an_alarm(world: Any, make: Any) -> None:
    wait(world, make, "silent", refused="", created=at(-30))
    evaluation = rows(world)[0]["evaluation"]
    assert evaluation["kind"] == "not_reached" and evaluation["alarm"]
    wait(world, make, "stuck", pods=1, refused="an old reason", created=at(-40))
    view = world.cache.view_of_job("vision", "stuck")
    found = evaluation_of(world.cache, view, now=NOW, state="fits")
    assert found.kind == "unexplained" and found.alarm and "an old reason" in found.sentence


def test_c20_starvation_shows_age_and_who_got_in_meanwhile(world: Any, make: Any) -> None:
    wait(world, make, "large", pods=4, created="2025-12-31T00:00:00Z")
    for i in range(3):
        world.put(WORKLOADS, make.workload(f"s{i}", pods=1, assigned={f"n{i}": 1}, admitted=True, created=at(-i - 1)))
    row = rows(world)[0]
    assert row["overtaken_by"] == 3 and row["starving"] and row["waiting_s"] == 25 * 3600


def test_a_stopped_queue_has_no_estimate_and_says_so(world: Any, make: Any) -> None:
    local = {"metadata": {"name": "h100", "namespace": "vision"}, "spec": {"clusterQueue": "vision-h100"}}
    local["spec"]["stopPolicy"] = "Hold"
    world.put(LOCAL_QUEUES, local)
    wait(world, make, "held")
    row = rows(world)[0]
    assert row["eta"] is None and row["evaluation"]["kind"] == "held"
    assert row["evaluation"]["sentence"] == "LocalQueue h100 is stopped (Hold)"


def test_what_can_never_run_has_no_estimate(world: Any, make: Any) -> None:
    wait(world, make, "huge", gpus=16)
    assert rows(world)[0]["eta"] is None


# What a plain user sees


def test_a_user_of_one_namespace_sees_own_jobs_with_place_and_published_time(world: Any, make: Any) -> None:
    wait(world, make, "mine")
    body = world.api.get(WORKLOADS, "job-mine", namespace="vision")
    eta = Eta(600.0, 1200.0, 2400.0, "3 running jobs", 0.81, 120)
    body["metadata"]["annotations"] = {published.ANNOTATION: published.to_text(eta, NOW.timestamp() - 300)}
    world.put(WORKLOADS, body)
    summary = {"items": [{"metadata": {"name": "job-mine", "namespace": "vision"}, "positionInClusterQueue": 4}]}
    (entry,) = own_report(world.cache, "vision", now=NOW, places=positions(summary), missing=["nodes"])
    (row,) = entry["waiting"]
    assert row["position"] == 5 and row["position_among_own"] == 1 and entry["not_readable"] == ["nodes"]
    assert row["eta"]["mid_s"] == 900.0 and row["eta"]["held_last_month"] == 0.81
    (blind,) = own_report(world.cache, "vision", now=NOW, places={}, missing=[])
    assert blind["waiting"][0]["position"] is None


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"at": 5}', '{"at": "yesterday"}', '{"mid": "2026"}', "null"])
def test_nonsense_in_the_annotation_is_no_estimate(world: Any, make: Any, text: str) -> None:
    body = make.workload("mine", conditions={"QuotaReserved": ("False", "no")})
    body["metadata"]["annotations"] = {published.ANNOTATION: text}
    world.put(WORKLOADS, body)
    assert eta_of(world.cache, world.cache.view_of_job("vision", "mine"), now=NOW) is None


# The leader's part


def test_estimates_are_published_recorded_and_judged_and_outlive_the_leader(
    world: Any, make: Any, tmp_path: Any
) -> None:
    clock = [NOW.timestamp()]
    url = f"sqlite:///{tmp_path}/ledger.db"
    observer = Estimating(world.api, world.cache, Store(url), CollectorRegistry(), clock=lambda: clock[0])
    fill(world, make)
    wait(world, make, "next")
    observer.step()
    world.sync()
    told = eta_of(world.cache, world.cache.view_of_job("vision", "next"), now=NOW)
    assert told is not None and told.low_s <= told.seconds <= told.high_s and "not yet judged" in told.basis
    writes = len(world.api.writes)
    clock[0] += 61
    observer.step()
    assert len(world.api.writes) == writes, "nothing new is not written again"

    # Another leader judges what the first one estimated.
    other = Estimating(world.api, world.cache, Store(url), CollectorRegistry(), clock=lambda: clock[0])
    started = NOW + timedelta(minutes=50)
    body = make.workload("next", assigned={"n4": 1, "n5": 1}, admitted=True, created=at(-60))
    for condition in body["status"]["conditions"]:
        condition["lastTransitionTime"] = started.isoformat().replace("+00:00", "Z")
    world.put(WORKLOADS, body)
    clock[0] = started.timestamp() + 60
    other.step()
    assert other.calibration.held_of_all()[1] == 1 and not other.open
    runs, open_, judged = Store(url).load(0.0)
    assert not open_ and len(judged) == 1 and judged[0].actual_s == 3000.0 and runs == []


def test_who_comes_is_told_within_seconds_and_others_every_minute(world: Any, make: Any) -> None:
    clock = [NOW.timestamp()]
    observer = Estimating(world.api, world.cache, None, CollectorRegistry(), clock=lambda: clock[0])
    fill(world, make)
    observer.step()
    wait(world, make, "comes")
    clock[0] += 2
    observer.step()
    assert observer.etas == {}, "bursts are gathered"
    clock[0] += 2
    observer.step()
    assert set(observer.etas) == {"uid-comes"}
    passes = observer._last
    clock[0] += 5
    observer.step()
    assert observer._last == passes


def test_a_database_that_does_not_answer_stops_no_estimate(world: Any, make: Any, tmp_path: Any) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    store = Store(f"sqlite:///{folder}/ledger.db")
    (folder / "ledger.db").mkdir()
    observer = Estimating(world.api, world.cache, store, CollectorRegistry(), clock=lambda: NOW.timestamp())
    fill(world, make)
    wait(world, make, "next")
    with pytest.raises(MyriadError, match="history of estimates"):
        observer.step()
    assert observer.etas["uid-next"].mid_s is not None


def test_run_times_of_finished_jobs_are_learnt(world: Any, make: Any) -> None:
    observer = Estimating(world.api, world.cache, None, CollectorRegistry(), clock=lambda: NOW.timestamp())
    body = make.workload("bert-1", assigned={"n0": 1, "n1": 1}, admitted=True, created=at(-100))
    body["status"]["conditions"].append({"type": "Finished", "status": "True", "lastTransitionTime": at(-40)})
    world.put(WORKLOADS, body)
    observer.step()
    (run,) = observer.history.submitted
    assert run.run_s == 3600.0 and run.kind.family == "bert" and run.kind.team == "vision"


# Quota


def test_quota_shows_total_used_borrowed_lent_and_left(world: Any, make: Any) -> None:
    world.put(CLUSTER_QUEUES, make.cluster_queue(gpus=16, cohort="research"))
    world.put(CLUSTER_QUEUES, make.cluster_queue("speech-h100", gpus=32, cohort="research", team="speech"))
    fill(world, make, jobs=1, pods=3)
    by_team = {row["team"]: row for row in quota_report(world.cache, now=NOW)["quotas"]}
    vision, speech = by_team["vision"], by_team["speech"]
    assert (vision["total_gpus"], vision["used_gpus"], vision["borrowed_gpus"], vision["left_gpus"]) == (16, 24, 8, 24)
    assert (speech["used_gpus"], speech["lent_gpus"], speech["left_gpus"]) == (0, 8, 24)


def test_e8_e9_capacity_allocatable_requested_and_unhealthy_are_told_apart(world: Any, make: Any) -> None:
    body = make.node("n0", ("hall1", "b1", "r0"))
    body["status"]["allocatable"]["nvidia.com/gpu"] = "5"
    world.put(NODES, body)
    world.put(PODS, make.pod("p", node_name="n0", gpus=4))
    (pool,) = quota_report(world.cache, now=NOW)["pools"]
    assert (pool["capacity"], pool["allocatable"], pool["withdrawn"]) == (64, 61, 3)
    assert (pool["requested"], pool["free"], pool["outside_queues"]) == (4, 57, 4)
    assert pool["troubles"][0]["cause"] == "3 of 8 GPUs withdrawn or missing"


def test_e8_a_gpu_in_use_that_turns_unhealthy_leaves_none_free(world: Any, make: Any) -> None:
    body = make.node("n0", ("hall1", "b1", "r0"), gpus=2)
    body["status"]["allocatable"]["nvidia.com/gpu"] = "1"
    world.put(NODES, body)
    world.put(PODS, make.pod("p", node_name="n0", gpus=1))
    report = quota_report(world.cache, now=NOW)["pools"][0]["troubles"][0]
    assert (report["capacity"], report["allocatable"], report["requested"], report["withdrawn"]) == (2, 1, 1, 1)


def test_e10_a_node_below_what_runs_on_it_is_flagged(world: Any, make: Any) -> None:
    body = make.node("n0", ("hall1", "b1", "r0"))
    body["status"]["allocatable"]["nvidia.com/gpu"] = "3"
    world.put(NODES, body)
    world.put(PODS, make.pod("p", node_name="n0", gpus=8))
    (pool,) = quota_report(world.cache, now=NOW)["pools"]
    assert pool["overcommitted"] == 5 and "takes no pod until they end" in pool["troubles"][0]["cause"]


def test_e11_gpus_of_pods_on_a_dead_node_are_shown_as_held_by_it(world: Any, make: Any) -> None:
    world.put(PODS, make.pod("p", node_name="n0"))
    body = make.node("n0", ("hall1", "b1", "r0"))
    body["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    world.put(NODES, body)
    (pool,) = quota_report(world.cache, now=NOW)["pools"]
    assert pool["held_by_dead_nodes"] == 8 and pool["usable"] == 56
    assert "8 GPUs held by pods of a dead node" in pool["troubles"][0]["cause"]


@pytest.mark.parametrize("how", ["gate", "cordon", "dead"])
def test_lost_nodes_show_whose_guarantee_is_broken_by_how_many_gpus(world: Any, make: Any, how: str) -> None:
    world.put(CLUSTER_QUEUES, make.cluster_queue(gpus=32))
    world.put(CLUSTER_QUEUES, make.cluster_queue("speech-h100", gpus=32, team="speech"))
    fill(world, make, jobs=1, pods=4)
    for i in range(4):
        world.put(PODS, make.pod(f"p{i}", node_name=f"n{i}", of="run0"))
    for name in ("n6", "n7"):
        body = make.node(name, ("hall1", "b1", "r1"))
        if how == "gate":
            body["spec"]["taints"] = [{"key": "myriad.dev/gpu-not-ready", "effect": "NoSchedule"}]
        elif how == "cordon":
            body["spec"]["unschedulable"] = True
        else:
            body["status"]["conditions"] = []
        world.put(NODES, body)
    report = quota_report(world.cache, now=NOW)
    by_team = {row["team"]: row for row in report["quotas"]}
    assert report["pools"][0]["missing"] == 16
    # vision uses all of its quota: speech, which uses none, bears the loss.
    assert by_team["vision"]["not_honoured_gpus"] == 0 and by_team["speech"]["not_honoured_gpus"] == 16
    assert "16 of its 32 GPUs cannot be honoured now" in by_team["speech"]["notes"][0]


def test_e13_a_job_that_is_not_in_the_queue_it_asked_for_is_shown(world: Any, make: Any) -> None:
    body = make.workload("lost")
    body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "a100"}
    world.put(WORKLOADS, body)
    (found,) = quota_report(world.cache, now=NOW)["elsewhere"]
    assert found["cause"] == "asks for queue a100, and stands in h100"
    assert rows(world)[0]["queue"] == "h100"


def test_parts_add_up_and_none_is_above_its_weight() -> None:
    assert share_out(7, {"a": 3, "b": 3, "c": 1}) == {"a": 3, "b": 3, "c": 1}
    assert sum(share_out(5, {"a": 4, "b": 4, "c": 4}).values()) == 5
    assert share_out(3, {"a": 0}) == {"a": 0} and share_out(0, {"a": 2}) == {"a": 0}


# What-if


def test_fit_says_where(world: Any) -> None:
    report = fit_report(world.cache, nodes=4, gpus=8, now=NOW)
    assert report["fits"] == "now" and report["tier"] == "rack" and len(report["on"]) == 4


def test_fit_names_the_cheapest_set_that_would_have_to_leave(world: Any, make: Any) -> None:
    fill(world, make, jobs=4)
    saved = world.api.get(WORKLOADS, "job-run2", namespace="vision")
    saved["metadata"]["annotations"] = {"myriad.dev/last-checkpoint": at(-1)}
    world.put(WORKLOADS, saved)
    report = fit_report(world.cache, nodes=2, gpus=8, now=NOW)
    assert report["fits"] == "not_now"
    (job,) = report["leave"]["jobs"]
    assert job["job"] == "run2" and job["checkpoint_known"] and job["lost_gpu_hours"] == round(16 / 60, 2)
    # All end an hour from now by their limits; the first of them makes the room.
    assert report["after"]["in_s"] == 3600 and report["after"]["ended_by_then"] == 1


def test_fit_never_asks_a_higher_priority_to_leave(world: Any, make: Any) -> None:
    for i in range(4):
        nodes = {f"n{2 * i}": 1, f"n{2 * i + 1}": 1}
        world.put(WORKLOADS, make.workload(f"run{i}", assigned=nodes, admitted=True, priority=500))
    assert fit_report(world.cache, nodes=2, gpus=8, priority=100, now=NOW)["leave"] is None
    assert fit_report(world.cache, nodes=2, gpus=8, priority=500, now=NOW)["leave"]["gpus"] == 16


def test_fit_never(world: Any) -> None:
    report = fit_report(world.cache, nodes=1, gpus=16, now=NOW)
    assert report["fits"] == "never" and "8 at most" in report["sentence"] and report["leave"] is None
    assert fit_report(world.cache, nodes=5, gpus=8, level="rack", now=NOW)["fits"] == "never"


def test_fit_asks_the_teams_quota_too(world: Any) -> None:
    quota = fit_report(world.cache, nodes=6, gpus=8, team="vision", now=NOW)["quota"]
    assert not quota["ever"] and "32 at the very most" in quota["sentence"]
    assert fit_report(world.cache, nodes=4, gpus=8, team="vision", now=NOW)["quota"]["suffices"]


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        ({"nodes": 0, "gpus": 8}, "is none"),
        ({"nodes": 1, "gpus": 8, "pool": "b200"}, 'no pool is called "b200"'),
        ({"nodes": 1, "gpus": 8, "team": "nobody"}, 'no team is called "nobody"'),
        ({"nodes": 1, "gpus": 8, "team": "vision", "pool": "b200"}, "has no queue in pool b200"),
        ({"nodes": 1, "gpus": 8, "level": "row"}, "the levels are room, block, rack, node"),
    ],
)
def test_fit_refuses_what_makes_no_sense(world: Any, ask: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        fit_report(world.cache, now=NOW, **ask)
    assert words in str(caught.value)


def test_the_view_counts_stranded_gpus(world: Any, make: Any) -> None:
    world.put(PODS, make.pod("p", node_name="n0", gpus=3))
    (pool,) = fragmentation_report(world.cache)["pools"]
    assert pool["free_gpus"] == 61 and pool["stranded_gpus"] == 5
    sizes = {row["tier"]: row["whole_nodes"] for row in pool["largest_gang"]}
    assert sizes == {"node": 1, "rack": 4, "block": 7, "room": 7, "cluster": 7}
    with pytest.raises(InputError, match="no pool"):
        fragmentation_report(world.cache, "b200")


def test_a_queue_without_pool_label_counts_by_its_flavor(world: Any, make: Any) -> None:
    queue = make.cluster_queue("by-hand", gpus=8)
    queue["metadata"]["labels"] = {}
    world.put(CLUSTER_QUEUES, queue)
    (state,) = pool_states(world.cache, now=NOW).values()
    assert sorted(q.name for q in state.queues) == ["by-hand", "vision-h100"]
    assert len(state.nodes) == 8 and all(n.domains["rack"].startswith("hall1/b1/") for n in state.nodes)


def test_an_empty_cluster_has_empty_reports(world: Any) -> None:
    for kind in (NODES, CLUSTER_QUEUES, LOCAL_QUEUES, NAMESPACES, PODS, WORKLOADS):
        world.cache.replace(kind.plural, [])
    assert quota_report(world.cache, now=NOW)["quotas"] == [] and queue_report(world.cache, now=NOW) == []
    assert fragmentation_report(world.cache) == {"pools": []} and pool_states(world.cache, now=NOW) == {}
