"""The jobs of one seed: who stays, who comes and goes, who only waits. Pure: equal arguments give equal jobs.

Sizes and lifetimes are those of `myriad.sim.jobs` (a public trace's single-GPU jobs, 30 % gangs of two nodes or more,
5 % of sixteen or more, one of 128), shortened so that a run takes minutes. Some jobs stay to the end: what they leave
free is compared between arms, for they are the same jobs in each.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from myriad.sim import JobMix, SimJob, draw_jobs

TEAMS = ("vision", "language")
GPUS_PER_NODE = 8
_SHORTEST_S, _LONGEST_S, _FASTER = 10.0, 60.0, 40.0
"""Bounds of a running time in the bench, and how many times faster than in the trace it goes by."""


@dataclass(frozen=True, slots=True)
class BenchJob:
    """One job.

    Attributes:
        name, team: its Job's name and namespace.
        submit_s: seconds after the begin of its part.
        pods, gpus: pods, and GPUs of each.
        run_s: its pods end so long after they started; None = they stay.
        mode, level: its topology wish, "" and "" for none.
    """

    name: str
    team: str
    submit_s: float
    pods: int
    gpus: int
    run_s: float | None
    mode: str = ""
    level: str = ""

    @property
    def all_gpus(self) -> int:
        """GPUs of all pods."""
        return self.pods * self.gpus

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.team}/{self.name}"


@dataclass(frozen=True, slots=True)
class Draw:
    """The jobs of a seed.

    Attributes:
        burst: stay, and are submitted at once into the empty cluster.
        churn: come one after the other; some stay, the others end.
        pending: submitted when no quota is left.
        probes: submitted one by one while the pending ones wait.
    """

    burst: tuple[BenchJob, ...]
    churn: tuple[BenchJob, ...]
    pending: tuple[BenchJob, ...]
    probes: tuple[BenchJob, ...]

    @property
    def residents(self) -> frozenset[str]:
        """Keys of the jobs that stay."""
        return frozenset(j.key for j in (*self.burst, *self.churn) if j.run_s is None)


def draw(
    *,
    nodes: int,
    jobs: int,
    seed: int,
    load: float,
    pending: int,
    probes: int,
    probe_rate: float,
    resident: float = 0.55,
    burst: float = 0.30,
) -> Draw:
    """Draw the jobs of a seed.

    Args:
        nodes: of 8 GPUs; no gang takes more than an eighth of them.
        jobs: burst and churn together.
        seed: of everything.
        load: share of the GPUs that churning jobs which end ask for at any time; it says how soon they come.
        pending: jobs that wait without quota.
        probes: jobs whose reason is timed while those wait.
        probe_rate: probes a second.
        resident: share of the GPUs that stay taken; ``burst``: that is taken at once.
    """
    rng = random.Random(seed)  # noqa: S311 - no secret
    largest = max(2, nodes // 8)
    mix = JobMix(count=jobs, teams=dict.fromkeys(TEAMS, 1.0), largest=(min(128, largest),), required=0.1)
    drawn = [_bench_job(job, largest) for job in draw_jobs(mix, seed)]
    order = list(range(len(drawn)))
    rng.shuffle(order)
    gpus = nodes * GPUS_PER_NODE
    first = _take(drawn, order, burst * gpus, gpus)
    later = _take(drawn, [i for i in order if i not in first], (resident - burst) * gpus, gpus)
    ending = [job for i, job in enumerate(drawn) if i not in first and i not in later]
    gpu_seconds = sum(job.all_gpus * (job.run_s or 0.0) for job in ending) / max(1, len(ending))
    rate = load * gpus / gpu_seconds * (len(drawn) - len(first)) / max(1, len(ending))
    at = 0.0
    churn = []
    for i, job in enumerate(drawn):
        if i in first:
            continue
        at += rng.expovariate(rate)
        churn.append(_at(job, at, stays=i in later))
    return Draw(
        burst=tuple(_at(drawn[i], 0.0, stays=True) for i in order if i in first),
        churn=tuple(churn),
        pending=tuple(_waiters("wait", pending, seed, largest, 0.0)),
        probes=tuple(_waiters("probe", probes, seed + 1, largest, probe_rate)),
    )


def _bench_job(job: SimJob, largest: int) -> BenchJob:
    run_s = min(_LONGEST_S, max(_SHORTEST_S, job.run_s / _FASTER))
    wish = job.topology
    mode, level = (wish.mode, wish.level) if wish.level else ("", "")
    return BenchJob(job.name, job.team, job.submit_s, min(job.pods, largest), job.gpus_per_pod, run_s, mode, level)


def _take(drawn: Sequence[BenchJob], order: Sequence[int], goal: float, gpus: int) -> frozenset[int]:
    """Jobs that together take ``goal`` GPUs; none of them more than a sixteenth of all, so that many fit."""
    found: set[int] = set()
    left = goal
    for i in order:
        asked = drawn[i].all_gpus
        if asked <= min(left, gpus / 16):
            found.add(i)
            left -= asked
    return frozenset(found)


def _at(job: BenchJob, at: float, *, stays: bool) -> BenchJob:
    return replace(job, submit_s=at, run_s=None if stays else job.run_s)


def _waiters(prefix: str, count: int, seed: int, largest: int, rate: float) -> list[BenchJob]:
    """Jobs of the same mix that find no quota; they are never admitted, so they have no running time."""
    if not count:
        return []
    rng = random.Random(seed)  # noqa: S311 - no secret
    mix = JobMix(count=count, teams=dict.fromkeys(TEAMS, 1.0), largest=())
    out = []
    at = 0.0
    for k, job in enumerate(draw_jobs(mix, seed)):
        at += rng.expovariate(rate) if rate else 0.0
        out.append(replace(_bench_job(job, largest), name=f"{prefix}-{k:05d}", submit_s=at, run_s=None))
    return out
