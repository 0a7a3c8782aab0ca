"""Records of evictions, kept in the cluster: append-only, shared by all replicas, longer-lived than what they tell of.

A record is a few facts under one id: what happened (written first, and only once: who writes it tells it), and later
what became of it and of each delivery. Facts are never changed. They are keys of ConfigMaps (`myriad-evictions-NNNNNN`
in Myriad's namespace), so that a second replica, or the same one after a restart on another node, knows what was told
and what was not; a full segment is followed by the next, and beyond `keep` segments the oldest goes.

An eviction takes about 2 KB. The bounds keep the newest 2,500 or so, within 5 MB of etcd.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import CONFIG_MAPS

log = logging.getLogger("myriad.notices")

Json = dict[str, Any]

LABEL = "myriad.dev/records"
KIND = "evictions"
PREFIX = "myriad-evictions-"
SEGMENT_BYTES = 200_000
KEEP = 25
_ATTEMPTS = 6
_SEPARATOR = "_"
"""Between a record's id and the name of a fact; ids and names do not contain it."""


@dataclass
class Segment:
    """One ConfigMap as it was last seen."""

    number: int
    version: str = ""
    size: int = 0


@dataclass
class Record:
    """Everything known of one eviction.

    Attributes:
        id: of the eviction.
        facts: by name; `eviction` is the first.
    """

    id: str
    facts: dict[str, Json] = field(default_factory=dict)


class Book:
    """The records. Safe to use from several threads.

    Args:
        api: the client.
        namespace: where the ConfigMaps stand.
        segment_bytes: a segment that would grow beyond is followed by the next.
        keep: segments that are kept.
    """

    def __init__(
        self, api: Api, *, namespace: str = "myriad-system", segment_bytes: int = SEGMENT_BYTES, keep: int = KEEP
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._segment_bytes = segment_bytes
        self._keep = keep
        self._lock = threading.RLock()
        self._records: dict[str, Record] = {}
        self._segments: dict[int, Segment] = {}
        self._keys: dict[int, list[str]] = {}

    def load(self) -> None:
        """Read all segments. Raises MyriadError where the API server does not answer."""
        items, _ = self._api.list(CONFIG_MAPS, namespace=self._namespace, labels=f"{LABEL}={KIND}")
        with self._lock:
            self._records, self._segments, self._keys = {}, {}, {}
            for body in sorted(items, key=lambda b: str(b["metadata"]["name"])):
                self._take(body)

    def _take(self, body: Json) -> None:
        number = _number(body["metadata"]["name"])
        if number is None:
            return
        data: Mapping[str, str] = body.get("data") or {}
        self._segments[number] = Segment(
            number, str(body["metadata"].get("resourceVersion") or ""), sum(len(k) + len(v) for k, v in data.items())
        )
        self._keys[number] = list(data)
        for key, text in data.items():
            self._remember(key, text)

    def _remember(self, key: str, text: str) -> None:
        identity, _, name = key.partition(_SEPARATOR)
        try:
            fact = json.loads(text)
        except ValueError:
            log.warning("a record cannot be read and is passed over: %s", key)
            return
        if isinstance(fact, dict):
            self._records.setdefault(identity, Record(identity)).facts[name] = fact

    def append(self, identity: str, name: str, fact: Json) -> bool:
        """Write a fact; False where it is there already, whoever wrote it. See `append_all`."""
        return bool(self.append_all([(identity, name, fact)]))

    def append_all(self, facts: Sequence[tuple[str, str, Json]]) -> list[tuple[str, str]]:
        """Write facts `(id, name, fact)` in one step; those (id, name) that are new, so that whoever wrote them acts.

        Raises MyriadError where they could not be written: then none of them is known to anybody.
        """
        with self._lock:
            for _ in range(_ATTEMPTS):
                fresh = [(i, n, f) for i, n, f in facts if n not in self._records.get(i, Record(i)).facts]
                if not fresh:
                    return []
                data = {f"{i}{_SEPARATOR}{n}": _text(f) for i, n, f in fresh}
                if self._write(data):
                    for key, text in data.items():
                        self._remember(key, text)
                    self._prune()
                    return [(i, n) for i, n, _ in fresh]
                self.load()
        raise MyriadError(
            "the record of an eviction could not be written: others kept writing",
            where=f"ConfigMaps {PREFIX}* in namespace {self._namespace}",
            hint="it is tried again; more than one leader at a time would explain it",
        )

    def _write(self, data: Mapping[str, str]) -> bool:
        number = max(self._segments, default=0)
        segment = self._segments.get(number)
        size = sum(len(key) + len(text.encode()) for key, text in data.items())
        if segment is None or segment.size + size > self._segment_bytes:
            segment = Segment(number + 1)
        name = f"{PREFIX}{segment.number:06d}"
        try:
            if segment.version:
                body: Json = {"metadata": {"resourceVersion": segment.version}, "data": data}
                made = self._api.patch(CONFIG_MAPS, name, body, namespace=self._namespace)
            else:
                metadata = {"name": name, "namespace": self._namespace, "labels": {LABEL: KIND}}
                body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
                made = self._api.create(CONFIG_MAPS, body, namespace=self._namespace)
        except ApiError as error:
            # Another replica wrote first, or somebody removed a segment: what is there decides.
            if error.is_conflict or error.is_not_found:
                return False
            raise
        segment.version = str(made["metadata"].get("resourceVersion") or "")
        segment.size += size
        self._segments[segment.number] = segment
        self._keys.setdefault(segment.number, []).extend(data)
        return True

    def _prune(self) -> None:
        while len(self._segments) > self._keep:
            oldest = min(self._segments)
            try:
                self._api.delete(CONFIG_MAPS, f"{PREFIX}{oldest:06d}", namespace=self._namespace)
            except MyriadError as error:
                # Only room: the next fact tries again.
                log.warning("the oldest records could not be removed: %s", error.message)
                return
            del self._segments[oldest]
            for key in self._keys.pop(oldest, []):
                identity, _, name = key.partition(_SEPARATOR)
                record = self._records.get(identity)
                if record is not None:
                    record.facts.pop(name, None)
                    if not record.facts:
                        del self._records[identity]

    def has(self, identity: str) -> bool:
        """Whether an eviction is recorded."""
        with self._lock:
            return "eviction" in self._records.get(identity, Record(identity)).facts

    def fact(self, identity: str, name: str) -> Json | None:
        """One fact."""
        with self._lock:
            record = self._records.get(identity)
            return record.facts.get(name) if record else None

    def records(self) -> list[Record]:
        """All records, oldest first; copies that the caller owns."""
        with self._lock:
            found = [Record(r.id, dict(r.facts)) for r in self._records.values()]
        return sorted(found, key=lambda r: (str(r.facts.get("eviction", {}).get("at") or ""), r.id))

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())


def _text(fact: Json) -> str:
    return json.dumps(fact, separators=(",", ":"), ensure_ascii=False)


def _number(name: str) -> int | None:
    digits = name.removeprefix(PREFIX)
    return int(digits) if name.startswith(PREFIX) and digits.isdigit() else None
