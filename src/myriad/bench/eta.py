"""`make bench-eta`: estimates of start times against what happens in a simulated month, as JSON lines.

The month is a cluster of its own making: sizes and lifetimes of the jobs are those of a public GPU trace of 2023
(Alibaba's openb; `--trace` names the folder), request shapes stand for job names, names belong to teams; part of the
jobs are gangs. Time limits are drawn as people set them: a round number, mostly far too high, sometimes too low (then
the job ends at it), sometimes none. The queues are filled by Kueue's rules, and while the month runs the estimator is
asked every hour, knows only what has happened so far, and is judged when the job starts.

The first weeks train (history fills, corrections settle); only what is estimated in the rest of the month is counted.
The baseline in the same run: first in, first out over the whole pool, every job running to its limit (a job without one
to the pool's default).
"""

from __future__ import annotations

import argparse
import csv
import heapq
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from myriad.bench.lines import emit
from myriad.errors import InputError
from myriad.scheduler.eta.calibration import Calibration, Judged
from myriad.scheduler.eta.estimate import History, estimate
from myriad.scheduler.eta.model import (
    DAY_S,
    Eta,
    Kind,
    NodeState,
    PoolState,
    QueueState,
    Run,
    RunningJob,
    WaitingJob,
)

HOUR_S = 3600.0
ROUND_LIMITS_S = tuple(h * HOUR_S for h in (1, 2, 4, 8, 12, 24, 48, 72, 168))
DEFAULT_LIMIT_S = 24 * HOUR_S
ASK_EVERY_S = HOUR_S
TRAIN_S = 12 * DAY_S
TEAMS = ("vision", "speech", "search", "ads", "robots", "science")
"""Teams of the month. The trace has none."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the month: what is asked for, and what only the month itself knows (`life_s`)."""

    uid: str
    at: float
    kind: Kind
    queue: str
    pods: int
    per_pod: int
    limit_s: float | None
    life_s: float
    priority: int

    @property
    def gpus(self) -> int:
        """GPUs of all pods."""
        return self.pods * self.per_pod

    def waiting(self) -> WaitingJob:
        """As the estimator sees it."""
        return WaitingJob(self.uid, self.queue, self.kind, self.pods, self.per_pod, self.limit_s, self.priority)


@dataclass(frozen=True, slots=True)
class Month:
    """The jobs in order of submission, and the cluster that they run on."""

    jobs: tuple[Job, ...]
    queues: tuple[QueueState, ...]
    nodes: int
    gpus_per_node: int = 8


def make_month(trace: Path, *, seed: int, load: float = 0.95, gangs: float = 0.3, days: int = 31) -> Month:
    """Jobs from the trace, and a cluster on which they ask for `load` of the GPU time.

    Raises InputError where the trace is not there.
    """
    rows = _read(trace)
    rng = np.random.default_rng(seed)
    begin = np.percentile([r[0] for r in rows], 4)
    jobs: list[Job] = []
    weights = np.array([0.3, 0.22, 0.16, 0.14, 0.1, 0.08])
    owner: dict[str, str] = {}
    pattern: dict[str, tuple[float, bool, int]] = {}
    for k, (created, life, gpus, shape) in enumerate(rows):
        at = float(created - begin)
        if not 0 <= at < days * DAY_S:
            continue
        # One request shape is one team's recurring job; the largest shapes are cut into several names.
        name = f"{shape}.{int(rng.integers(4))}"
        team = owner.setdefault(name, str(rng.choice(TEAMS, p=weights)))
        # How its owner sets limits: a factor over the usual, whether one is set at all, and how urgent it is.
        slack, limited, priority = pattern.setdefault(
            name,
            (float(rng.lognormal(1.2, 0.8)), bool(rng.random() < 0.8), int(rng.choice([100, 500], p=[0.35, 0.65]))),
        )
        life = min(max(30.0, life), 7 * DAY_S)
        pods, per_pod = 1, max(1, gpus)
        if rng.random() < gangs:
            pods = int(rng.choice([2, 3, 4, 8], p=[0.5, 0.2, 0.2, 0.1]))
            per_pod = 8
        limit = None
        if limited:
            asked = life * slack * float(rng.lognormal(0.0, 0.3))
            limit = next((x for x in ROUND_LIMITS_S if x >= asked), ROUND_LIMITS_S[-1])
            life = min(life, limit)
        kind = Kind(team, name, pods * per_pod)
        jobs.append(Job(f"j{k}", at, kind, f"{team}-gpu", pods, per_pod, limit, life, priority))
    jobs.sort(key=lambda j: (j.at, j.uid))
    wanted = sum(j.gpus * j.life_s for j in jobs) / (days * DAY_S) / load
    nodes = max(8, round(wanted / 8))
    nominal = [int(nodes * 8 * w) for w in weights]
    queues = tuple(
        QueueState(f"{team}-gpu", n, "research", reclaims="Any" if team == "vision" else "Never")
        for team, n in zip(TEAMS, nominal, strict=True)
    )
    return Month(tuple(jobs), queues, nodes)


def _read(trace: Path) -> list[tuple[float, float, int, str]]:
    path = trace / "pods.csv"
    if not path.exists():
        raise InputError(
            "the trace is not there", where=str(path), hint="--trace names the folder with openb's pods.csv of 2023"
        )
    rows = []
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if int(row["num_gpu"]) and row["scheduled_time"] and row["deletion_time"]:
                life = float(row["deletion_time"]) - float(row["scheduled_time"])
                shape = f"{row['qos'].lower()}-{row['cpu_milli']}-{row['memory_mib']}-{row['gpu_milli']}"
                rows.append((float(row["creation_time"]), life, int(row["num_gpu"]), shape))
    return rows


class Cluster:
    """What happens: Kueue's rules by plain means, one change after the other. It shares no code with the estimator."""

    def __init__(self, month: Month) -> None:
        self.month = month
        self.free = [month.gpus_per_node] * month.nodes
        self.queue = {q.name: q for q in month.queues}
        self.used = dict.fromkeys(self.queue, 0)
        self.cohort = sum(q.nominal for q in month.queues)
        self.waiting: list[Job] = []
        self.placed: dict[str, tuple[Job, dict[int, int], float, float]] = {}
        """uid -> job, GPUs by node, start, end."""
        self.ends: list[tuple[float, str]] = []
        self.left: dict[str, float] = {}
        """Seconds that an evicted job still has to run."""
        self.evictions = 0
        self.busy = 0.0

    def add(self, job: Job) -> None:
        """A submission."""
        self.waiting.append(job)
        self.waiting.sort(key=lambda j: (-j.priority, j.at, j.uid))

    def end(self, uid: str, now: float) -> Job:
        """A job ends or is evicted."""
        job, nodes, started, _ = self.placed.pop(uid)
        for node, gpus in nodes.items():
            self.free[node] += gpus
        self.used[job.queue] -= job.gpus
        self.busy += job.gpus * (now - started)
        return job

    def admit(self, now: float) -> list[Job]:
        """Everybody who can start now, in order; who started."""
        started: list[Job] = []
        while True:
            best: tuple[tuple[float, ...], Job, dict[int, int]] | None = None
            seen: set[tuple[str, int, int]] = set()
            for job in self.waiting:
                # Of two alike in one queue the elder goes first; the younger need not be tried.
                if (job.queue, job.pods, job.per_pod) in seen:
                    continue
                seen.add((job.queue, job.pods, job.per_pod))
                q = self.queue[job.queue]
                over = self.used[job.queue] + job.gpus - q.nominal
                if sum(self.used.values()) + job.gpus > self.cohort:
                    continue
                usage = max(0, self.used[job.queue] - q.nominal)
                order = (float(over > 0), float(usage), -job.priority, job.at)
                if best is not None and order >= best[0]:
                    continue
                nodes = self._place(job)
                if nodes is not None:
                    best = (order, job, nodes)
            if best is None:
                job_or_none = self._reclaim(now)
                if job_or_none is None:
                    return started
                started.append(job_or_none)
                continue
            self._start(best[1], best[2], now)
            started.append(best[1])

    def _place(self, job: Job) -> dict[int, int] | None:
        """Fullest node first that holds a pod; None where not all pods fit."""
        free = np.asarray(self.free)
        room = free // job.per_pod
        if int(room.sum()) < job.pods:
            return None
        nodes: dict[int, int] = {}
        left = job.pods
        for i in np.lexsort((np.arange(len(free)), np.where(room > 0, free, 99))):
            if not left:
                break
            n = min(left, int(room[i]))
            if n:
                nodes[int(i)] = n * job.per_pod
                left -= n
        return nodes

    def _start(self, job: Job, nodes: dict[int, int], now: float) -> None:
        self.waiting.remove(job)
        for node, gpus in nodes.items():
            self.free[node] -= gpus
        self.used[job.queue] += job.gpus
        end = now + self.left.pop(job.uid, job.life_s)
        self.placed[job.uid] = (job, nodes, now, end)
        heapq.heappush(self.ends, (end, job.uid))

    def _reclaim(self, now: float) -> Job | None:
        """A queue that may takes its nominal quota back from borrowers, the youngest first."""
        for job in self.waiting:
            q = self.queue[job.queue]
            if q.reclaims != "Any" or self.used[job.queue] + job.gpus > q.nominal:
                continue
            head = next(j for j in self.waiting if j.queue == job.queue)
            if head is not job:
                continue
            victims: list[str] = []
            over = {name: self.used[name] - self.queue[name].nominal for name in self.used}
            before = list(self.free)
            gpus = 0
            for uid, (other, nodes, _, _) in sorted(self.placed.items(), key=lambda x: (x[1][0].priority, -x[1][2])):
                if other.queue == job.queue or over[other.queue] <= 0:
                    continue
                over[other.queue] -= other.gpus
                victims.append(uid)
                gpus += other.gpus
                for node, n in nodes.items():
                    self.free[node] += n
                place = self._place(job)
                if place is not None and sum(self.used.values()) - gpus + job.gpus <= self.cohort:
                    self.free = before
                    for victim in victims:
                        self._evict(victim, now)
                    self._start(job, place, now)
                    return job
            self.free = before
        return None

    def _evict(self, uid: str, now: float) -> None:
        end = self.placed[uid][3]
        job = self.end(uid, now)
        self.left[uid] = max(1.0, end - now)
        self.evictions += 1
        self.add(job)

    def state(self, now: float) -> PoolState:
        """What the estimator may see."""
        running = tuple(
            RunningJob(
                uid,
                job.queue,
                job.kind,
                job.gpus,
                now - started,
                None if job.limit_s is None else max(0.0, job.limit_s - (now - started)),
                {f"n{i}": g for i, g in nodes.items()},
                job.priority,
            )
            for uid, (job, nodes, started, _) in self.placed.items()
        )
        nodes = tuple(NodeState(f"n{i}", self.month.gpus_per_node, f) for i, f in enumerate(self.free))
        # Nobody keeps the elder's order by hand: the list is sorted by priority and age already.
        return PoolState(self.month.queues, nodes, running, tuple(j.waiting() for j in self.waiting), grace_s=0.0)


def fifo_by_limits(state: PoolState) -> dict[str, float]:
    """The baseline: one line, first in first out, everybody runs to the limit. Start in seconds, by uid."""
    ends = [(DEFAULT_LIMIT_S if r.limit_s is None else r.limit_s, r.gpus) for r in state.running]
    ends = [(max(0.0, end - (r.elapsed_s if r.limit_s is None else 0.0)), g) for (end, g), r in
            zip(ends, state.running, strict=True)]  # fmt: skip
    heapq.heapify(ends)
    free, now = sum(n.free for n in state.nodes), 0.0
    found = {}
    for job in state.waiting:
        while free < job.gpus and ends:
            end, gpus = heapq.heappop(ends)
            now, free = max(now, end), free + gpus
        if free < job.gpus:
            break
        found[job.uid] = now
        free -= job.gpus
        heapq.heappush(ends, (now + (job.limit_s or DEFAULT_LIMIT_S), job.gpus))
    return found


@dataclass(slots=True)
class Open:
    """An estimate that is not judged yet."""

    at: float
    raw: Eta
    told: Eta
    fifo_s: float | None


def run_month(
    month: Month,
    *,
    ask_every_s: float = ASK_EVERY_S,
    train_s: float = TRAIN_S,
    until_s: float = 31 * DAY_S,
    futures: int | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Play the month; every job's first estimate and one later are judged. The figures of the part after training."""
    cluster, history, calibration = Cluster(month), History(), Calibration()
    jobs = {j.uid: j for j in month.jobs}
    open_: dict[str, list[Open]] = {}
    judged: list[tuple[Open, float, Job]] = []
    came, asked_at, estimating_s, asked, most = 0, 0.0, 0.0, 0, 0
    now = 0.0
    while now < until_s:
        next_s = min(
            month.jobs[came].at if came < len(month.jobs) else np.inf,
            cluster.ends[0][0] if cluster.ends else np.inf,
            asked_at + ask_every_s,
        )
        now = float(next_s)
        while came < len(month.jobs) and month.jobs[came].at <= now:
            cluster.add(month.jobs[came])
            history.submit(_past(month.jobs[came], None))
            came += 1
        while cluster.ends and cluster.ends[0][0] <= now:
            end, uid = heapq.heappop(cluster.ends)
            placed = cluster.placed.get(uid)
            if placed is not None and placed[3] == end:
                cluster.end(uid, now)
                history.finish(_past(jobs[uid], jobs[uid].life_s))
        for job in cluster.admit(now):
            for o in open_.pop(job.uid, []):
                actual = now - o.at
                calibration.add(_judge(o, actual))
                if o.at >= train_s:
                    judged.append((o, actual, job))
        if now >= asked_at + ask_every_s:
            asked_at = now
            if not cluster.waiting:
                continue
            began = time.perf_counter()
            state = cluster.state(now)
            raw = estimate(state, history, now=now, seed=asked, futures=futures)
            estimating_s += time.perf_counter() - began
            asked += 1
            most = max(most, len(state.waiting))
            fifo = fifo_by_limits(state)
            calibration.forget_before(now - 30 * DAY_S)
            for w in state.waiting:
                known = open_.setdefault(w.uid, [])
                # The first one, and one more after an hour.
                if not known or (len(known) == 1 and now - known[0].at >= HOUR_S):
                    eta = raw[w.uid]
                    known.append(Open(now, eta, calibration.correct(eta), fifo.get(w.uid)))
            if progress and asked % 100 == 0:
                sys.stderr.write(f"day {now / DAY_S:.1f}: {len(state.waiting)} wait, {len(judged)} judged\n")
    still = sum(o.at >= train_s for os in open_.values() for o in os)
    return {
        **figures(judged),
        "not_started_at_the_end": still,
        "asked": asked,
        "longest_queue": most,
        "seconds_per_estimate_of_the_whole_queue": round(estimating_s / max(1, asked), 3),
        "utilisation": round(cluster.busy / (month.nodes * month.gpus_per_node * until_s), 3),
        "evictions": cluster.evictions,
        "jobs": len(month.jobs),
        "gpus": month.nodes * month.gpus_per_node,
    }


def _past(job: Job, run_s: float | None) -> Run:
    return Run(job.uid, job.kind, job.queue, job.at, run_s, job.limit_s, job.pods, job.per_pod, job.priority)


def _judge(o: Open, actual: float) -> Judged:
    r, t = o.raw, o.told
    return Judged(o.at, r.low_s, r.mid_s, r.high_s, t.low_s, t.mid_s, t.high_s, actual)


def figures(judged: Sequence[tuple[Open, float, Job]]) -> dict[str, Any]:
    """Coverage of the interval, errors of the middle and of the baseline, over estimates that both made."""
    if not judged:
        return {"judged": 0}
    held = [_judge(o, actual).held for o, actual, _ in judged]
    raw_held = [_judge(replace_told(o), actual).held for o, actual, _ in judged]
    both = [(o, a) for o, a, _ in judged if o.told.mid_s is not None and o.fifo_s is not None]
    ours = np.array([abs((o.told.mid_s or 0.0) - a) for o, a in both])
    uncorrected = np.array([abs((o.raw.mid_s or 0.0) - a) for o, a in both])
    theirs = np.array([abs((o.fifo_s or 0.0) - a) for o, a in both])
    actual = np.array([a for _, a in both])
    widths = [o.told.high_s - (o.told.low_s or 0.0) for o, _, _ in judged if o.told.high_s is not None]
    below = sum(a < np.floor(o.told.low_s or 0.0) for o, a, _ in judged)
    return {
        "judged": len(judged),
        "held": round(sum(held) / len(held), 4),
        "held_without_correction": round(sum(raw_held) / len(raw_held), 4),
        "started_before_the_interval": round(float(below) / len(judged), 4),
        "no_upper_bound": round(sum(o.told.high_s is None for o, _, _ in judged) / len(judged), 4),
        "median_width_s": round(float(np.median(widths))) if widths else None,
        "compared": len(both),
        "median_error_s": round(float(np.median(ours)), 1),
        "median_error_s_without_correction": round(float(np.median(uncorrected)), 1),
        "median_error_s_fifo_by_limits": round(float(np.median(theirs)), 1),
        "mean_error_s": round(float(ours.mean()), 1),
        "mean_error_s_fifo_by_limits": round(float(theirs.mean()), 1),
        "median_wait_s": round(float(np.median(actual)), 1),
    }


def replace_told(o: Open) -> Open:
    """The estimate as if its raw form had been told."""
    return replace(o, told=o.raw)


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line a seed, and one over all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=Path("data/openb-2023"), help="folder with openb's pods.csv")
    parser.add_argument("--seeds", type=int, default=3, help="months to play")
    parser.add_argument("--load", type=float, default=0.95, help="GPU time asked for, as a share of the cluster's")
    parser.add_argument("--days", type=int, default=31, help="length of the month")
    parser.add_argument(
        "--futures", type=int, default=None, help="futures of one estimate; by the queue's size without"
    )
    parser.add_argument("--progress", action="store_true", help="tell on stderr how far it is")
    options = parser.parse_args(argv)
    for seed in range(options.seeds):
        began = time.perf_counter()
        month = make_month(options.trace, seed=seed, load=options.load, days=options.days)
        found = run_month(month, until_s=options.days * DAY_S, futures=options.futures, progress=options.progress)
        took_s = round(time.perf_counter() - began, 1)
        emit(bench="eta", seed=seed, load=options.load, days=options.days, **found, took_s=took_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
