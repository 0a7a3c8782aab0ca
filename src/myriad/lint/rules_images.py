"""Rules about images of jobs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from myriad.lint.rule import Raw, rule
from myriad.lint.scene import Scene, text
from myriad.lint.words import JOBS
from myriad.lint.works import (
    Work,
    gpu_works,
)


@rule("image-latest", "error", "an image without a fixed version", looks_at=JOBS)
def image_latest(scene: Scene) -> Iterator[Raw]:
    """`:latest` (which is also meant where there is no tag) names another image on every node and on every restart:
    ranks of one job run different code. The cluster's policy refuses it."""
    for work in gpu_works(scene):
        for path, name, image in _images(work):
            if "@" not in image and tag_of(image) in ("", "latest"):
                what = "`:latest`" if tag_of(image) else "no tag, which means `:latest`,"
                yield Raw(
                    work.thing,
                    path,
                    f"runs the image {image} ({what} in container {name}): `:latest` is refused, since it can be "
                    "another image on every node and after every restart",
                    f"name it by digest: {image.removesuffix(':latest')}@sha256:...",
                )


@rule("image-not-by-digest", "warning", "an image by tag instead of by digest", looks_at=JOBS)
def image_not_by_digest(scene: Scene) -> Iterator[Raw]:
    """A tag can be moved, a digest cannot; and only a digest can be known to be warm on a node."""
    for work in gpu_works(scene):
        for path, name, image in _images(work):
            if "@" not in image and tag_of(image) not in ("", "latest"):
                yield Raw(
                    work.thing,
                    path,
                    f"runs the image {image} by its tag in container {name}: a tag can be moved between two restarts",
                    "name it by digest (`myriad image push` prints it): NAME@sha256:...",
                )


_DIGEST = re.compile(r"[a-z0-9]+:[0-9a-f]{64}")


@rule("image-name", "error", "an image name that is none", looks_at=JOBS)
def image_name(scene: Scene) -> Iterator[Raw]:
    """The kubelet answers InvalidImageName or ErrImagePull, and the pods hold their GPUs while they wait."""
    for work in gpu_works(scene):
        for pods in work.pods:
            for path, container in pods.containers():
                image = container.get("image")
                name = text(container, "name") or "?"
                digest = image.partition("@")[2] if isinstance(image, str) else ""
                if not isinstance(image, str) or not image.strip():
                    if work.kind == "TrainJob":
                        continue  # The runtime has one.
                    yield Raw(
                        work.thing,
                        (*path, "image"),
                        f"names no image for container {name}: its pods are refused",
                        "name one by digest",
                    )
                elif digest == "sha256:" + "0" * 64:
                    yield Raw(
                        work.thing,
                        (*path, "image"),
                        f"still has the digest of a template in container {name} (zeros): there is no such image",
                        "put the digest of your image there (`myriad image push` prints it)",
                    )
                elif digest and not _DIGEST.fullmatch(digest):
                    yield Raw(
                        work.thing,
                        (*path, "image"),
                        f"runs the image {image} in container {name}, and {digest!r} is no digest (sha256: and 64 hex "
                        "digits): its pods hold their GPUs and never start",
                        "copy the whole digest",
                    )
                elif (
                    image != image.strip()
                    or any(c.isspace() for c in image)
                    or image.partition("@")[0].split(":")[0].lower() != image.partition("@")[0].split(":")[0]
                ):
                    yield Raw(
                        work.thing,
                        (*path, "image"),
                        f"runs the image {image!r} in container {name}: names are lower case and hold no blanks, so "
                        "the kubelet answers InvalidImageName",
                        "correct the name",
                    )


def _images(work: Work) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    for pods in work.pods:
        for path, container in pods.containers():
            image = text(container, "image")
            if image:
                at = ("spec", "trainer", "image") if work.kind == "TrainJob" else (*path, "image")
                yield at, text(container, "name") or "?", image


def tag_of(image: str) -> str:
    """The tag of an image's name, "" where it has none."""
    last = image.partition("@")[0].rpartition("/")[2]
    return last.partition(":")[2]
