"""Fills the image's containerd store: by the image's own containerd, inside the tree, from the site's registry.

Layers are unpacked natively into the store that the booted node will use; under emulation that would take longer than
everything else. Images are pulled one after the other, so that snapshots get the same numbers in every build.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from myriad.errors import MyriadError
from myriad.nodeimage.chroot import run_in_tree

REGISTRY = "registry.myriad.internal"
#: What keeps an image from being collected: https://github.com/containerd/containerd, internal/cri/labels.
PIN = "io.cri-containerd.pinned=pinned"


@dataclass(frozen=True)
class StoredImage:
    """An image in the store: `repo:tag` in the bundle, and `sha256:<hex>` of its manifest."""

    ref: str
    digest: str


def fill(
    tree: Path, registry: str, images: Sequence[StoredImage], *, epoch: int, log: Path, on_line: Callable[[str], None]
) -> None:
    """Pull, unpack and pin images.

    Args:
        registry: address of the registry that has them, `http://host:port`.

    Raises:
        MyriadError: one cannot be pulled, or is not what the bundle says.
    """
    script = (resources.files("myriad.nodeimage") / "fill_store.sh").read_text(encoding="utf-8")
    refs = [f"{REGISTRY}/{image.ref}@{image.digest}" for image in images]
    said = run_in_tree(
        tree,
        ["sh", "-c", script, "sh", registry, REGISTRY, PIN, *refs],
        what="the image's containerd could not take in the images of the bundle",
        hint="its store needs a file system that overlayfs accepts below it (ext4, xfs with ftype=1)",
        epoch=epoch,
        log=log,
        on_line=on_line,
    )
    found = listed(said.partition("---\n")[2])
    for image in images:
        named = f"{REGISTRY}/{image.ref}"
        digest, _ = found.get(named, ("", ""))
        if digest != image.digest:
            raise MyriadError(
                f"{image.ref} is {digest or 'not in the store'}, the bundle says {image.digest}",
                where=str(log),
                hint="the registry holds another build: publish the bundle again",
            )
        for name in (named, f"{named.rpartition(':')[0]}@{image.digest}"):
            digest, labels = found.get(name, ("", ""))
            if digest != image.digest or PIN not in labels:
                raise MyriadError(f"{name} is in the store, but not pinned ({labels or 'no labels'})", where=str(log))


def listed(text: str) -> dict[str, tuple[str, str]]:
    """Digest and labels by reference, from `ctr images list`."""
    found = {}
    for line in text.splitlines():
        columns = line.split()
        if len(columns) >= 4 and columns[2].startswith("sha256:"):
            found[columns[0]] = (columns[2], columns[-1])
    return found
