"""The content-addressed store: every file that Myriad has fetched or built, by its sha256.

Layout: `<root>/sha256/<first two hex digits>/<64 hex digits>`. A blob is written under `<root>/tmp` and renamed into
place, so a reader sees a whole blob or none, and any number of processes may write the same blob at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from myriad.errors import MyriadError

_HEX = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES = 1 << 20


class StoreError(MyriadError):
    """A blob is missing from the store, or is not what its name says."""


def sha256_of(path: Path) -> str:
    """The sha256 of a file, as 64 hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def plain_hex(digest: str) -> str:
    """`sha256:<hex>` or `<hex>` as `<hex>`. Raises StoreError for anything else."""
    value = digest.removeprefix("sha256:")
    if not _HEX.fullmatch(value):
        raise StoreError(f"{digest!r} is not a sha256 digest (64 hex digits)")
    return value


def link_or_copy(source: Path, target: Path) -> None:
    """Put `source` at `target`: a hard link where the file system allows one, a copy otherwise; atomic either way."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        try:
            os.link(source, temporary)
        except OSError:  # another file system, or one without links
            shutil.copyfile(source, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


class BlobWriter:
    """A binary stream into the store that knows its own digest; made by `Store.writer()`."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        """Append bytes."""
        self._digest.update(data)
        self.size += len(data)
        return self._stream.write(data)

    @property
    def sha256(self) -> str:
        """The digest of what has been written so far, as 64 hex digits."""
        return self._digest.hexdigest()


class Store:
    """Blobs by sha256 under one directory. Safe for concurrent use by threads and processes.

    Args:
        root: the store's directory; made when missing. Blobs lie in `<root>/sha256/<2>/<hex>`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tmp = root / "tmp"
        self._tmp.mkdir(parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Where the blob lies or would lie. Accepts `<hex>` and `sha256:<hex>`."""
        value = plain_hex(digest)
        return self.root / "sha256" / value[:2] / value

    def has(self, digest: str) -> bool:
        """Is the blob there?"""
        return self.path(digest).is_file()

    def need(self, digest: str) -> Path:
        """The blob's path. Raises StoreError when it is missing."""
        path = self.path(digest)
        if not path.is_file():
            raise StoreError(
                f"blob {plain_hex(digest)} is not in the store",
                where=str(self.root),
                hint="run `myriad bundle build` to make it again",
            )
        return path

    def read_bytes(self, digest: str) -> bytes:
        """The blob's content. Raises StoreError when it is missing."""
        return self.need(digest).read_bytes()

    @contextlib.contextmanager
    def writer(self) -> Iterator[BlobWriter]:
        """Stream a new blob into the store; it appears when the block ends without an exception."""
        temporary = self._temporary()
        try:
            with temporary.open("wb") as stream:
                writer = BlobWriter(stream)
                yield writer
                stream.flush()
                os.fsync(stream.fileno())
            self._adopt(temporary, writer.sha256)
        finally:
            temporary.unlink(missing_ok=True)

    def put_bytes(self, data: bytes) -> str:
        """Store bytes. Returns their sha256 as hex."""
        value = hashlib.sha256(data).hexdigest()
        if not self.has(value):
            with self.writer() as writer:
                writer.write(data)
        return value

    def put_file(self, source: Path, *, move: bool = False, expect: str | None = None) -> str:
        """Store a file. Returns its sha256 as hex.

        Args:
            source: the file.
            move: it may be moved into the store (it is gone afterwards) instead of copied.
            expect: the digest that it must have; StoreError when it has another.
        """
        value = sha256_of(source)
        if expect is not None and value != plain_hex(expect):
            raise StoreError(f"the content is sha256:{value}, expected sha256:{plain_hex(expect)}", where=str(source))
        if self.has(value):
            if move:
                source.unlink()
            return value
        temporary = self._temporary()
        try:
            if move:
                shutil.move(source, temporary)
            else:
                shutil.copyfile(source, temporary)
            self._adopt(temporary, value)
        finally:
            temporary.unlink(missing_ok=True)
        return value

    def check(self, digest: str) -> bool:
        """Does the blob exist with the content that its name promises? Reads it whole."""
        path = self.path(digest)
        return path.is_file() and sha256_of(path) == plain_hex(digest)

    def discard(self, digest: str) -> None:
        """Remove a blob that turned out to be damaged; nothing happens when it is not there."""
        self.path(digest).unlink(missing_ok=True)

    def _temporary(self) -> Path:
        return self._tmp / f"{os.getpid()}-{secrets.token_hex(8)}"

    def _adopt(self, temporary: Path, value: str) -> None:
        target = self.path(value)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Read-only: bundles hold hard links to it, and whoever edits a blob in place would change them all.
        # Executable, so that a program runs from where it lies.
        temporary.chmod(0o555)
        temporary.replace(target)
