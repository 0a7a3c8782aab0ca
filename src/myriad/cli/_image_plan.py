"""`myriad image plan`: the layers of an image, their sizes and a node's time for them, before anything is built."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from myriad.cli import _image_shared as shared
from myriad.cli.output import console, emit_json
from myriad.errors import InputError
from myriad.images.compat import faults, image_facts
from myriad.images.find import Found, find_image
from myriad.images.matrix import load_matrix
from myriad.images.plan import MB, Node, PlannedLayer, Prediction, predict
from myriad.images.runtime import plan_image

_RATES = {
    "SYSTEM": "system",
    "PACKAGES": "packages",
    "CUDA": "CUDA",
    "FRAMEWORK": "torch",
    "LARGE": "large wheel",
    "WHEELS": "small wheels",
    "LOADER": "loader",
    "TOOLS": "gpu-check",
    "SOURCE": "application",
    "FILES": "application",
}


def add(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command(name="plan")
    def plan(
        name: shared.NameArgument,
        link_gbit: Annotated[float, typer.Option(help="Gbit/s of a node's link to the registry.", min=0.001)] = 1.0,
        unpack_mb: Annotated[float, typer.Option(help="MB/s that a node unpacks.", min=1)] = 300.0,
        parallel: Annotated[int, typer.Option(help="Layers that the runtime fetches at once.", min=1)] = 3,
        matrix: Annotated[bool, typer.Option("--matrix", help="List the variants of matrix.yml instead.")] = False,
        images: shared.ImagesOption = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    ) -> None:
        """Print the layers that a build would make. Nothing is built or fetched. Exit 0; 1: the definition is wrong."""
        folder = shared.images_folder(images)
        found = find_image(name, folder)
        if matrix:
            _variants(found.folder, as_json)
            return
        # Also where image.yml contradicts itself: that is told before anybody waits for a build.
        warnings = faults(image_facts(found.definition, found.name, python=found.definition.python_version))
        layers = plan_image(shared.context(lambda event: None), found.folder, found.definition)
        node = Node(link=link_gbit * 125 * MB, unpack=unpack_mb * MB, parallel=parallel)
        told = predict(layers, node)
        if as_json:
            emit_json({**document(found, layers, told), "warnings": list(warnings)})
        else:
            _show(found, layers, told, link_gbit)
            for one in warnings:
                console.print(f"warning   {one}", markup=False)


def document(found: Found, layers: Sequence[PlannedLayer], told: Prediction) -> dict[str, Any]:
    """The plan as JSON."""
    return {
        "image": found.name,
        "repo": found.definition.repo,
        "budget": found.definition.budget_mb * MB,
        "size": sum(layer.size for layer in layers),
        "unpacked": sum(layer.tar_size for layer in layers),
        "layers": [
            {
                "rate": layer.change.name.lower(),
                "holds": layer.name,
                "size": layer.size,
                "unpacked": layer.tar_size,
                "known": layer.known,
                "base": layer.below,
                "wheels": [wheel.filename for wheel in layer.wheels],
            }
            for layer in layers
        ],
        "predicted": {
            "pull_s": round(told.pull_s, 1),
            "unpack_s": round(told.unpack_s, 1),
            "total_s": round(told.total_s, 1),
            "one_layer_s": round(told.one_layer_s, 1),
            "unknown": list(told.unknown),
        },
    }


def _show(found: Found, layers: Sequence[PlannedLayer], told: Prediction, link_gbit: float) -> None:
    table = Table(box=None, pad_edge=False, header_style="")
    for title, right in (("changes with", False), ("layer", False), ("pull", True), ("unpacked", True)):
        table.add_column(title, justify="right" if right else "left", no_wrap=title != "layer")
    for layer in layers:
        about = "~" if layer.known == "estimate" else ""
        pulled = about + shared.megabytes(layer.size) if layer.size else "?"
        unpacked = about + shared.megabytes(layer.tar_size) if layer.tar_size else "?"
        table.add_row(_RATES[layer.change.name], escape(layer.name), pulled, unpacked)
    console.print(table)
    size, budget = sum(layer.size for layer in layers), found.definition.budget_mb * MB
    largest = max(layers, key=lambda one: one.size)
    console.print(
        f"{found.name}: {shared.megabytes(size)} in {len(layers)} layers, largest {shared.megabytes(largest.size)} "
        f"({largest.name}); budget {shared.megabytes(budget)}"
        + (f", {shared.megabytes(size - budget)} over it" if size > budget else ""),
        markup=False,
    )
    console.print(
        f"a node with an empty store: {told.total_s:.0f} s at {link_gbit:g} Gbit/s "
        f"(pull {told.pull_s:.0f} s, unpack {told.unpack_s:.0f} s side by side); as one layer {told.one_layer_s:.0f} s",
        markup=False,
    )
    if told.unknown:
        console.print(f"without {', '.join(told.unknown)}, of which nothing is known yet", markup=False)


def _variants(folder: Path, as_json: bool) -> None:
    variants = load_matrix(folder)
    rows = [
        {
            "variant": one.name,
            "torch": one.torch,
            "cuda": one.cuda,
            "python": one.python,
            "locked": one.definition.wheels is not None and (folder / str(one.definition.wheels.lock)).is_file(),
            "refused": one.refused,
        }
        for one in variants
    ]
    if as_json:
        emit_json(rows)
        return
    if not rows:
        raise InputError("leaves no variant", where=str(folder / "matrix.yml"))
    wide = max(len(str(row["variant"])) for row in rows)
    for row in rows:
        state = f"REFUSED: {row['refused']}" if row["refused"] else "locked" if row["locked"] else "not locked yet"
        versions = f"torch {row['torch']}   CUDA {row['cuda']}   Python {row['python']}"
        console.print(f"{str(row['variant']).ljust(wide)}   {versions}   {state}", markup=False)
