"""The `myriad` command: one small module a verb, found here and registered once."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import typer

from myriad import cli
from myriad.cli.output import err_console
from myriad.errors import MyriadError

_HELPERS = {"output"}


def build_app() -> typer.Typer:
    """The command with every verb of this package registered."""
    app = typer.Typer(
        name="myriad",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Brings a whole GPU cluster up from one description and one lock, and answers every why.",
    )
    for info in sorted(pkgutil.iter_modules(cli.__path__), key=lambda module: module.name):
        if info.name in _HELPERS or info.name.startswith("_"):
            continue
        importlib.import_module(f"myriad.cli.{info.name}").register(app)
    return app


def main() -> None:
    """Entry point: errors become a sentence and an exit code, never a traceback."""
    try:
        build_app()()
    except MyriadError as error:
        err_console.print(str(error), markup=False)
        sys.exit(error.exit_code)
