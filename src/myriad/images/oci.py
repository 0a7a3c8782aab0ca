"""OCI images as content-addressed blobs: layers, configurations, manifests, and what is written from them.

Formats: https://github.com/opencontainers/image-spec (layer, config, manifest, image-layout).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

import zstandard

from myriad.errors import InputError, MyriadError
from myriad.images.layer import SOURCE_DATE_EPOCH, Entry, file_from_bytes, file_from_path, write_tar

MEDIA_TYPE_LAYER_ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
MEDIA_TYPE_LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
MEDIA_TYPE_CONFIG = "application/vnd.oci.image.config.v1+json"
MEDIA_TYPE_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
MEDIA_TYPE_INDEX = "application/vnd.oci.image.index.v1+json"

#: Annotations: bytes that a layer takes unpacked, and the name of an image in an index.
UNPACKED_SIZE = "dev.myriad.unpacked-size"
REF_NAME = "org.opencontainers.image.ref.name"

Compression = Literal["zstd", "gzip"]
#: One level for all layers: digests depend on it. Of the base, 124 MB as tar, level 9 makes 37.1 MB in 3.3 s, 15 makes
#: 36.5 MB in 24 s and 19 makes 32.7 MB in 72 s; unpacking takes the same time.
ZSTD_LEVEL = 9
GZIP_LEVEL = 6
_CHUNK = 1 << 20


class Blob(NamedTuple):
    """A blob of an image: where it lies, its size in bytes and its OCI media type."""

    path: Path
    size: int
    media_type: str


@dataclass(frozen=True)
class Layer:
    """A layer in the store: `digest` names the compressed bytes, `diff_id` the tar stream inside. Sizes are in
    bytes."""

    digest: str
    diff_id: str
    size: int
    tar_size: int
    media_type: str
    comment: str = ""


@dataclass(frozen=True)
class ImageConfig:
    """What a runtime needs to know to start the image."""

    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    working_dir: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    architecture: str = "amd64"


@dataclass(frozen=True)
class BuiltImage:
    """An image whose blobs are all in the store. `ref` is `repo:tag` without a registry; digests are `sha256:<hex>`."""

    ref: str
    manifest_digest: str
    config_digest: str
    layer_digests: tuple[str, ...]
    blobs: dict[str, Blob]

    @property
    def size(self) -> int:
        """What a node with an empty store pulls, in bytes."""
        return sum(blob.size for blob in self.blobs.values())


class BlobStore:
    """A content-addressed directory: the blob `sha256:<hex>` is the file `sha256/<first two digits>/<hex>`.

    It has the layout of the artifact store, so both may be one directory. Blobs appear by rename and are never changed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        """Where the blob lies or would lie."""
        algorithm, _, name = digest.partition(":")
        if algorithm != "sha256" or len(name) != 64:
            raise MyriadError(f"{digest!r} is not a digest of the form sha256:<64 hexadecimal digits>")
        return self.root / algorithm / name[:2] / name

    def has(self, digest: str, *, size: int | None = None) -> bool:
        """True if the blob is there, with that size."""
        path = self.path(digest)
        return path.is_file() and (size is None or path.stat().st_size == size)

    @contextmanager
    def writer(self) -> Iterator[_BlobWriter]:
        """A stream into the store; `writer.digest` and `writer.size` are right when the block ends without an error."""
        incoming = self.root / "incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=incoming)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                writer = _BlobWriter(file)
                yield writer
            self._place(temporary, writer.digest)
        finally:
            temporary.unlink(missing_ok=True)

    def _place(self, temporary: Path, digest: str) -> None:
        target = self.path(digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.chmod(0o644)
        temporary.replace(target)

    def put(self, data: bytes) -> str:
        """Store bytes and return their digest."""
        digest = sha256_digest(data)
        if not self.has(digest, size=len(data)):
            with self.writer() as writer:
                writer.write(data)
        return digest


class _BlobWriter:
    """Counts and hashes what passes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self.size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Compressors call it; the file is flushed when it is closed."""

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def sha256_digest(data: bytes) -> str:
    """`sha256:<hex>` of bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def canonical_json(value: Any) -> bytes:
    """One spelling for one value: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def write_layer(
    store: BlobStore,
    entries: Iterable[Entry],
    *,
    comment: str = "",
    compression: Compression = "zstd",
    epoch: int = SOURCE_DATE_EPOCH,
) -> Layer:
    """Write the entries as one compressed layer into the store.

    One thread and one level, always: with several threads a zstd stream depends on their number.
    """
    with store.writer() as blob, compressed(blob, compression) as stream:
        tar = _BlobWriter(stream)
        write_tar(entries, cast(IO[bytes], tar), epoch=epoch)
    return Layer(
        digest=blob.digest,
        diff_id=tar.digest,
        size=blob.size,
        tar_size=tar.size,
        media_type=MEDIA_TYPE_LAYER_ZSTD if compression == "zstd" else MEDIA_TYPE_LAYER_GZIP,
        comment=comment,
    )


def recompress(store: BlobStore, layer: Layer, compression: Compression) -> Layer:
    """The same tar stream in another compression; the layer itself where it has that one."""
    media_type = MEDIA_TYPE_LAYER_ZSTD if compression == "zstd" else MEDIA_TYPE_LAYER_GZIP
    if layer.media_type == media_type:
        return layer
    with (
        open_layer(Blob(store.path(layer.digest), layer.size, layer.media_type)) as source,
        store.writer() as blob,
        compressed(blob, compression) as stream,
    ):
        shutil.copyfileobj(source, stream, _CHUNK)
    return replace(layer, digest=blob.digest, size=blob.size, media_type=media_type)


def compressed(blob: Any, compression: Compression) -> IO[bytes]:
    """A stream that compresses into a blob, always in the same way."""
    if compression == "zstd":
        compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True, threads=0)
        return cast(IO[bytes], compressor.stream_writer(blob, closefd=False))
    return cast(IO[bytes], gzip.GzipFile(filename="", mode="wb", compresslevel=GZIP_LEVEL, fileobj=blob, mtime=0))


def write_image(
    store: BlobStore, *, ref: str, layers: Sequence[Layer], config: ImageConfig, epoch: int = SOURCE_DATE_EPOCH
) -> BuiltImage:
    """Write the configuration and the manifest of an image whose layers are in the store, lowest layer first."""
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    runtime: dict[str, Any] = {
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.command),
        "Env": [f"{key}={value}" for key, value in sorted(config.env.items())],
        "User": config.user,
        "WorkingDir": config.working_dir,
        "Labels": dict(config.labels),
    }
    config_data = canonical_json(
        {
            "architecture": config.architecture,
            "config": {key: value for key, value in runtime.items() if value},
            "created": created,
            "history": [{"created": created, "created_by": f"myriad: {layer.comment}"} for layer in layers],
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        }
    )
    config_digest = store.put(config_data)
    manifest_data = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": MEDIA_TYPE_MANIFEST,
            "config": {"mediaType": MEDIA_TYPE_CONFIG, "digest": config_digest, "size": len(config_data)},
            "layers": [_descriptor(layer) for layer in layers],
        }
    )
    manifest_digest = store.put(manifest_data)
    blobs = {layer.digest: Blob(store.path(layer.digest), layer.size, layer.media_type) for layer in layers}
    blobs[config_digest] = Blob(store.path(config_digest), len(config_data), MEDIA_TYPE_CONFIG)
    blobs[manifest_digest] = Blob(store.path(manifest_digest), len(manifest_data), MEDIA_TYPE_MANIFEST)
    return BuiltImage(ref, manifest_digest, config_digest, tuple(layer.digest for layer in layers), blobs)


def _descriptor(layer: Layer) -> dict[str, Any]:
    """A layer as a manifest names it, with what it takes unpacked: a node's disk is looked at before a pull."""
    value: dict[str, Any] = {"mediaType": layer.media_type, "digest": layer.digest, "size": layer.size}
    return {**value, "annotations": {UNPACKED_SIZE: str(layer.tar_size)}} if layer.tar_size else value


def export_layout(images: Sequence[BuiltImage], out: Path) -> None:
    """Write an OCI image layout: `oci-layout`, `index.json`, `blobs/sha256/<hex>`; blobs are hard links where the
    disk allows it."""
    blobs = out / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    manifests = []
    for image in sorted(images, key=lambda one: one.ref):
        for digest, blob in image.blobs.items():
            _link(blob.path, blobs / digest.removeprefix("sha256:"))
        manifests.append(
            {
                "mediaType": MEDIA_TYPE_MANIFEST,
                "digest": image.manifest_digest,
                "size": image.blobs[image.manifest_digest].size,
                "platform": {"architecture": "amd64", "os": "linux"},
                "annotations": {REF_NAME: image.ref},
            }
        )
    _write_index(out, {"schemaVersion": 2, "mediaType": MEDIA_TYPE_INDEX, "manifests": manifests})


def _link(source: Path, target: Path) -> None:
    """A hard link, or a copy on another disk."""
    if target.exists():
        return
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def open_layer(blob: Blob) -> IO[bytes]:
    """The tar stream inside a layer, for reading once from start to end."""
    # By the end of its name: Docker and the OCI call the same three kinds differently.
    kind = blob.media_type.rpartition(".")[2] if "layer" in blob.media_type or "rootfs.diff" in blob.media_type else ""
    if kind.endswith("zstd"):
        return cast(IO[bytes], zstandard.ZstdDecompressor().stream_reader(blob.path.open("rb"), closefd=True))
    if kind.endswith("gzip"):
        return cast(IO[bytes], gzip.open(blob.path, "rb"))
    if kind == "tar":
        return blob.path.open("rb")
    raise MyriadError(f"{blob.media_type} is not a layer", where=str(blob.path))


def check_blobs(image: BuiltImage, *, digests: bool = False) -> None:
    """See that an image is whole before it is read or sent on.

    Args:
        image: the image.
        digests: also read every blob; without it presence and size are looked at.

    Raises:
        MyriadError: a blob is missing, has another size, or is not what its digest says.
    """
    for digest, blob in image.blobs.items():
        fault = ""
        if not blob.path.is_file():
            fault = f"the image lacks a blob that it names, {digest[:19]}..."
        elif (held := blob.path.stat().st_size) != blob.size:
            fault = f"the blob has {held:,} bytes, what names it says {blob.size:,}"
        elif digests:
            with blob.path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            fault = f"the blob was changed: its sha256 is {found[:12]}..." if digest != f"sha256:{found}" else ""
        if fault:
            raise MyriadError(
                fault, where=str(blob.path), hint="build the image again, or copy it again from its source"
            )


def export_docker_archive(image: BuiltImage, out: Path, *, epoch: int = SOURCE_DATE_EPOCH) -> None:
    """Write one file for `docker load`. The layers are stored uncompressed: Docker before 23 reads no zstd."""
    config_name = f"{image.config_digest.removeprefix('sha256:')}.json"
    with tempfile.TemporaryDirectory(prefix="myriad-archive-") as scratch:
        entries = []
        names = []
        for number, digest in enumerate(image.layer_digests):
            plain = Path(scratch) / str(number)
            with open_layer(image.blobs[digest]) as source, plain.open("wb") as target:
                shutil.copyfileobj(source, target, _CHUNK)
            names.append(f"{number:02d}/layer.tar")
            entries.append(file_from_path(names[-1], plain))
        entries.append(file_from_path(config_name, image.blobs[image.config_digest].path))
        manifest = [{"Config": config_name, "RepoTags": [image.ref], "Layers": names}]
        entries.append(file_from_bytes("manifest.json", canonical_json(manifest)))
        with out.open("wb") as file:
            write_tar(entries, file, epoch=epoch)


def read_layer_paths(blob: Blob) -> list[str]:
    """The paths of a layer in the order in which they are stored."""
    with open_layer(blob) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        return [member.name for member in tar]


class Descriptor(NamedTuple):
    """What an OCI index or manifest says of a blob. `ref` is the annotation `org.opencontainers.image.ref.name`."""

    media_type: str
    digest: str
    size: int
    ref: str = ""
    artifact_type: str = ""

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Descriptor:
        """From its JSON object."""
        return cls(
            media_type=str(value.get("mediaType", "")),
            digest=str(value["digest"]),
            size=int(value["size"]),
            ref=str(value.get("annotations", {}).get(REF_NAME, "")),
            artifact_type=str(value.get("artifactType", "")),
        )


_INDEXES = (MEDIA_TYPE_INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
_ONE_IMAGE = "copy the one for linux/amd64 into a layout of its own (`skopeo copy --override-arch amd64`)"


class Layout:
    """An OCI image layout on disk: an image's manifest, config and layers, and the documents that refer to it.

    Args:
        root: the directory with `oci-layout`, `index.json` and `blobs/sha256/`.

    Raises:
        InputError: it is no layout.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            version = json.loads((root / "oci-layout").read_bytes())["imageLayoutVersion"]
            manifests = json.loads((root / "index.json").read_bytes())["manifests"]
            self.entries = [Descriptor.of(item) for item in manifests]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"is no OCI image layout ({type(error).__name__}: {error})",
                where=str(root),
                hint="name what `myriad image build NAME --out DIR` wrote",
            ) from error
        if version != "1.0.0":
            raise InputError(f"has imageLayoutVersion {version!r}; this reads 1.0.0", where=str(root))

    @classmethod
    def empty(cls, root: Path) -> Layout:
        """A layout without an image, made at `root`."""
        (root / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        _write_index(root, {"schemaVersion": 2, "mediaType": MEDIA_TYPE_INDEX, "manifests": []})
        return cls(root)

    def path(self, digest: str) -> Path:
        """Where a blob lies or would lie."""
        algorithm, _, name = digest.partition(":")
        if algorithm != "sha256" or len(name) != 64 or not set(name) <= set("0123456789abcdef"):
            raise MyriadError(
                f"{digest!r} is not a digest of the form sha256:<64 hexadecimal digits>", where=str(self.root)
            )
        return self.root / "blobs" / "sha256" / name

    def read(self, digest: str) -> bytes:
        """A blob, checked against its digest.

        Raises:
            MyriadError: it is missing, or is not what its name says.
        """
        path = self.path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise MyriadError(
                "the layout lacks a blob that it names", where=str(path), hint="build or export the image again"
            ) from None
        if sha256_digest(data) != digest:
            raise MyriadError(
                f"the blob was changed: its sha256 is {sha256_digest(data)}",
                where=str(path),
                hint="build or export the image again",
            )
        return data

    def manifest(self, digest: str) -> dict[str, Any]:
        """A manifest as JSON."""
        try:
            value = json.loads(self.read(digest))
        except ValueError as error:
            raise MyriadError(f"a manifest is no JSON: {error}", where=str(self.path(digest))) from error
        if not isinstance(value, dict):
            raise MyriadError("a manifest is no JSON object", where=str(self.path(digest)))
        return value

    @property
    def images(self) -> list[Descriptor]:
        """The images in it: manifests that do not refer to another one, without signatures by tag."""
        return [
            entry
            for entry in dict.fromkeys(self.entries)
            if entry.media_type in (MEDIA_TYPE_MANIFEST, "application/vnd.docker.distribution.manifest.v2+json")
            and not (entry.ref.startswith("sha256-") and "." in entry.ref)
            and "subject" not in self.manifest(entry.digest)
        ]

    def image(self, ref: str = "") -> BuiltImage:
        """The image of that name or digest; without one, the only image of the layout.

        Raises:
            InputError: there is none, or several and no name.
        """
        images = self.images
        found = [one for one in images if ref in (one.ref, one.digest)] if ref else images
        if len(found) != 1:
            names = ", ".join(one.ref or one.digest for one in images) or "none"
            if not images and any(entry.media_type in _INDEXES for entry in self.entries):
                text, names, hint = "holds no image of its own", "an index of several platforms", _ONE_IMAGE
            elif ref:
                text, hint = f'has no image "{ref}"', "name one that it has"
            elif images:
                text, hint = f"holds {len(images)} images, so one must be named", "name one of them"
            else:
                text, hint = "holds no image", "build or export the image again"
            raise InputError(f"{text} (it has: {names})", where=str(self.root), hint=hint)
        own = found[0]
        manifest = self.manifest(own.digest)
        try:
            parts = [Descriptor.of(item) for item in (manifest["config"], *manifest["layers"])]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MyriadError(
                f"is no manifest of an image ({type(error).__name__}: {error})",
                where=str(self.path(own.digest)),
                hint="build or export the image again",
            ) from error
        blobs = {part.digest: Blob(self.path(part.digest), part.size, part.media_type) for part in parts}
        blobs[own.digest] = Blob(self.path(own.digest), own.size, own.media_type)
        return BuiltImage(own.ref, own.digest, parts[0].digest, tuple(part.digest for part in parts[1:]), blobs)

    def referrers(self, digest: str) -> list[Descriptor]:
        """The documents attached to an image: manifests whose `subject` it is, in the index's order."""
        found = []
        for entry in self.entries:
            if entry.media_type != MEDIA_TYPE_MANIFEST:
                continue
            manifest = self.manifest(entry.digest)
            if manifest.get("subject", {}).get("digest") == digest:
                artifact = manifest.get("artifactType") or manifest["config"]["mediaType"]
                found.append(entry._replace(artifact_type=artifact))
        return found

    def tagged(self, ref: str) -> Descriptor | None:
        """The manifest under a name such as `sha256-<hex>.sig`."""
        return next((entry for entry in self.entries if entry.ref == ref), None)

    def put(self, data: bytes) -> str:
        """Write a blob; returns its digest."""
        digest = sha256_digest(data)
        path = self.path(digest)
        if not path.is_file():
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_bytes(data)
            temporary.chmod(0o644)
            temporary.replace(path)
        return digest

    def add_manifest(self, data: bytes, *, media_type: str = MEDIA_TYPE_MANIFEST, ref: str = "") -> Descriptor:
        """Write a manifest and name it in the index. One of the same name, or the same manifest, is replaced there."""
        digest = self.put(data)
        artifact = str(json.loads(data).get("artifactType", ""))
        entry = Descriptor(media_type, digest, len(data), ref, artifact)
        self.entries = [one for one in self.entries if one.digest != digest and (not ref or one.ref != ref)] + [entry]
        index = json.loads((self.root / "index.json").read_bytes())
        kept = [
            one
            for one in index["manifests"]
            if one["digest"] != digest and (not ref or one.get("annotations", {}).get(REF_NAME) != ref)
        ]
        own: dict[str, Any] = {"mediaType": media_type, "digest": digest, "size": len(data)}
        if artifact:
            own["artifactType"] = artifact
        if ref:
            own["annotations"] = {REF_NAME: ref}
        index["manifests"] = [*kept, own]
        _replace(self.root / "index.json", canonical_json(index))
        return entry

    def forget(self, digests: set[str]) -> None:
        """Take manifests out of the index; their blobs stay, because others may name them."""
        index = json.loads((self.root / "index.json").read_bytes())
        index["manifests"] = [one for one in index["manifests"] if one["digest"] not in digests]
        _replace(self.root / "index.json", canonical_json(index))
        self.entries = [one for one in self.entries if one.digest not in digests]


def _write_index(root: Path, index: Mapping[str, Any]) -> None:
    """What makes a folder a layout."""
    (root / "index.json").write_bytes(canonical_json(index))
    (root / "oci-layout").write_bytes(canonical_json({"imageLayoutVersion": "1.0.0"}))


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)
