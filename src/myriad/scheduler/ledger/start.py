"""Puts the parts together for the extension."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from prometheus_client import Counter, Gauge

from myriad.kube.kinds import WORKLOADS
from myriad.scheduler.ledger.book import Ledger
from myriad.scheduler.ledger.copying import LedgerCopier
from myriad.scheduler.ledger.corrections import Correcting
from myriad.scheduler.ledger.journal import Journal, Writer
from myriad.scheduler.ledger.keeper import Keeper
from myriad.scheduler.ledger.recorder import Recorder
from myriad.scheduler.ledger.store import Written
from myriad.scheduler.notices.gather import checkpoint_of, pods_of, read_job
from myriad.scheduler.observers import Observer, Observing
from myriad.scheduler.settings import Settings
from myriad.scheduler.surroundings import Surroundings

Json = dict[str, Any]


def default_url(settings: Settings) -> str:
    """SQLite beside the decision records, where the settings name no database."""
    return settings.ledger_url or f"sqlite:///{settings.decisions.parent / 'ledger.db'}"


class Accounting:
    """The ledger of one replica: its database, the way there, and the observers that the leader runs, in a thread of
    their own: a database may take its time.

    Args:
        parts: of the extension. The cache must not follow yet: what it hears from its first change on is recorded.
        may_act: True while this replica leads and its cache is in step.
        stop: ends its threads.

    Raises:
        InputError: of the ledger's URL or time zone.
    """

    def __init__(self, parts: Surroundings, *, may_act: Callable[[], bool], stop: threading.Event) -> None:
        self._parts = parts
        settings, cache, registry = parts.settings, parts.cache, parts.metrics.registry
        self.ledger = Ledger(default_url(settings), policy=cache.policy, timezone=settings.timezone)
        rows = Counter("myriad_ledger_rows", "Rows added to the ledger", ["kind"], registry=registry)
        errors = Counter("myriad_ledger_errors", "Attempts to write that failed", registry=registry)
        estimated = Counter("myriad_ledger_estimated_endings", "Ends whose time nobody saw", registry=registry)

        def written(added: Written) -> None:
            rows.labels("admission").inc(added.admissions)
            rows.labels("ending").inc(added.endings)

        folder = settings.decisions.parent
        self.writer = Writer(
            self.ledger.store,
            Journal(folder / f"ledger-{settings.identity}.journal"),
            stop=stop,
            written=written,
            failed=lambda _message: errors.inc(),
        )
        Gauge("myriad_ledger_queued", "Facts that are not in the ledger yet", registry=registry).set_function(
            lambda: self.writer.state().queued
        )
        Gauge("myriad_ledger_lag_seconds", "Age of the oldest of them", registry=registry).set_function(
            lambda: self.writer.state().lag_s
        )
        self.recorder = Recorder(
            api=parts.api,
            cache=cache,
            store=self.ledger.store,
            writer=self.writer,
            checkpoint=self._checkpoint,
            estimated=estimated.inc,
        )
        self.keeper = Keeper(api=parts.api, cache=cache, ledger=self.ledger)
        correcting = Correcting(
            api=parts.api, store=self.ledger.store, policy=cache.policy, namespace=settings.namespace
        )
        # In shadow GPU-hours are counted, and nothing is held for them.
        observers: list[Observer] = [self.recorder, correcting, *([] if settings.shadow else [self.keeper])]
        self.observing = Observing(observers, cache=cache, may_act=may_act, stop=stop)
        cache.listeners.append(self.recorder.heard)

    def start(self) -> None:
        """Begin to write and to observe."""
        self.writer.start()
        self.observing.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of both threads, and close the database."""
        self.observing.join(timeout=timeout_s)
        self.writer.join(timeout=timeout_s)
        if not self.writer.is_alive():
            self.writer.close()
            self.ledger.store.close()

    def copier(self) -> LedgerCopier | None:
        """What keeps this replica's file like the leader's; None where both write into one database."""
        settings = self._parts.settings
        if not self.ledger.store.own_file:
            return None
        place = {"namespace": settings.namespace, "port": settings.port, "token": settings.peer_token}
        return LedgerCopier(self._parts.api, self._parts.decisions, store=self.ledger.store, **place)

    def state(self) -> Json:
        """For /v1/status: where the ledger is and how far it is behind."""
        state = self.writer.state()
        since = datetime.fromtimestamp(state.since, UTC).isoformat(timespec="seconds")
        return {
            "database": self.ledger.store.where,
            "queued": state.queued,
            "lag_s": round(state.lag_s, 1),
            "error": state.error,
            "error_since": since if state.error else "",
        }

    def _checkpoint(self, uid: str) -> int | None:
        """The last checkpoint that a job reported: on the job, its pod template or its pods."""
        view = self._parts.cache.view_of_uid(uid)
        workload = self._parts.cache.object(WORKLOADS, view.key) if view else None
        if view is None or workload is None:
            return None
        pods = pods_of(self._parts.cache, view)
        last = checkpoint_of(workload, read_job(self._parts.api, view), pods, datetime.now(UTC)).last
        return None if last is None else int(last.timestamp())
