"""`myriad image diff`: which package, file and layer differs between two images. Exit 0; with --exit-code 4 where they
differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from myriad.cli import _image_shared as shared
from myriad.cli._image_source import layout_of
from myriad.cli.output import console, emit_json
from myriad.images.diff import Change, Difference, difference

_FILES_SHOWN = 20


def add(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command(name="diff")
    def diff(
        before: Annotated[
            str, typer.Argument(metavar="A", help="An image of images/, a layout, or registry/repo:tag.")
        ],
        after: Annotated[str, typer.Argument(metavar="B", help="The other one.")],
        every_file: Annotated[bool, typer.Option("--files", help="List every file that differs.")] = False,
        exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 4 where they differ.")] = False,
        ca: shared.CaOption = None,
        images: shared.ImagesOption = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    ) -> None:
        """Say what changed from one image to another."""
        with (
            layout_of(before, images=images, ca=ca) as left,
            layout_of(after, images=images, ca=ca) as right,
        ):
            one, other = left.image(), right.image()
            found = difference(one, other)
            if as_json:
                emit_json(document(one.manifest_digest, other.manifest_digest, found))
            else:
                for line in lines(one.manifest_digest, other.manifest_digest, found, every_file=every_file):
                    console.print(line, markup=False)
        if exit_code and not found.same:
            raise typer.Exit(4)


def document(before: str, after: str, found: Difference) -> dict[str, object]:
    """The difference as JSON."""
    return {
        "before": before,
        "after": after,
        "same": before == after,
        "shared_layers": found.shared,
        "pulled_bytes": found.pulled,
        **{part: [vars(one) for one in getattr(found, part)] for part in ("packages", "config", "layers", "files")},
    }


def lines(before: str, after: str, found: Difference, *, every_file: bool) -> list[str]:
    """The difference for people."""
    if before == after:
        return [f"the same image: {before}"]
    told = []
    for title, changes, shown in (
        ("package", found.packages, len(found.packages)),
        ("start", found.config, len(found.config)),
        ("layer", found.layers, len(found.layers)),
        ("file", found.files, len(found.files) if every_file else _FILES_SHOWN),
    ):
        told += _listed(title, changes, shown)
    if found.same:
        told.append("the same content; only the manifest or the order of layers differs")
    told.append(
        f"{found.shared} layers shared; a node that has the first pulls {shared.megabytes(found.pulled)} for the second"
    )
    return told


def _listed(title: str, changes: Sequence[Change], shown: int) -> list[str]:
    wide = max((len(one.what) for one in changes[:shown]), default=0)
    told = []
    for one in changes[:shown]:
        what = one.what.ljust(min(wide, 60))
        if not one.before:
            told.append(f"{title.ljust(8)}  added     {what}  {one.after}")
        elif not one.after:
            told.append(f"{title.ljust(8)}  removed   {what}  {one.before}")
        else:
            told.append(f"{title.ljust(8)}  changed   {what}  {one.before} -> {one.after}")
    if len(changes) > shown:
        told.append(f"{title.ljust(8)}  and {len(changes) - shown} more (--files lists them)")
    return told
