"""Facts on their way to the database: first on disk, then in the database, then off the disk.

The thread that follows the cluster never waits for the database. While that does not answer, facts gather here and are
written when it answers again; a process that is killed in between finds them on disk when it starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from myriad.errors import MyriadError
from myriad.scheduler.ledger.facts import Fact, from_json, to_json
from myriad.scheduler.ledger.store import LedgerError, Quota, Store, Written

log = logging.getLogger("myriad.ledger")

_BATCH = 500
_BACKOFF_S = (1.0, 2.0, 5.0, 10.0)
_SEEN_EVERY_S = 15.0


class Journal:
    """Lines on disk that are not in the database yet. One process writes one file.

    Args:
        path: the file.
        max_bytes: beyond it lines are kept in memory alone (the Workloads themselves still tell most of it).
    """

    def __init__(self, path: Path, *, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._path = path
        self._max_bytes = max_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        # Whoever finds the file of a process that is gone may take it over; the lock tells that it is gone.
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise MyriadError(
                "another process writes this journal of the ledger",
                where=str(path),
                hint="give each replica a name of its own (POD_NAME)",
            ) from error
        self._size = self._file.seek(0, os.SEEK_END)

    def recover(self) -> list[Fact]:
        """What this file and those of processes that are gone still hold; the others' files are removed."""
        self._file.seek(0)
        found = _facts_in(self._file, self._path)
        for other in sorted(self._path.parent.glob(f"*{self._path.suffix}")):
            if other == self._path:
                continue
            with contextlib.suppress(BlockingIOError, FileNotFoundError), other.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                facts = _facts_in(file, other)
                self.append(facts)
                found += facts
                other.unlink()
        return found

    def append(self, facts: Sequence[Fact]) -> bool:
        """Put facts on disk, flushed; False where there is no room for them."""
        text = b"".join(json.dumps(to_json(f), separators=(",", ":")).encode() + b"\n" for f in facts)
        if not text:
            return True
        if self._size + len(text) > self._max_bytes:
            return False
        try:
            self._file.write(text)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            log.warning("the ledger's journal %s cannot be written: %s", self._path, error.strerror)
            return False
        self._size += len(text)
        return True

    def clear(self) -> None:
        """Everything is in the database."""
        if self._size:
            with contextlib.suppress(OSError):
                self._file.truncate(0)
                self._size = 0

    def close(self) -> None:
        """Give the file up; an empty one is removed."""
        with contextlib.suppress(OSError):
            if not self._size:
                self._path.unlink(missing_ok=True)
            self._file.close()


def _facts_in(file: IO[bytes], path: Path) -> list[Fact]:
    found = []
    for number, line in enumerate(file, 1):
        try:
            found.append(from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError):
            # The last line of a process that was killed while it wrote; the Workload itself tells it again.
            log.warning("line %d of the ledger's journal %s is no fact and is left out", number, path)
    return found


@dataclass(frozen=True, slots=True)
class State:
    """How far the database is behind.

    Attributes:
        queued: facts that are not in it yet.
        lag_s: age of the oldest of them.
        error: why the last attempt failed; empty when it did not.
        since: when it began to fail, seconds since the epoch; 0 when it does not.
    """

    queued: int
    lag_s: float
    error: str
    since: float


class Writer(threading.Thread):
    """Carries facts into the database, in order, in batches.

    Args:
        store: the database.
        journal: the disk.
        stop: ends the thread after a last attempt.
        written: called with what each batch added.
        failed: called with the message of each attempt that failed.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        journal: Journal,
        *,
        stop: threading.Event,
        written: Callable[[Written], object] = lambda _written: None,
        failed: Callable[[str], object] = lambda _message: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(name="ledger", daemon=True)
        self._store = store
        self._journal = journal
        self._stopping = stop
        self._written = written
        self._failed = failed
        self._clock = clock
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._queue: deque[tuple[float, Fact]] = deque()
        self._quotas: dict[str, Quota] = {}
        self._seen: int | None = None
        self._seen_written = 0
        self._error = ""
        self._error_since = 0.0
        recovered = journal.recover()
        if recovered:
            log.info("%d facts of an earlier process are written now", len(recovered))
            self._queue.extend((self._clock(), fact) for fact in recovered)

    def put(self, facts: Iterable[Fact]) -> None:
        """Take facts on; they are on disk when this returns."""
        new = list(facts)
        if not new:
            return
        with self._lock:
            if not self._journal.append(new):
                log.warning("the ledger's journal is full: %d facts are in memory alone", len(new))
            now = self._clock()
            self._queue.extend((now, fact) for fact in new)
        self._woken.set()

    def put_quotas(self, quotas: Iterable[Quota]) -> None:
        """What ClusterQueues own now."""
        with self._lock:
            self._quotas.update({quota.cluster_queue: quota for quota in quotas})
        self._woken.set()

    def seen(self, at: int) -> None:
        """The cluster was followed until `at`, and everything up to then was put."""
        with self._lock:
            self._seen = at
        if at - self._seen_written >= _SEEN_EVERY_S:
            self._woken.set()

    def state(self) -> State:
        """How far the database is behind now."""
        with self._lock:
            oldest = self._queue[0][0] if self._queue else self._clock()
            return State(len(self._queue), max(0.0, self._clock() - oldest), self._error, self._error_since)

    def run(self) -> None:
        """Until `stop` is set."""
        failures = 0
        while not self._stopping.is_set():
            self._woken.wait(1.0)
            self._woken.clear()
            if self.flush():
                failures = 0
            else:
                failures += 1
                self._stopping.wait(_BACKOFF_S[min(failures, len(_BACKOFF_S)) - 1])
        self.flush()

    def close(self) -> None:
        """Give the journal up, for whoever writes next."""
        self._journal.close()

    def flush(self) -> bool:
        """Write everything that is queued; False where the database did not take it."""
        try:
            while batch := self._batch():
                self._write([fact for _, fact in batch])
                with self._lock:
                    for _ in batch:
                        self._queue.popleft()
                    if not self._queue:
                        self._journal.clear()
            self._note()
        except MyriadError as error:
            return self._waits(error.message)
        except Exception as error:
            # A fault of ours, or of a driver: without this thread nothing would be charged any more, and nobody told.
            log.exception("the ledger could not be written")
            return self._waits(f"it could not be written ({type(error).__name__})")
        if self._error:
            log.info("the ledger has caught up")
        self._error, self._error_since = "", 0.0
        return True

    def _waits(self, why: str) -> bool:
        if not self._error:
            self._error_since = self._clock()
            log.warning("the ledger waits: %s", why)
        self._error = why
        self._failed(why)
        return False

    def _write(self, facts: Sequence[Fact]) -> None:
        try:
            self._written(self._store.write(facts))
        except LedgerError as error:
            if not error.refused:
                raise
            if len(facts) > 1:
                # One row that the database cannot hold must not keep the others out.
                for fact in facts:
                    self._write([fact])
                return
            self._failed(error.message)
            log.error("the ledger leaves out what its database refuses: %s: %s", to_json(facts[0]), error.message)

    def _batch(self) -> list[tuple[float, Fact]]:
        with self._lock:
            return [self._queue[i] for i in range(min(_BATCH, len(self._queue)))]

    def _note(self) -> None:
        with self._lock:
            quotas, seen, behind = dict(self._quotas), self._seen, bool(self._queue)
        for name, quota in quotas.items():
            self._store.quota(quota)
            with self._lock:
                if self._quotas.get(name) == quota:
                    del self._quotas[name]
        if seen is not None and not behind and seen - self._seen_written >= _SEEN_EVERY_S:
            self._store.seen(seen)
            self._seen_written = seen
