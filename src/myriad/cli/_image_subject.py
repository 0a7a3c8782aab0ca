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
from myriad.images.definition import load_definition, runtime_folders
from myriad.images.find import Found, find_image
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


def found_of(given: str | None, image: LayoutImage, images: Path) -> Found | None:
    """The definition of an image: of the given name, else the one whose `repo` the image has; None without one.

    Raises:
        InputError: the given one does not exist, or it is wrong.
    """
    if given is not None:
        return find_image(given.removesuffix("/image.yml"), images)
    if not images.is_dir():
        return None
    plain = image.ref.partition("@")[0]
    repo, _, _tag = plain.rpartition(":") if ":" in plain.rpartition("/")[2] else (plain, "", "")
    for folder in runtime_folders(images):
        own = repo_of(folder)
        if own and (repo == own or repo.endswith(f"/{own}")):
            err_console.print(f"held against {folder}/image.yml", markup=False)
            return Found(folder.name, folder, load_definition(folder))
    return None
