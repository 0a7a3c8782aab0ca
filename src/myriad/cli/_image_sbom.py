"""`myriad image sbom`: the bill of materials of a built image, printed, written or attached to it by digest."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from myriad.cli import _image_subject as subjects
from myriad.cli.output import console, emit_json, err_console
from myriad.images import sbom
from myriad.images.proof_documents import attach_documents, inventory, myriad_version
from myriad.images.proof_types import counted


def add(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command(name="sbom")
    def sbom_(
        target: subjects.TargetArgument,
        kind: Annotated[str, typer.Option("--format", help="cyclonedx (1.6) or spdx (2.3).")] = "cyclonedx",
        out: Annotated[Path | None, typer.Option(help="Write it to this file instead of standard output.")] = None,
        attach: Annotated[
            bool, typer.Option("--attach", help="Attach both formats and the provenance to the layout, by digest.")
        ] = False,
        definition: subjects.DefinitionOption = None,
        ref: subjects.RefOption = "",
        images: subjects.ImagesOption = Path("images"),
        ca: subjects.CaOption = None,
        as_json: Annotated[
            bool, typer.Option("--json", help="With --attach: print what was attached as JSON.")
        ] = False,
    ) -> None:
        """List what is in an image, in seconds, from its metadata of packages; the same bytes for the same image."""
        formats: dict[str, sbom.Format] = {"cyclonedx": "cyclonedx", "spdx": "spdx"}
        if kind not in formats:
            raise typer.BadParameter(f"{kind!r} is neither cyclonedx nor spdx", param_hint="--format")
        began = time.monotonic()
        if attach:
            _attach(target, definition, ref, images, as_json)
            return
        with subjects.opened(target, ref=ref, ca=ca) as image:
            tree, packages = inventory(image)
            data = sbom.build(image, tree, packages, formats[kind], version=myriad_version())
        if out is None:
            sys.stdout.buffer.write(data + b"\n")
        else:
            out.write_bytes(data + b"\n")
        err_console.print(
            f"{counted(len(packages.found), 'package')}, {len(data):,} bytes, {time.monotonic() - began:.1f} s",
            markup=False,
        )

    def _attach(target: str, definition: str | None, ref: str, images: Path, as_json: bool) -> None:
        if not Path(target).is_dir():
            raise typer.BadParameter(
                "documents are attached to a layout on disk, and pushed with it", param_hint="LAYOUT"
            )
        with subjects.opened(target, ref=ref) as image:
            found = subjects.found_of(definition, image, images)
            digest = image.digest
        folder = found.folder if found is not None else None
        attached = attach_documents(
            Path(target), folder, definition=found.definition if found is not None else None, ref=digest
        )
        if as_json:
            emit_json({"image": digest, "attached": attached, "provenance_from": str(folder) if folder else None})
            return
        for media_type, one in attached.items():
            console.print(f"{one}  {media_type}", markup=False)
        if folder is None:
            console.print(
                "no provenance: which image.yml it was built from is not known; name it by --definition", markup=False
            )
