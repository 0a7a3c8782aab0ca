"""The images of a bundle: one binary each for the cluster's components, and Myriad's own Python images."""

from __future__ import annotations

import time
from collections.abc import Mapping

from myriad.images.layer import file_from_path
from myriad.images.oci import BlobStore, BuiltImage, ImageConfig, write_image, write_layer
from myriad.stack.bundle import Blob, FileEntry, ImageEntry, Origin
from myriad.stack.events import Event, OnEvent
from myriad.stack.lock import Component
from myriad.stack.settings import Settings
from myriad.stack.store import Store, plain_hex

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def build_images(
    *,
    components: Mapping[str, Component],
    files: Mapping[str, FileEntry],
    store: Store,
    settings: Settings,
    whole: bool,
    on_event: OnEvent,
) -> list[ImageEntry]:
    """Build every image whose binary is in `files`; with `whole`, Myriad's own images too.

    Blobs lie in the store: an image's blob store and the store have one layout.
    """
    blobs = BlobStore(store.root)
    made = []
    for name, component in components.items():
        for repo, image in component.images.items():
            if image.binary not in files or image.base != "scratch":
                continue
            started = time.monotonic()
            layer = write_layer(
                blobs,
                [file_from_path(image.target, store.path(files[image.binary].sha256), mode=0o755)],
                comment=f"{image.binary} {files[image.binary].version}",
            )
            built = write_image(
                blobs,
                ref=f"{repo}:{image.tag.format(version=component.version)}",
                layers=[layer],
                config=ImageConfig(
                    entrypoint=[image.target], env={"PATH": _PATH}, user=image.user, architecture=settings.arch
                ),
            )
            on_event(Event(state="done", what=repo, how="image", seconds=time.monotonic() - started))
            made.append(image_entry(built, component=name, version=component.version, holds=[image.binary]))
    return made


def image_entry(built: BuiltImage, *, component: str, version: str, holds: list[str]) -> ImageEntry:
    """A built image as a bundle's entry."""
    own = built.blobs[built.manifest_digest]
    return ImageEntry(
        ref=built.ref,
        component=component,
        version=version,
        digest=built.manifest_digest,
        media_type=own.media_type,
        size=own.size,
        blobs=[
            Blob(sha256=plain_hex(digest), size=blob.size, media_type=blob.media_type)
            for digest, blob in built.blobs.items()
            if digest != built.manifest_digest
        ],
        origin=Origin(source="image", holds=holds),
    )
