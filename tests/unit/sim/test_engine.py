"""The simulated cluster: equal arguments give equal traces, nothing is booked twice, and jobs end as they must."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from myriad.errors import InputError
from myriad.scheduler.model import DEFAULT_GPU_RESOURCE, PodSet, TopologyRequest
from myriad.scheduler.snapshot import Snapshot
from myriad.sim import (
    Failures,
    InvariantError,
    JobMix,
    SimConfig,
    SimJob,
    TeamQuota,
    draw_jobs,
    simulate,
    site_nodes,
)
from myriad.sim.engine import Simulation
from myriad.sim.kueue import Quotas, Tas

SMALL = SimConfig(nodes=16, racks=4, blocks=2, rooms=1, teams={"vision": TeamQuota(96), "speech": TeamQuota(32)})


def job(name: str, pods: int, *, at: float = 0.0, run_s: float = 600.0, team: str = "vision", **more: object) -> SimJob:
    return SimJob(name, team, at, pods, 8, run_s, **more)  # type: ignore[arg-type]


def kinds(trace: object, name: str) -> list[str]:
    return [e.kind for e in trace.of(name)]  # type: ignore[attr-defined]


def test_a_job_that_fits_runs_and_ends() -> None:
    trace = simulate(SMALL, [job("a", 4)])
    assert kinds(trace, "a") == ["submitted", "reserved", "admitted", "bound", "started", "finished"]
    record = trace.jobs["a"]
    assert record.finished_s == pytest.approx(record.started_s + 600.0)
    assert record.tier == "rack" and sum(record.nodes.values()) == 4


def test_equal_arguments_give_equal_traces_and_another_seed_another() -> None:
    jobs = draw_jobs(JobMix(count=60, teams={"vision": 3, "speech": 1}, over_s=3600.0, largest=()), seed=5)
    config = replace(SMALL, failures=Failures(mean_s=20_000.0, repair_s=600.0))
    first = simulate(config, jobs, seed=1)
    assert first.digest() == simulate(config, jobs, seed=1).digest()
    assert first.digest() != simulate(config, jobs, seed=2).digest()


def test_a_waiting_gang_is_steered_and_starts_there() -> None:
    config = replace(SMALL, teams={"vision": TeamQuota(96, borrow=0), "speech": TeamQuota(32)})
    trace = simulate(config, [job("holder", 12), job("waits", 4, at=10.0)])
    assert kinds(trace, "waits")[:2] == ["submitted", "steered"]
    steered = next(e for e in trace.of("waits") if e.kind == "steered")
    place = steered.detail.split(":")[0].removeprefix("steered to ").split("/")
    # It waited for quota; a rack was free, it was led there, and quota, nodes and admission came in one moment.
    moments = {e.kind: e.t_s for e in trace.of("waits")}
    assert moments["reserved"] == moments["admitted"] == trace.jobs["holder"].finished_s
    racks = {n.location for n in site_nodes(SMALL) if n.name in trace.jobs["waits"].nodes}
    assert racks == {tuple(place)}


def test_an_owner_reclaims_what_was_lent_and_the_victim_ends_later() -> None:
    config = replace(SMALL, teams={"vision": TeamQuota(64), "speech": TeamQuota(64)})
    jobs = [job("borrower", 12, run_s=5000.0), job("owner", 8, at=1000.0, team="speech")]
    trace = simulate(config, jobs, seed=3)
    assert kinds(trace, "borrower").count("evicted") == 1
    owner, borrower = trace.jobs["owner"], trace.jobs["borrower"]
    assert owner.started_s is not None and owner.started_s < 1000.0 + 300.0 + 60.0
    assert owner.partly_bound_s <= 360.0
    assert borrower.finished_s is not None and borrower.finished_s > owner.finished_s  # type: ignore[operator]


def test_a_victim_does_not_take_back_what_it_was_evicted_for() -> None:
    config = replace(SMALL, teams={"vision": TeamQuota(64), "speech": TeamQuota(64)})
    # The borrower came first: by age it would be asked before the owner that evicted it.
    jobs = [job("borrower", 16, run_s=5000.0), job("owner", 8, at=1000.0, team="speech", run_s=300.0)]
    trace = simulate(config, jobs, seed=1)
    assert kinds(trace, "borrower").count("evicted") == 1 and kinds(trace, "owner").count("admitted") == 1


def test_the_limit_ends_a_job_and_is_counted_from_admission() -> None:
    trace = simulate(SMALL, [job("long", 2, run_s=5000.0, limit_s=600.0)])
    record = trace.jobs["long"]
    assert record.killed_by_limit and record.finished_s == pytest.approx(record.admitted_s[0] + 600.0)


def test_a_job_that_can_never_fit_is_said_so_at_once() -> None:
    trace = simulate(SMALL, [job("huge", 17), job("small", 1)])
    assert kinds(trace, "huge") == ["submitted", "never"]
    assert trace.jobs["small"].finished_s is not None


def test_a_dead_node_is_replaced_and_costs_what_was_not_checkpointed() -> None:
    simulation = Simulation(SMALL, [job("gang", 4, run_s=2000.0)], 0, None)
    run = simulation.runs[0]
    simulation.at(1000.0, lambda: simulation._node_down(next(iter(run.place))))
    trace = simulation.run()
    record = trace.jobs["gang"]
    # 900 s of the 980 done were saved; one more start.
    assert record.finished_s == pytest.approx(1000.0 + 20.0 + 1100.0, abs=1.0)
    assert not record.evicted_s


def test_a_double_booking_is_found_at_the_event_that_makes_it() -> None:
    simulation = Simulation(SMALL, [job("a", 2)], 0, None)
    simulation.at(100.0, lambda: simulation.held.__setitem__(0, 9))
    with pytest.raises(InvariantError, match="9 GPUs held on node gpu00000"):
        simulation.run()


def test_observation_gives_queues_in_order() -> None:
    seen = []
    jobs = [
        job("holder", 16, run_s=900.0, priority=500),
        job("b", 16, at=20.0),
        job("c", 16, at=10.0),
        job("a", 16, at=30.0, priority=500),
    ]
    simulate(replace(SMALL, observe_s=400.0), jobs, observe=seen.append)
    assert [j.name for j in seen[0].waiting["vision"]] == ["a", "c", "b"] and seen[0].admissions == 1


def test_quota_is_lent_within_its_limits() -> None:
    quotas = Quotas({"a": TeamQuota(64, borrow=16), "b": TeamQuota(64, lend=32)})
    assert quotas.available("a") == 80 and quotas.available("b") == 128
    quotas.used["a"] = 80
    assert quotas.available("a") == 0 and quotas.available("b") == 48 and quotas.borrows("a")


@pytest.mark.parametrize(
    ("topology", "count", "nodes"),
    [
        # Best fit: the rack with the fewest free nodes that hold it.
        (TopologyRequest("preferred", "rack"), 2, {4, 5}),
        (TopologyRequest("required", "rack"), 4, {8, 9, 10, 11}),
        # Too large for a rack: the block that holds it, fewest racks.
        (TopologyRequest("preferred", "rack"), 6, {8, 9, 10, 11, 12, 13}),
    ],
)
def test_tas_takes_the_fullest_domain_that_fits(topology: TopologyRequest, count: int, nodes: set[int]) -> None:
    tas = Tas(Snapshot.build(site_nodes(SMALL)))
    tas.used[[0, 1, 2, 3, 6, 7]] = 8
    place = tas.assign(PodSet("main", count, {DEFAULT_GPU_RESOURCE: 8}, topology=topology), "h100")
    assert place is not None and set(place) == nodes and set(place.values()) == {1}


def test_tas_without_a_wish_takes_the_least_free_nodes_first() -> None:
    tas = Tas(Snapshot.build(site_nodes(SMALL)))
    tas.used[:] = 8
    tas.used[[3, 7, 9]] = [7, 4, 0]
    one = tas.assign(PodSet("main", 1, {DEFAULT_GPU_RESOURCE: 1}), "h100")
    six = tas.assign(PodSet("main", 6, {DEFAULT_GPU_RESOURCE: 2}), "h100")
    assert one == {3: 1} and six == {7: 2, 9: 4}
    assert not np.any(tas.used < 0)


def test_a_cluster_that_cannot_be_laid_out_is_refused() -> None:
    with pytest.raises(InputError, match="4 racks, 8 blocks"):
        SimConfig(nodes=16, racks=4, blocks=8, teams={"a": TeamQuota(1)})
