"""Jobs for a simulated cluster: sizes and lifetimes as real users' jobs have them, gangs and time limits drawn."""

from __future__ import annotations

import bisect
import csv
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from myriad.errors import InputError
from myriad.scheduler.model import TopologyRequest

_SHARES = (0.0, *(q / 20 for q in range(1, 20)), 0.975, 0.99)
_LIFETIMES_S = (4, 48, 67, 97, 144, 184, 218, 278, 367, 512, 655, 845, 1037, 1280, 1687, 2280, 3261, 4269, 7240, 16080,
                38852, 136474)  # fmt: skip
"""Quantiles, at `_SHARES`, of the lifetimes (scheduled to deleted) of the 6,129 pods with one GPU that were scheduled
in the public GPU trace of 2023 of Alibaba (alibaba/clusterdata, cluster-trace-gpu-v2023; Weng et al., "Beware of
Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC 2023)."""

_GPUS = {1: 6989, 2: 16, 4: 15, 8: 44}
"""Pods of that trace by GPUs asked; a share of a GPU counts as one."""

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class SimJob:
    """One job of a simulation.

    Attributes:
        name: unique.
        team: whose quota it is counted against.
        submit_s: when it comes.
        pods, gpus_per_pod: its size; it starts whole or not at all.
        run_s: what it takes when nothing happens to it.
        limit_s: the limit that its owner set and Kueue enforces; None = none.
        priority: of its class.
        topology: its wish.
    """

    name: str
    team: str
    submit_s: float
    pods: int
    gpus_per_pod: int
    run_s: float
    limit_s: float | None = None
    priority: int = 100
    topology: TopologyRequest = field(default_factory=TopologyRequest)

    @property
    def gpus(self) -> int:
        """GPUs of all pods."""
        return self.pods * self.gpus_per_pod


@dataclass(frozen=True, slots=True)
class Distribution:
    """Lifetimes and GPU counts to draw from.

    Attributes:
        shares, lifetimes_s: a lifetime's quantile function, by log-linear interpolation.
        gpus: weights of GPU counts of single-pod jobs.
        source: where it is from, for reports.
    """

    shares: tuple[float, ...] = _SHARES
    lifetimes_s: tuple[float, ...] = _LIFETIMES_S
    gpus: Mapping[int, float] = field(default_factory=lambda: dict(_GPUS))
    source: str = "quantiles of alibaba/clusterdata cluster-trace-gpu-v2023"

    @classmethod
    def read(cls, pods_csv: Path) -> Distribution:
        """From the trace itself (its pods.csv): all lifetimes in place of their quantiles. Raises InputError."""
        lifetimes: list[float] = []
        gpus: dict[int, float] = {}
        try:
            with pods_csv.open(newline="") as file:
                for row in csv.DictReader(file):
                    count = int(row["num_gpu"])
                    if count:
                        gpus[count] = gpus.get(count, 0) + 1
                    if count == 1 and row["scheduled_time"] and row["deletion_time"]:
                        lifetimes.append(max(1.0, float(row["deletion_time"]) - float(row["scheduled_time"])))
        except (OSError, KeyError, ValueError) as error:
            raise InputError(
                f"{pods_csv} is no pods.csv of the trace: {error}",
                hint="its columns are num_gpu, scheduled_time, deletion_time, ...",
            ) from error
        if len(lifetimes) < 2:
            raise InputError(f"{pods_csv} has no lifetimes of pods with one GPU")
        lifetimes.sort()
        shares = tuple(k / (len(lifetimes) - 1) for k in range(len(lifetimes)))
        return cls(shares, tuple(lifetimes), gpus, source=str(pods_csv.name))

    def lifetime_s(self, u: float) -> float:
        """The lifetime at share ``u`` of the jobs (0 to 1)."""
        k = bisect.bisect_right(self.shares, u)
        if k >= len(self.shares):
            return float(self.lifetimes_s[-1])
        a, b = self.shares[k - 1], self.shares[k]
        low, high = math.log(self.lifetimes_s[k - 1]), math.log(self.lifetimes_s[k])
        return math.exp(low + (high - low) * (u - a) / (b - a))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMix:
    """How jobs are drawn.

    Attributes:
        count: how many.
        teams: weights by team.
        over_s: they come evenly at random within this time.
        gangs: share of jobs of two nodes or more; ``large``: of 16 or more (counted in the former).
        largest: sizes in nodes of single gangs that come besides, one each.
        least_s, most_s: bounds of a job's running time.
        limited: share of jobs whose owner set a limit; it is the running time times a factor from ``slack``, so that
            some are killed by it where the factor may be below 1.
        priorities: weights by priority.
        gpus_per_node: a gang's pods take whole nodes.
        level: the level that gangs of up to 16 nodes prefer; larger ones prefer the block.
        required: share of gangs that require their level instead.
        distribution: lifetimes and sizes.
    """

    count: int
    teams: Mapping[str, float]
    over_s: float = _DAY_S
    gangs: float = 0.30
    large: float = 0.05
    largest: Sequence[int] = (128,)
    least_s: float = 60.0
    most_s: float = 2 * _DAY_S
    limited: float = 1.0
    slack: tuple[float, float] = (1.1, 4.0)
    priorities: Mapping[int, float] | None = None
    gpus_per_node: int = 8
    level: str = "rack"
    required: float = 0.0
    distribution: Distribution = field(default_factory=Distribution)


def draw_jobs(mix: JobMix, seed: int) -> list[SimJob]:
    """Jobs by submission time. Equal arguments give equal jobs."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    teams, weights = list(mix.teams), list(mix.teams.values())
    priorities = dict(mix.priorities or {100: 1.0})
    times = sorted(rng.uniform(0.0, mix.over_s) for _ in range(mix.count))
    places = set(rng.sample(range(mix.count // 4, max(mix.count // 4 + len(mix.largest), mix.count)), len(mix.largest)))
    largest = list(mix.largest)
    gpu_counts = [g for g in mix.distribution.gpus if g <= mix.gpus_per_node]
    gpu_weights = [mix.distribution.gpus[g] for g in gpu_counts]
    out = []
    for k, submit_s in enumerate(times):
        draw = rng.random()
        if k in places:
            pods, gpus = largest.pop(0), mix.gpus_per_node
        elif draw < mix.large:
            pods, gpus = rng.choice((16, 16, 16, 24, 32, 48, 64)), mix.gpus_per_node
        elif draw < mix.gangs:
            pods, gpus = rng.choice((2, 2, 2, 2, 3, 4, 4, 4, 6, 8, 8, 12)), mix.gpus_per_node
        else:
            pods, gpus = 1, rng.choices(gpu_counts, gpu_weights)[0]
        run_s = min(max(mix.distribution.lifetime_s(rng.random()), mix.least_s), mix.most_s)
        limit_s = run_s * rng.uniform(*mix.slack) if rng.random() < mix.limited else None
        topology = TopologyRequest()
        if pods > 1:
            mode = "required" if rng.random() < mix.required else "preferred"
            topology = TopologyRequest(mode, mix.level if pods <= 7 else "block" if pods <= 64 else "room")  # type: ignore[arg-type]
        out.append(
            SimJob(
                name=f"job-{k:05d}",
                team=rng.choices(teams, weights)[0],
                submit_s=submit_s,
                pods=pods,
                gpus_per_pod=gpus,
                run_s=run_s,
                # People write whole minutes.
                limit_s=None if limit_s is None else math.ceil(limit_s / 60.0) * 60.0,
                priority=rng.choices(list(priorities), list(priorities.values()))[0],
                topology=topology,
            )
        )
    return out


def renamed(job: SimJob, name: str, *, submit_s: float) -> SimJob:
    """The same job once more, later."""
    return replace(job, name=name, submit_s=submit_s)
