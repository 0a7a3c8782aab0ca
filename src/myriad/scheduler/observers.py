"""Work beside steering: the ledger, notices, diagnoses. The leader runs it in a thread of its own, so that it never
holds up a gang; an observer that fails is logged, counted and called again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from myriad.errors import MyriadError
from myriad.scheduler.cache import Cache
from myriad.scheduler.surroundings import Surroundings

log = logging.getLogger("myriad.observers")

_WAIT_S = 0.25


class Observer(Protocol):
    """One kind of work. `step` is called by the leader alone, with a cache in step, after each change of the cache and
    at least every `interval_s` seconds; it must be idempotent and may raise MyriadError."""

    name: str
    interval_s: float

    def step(self) -> None:
        """Look at the cache and do what has to be done now."""


class Observing(threading.Thread):
    """The thread that calls the observers.

    Args:
        observers: in the order in which they are called.
        cache: its changes wake the thread.
        may_act: True while this replica leads and its cache is in step.
        stop: ends the thread.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        observers: Sequence[Observer],
        *,
        cache: Cache,
        may_act: Callable[[], bool],
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="observers", daemon=True)
        self._observers = observers
        self._cache = cache
        self._may_act = may_act
        self._stop_event = stop
        self._clock = clock

    def run(self) -> None:
        """Until `stop` is set."""
        seen = -1
        last = {observer.name: float("-inf") for observer in self._observers}
        while not self._stop_event.is_set():
            version = self._cache.wait(seen, timeout_s=_WAIT_S)
            if not self._may_act():
                # A new leader starts with everything: what happened meanwhile was seen by nobody else.
                seen = -1
                last = dict.fromkeys(last, float("-inf"))
                self._stop_event.wait(_WAIT_S)
                continue
            now = self._clock()
            for observer in self._observers:
                if version != seen or now - last[observer.name] >= observer.interval_s:
                    last[observer.name] = now
                    self.call(observer)
            seen = version
            # A busy cluster changes all the time: half of the time is left to those who decide.
            self._stop_event.wait(min(_WAIT_S, self._clock() - now))

    def call(self, observer: Observer) -> bool:
        """One step; False when it failed."""
        try:
            observer.step()
        except MyriadError as error:
            log.warning("%s: %s", observer.name, error)
        except Exception:
            # One observer's fault must not end the others; the traceback is for whoever mends it.
            log.exception("%s failed", observer.name)
        else:
            return True
        return False


def observers_of(parts: Surroundings) -> list[Observer]:
    """Every observer of the extension: one line each."""
    # Imported here: each observer is made from `Surroundings`.
    from myriad.scheduler.diagnose.observer import Diagnosing
    from myriad.scheduler.diagnose.prometheus import usage_from
    from myriad.scheduler.protecting import Protecting
    from myriad.scheduler.telling import telling

    found: list[Observer] = []
    # In shadow nobody is kept a domain for, and nobody is told anything unasked.
    if not parts.settings.shadow:
        found.append(Protecting(parts))
        found.append(telling(parts.api, parts.cache, parts.events, parts.metrics.registry, parts.settings))
    address = parts.settings.prometheus
    usage = partial(usage_from, address) if address else None
    found.append(Diagnosing(parts.api, parts.cache, parts.metrics.registry, usage=usage))
    return found
