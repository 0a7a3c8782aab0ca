"""An image as it lies on disk, with what a check needs of its manifest and configuration; documents attached by digest.

A document (SBOM, provenance) is an OCI manifest of its own whose `subject` is the image's manifest. It stands in the
same `index.json`, so that whoever copies the layout copies the proof with it
(https://github.com/opencontainers/image-spec/blob/main/manifest.md, "Guidelines for Artifact Usage").
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from myriad.errors import InputError, MyriadError
from myriad.images.oci import MEDIA_TYPE_MANIFEST, Layout, canonical_json

EMPTY_CONFIG = "application/vnd.oci.empty.v1+json"

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

    layout: Layout
    ref: str
    digest: str
    manifest: Json
    config: Json
    layers: tuple[LayoutLayer, ...]
    size: int

    @property
    def root(self) -> Path:
        """The layout's folder."""
        return self.layout.root

    @property
    def runtime(self) -> Json:
        """What a container is started with: Env, User, Entrypoint, Labels."""
        found: Json = self.config.get("config") or {}
        return found

    @property
    def labels(self) -> dict[str, str]:
        """The configuration's labels over the manifest's annotations."""
        return {**(self.manifest.get("annotations") or {}), **(self.runtime.get("Labels") or {})}

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
    """Open the image of a layout; with several in it, the one that `ref` names (its reference, tag or digest).

    Raises:
        InputError: there is no layout or no such image, or its manifest and configuration do not agree.
        MyriadError: a blob is missing or not what its digest says.
    """
    layout = Layout(root)
    named = [
        one.ref for one in layout.images if ref and ref in (one.ref.rpartition(":")[0], one.ref.rpartition(":")[2])
    ]
    built = layout.image(named[0] if len(named) == 1 else ref)
    manifest = layout.manifest(built.manifest_digest)
    try:
        config = json.loads(layout.read(built.config_digest))
    except ValueError as error:
        raise InputError(f"the image's configuration is not JSON: {error}", where=str(root)) from error
    for what, digest in (("manifest", built.manifest_digest), ("configuration", built.config_digest)):
        held, said = layout.path(digest).stat().st_size, built.blobs[digest].size
        if held != said:
            raise MyriadError(
                f"the {what} has {held:,} bytes, what names it says {said:,}: a runtime refuses to pull it",
                where=str(layout.path(digest)),
                hint="build or export the image again",
            )
    try:
        diff_ids = list((config.get("rootfs") or {}).get("diff_ids") or [])
        comments = [str(one.get("created_by", "")) for one in config.get("history") or () if not one.get("empty_layer")]
    except (AttributeError, TypeError) as error:
        raise InputError(
            f"the image's configuration is not as the OCI format has it ({error})",
            where=str(layout.path(built.config_digest)),
            hint="build or export the image again",
        ) from error
    if len(diff_ids) != len(built.layer_digests):
        raise InputError(
            f"the manifest has {len(built.layer_digests)} layers, the configuration {len(diff_ids)}", where=str(root)
        )
    comments += [""] * len(diff_ids)
    layers = []
    for digest, diff_id, comment in zip(built.layer_digests, diff_ids, comments, strict=False):
        blob = built.blobs[digest]
        if not blob.path.is_file():
            raise InputError(f"layer {digest} is missing", where=str(blob.path), hint="copy the layout whole")
        layers.append(
            LayoutLayer(digest, diff_id, blob.size, blob.media_type, blob.path, comment.removeprefix("myriad: "))
        )
    return LayoutImage(layout, built.ref, built.manifest_digest, manifest, config, tuple(layers), built.size)


def attach(
    image: LayoutImage,
    artifact_type: str,
    blobs: Sequence[tuple[str, bytes]],
    *,
    annotations: Mapping[str, str] | None = None,
) -> str:
    """Attach a document to an image by digest; the same document again changes nothing. Returns the manifest's digest.

    An older document of the same type is no longer listed: an image has one SBOM of a format, not a history of them.

    Args:
        image: what it is about.
        artifact_type: what kind of document it is, a media type.
        blobs: (media type, content) of its parts.
        annotations: of the document's manifest.
    """
    manifest = {
        "schemaVersion": 2,
        "mediaType": MEDIA_TYPE_MANIFEST,
        "artifactType": artifact_type,
        "config": {"mediaType": EMPTY_CONFIG, "digest": image.layout.put(b"{}"), "size": 2},
        "layers": [
            {"mediaType": media_type, "digest": image.layout.put(data), "size": len(data)} for media_type, data in blobs
        ],
        "subject": {
            "mediaType": str(image.manifest.get("mediaType") or MEDIA_TYPE_MANIFEST),
            "digest": image.digest,
            "size": image.layout.path(image.digest).stat().st_size,
        },
        "annotations": {"org.opencontainers.image.created": image.created, **(annotations or {})},
    }
    data = canonical_json(manifest)
    digest = image.layout.add_manifest(data).digest
    older = {
        one.digest
        for one in image.layout.referrers(image.digest)
        if one.artifact_type == artifact_type and one.digest != digest
    }
    if older:
        image.layout.forget(older)
    return digest


def attached(image: LayoutImage, artifact_type: str) -> bytes | None:
    """The content of the document of that type that is attached to the image; None without one.

    Raises:
        MyriadError: its bytes are not what its digest says.
    """
    for one in image.layout.referrers(image.digest):
        if one.artifact_type == artifact_type:
            manifest = image.layout.manifest(one.digest)
            return image.layout.read(manifest["layers"][0]["digest"])
    return None


def hash_of(path: Path) -> str:
    """sha256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
