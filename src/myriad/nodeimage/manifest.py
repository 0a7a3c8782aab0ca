"""What is inside a node image: every file with its digest, every package, program and container image.

It holds no date and no path of the build machine: two builds of the same content give the same text. `contents` reads
it from the finished disk.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from myriad.errors import InputError
from myriad.nodeimage.hygiene import Finding, findings

MANIFEST = "manifest.json"
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
