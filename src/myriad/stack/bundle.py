"""A bundle: one directory that holds everything a site needs, by sha256, and says where each file came from.

Layout: `bundle.yml` (this module's manifest) and `sha256/<2>/<hex>` (single files, Debian packages, wheels, and the
blobs of OCI images: manifests, configs and layers). It holds no date of its making: the same lock and the same files
give the same manifest.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from myriad.errors import InputError, MyriadError
from myriad.stack.store import plain_hex

MANIFEST = "bundle.yml"
FILE_MEDIA_TYPE = "application/octet-stream"


class BundleError(MyriadError):
    """A bundle lacks something, or something in it has changed."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Origin(_Strict):
    """Where a file came from. Only the fields of its `source` are set.

    release: url, sha256 of what was downloaded, member. module: module, h1, go, package, ldflags, deps_sha256 (of the
    module list that is linked in). package: package, package_version, sha256, member. local: folder, go.
    image: the binary or files that the image holds. upstream: ref and digest of the registry.
    """

    source: Literal["release", "module", "package", "local", "image", "upstream"]
    url: str | None = None
    sha256: str | None = None
    member: str | None = None
    module: str | None = None
    h1: str | None = None
    go: str | None = None
    package: str | None = None
    ldflags: list[str] | None = None
    staging: str | None = None
    deps_sha256: str | None = None
    package_version: str | None = None
    folder: str | None = None
    ref: str | None = None
    digest: str | None = None
    holds: list[str] | None = None


class FileEntry(_Strict):
    """One file: `sha256` is 64 hex digits, `size` is in bytes."""

    name: str
    component: str
    version: str
    kind: Literal["binary", "chart", "manifest", "rootfs"]
    sha256: str
    size: int
    media_type: str = FILE_MEDIA_TYPE
    origin: Origin


class Blob(_Strict):
    """One blob of an image: 64 hex digits, bytes, media type."""

    sha256: str
    size: int
    media_type: str


class ImageEntry(_Strict):
    """One image. `ref` is `repo:tag`, `digest` is `sha256:<hex>` of its manifest; blobs hold config and layers."""

    ref: str
    component: str
    version: str
    digest: str
    media_type: str
    size: int
    blobs: list[Blob]
    origin: Origin

    @property
    def repo(self) -> str:
        """The repository, such as `myriad/extension`."""
        return self.ref.rpartition(":")[0]

    @property
    def tag(self) -> str:
        """The tag, such as `v1.35.4`."""
        return self.ref.rpartition(":")[2]


class PackageEntry(_Strict):
    """One Debian package of the bundle's own apt repository; `distributions` are ID and version, as debian12."""

    name: str
    version: str
    arch: str
    distributions: list[str]
    sha256: str
    size: int
    url: str


class WheelEntry(_Strict):
    """One Python wheel (or source archive) of the controller's environment, as uv.lock names it."""

    name: str
    version: str
    filename: str
    sha256: str
    size: int
    url: str


class ServedFile(_Strict):
    """A small file that `serve` gives under a path: indexes of the apt repository, keys."""

    path: str
    sha256: str
    size: int


class AptRepository(_Strict):
    """The bundle's own apt repository: which suites it has, what was asked for, and who signed it."""

    suites: dict[str, str] = Field(description="distribution -> suite, as debian12 -> bookworm")
    wanted: dict[str, list[str]] = Field(description="distribution -> names, or name=version, that were asked for")
    fingerprint: str = Field("", description="of the key that signed it; empty where it is unsigned")
    key: str = Field("", description="the public key in ASCII armour")


class Manifest(_Strict):
    """The content of bundle.yml."""

    format: Literal[1] = Field(1, alias="schema")
    myriad: str
    arch: str
    lock_sha256: str
    versions: dict[str, str]
    files: list[FileEntry]
    images: list[ImageEntry]
    left_out: dict[str, str] = Field(default_factory=dict, description="optional component -> why it is not here")
    only: list[str] = Field(default_factory=list, description="components, where a build was told to take just these")
    packages: list[PackageEntry] = Field(default_factory=list)
    wheels: list[WheelEntry] = Field(default_factory=list)
    served: list[ServedFile] = Field(default_factory=list)
    apt: AptRepository | None = None

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Bundle:
    """A bundle directory that has been read.

    Args:
        directory: the bundle's directory.
        manifest: its manifest.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory = directory
        self.manifest = manifest
        self._files = {entry.name: entry for entry in manifest.files}
        self._images = {entry.ref: entry for entry in manifest.images}

    @classmethod
    def load(cls, directory: Path) -> Bundle:
        """Read a bundle. Raises InputError when there is none or its manifest cannot be read."""
        path = directory / MANIFEST
        if not path.is_file():
            raise InputError(
                "is no bundle: bundle.yml is missing",
                where=str(directory),
                hint=f"make one: myriad bundle build --out {directory}",
            )
        return cls(directory, parse_manifest(path.read_bytes(), where=str(path)))

    @property
    def digest(self) -> str:
        """The sha256 (hex) of the manifest: it names the whole content."""
        return hashlib.sha256(manifest_bytes(self.manifest)).hexdigest()

    def file(self, name: str) -> FileEntry:
        """The entry of a file. Raises BundleError naming what there is."""
        if name not in self._files:
            raise BundleError(
                f"holds no file {name!r}", where=str(self.directory), hint=f"it holds: {', '.join(self._files)}"
            )
        return self._files[name]

    def image(self, ref: str) -> ImageEntry:
        """The entry of an image by `repo:tag`, or by `repo` when it stands once. Raises BundleError."""
        if ref in self._images:
            return self._images[ref]
        matches = [entry for entry in self.manifest.images if entry.repo == ref]
        if len(matches) != 1:
            raise BundleError(
                f"holds no image {ref!r}", where=str(self.directory), hint=f"it holds: {', '.join(self._images)}"
            )
        return matches[0]

    def has_file(self, name: str) -> bool:
        """Is there a file of this name? (Optional components may be left out.)"""
        return name in self._files

    def path(self, digest: str) -> Path:
        """Where a blob lies in the bundle; accepts `<hex>` and `sha256:<hex>`."""
        value = plain_hex(digest)
        return self.directory / "sha256" / value[:2] / value

    def file_path(self, name: str) -> Path:
        """Where a file lies in the bundle (under its digest; a program runs from there)."""
        return self.path(self.file(name).sha256)

    def blobs(self) -> Iterator[tuple[str, Blob]]:
        """Every blob once, with the name of what it belongs to: files, image manifests, configs, layers."""
        seen: set[str] = set()
        for entry in self.manifest.files:
            if entry.sha256 not in seen:
                seen.add(entry.sha256)
                yield entry.name, Blob(sha256=entry.sha256, size=entry.size, media_type=entry.media_type)
        for image in self.manifest.images:
            own = Blob(sha256=plain_hex(image.digest), size=image.size, media_type=image.media_type)
            for blob in (own, *image.blobs):
                if blob.sha256 not in seen:
                    seen.add(blob.sha256)
                    yield f"image {image.ref}", blob
        others: list[tuple[str, PackageEntry | WheelEntry | ServedFile]] = [
            *((f"package {entry.name} {entry.version}", entry) for entry in self.manifest.packages),
            *((f"wheel {entry.filename}", entry) for entry in self.manifest.wheels),
            *((f"file {entry.path}", entry) for entry in self.manifest.served),
        ]
        for name, other in others:
            if other.sha256 not in seen:
                seen.add(other.sha256)
                yield name, Blob(sha256=other.sha256, size=other.size, media_type=FILE_MEDIA_TYPE)

    def as_ansible_vars(self) -> dict[str, Any]:
        """What playbooks need, compactly.

        `myriad_artifacts`: {name: {sha256, size, version, kind}}; `myriad_stack_images`: {repo: {ref, repo, tag,
        digest, size}}, the size being what a node pulls; `myriad_stack_versions`: {component: version};
        `myriad_bundle`: {digest, directory, arch, left_out, apt}, apt being empty
        in a bundle without packages.
        """
        return {
            "myriad_bundle": {
                "digest": self.digest,
                "directory": str(self.directory),
                "arch": self.manifest.arch,
                "left_out": dict(self.manifest.left_out),
                "apt": self.manifest.apt.model_dump() if self.manifest.apt else {},
            },
            "myriad_artifacts": {
                entry.name: {
                    "sha256": entry.sha256,
                    "size": entry.size,
                    "version": entry.version,
                    "kind": entry.kind,
                }
                for entry in self.manifest.files
            },
            "myriad_stack_images": {
                entry.repo: {
                    "ref": entry.ref,
                    "repo": entry.repo,
                    "tag": entry.tag,
                    "digest": entry.digest,
                    "size": entry.size + sum(blob.size for blob in entry.blobs),
                }
                for entry in self.manifest.images
            },
            "myriad_stack_versions": dict(self.manifest.versions),
        }


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def parse_manifest(content: bytes, *, where: str) -> Manifest:
    """Read a manifest. Raises InputError that names `where` and each field that is wrong."""
    again = "build or copy the bundle again"
    try:
        loaded = yaml.load(content, _LOADER)  # noqa: S506 (a safe loader, in C where there is one)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: what looks like a date and is none, such as 2026-13-40.
        raise InputError(f"is not YAML: {error}", where=where, hint=again) from error
    if not isinstance(loaded, dict):
        told = "it is empty" if loaded is None else f"it holds a {type(loaded).__name__}"
        raise InputError(f"is no manifest of a bundle: {told}", where=where, hint=again)
    try:
        manifest = Manifest.model_validate(loaded)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, item['loc'])) or 'bundle.yml'}: {item['msg']}" for item in error.errors()]
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise InputError(
            f"is no manifest of a bundle: {'; '.join(wrong[:3])}{more}",
            where=where,
            hint=f"{again}; one that a newer Myriad made is read by that version",
        ) from error
    faults = list(_faults(manifest))
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise InputError(f"is no manifest of a bundle: {'; '.join(faults[:3])}{more}", where=where, hint=again)
    return manifest


def _faults(manifest: Manifest) -> Iterator[str]:
    """What no builder writes: digests that are none, sizes below 0, one name for two things."""
    digests = [
        *((f"files: {one.name}", one.sha256, one.size) for one in manifest.files),
        *((f"images: {one.ref}", one.digest.removeprefix("sha256:"), one.size) for one in manifest.images),
        *((f"images: {one.ref}", blob.sha256, blob.size) for one in manifest.images for blob in one.blobs),
        *((f"packages: {one.name}", one.sha256, one.size) for one in manifest.packages),
        *((f"wheels: {one.filename}", one.sha256, one.size) for one in manifest.wheels),
        *((f"served: {one.path}", one.sha256, one.size) for one in manifest.served),
    ]
    for name, digest, size in digests:
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            yield f'{name} has the digest "{digest[:80]}", which is not 64 hexadecimal digits'
        if size < 0:
            yield f"{name} has {size} bytes"
    for kind, names in (("files", [one.name for one in manifest.files]), ("images", [i.ref for i in manifest.images])):
        for name, times in Counter(names).items():
            if times > 1:
                yield f"{kind}: {name} stands there {times} times"


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest as bundle.yml holds it."""
    value = manifest.model_dump(mode="json", by_alias=True, exclude_none=True)
    for key in ("only", "packages", "wheels", "served"):
        if not value[key]:  # a bundle without them has the digest that it had before there were any
            del value[key]
    return yaml.dump(value, Dumper=_DUMPER, sort_keys=False, width=200, allow_unicode=True).encode()
