"""What comes after evictions, and what should be said before: the slower half of the leader's work.

For each eviction: when its pods had ended and whether they saved, when the preemptor started, when the job ran again.
For the cluster: loops, evictions for nothing, pods that do not end, gangs that are half gone, jobs that promise no
checkpoint, pods that nobody would make again. Each is told once, as an Event on the job it concerns.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import EVENTS, NODES, WORKLOADS
from myriad.scheduler.cache import Cache
from myriad.scheduler.notices import patterns, trouble
from myriad.scheduler.notices.book import Book, Record
from myriad.scheduler.notices.checkpoint import warning
from myriad.scheduler.notices.events import event_of
from myriad.scheduler.notices.facts import Eviction, classify, moment, stamp, stop_of
from myriad.scheduler.notices.gather import checkpoint_of, pods_of, read_job
from myriad.scheduler.notices.observer import eviction_of, objects_of
from myriad.scheduler.objects import REFUSED_ANNOTATION, WorkloadView
from myriad.scheduler.policy import SitePolicy

log = logging.getLogger("myriad.notices")

Json = dict[str, Any]

INTERVAL_S = 5.0
FOLLOWED = timedelta(hours=12)
"""What comes after an eviction is looked for so long."""
_YOUNG = timedelta(minutes=10)
"""A job is warned about its checkpoints at submit, and never later: not after a restart either."""
_HALF_PATIENCE_S = 120.0
_SUBMITTED_S = 0.2
"""Of a step at most, for those that just came: other observers wait for its end."""


class Aftermath:
    """The observer.

    Args:
        api, cache: the cluster.
        book: the records, kept by the same leader.
        policy: the site's, as it is now.
        now: the time.
    """

    name = "aftermath"
    interval_s = INTERVAL_S

    def __init__(
        self,
        *,
        api: Api,
        cache: Cache,
        book: Book,
        policy: Callable[[], SitePolicy],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._cache = cache
        self._book = book
        self._policy = policy
        self._now = now
        self._last = datetime.min.replace(tzinfo=UTC)
        self._judged: set[str] = set()
        self._told: set[tuple[str, str]] = set()
        self._short_since: dict[str, datetime] = {}

    def step(self) -> None:
        """Look at recent evictions and at the cluster; at most every few seconds, however often it is called."""
        now = self._now()
        if (now - self._last).total_seconds() < INTERVAL_S / 2:
            return
        self._last = now
        evictions: list[Eviction] = []
        for record in self._book:
            eviction = eviction_of(record)
            if eviction is None:
                continue
            evictions.append(eviction)
            seen = moment(eviction.seen_at)
            if seen is not None and now - seen <= FOLLOWED:
                self._follow(record, eviction, now)
        self._loops(evictions, now)
        self._stuck(now)
        self._gangs(now)
        self._submitted(now)
        self._ownerless(now)

    # One eviction

    def _follow(self, record: Record, e: Eviction, now: datetime) -> None:
        facts = record.facts
        key = f"{e.victim.namespace}/{self._workload_name(e)}" if self._workload_name(e) else ""
        workload = self._cache.object(WORKLOADS, key) if key else None
        view = self._cache.view(key) if key else None
        if "ended" not in facts:
            self._ended(e, workload, view, now)
        if e.preemptor is not None and "preemptor" not in facts and not e.late:
            self._preemptor(e, now)
        if "again" not in facts and view is not None and view.admitted and not view.evicted and not e.late:
            self._note(record.id, "again", {"at": stamp(now), "nodes": sorted(view.nodes)})

    def _workload_name(self, e: Eviction) -> str:
        view = self._cache.view_of_uid(e.victim.uid)
        return view.workload if view else ""

    def _ended(self, e: Eviction, workload: Json | None, view: WorkloadView | None, now: datetime) -> None:
        if workload is None or view is None:
            self._note(e.id, "ended", {"at": stamp(now), "gone": True})
            return
        pods = pods_of(self._cache, view)
        term = moment(e.sigterm_at) or moment(e.at) or now
        if not e.exact and self._book.fact(e.id, "stopping") is None:
            stop = stop_of(pods, term)
            if stop.exact:
                self._note(e.id, "stopping", {"sigterm_at": stamp(stop.sigterm_at), "kill_at": stamp(stop.kill_at)})
        outcome = classify(workload, pods)
        # Pods are gone soon after they ended, and with them their exit codes: what is seen is kept at once.
        if outcome.exit_zero:
            self._note(e.id, "exit-zero", {"at": stamp(now), "pods": list(outcome.exit_zero)})
            self._tell(workload, "MyriadExitZero", outcome.sentence, e.id, now)
        still = [
            p
            for p in pods
            if (p.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
            and (moment(p["metadata"].get("creationTimestamp")) or term) <= term
        ]
        if still:
            return
        known = checkpoint_of(workload, read_job(self._api, view), pods, now)
        fact: Json = {"at": stamp(now)}
        if known.last is not None and known.last >= term:
            fact["saved_at"] = stamp(known.last)
        self._note(e.id, "ended", fact)

    def _preemptor(self, e: Eviction, now: datetime) -> None:
        preemptor = e.preemptor
        if preemptor is None or not preemptor.uid:
            return
        view = self._cache.view_of_uid(preemptor.uid)
        at = moment(e.at) or now
        waited = (now - at).total_seconds()
        if view is not None and view.admitted:
            self._note(e.id, "preemptor", {"at": stamp(now), "started": True})
            return
        patience = e.grace_s + trouble.MARGIN.total_seconds()
        if view is not None and view.finished:
            self._note(e.id, "preemptor", {"at": stamp(now), "started": True})
        elif view is None and waited > 5:
            self._vain(e, waited, "gone", now)
        elif view is not None and self._is_refused(view):
            self._vain(e, waited, "impossible", now)
        elif waited > patience:
            self._vain(e, waited, "waits", now)

    def _is_refused(self, view: WorkloadView) -> bool:
        body = self._cache.object(WORKLOADS, view.key) or {"metadata": {}}
        return REFUSED_ANNOTATION in (body["metadata"].get("annotations") or {})

    def _vain(self, e: Eviction, waited_s: float, kind: str, now: datetime) -> None:
        vain = patterns.Vain(e, waited_s, kind)
        if self._note(e.id, "preemptor", {"at": stamp(now), "started": False, "why": kind, "text": vain.sentence()}):
            log.warning("%s", vain.sentence())
            view = self._cache.view_of_uid(e.preemptor.uid if e.preemptor else "")
            for party in (view, self._cache.view_of_uid(e.victim.uid)):
                body = self._cache.object(WORKLOADS, party.key) if party else None
                if body is not None:
                    self._tell(body, "MyriadPreemptedInVain", vain.sentence(), e.id, now)

    # The cluster

    def _loops(self, evictions: list[Eviction], now: datetime) -> None:
        evictions.sort(key=lambda e: e.at)
        impossible = [
            f"{view.gang.namespace}/{view.gang.name}"
            for view in self._cache.views()
            if view.waiting and self._is_refused(view)
        ]
        for loop in patterns.loops(evictions, now, impossible=impossible):
            if not self._note(loop.id, "loop", {"at": stamp(now), "text": loop.sentence(), "times": loop.times}):
                continue
            log.warning("%s", loop.sentence())
            for job in (loop.victim, loop.preemptor):
                namespace, _, name = job.partition("/")
                view = self._cache.view_of_job(namespace, name) if name else None
                body = self._cache.object(WORKLOADS, view.key) if view else None
                if body is not None:
                    self._tell(body, "MyriadPreemptionLoop", loop.sentence(), loop.id, now)

    def _stuck(self, now: datetime) -> None:
        views = {v.key: v for v in self._cache.views() if v.evicted}
        if not views:
            return
        ready = {n["metadata"]["name"]: _is_ready(n) for n in self._cache.listing(NODES)}
        for view in views.values():
            for pod in trouble.stuck(pods_of(self._cache, view), ready, now):
                body = self._cache.object(WORKLOADS, view.key)
                if body is not None and self._tell(body, "MyriadStuck", pod.sentence(now), pod.pod, now):
                    log.warning("%s", pod.sentence(now))

    def _gangs(self, now: datetime) -> None:
        short: dict[str, datetime] = {}
        for view in self._cache.views():
            if not view.admitted or view.gang.pods < 2 or view.evicted or view.finished:
                continue
            pods = pods_of(self._cache, view)
            here = sum(trouble.works(p) for p in pods)
            if 0 < here < view.gang.pods:
                seen = short[view.key] = self._short_since.get(view.key, now)
                half = trouble.half_gone(view, pods, now, patience_s=_HALF_PATIENCE_S, seen_at=seen)
                body = self._cache.object(WORKLOADS, view.key)
                if half and body and self._tell(body, "MyriadHalfGone", half.sentence(now), stamp(half.since), now):
                    log.warning("%s", half.sentence(now))
        self._short_since = short

    def _submitted(self, now: datetime) -> None:
        longest = self._policy().preemption.checkpoint_max_age_s
        judged: set[str] = set()
        began = time.monotonic()
        for view in self._cache.views():
            created = moment(view.created)
            if created is None or now - created > _YOUNG or view.finished or not view.gang.gpus:
                continue
            if view.gang.uid in self._judged or self._is_inference(view):
                judged.add(view.gang.uid)
                continue
            body = self._cache.object(WORKLOADS, view.key)
            if body is None or time.monotonic() - began > _SUBMITTED_S:
                continue  # of hundreds that come at once the rest has its turn in the next steps
            judged.add(view.gang.uid)
            words = warning(checkpoint_of(body, read_job(self._api, view), [], now), float(longest))
            if words:
                self._tell(body, "MyriadCheckpoint", words, "submit", now, owner_only=True)
        self._judged = judged

    def _is_inference(self, view: WorkloadView) -> bool:
        return self._policy().pool(view.gang.pool).use == "inference"

    def _ownerless(self, now: datetime) -> None:
        began = time.monotonic()
        for pod in self._cache.gpu_pods():
            created = moment(pod["metadata"].get("creationTimestamp"))
            if created is None or now - created > _YOUNG or time.monotonic() - began > _SUBMITTED_S:
                continue
            words = trouble.ownerless(pod)
            if words:
                self._event({"apiVersion": "v1", "kind": "Pod", **pod}, "MyriadOwnerless", words, "pod", now)

    # Writing

    def _note(self, identity: str, name: str, fact: Json) -> bool:
        try:
            return self._book.append(identity, name, fact)
        except MyriadError as error:
            log.warning("a fact of %s could not be recorded yet: %s", identity, error.message)
            return False

    def _tell(
        self, workload: Json, reason: str, words: str, key: str, now: datetime, *, owner_only: bool = False
    ) -> bool:
        """An Event on a job and its Workload; False where it was told before."""
        about = objects_of(workload)
        written = [self._event(o, reason, words, key, now) for o in _chosen(about, owner_only)]
        return any(written)

    def _event(self, about: Json, reason: str, words: str, key: str, now: datetime) -> bool:
        body = event_of(about, reason, words, f"{reason} {key}", now)
        known = (body["metadata"]["namespace"], body["metadata"]["name"])
        if known in self._told:
            return False
        try:
            self._api.create(EVENTS, body, namespace=known[0])
        except ApiError as error:
            if error.status == 429 or error.status >= 500:
                log.warning("no event on %s yet: %s", about["metadata"]["name"], error.message)
                return False
            # There already, or a namespace that takes none: either way it is not offered again.
            self._told.add(known)
            if not error.is_conflict:
                log.info("no event on %s: %s", about["metadata"]["name"], error.message)
            return False
        except MyriadError as error:
            log.warning("no event on %s yet: %s", about["metadata"]["name"], error.message)
            return False
        if len(self._told) > 20_000:
            self._told.clear()
        self._told.add(known)
        return True


def _chosen(about: list[Json], owner_only: bool) -> Iterable[Json]:
    return about[1:] or about if owner_only else about


def _is_ready(node: Json) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
