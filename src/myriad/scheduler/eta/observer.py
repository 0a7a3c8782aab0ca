"""The leader's estimates: made every minute for all that waits, put on the Workloads, judged when jobs start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import WORKLOADS
from myriad.scheduler.cache import Cache
from myriad.scheduler.eta import published
from myriad.scheduler.eta.calibration import WINDOW_S, Calibration
from myriad.scheduler.eta.estimate import History, estimate
from myriad.scheduler.eta.live import pool_states, run_of, states_after
from myriad.scheduler.eta.model import Eta, epoch
from myriad.scheduler.eta.store import KEEP_S, Fact, OpenEstimate, Store, fact_of
from myriad.scheduler.ledger.start import default_url
from myriad.scheduler.objects import WorkloadView
from myriad.scheduler.surroundings import Surroundings

Json = dict[str, Any]

_WRITES = 100
"""Annotations of one pass: a queue of thousands is told over some minutes, the first in line first."""
_KEPT_FACTS = 20_000
_SOON_S = 3.0
_AGAIN = 4.0
"""A job's next estimate that is judged: when it has waited so many times as long as at the last."""
_FIRST_AGAIN_S = 600.0
_NOTICE_S = 0.4
"""A notice has a second: where a pass takes longer than this, none is made for it."""
_NOTICE_FUTURES = 20


class Estimating:
    """An observer; see `observers.Observer`.

    Args:
        api, cache: the cluster.
        store: where history is kept; None keeps it in memory alone.
        registry: for the metrics.
        clock: epoch seconds.
        every_s: between two passes over the whole queue.
    """

    name = "eta"
    interval_s = 3.0

    def __init__(
        self,
        api: Api,
        cache: Cache,
        store: Store | None,
        registry: CollectorRegistry,
        *,
        clock: Callable[[], float] = time.time,
        every_s: float = 60.0,
        published_enabled: bool = True,
    ) -> None:
        self._api, self._cache, self._store, self._clock = api, cache, store, clock
        self._every_s = every_s
        self._published_enabled = published_enabled
        self._last = float("-inf")
        self._took_s = 0.0
        self._past = threading.Lock()
        self._loaded = store is None
        self._pending: list[Fact] = []
        self._ended: set[str] = set()
        self._came: set[str] = set()
        self.history = History()
        self.calibration = Calibration()
        self.open: dict[str, list[OpenEstimate]] = {}
        self.etas: dict[str, Eta] = {}
        self._held = Gauge("myriad_eta_held_share", "Share of the last month's estimates that held", registry=registry)
        self._judged = Counter("myriad_eta_judged", "Estimates judged by the start of their job", registry=registry)
        self._seconds = Gauge("myriad_eta_seconds", "What the last pass over all queues took", registry=registry)

    def step(self) -> None:
        """Judge what has started; once a minute estimate everything that waits. Raises MyriadError of the database."""
        now = self._clock()
        views = {view.gang.uid: view for view in self._cache.views()}
        with self._past:
            failure = self._load(now)
            self._judge(views)
        if now - self._last < (self._soon_s() if self._somebody_new(views) else self._every_s):
            return
        self._last = now
        began = time.perf_counter()
        with self._past:
            self._learn(views, now)
        self._estimate(views, now)
        self._took_s = time.perf_counter() - began
        self._seconds.set(self._took_s)
        failure = self._save(now) or failure
        if failure is not None:
            raise failure

    def of_evicted(self, evicted: Sequence[tuple[WorkloadView, str]]) -> dict[str, Eta]:
        """When gangs that were evicted just now start again, by uid; called by the thread that tells of evictions.

        Nothing where the last pass shows that the notice would be late by it: the next pass puts the estimate on the
        Workload.

        Args:
            evicted: each with the uid of the Workload that takes its place; "" for none.
        """
        if self._last == float("-inf") or self._took_s > _NOTICE_S:
            return {}
        now = self._clock()
        states = states_after(self._cache, evicted, now=datetime.fromtimestamp(now, UTC), policy=self._cache.policy())
        wanted = {view.gang.uid for view, _ in evicted}
        found: dict[str, Eta] = {}
        with self._past:
            for state in states.values():
                for uid, raw in estimate(state, self.history, now=now, futures=_NOTICE_FUTURES).items():
                    if uid in wanted:
                        found[uid] = self.calibration.correct(raw)
        return found

    def _somebody_new(self, views: dict[str, WorkloadView]) -> bool:
        """Whether somebody waits who was not there at the last pass."""
        return any(view.waiting and uid not in self._came for uid, view in views.items())

    def _soon_s(self) -> float:
        """New jobs are told soon, and a twentieth of the time at most goes into it."""
        return min(self._every_s, max(_SOON_S, 20 * self._took_s))

    # The past

    def _load(self, now: float) -> MyriadError | None:
        """Once: what an earlier leader knew. A database that does not answer is asked again at the next step."""
        if self._loaded or self._store is None:
            return None
        try:
            runs, open_, judged = self._store.load(now - KEEP_S)
        except MyriadError as error:
            return error
        known = {r.uid for r in self.history.submitted}
        for run in runs:
            if run.uid not in known:
                self.history.finish(run)
                self._ended.add(run.uid)
                self._came.add(run.uid)
        for each in judged:
            self.calibration.add(each)
        for estimate_ in open_:
            self.open.setdefault(estimate_.uid, []).insert(0, estimate_)
        self._loaded = True
        return None

    def _learn(self, views: dict[str, WorkloadView], now: float) -> None:
        """Submissions and ends that are new."""
        for uid, view in views.items():
            if uid in self._ended or (uid in self._came and not view.finished):
                continue
            body = self._cache.object(WORKLOADS, view.key)
            run = run_of(view, body, self._cache.cluster_queue_of(view)) if body else None
            if run is None:
                continue
            if run.run_s is not None:
                self.history.finish(run)
                self._ended.add(uid)
                self._pending.append(fact_of(run))
            elif uid not in self._came:
                self.history.submit(run)
            self._came.add(uid)
        # Of Workloads that are gone nothing is asked any more, and a site has thousands a day.
        self._ended &= views.keys()
        self._came &= views.keys()
        self.history.forget_before(now - KEEP_S)
        self.calibration.forget_before(now - WINDOW_S)

    def _judge(self, views: dict[str, WorkloadView]) -> None:
        for uid in list(self.open):
            view = views.get(uid)
            if view is not None and view.waiting:
                continue
            started = self._admitted_at(view) if view is not None else None
            if view is not None and started is None and not (view.finished or not view.active):
                continue  # it holds quota and waits for its checks
            for each in self.open.pop(uid):
                # Whoever was taken back before it started says nothing about the estimate.
                judged = each.judge(started) if started is not None else None
                self._pending.append(fact_of((each, judged)))
                if judged is not None:
                    self.calibration.add(judged)
                    self._judged.inc()

    def _admitted_at(self, view: WorkloadView) -> float | None:
        status = (self._cache.object(WORKLOADS, view.key) or {}).get("status") or {}
        for condition in status.get("conditions") or []:
            if condition["type"] == "Admitted" and condition["status"] == "True":
                return epoch(condition.get("lastTransitionTime"))
        return None

    # What waits

    def _estimate(self, views: dict[str, WorkloadView], now: float) -> None:
        states = pool_states(self._cache, now=datetime.fromtimestamp(now, UTC), policy=self._cache.policy())
        etas: dict[str, Eta] = {}
        for state in states.values():
            for uid, raw in estimate(state, self.history, now=now).items():
                told = etas[uid] = self.calibration.correct(raw)
                known = self.open.setdefault(uid, [])
                if not known or now - known[0].at >= self._due_s(known):
                    kept = OpenEstimate(uid, now, raw, told)
                    known.append(kept)
                    self._pending.append(fact_of(kept))
        self.etas = etas
        share, judged = self.calibration.held_of_all()
        if judged:
            self._held.set(share if share is not None else float("nan"))
        self._publish(views, now)

    @staticmethod
    def _due_s(known: list[OpenEstimate]) -> float:
        return float(_FIRST_AGAIN_S * _AGAIN ** (len(known) - 1))

    def _publish(self, views: dict[str, WorkloadView], now: float) -> None:
        left = _WRITES if self._published_enabled else 0
        for uid, eta in self.etas.items():
            view = views.get(uid)
            body = self._cache.object(WORKLOADS, view.key) if view is not None else None
            if view is None or body is None or not published.says_else(published.read(body), eta, now):
                continue
            if not left:
                return
            left -= 1
            patch = {"metadata": {"annotations": {published.ANNOTATION: published.to_text(eta, now)}}}
            try:
                self._api.patch(WORKLOADS, view.workload, patch, namespace=view.gang.namespace)
            except ApiError as error:
                if not (error.is_not_found or error.is_conflict):
                    raise

    def _save(self, now: float) -> MyriadError | None:
        """Write what is new. What cannot be written is kept for the next time, the newest of it."""
        if self._store is None:
            self._pending = []
            return None
        try:
            self._store.write(self._pending)
            self._pending = []
            self._store.forget_before(now - KEEP_S)
        except MyriadError as error:
            self._pending = self._pending[-_KEPT_FACTS:]
            return error
        return None


def estimating(parts: Surroundings) -> Estimating:
    """The observer with its store in the ledger's database."""
    return Estimating(
        parts.api,
        parts.cache,
        Store(default_url(parts.settings)),
        parts.metrics.registry,
        published_enabled=not parts.settings.shadow,
    )
