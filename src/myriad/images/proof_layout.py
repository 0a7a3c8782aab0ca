"""An image as it lies on disk, in an OCI layout: opened, and with documents attached to it by digest.

Formats: https://github.com/opencontainers/image-spec (image-layout, manifest with `subject`, artifactType). A document
(SBOM, provenance, signature) is a manifest of its own whose `subject` is the image's manifest; it stands in the same
`index.json`, so that whoever copies the layout copies the proof with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from myriad.errors import InputError, MyriadError
from myriad.images.oci import (
    MEDIA_TYPE_CONFIG,
    MEDIA_TYPE_INDEX,
    MEDIA_TYPE_MANIFEST,
    canonical_json,
    sha256_digest,
)

EMPTY_CONFIG = "application/vnd.oci.empty.v1+json"
REF_NAME = "org.opencontainers.image.ref.name"
_DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LayoutLayer:
    """A layer of an image on disk. Sizes are in bytes; `comment` is what its history says of it."""

    digest: str
    diff_id: str
    size: int
    media_type: str
    path: Path
    comment: str = ""


@dataclass(frozen=True, slots=True)
class LayoutImage:
    """An image in a layout. `size` is what a node with an empty store pulls: manifest, configuration and layers."""

    root: Path
    ref: str
    digest: str
    manifest: Json
    config: Json
    layers: tuple[LayoutLayer, ...]
    size: int

    @property
    def runtime(self) -> Json:
        """What a container is started with: Env, User, Entrypoint, Labels."""
        found: Json = self.config.get("config") or {}
        return found

    @property
    def env(self) -> dict[str, str]:
        """The environment that a container starts with."""
        pairs = (one.partition("=") for one in self.runtime.get("Env") or ())
        return {name: value for name, _, value in pairs}

    @property
    def created(self) -> str:
        """The time that the image bears, RFC 3339."""
        return str(self.config.get("created") or "1970-01-01T00:00:00Z")

    @property
    def name(self) -> str:
        """As messages call it: its reference, or the start of its digest."""
        return self.ref or self.digest[:19]


def open_image(root: Path, ref: str = "") -> LayoutImage:
    """Open the image of a layout; with several in it, the one that `ref` names (its tag, reference or digest).

    Raises:
        InputError: there is no layout, no such image, or a blob is missing or not what its digest says.
    """
    index = read_index(root)
    images = [one for one in index["manifests"] if not _is_document(one)]
    chosen = [one for one in images if _named(one, ref)] if ref else images
    if len(chosen) != 1:
        names = ", ".join(_label(one) for one in images) or "none"
        if not chosen:
            what = f'no image "{ref}"' if ref else "no image"
            raise InputError(f"the layout has {what}", where=str(root), hint=f"it holds: {names}")
        raise InputError(f"the layout has {len(chosen)} images", where=str(root), hint=f"name one by --ref: {names}")
    descriptor = chosen[0]
    manifest = read_json(root, descriptor["digest"])
    if manifest.get("mediaType") in (MEDIA_TYPE_INDEX, _DOCKER_INDEX) or "manifests" in manifest:
        fitting = [one for one in manifest["manifests"] if (one.get("platform") or {}).get("architecture") == "amd64"]
        if not fitting:
            raise InputError("the image has no variant for linux/amd64", where=str(root))
        descriptor = {**fitting[0], "annotations": descriptor.get("annotations") or {}}
        manifest = read_json(root, descriptor["digest"])
    if "layers" not in manifest or "config" not in manifest:
        raise InputError(f"{descriptor['digest']} is no manifest of an image", where=str(root))
    config = read_json(root, manifest["config"]["digest"])
    return LayoutImage(
        root=root,
        ref=str((descriptor.get("annotations") or {}).get(REF_NAME, "")),
        digest=descriptor["digest"],
        manifest=manifest,
        config=config,
        layers=_layers(root, manifest, config),
        size=blob_path(root, descriptor["digest"]).stat().st_size
        + int(manifest["config"]["size"])
        + sum(int(layer["size"]) for layer in manifest["layers"]),
    )


def _layers(root: Path, manifest: Json, config: Json) -> tuple[LayoutLayer, ...]:
    diff_ids = (config.get("rootfs") or {}).get("diff_ids") or []
    if len(diff_ids) != len(manifest["layers"]):
        raise InputError(
            f"the manifest has {len(manifest['layers'])} layers, the configuration {len(diff_ids)}", where=str(root)
        )
    comments = [str(one.get("created_by", "")) for one in config.get("history") or () if not one.get("empty_layer")]
    comments += [""] * (len(diff_ids) - len(comments))
    found = []
    for layer, diff_id, comment in zip(manifest["layers"], diff_ids, comments, strict=False):
        path = blob_path(root, layer["digest"])
        if not path.is_file():
            raise InputError(f"layer {layer['digest']} is missing", where=str(path), hint="copy the layout whole")
        found.append(
            LayoutLayer(
                layer["digest"], diff_id, int(layer["size"]), layer["mediaType"], path, comment.removeprefix("myriad: ")
            )
        )
    return tuple(found)


def read_index(root: Path) -> Json:
    """`index.json` of a layout. Raises InputError where it is none."""
    path = root / "index.json"
    if not path.is_file() or not (root / "oci-layout").is_file():
        raise InputError(
            "no OCI image layout (oci-layout, index.json, blobs/)",
            where=str(root),
            hint="`myriad image build NAME --out DIR` writes one",
        )
    try:
        index = json.loads(path.read_bytes())
        manifests = index["manifests"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"index.json is damaged: {error}", where=str(path)) from error
    if not isinstance(manifests, list) or not all(isinstance(one, dict) and "digest" in one for one in manifests):
        raise InputError("index.json lists no descriptors", where=str(path))
    found: Json = index
    return found


def blob_path(root: Path, digest: str) -> Path:
    """Where the blob of a layout lies or would lie. Raises InputError for what is no sha256 digest."""
    algorithm, _, name = str(digest).partition(":")
    if algorithm != "sha256" or len(name) != 64 or not set(name) <= set("0123456789abcdef"):
        raise InputError(f'"{digest}" is no digest of the form sha256:<64 hexadecimal digits>', where=str(root))
    return root / "blobs" / "sha256" / name


def read_blob(root: Path, digest: str) -> bytes:
    """A small blob, checked against its digest.

    Raises:
        InputError: it is missing, or its bytes are not the digest's.
    """
    path = blob_path(root, digest)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"blob {digest} is missing", where=str(path), hint="copy the layout whole") from None
    if sha256_digest(data) != digest:
        raise InputError(
            f"the blob's bytes are {sha256_digest(data)[:19]}..., not what its name says",
            where=str(path),
            hint="the file was changed or cut after it was written; take the layout from its source again",
        )
    return data


def read_json(root: Path, digest: str) -> Json:
    """A blob that is a JSON object. Raises InputError where it is none."""
    try:
        value = json.loads(read_blob(root, digest))
    except ValueError as error:
        raise InputError(f"not JSON: {error}", where=str(blob_path(root, digest))) from error
    if not isinstance(value, dict):
        raise InputError("no JSON object", where=str(blob_path(root, digest)))
    return value


# Documents


def attach(
    image: LayoutImage,
    artifact_type: str,
    blobs: Sequence[tuple[str, bytes]],
    *,
    annotations: Mapping[str, str] | None = None,
) -> str:
    """Attach a document to an image by digest; the same document again changes nothing. Returns the manifest's digest.

    Args:
        image: what it is about.
        artifact_type: what kind of document it is, a media type.
        blobs: (media type, content) of its parts.
        annotations: of the document's manifest.
    """
    layers = [
        {"mediaType": media_type, "digest": write_blob(image.root, data), "size": len(data)}
        for media_type, data in blobs
    ]
    manifest = {
        "schemaVersion": 2,
        "mediaType": MEDIA_TYPE_MANIFEST,
        "artifactType": artifact_type,
        "config": {"mediaType": EMPTY_CONFIG, "digest": write_blob(image.root, b"{}"), "size": 2},
        "layers": layers,
        "subject": subject_of(image),
        "annotations": {"org.opencontainers.image.created": image.created, **(annotations or {})},
    }
    return add_manifest(image.root, manifest, artifact_type=artifact_type)


def subject_of(image: LayoutImage) -> Json:
    """The descriptor that a document points with."""
    return {
        "mediaType": str(image.manifest.get("mediaType") or MEDIA_TYPE_MANIFEST),
        "digest": image.digest,
        "size": blob_path(image.root, image.digest).stat().st_size,
    }


def referrers(root: Path, subject: str, artifact_type: str = "") -> list[tuple[str, Json]]:
    """(digest, manifest) of the documents attached to a manifest, of one type or of all, by digest."""
    found = []
    for descriptor in read_index(root)["manifests"]:
        if not _is_document(descriptor):
            continue
        manifest = read_json(root, descriptor["digest"])
        if (manifest.get("subject") or {}).get("digest") != subject:
            continue
        if not artifact_type or manifest.get("artifactType") == artifact_type:
            found.append((str(descriptor["digest"]), manifest))
    return sorted(found, key=lambda one: one[0])


def tagged(root: Path, tag: str) -> tuple[str, Json] | None:
    """The manifest that stands under a tag, with its digest."""
    for descriptor in read_index(root)["manifests"]:
        if (descriptor.get("annotations") or {}).get(REF_NAME) == tag:
            return str(descriptor["digest"]), read_json(root, descriptor["digest"])
    return None


def write_blob(root: Path, data: bytes) -> str:
    """Store a blob and return its digest."""
    digest = sha256_digest(data)
    path = blob_path(root, digest)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.partial")
        partial.write_bytes(data)
        partial.replace(path)
    return digest


def add_manifest(root: Path, manifest: Json, *, artifact_type: str = "", tag: str = "") -> str:
    """Store a manifest and list it in the index, under a tag if given; a tag that was there moves."""
    data = canonical_json(manifest)
    digest = write_blob(root, data)
    descriptor: Json = {"mediaType": MEDIA_TYPE_MANIFEST, "digest": digest, "size": len(data)}
    if artifact_type:
        descriptor["artifactType"] = artifact_type
    if tag:
        descriptor["annotations"] = {REF_NAME: tag}
    index = read_index(root)
    others = [
        one
        for one in index["manifests"]
        if not (tag and (one.get("annotations") or {}).get(REF_NAME) == tag) and (tag or one["digest"] != digest)
    ]
    index["manifests"] = [*others, descriptor]
    partial = root / "index.json.partial"
    partial.write_bytes(canonical_json(index))
    partial.replace(root / "index.json")
    return digest


def hash_file(path: Path) -> str:
    """`sha256:<hex>` of a file of any size."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def config_is_image(manifest: Json) -> bool:
    """Whether a manifest is one that a runtime can start."""
    kind = (manifest.get("config") or {}).get("mediaType", "")
    return kind in (MEDIA_TYPE_CONFIG, "application/vnd.docker.container.image.v1+json")


def _is_document(descriptor: Json) -> bool:
    name = str((descriptor.get("annotations") or {}).get(REF_NAME, ""))
    signature = name.startswith("sha256-") and name.rpartition(".")[2] in ("sig", "att", "sbom")
    return bool(descriptor.get("artifactType")) or signature


def _named(descriptor: Json, ref: str) -> bool:
    name = _label(descriptor)
    return ref in (name, descriptor["digest"], name.rpartition(":")[2], name.rpartition(":")[0])


def _label(descriptor: Json) -> str:
    return str((descriptor.get("annotations") or {}).get(REF_NAME) or descriptor["digest"])


def require(condition: bool, message: str, *, where: str, hint: str = "") -> None:
    """Raise MyriadError with the message unless the condition holds."""
    if not condition:
        raise MyriadError(message, where=where, hint=hint or None)
