"""What decisions were made on, kept so that each can be made again: a bounded folder of compressed JSON.

Nodes hardly change from one decision to the next and are most of the bytes: they are written once, by their own hash,
and a decision's file names it. A thread of its own writes; where it cannot keep up, or the folder is full, the oldest
go, and a replay says that the inputs are not kept.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import queue
import re
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from myriad.errors import InputError, MyriadError
from myriad.scheduler.model import Gang, NodeInfo, PlacementPolicy
from myriad.scheduler.replay import inputs_hash, inputs_of, nodes_data
from myriad.scheduler.snapshot import Snapshot

log = logging.getLogger("myriad.inputs")

Json = dict[str, Any]

MAX_BYTES = 256 * 1024 * 1024
_OFFERED = 8
_QUEUED = 64
_NAME = re.compile(r"sha256:[0-9a-f]{64}")


class InputsFolder:
    """The files. `put` and `get` may be called from any thread.

    Args:
        folder: made when the first inputs come.
        max_bytes: beyond it the oldest files go.
    """

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._nodes: list[NodeInfo] = []
        self._nodes_name = ""
        self._lock = threading.Lock()

    def put(self, snapshot: Snapshot, gang: Gang, policy: PlacementPolicy, digest: str) -> Path:
        """Write one decision's inputs under their hash. Raises MyriadError where the disk refuses."""
        with self._lock:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                nodes = self._put_nodes(snapshot)
                data = inputs_of(snapshot, gang, policy, nodes=False, digest=digest)
                path = self._path(digest)
                _write(path, {**data, "nodes_in": nodes})
                self._prune(keep={path.name, self._path(nodes).name})
            except OSError as error:
                raise MyriadError(
                    f"a decision's inputs cannot be kept: {error.strerror}",
                    where=str(self.folder),
                    hint="free space or fix the path",
                ) from error
            return path

    def get(self, digest: str) -> Json | None:
        """Inputs by their hash, as `replay` takes them; None where they are not kept."""
        if not _NAME.fullmatch(digest):
            raise InputError(f"{digest!r} is no hash of inputs", hint="it looks like sha256:<64 hexadecimal digits>")
        data = _read(self._path(digest))
        if data is None:
            return None
        nodes = _read(self._path(str(data.pop("nodes_in"))))
        if nodes is None:
            return None
        return {**data, "nodes": nodes["nodes"]}

    def _put_nodes(self, snapshot: Snapshot) -> str:
        same = len(self._nodes) == len(snapshot.nodes)
        if not (same and all(a is b for a, b in zip(self._nodes, snapshot.nodes, strict=True))):
            data = {"nodes": nodes_data(snapshot)}
            text = json.dumps(data, sort_keys=True, separators=(",", ":"))
            self._nodes_name = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
            self._nodes = list(snapshot.nodes)
            _write(self._path(self._nodes_name), data)
        elif self._path(self._nodes_name).exists():
            self._path(self._nodes_name).touch()  # in use: not the oldest
        else:
            self._nodes = []
            return self._put_nodes(snapshot)
        return self._nodes_name

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest.removeprefix('sha256:')}.json.gz"

    def _prune(self, *, keep: set[str]) -> None:
        files = [(f.stat().st_mtime, f.stat().st_size, f) for f in self.folder.glob("*.json.gz")]
        total = sum(size for _, size, _ in files)
        for _, size, file in sorted(files):
            if total <= self.max_bytes:
                return
            if file.name not in keep:
                file.unlink(missing_ok=True)
                total -= size


class Keeper:
    """Takes inputs while decisions are made, and hands on those that are recorded.

    Args:
        folder: where they go.
    """

    def __init__(self, folder: InputsFolder) -> None:
        self.folder = folder
        self.dropped = 0
        self._offered: deque[tuple[str, Snapshot, Gang, PlacementPolicy]] = deque(maxlen=_OFFERED)
        self._queue: queue.Queue[tuple[str, Snapshot, Gang, PlacementPolicy]] = queue.Queue(_QUEUED)
        self._thread: threading.Thread | None = None

    def hashed(self, snapshot: Snapshot, gang: Gang, policy: PlacementPolicy) -> str:
        """The hash of a decision's inputs; they stay at hand for a moment."""
        digest = inputs_hash(snapshot, gang, policy)
        self._offered.append((digest, snapshot.clone(), gang, policy))
        return digest

    def keep(self, digest: str) -> bool:
        """The decision was recorded: write its inputs; False where they are no longer at hand."""
        for offered in reversed(self._offered):
            if offered[0] == digest:
                break
        else:
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="inputs", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(offered)
        except queue.Full:
            self.dropped += 1
            return False
        return True

    def flush(self) -> None:
        """Wait until everything handed on is written."""
        self._queue.join()

    def _run(self) -> None:
        while True:
            digest, snapshot, gang, policy = self._queue.get()
            try:
                self.folder.put(snapshot, gang, policy, digest)
            except MyriadError as error:
                log.warning("%s", error)
            finally:
                self._queue.task_done()


def _write(path: Path, data: Mapping[str, Any]) -> None:
    text = json.dumps(data, separators=(",", ":")).encode()
    part = path.with_suffix(".part")
    part.write_bytes(gzip.compress(text, compresslevel=1, mtime=0))
    part.replace(path)


def _read(path: Path) -> Json | None:
    try:
        found: Json = json.loads(gzip.decompress(path.read_bytes()))
    except (FileNotFoundError, EOFError, gzip.BadGzipFile, ValueError):
        return None
    return found
