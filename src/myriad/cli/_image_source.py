"""An image by any of its names, as a layout: a folder on disk, one of images/ (built now, from the cache), or a
reference into a registry."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from myriad.cli import _image_shared as shared
from myriad.errors import InputError
from myriad.images.find import find_image
from myriad.images.oci import Layout, export_layout
from myriad.images.proof_pull import pull_layout
from myriad.images.refs import stored_credentials
from myriad.images.registry import Registry
from myriad.images.runtime import build_runtime

USER, PASSWORD = "MYRIAD_REGISTRY_USER", "MYRIAD_REGISTRY_PASSWORD"


@contextmanager
def layout_of(
    name: str, *, images: Path | None, tag: str = "", ca: Path | None = None, as_json: bool = False
) -> Iterator[Layout]:
    """The image as a layout, which is gone afterwards unless it was a folder already.

    Raises:
        InputError: there is no such image, layout or reference.
    """
    if (Path(name) / "oci-layout").is_file():
        yield Layout(Path(name))
        return
    remote = "/" in name and ("." in name.partition("/")[0] or ":" in name.partition("/")[0])
    if remote and not Path(name).exists():
        with _scratch() as folder:
            yield Layout(pull_layout(name, folder / "layout", ca=ca))
        return
    if Path(name).is_dir() and not (Path(name) / "image.yml").is_file():
        raise InputError(
            "is no image layout and has no image.yml", where=name, hint="`myriad image build NAME --out DIR`"
        )
    found = find_image(name, shared.images_folder(images))
    with shared.progress(as_json) as show:
        ctx = shared.context(show)
        built = build_runtime(ctx, found.folder, shared.tag_or_version(tag), definition=found.definition).built
    with _scratch() as folder:
        export_layout([built], folder / "layout")
        yield Layout(folder / "layout")


@contextmanager
def _scratch() -> Iterator[Path]:
    # Beside the store, so that blobs are hard links.
    parent = shared.context(lambda event: None).cache_dir / "layouts"
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def registry_for(host: str, ca: Path | None) -> Registry:
    """The registry to push to, with credentials from the environment (CI) or from `docker login`.

    Raises:
        InputError: one of the two variables is set without the other.
    """
    user, password = os.environ.get(USER), os.environ.get(PASSWORD)
    if (user is None) != (password is None):
        raise InputError(f"{USER} and {PASSWORD} belong together; one of them is not set")
    plain = host.partition("://")[2] or host
    credentials = (user, password) if user is not None and password is not None else stored_credentials(plain)
    return Registry(host, ca=ca, credentials=credentials)
