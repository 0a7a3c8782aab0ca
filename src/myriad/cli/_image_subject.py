"""What the verbs on a built image share: a layout or a reference opened, and the folder of its image.yml found."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from myriad.cli.output import err_console
from myriad.errors import InputError
from myriad.fleet.names import did_you_mean
from myriad.images.definition import runtime_folders
from myriad.images.proof_definitions import repo_of
from myriad.images.proof_layout import LayoutImage, open_image
from myriad.images.proof_pull import pull_layout

OnLayer = Callable[[int, int], None]

TargetArgument = Annotated[
    str,
    typer.Argument(metavar="LAYOUT|REF", help="A folder that `myriad image build --out` wrote, or registry/repo:tag."),
]
DefinitionOption = Annotated[
    str | None, typer.Option("--definition", help="Folder or name of its image.yml; by default the one with its repo.")
]
RefOption = Annotated[str, typer.Option("--ref", help="Which image, where a layout holds several.")]
ImagesOption = Annotated[Path, typer.Option("--images", help="Folder with the images' definitions.")]
CaOption = Annotated[Path | None, typer.Option("--ca", help="Certificate of the registry's CA.")]


@contextmanager
def opened(target: str, *, ref: str = "", ca: Path | None = None) -> Iterator[LayoutImage]:
    """The image of a layout, or one that is pulled into a temporary layout first.

    Raises:
        InputError: neither a layout nor a reference, or no such image in it.
    """
    path = Path(target)
    if path.exists():
        yield open_image(path, ref)
        return
    if "/" not in target or target.startswith((".", "/")):
        raise InputError(
            "there is no such folder",
            where=target,
            hint="a folder that `myriad image build --out` wrote, or registry/repo:tag",
        )
    scratch = Path(tempfile.mkdtemp(prefix="myriad-pull-"))
    try:
        yield open_image(pull_layout(target, scratch / "layout", ca=ca))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def folder_of(given: str | None, image: LayoutImage, images: Path) -> Path | None:
    """The folder of an image's definition: the given one, else the one whose `repo` the image has.

    Raises:
        InputError: the given one does not exist.
    """
    if given is not None:
        for folder in (Path(given), images / given, Path(given).parent):
            if (folder / "image.yml").is_file():
                return folder
        known = [one.name for one in runtime_folders(images)] if images.is_dir() else []
        raise InputError(
            f'there is no image.yml for "{given}"{did_you_mean(given, known)}',
            where=str(images),
            hint="--definition images/NAME",
        )
    if not images.is_dir():
        return None
    repo = image.ref.partition("@")[0].rpartition(":")[0] if ":" in image.ref.rpartition("/")[2] else image.ref
    for folder in runtime_folders(images):
        if repo and (repo == repo_of(folder) or repo.endswith(f"/{repo_of(folder)}")):
            err_console.print(f"held against {folder}/image.yml", markup=False)
            return folder
    return None
