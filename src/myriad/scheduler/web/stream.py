"""Live changes as server-sent events: what changed since the last look, computed once for all who see the same.

Each event carries one section (`totals`, `quotas`, `budgets`, `jobs`, `nodes`, `decisions`): rows that are new or
changed under `set`, keys that are gone under `gone`, and `full` where it replaces everything. A client that comes back
with Last-Event-ID gets what it missed while that is remembered, else the whole. A client that does not keep up is
dropped and told, so that it costs nothing to the others.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from myriad.errors import MyriadError
from myriad.scheduler.web.auth import Denied, Scope

log = logging.getLogger("myriad.web")

Json = dict[str, Any]
Rows = dict[str, Any]
Documents = dict[str, Rows]

SECTIONS = ("totals", "quotas", "budgets", "jobs", "nodes", "decisions")
CLIENTS = 400
QUEUED = 64
REMEMBERED = 256
BEAT_S = 15.0
RECHECK_S = 60.0
RETRY_MS = 3000
LEAST_INTERVAL_S = 1.0
_REST = 4.0
"""Looking takes at most a fifth of the time: after a look of t seconds, four t pass."""
_STALE_S = 15.0
"""Estimates move with time alone, so everything is looked at this often even where nothing happened."""


class TooManyStreams(MyriadError):
    """As many clients as the extension serves follow the stream already."""


def difference(before: Rows, after: Rows) -> tuple[Rows, list[str]]:
    """Rows that are new or changed, and keys that are gone."""
    changed = {k: v for k, v in after.items() if k not in before or before[k] != v}
    return changed, [k for k in before if k not in after]


def event(name: str, data: Any, *, identity: str = "") -> bytes:
    """One server-sent event (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
    text = json.dumps(data, separators=(",", ":"), default=int)
    head = f"id: {identity}\n" if identity else ""
    return f"{head}event: {name}\ndata: {text}\n\n".encode()


@dataclass(eq=False)
class Client:
    """One follower.

    Attributes:
        sections: what it wants.
        waiting: events that it has not taken yet.
        over: why it is dropped; empty while it is not.
    """

    sections: frozenset[str]
    waiting: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(maxsize=QUEUED))
    over: str = ""

    def give(self, data: bytes) -> None:
        """Queue an event; a client whose queue is full is marked as dropped, and what it had waiting is let go."""
        if self.over:
            return
        try:
            self.waiting.put_nowait(data)
        except asyncio.QueueFull:
            self.end("slow")

    def end(self, why: str) -> None:
        """Let the client go, and wake whoever writes to it."""
        self.over = why
        while not self.waiting.empty():
            self.waiting.get_nowait()
        self.waiting.put_nowait(event("dropped", {"why": why}))


@dataclass
class Channel:
    """All clients who see the same.

    Attributes:
        name: in the ids of its events.
        documents: the rows as they were sent last.
    """

    scope: Scope
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    documents: Documents | None = None
    number: int = 0
    sent: deque[tuple[int, str, bytes]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    clients: set[Client] = field(default_factory=set)
    idle_since: float = 0.0

    def publish(self, documents: Documents) -> int:
        """Send what changed; how many events that were."""
        before, self.documents = self.documents, documents
        if before is None:
            return 0
        count = 0
        for section in SECTIONS:
            changed, gone = difference(before.get(section, {}), documents.get(section, {}))
            if not changed and not gone:
                continue
            self.number += 1
            count += 1
            data = event(section, {"set": changed, "gone": gone}, identity=f"{self.name}-{self.number}")
            self.sent.append((self.number, section, data))
            for client in self.clients:
                if section in client.sections:
                    client.give(data)
        return count

    def missed(self, last: str, sections: frozenset[str]) -> list[bytes] | None:
        """Events after the one with this id; None where that is not known any more."""
        name, _, number = last.rpartition("-")
        if name != self.name or not number.isdigit() or not self.documents:
            return None
        after = int(number)
        oldest = self.sent[0][0] if self.sent else self.number + 1
        if after > self.number or after < oldest - 1:
            return None
        return [data for n, section, data in self.sent if n > after and section in sections]

    def whole(self, sections: frozenset[str]) -> list[bytes]:
        """Everything, as one event a section; all carry the number of the newest change."""
        identity = f"{self.name}-{self.number}"
        documents = self.documents or {}
        return [
            event(section, {"full": True, "set": documents.get(section, {}), "gone": []}, identity=identity)
            for section in SECTIONS
            if section in sections
        ]


class Hub:
    """Looks at the cluster while anybody follows, and tells them what changed.

    Args:
        documents: the rows of a scope now, by section; runs in a thread of the hub's own.
        wait: sleeps until something changed after a version or a time is over; the version now.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        documents: Callable[[Scope], Documents],
        wait: Callable[[int, float], int],
        *,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = LEAST_INTERVAL_S,
    ) -> None:
        self._documents = documents
        self._wait = wait
        self._clock = clock
        self._interval_s = interval_s
        self._channels: dict[Hashable, Channel] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stream")
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0

    @property
    def clients(self) -> int:
        """How many follow now."""
        return sum(len(c.clients) for c in self._channels.values())

    async def follow(
        self, scope: Scope, sections: frozenset[str], last: str, recheck: Callable[[], Awaitable[Scope]]
    ) -> AsyncIterator[bytes]:
        """The events for one client, until it goes or is dropped.

        Args:
            scope: what it may see.
            sections: what it wants.
            last: the id of the last event that it has, or "".
            recheck: what it may see now; raises Denied where its right has ended.

        Raises:
            TooManyStreams: before the first event.
        """
        if self.clients >= CLIENTS:
            raise TooManyStreams(
                f"{CLIENTS} clients follow already", hint="reload the page instead, or come back later"
            )
        return self._events(scope, Client(sections), last, recheck)

    async def _events(
        self, scope: Scope, client: Client, last: str, recheck: Callable[[], Awaitable[Scope]]
    ) -> AsyncIterator[bytes]:
        # Only here, where `finally` is sure: a caller that goes before it takes anything never begins this.
        channel = self._channels.setdefault(scope.key, Channel(scope))
        channel.clients.add(client)
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            if channel.documents is None:
                first = await self._look(channel.scope)
                if channel.documents is None:
                    channel.documents = first
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run())
            # From here to the first yield nothing can be published. What was queued meanwhile is in what comes now.
            while not client.waiting.empty() and not client.over:
                client.waiting.get_nowait()
            missed = channel.missed(last, client.sections) if last else None
            begin = channel.whole(client.sections) if missed is None else missed
            for data in begin:
                yield data
            checked = self._clock()
            while True:
                try:
                    data = await asyncio.wait_for(client.waiting.get(), BEAT_S)
                except TimeoutError:
                    data = b": beat\n\n"
                yield data
                if client.over:
                    self.dropped += 1
                    return
                if self._clock() - checked > RECHECK_S:
                    checked = self._clock()
                    try:
                        same = (await recheck()).key == channel.scope.key
                    except Denied:
                        same = False
                    if not same:
                        yield event("dropped", {"why": "rights"})
                        return
        finally:
            channel.clients.discard(client)
            channel.idle_since = self._clock()

    async def _look(self, scope: Scope) -> Documents:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._documents, scope)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        seen, looked = -1, float("-inf")
        while self._channels:
            version = await loop.run_in_executor(self._thread, self._wait, seen, 1.0)
            now = self._clock()
            # Kept for a while without clients, so that whoever reconnects gets what it missed and no more.
            for key in [k for k, c in self._channels.items() if not c.clients and now - c.idle_since > 2 * RECHECK_S]:
                del self._channels[key]
            if version == seen and now - looked < _STALE_S:
                continue
            seen, looked = version, now
            for channel in list(self._channels.values()):
                if channel.documents is None:
                    continue
                try:
                    channel.publish(await self._look(channel.scope))
                except MyriadError as error:
                    log.warning("the stream is behind: %s", error)
                except Exception:
                    # One look that fails must not end the stream of everybody; the traceback is for whoever mends it.
                    log.exception("a look at the cluster for the stream failed")
            await asyncio.sleep(max(self._interval_s, _REST * (self._clock() - now)))

    def snapshot(self) -> Mapping[str, int]:
        """Figures for the metrics."""
        return {"clients": self.clients, "dropped": self.dropped}
