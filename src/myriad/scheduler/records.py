"""Decision records in reach: the log on disk, the newest ones in memory, and a copy of the leader's on each follower.

Replicas have a disk of their own each (an emptyDir by default). A follower copies what the leader records, about
every two seconds, so that either replica answers "what was decided" and a failover loses two seconds of records at
the most.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import httpx

from myriad.errors import MyriadError
from myriad.kube.client import Api
from myriad.kube.kinds import PODS
from myriad.scheduler.decisions import DecisionLog, record_from_dict
from myriad.scheduler.model import DecisionRecord

log = logging.getLogger("myriad.records")

Json = dict[str, Any]

_KEPT = 5000


def _identity(record: DecisionRecord) -> tuple[Hashable, ...]:
    # Two admissions of a gang, or two places where its pods stood, may be recorded in the same millisecond.
    places = frozenset(record.assigned.items()), frozenset(record.nodes.items())
    return record.time, record.event, record.uid, record.name, *places


class RecordBook:
    """The decision log with its newest records in memory. Safe to use from several threads.

    Args:
        decisions: the log on disk.
        kept: how many records are kept in memory.
    """

    def __init__(self, decisions: DecisionLog, *, kept: int = _KEPT) -> None:
        self._decisions = decisions
        self._lock = threading.Lock()
        self._newest: deque[DecisionRecord] = deque(decisions.read(limit=kept), maxlen=kept)
        self._known = {_identity(r) for r in self._newest}
        self._last: dict[tuple[str, str], DecisionRecord] = {(r.uid, r.event): r for r in self._newest}
        self._count = len(self._newest)
        self.epoch = uuid.uuid4().hex
        """Names this process: positions of `tail` mean nothing in another."""

    def append(self, record: DecisionRecord) -> bool:
        """Record; False where it is there already. Raises MyriadError where the disk refuses (memory has it then)."""
        with self._lock:
            if _identity(record) in self._known:
                return False
            if len(self._newest) == self._newest.maxlen:
                oldest = self._newest[0]
                self._known.discard(_identity(oldest))
                if self._last.get((oldest.uid, oldest.event)) is oldest:
                    del self._last[oldest.uid, oldest.event]
            self._newest.append(record)
            self._known.add(_identity(record))
            self._last[record.uid, record.event] = record
            self._count += 1
        self._decisions.append(record)
        return True

    def read(self, **query: Any) -> list[DecisionRecord]:
        """Records from disk; see `DecisionLog.read`."""
        return self._decisions.read(**query)

    def last(self, uid: str, event: str) -> DecisionRecord | None:
        """The newest record of one kind about a gang, where it is still in memory."""
        with self._lock:
            return self._last.get((uid, event))

    def newest(self, limit: int) -> list[DecisionRecord]:
        """The newest records, oldest of them first."""
        with self._lock:
            return list(self._newest)[-limit:]

    def tail(self, epoch: str, after: int) -> Json:
        """Records after a position; all that are in memory where the position is another process's."""
        with self._lock:
            missed = self._count - after if epoch == self.epoch else len(self._newest)
            records = list(self._newest)[max(0, len(self._newest) - max(0, missed)) :]
            return {"epoch": self.epoch, "next": self._count, "records": [r.as_dict() for r in records]}


class Copier:
    """A follower's side: asks the leader for what is new.

    Args:
        api: finds the leader's address by its pod.
        book: where copies go.
        namespace, port: of the replicas.
        token: the file with the token that the leader is shown; none is sent where the file is not there.
        transport: replaces the network in tests.
    """

    def __init__(
        self,
        api: Api,
        book: RecordBook,
        *,
        namespace: str,
        port: int,
        token: Path | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._api = api
        self._book = book
        self._namespace = namespace
        self._port = port
        self._token = token
        self._client = httpx.Client(timeout=5.0, transport=transport)
        self._leader = ""
        self._address = ""
        self._epoch = ""
        self._after = 0

    def copy(self, leader: str) -> int:
        """Copy what is new from the leader (its identity in the Lease); how many records came."""
        try:
            if leader != self._leader or not self._address:
                self._address = self._find(leader)
                self._leader = leader
            if not self._address:
                return 0
            answer = self._client.get(
                f"http://{self._address}:{self._port}/v1/decisions/tail",
                params={"epoch": self._epoch, "after": str(self._after)},
                headers=self._headers(),
            )
            answer.raise_for_status()
            document = answer.json()
            copied = sum(self._book.append(record_from_dict(r)) for r in document["records"])
            self._epoch, self._after = document["epoch"], int(document["next"])
            return copied
        except (httpx.HTTPError, MyriadError, ValueError, KeyError) as error:
            # The leader may be just starting or going; the next round asks again.
            log.debug("no records from %s: %s", leader, error)
            self._address = ""
            return 0

    def _headers(self) -> dict[str, str]:
        try:
            # Read each time: the kubelet puts a new token there before the old one runs out.
            return {"Authorization": f"Bearer {self._token.read_text().strip()}"} if self._token else {}
        except OSError:
            return {}

    def _find(self, leader: str) -> str:
        pod = self._api.find(PODS, leader, namespace=self._namespace) if leader else None
        address = str(((pod or {}).get("status") or {}).get("podIP") or "")
        return f"[{address}]" if ":" in address else address


def every(interval_s: float, clock: Callable[[], float]) -> Callable[[], bool]:
    """A function that is true at its first call and then once an interval."""
    last = [float("-inf")]

    def due() -> bool:
        if clock() - last[0] < interval_s:
            return False
        last[0] = clock()
        return True

    return due
