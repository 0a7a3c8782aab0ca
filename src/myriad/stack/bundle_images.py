"""The images of a bundle: one binary each for the cluster's components, Myriad's own, and those taken by digest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.metadata import version as package_version
from pathlib import Path
from typing import cast

from myriad.images.build import BuildContext, BuildEvent, component_image, python_image
from myriad.images.definition import load_definition, runtime_folders
from myriad.images.oci import BuiltImage
from myriad.stack.bundle import Blob, FileEntry, ImageEntry, Origin
from myriad.stack.events import Event, OnEvent
from myriad.stack.lock import Arch, Component
from myriad.stack.pull import Puller
from myriad.stack.settings import Settings
from myriad.stack.store import Store, plain_hex

_REPOSITORY = Path(__file__).resolve().parents[3]
_OWN = "myriad"


class ImageBuilder:
    """Builds images into the store; blobs of images and other files share one layout there.

    Args:
        store: where blobs go.
        settings: cache, mirrors, architecture.
        on_event: told `done` or `cached` for every image and every long step.
        repository: the checkout that holds images/, uv.lock and src/.
    """

    def __init__(self, *, store: Store, settings: Settings, on_event: OnEvent, repository: Path = _REPOSITORY) -> None:
        self._store = store
        self._settings = settings
        self._on_event = on_event
        self._repository = repository
        self._worked = False
        self._context = BuildContext(
            store=store.root, cache_dir=settings.cache / "images", repository=repository, on_event=self._step
        )

    def component_images(self, components: Mapping[str, Component], files: Mapping[str, FileEntry]) -> list[ImageEntry]:
        """Every image of these components whose binary is in `files`."""
        made = []
        for name, component in components.items():
            for repo, image in component.images.items():
                if image.binary not in files:
                    continue
                build = partial(
                    component_image,
                    self._context,
                    repo=repo,
                    tag=image.tag.format(version=component.version),
                    binary=self._store.path(files[image.binary].sha256),
                    install_as=image.target,
                    entrypoint=[image.target],
                    base=image.base == "python",
                    user=image.user,
                )
                built = self._timed(repo, build)
                made.append(image_entry(built, component=name, version=component.version, holds=[image.binary]))
        return made

    def own_images(self, *, without: Iterable[str] = ()) -> list[ImageEntry]:
        """The images of the checkout's folder images/, tagged with Myriad's version; none where there is no checkout.

        Args:
            without: folder names to leave out.
        """
        version = package_version(_OWN)
        folders = runtime_folders(self._repository / "images")
        if not folders:
            text = "Myriad's own images are left out: they are built in a checkout, which holds images/ and uv.lock"
            self._on_event(Event(state="note", what="images", text=text))
        made = []
        for folder in folders:
            if folder.name in without or not load_definition(folder).bundle:
                continue
            built = self._timed(folder.name, partial(python_image, self._context, folder, version))
            made.append(image_entry(built, component=_OWN, version=version, holds=[f"images/{folder.name}"]))
        return made

    def upstream_images(
        self, components: Mapping[str, Component], wanted: Iterable[tuple[str, str]]
    ) -> list[ImageEntry]:
        """Images from their registries, by digest; `wanted` is (component, repo) of those that are pinned."""
        made = []
        arch = cast(Arch, self._settings.arch)
        with Puller(store=self._store, settings=self._settings) as puller:
            for name, repo in wanted:
                component = components[name]
                image = component.upstream_images[repo]
                ref = image.ref.format(version=component.version)
                started = time.monotonic()
                entry = puller.pull(
                    ref,
                    sha256=image.sha256[arch],
                    component=name,
                    version=component.version,
                    as_ref=f"{repo}:{ref.rpartition(':')[2]}",
                )
                made.append(entry)
                self._on_event(Event(state="done", what=ref, how="image", seconds=time.monotonic() - started))
        return made

    def _timed(self, name: str, build: Callable[[], BuiltImage]) -> BuiltImage:
        self._worked = False
        started = time.monotonic()
        built = build()
        seconds = time.monotonic() - started
        self._on_event(Event(state="done" if self._worked else "cached", what=name, how="image", seconds=seconds))
        return built

    def _step(self, event: BuildEvent) -> None:
        if event.state == "finished":
            self._worked = True
        elif event.state == "started" and event.step == "base":
            text = "building the base layer of the images (Debian packages)"
            self._on_event(Event(state="note", what="base layer", text=text))


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
