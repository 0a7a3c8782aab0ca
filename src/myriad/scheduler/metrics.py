"""What the extension counts, for Prometheus: one registry made at start, passed to those who count."""

from __future__ import annotations

import time

import httpx
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from myriad.kube.client import Api


class Metrics:
    """All series of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leading = Gauge("myriad_scheduler_leading", "1 while this replica writes", registry=self.registry)
        self.in_step = Gauge("myriad_scheduler_cache_in_step", "1 while the cache follows", registry=self.registry)
        self.brake_on = Gauge(
            "myriad_scheduler_brake_on", "0 where evictions and taints do not wait in an outage", registry=self.registry
        )
        self.waiting = Gauge("myriad_scheduler_waiting_gangs", "Gangs without quota", ["pool"], registry=self.registry)
        self.writes = Counter(
            "myriad_scheduler_check_writes", "Changes of Workloads' check entries", ["why"], registry=self.registry
        )
        self.conflicts = Counter(
            "myriad_scheduler_conflicts", "Writes refused because the object had moved on", registry=self.registry
        )
        self.refused_writes = Counter(
            "myriad_scheduler_refused_writes", "Writes refused for another reason", registry=self.registry
        )
        self.nudges = Counter(
            "myriad_scheduler_nudges", "Times that Kueue was asked to look at parked gangs", registry=self.registry
        )
        self.differences = Counter(
            "myriad_scheduler_placement_differences",
            "Gangs that TAS placed in a broader tier than the planner would have",
            registry=self.registry,
        )
        self.accept_seconds = Histogram(
            "myriad_scheduler_accept_seconds",
            "From Kueue's reservation to our answer",
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60),
            registry=self.registry,
        )
        self.pass_seconds = Histogram(
            "myriad_scheduler_pass_seconds",
            "One pass over all Workloads",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
            registry=self.registry,
        )
        self.evictions = Counter(
            "myriad_scheduler_evictions",
            "Evictions told to their owners, by Kueue's policy or reason",
            ["reason"],
            registry=self.registry,
        )
        self.notice_seconds = Histogram(
            "myriad_scheduler_notice_seconds",
            "From the first sight of an eviction that is due to its record, Events and hand-over to the targets",
            buckets=(0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
            registry=self.registry,
        )
        self.requests = Histogram(
            "myriad_page_request_seconds",
            "Answers of the page and its API, by route and status",
            ["route", "status"],
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self.api_seconds = Histogram(
            "myriad_kube_request_seconds",
            "From a request to the Kubernetes API until its answer begins, by method and status",
            ["method", "status"],
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )

    def follow(self, api: Api) -> None:
        """Count what the Kubernetes API answers to this client, and how soon."""

        def sent(request: httpx.Request) -> None:
            request.extensions["myriad_sent"] = time.monotonic()

        def answered(response: httpx.Response) -> None:
            begun = response.request.extensions.get("myriad_sent")
            if begun is not None:
                labels = (response.request.method, f"{response.status_code // 100}xx")
                self.api_seconds.labels(*labels).observe(time.monotonic() - begun)

        # httpx's own hooks: they see retries too, which the caller does not.
        client = getattr(api, "_client", None)
        if isinstance(client, httpx.Client):
            client.event_hooks = {"request": [sent], "response": [answered]}
