"""Layers of files that are at hand, cached by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from myriad.images.context import BuildContext, read_record, write_record
from myriad.images.layer import Entry
from myriad.images.oci import Layer, write_layer


def layer_of(ctx: BuildContext, step: str, entries: Sequence[Entry], *, comment: str) -> Layer:
    """A layer of files that are at hand, cached by their content."""
    inputs = [
        [entry.path, entry.kind.value, entry.mode, entry.uid, entry.gid, entry.target, _content_digest(ctx, entry)]
        for entry in sorted(entries, key=lambda one: one.path)
    ]
    return ctx.cached_layer(
        step,
        {"comment": comment, "entries": inputs},
        lambda: write_layer(ctx.blobs, entries, comment=comment, epoch=ctx.epoch),
    )


def _content_digest(ctx: BuildContext, entry: Entry) -> str:
    """sha256 of an entry's content; of large files it is remembered by path, size, time and inode, as reading them
    costs most of a build."""
    if entry.content is None:
        return ""
    if entry.source is None or entry.size < 1 << 20:
        return _hash(entry)
    status = entry.source.stat()
    name = hashlib.sha256(f"{entry.source.resolve()}".encode()).hexdigest()
    seen = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]
    record = ctx.cache_dir / "hashes" / f"{name}.json"
    known = read_record(record)
    if known is not None and known["seen"] == seen:
        return str(known["sha256"])
    digest = _hash(entry)
    write_record(record, {"seen": seen, "sha256": digest})
    return digest


def _hash(entry: Entry) -> str:
    if entry.content is None:
        return ""
    with entry.content() as file:
        value = hashlib.sha256()
        while chunk := file.read(1 << 20):
            value.update(chunk)
    return value.hexdigest()
