"""The images of a bundle: one binary each for the cluster's components, and Myriad's own Python images."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from myriad.images.build import BuildContext, component_image
from myriad.images.oci import BuiltImage
from myriad.stack.bundle import Blob, FileEntry, ImageEntry, Origin
from myriad.stack.events import Event, OnEvent
from myriad.stack.lock import Component
from myriad.stack.settings import Settings
from myriad.stack.store import Store, plain_hex

_REPOSITORY = Path(__file__).resolve().parents[3]


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
    context = BuildContext(store=store.root, cache_dir=settings.cache / "images", repository=_REPOSITORY)
    made = []
    for name, component in components.items():
        for repo, image in component.images.items():
            if image.binary not in files:
                continue
            started = time.monotonic()
            built = component_image(
                context,
                repo=repo,
                tag=image.tag.format(version=component.version),
                binary=store.path(files[image.binary].sha256),
                install_as=image.target,
                entrypoint=[image.target],
                base=image.base == "python",
                user=image.user,
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
