"""Two gangs that each want 60 % of the pool, fifty times, in random order and sizes: one runs, the other waits with a
reason, both end; no deadlock, no double booking, no gang bound in part beyond grace + 60 s."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from myriad.scheduler.model import TopologyRequest
from myriad.sim import Failures, SimConfig, SimJob, TeamQuota, simulate
from myriad.sim.engine import Simulation

SITE = SimConfig(nodes=40, racks=8, blocks=4, rooms=2, teams={"a": TeamQuota(160), "b": TeamQuota(160)})


@pytest.mark.parametrize("steered", [True, False], ids=["steered", "kueue alone"])
def test_a19_two_gangs_of_sixty_percent_never_hold_each_other_up(steered: bool) -> None:
    for seed in range(50):
        rng = random.Random(seed)  # noqa: S311 - no secret
        gangs = []
        for name, team in rng.sample([("one", "a"), ("two", "b")], 2):
            gpus = rng.choice((1, 2, 4, 8))
            pods = round(320 * rng.uniform(0.55, 0.65) / gpus)
            at, run_s = rng.uniform(0.0, 3.0), rng.uniform(100.0, 3000.0)
            topology = rng.choice((TopologyRequest(), TopologyRequest("preferred", "block")))
            priority = rng.choice((100, 100, 500))
            gangs.append(SimJob(name, team, at, pods, gpus, run_s, priority=priority, topology=topology))
        failures = Failures(mean_s=40_000.0, repair_s=900.0) if seed % 2 else Failures()
        trace = simulate(replace(SITE, steered=steered, failures=failures), gangs, seed)
        for name, record in trace.jobs.items():
            assert record.finished_s is not None, f"seed {seed}: {name} never ended"
            assert record.partly_bound_s <= SITE.grace_s + 60.0, f"seed {seed}: {name}"
        # Both together do not fit: the one that came second waited for the first (or took its place back by quota).
        spans = [(r.admitted_s[-1], r.finished_s) for r in trace.jobs.values()]
        (_, early_end), (late_begin, _) = sorted(spans)
        assert late_begin >= early_end - 1e-6, f"seed {seed}: {spans}"


def test_the_loser_is_told_why() -> None:
    gangs = [SimJob("one", "a", 0.0, 24, 8, 500.0), SimJob("two", "b", 1.0, 24, 8, 500.0)]
    config = replace(SITE, teams={"a": TeamQuota(320, lend=0), "b": TeamQuota(320, lend=0)}, observe_s=60.0)
    seen: list[str] = []
    simulation = Simulation(config, gangs, 0, lambda _: seen.append(simulation.trace.jobs["two"].reason))
    simulation.run()
    assert "needs 192 H100 in pods of 8; room for 128 is free now" in seen[0]
