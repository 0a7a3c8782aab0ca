"""The decision log: what was decided for a job, on which state, and what became of it. Append-only JSON lines.

The records themselves are data (`DecisionRecord`); hashing and building them is pure. `DecisionLog` is the only I/O of
this module: it appends to one file, rotates it by size and keeps a bounded number of old files. `read` goes through
them from the oldest line to the newest and skips a line that a crash cut short.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self, TextIO

from myriad.errors import InputError, MyriadError
from myriad.scheduler.model import Candidate, DecisionRecord, Gang, Outcome, Plan
from myriad.scheduler.placement import tiers
from myriad.scheduler.replay import inputs_hash
from myriad.scheduler.snapshot import Snapshot

Event = Literal["planned", "steered", "refused", "assigned", "outcome"]
__all__ = [
    "EVENTS",
    "DecisionLog",
    "assigned_record",
    "inputs_hash",
    "read_records",
    "record_from_dict",
    "record_of",
    "utc_now",
]

EVENTS: tuple[Event, ...] = ("planned", "steered", "refused", "assigned", "outcome")

FsyncPolicy = Literal["always", "interval", "never"]


# -- records (pure) ----------------------------------------------------------------------------------------------


def utc_now() -> str:
    """The time of a record: UTC with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def record_of(
    gang: Gang,
    outcome: Outcome | None,
    event: Event,
    *,
    time: str,
    inputs: str = "",
    versions: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> DecisionRecord:
    """The record of a plan or refusal (``outcome`` None: an event without one)."""
    base: dict[str, Any] = {
        "time": time,
        "event": event,
        "uid": gang.uid,
        "namespace": gang.namespace,
        "name": gang.name,
        "inputs": inputs,
        "versions": dict(versions or {}),
        "extra": dict(extra or {}),
    }
    if outcome is None:
        return DecisionRecord(**base)
    if isinstance(outcome, Plan):
        return DecisionRecord(
            **base,
            counts=dict(outcome.counts),
            scores=tuple(_score(c) for c in outcome.candidates),
            tier=outcome.tier,
            domain=outcome.domain,
            nodes=outcome.nodes,
            reason=outcome.reason,
        )
    base["extra"] = {**base["extra"], "kind": outcome.kind, "numbers": dict(outcome.numbers)}
    return DecisionRecord(**base, counts=dict(outcome.counts), reason=outcome.sentence)


def _score(candidate: Candidate) -> dict[str, Any]:
    return {**asdict(candidate), "domain": "/".join(candidate.domain), "outer": list(candidate.outer)}


def assigned_record(
    gang: Gang,
    planned: Plan | None,
    assigned: Mapping[str, int],
    snapshot: Snapshot,
    *,
    time: str,
    inputs: str = "",
    versions: Mapping[str, str] | None = None,
) -> DecisionRecord:
    """What TAS did with a gang, against the plan.

    ``agree``: the assignment stands inside the planned domain, or is at least as near as the plan. ``extra.same_nodes``
    says whether it is the plan to the node. Without a plan ``agree`` stays open.
    """
    tier, domain = snapshot.tier_of(assigned)
    agree: bool | None = None
    extra: dict[str, Any] = {}
    if planned is not None:
        order = tiers(snapshot.levels)
        inside = domain[: len(planned.domain)] == planned.domain
        agree = inside or order.index(tier) <= order.index(planned.tier)
        extra = {"same_nodes": dict(assigned) == planned.nodes, "inside": inside, "planned_tier": planned.tier}
    return DecisionRecord(
        time=time,
        event="assigned",
        uid=gang.uid,
        namespace=gang.namespace,
        name=gang.name,
        inputs=inputs,
        tier=planned.tier if planned else "",
        domain=planned.domain if planned else (),
        nodes=planned.nodes if planned else {},
        assigned=dict(assigned),
        assigned_tier=tier,
        agree=agree,
        versions=dict(versions or {}),
        extra={**extra, "assigned_domain": "/".join(domain)},
    )


def record_from_dict(data: Mapping[str, Any]) -> DecisionRecord:
    """A record read back. Fields of a newer version are kept in ``extra``; raises InputError where it is no record."""
    known = {f.name for f in fields(DecisionRecord)}
    values = {k: v for k, v in data.items() if k in known}
    missing = [k for k in ("time", "event", "name") if k not in values]
    if missing:
        raise InputError(f"a decision record without {', '.join(missing)}", hint="the file is no decision log")
    values = {"uid": "", "namespace": "", **values}
    values["extra"] = {**values.get("extra", {}), **{k: v for k, v in data.items() if k not in known}}
    for name in ("domain", "scores"):
        values[name] = tuple(values.get(name, ()))
    return DecisionRecord(**values)


# -- the file ----------------------------------------------------------------------------------------------------


class DecisionLog:
    """An append-only file of decision records, safe to use from several threads of one process.

    Args:
        path: the current file; old ones are ``path.1`` (newest) to ``path.N``.
        max_bytes: a file that would grow beyond this is rotated first.
        keep: old files kept; the total is bounded by (keep + 1) x max_bytes.
        fsync: "always" after each record, "interval" at most every ``fsync_s`` seconds, "never" (the kernel decides).
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = 64 * 2**20,
        keep: int = 7,
        fsync: FsyncPolicy = "interval",
        fsync_s: float = 1.0,
    ) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.keep = keep
        self.fsync = fsync
        self.fsync_s = fsync_s
        self._lock = threading.Lock()
        self._file: TextIO | None = None
        self._size = 0
        self._synced = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, record: DecisionRecord) -> None:
        """Write one record as one line. Raises MyriadError where the file cannot be written."""
        line = json.dumps(record.as_dict(), separators=(",", ":"), ensure_ascii=False) + "\n"
        size = len(line.encode())
        with self._lock:
            try:
                if self._file is None:
                    self._open()
                if self._size and self._size + size > self.max_bytes:
                    self._rotate()
                assert self._file is not None  # noqa: S101 - narrows the type; _open and _rotate set it
                self._file.write(line)
                self._file.flush()
                self._size += size
                now = clock.monotonic()
                if self.fsync == "always" or (self.fsync == "interval" and now - self._synced >= self.fsync_s):
                    os.fsync(self._file.fileno())
                    self._synced = now
            except OSError as e:
                # Opened anew next time, which finds a line that was cut short and starts a fresh one.
                if self._file is not None:
                    with contextlib.suppress(OSError):  # the error that counts is the first
                        self._file.close()
                    self._file = None
                raise MyriadError(
                    f"the decision log cannot be written: {e.strerror}",
                    where=str(self.path),
                    hint="free space or fix the path",
                ) from e

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._size = self.path.stat().st_size if self.path.exists() else 0
        torn = False
        if self._size:
            with self.path.open("rb") as f:
                f.seek(-1, os.SEEK_END)
                torn = f.read(1) != b"\n"
        self._file = self.path.open("a", encoding="utf-8")
        if torn:  # a crash cut the last line short; the next record starts on a line of its own
            self._file.write("\n")
            self._size += 1

    def _rotate(self) -> None:
        if self._file is not None:
            self._file.close()
        for k in range(self.keep, 0, -1):
            old = self.path if k == 1 else self._old(k - 1)
            if old.exists():
                old.replace(self._old(k))
        if self.keep == 0:
            self.path.unlink(missing_ok=True)
        self._file = self.path.open("a", encoding="utf-8")
        self._size = 0

    def _old(self, k: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{k}")

    def close(self) -> None:
        """Flush to disk and close."""
        with self._lock:
            if self._file is not None:
                if self.fsync != "never":
                    os.fsync(self._file.fileno())
                self._file.close()
                self._file = None

    def read(
        self,
        *,
        name: str | None = None,
        namespace: str | None = None,
        uid: str | None = None,
        events: Sequence[str] | None = None,
        since: str | None = None,
        limit: int | None = None,
    ) -> list[DecisionRecord]:
        """Records that match, oldest first; ``limit`` keeps the newest so many. See `read_records`."""
        files = [self._old(k) for k in range(self.keep, 0, -1)] + [self.path]
        found = [
            r
            for f in files
            if f.exists()
            for r in read_records(f)
            if (name is None or r.name == name)
            and (namespace is None or r.namespace == namespace)
            and (uid is None or r.uid == uid)
            and (events is None or r.event in events)
            and (since is None or r.time >= since)
        ]
        return found[-limit:] if limit is not None else found


def read_records(path: Path) -> Iterator[DecisionRecord]:
    """Records of one file in order. A line that is not whole JSON (cut by a crash) is passed over."""
    with path.open(encoding="utf-8", errors="replace") as f:
        for number, line in enumerate(f, start=1):
            try:
                data = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(data, dict):
                try:
                    yield record_from_dict(data)
                except InputError as e:
                    raise InputError(e.message, where=f"{path}:{number}", hint=e.hint) from e
