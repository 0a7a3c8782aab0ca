"""Kubernetes Events on Jobs and Workloads: one sentence, only when it changed, never a flood."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError, Json

log = logging.getLogger("myriad.events")

Reason = Literal["MyriadWaiting", "MyriadRefused", "MyriadPlaced", "MyriadProtected"]

_BURST = 25
_PER_S = 5.0
_KEPT_S = 3600.0
"""What was offered about an object is remembered so long, as the API server keeps Events: most objects end unseen."""


@dataclass(slots=True)
class _Told:
    """What was said about one object: by reason the sentence and when; and when anything was offered last."""

    offered: float
    said: dict[Reason, tuple[str, float]] = field(default_factory=dict)


class EventSink:
    """Writes Events. The same text about the same object is written once; a changed text of the same reason at most
    once an interval (positions and free counts move all the time); all together at most five a second. Several say why
    one job waits, in turn: each has its own last word. A job that got its place and waits again is told anew.

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
        self._told: OrderedDict[str, _Told] = OrderedDict()
        self._tokens = float(_BURST)
        self._filled_at = clock()
        self._lock = threading.Lock()

    def tell(self, about: Json, reason: Reason, sentence: str) -> bool:
        """Offer a sentence; True when an Event was written."""
        uid = str(about["metadata"].get("uid", ""))
        with self._lock:
            now = self._clock()
            told = self._offered(uid, now)
            last = told.said.get(reason)
            if last is not None and (last[0] == sentence or now - last[1] < self._interval_s):
                return False
            self._tokens = min(float(_BURST), self._tokens + (now - self._filled_at) * _PER_S)
            self._filled_at = now
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
            is_placed = reason == "MyriadPlaced"
            told.said = {r: words for r, words in told.said.items() if (r == "MyriadPlaced") == is_placed}
            told.said[reason] = (sentence, now)
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

    def _offered(self, uid: str, now: float) -> _Told:
        told = self._told.setdefault(uid, _Told(now))
        told.offered = now
        self._told.move_to_end(uid)
        while next(iter(self._told.values())).offered < now - _KEPT_S:
            self._told.popitem(last=False)
        return told
