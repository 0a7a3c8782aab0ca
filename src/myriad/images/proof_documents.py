"""The documents that travel with an image: both bills of materials and, where its folder is known, its provenance.

attach_documents(Path("dist/pytorch"), Path("images/pytorch"))
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from myriad.images import provenance, sbom
from myriad.images.definition import ImageDefinition, load_definition
from myriad.images.proof_layout import LayoutImage, open_image
from myriad.images.proof_packages import Packages, read_packages
from myriad.images.proof_tree import ImageTree, read_tree


def myriad_version() -> str:
    """The version of Myriad that writes the documents."""
    return metadata.version("myriad")


def inventory(image: LayoutImage) -> tuple[ImageTree, Packages]:
    """What is installed in an image, without a look into its other files."""
    tree = read_tree(image, contents=False)
    return tree, read_packages(tree)


def attach_documents(
    layout: Path, folder: Path | None = None, *, definition: ImageDefinition | None = None, ref: str = ""
) -> dict[str, str]:
    """Attach the documents to an image of a layout by digest; the same image again changes nothing.

    Args:
        layout: the layout's folder.
        folder: of the image.yml that it was built from; without it there is no provenance.
        definition: a variant of the folder's matrix; by default image.yml.
        ref: which image, where the layout holds several.

    Returns:
        Digest of each attached manifest by media type.

    Raises:
        InputError: there is no such image, or image.yml is wrong.
        MyriadError: an input that image.yml names is missing.
    """
    image = open_image(layout, ref)
    tree, packages = inventory(image)
    version = myriad_version()
    found: dict[str, str] = {
        sbom.MEDIA_TYPES[kind]: digest
        for kind, digest in sbom.attach_all(image, tree, packages, version=version).items()
    }
    if folder is not None:
        found[provenance.MEDIA_TYPE] = provenance.attach_statement(
            image, folder, definition or load_definition(folder), packages, version=version
        )
    return found
