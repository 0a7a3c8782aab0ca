"""What every build step shares: where things lie, what time it is inside images, who hears of progress, and the layer
cache."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from myriad.errors import InputError
from myriad.images.layer import SOURCE_DATE_EPOCH
from myriad.images.oci import BlobStore, Layer, canonical_json, sha256_digest


@dataclass(frozen=True)
class BuildEvent:
    """One thing that happened in a build. `step` names the layer or image, `seconds` counts since the step began,
    `size` is in bytes, and `total` is what it will be where that is known."""

    step: str
    state: Literal["started", "progress", "cached", "differs", "finished"]
    detail: str = ""
    seconds: float = 0.0
    size: int = 0
    total: int = 0


OnEvent = Callable[[BuildEvent], None]


def ignore_events(event: BuildEvent) -> None:
    """For callers that show no progress."""


@dataclass(frozen=True)
class BuildContext:
    """Where a build reads and writes.

    Attributes:
        store: directory of content-addressed blobs (`sha256/<2>/<hex>`).
        cache_dir: what makes repeated builds fast; may be deleted at any time.
        repository: the checkout of Myriad, with `uv.lock`, `src` and `images`.
        epoch: seconds since 1970 for every time stamp inside an image.
        apt_sources: one-line apt sources for bookworm; empty takes those of this machine (Debian 12) or Debian's own
            mirror.
        apt_keyring: keyring that signs them.
        system_stamp: names a state of the Debian mirror; a new one installs the base and the nodes anew. A root file
            system that was installed once is otherwise kept: mirrors change every day, images only when asked to.
        strict: what is frozen and cannot be had is an error, not a reason to take something newer.
        fresh: make every layer anew, and say which of them are not the bits that the cache has.
    """

    store: Path
    cache_dir: Path
    repository: Path = field(default_factory=lambda: find_repository())
    epoch: int = SOURCE_DATE_EPOCH
    on_event: OnEvent = ignore_events
    apt_sources: tuple[str, ...] = ()
    apt_keyring: Path | None = None
    system_stamp: str = ""
    fresh: bool = False
    strict: bool = False

    @property
    def blobs(self) -> BlobStore:
        """The store as an object."""
        return BlobStore(self.store)

    def program(self, name: str, *, hint: str) -> Path:
        """A program beside this Python (the locked environment) or on PATH.

        Raises:
            InputError: it is nowhere; the hint says how to get it.
        """
        beside = Path(sys.executable).parent / name
        if beside.is_file():
            return beside
        for folder in os.environ.get("PATH", "").split(os.pathsep):
            candidate = Path(folder) / name
            if folder and candidate.is_file() and os.access(candidate, os.X_OK):
                return candidate
        raise InputError(f"{name} is neither on PATH nor beside {sys.executable}", hint=hint)

    def cached_layer(self, step: str, inputs: Any, build: Callable[[], Layer]) -> Layer:
        """The layer that these inputs give: from the cache when its blob is still in the store, else built and
        remembered.

        `inputs` is a JSON value that names everything the layer depends on.
        """
        record = self._record(step, inputs)
        known = self._known(record)
        if known is not None and not self.fresh:
            self.on_event(BuildEvent(step, "cached", known.digest, size=known.size))
            return known
        begun = time.monotonic()
        self.on_event(BuildEvent(step, "started"))
        layer = build()
        if known is not None and known.digest != layer.digest:
            self.on_event(BuildEvent(step, "differs", f"{layer.digest} now, {known.digest} before"))
        write_record(record, asdict(layer))
        self.on_event(BuildEvent(step, "finished", layer.digest, seconds=time.monotonic() - begun, size=layer.size))
        return layer

    def known_layer(self, step: str, inputs: Any) -> Layer | None:
        """The layer of these inputs where the cache has it; builds nothing and tells nobody."""
        return self._known(self._record(step, inputs))

    def _record(self, step: str, inputs: Any) -> Path:
        key = sha256_digest(canonical_json({"epoch": self.epoch, "inputs": inputs, "step": step}))
        return self.cache_dir / "layers" / f"{key.removeprefix('sha256:')}.json"

    def _known(self, record: Path) -> Layer | None:
        known = read_record(record)
        layer = Layer(**known) if known is not None else None
        return layer if layer is not None and self.blobs.has(layer.digest, size=layer.size) else None


def find_repository() -> Path:
    """The checkout that this package is run from: the nearest folder above it that holds `uv.lock` and `images`.

    Raises:
        InputError: Myriad is installed as a wheel, which carries neither.
    """
    for folder in Path(__file__).resolve().parents:
        if (folder / "uv.lock").is_file() and (folder / "images").is_dir():
            return folder
    raise InputError(
        "building images needs a checkout of Myriad: the installed package carries neither uv.lock nor images/",
        hint="run it in a clone of the repository, or give repository=",
    )


def read_record(path: Path) -> dict[str, Any] | None:
    """A JSON object that an earlier build left, or None where there is none or it was cut short."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_record(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object so that a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(canonical_json(value))
    Path(name).replace(path)
