"""Reads a tree, or the mounted root of a finished disk, into a manifest: not what a build meant to put there."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from myriad.images.rootfs import packages_of_status
from myriad.nodeimage.hygiene import has_private_key
from myriad.nodeimage.manifest import Entry, Kind, Module, NodeManifest, Stored

_CHUNK_BYTES = 1 << 20
_KEY_BYTES = 1 << 18
_STORE = "/var/lib/containerd/io.containerd.content.v1.content/blobs/sha256/"


def read_tree(root: Path) -> Iterator[tuple[str, Entry]]:
    """Every path of a tree on one file system, sorted, with content digests; hard links are read once."""
    seen: dict[tuple[int, int], tuple[str, bool]] = {}
    device = root.lstat().st_dev
    pending = [(root, "")]
    while pending:
        folder, prefix = pending.pop()
        with os.scandir(folder) as scan:
            children = sorted(scan, key=lambda child: child.name, reverse=True)
        for child in children:
            path = f"{prefix}/{child.name}"
            info = child.stat(follow_symlinks=False)
            yield path, _entry(Path(child.path), info, seen)
            if stat.S_ISDIR(info.st_mode) and info.st_dev == device:
                pending.append((Path(child.path), path))


def _entry(path: Path, info: os.stat_result, seen: dict[tuple[int, int], tuple[str, bool]]) -> Entry:
    fields: dict[str, Any] = {"mode": f"{stat.S_IMODE(info.st_mode):04o}", "owner": f"{info.st_uid}:{info.st_gid}"}
    fields["mtime"] = int(info.st_mtime)
    attributes = {}
    for name in sorted(os.listxattr(path, follow_symlinks=False)):
        attributes[name] = os.getxattr(path, name, follow_symlinks=False).hex()
    if attributes:
        fields["attributes"] = attributes
    kind: Kind = "socket"
    if stat.S_ISREG(info.st_mode):
        kind = "file"
        key = (info.st_dev, info.st_ino)
        if key not in seen or info.st_nlink == 1:
            seen[key] = _digest(path, info.st_size)
        fields["sha256"], has_key = seen[key]
        fields["size"] = info.st_size
        if has_key:
            fields["has_key"] = True
    elif stat.S_ISDIR(info.st_mode):
        kind = "directory"
    elif stat.S_ISLNK(info.st_mode):
        kind, fields["target"] = "symlink", str(path.readlink())
    elif stat.S_ISBLK(info.st_mode) or stat.S_ISCHR(info.st_mode):
        kind, fields["target"] = "device", f"{os.major(info.st_rdev)}:{os.minor(info.st_rdev)}"
    elif stat.S_ISFIFO(info.st_mode):
        kind = "fifo"
    return Entry(kind=kind, **fields)


def _digest(path: Path, size: int) -> tuple[str, bool]:
    digest = hashlib.sha256()
    has_key = False
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            if size <= _KEY_BYTES:
                has_key = has_key or has_private_key(chunk)
    return digest.hexdigest(), has_key


def build_manifest(
    root: Path,
    *,
    name: str,
    kernel: str,
    epoch: int,
    inputs: dict[str, str],
    images: list[Stored],
    left_out: dict[str, str],
    disk: dict[str, str],
) -> NodeManifest:
    """Read a tree, or the mounted root of a disk, into a manifest."""
    files = dict(sorted(read_tree(root)))
    status = root / "var/lib/dpkg/status"
    programs = {
        path: entry.sha256
        for path, entry in files.items()
        if entry.kind == "file" and path.startswith(("/usr/local/bin/", "/usr/local/sbin/", "/opt/cni/bin/"))
    }
    return NodeManifest(
        name=name,
        kernel=kernel,
        epoch=epoch,
        inputs=inputs,
        packages=packages_of_status(status.read_text(encoding="utf-8")) if status.is_file() else {},
        programs=programs,
        modules=[module for path in files if (module := _module(root, path, files[path])) is not None],
        images=images,
        blobs=sorted(f"sha256:{Path(path).name}" for path in files if path.startswith(_STORE)),
        left_out=left_out,
        disk=disk,
        files=files,
    )


def _module(root: Path, path: str, entry: Entry) -> Module | None:
    """What a module that dkms built says of itself (its section .modinfo: NAME=VALUE, ended by zero bytes)."""
    if entry.kind != "file" or not path.endswith(".ko") or "/updates/dkms/" not in path:
        return None
    content = (root / path.lstrip("/")).read_bytes()
    return Module(
        path=path, sha256=entry.sha256, version=modinfo(content, "version"), vermagic=modinfo(content, "vermagic")
    )


def modinfo(content: bytes, key: str) -> str:
    """A field of a kernel module's description; empty where it has none."""
    marker = b"\0" + key.encode() + b"="
    start = content.rfind(marker)
    if start < 0:
        return ""
    begin = start + len(marker)
    return content[begin : content.index(b"\0", begin)].decode("utf-8", "replace").split(" ")[0]
