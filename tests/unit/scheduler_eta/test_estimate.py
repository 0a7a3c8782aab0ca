"""Futures of the queues: quota, order, places, preemption, limits, history, and what comes later."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from myriad.scheduler.eta import (
    History,
    Kind,
    NodeState,
    PoolState,
    QueueState,
    Run,
    RunningJob,
    RunTimes,
    WaitingJob,
    estimate,
    family_of,
    start_times,
)
from myriad.scheduler.eta.estimate import Comings, futures_for
from myriad.scheduler.eta.model import DAY_S, HORIZON_S

HOUR_S = 3600.0
TRAIN = Kind("vision", "train", 8)


def nodes(count: int, *, free: int = 8, rack: int = 4) -> tuple[NodeState, ...]:
    return tuple(NodeState(f"n{i}", 8, free, {"rack": f"r{i // rack}"}) for i in range(count))


def running(
    uid: str, *, node: str, limit_s: float | None = HOUR_S, elapsed_s: float = 0.0, **more: object
) -> RunningJob:
    job = RunningJob(uid, "vision-h100", TRAIN, 8, elapsed_s, limit_s, {node: 8})
    return replace(job, **more)  # type: ignore[arg-type]


def waiting(uid: str, *, pods: int = 1, gpus: int = 8, limit_s: float | None = HOUR_S, **more: object) -> WaitingJob:
    job = WaitingJob(uid, "vision-h100", TRAIN, pods, gpus, limit_s)
    return replace(job, **more)  # type: ignore[arg-type]


def pool(
    *jobs: WaitingJob, run: tuple[RunningJob, ...] = (), count: int = 2, quota: int = 16, free: int = 8, **queue: object
) -> PoolState:
    state = QueueState("vision-h100", quota)
    return PoolState((replace(state, **queue),), nodes(count, free=free), run, jobs)  # type: ignore[arg-type]


def past(count: int, run_s: float, *, kind: Kind = TRAIN, at: float = 0.0, gap_s: float = HOUR_S) -> list[Run]:
    return [Run(f"p{at}-{i}", kind, "vision-h100", at + i * gap_s, run_s, None, 1, kind.gpus) for i in range(count)]


def test_what_fits_starts_at_once() -> None:
    eta = estimate(pool(waiting("a")), History(), now=0.0)["a"]
    assert eta.low_s == eta.mid_s == eta.high_s == 0.0


def test_c9_a_limit_bounds_when_the_next_one_starts() -> None:
    """kueue#13159: a time with bounds and its basis, not only a position."""
    state = pool(
        waiting("a"), run=(running("x", node="n0", elapsed_s=600.0, limit_s=3000.0),), quota=8, free=0, count=1
    )
    eta = estimate(state, History(), now=0.0)["a"]
    assert eta.low_s is not None and eta.mid_s is not None and eta.high_s is not None
    assert 0 < eta.low_s <= eta.mid_s <= eta.high_s <= 3000.0 * 1.03
    assert "1 running jobs, 1 with a time limit" in eta.basis and "no earlier run" in eta.basis


def test_history_of_the_same_name_narrows_the_bounds() -> None:
    state = pool(waiting("a"), run=(running("x", node="n0", limit_s=None),), quota=8, free=0, count=1)
    wide = estimate(state, History(), now=0.0)["a"]
    narrow = estimate(state, History(past(60, 2 * HOUR_S)), now=0.0, futures=64)["a"]
    assert narrow.mid_s == pytest.approx(2 * HOUR_S, rel=0.05)
    assert narrow.low_s is not None and narrow.high_s is not None
    assert wide.low_s is not None and (wide.high_s or HORIZON_S) - wide.low_s > narrow.high_s - narrow.low_s


def test_a_job_that_has_outlived_its_likes_is_asked_about_longer_runs_only() -> None:
    times = RunTimes(past(50, HOUR_S) + past(10, 10 * HOUR_S, at=1.0))
    rest = times.draw(TRAIN, np.linspace(0.1, 0.9, 9), elapsed_s=2 * HOUR_S, limit_s=None)
    assert rest[4] == pytest.approx(8 * HOUR_S, rel=0.1)


def test_a_job_older_than_anything_known_lasts_about_as_long_again() -> None:
    rest = RunTimes().draw(TRAIN, np.array([0.5]), elapsed_s=60 * DAY_S, limit_s=None)
    assert rest[0] == pytest.approx(60 * DAY_S)


def test_a_job_past_its_limit_ends_now() -> None:
    assert RunTimes().draw(TRAIN, np.array([0.1, 0.9]), elapsed_s=7200.0, limit_s=3600.0).tolist() == [0.0, 0.0]


def test_order_is_kept_and_small_ones_pass_a_head_that_does_not_fit() -> None:
    jobs = (waiting("big", pods=2), waiting("small", gpus=1), waiting("later", pods=2))
    state = pool(*jobs, run=(running("x", node="n0"),), free=0, count=2)
    state = replace(state, nodes=(NodeState("n0", 8, 0), NodeState("n1", 8, 8)))
    starts = start_times(state, History(past(30, HOUR_S)), now=0.0)
    big, small, later = starts.T
    assert (small == 0).all() and (big > 0).all() and (later >= big).all()


def test_a_strict_queue_lets_nobody_pass_its_head() -> None:
    jobs = (waiting("big", pods=2), waiting("small", gpus=1))
    state = pool(*jobs, run=(running("x", node="n0"),), strict=True)
    state = replace(state, nodes=(NodeState("n0", 8, 0), NodeState("n1", 8, 8)))
    big, small = start_times(state, History(past(30, HOUR_S)), now=0.0).T
    assert (big > 0).all() and (small >= big).all()


def test_a_higher_priority_goes_first() -> None:
    jobs = (waiting("urgent", priority=500), waiting("normal"))
    state = pool(*jobs, run=(running("x", node="n0"),), quota=8, free=0, count=1)
    urgent, normal = start_times(state, History(past(30, HOUR_S)), now=0.0).T
    assert (urgent < normal).all()


def test_whole_nodes_are_needed_not_sums() -> None:
    """Eight GPUs free on two nodes are no place for a pod of eight."""
    state = pool(waiting("a"), run=(running("x", node="n0", gpus=4, nodes={"n0": 4}),), count=2, quota=32, free=4)
    assert (start_times(state, History(past(30, HOUR_S)), now=0.0) > 0).all()


def test_a_gang_bound_to_a_rack_waits_for_one_rack() -> None:
    spread = tuple(NodeState(f"n{i}", 8, 8 if i in (0, 4) else 0, {"rack": f"r{i // 4}"}) for i in range(8))
    held = tuple(running(f"x{i}", node=f"n{i}") for i in range(8) if i not in (0, 4))
    free = waiting("free", pods=2)
    bound = replace(free, uid="bound", level="rack")
    history = History(past(30, HOUR_S))
    anywhere = PoolState((QueueState("vision-h100", 64),), spread, held, (free,))
    assert (start_times(anywhere, history, now=0.0) == 0).all()
    assert (start_times(replace(anywhere, waiting=(bound,)), history, now=0.0) > 0).all()


def test_borrowing_stops_at_its_limit() -> None:
    queues = (QueueState("vision-h100", 8, "all", borrow_limit=0), QueueState("speech-h100", 8, "all"))
    state = PoolState(queues, nodes(2), (), (waiting("own"), waiting("more")))
    own, more = start_times(state, History(past(30, HOUR_S)), now=0.0).T
    assert (own == 0).all() and (more > 60).all()
    free = replace(state, queues=(replace(queues[0], borrow_limit=8), queues[1]))
    assert (start_times(free, History(past(30, HOUR_S)), now=0.0) < 1).all()


def test_a_lending_limit_keeps_what_it_keeps() -> None:
    queues = (QueueState("vision-h100", 8, "all"), QueueState("speech-h100", 8, "all", lend_limit=0))
    state = PoolState(queues, nodes(2), (), (waiting("own"), waiting("more")))
    own, more = start_times(state, History(past(30, HOUR_S)), now=0.0).T
    assert (own == 0).all() and (more > 60).all()


def test_nominal_quota_is_taken_back_within_the_grace() -> None:
    queues = (QueueState("vision-h100", 8, "all", reclaims="Any"), QueueState("speech-h100", 8, "all"))
    held = tuple(running(f"x{i}", node=f"n{i}", queue="speech-h100", limit_s=None) for i in range(2))
    state = PoolState(queues, nodes(2, free=0), held, (waiting("own"),), grace_s=300.0)
    (own,) = start_times(state, History(), now=0.0).T
    assert (own <= 300.0).all() and own.max() > 100.0
    never = replace(state, queues=(replace(queues[0], reclaims="Never"), queues[1]))
    assert np.median(start_times(never, History(), now=0.0)) > 300.0


def test_an_eviction_that_makes_no_place_evicts_nobody() -> None:
    """The victims stand on nodes of which the gang needs more than they free."""
    queues = (QueueState("vision-h100", 16, "all", reclaims="Any"), QueueState("speech-h100", 0, "all"))
    held = (running("x", node="n0", queue="speech-h100"), running("own", node="n1"))
    held = (replace(held[0]), replace(held[1], queue="", gpus=8))
    state = PoolState(queues, nodes(2, free=0), held, (waiting("gang", pods=2),), grace_s=0.0)
    starts = start_times(state, History(past(30, HOUR_S)), now=0.0)
    assert (starts > 0).all()


def test_who_can_never_start_and_who_is_stopped_have_no_time() -> None:
    state = pool(waiting("huge", pods=9), waiting("ok"))
    etas = estimate(state, History(), now=0.0)
    assert etas["huge"].mid_s is None and etas["huge"].high_s is None and etas["ok"].mid_s == 0.0
    assert estimate(pool(waiting("a"), stopped=True), History(), now=0.0) == {}
    assert estimate(pool(), History(), now=0.0) == {}
    assert estimate(pool(waiting("a", queue="gone")), History(), now=0.0) == {}


def test_an_empty_pool_says_beyond_the_horizon_instead_of_failing() -> None:
    state = PoolState((QueueState("vision-h100", 16),), (), (), (waiting("a"),))
    assert estimate(state, History(), now=0.0)["a"].mid_s is None


def test_jobs_that_come_later_with_priority_push_a_start_back() -> None:
    now = 6 * DAY_S
    urgent = [replace(r, priority=900) for r in past(6 * 24, HOUR_S)]
    state = pool(waiting("low"), run=(running("x", node="n0"),), quota=8, free=0, count=1)
    quiet = estimate(state, History(past(20, HOUR_S, at=-30 * DAY_S)), now=now)["low"]
    busy = estimate(state, History(urgent), now=now)["low"]
    assert quiet.mid_s is not None and (busy.mid_s is None or busy.mid_s > 2 * quiet.mid_s)


@pytest.mark.parametrize("span_s", [2.0, HOUR_S, DAY_S, DAY_S + 1, 3.5 * DAY_S])
def test_arrivals_go_on_to_the_horizon_and_end(span_s: float) -> None:
    runs = past(40, HOUR_S, gap_s=span_s / 40)
    comings = Comings(History(runs), {"vision-h100"}, span_s, np.random.default_rng(1))
    horizon = min(10 * DAY_S, 2000 * span_s / 40)
    times = [a.at_s for a in islice(comings.play(np.random.default_rng(2), horizon), 20_000)]
    assert times == sorted(times) and times and len(times) < 20_000


@pytest.mark.parametrize("gap_s", [0.05, 30.0])
def test_a_batch_on_a_new_cluster_is_no_rate_for_two_weeks(gap_s: float) -> None:
    """A hundred jobs in five seconds, gone on for two weeks, are twenty-four million: the pass would never end."""
    runs = past(100, 10.0, gap_s=gap_s)
    comings = Comings(History(runs), {"vision-h100"}, 100 * gap_s, np.random.default_rng(1))
    in_an_hour = sum(1 for arrival in comings.play(np.random.default_rng(2), HORIZON_S) if arrival.at_s <= HOUR_S)
    assert 50 <= in_an_hour <= 200
    assert sum(1 for _ in comings.play(np.random.default_rng(2), HORIZON_S, most=500)) == 500


def test_the_same_inputs_give_the_same_estimate() -> None:
    state = pool(waiting("a"), waiting("b"), run=(running("x", node="n0"),), quota=8, free=0, count=1)
    history = History(past(30, HOUR_S))
    assert estimate(state, history, now=0.0) == estimate(state, history, now=0.0)


def test_thousands_are_estimated_from_fewer_futures() -> None:
    assert futures_for(10) == 40 and futures_for(4000) == 30 and futures_for(100_000) == 16


def test_families_leave_counters_and_hashes_out() -> None:
    assert family_of("bert-ft-20261130-3") == family_of("bert-ft-20261201-17") == "bert-ft"
    assert family_of("train-x7k2p") == "train" and family_of("llama-sft-v2") == "llama-sft"
    assert family_of("12345") == "12345" and family_of("resnet50") == "resnet50"
