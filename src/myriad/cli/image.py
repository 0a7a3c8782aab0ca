"""`myriad image`: what images are, whether they run on the fleet, and how they are made. A registry of its subcommands.

Each subcommand is a module `_image_<name>` beside this one with `add(app)`; it is found here by its name.
"""

from __future__ import annotations

import importlib
import pkgutil

import typer

from myriad import cli

_PREFIX = "_image_"


def register(app: typer.Typer) -> None:
    """Add the group with its subcommands."""
    image = typer.Typer(no_args_is_help=True, help="Images: whether they run on the fleet, and how they are made.")
    app.add_typer(image, name="image")

    @image.callback()
    def group() -> None:
        """Images: whether they run on the fleet, and how they are made."""

    for name in sorted(info.name for info in pkgutil.iter_modules(cli.__path__) if info.name.startswith(_PREFIX)):
        module = importlib.import_module(f"myriad.cli.{name}")
        if hasattr(module, "add"):
            module.add(image)
