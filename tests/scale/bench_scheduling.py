"""Kueue alone, with its topology-aware scheduling, and with that steered by Myriad, on simulated nodes.
`make bench-scheduling`.

Every seed of every arm has a new control plane (etcd, API server, controller manager, scheduler, Kueue; plain
processes on loopback; kwok plays the nodes), so none carries another's load, and begins when that is at rest. All arms
of a seed get the same jobs at the same pace, and all clients of the API have the same limit of requests a second. The
arms' order changes from seed to seed. What each does:

- burst: jobs that stay are submitted at once into the empty cluster (workloads admitted a second);
- churn: jobs come one after the other; most of them end again, and some stay. When it is over only those that stay are
  left, the same in every arm: their nodes say what is still free in one piece;
- reasons: the quotas are cut to what is held. Jobs are submitted until `--pending` of them wait, and once the cluster
  is at rest `--probes` more, one by one: when can their owner read why, and are the numbers right? Read on the Workload
  where Kueue is alone (the Job says nothing there), and on the Job itself with Myriad. Judged by
  `myriad.bench.scheduling.oracle`.

Prints JSON lines: one for every seed and arm, then the comparison with confidence intervals over the seeds, each seed
of an arm against the same seed of another. Times are this machine's: compare the ratios of one run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from myriad.bench.lines import emit
from myriad.bench.scheduling import kwok
from myriad.bench.scheduling.jobs import TEAMS, BenchJob, Draw, draw
from myriad.bench.scheduling.judge import TIERS, Site, Stay, free_after, interval, site_of, tiers_used
from myriad.bench.scheduling.observe import Observed, Seen
from myriad.bench.scheduling.oracle import Asked, Ledger, first_reason
from myriad.errors import MyriadError
from myriad.kube.client import Api
from myriad.kube.kinds import CLUSTER_QUEUES, JOBS
from tests.scale.cluster import (
    CREATORS,
    FLAT,
    POOL,
    apiserver,
    at_rest,
    cluster,
    create,
    end_when_told,
    extension_objects,
    in_parallel,
    memory_mb,
    processor_s,
    quantiles,
    queues,
    say,
    start_extension,
    without_topology,
)

Json = dict[str, Any]

ARMS = ("kueue", "tas", "myriad")


# The jobs


def body_of(job: BenchJob, queue: str) -> Json:
    """A job as a batch Job; a topology wish is said where the queue's flavor has one."""
    notes: dict[str, str] = {}
    if queue != FLAT and job.mode:
        notes[f"kueue.x-k8s.io/podset-{job.mode}-topology"] = f"myriad.dev/{job.level}"
    if job.run_s is not None:
        notes[kwok.RUN_FOR] = f"{job.run_s:.1f}s"
    body = apiserver.gang_job(
        job.name, pods=job.pods, gpus=job.gpus, namespace=job.team, pool=queue, metadata={"annotations": notes}
    )
    return dict(body)


# A seed of an arm


class Part:
    """Submits jobs of an arm and waits for what comes of them."""

    def __init__(self, api: Api, observed: Observed, *, queue: str, plane: Any) -> None:
        self.api, self.observed, self.queue, self.plane = api, observed, queue, plane

    def at_once(self, jobs: Sequence[BenchJob]) -> None:
        """Submit as fast as the API takes them."""
        in_parallel(self._create, jobs)

    def in_time(self, jobs: Sequence[BenchJob]) -> float:
        """Submit each at its time; the most that one was late, in seconds."""
        begun, late = time.monotonic(), 0.0
        with ThreadPoolExecutor(CREATORS) as pool:
            for job in jobs:
                wait_s = begun + job.submit_s - time.monotonic()
                if wait_s > 0:
                    time.sleep(wait_s)
                late = max(late, -wait_s)
                pool.submit(self._create, job)
        return late

    def _create(self, job: BenchJob) -> None:
        self.observed.submitted(job.key)
        create(self.api, JOBS, body_of(job, self.queue), job.team)

    def settled(self, jobs: Sequence[BenchJob], done: Callable[[Seen], bool], timeout_s: float) -> bool:
        """Wait until it is so for all of them; False where it was not in time."""
        end = time.monotonic() + timeout_s
        keys = [j.key for j in jobs]
        while time.monotonic() < end:
            with self.observed.lock:
                left = sum(1 for key in keys if key not in self.observed.jobs or not done(self.observed.jobs[key]))
            if not left:
                return True
            time.sleep(0.5)
        return False


def play(options: argparse.Namespace, arm: str, seed: int, plane: Any, api: Api) -> Json:
    """One seed of one arm; its figures."""
    site = site_of(options.nodes)
    jobs = draw(
        nodes=options.nodes,
        jobs=options.jobs,
        seed=seed,
        load=options.load,
        pending=options.pending,
        probes=options.probes,
        probe_rate=options.probe_rate,
    )
    queue = FLAT if arm == "kueue" else POOL
    set_quotas(api, queue, dict.fromkeys(TEAMS, options.nodes * 8 // len(TEAMS)))
    if arm == "myriad":
        start_extension(plane, api)
    at_rest(plane)
    begun = time.monotonic()
    observed = Observed(api, {j.key: j.pods for j in (*jobs.burst, *jobs.churn, *jobs.pending, *jobs.probes)})
    observed.start()
    try:
        figures = parts(options, arm, jobs, Part(api, observed, queue=queue, plane=plane), site)
        figures["memory_mb"] = memory_mb(plane)
    finally:
        observed.stop()
    return {
        "kind": "arm", "arm": arm, "seed": seed, "nodes": options.nodes, "qps": options.qps, **figures,
        "seconds": round(time.monotonic() - begun), "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def parts(options: argparse.Namespace, arm: str, jobs: Draw, part: Part, site: Site) -> Json:
    """Burst, churn and reasons, one after the other."""
    observed = part.observed
    cpu = processor_s(part.plane)
    part.at_once(jobs.burst)
    part.settled(jobs.burst, lambda s: s.admitted is not None, options.wait_s)
    say(f"{arm}: burst")
    late_s = part.in_time(jobs.churn)
    done = part.settled(jobs.churn, lambda s: s.finished is not None or s.running is not None, options.wait_s)
    part.settled([j for j in jobs.churn if j.run_s], lambda s: s.finished is not None, options.wait_s)
    say(f"{arm}: churn{'' if done else ' (not all have run)'}")
    after = processor_s(part.plane)
    with observed.lock:
        figures: Json = {
            "burst": burst_figures(jobs, observed),
            "churn": churn_figures(jobs, observed, late_s),
            "places": place_figures(site, arm, jobs, observed),
        }
    if options.pending:
        with observed.lock:
            held = {team: (observed.used.get(f"{team}-{part.queue}") or [(0.0, 0)])[-1][1] for team in TEAMS}
        # Every team's quota becomes what it holds: nobody gets in, and nobody is asked to leave.
        set_quotas(part.api, part.queue, held)
        figures["reasons"] = reason_figures(options, arm, jobs, part, held)
        say(f"{arm}: reasons")
    return {**figures, "cpu_s": {name: round(after[name] - cpu.get(name, 0.0), 1) for name in after}}


def burst_figures(jobs: Draw, observed: Observed) -> Json:
    """Workloads admitted a second, and how long each took."""
    seen = [observed.jobs[j.key] for j in jobs.burst if j.key in observed.jobs]
    admitted = [s for s in seen if s.admitted is not None and s.submitted is not None]
    first = min(s.submitted or 0.0 for s in seen)
    span = max((s.admitted or 0.0) for s in admitted) - first if admitted else 0.0
    return {
        "jobs": len(jobs.burst),
        "admitted": len(admitted),
        "workloads_per_s": round(len(admitted) / span, 2) if span else None,
        "submit_to_admitted_s": quantiles((s.admitted or 0.0) - (s.submitted or 0.0) for s in admitted),
    }


def churn_figures(jobs: Draw, observed: Observed, late_s: float) -> Json:
    """The same while jobs come and go, and how long it took until their pods ran."""
    seen = [observed.jobs[j.key] for j in jobs.churn if j.key in observed.jobs]
    admitted = [s for s in seen if s.admitted is not None and s.submitted is not None]
    ran = [s for s in seen if s.running is not None and s.submitted is not None]
    first = min((s.submitted for s in seen if s.submitted is not None), default=0.0)
    last = max((s.admitted or 0.0 for s in admitted), default=first)
    return {
        "jobs": len(jobs.churn),
        "admitted": len(admitted),
        "all_pods_ran": len(ran),
        "evicted": sum(s.evicted for s in seen),
        "workloads_per_s": round(len(admitted) / (last - first), 2) if last > first else None,
        "submit_to_admitted_s": quantiles((s.admitted or 0.0) - (s.submitted or 0.0) for s in admitted),
        "submit_to_running_s": quantiles((s.running or 0.0) - (s.submitted or 0.0) for s in ran),
        "most_late_s": round(late_s, 2),
    }


def place_figures(site: Site, arm: str, jobs: Draw, observed: Observed) -> Json:
    """Tiers of gangs against the narrowest that had room, and what is free in one piece when only those that stay are
    left."""
    stays = []
    for job in (*jobs.burst, *jobs.churn):
        seen = observed.jobs.get(job.key)
        if seen is None:
            continue
        nodes: dict[str, int] = {}
        for node in seen.bound.values():
            nodes[node] = nodes.get(node, 0) + 1
        since = seen.admitted if arm != "kueue" and seen.assigned else seen.bound_all
        nodes = seen.assigned if arm != "kueue" and seen.assigned else nodes
        if since is not None and sum(nodes.values()) == job.pods:
            stays.append(Stay(job.key, since, seen.finished, nodes, job.gpus))
    tiers = tiers_used(site, stays)
    beyond = [t.used - t.optimum for t in tiers]
    return {
        "gangs": len(tiers),
        "in_the_narrowest": round(sum(1 for b in beyond if b == 0) / len(tiers), 4) if tiers else None,
        "mean_tiers_beyond": round(statistics.fmean(beyond), 4) if beyond else None,
        "most_tiers_beyond": max(beyond, default=None),
        "worst_tier": TIERS[max(t.used for t in tiers)] if tiers else None,
        "worst_optimum": TIERS[max(t.optimum for t in tiers)] if tiers else None,
        "residents": sum(1 for s in stays if s.key in jobs.residents),
        "residents_wanted": len(jobs.residents),
        "whole_nodes_free": site.blocks(free_after(site, stays, jobs.residents)),
    }


def set_quotas(api: Api, queue: str, gpus: dict[str, int]) -> None:
    """GPUs of every team."""
    for team, amount in gpus.items():
        name = f"{team}-{queue}"
        groups = api.get(CLUSTER_QUEUES, name)["spec"]["resourceGroups"]
        for resource in groups[0]["flavors"][0]["resources"]:
            if resource["name"] == "nvidia.com/gpu":
                resource["nominalQuota"] = str(amount)
        api.patch(CLUSTER_QUEUES, name, {"spec": {"resourceGroups": groups}})


def reason_figures(options: argparse.Namespace, arm: str, jobs: Draw, part: Part, nominal: dict[str, int]) -> Json:
    """How soon a reason can be read while many wait, and how many of them are right."""
    observed = part.observed
    part.at_once(jobs.pending)

    def reached(seen: Seen) -> bool:
        return bool(seen.told) if arm == "myriad" else bool(seen.kueue)

    all_told = part.settled(jobs.pending, reached, options.wait_s)
    # Who reads a reason first may still have much to do: how soon one is told where many wait is another question.
    at_rest(part.plane)
    late_s = part.in_time(jobs.probes)
    part.settled(jobs.probes, reached, 60.0)
    time.sleep(2.0)  # what was told as "not yet reached" is told again
    with observed.lock:
        ledger = Ledger(nominal, {team: list(observed.used.get(f"{team}-{part.queue}", [])) for team in TEAMS})
        waiting = sum(1 for j in (*jobs.pending, *jobs.probes) if observed.jobs[j.key].reserved is None)
        return {
            "waiting": waiting,
            "all_pending_told": all_told,
            "read_on": "Job" if arm == "myriad" else "Workload",
            "while_filling": told_figures(arm, jobs.pending, observed, ledger),
            "probes": told_figures(arm, jobs.probes, observed, ledger),
            "most_late_s": round(late_s, 2),
        }


def told_figures(arm: str, jobs: Sequence[BenchJob], observed: Observed, ledger: Ledger) -> Json:
    """Latency of the first reason with numbers, and the share of all jobs whose first one is right."""
    took, right, wrong = [], 0, []
    for job in jobs:
        seen = observed.jobs[job.key]
        if seen.submitted is None:
            continue
        said = seen.told if arm == "myriad" else seen.kueue
        found = first_reason(said, Asked(job.all_gpus, job.team, seen.submitted), ledger)
        if found is None:
            wrong.append(said[-1][1] if said else "nothing was said")
            continue
        at, verdict, sentence = found
        took.append(at - seen.submitted)
        right += verdict == "right"
        if verdict != "right":
            wrong.append(sentence)
    return {
        "submit_to_reason_s": quantiles(took),
        "right": round(right / len(jobs), 4) if jobs else None,
        "not_right": wrong[:2],
    }


# The comparison


def compare(lines: Sequence[Json], arm: str, other: str) -> Json:
    """Each seed of an arm against the same seed of another: ratios and differences with intervals over the seeds."""
    by = {(line["arm"], line["seed"]): line for line in lines}
    seeds = sorted(seed for a, seed in by if a == arm and (other, seed) in by)

    def pairs(*path: str) -> list[tuple[float, float]]:
        found = []
        for seed in seeds:
            a, b = _at(by[arm, seed], path), _at(by[other, seed], path)
            if a is not None and b is not None:
                found.append((float(a), float(b)))
        return found

    def ratio(*path: str) -> Json | None:
        return interval([a / b for a, b in pairs(*path) if b])

    def difference(*path: str) -> Json | None:
        return interval([a - b for a, b in pairs(*path)])

    return {
        "kind": "comparison", "arm": arm, "against": other, "seeds": seeds,
        "burst_rate_ratio": ratio("burst", "workloads_per_s"),
        "burst_p50_ratio": ratio("burst", "submit_to_admitted_s", "p50"),
        "burst_p99_ratio": ratio("burst", "submit_to_admitted_s", "p99"),
        "churn_rate_ratio": ratio("churn", "workloads_per_s"),
        "churn_running_p50_ratio": ratio("churn", "submit_to_running_s", "p50"),
        "tiers_beyond_difference": difference("places", "mean_tiers_beyond"),
        "in_the_narrowest_difference": difference("places", "in_the_narrowest"),
        **{f"whole_nodes_free_{t}_difference": difference("places", "whole_nodes_free", t) for t in TIERS[1:]},
        "reason_p50_ratio": ratio("reasons", "probes", "submit_to_reason_s", "p50"),
        "reason_p99_ratio": ratio("reasons", "probes", "submit_to_reason_s", "p99"),
    }  # fmt: skip


def summary(lines: Sequence[Json], arm: str) -> Json:
    """An arm over its seeds."""
    mine = [line for line in lines if line["arm"] == arm]

    def over(*path: str) -> Json | None:
        return interval([float(v) for line in mine if (v := _at(line, path)) is not None])

    return {
        "kind": "summary", "arm": arm, "seeds": len(mine),
        "burst_workloads_per_s": over("burst", "workloads_per_s"),
        "burst_submit_to_admitted_p50_s": over("burst", "submit_to_admitted_s", "p50"),
        "burst_submit_to_admitted_p99_s": over("burst", "submit_to_admitted_s", "p99"),
        "in_the_narrowest": over("places", "in_the_narrowest"),
        "mean_tiers_beyond": over("places", "mean_tiers_beyond"),
        "most_tiers_beyond": max((line["places"]["most_tiers_beyond"] or 0 for line in mine), default=None),
        **{f"whole_nodes_free_{t}": over("places", "whole_nodes_free", t) for t in TIERS[1:]},
        "reason_p50_s": over("reasons", "probes", "submit_to_reason_s", "p50"),
        "reason_p99_s": over("reasons", "probes", "submit_to_reason_s", "p99"),
        "reason_right": over("reasons", "probes", "right"),
    }  # fmt: skip


def _at(line: Json, path: Sequence[str]) -> Any:
    found: Any = line
    for step in path:
        found = (found or {}).get(step)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="make bench-scheduling ARGS=", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--nodes", type=int, default=1250, help="of 8 GPUs each (1250)")
    parser.add_argument("--jobs", type=int, default=800, help="burst and churn together (800)")
    parser.add_argument("--seeds", type=int, default=5, help="how many (5)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--arms", default=",".join(ARMS), help=f"some of {','.join(ARMS)}")
    parser.add_argument("--load", type=float, default=0.5, help="share of the GPUs asked for by jobs that end (0.5)")
    parser.add_argument("--qps", type=int, default=100, help="requests a second of every client of the API (100)")
    parser.add_argument("--pending", type=int, default=2000, help="waiting jobs while reasons are timed (2000)")
    parser.add_argument("--probes", type=int, default=200, help="jobs whose reason is timed (200)")
    parser.add_argument("--probe-rate", type=float, default=4.0, help="of these a second (4)")
    parser.add_argument("--wait-s", type=float, default=300.0, help="the longest wait for one part of a run (300)")
    options = parser.parse_args(arguments)
    end_when_told()
    arms = [a for a in options.arms.split(",") if a]
    if unknown := sorted(set(arms) - set(ARMS)):
        parser.error(f"there is no arm {', '.join(unknown)}; it is some of {', '.join(ARMS)}")
    if lacks := apiserver.missing():
        print(f"{', '.join(lacks)}: in no bundle of the cache; `make lab` or `make bundle` makes one", file=sys.stderr)
        return 1
    lines = []
    steered = queues(TEAMS, options.nodes * 8 // len(TEAMS))
    bodies = [*steered, *without_topology(steered), *extension_objects()]
    try:
        program = kwok.program(say)
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            turn = seed % len(arms)
            for arm in (*arms[turn:], *arms[:turn]):
                say(f"seed {seed}, {arm}")
                begun = time.monotonic()
                with cluster(site_of(options.nodes), program, qps=options.qps, bodies=bodies) as (plane, api):
                    say(f"{options.nodes} nodes after {time.monotonic() - begun:.0f} s")
                    line = play(options, arm, seed, plane, api)
                emit(**line)
                lines.append(line)
    except MyriadError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for arm in arms:
        emit(**summary(lines, arm))
    for arm, other in (("tas", "kueue"), ("myriad", "tas"), ("myriad", "kueue")):
        if arm in arms and other in arms:
            emit(**compare(lines, arm, other))
    return 0


if __name__ == "__main__":
    sys.exit(main())
