"""Which image a name means: a folder of images/, its path, or a variant of its matrix."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from myriad.errors import InputError
from myriad.fleet.names import did_you_mean
from myriad.images.definition import ImageDefinition, load_definition, runtime_folders
from myriad.images.matrix import MATRIX_FILE, load_matrix


@dataclass(frozen=True)
class Found:
    """An image by its name.

    Attributes:
        name: as it was asked for, without a path.
        folder: with its files.
        definition: image.yml, or the variant's.
    """

    name: str
    folder: Path
    definition: ImageDefinition


def find_image(name: str, images: Path) -> Found:
    """The image that a name means.

    Raises:
        InputError: there is none, or its image.yml or matrix.yml is wrong.
    """
    for folder in (images / name, Path(name)):
        if (folder / "image.yml").is_file():
            return Found(folder.resolve().name, folder, load_definition(folder))
    known = []
    for folder in runtime_folders(images) if images.is_dir() else ():
        known.append(folder.name)
        if (folder / MATRIX_FILE).is_file() and name.startswith(folder.name):
            for variant in load_matrix(folder):
                known.append(variant.name)
                if variant.name == name:
                    if variant.refused:
                        raise InputError(f"{name} is refused: {variant.refused}", where=str(folder / MATRIX_FILE))
                    return Found(name, folder, variant.definition)
    raise InputError(
        f'there is no image "{name}"{did_you_mean(name, known)}',
        where=str(images),
        hint="a folder of images/ with image.yml, its path, or a variant of matrix.yml",
    )
