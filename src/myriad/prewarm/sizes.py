"""What an image weighs, layer by layer: compressed as its manifest says, unpacked as a node's disk will see it.

A manifest does not tell how large a layer is once it is unpacked. Layers of a bundle are read once for it, and the
answer is kept by digest, which never changes; of layers that only a registry has, it is estimated, and said so.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import zstandard

from myriad.errors import InputError, MyriadError
from myriad.stack.bundle import Bundle, ImageEntry
from myriad.stack.settings import cache_root

Json = dict[str, Any]

BLOCK = 4096
"""File systems of nodes give space in blocks; of an image with many small Python files that is a fifth more."""
ESTIMATE = 3.0
"""Unpacked over compressed where nobody has unpacked the layer: zstd of Python and CUDA libraries comes to 2 to 3."""
ANNOTATION = "dev.myriad.unpacked-size"
_FILE = "unpacked.json"


def layers_of(manifest: bytes, config: bytes, unpacked: Mapping[str, int]) -> list[Json]:
    """Layers from the lowest: `digest`, `chain`, `size`, `unpacked`, `estimated` (sizes in bytes).

    The chain names a layer with all below it, as the snapshotter does:
    https://github.com/opencontainers/image-spec/blob/main/config.md#layer-chainid
    """
    chain = ""
    result = []
    described = json.loads(manifest)["layers"]
    diffs = json.loads(config)["rootfs"]["diff_ids"]
    if len(described) != len(diffs):
        raise MyriadError(
            f"the manifest has {len(described)} layers and the configuration {len(diffs)}: they do not belong together"
        )
    for layer, diff in zip(described, diffs, strict=True):
        chain = diff if not chain else f"sha256:{hashlib.sha256(f'{chain} {diff}'.encode()).hexdigest()}"
        told = str((layer.get("annotations") or {}).get(ANNOTATION) or "")
        known = unpacked.get(layer["digest"]) or (int(told) if told.isdigit() else None)
        size = int(layer["size"])
        result.append(
            {
                "digest": layer["digest"],
                "chain": chain,
                "size": size,
                "unpacked": known if known is not None else int(size * ESTIMATE),
                "estimated": known is None,
            }
        )
    return result


def unpacked_bytes(path: Path, media_type: str) -> int:
    """What a layer takes on a disk: its files in whole blocks, and a block for every directory."""
    total = 0
    with path.open("rb") as raw:
        plain: IO[bytes]
        if "zstd" in media_type:
            plain = cast(IO[bytes], zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True))
        elif "gzip" in media_type:
            plain = cast(IO[bytes], gzip.GzipFile(fileobj=raw))
        else:
            plain = raw
        with tarfile.open(fileobj=plain, mode="r|") as archive:
            for member in archive:
                if member.isreg():
                    total += -(-member.size // BLOCK) * BLOCK
                elif member.isdir():
                    total += BLOCK
                # A streamed archive keeps every member that it has read.
                cast(Any, archive).members = []
    return total


def in_bundle(bundle_dir: Path, refs: Sequence[str], *, cache: Path | None = None) -> dict[str, Json]:
    """Images of a bundle by `repo:tag`: `digest` and `layers`.

    Args:
        bundle_dir: the bundle.
        refs: which.
        cache: folder in which unpacked sizes are kept; the project's cache where not given.

    Raises:
        InputError: the bundle has no such image.
    """
    bundle = Bundle.load(bundle_dir)
    entries = {entry.ref: entry for entry in bundle.manifest.images}
    missing = [ref for ref in refs if ref not in entries]
    if missing:
        raise InputError(
            f"the bundle has no image {', '.join(missing)}; it has {', '.join(sorted(entries))}", where=str(bundle_dir)
        )
    read = {}
    for ref in refs:
        manifest = bundle.path(entries[ref].digest).read_bytes()
        read[ref] = manifest, bundle.path(json.loads(manifest)["config"]["digest"]).read_bytes()
    unknown = {
        layer["digest"]
        for manifest, config in read.values()
        for layer in layers_of(manifest, config, {})
        if layer["estimated"]
    }
    measured = _measured(bundle, [entries[ref] for ref in refs], unknown, cache or cache_root() / "prewarm")
    return {
        ref: {"digest": entries[ref].digest, "layers": layers_of(manifest, config, measured)}
        for ref, (manifest, config) in read.items()
    }


def _measured(bundle: Bundle, entries: Sequence[ImageEntry], unknown: set[str], folder: Path) -> dict[str, int]:
    """Unpacked bytes by digest of those layers of which nobody tells."""
    every = {f"sha256:{blob.sha256}": blob for entry in entries for blob in entry.blobs}
    blobs = {digest: every[digest] for digest in unknown if digest in every}
    path = folder / _FILE
    known = _read(path)
    if blobs.keys() <= known.keys():
        return known
    folder.mkdir(parents=True, exist_ok=True)
    # Ansible asks from many processes at a time, and reading a large image once is enough.
    with (folder / f"{_FILE}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = _read(path)
        for digest in sorted(blobs.keys() - known.keys()):
            known[digest] = unpacked_bytes(bundle.path(digest), blobs[digest].media_type)
        part = path.with_suffix(f".{os.getpid()}.tmp")
        part.write_text(json.dumps(known, sort_keys=True), encoding="utf-8")
        part.replace(path)
    return known


def _read(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return {str(name): int(size) for name, size in found.items()} if isinstance(found, dict) else {}


def in_registry(url: str, repo: str, digest: str, *, ca: Path | None = None) -> list[Json]:
    """Layers of an image that only a registry has, by digest; their unpacked sizes are estimated.

    Raises:
        MyriadError: the registry does not answer, or does not have it.
    """
    from myriad.images.registry import Registry

    with Registry(url, ca=ca) as registry:
        manifest = registry.image_manifest(repo, digest)
        config = b"".join(registry.blob(repo, manifest.value["config"]["digest"]))
        return layers_of(manifest.body, config, {})
