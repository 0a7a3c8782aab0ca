"""1,250 simulated nodes and 2,000 jobs with nodes that fail: what must hold is checked at every event."""

from __future__ import annotations

import pytest

from myriad.sim import Failures, JobMix, SimConfig, TeamQuota, Trace, draw_jobs, simulate

pytestmark = pytest.mark.slow

SITE = SimConfig(
    teams={"vision": TeamQuota(4000), "speech": TeamQuota(3000), "robots": TeamQuota(3000)},
    # A node dies about every three hours somewhere.
    failures=Failures(mean_s=150 * 86_400.0, repair_s=4 * 3600.0),
    pass_s=60.0,
)
MIX = JobMix(
    count=2000,
    teams={"vision": 4, "speech": 3, "robots": 3},
    over_s=2 * 3600.0,
    most_s=6 * 3600.0,
    priorities={100: 9, 500: 1},
    required=0.2,
)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return simulate(SITE, draw_jobs(MIX, seed=11), seed=11)


def test_the_jobs_are_as_asked(trace: Trace) -> None:
    jobs = [r.job for r in trace.jobs.values()]
    assert len(jobs) == 2000 and sum(j.pods == 128 for j in jobs) == 1
    assert (
        0.27 < sum(j.pods >= 2 for j in jobs) / 2000 < 0.33 and 0.035 < sum(j.pods >= 16 for j in jobs) / 2000 < 0.065
    )
    assert all(j.limit_s for j in jobs)


def test_every_job_ends_and_none_is_lost(trace: Trace) -> None:
    # Double bookings, quota given back twice and gangs bound in part for too long are errors of the simulation itself.
    never = {e.subject for e in trace.events if e.kind == "never"}
    assert [n for n, r in trace.jobs.items() if r.finished_s is None and n not in never] == []
    assert any(e.kind == "node_down" for e in trace.events)


def test_no_gang_is_bound_in_part_beyond_grace_and_a_minute(trace: Trace) -> None:
    assert max(r.partly_bound_s for r in trace.jobs.values()) <= SITE.grace_s + 60.0


def test_a_job_holds_nodes_once_at_a_time(trace: Trace) -> None:
    holding: set[str] = set()
    for event in trace.events:
        if event.kind == "reserved":
            assert event.subject not in holding, event
            holding.add(event.subject)
        elif event.kind in ("evicted", "finished", "limit"):
            assert event.subject in holding, event
            holding.discard(event.subject)
    assert not holding
