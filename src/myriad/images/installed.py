"""Python packages that an image's base has, with their files: what a layer on top may leave as it is, and how it takes
one of them away.

A layer cannot change a lower one; it hides files by whiteouts
(https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts).
"""

from __future__ import annotations

import csv
import io
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from packaging.utils import canonicalize_name

from myriad.images.context import BuildContext, BuildEvent, read_record, write_record
from myriad.images.layer import Entry, clean_path, file_from_bytes
from myriad.images.oci import Blob, Layer, open_layer
from myriad.images.wheels import OpenWheel

_METADATA = re.compile(
    r"(?P<folder>(?:.*/)?(?P<site>(?:site|dist)-packages))/(?P<info>[^/]+\.dist-info)/(?P<file>METADATA|RECORD)"
)
_PYTHON = re.compile(r"(?P<prefix>.*?)/?lib/python(?P<version>3\.\d+)/(?:site|dist)-packages")


@dataclass(frozen=True)
class Installed:
    """A package of a base. `files` are paths in the image, bytecode included; `site` is the folder that it is in."""

    name: str
    version: str
    site: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class BasePackages:
    """All packages of a base, by normalised name, and all its paths where they are known."""

    found: Mapping[str, Installed]
    paths: frozenset[str] = frozenset()

    def differ(self, name: str, version: str) -> bool:
        """Is a package there in another version?"""
        return name in self.found and self.found[name].version != version

    @property
    def site(self) -> str:
        """The folder that most of them are in; empty without packages."""
        sites = [one.site for one in self.found.values()]
        return max(sorted(set(sites)), key=sites.count) if sites else ""

    @property
    def python(self) -> tuple[str, str]:
        """(prefix, version) of the Python that they are for, from the folder; empty without packages."""
        match = _PYTHON.fullmatch(self.site)
        return (match["prefix"], match["version"]) if match else ("", "")


def of_wheels(wheels: Iterable[OpenWheel], site: str, python: str) -> BasePackages:
    """The packages of an image that was built here, from its wheels."""
    tag = f"cpython-{python.replace('.', '')}"
    found = {}
    for one in wheels:
        files = [file.path for file in one.files]
        files += [_bytecode(path, tag) for path in files if path.endswith(".py")]
        found[one.wheel.name] = Installed(one.wheel.name, one.wheel.version, site, tuple(sorted(files)))
    return BasePackages(found, frozenset(path for one in found.values() for path in one.files))


def of_layers(ctx: BuildContext, layers: Sequence[Layer]) -> BasePackages:
    """The packages of any image, read from its layers once; what was read of a layer is remembered."""
    paths: set[str] = set()
    records: dict[str, dict[str, str]] = {}
    for layer in layers:
        seen = _scan(ctx, layer)
        for gone in seen["gone"]:
            paths = {path for path in paths if path != gone and not path.startswith(f"{gone}/")}
            records = {key: value for key, value in records.items() if key != gone and not key.startswith(f"{gone}/")}
        paths |= set(seen["paths"])
        for folder, texts in seen["info"].items():
            records.setdefault(folder, {}).update(texts)
    found = {}
    for folder, texts in sorted(records.items()):
        name = re.search(r"^Name: (.+)$", texts.get("METADATA", ""), re.M)
        version = re.search(r"^Version: (.+)$", texts.get("METADATA", ""), re.M)
        if name and version:
            site = str(PurePosixPath(folder).parent)
            files = _recorded(texts.get("RECORD", ""), site, paths)
            key = str(canonicalize_name(name[1].strip()))
            found[key] = Installed(key, version[1].strip(), site, files)
    return BasePackages(found, frozenset(paths))


def _scan(ctx: BuildContext, layer: Layer) -> dict[str, Any]:
    record = ctx.cache_dir / "scans" / f"{layer.digest.removeprefix('sha256:')}.json"
    known = read_record(record)
    if known is not None:
        return known
    ctx.on_event(BuildEvent(f"reading {layer.digest[:19]}", "started", total=layer.size))
    paths, gone = [], []
    info: dict[str, dict[str, str]] = {}
    blob = Blob(ctx.blobs.path(layer.digest), layer.size, layer.media_type)
    with open_layer(blob) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            if member.name in (".", "./", ""):
                continue
            path = clean_path(member.name)
            name = PurePosixPath(path).name
            if name == ".wh..wh..opq":
                gone.append(str(PurePosixPath(path).parent))
            elif name.startswith(".wh."):
                gone.append(str(PurePosixPath(path).with_name(name.removeprefix(".wh."))))
            elif not member.isdir():
                paths.append(path)
                match = _METADATA.fullmatch(path)
                file = tar.extractfile(member) if match and member.isfile() else None
                if match and file is not None:
                    text = file.read().decode(errors="replace")
                    folder = f"{match['folder']}/{match['info']}"
                    info.setdefault(folder, {})[match["file"]] = (
                        text.partition("\n\n")[0] if match["file"] == "METADATA" else text
                    )
    value = {"paths": paths, "gone": gone, "info": info}
    write_record(record, value)
    ctx.on_event(BuildEvent(f"reading {layer.digest[:19]}", "finished", size=layer.size))
    return value


def _recorded(record: str, site: str, paths: set[str]) -> tuple[str, ...]:
    """The files that a RECORD names and the image has, and their bytecode."""
    found = set()
    for row in csv.reader(io.StringIO(record)):
        if not row:
            continue
        parts: list[str] = []
        for part in (*PurePosixPath(site).parts, *PurePosixPath(row[0]).parts):
            if part == "..":
                parts = parts[:-1]
            else:
                parts.append(part)
        path = "/".join(parts).lstrip("/")
        found.add(path)
        if path.endswith(".py"):
            pure = PurePosixPath(path)
            found |= {
                one
                for one in (f"{pure.parent}/__pycache__/{pure.stem}.cpython-3{minor}.pyc" for minor in range(8, 20))
                if one in paths
            }
    return tuple(sorted(found & paths))


def _bytecode(path: str, tag: str) -> str:
    pure = PurePosixPath(path)
    return f"{pure.parent}/__pycache__/{pure.stem}.{tag}.pyc"


def whiteouts(replaced: Installed, base: BasePackages, written: Iterable[str]) -> list[Entry]:
    """The entries that hide a base's package, except for files that the new layer writes itself.

    A folder that holds nothing but the package's files, and nothing new, is hidden as a whole.

    Args:
        replaced: the package.
        base: all of the base.
        written: paths of the new layers.
    """
    kept = frozenset(written)
    own = set(replaced.files)
    foreign = {folder for path in (base.paths - own) | kept for folder in _folders(path)}
    hidden: set[str] = set()
    for path in sorted(own - kept):
        whole = next((folder for folder in _folders(path) if folder not in foreign), None)
        hidden.add(whole or path)
    found = []
    for path in sorted(hidden):
        pure = PurePosixPath(path)
        found.append(file_from_bytes(str(pure.with_name(f".wh.{pure.name}")), b""))
    return found


def _folders(path: str) -> list[str]:
    """The folders above a path, the highest first."""
    return [str(parent) for parent in reversed(PurePosixPath(path).parents) if str(parent) != "."]
