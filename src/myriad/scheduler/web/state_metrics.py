"""The state of the cluster as metrics, counted when Prometheus asks: queues, quotas, GPUs, nodes, what fits.

Labels are teams, pools, tiers and fixed words, never jobs, namespaces or nodes; what goes beyond `MOST_SERIES` of one
metric is added up under `other`, so that no site can flood its Prometheus.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, get_args

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from myriad.kube.kinds import CLUSTER_QUEUES
from myriad.scheduler.cache import Cache
from myriad.scheduler.explain import State
from myriad.scheduler.inquiry import gpu_amounts
from myriad.scheduler.model import POOL_LABEL
from myriad.scheduler.objects import TEAM_LABEL, seconds_since
from myriad.scheduler.placement import fragmentation
from myriad.scheduler.web.rows import NODE_STATES, node_rows

Json = dict[str, Any]
Labels = tuple[str, ...]

MOST_SERIES = 1000
OTHER = "other"
STATES = tuple(get_args(State))


class StateCollector(Collector):
    """Counts at each scrape.

    Args:
        cache: the cluster.
        report: the newest queue report that is made already, for the reasons; None where there is none yet.
        budgets: GPU-hours left by (team, pool).
        stream: figures of the stream of events.
        leads: whether this replica writes; the others say nothing of the cluster, so that sums over replicas are right.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        report: Callable[[], Sequence[Json] | None],
        budgets: Callable[[], Mapping[tuple[str, str], float]] = dict,
        stream: Callable[[], Mapping[str, int]] = dict,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._cache = cache
        self._report = report
        self._budgets = budgets
        self._stream = stream
        self._leads = leads

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing is known before the first scrape."""
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All families."""
        begun = time.monotonic()
        if self._leads():
            yield from self._queues()
            yield from self._gpus()
            yield from self._reasons()
            left = self._budgets()
            yield _family("myriad_budget_left_gpu_hours", "GPU-hours left of a budget", ("team", "pool"), left)
        figures = {(name,): float(value) for name, value in self._stream().items()}
        yield _family(
            "myriad_page_stream", "Clients of the page's stream, and how many were dropped", ("what",), figures
        )
        yield _family("myriad_scrape_seconds", "What it took to count this", (), {(): time.monotonic() - begun})

    def _queues(self) -> Iterator[GaugeMetricFamily]:
        waiting = self._cache.waiting()
        now = datetime.now(UTC)
        jobs: dict[Labels, float] = defaultdict(float)
        gpus: dict[Labels, float] = defaultdict(float)
        oldest: dict[Labels, float] = defaultdict(float)
        quota: dict[Labels, float] = defaultdict(float)
        for queue in self._cache.listing(CLUSTER_QUEUES):
            labels = queue["metadata"].get("labels") or {}
            where = (labels.get(TEAM_LABEL, ""), labels.get(POOL_LABEL, ""))
            views = waiting.get(queue["metadata"]["name"], [])
            jobs[where] += len(views)
            gpus[where] += sum(v.gang.gpus for v in views)
            oldest[where] = max([oldest[where], *(seconds_since(v.created, now) for v in views)])
            amounts = gpu_amounts(self._cache, queue)
            for kind in ("nominal", "used", "borrowed"):
                quota[(*where, kind)] += amounts[kind]
        team_pool = ("team", "pool")
        yield _family("myriad_waiting_jobs", "Jobs that wait", team_pool, jobs)
        yield _family("myriad_waiting_gpus", "GPUs that waiting jobs ask for", team_pool, gpus)
        yield _family("myriad_waiting_oldest_seconds", "How long the oldest of them waits", team_pool, oldest)
        yield _family("myriad_quota_gpus", "Quota in GPUs: nominal, used, borrowed", (*team_pool, "kind"), quota)

    def _gpus(self) -> Iterator[GaugeMetricFamily]:
        gpus: dict[Labels, float] = defaultdict(float)
        nodes: dict[Labels, float] = defaultdict(float)
        for row in node_rows(self._cache).values():
            pool = row["pool"]
            for state in NODE_STATES:
                nodes[pool, state] += row["state"] == state
            free = max(0, row["gpus"] - row["used"] - row["missing"])
            for state, amount in (
                ("used", row["used"] - row["terminating"]),
                ("terminating", row["terminating"]),
                ("missing", row["missing"]),
                ("free", free if row["state"] == "ok" else 0),
                ("held_back", 0 if row["state"] == "ok" else free),
            ):
                gpus[pool, state] += amount
        yield _family("myriad_gpus", "GPUs by state", ("pool", "state"), gpus)
        yield _family("myriad_nodes", "GPU nodes by state", ("pool", "state"), nodes)
        fits: dict[Labels, float] = {}
        for found in fragmentation(self._cache.snapshot()):
            fits[(found.tier,)] = max(fits.get((found.tier,), 0.0), float(found.gpus))
        yield _family("myriad_largest_gang_gpus", "GPUs of the largest gang that fits now within one", ("tier",), fits)

    def _reasons(self) -> Iterator[GaugeMetricFamily]:
        counts: dict[Labels, float] = {(state,): 0.0 for state in STATES}
        for entry in self._report() or ():
            for job in entry["waiting"]:
                if (job.get("state"),) in counts:
                    counts[(job["state"],)] += 1
        yield _family("myriad_waiting_jobs_by_reason", "Jobs that wait, by first cause", ("reason",), counts)


def _family(name: str, about: str, labels: Sequence[str], values: Mapping[Any, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, about, labels=list(labels))
    ordered = sorted(values.items())
    for key, value in ordered[:MOST_SERIES]:
        family.add_metric([str(k) for k in key], value)
    rest = ordered[MOST_SERIES:]
    if rest and labels:
        # The last label is of fixed words where a metric has such a label; the others are names of the site.
        family.add_metric([OTHER] * len(labels), sum(value for _, value in rest))
    return family
