"""Tells findings: each once as an Event, all of them as a gauge. The leader runs it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from myriad.errors import MyriadError
from myriad.kube.client import Api
from myriad.kube.kinds import API_SERVICES, POD_GROUPS
from myriad.kube.listing import listed
from myriad.scheduler.cache import Cache
from myriad.scheduler.diagnose.found import Finding, Outside, report
from myriad.scheduler.diagnose.use import Usage

log = logging.getLogger("myriad.diagnose")

Json = dict[str, Any]

VISIBILITY = "visibility.kueue.x-k8s.io"
_SWEEP_S = 30.0
_AGAIN_S = 3600.0
_USAGE_S = 300.0
"""A query over all GPUs and half an hour is dear, and idleness is slow."""


def read_outside(api: Api) -> Outside:
    """What the cache does not follow, with these credentials; what is not there or not allowed is left out."""

    services = listed(api, API_SERVICES)
    ours = None if services is None else [s for s in services if VISIBILITY in s["metadata"]["name"]]
    return Outside(pod_groups=listed(api, POD_GROUPS), visibility=ours)


class Diagnosing:
    """The observer.

    Args:
        api: reads what the cache does not follow, and writes Events.
        cache: the cluster.
        registry: where the gauge stands.
        usage: how busy GPUs were over so many seconds, from whoever measures it; None: nobody does.
        clock: monotonic seconds.
    """

    name = "diagnoses"
    interval_s = _SWEEP_S

    def __init__(
        self,
        api: Api,
        cache: Cache,
        registry: CollectorRegistry,
        *,
        usage: Callable[[int], Usage] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._cache = cache
        self._measured = usage
        self._usage: Usage | None = None
        self._usage_at = float("-inf")
        self._clock = clock
        self._last = float("-inf")
        self._told: dict[tuple[str, str], float] = {}
        self._gauge = Gauge(
            "myriad_scheduler_findings", "What is wrong with the use of GPUs", ["kind"], registry=registry
        )
        self._gpus = Gauge("myriad_scheduler_findings_gpus", "GPUs that it costs", ["kind"], registry=registry)

    def step(self) -> None:
        """Look, count, and tell what is new; changes in between wait for the next sweep."""
        now = self._clock()
        if now - self._last < _SWEEP_S:
            return
        self._last = now
        found = report(self._cache, replace(read_outside(self._api), usage=self._busy(now)))
        self._gauge.clear()
        self._gpus.clear()
        for kind in {f.kind for f in found}:
            self._gauge.labels(kind).set(sum(f.kind == kind for f in found))
            self._gpus.labels(kind).set(sum(f.gpus for f in found if f.kind == kind))
        standing = {(f.kind, f.about) for f in found}
        for key in self._told.keys() - standing:
            del self._told[key]
        for finding in found:
            key = (finding.kind, finding.about)
            if now - self._told.get(key, float("-inf")) >= _AGAIN_S:
                self._told[key] = now
                self._tell(finding)

    def _busy(self, now: float) -> Usage | None:
        """How busy GPUs were while they have to be idle to count as that; asked for every few minutes."""
        if self._measured is None or now - self._usage_at < _USAGE_S:
            return self._usage
        self._usage_at = now
        try:
            self._usage = self._measured(self._cache.policy().idle.after_s)
        except MyriadError as error:
            # What was measured last says nothing of now.
            self._usage = None
            log.warning("idle GPUs are not looked for: %s", error)
        return self._usage

    def _tell(self, finding: Finding) -> None:
        log.info("%s: %s: %s", finding.kind, finding.about, finding.sentence)
        if not finding.job:
            return
        about = {
            "apiVersion": finding.job["apiVersion"],
            "kind": finding.job["kind"],
            "metadata": {k: finding.job[k] for k in ("name", "namespace", "uid")},
        }
        reason = "Myriad" + "".join(word.capitalize() for word in finding.kind.split("_"))
        try:
            self._api.create_event(about, reason=reason, message=finding.sentence[:1000], type_="Warning")
        except MyriadError as error:
            log.info("no event on %s: %s", finding.about, error.message)
