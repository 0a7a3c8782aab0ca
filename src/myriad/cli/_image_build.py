"""`myriad image build`: an image from its definition, bit for bit the same on every machine. Exit 0: built; 1: wrong
input; 2: failed; 3: an index, mirror or registry does not answer."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from myriad.cli import _image_shared as shared
from myriad.cli.output import console, err_console
from myriad.errors import InputError
from myriad.images.context import BuildContext, BuildEvent, read_record, write_record
from myriad.images.find import find_image
from myriad.images.oci import BuiltImage, Layout, export_layout
from myriad.images.proof_documents import attach_documents
from myriad.images.runtime import RuntimeImage, build_runtime

_NO_LAYER = ("wheels", "documents")


def add(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command(name="build")
    def build(
        name: shared.NameArgument,
        out: Annotated[Path | None, typer.Option(help="Write the image there, as an OCI image layout.")] = None,
        cache: Annotated[
            bool, typer.Option("--cache/--no-cache", help="Whether layers may come from the cache.")
        ] = True,
        documents: Annotated[
            bool, typer.Option("--documents/--no-documents", help="Attach bill of materials and provenance in --out.")
        ] = True,
        tag: shared.TagOption = "",
        images: shared.ImagesOption = None,
        as_json: shared.JsonOption = False,
    ) -> None:
        """Build an image: no daemon, no root, the same digest wherever and whenever it is built."""
        found = find_image(name, shared.images_folder(images))
        begun = time.monotonic()
        heard: list[BuildEvent] = []
        with shared.progress(as_json) as show:

            def told(event: BuildEvent) -> None:
                heard.append(event)
                show(event)

            ctx = shared.context(told, fresh=not cache)
            image = build_runtime(ctx, found.folder, shared.tag_or_version(tag), definition=found.definition)
            if out is not None:
                write_layout(image.built, out)
                if documents:
                    told(BuildEvent("documents", "started"))
                    attach_documents(out, found.folder, definition=found.definition)
                    told(BuildEvent("documents", "finished", "bill of materials, provenance"))
        seconds = time.monotonic() - begun
        last = _remember(ctx, found.name, image)
        differs = [event for event in heard if event.state == "differs"]
        if as_json:
            shared.emit_line(document(image, seconds=seconds, last=last, heard=heard, out=out))
        else:
            console.print(_sentence(image, seconds=seconds, last=last, heard=heard), markup=False)
            for event in differs:
                err_console.print(f"differs   {event.step}: {event.detail}", markup=False)
            if out is not None:
                console.print(f"{out}   {image.built.ref}", markup=False)


def write_layout(image: BuiltImage, out: Path) -> Layout:
    """Write an image as the only one of a layout. Documents that are attached to this very image stay.

    Raises:
        InputError: the folder holds something else.
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / "oci-layout").is_file()):
        raise InputError(
            "is there and is no image layout, so nothing was written",
            where=str(out),
            hint="name an empty folder with --out",
        )
    if (out / "oci-layout").is_file():
        before = Layout(out)
        if [one.digest for one in before.images] == [image.manifest_digest] and before.images[0].ref == image.ref:
            missing = [digest for digest in image.blobs if not before.path(digest).is_file()]
            if not missing:
                return before
        shutil.rmtree(out / "blobs", ignore_errors=True)
        (out / "index.json").unlink(missing_ok=True)
    export_layout([image], out)
    return Layout(out)


def _remember(ctx: BuildContext, name: str, image: RuntimeImage) -> str:
    """The digest of the last build of this image on this machine, empty for the first; and note this one."""
    record = ctx.cache_dir / "built" / f"{name}.json"
    last = read_record(record)
    write_record(
        record,
        {"digest": image.built.manifest_digest, "ref": image.built.ref, "layers": list(image.built.layer_digests)},
    )
    return str(last["digest"]) if last else ""


def _sentence(image: RuntimeImage, *, seconds: float, last: str, heard: list[BuildEvent]) -> str:
    built = image.built
    largest = max((layer.size for layer in image.layers), default=0)
    made = sum(event.state == "finished" and event.step not in _NO_LAYER for event in heard)
    same = (
        "first build here"
        if not last
        else f"same bits as the last build: {'yes' if last == built.manifest_digest else 'no'}"
    )
    parts = [
        built.manifest_digest,
        f"{shared.megabytes(built.size)} in {len(image.layers)} layers, largest {shared.megabytes(largest)}",
        f"{made} made, {len(image.layers) - made if made <= len(image.layers) else 0} from the cache",
        same,
        shared.listed_seconds(seconds),
    ]
    return "   ".join(parts)


def document(
    image: RuntimeImage, *, seconds: float, last: str, heard: list[BuildEvent], out: Path | None
) -> dict[str, Any]:
    """The result as JSON."""
    built = image.built
    config = json.loads(built.blobs[built.config_digest].path.read_bytes())
    return {
        "event": "built",
        "ref": built.ref,
        "digest": built.manifest_digest,
        "size": built.size,
        "budget": image.definition.budget_mb * 10**6,
        "seconds": round(seconds, 2),
        "same_as_last": None if not last else last == built.manifest_digest,
        "made": sum(event.state == "finished" and event.step not in _NO_LAYER for event in heard),
        "cached": sum(event.state == "cached" for event in heard),
        "out": str(out) if out is not None else None,
        "env": config["config"].get("Env", []),
        "layers": [
            {"digest": layer.digest, "size": layer.size, "unpacked": layer.tar_size, "holds": layer.comment}
            for layer in image.layers
        ],
        "differs": [{"layer": event.step, "detail": event.detail} for event in heard if event.state == "differs"],
    }
