"""What is inside a node image: every file with its digest, every package, program and container image.

The manifest is read from the finished disk, not from what the build meant to put there. It holds no date and no path of
the build machine: two builds of the same content give the same text.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from myriad.errors import InputError
from myriad.images.rootfs import packages_of_status
from myriad.nodeimage.hygiene import Finding, findings, has_private_key

MANIFEST = "manifest.json"
_CHUNK_BYTES = 1 << 20
_KEY_BYTES = 1 << 18
Kind = Literal["file", "directory", "symlink", "device", "fifo", "socket"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Entry(_Strict):
    """One path.

    Attributes:
        mode: permission bits, octal.
        size: bytes of a file.
        sha256: of a file's content, 64 hex digits.
        target: of a link; `major:minor` of a device.
        mtime: seconds since 1970.
        attributes: extended attributes, hexadecimal.
        has_key: a private key was seen in it.
    """

    kind: Kind
    mode: str
    owner: str
    size: int = 0
    sha256: str = ""
    target: str = ""
    mtime: int = 0
    attributes: dict[str, str] = {}
    has_key: bool = False


class Module(_Strict):
    """A kernel module that was built for the image: path, digest, the driver's version, the kernel that it is for."""

    path: str
    sha256: str
    version: str
    vermagic: str


class Stored(_Strict):
    """A container image in the runtime's store."""

    ref: str
    digest: str


class NodeManifest(_Strict):
    """The manifest of an image. `files` is by absolute path, sorted."""

    name: str
    kernel: str
    epoch: int
    inputs: dict[str, str]
    packages: dict[str, str]
    programs: dict[str, str]
    modules: list[Module]
    images: list[Stored]
    blobs: list[str]
    left_out: dict[str, str]
    disk: dict[str, str] = {}
    files: dict[str, Entry]

    def findings(self) -> list[Finding]:
        """What is in the image and must not be."""
        return findings(
            (path, entry.size, entry.has_key) for path, entry in self.files.items() if entry.kind != "directory"
        )


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
    store = "/var/lib/containerd/io.containerd.content.v1.content/blobs/sha256/"
    return NodeManifest(
        name=name,
        kernel=kernel,
        epoch=epoch,
        inputs=inputs,
        packages=packages_of_status(status.read_text(encoding="utf-8")) if status.is_file() else {},
        programs=programs,
        modules=[module for path in files if (module := _module(root, path, files[path])) is not None],
        images=images,
        blobs=sorted(f"sha256:{Path(path).name}" for path in files if path.startswith(store)),
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


def save(manifest: NodeManifest, path: Path) -> None:
    """Write a manifest: one line a file, so that text tools compare it too."""
    value = manifest.model_dump(mode="json", exclude_defaults=True)
    files = value.pop("files")
    head = json.dumps(value, indent=1, sort_keys=True)[:-2]
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry, sort_keys=True)}" for name, entry in files.items())
    path.write_text(f'{head},\n "files": {{\n{lines}\n }}\n}}\n', encoding="utf-8")


def load(path: Path) -> NodeManifest:
    """Read a manifest, or that of a folder that a build wrote.

    Raises:
        InputError: there is none, or it is none.
    """
    file = path / MANIFEST if path.is_dir() else path
    try:
        return NodeManifest.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise InputError(
            "there is no manifest of a node image",
            where=str(file),
            hint="name the folder that `myriad image node build --out` wrote, or its manifest.json",
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"is no manifest of a node image: {where}: {first['msg']}", where=str(file)) from error
