"""`myriad image export`: an image as one file, for `docker load`, `podman load`, `ctr images import` or a stick."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Annotated, cast

import typer

from myriad.cli import _image_shared as shared
from myriad.cli._image_source import layout_of
from myriad.cli.output import console, emit_json
from myriad.images.layer import from_tree, write_tar
from myriad.images.oci import check_blobs, export_docker_archive

_FORMATS = ("docker", "oci")


def add(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command(name="export")
    def export(
        name: Annotated[
            str, typer.Argument(metavar="NAME|LAYOUT|REF", help="An image of images/, a layout, or a reference.")
        ],
        out: Annotated[Path, typer.Option(help="The tar file to write.")],
        kind: Annotated[
            str, typer.Option("--format", help="docker: for every `docker load`; oci: the layout with its documents.")
        ] = "docker",
        ref: Annotated[str, typer.Option("--ref", help="Which image, where a layout holds several.")] = "",
        tag: shared.TagOption = "",
        ca: shared.CaOption = None,
        images: shared.ImagesOption = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    ) -> None:
        """Write an image into one file. The same image gives the same file."""
        if kind not in _FORMATS:
            raise typer.BadParameter(f"{kind!r} is none of {', '.join(_FORMATS)}", param_hint="--format")
        if not out.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {out.parent}", param_hint="--out")
        with layout_of(name, images=images, tag=tag, ca=ca) as layout:
            image = layout.image(ref)
            # What was just built stands in the store by its digest; a folder was anybody's meanwhile.
            check_blobs(image, digests=layout.root == Path(name))
            partial = out.with_name(f".{out.name}.partial")
            try:
                if kind == "docker":
                    export_docker_archive(image, partial)
                else:
                    with partial.open("wb") as file:
                        write_tar(from_tree(layout.root), cast(IO[bytes], file))
                partial.replace(out)
            finally:
                partial.unlink(missing_ok=True)
            size = out.stat().st_size
            if as_json:
                emit_json({"file": str(out), "size": size, "ref": image.ref, "digest": image.manifest_digest})
                return
            console.print(f"{out}   {shared.megabytes(size)}   {image.ref}   {image.manifest_digest}", markup=False)
