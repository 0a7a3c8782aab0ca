"""Kubernetes Events on Jobs and Workloads: one sentence, only when it changed, never a flood."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Literal

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError, Json

log = logging.getLogger("myriad.events")

Reason = Literal["MyriadWaiting", "MyriadRefused", "MyriadPlaced", "MyriadProtected"]

_BURST = 25
_PER_S = 5.0


class EventSink:
    """Writes Events. The same text about the same object is written once; a changed text of the same reason at most
    once an interval (positions and free counts move all the time); all together at most five a second.

    What is held back by a limit is not queued: the next pass offers the then current sentence again.

    Args:
        api: the client.
        interval_s: least time between two Events of one reason on one object.
        clock: monotonic seconds.
    """

    def __init__(self, api: Api, *, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._interval_s = interval_s
        self._clock = clock
        self._last: dict[str, tuple[str, str, float]] = {}
        self._tokens = float(_BURST)
        self._filled_at = clock()
        self._lock = threading.Lock()

    def tell(self, about: Json, reason: Reason, sentence: str) -> bool:
        """Offer a sentence; True when an Event was written."""
        uid = str(about["metadata"].get("uid", ""))
        with self._lock:
            now = self._clock()
            last = self._last.get(uid)
            if last is not None and last[0] == reason and (last[1] == sentence or now - last[2] < self._interval_s):
                return False
            self._tokens = min(float(_BURST), self._tokens + (now - self._filled_at) * _PER_S)
            self._filled_at = now
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
            self._last[uid] = (reason, sentence, now)
        try:
            self._api.create_event(
                about, reason=reason, message=sentence, type_="Warning" if reason == "MyriadRefused" else "Normal"
            )
        except ApiError as error:
            # A namespace that is being deleted takes no Events; that must not stop the pass.
            log.info("no event on %s: %s", about["metadata"].get("name"), error.message)
            return False
        except MyriadError as error:
            log.warning("no event on %s: %s", about["metadata"].get("name"), error.message)
            return False
        return True

    def forget(self, uid: str) -> None:
        """The object is gone."""
        with self._lock:
            self._last.pop(uid, None)
