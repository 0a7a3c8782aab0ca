"""A gang of many nodes in a pool that small jobs keep full, with and without a protected domain.

`make bench-protection`. The same drawn jobs are played twice by `myriad.sim` for each seed: the planner, the rules of
steering and the choice of the protected nodes are the real ones, Kueue's admission is a model of it. Small jobs come at
random so that they ask for the given share of the pool; their lifetimes are those of the public trace
(`myriad.sim.jobs`), or of a pods.csv in the folder that $MYRIAD_OPENB names, between one minute and `--most-hours`. The
gang comes when the pool has filled.

Prints JSON lines. For each seed and arm: when the gang started (null: never), by when limits and grace said that it
would, the share of the pool's GPUs that ran jobs from the gang's submission to the end, and the small jobs that ended
in that time; then for each seed the comparison: `within_bound`, `utilisation_loss_points`, `small_job_throughput`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
from pathlib import Path
from typing import Any

from myriad.bench.lines import emit
from myriad.scheduler.model import TopologyRequest
from myriad.scheduler.policy import ProtectionPolicy
from myriad.sim import Distribution, SimConfig, SimJob, TeamQuota, Trace, simulate

HOUR = 3600.0


def small_jobs(
    *, gpus: int, load: float, until_s: float, most_s: float, distribution: Distribution, seed: int
) -> list[SimJob]:
    """Single-pod jobs that ask for ``load`` of ``gpus`` GPUs at every time from the begin on.

    The first ones stand for those that run already: as many as the load holds, each with a rest of its life.
    """
    rng = random.Random(seed)  # noqa: S311 - no secret
    counts = [g for g in distribution.gpus if g <= 8]
    weights = [distribution.gpus[g] for g in counts]

    def draw() -> tuple[float, int]:
        lifetime = distribution.lifetime_s(rng.random())
        return min(max(lifetime, 60.0), most_s), rng.choices(counts, weights)[0]

    sample = [draw() for _ in range(20_000)]
    gpu_seconds = statistics.fmean(run_s * n for run_s, n in sample)
    rate = load * gpus / gpu_seconds
    jobs: list[SimJob] = []

    def add(at: float, run_s: float, n: int) -> None:
        limit_s = math.ceil(run_s * rng.uniform(1.1, 3.0) / 60.0) * 60.0
        jobs.append(SimJob(f"small-{len(jobs):06d}", "site", at, 1, n, run_s, limit_s))

    # What runs at any moment is drawn by length: long jobs are met more often, each somewhere in its life.
    held = 0
    for run_s, n in rng.choices(sample, [run_s * n for run_s, n in sample], k=gpus):
        if held >= load * gpus:
            break
        add(0.0, max(1.0, run_s * rng.random()), n)
        held += n
    t = rng.expovariate(rate)
    while t < until_s:
        add(t, *draw())
        t += rng.expovariate(rate)
    return jobs


def play(options: argparse.Namespace, seed: int, distribution: Distribution) -> dict[str, Any]:
    """Both arms of one seed; prints a line for each and gives the comparison."""
    gpus = options.nodes * 8
    submit_s, until_s = options.submit_hours * HOUR, options.hours * HOUR
    jobs = small_jobs(
        gpus=gpus,
        load=options.load,
        until_s=until_s,
        most_s=options.most_hours * HOUR,
        distribution=distribution,
        seed=seed,
    )
    run_s = options.gang_hours * HOUR
    gang = SimJob(
        "gang", "site", submit_s, options.gang, 8, run_s, 2 * run_s, topology=TopologyRequest("preferred", "room")
    )
    arms: dict[str, dict[str, Any]] = {}
    for arm in ("unprotected", "protected"):
        policy = ProtectionPolicy(after_s=round(options.after_hours * HOUR), max_domains=1, max_share=0.25)
        config = SimConfig(
            nodes=options.nodes,
            racks=max(4, options.nodes * 160 // 1250),
            blocks=max(2, options.nodes * 10 // 1250),
            rooms=1 if options.nodes < 500 else 2,
            teams={"site": TeamQuota(gpus)},
            until_s=until_s,
            pass_s=options.pass_s,
            protection=policy if arm == "protected" else None,
            check_invariants=False,
        )
        trace = simulate(config, [*jobs, gang], seed)
        arms[arm] = figures(trace, submit_s, until_s)
        line = {"kind": "arm", "arm": arm, "seed": seed, "nodes": options.nodes, "gang_nodes": options.gang}
        print(json.dumps({**line, "jobs": len(jobs) + 1, **arms[arm]}), flush=True)
    free, kept = arms["unprotected"], arms["protected"]
    started, bound = kept["gang_started_h"], kept["gang_bound_h"]
    return {
        "kind": "comparison",
        "seed": seed,
        "within_bound": bool(started is not None and bound is not None and started <= bound),
        "never_without": free["gang_started_h"] is None,
        "utilisation_loss_points": round(100 * (free["utilisation"] - kept["utilisation"]), 2),
        "small_job_throughput": round(kept["small_jobs_ended"] / max(1, free["small_jobs_ended"]), 4),
    }


def figures(trace: Trace, submit_s: float, until_s: float) -> dict[str, Any]:
    """What one arm is judged by. Times are hours."""
    gang = trace.jobs["gang"]
    protected = [e for e in trace.of("gang") if e.kind == "protected"]
    # "<n> nodes until <seconds>": limits and grace of the domain when it was protected.
    bound_s = float(protected[0].detail.rpartition(" ")[2]) if protected else None
    ended = sum(
        1
        for r in trace.jobs.values()
        if r.job.pods == 1 and r.finished_s is not None and submit_s <= r.finished_s <= until_s
    )
    waits = sorted(
        r.wait_s
        for r in trace.jobs.values()
        if r.job.pods == 1 and r.wait_s is not None and submit_s <= r.job.submit_s <= until_s - 2 * HOUR
    )
    return {
        "gang_protected_h": round(protected[0].t_s / HOUR, 3) if protected else None,
        "gang_bound_h": None if bound_s is None else round(bound_s / HOUR, 3),
        "gang_started_h": None if gang.started_s is None else round(gang.admitted_s[0] / HOUR, 3),
        "held_before": round(trace.utilisation_between(submit_s - HOUR, submit_s), 4),
        "utilisation": round(trace.utilisation_between(submit_s, until_s), 4),
        "small_jobs_ended": ended,
        "small_wait_p50_s": round(waits[len(waits) // 2], 1) if waits else None,
        "small_wait_p99_s": round(waits[int(len(waits) * 0.99)], 1) if waits else None,
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--gang", type=int, default=128, help="nodes of the gang")
    parser.add_argument("--load", type=float, default=0.95, help="share of the pool that small jobs ask for")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--hours", type=float, default=24.0, help="simulated time")
    parser.add_argument("--submit-hours", type=float, default=2.0, help="when the gang comes")
    parser.add_argument("--after-hours", type=float, default=1.0, help="how long it waits before it is protected")
    parser.add_argument("--gang-hours", type=float, default=4.0, help="how long the gang runs")
    parser.add_argument("--most-hours", type=float, default=24.0, help="the longest small job")
    parser.add_argument("--pass-s", type=float, default=10.0, help="time between passes of steering")
    options = parser.parse_args()
    folder = os.environ.get("MYRIAD_OPENB")
    distribution = Distribution.read(Path(folder) / "pods.csv") if folder else Distribution()
    for seed in range(1, options.seeds + 1):
        emit(**play(options, seed, distribution))


if __name__ == "__main__":
    main()
