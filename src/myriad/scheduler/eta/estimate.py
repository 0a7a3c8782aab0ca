"""Start times of everything that waits in a pool, in one pass: a handful of futures, and their percentiles. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from myriad.scheduler.eta.durations import RunTimes
from myriad.scheduler.eta.model import DAY_S, HORIZON_S, Eta, Kind, PoolState, Run, WaitingJob
from myriad.scheduler.eta.simulation import Arrival, Future, Layout

FloatArray = npt.NDArray[np.float64]

LOW, MID, HIGH = 0.1, 0.5, 0.9
FUTURES = 40
_MOST_STEPS = 120_000
"""Bound on futures x jobs: a queue of thousands is estimated from fewer futures, at about the same cost."""
_LEAST_FUTURES = 16
_ARRIVAL_DAYS = 14
_LEAST_ARRIVALS = 20
_LEAST_SPAN_S = 3600.0
"""A rate is one of an hour at least: a hundred jobs that came in five seconds are a batch and no rate."""
_MOST_ARRIVALS = 400_000
"""Bound on futures x jobs that may come. Whoever waits behind so many waits long, and a pass has to end."""


class History:
    """What ran and what came: the run times by kind, and the submissions in order of time.

    Args:
        runs: jobs of the past, any order.
    """

    def __init__(self, runs: Sequence[Run] = ()) -> None:
        self.run_times = RunTimes(sorted(runs, key=lambda r: r.submitted_at))
        self.submitted = sorted(runs, key=lambda r: r.submitted_at)
        self._times = [r.submitted_at for r in self.submitted]

    def submit(self, run: Run) -> None:
        """A job came."""
        i = bisect_left(self._times, run.submitted_at)
        self.submitted.insert(i, run)
        self._times.insert(i, run.submitted_at)

    def finish(self, run: Run) -> None:
        """A job that came has ended."""
        self.run_times.add(run)
        i = bisect_left(self._times, run.submitted_at)
        while i < len(self._times) and self._times[i] == run.submitted_at:
            if self.submitted[i].uid == run.uid:
                self.submitted[i] = run
                return
            i += 1
        self.submit(run)

    def forget_before(self, at: float) -> None:
        """Drop submissions before a time; run times bound themselves."""
        i = bisect_left(self._times, at)
        del self.submitted[:i], self._times[:i]


class Comings:
    """Jobs that may come, as they came before. Whole stretches of the past are played again from the same hour of some
    earlier day on, so that bursts, nights and a team's batches stay what they are; where less than a day is known, they
    come one by one at the rate seen.

    Args:
        history: what came.
        queues: names of the queues that matter.
        now: epoch seconds.
        rng: for the run times of those that have not ended.
    """

    def __init__(self, history: History, queues: Container[str], now: float, rng: np.random.Generator) -> None:
        self.now = now
        first = bisect_left(history._times, now - _ARRIVAL_DAYS * DAY_S)
        past = [r for r in history.submitted[first:] if r.queue in queues and r.submitted_at <= now]
        self.past: list[tuple[float, WaitingJob, float]] = []
        for run in past if len(past) >= _LEAST_ARRIVALS else []:
            run_s = run.run_s
            if run_s is None:
                run_s = float(history.run_times.draw(run.kind, np.array([rng.random()]), limit_s=run.limit_s)[0])
            job = WaitingJob(run.uid, run.queue, run.kind, run.pods, run.gpus_per_pod, run.limit_s, run.priority)
            self.past.append((run.submitted_at, job, run_s))
        self._times = [at for at, _, _ in self.past]
        self._span_s = now - self._times[0] if self.past else 0.0

    def play(self, rng: np.random.Generator, horizon_s: float, *, most: int = _MOST_ARRIVALS) -> Iterator[Arrival]:
        """One course of arrivals, in order of time from now on; the first `most` of them."""
        if not self.past:
            return iter(())
        days = int(self._span_s // DAY_S)
        return islice(self._again(rng, days, horizon_s) if days else self._one_by_one(rng, horizon_s), most)

    def _again(self, rng: np.random.Generator, days: int, horizon_s: float) -> Iterator[Arrival]:
        since = 0.0
        while since < horizon_s:
            # Some earlier day from this hour to now; then another one goes on from there.
            length = DAY_S * float(rng.integers(1, days + 1))
            begin = self.now - length
            for time, job, run_s in self.past[bisect_right(self._times, begin) :]:
                yield Arrival(since + time - begin, job, run_s)
            since += length

    def _one_by_one(self, rng: np.random.Generator, horizon_s: float) -> Iterator[Arrival]:
        gap_s, at = max(_LEAST_SPAN_S, self._span_s) / len(self.past), 0.0
        while at < horizon_s:
            at += float(rng.exponential(gap_s))
            _, job, run_s = self.past[int(rng.integers(len(self.past)))]
            yield Arrival(at, job, run_s)


def futures_for(jobs: int) -> int:
    """How many futures a pool with so many jobs is estimated from."""
    return max(_LEAST_FUTURES, min(FUTURES, _MOST_STEPS // max(1, jobs)))


def start_times(
    state: PoolState,
    history: History,
    *,
    now: float,
    seed: int = 0,
    futures: int | None = None,
    horizon_s: float = HORIZON_S,
) -> FloatArray:
    """(S, P) start of every waiting job in every future, `inf` beyond the horizon. The same inputs give the same.

    Args:
        state: the pool now.
        history: what ran and came before.
        now: epoch seconds, for the hour of the day.
        seed: of the draws.
        futures: how many; by the size of the queue where it is not given.
        horizon_s: the end of time.
    """
    count = futures or futures_for(len(state.waiting) + len(state.running))
    rng = np.random.default_rng(seed)
    layout = Layout(state)
    runs = np.empty((count, len(state.running)))
    for i, running in enumerate(state.running):
        limit = None if running.limit_s is None else running.elapsed_s + max(0.0, running.limit_s)
        runs[:, i] = history.run_times.draw(
            running.kind, _strata(count, rng), elapsed_s=running.elapsed_s, limit_s=limit
        )
    waits = np.empty((count, len(state.waiting)))
    for i, waiting in enumerate(state.waiting):
        waits[:, i] = history.run_times.draw(waiting.kind, _strata(count, rng), limit_s=waiting.limit_s)
    graces = rng.random((count, len(state.waiting))) * state.grace_s
    starts = np.empty((count, len(state.waiting)))
    comings = Comings(history, layout.queue_of, now, rng)
    for s in range(count):
        future = Future(layout, horizon_s=horizon_s)
        arrivals = comings.play(np.random.default_rng((seed, s)), horizon_s, most=_MOST_ARRIVALS // count)
        starts[s] = future.play(runs[s], waits[s], arrivals, graces=graces[s])
    return starts


def _strata(count: int, rng: np.random.Generator) -> FloatArray:
    """One draw from each of `count` equal parts of 0..1, in random order: few futures cover a distribution evenly."""
    return np.asarray((rng.permutation(count) + rng.random(count)) / count, dtype=np.float64)


def estimate(
    state: PoolState,
    history: History,
    *,
    now: float,
    seed: int = 0,
    futures: int | None = None,
    horizon_s: float = HORIZON_S,
) -> dict[str, Eta]:
    """The estimate of every waiting job, by uid. Jobs of stopped queues have none. See `start_times`."""
    if not state.waiting:
        return {}
    starts = start_times(state, history, now=now, seed=seed, futures=futures, horizon_s=horizon_s)
    stopped = {q.name for q in state.queues if q.stopped}
    known = {q.name for q in state.queues}
    levels = _percentiles(starts)
    found = {}
    for i, waiting in enumerate(state.waiting):
        if waiting.queue in known - stopped:
            low, mid, high = (None if math.isinf(x) else float(x) for x in levels[:, i])
            found[waiting.uid] = Eta(low, mid, high, basis_of(state, history))
    return found


def _percentiles(starts: FloatArray) -> FloatArray:
    """(3, P) the 10th, 50th and 90th percentile over futures; read at order statistics, since some are infinite."""
    ordered = np.sort(starts, axis=0)
    last = len(ordered) - 1
    return np.stack([ordered[math.floor(LOW * last)], ordered[round(MID * last)], ordered[math.ceil(HIGH * last)]])


def basis_of(state: PoolState, history: History) -> str:
    """What an estimate rests on, in words."""
    limited = sum(r.limit_s is not None for r in state.running)
    parts = []
    if state.running:
        parts.append(f"{len(state.running)} running jobs, {limited} with a time limit")
    else:
        parts.append("nothing runs")
    seen = history.run_times.count
    parts.append(f"run times of {seen} earlier jobs" if seen else "no earlier run is known yet, so bounds are wide")
    return "; ".join(parts)


def likeness(history: History, kind: Kind) -> str:
    """How well a kind is known, for a line about one job."""
    n = history.run_times.like(kind)
    return f"{n} earlier runs like it" if n else "no earlier run like it"
