"""What differs between two images: packages, files, layers, and how they start."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import zstandard
from packaging.utils import canonicalize_name

from myriad.errors import MyriadError
from myriad.images.layer import clean_path
from myriad.images.oci import BuiltImage, check_blobs, open_layer

_DPKG = "var/lib/dpkg/status"
_METADATA = re.compile(r".*\.dist-info/METADATA")
_INFO = re.compile(r"(?:.*/)?(?P<name>[^/-]+)-(?P<version>[^/-]+)\.dist-info(/|$)")
_PARTS = ("Entrypoint", "Cmd", "User", "WorkingDir")


@dataclass(frozen=True)
class FileState:
    """One path: a sentence-free summary that two images are compared by, its bytes, and the package it belongs to."""

    value: str
    size: int
    package: str = ""


@dataclass(frozen=True)
class Change:
    """One difference. `before` and `after` are empty where it was or is not there."""

    what: str
    before: str
    after: str


@dataclass
class Contents:
    """What is looked at of an image.

    Attributes:
        layers: (digest, bytes, what it holds), lowest first.
        packages: `python numpy` or `debian libc6` to version.
        config: `env PATH`, `label x`, `entrypoint` to text.
        files: by path, of the layers that both images do not share.
        hidden: packages of lower layers that those layers hide, as in `packages`.
    """

    layers: list[tuple[str, int, str]]
    packages: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    files: dict[str, FileState] = field(default_factory=dict)
    hidden: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """All that differs. Layers that moved without changing are no difference."""

    packages: list[Change]
    config: list[Change]
    layers: list[Change]
    files: list[Change]
    shared: int
    pulled: int

    @property
    def same(self) -> bool:
        """Whether they are the same image in all that is looked at."""
        return not (self.packages or self.config or self.layers or self.files)


def difference(before: BuiltImage, after: BuiltImage) -> Difference:
    """Compare two images whose blobs are at hand. Only layers that differ are read.

    Raises:
        MyriadError: a layer is missing, damaged, or of a kind that cannot be read.
    """
    check_blobs(before)
    check_blobs(after)
    common = set(before.layer_digests) & set(after.layer_digests)
    one, other = _contents(before, common), _contents(after, common)
    old, new = {layer[0] for layer in one.layers}, {layer[0] for layer in other.layers}
    # What one image hides of a layer that both have, the other one shows.
    one.packages |= {key: version for key, version in other.hidden.items() if key not in one.packages | one.hidden}
    other.packages |= {key: version for key, version in one.hidden.items() if key not in other.packages | other.hidden}
    return Difference(
        packages=_changes(one.packages, other.packages),
        config=_changes(one.config, other.config),
        layers=_layer_changes(
            [layer for layer in one.layers if layer[0] not in new],
            [layer for layer in other.layers if layer[0] not in old],
        ),
        files=_changes(
            {path: state.value for path, state in one.files.items()},
            {path: state.value for path, state in other.files.items()},
        ),
        shared=len(common),
        pulled=sum(size for digest, size, _ in other.layers if digest not in old),
    )


def _contents(image: BuiltImage, common: set[str]) -> Contents:
    config: dict[str, Any] = json.loads(image.blobs[image.config_digest].path.read_bytes())
    history = [one.get("created_by", "") for one in config.get("history") or () if not one.get("empty_layer")]
    history += [""] * len(image.layer_digests)
    found = Contents(
        [
            (digest, image.blobs[digest].size, comment.removeprefix("myriad: "))
            for digest, comment in zip(image.layer_digests, history, strict=False)
        ]
    )
    runtime = config.get("config") or {}
    for entry in runtime.get("Env") or ():
        key, _, value = entry.partition("=")
        found.config[f"env {key}"] = value
    for key, value in (runtime.get("Labels") or {}).items():
        found.config[f"label {key}"] = value
    for key in _PARTS:
        if runtime.get(key):
            found.config[key.lower()] = (
                json.dumps(runtime[key]) if isinstance(runtime[key], list) else str(runtime[key])
            )
    for digest in image.layer_digests:
        # Packages of shared layers are in both alike, unless an upper layer says otherwise.
        if digest in common:
            continue
        try:
            _read(image, digest, found)
        except (tarfile.TarError, zstandard.ZstdError, OSError, EOFError) as error:
            raise MyriadError(
                f"a layer cannot be read to its end: {error}",
                where=str(image.blobs[digest].path),
                hint="build the image again, or copy it again from its source",
            ) from error
    return found


def _read(image: BuiltImage, digest: str, found: Contents) -> None:
    with open_layer(image.blobs[digest]) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            if member.name in (".", "./", ""):
                continue
            path = clean_path(member.name)
            pure = PurePosixPath(path)
            if pure.name.startswith(".wh."):
                hidden = str(pure.with_name(pure.name.removeprefix(".wh.")))
                found.files[hidden] = FileState("hidden", 0)
                if match := _INFO.match(hidden):
                    found.hidden[f"python {canonicalize_name(match['name'])}"] = match["version"]
                continue
            if member.isdir():
                continue
            value, text = f"-> {member.linkname}", b""
            if member.isfile():
                file = tar.extractfile(member)
                digest_of = hashlib.sha256()
                wanted = path == _DPKG or _METADATA.fullmatch(path) is not None
                while file is not None and (chunk := file.read(1 << 20)):
                    digest_of.update(chunk)
                    text += chunk if wanted else b""
                value = f"{digest_of.hexdigest()[:12]}, {member.size:,} bytes, mode {member.mode & 0o7777:04o}"
                if wanted:
                    found.packages |= _packages(path, text.decode(errors="replace"))
            found.files[path] = FileState(value, member.size)


def _packages(path: str, text: str) -> Mapping[str, str]:
    if path == _DPKG:
        found = {}
        for paragraph in text.strip().split("\n\n"):
            fields = dict(re.findall(r"(?m)^(Package|Version): (.*)$", paragraph))
            if "Package" in fields:
                found[f"debian {fields['Package']}"] = fields.get("Version", "")
        return found
    name = re.search(r"^Name: (.+)$", text, re.M)
    version = re.search(r"^Version: (.+)$", text, re.M)
    return {f"python {canonicalize_name(name[1].strip())}": version[1].strip()} if name and version else {}


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    return [
        Change(key, before.get(key, ""), after.get(key, ""))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _layer_changes(gone: Iterable[tuple[str, int, str]], new: Iterable[tuple[str, int, str]]) -> list[Change]:
    """Changed layers, put side by side by what they hold."""

    def holds(layer: tuple[str, int, str]) -> str:
        # `numpy 2.4.1` and `numpy 2.4.2` are one layer that changed; so are `57 wheels` and `58 wheels`.
        return re.sub(r"(?<=\s)[0-9][\w.+-]*|^\d+(?= )", "", layer[2]).strip() or layer[0]

    old = {holds(layer): layer for layer in gone}
    now = {holds(layer): layer for layer in new}
    found = []
    for key in dict.fromkeys((*old, *now)):
        before, after = old.get(key), now.get(key)
        found.append(
            Change(
                (after or before or ("", 0, ""))[2] or key,
                f"{before[0][:19]}, {before[1]:,} bytes" if before else "",
                f"{after[0][:19]}, {after[1]:,} bytes" if after else "",
            )
        )
    return found
