"""Queue reports kept warm: a report plans every waiting gang, which takes seconds on a large cluster. One is made at a
time for each who sees the same, everybody waits for that one, and a page is never held up by a newer one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Report = list[Json]

PATIENCE_S = 0.3
"""A page waits this long for a newer report before it shows the last one."""
_SHARE = 5.0
"""A report that took t seconds is good for five t at least, so that a fifth of the time at most goes into them."""
_WARM_S = 600.0
"""How long after the last question a report is still made anew by itself."""
_TICK_S = 2.0


@dataclass
class _Kept:
    make: Callable[[], Report]
    version: int = -1
    made: float = float("-inf")
    took_s: float = 0.0
    asked: float = 0.0
    report: Report | None = None
    running: Future[Report] | None = None


class Reports:
    """The newest report of each scope.

    Args:
        version: of the cluster's state now.
        clock: monotonic seconds.
    """

    def __init__(self, version: Callable[[], int], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._version = version
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[Hashable, _Kept] = {}
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="report")
        self._warmer: threading.Timer | None = None

    def get(self, key: Hashable, make: Callable[[], Report], *, patience_s: float | None = None) -> Report:
        """The report of a scope.

        Args:
            key: equal for all who see the same.
            make: makes it from the state now.
            patience_s: after this long the last one is taken, where there is one; None waits.
        """
        with self._lock:
            kept = self._kept.setdefault(key, _Kept(make))
            kept.make, kept.asked = make, self._clock()
            if kept.report is not None and self._good(kept):
                return kept.report
            running = self._start(kept)
            last = kept.report
            self._warm()
        if last is None or patience_s is None:
            return running.result()
        try:
            return running.result(timeout=patience_s)
        except FutureTimeoutError:
            return last

    def last(self, key: Hashable) -> Report | None:
        """The newest report that is made already, however old."""
        with self._lock:
            kept = self._kept.get(key)
            return kept.report if kept else None

    def _good(self, kept: _Kept) -> bool:
        age = self._clock() - kept.made
        return age < _SHARE * kept.took_s or (kept.version == self._version() and age < _TICK_S * 5)

    def _start(self, kept: _Kept) -> Future[Report]:
        if kept.running is None or kept.running.done():
            kept.running = self._worker.submit(self._make, kept)
        return kept.running

    def _make(self, kept: _Kept) -> Report:
        version, begun = self._version(), self._clock()
        report = kept.make()
        with self._lock:
            kept.version, kept.report = version, report
            kept.made = self._clock()
            kept.took_s = kept.made - begun
        return report

    def _warm(self) -> None:
        if self._warmer is None or not self._warmer.is_alive():
            self._warmer = threading.Timer(_TICK_S, self._tick)
            self._warmer.daemon = True
            self._warmer.start()

    def _tick(self) -> None:
        with self._lock:
            self._warmer = None
            now = self._clock()
            for key in [k for k, v in self._kept.items() if now - v.asked > _WARM_S]:
                del self._kept[key]
            for kept in self._kept.values():
                if not self._good(kept):
                    self._start(kept)
            if self._kept:
                self._warm()
