"""Delivers notices: a thread and a bounded queue for each target, so that a dead one holds up nobody else.

A webhook gets a JSON document by POST:

    Myriad-Notice: ID               the same at every attempt, also after a failover: a receiver drops what it knows
    Myriad-Timestamp: SECONDS       when this attempt was made
    Myriad-Signature: sha256=HEX    HMAC-SHA256 over "SECONDS.BODY" with the target's key

Any answer of 2xx is a delivery. What may pass (no answer, 408, 425, 429, 5xx) is tried again, ever more rarely, until
the deadline; any other answer ends it. Redirects are not followed: a signed notice goes where the site said. Mail and
chat go through apprise and are begun once: nobody there could tell a second one from a second eviction.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from myriad.errors import MyriadError
from myriad.scheduler.notices.targets import Address

log = logging.getLogger("myriad.notices")

Json = dict[str, Any]

DEADLINE_S = 900.0
TIMEOUT_S = 5.0
CAPACITY = 500
_BACKOFF_FIRST_S = 0.5
_BACKOFF_MOST_S = 60.0
_PASSING = {408, 425, 429}
_IDLE_S = 300.0
"""A target's thread ends after so long without work; the next notice starts another."""


@dataclass(frozen=True, slots=True)
class Note:
    """What is delivered.

    Attributes:
        id: of the notice.
        title, text: for people.
        body: the document for webhooks.
        at: when it was made, seconds since 1970: the deadline counts from there, also after a failover.
        begun: its delivery was begun before, by a process that did not live to record the end.
    """

    id: str
    title: str
    text: str
    body: Json
    at: float
    begun: bool = False


class Refused(Exception):
    """The target will not take it, however often it is tried. Its text holds no address."""


class Passing(Exception):
    """It may work later. `after_s`: not before, as the target asked."""

    def __init__(self, words: str, after_s: float = 0.0) -> None:
        super().__init__(words)
        self.after_s = after_s


def signature(key: bytes, timestamp: str, content: bytes) -> str:
    """What a receiver compares (in constant time) with the header Myriad-Signature."""
    return "sha256=" + hmac.new(key, timestamp.encode() + b"." + content, hashlib.sha256).hexdigest()


def post(client: httpx.Client, address: Address, note: Note, *, now: float) -> None:
    """One attempt at a webhook. Raises Refused or Passing."""
    content = json.dumps(note.body, separators=(",", ":"), ensure_ascii=False).encode()
    timestamp = str(int(now))
    headers = {"Content-Type": "application/json", "Myriad-Notice": note.id, "Myriad-Timestamp": timestamp}
    if address.key:
        headers["Myriad-Signature"] = signature(address.key, timestamp, content)
    try:
        # The status is all that is wanted: a body without an end is not read.
        with client.stream("POST", address.url, content=content, headers=headers) as answer:
            status, wait = answer.status_code, answer.headers.get("Retry-After", "")
    except (httpx.InvalidURL, ValueError):
        raise Refused("its address cannot be used") from None
    except httpx.HTTPError as error:
        # The error's own text may hold the address.
        raise Passing(f"no answer ({type(error).__name__})") from None
    if 200 <= status < 300:
        return
    if status in _PASSING or status >= 500:
        raise Passing(f"it answered {status}", float(wait) if wait.isdigit() else 0.0)
    raise Refused(f"it answered {status}")


def notify(address: Address, note: Note) -> None:
    """One message by apprise. Raises Refused or Passing."""
    # Imported here: a second of start-up that sites without mail and chat need not pay.
    import apprise

    # Its own log lines may hold addresses.
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    sender = apprise.Apprise()
    if not sender.add(address.url):
        raise Refused("apprise does not know this kind of address")
    try:
        done = sender.notify(body=note.text, title=note.title, notify_type=apprise.NotifyType.WARNING)
    except Exception as error:
        # Plugins of apprise raise what their libraries raise, and those texts may hold addresses.
        raise Passing(f"apprise failed ({type(error).__name__})") from None
    if not done:
        raise Passing("apprise could not deliver it")


class Courier:
    """Hands notices to targets.

    Args:
        address: of a target by name; may raise MyriadError (counts as passing: a Secret may be made later).
        record: keeps a fact of a notice: (id, name of the fact, fact).
        may_act: False once another replica leads: then nothing more is sent.
        deadline_s: a notice is tried for so long.
        timeout_s: one attempt may take so long.
        capacity: notices that may wait for one target.
        clock: seconds since 1970.
        client: for webhooks; replaced in tests.
        notifier: for apprise; replaced in tests.
    """

    def __init__(
        self,
        *,
        address: Callable[[str], Address],
        record: Callable[[str, str, Json], object],
        may_act: Callable[[], bool] = lambda: True,
        deadline_s: float = DEADLINE_S,
        timeout_s: float = TIMEOUT_S,
        capacity: int = CAPACITY,
        backoff_s: float = _BACKOFF_FIRST_S,
        clock: Callable[[], float] = time.time,
        client: httpx.Client | None = None,
        notifier: Callable[[Address, Note], None] = notify,
    ) -> None:
        self.address = address
        self.record = record
        self.may_act = may_act
        self.deadline_s = deadline_s
        self.capacity = capacity
        self.backoff_s = backoff_s
        self.clock = clock
        self.client = client or httpx.Client(timeout=timeout_s, follow_redirects=False, trust_env=True)
        self.notifier = notifier
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}
        self._closed = False
        self._put_down = False

    def send(self, target: str, note: Note) -> None:
        """Take a notice for a target; returns at once, whatever the target does."""
        with self._lock:
            if self._closed:
                return
            line = self._lines.get(target)
            if line is None or not line.take(note):
                line = self._lines[target] = _Line(self, target)
                line.take(note)
                line.start()

    def lay_aside(self, line: _Line) -> None:
        """A target's thread ends with what it has."""
        line.end()
        with self._lock:
            self._put_down = True

    def waiting(self) -> dict[str, int]:
        """Notices that were not delivered yet, by target."""
        with self._lock:
            return {name: line.length for name, line in self._lines.items() if line.length}

    def put_down(self) -> bool:
        """Whether notices were laid aside since this was last asked, because another replica seemed to lead.

        The records say which were not sent: whoever leads sends those again.
        """
        with self._lock:
            found, self._put_down = self._put_down, False
            return found

    def close(self) -> None:
        """Stop taking and sending."""
        with self._lock:
            self._closed = True
            lines = list(self._lines.values())
        for line in lines:
            line.end()
        self.client.close()


class _Line(threading.Thread):
    """One target's queue and thread. Notices go in order; one that the target refuses makes way."""

    def __init__(self, courier: Courier, target: str) -> None:
        super().__init__(name=f"notify-{target}", daemon=True)
        self._courier = courier
        self._target = target
        self._notes: deque[tuple[Note, int]] = deque()
        self._results: deque[tuple[str, str, Json]] = deque()
        self._changed = threading.Condition()
        self._ended = False

    @property
    def length(self) -> int:
        return len(self._notes)

    def take(self, note: Note) -> bool:
        """Queue a notice that is not queued yet; False where this thread has ended."""
        with self._changed:
            if self._ended:
                return False
            if any(known.id == note.id for known, _ in self._notes) or any(r[0] == note.id for r in self._results):
                return True
            if len(self._notes) >= self._courier.capacity:
                words = f"{self._courier.capacity} notices wait for this target already"
                self._results.append((note.id, f"sent-{self._target}", self._result(note, False, 0, words)))
            else:
                self._notes.append((note, 0))
            self._changed.notify()
            return True

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()

    def run(self) -> None:
        while True:
            with self._changed:
                if not (self._notes or self._results or self._ended):
                    self._changed.wait(_IDLE_S)
                if self._ended or not (self._notes or self._results):
                    self._ended = True
                    return
            if not self._courier.may_act():
                # Another replica leads: it has the records and goes on. So does this one where it leads again.
                self._courier.lay_aside(self)
                return
            wait = self._step()
            if wait > 0:
                with self._changed:
                    if not self._ended:
                        self._changed.wait_for(lambda: self._ended, timeout=wait)

    def _step(self) -> float:
        """Record what has ended and try the oldest notice; how long to wait before the next attempt."""
        while self._results:
            try:
                self._courier.record(*self._results[0])
            except Exception as error:
                # Whatever it is, this thread goes on: notices would queue behind one that has ended.
                words = error.message if isinstance(error, MyriadError) else type(error).__name__
                log.warning("target %s: a result could not be recorded yet: %s", self._target, words)
                return self._backoff(3)
            self._results.popleft()
        if not self._notes:
            return 0.0
        note, failures = self._notes[0]
        try:
            self._attempt(note)
        except Refused as error:
            self._finish(note, False, failures + 1, str(error))
        except Passing as error:
            wait = max(self._backoff(failures), min(error.after_s, _BACKOFF_MOST_S))
            if self._courier.clock() + wait - note.at > self._courier.deadline_s:
                self._finish(note, False, failures + 1, f"{error}; given up after {failures + 1} attempts")
                return 0.0
            if failures == 0:
                log.warning("target %s: %s; trying again", self._target, error)
            self._notes[0] = (note, failures + 1)
            return wait
        except Exception as error:
            # A fault of ours must not end the thread: the notices behind this one would never be told.
            self._finish(note, False, failures + 1, f"it could not be sent ({type(error).__name__})")
        else:
            self._finish(note, True, failures + 1, "")
        return 0.0

    def _attempt(self, note: Note) -> None:
        courier = self._courier
        try:
            address = courier.address(self._target)
            if address.kind == "webhook":
                post(courier.client, address, note, now=courier.clock())
                return
            if note.begun:
                raise Refused("its delivery was begun by a process that ended: it may have arrived, it is not repeated")
            courier.record(note.id, f"begun-{self._target}", {"at": _utc(courier.clock())})
        except MyriadError as error:
            raise Passing(" ".join(str(error).split())) from error
        courier.notifier(address, note)

    def _finish(self, note: Note, ok: bool, attempts: int, error: str) -> None:
        with self._changed:
            self._notes.popleft()
            self._results.append((note.id, f"sent-{self._target}", self._result(note, ok, attempts, error)))
        if error:
            log.warning("target %s: notice %s was not delivered: %s", self._target, note.id, error)

    def _result(self, note: Note, ok: bool, attempts: int, error: str) -> Json:
        now = self._courier.clock()
        body: Json = {"ok": ok, "at": _utc(now), "after_s": round(now - note.at, 3), "attempts": attempts}
        return body | ({"error": error} if error else {})

    def _backoff(self, failures: int) -> float:
        longest = min(_BACKOFF_MOST_S, self._courier.backoff_s * 2.0**failures)
        return longest * (0.5 + random.random() / 2)  # noqa: S311 - jitter, not a secret


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
