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


def build_app(only: str | None = None) -> typer.Typer:
    """The command with its verbs registered.

    Args:
        only: import just the module of this verb, when there is one: a verb starts without paying for the others.
    """
    app = typer.Typer(
        name="myriad",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Brings a whole GPU cluster up from one description and one lock, and answers every why.",
    )
    # typer turns an app with one command into that command; the callback keeps `myriad VERB` the same with one or many.
    app.callback()(lambda: None)
    names = sorted(
        info.name
        for info in pkgutil.iter_modules(cli.__path__)
        if info.name not in _HELPERS and not info.name.startswith("_")
    )
    for name in [only] if only in names else names:
        importlib.import_module(f"myriad.cli.{name}").register(app)
    return app


def main() -> None:
    """Entry point: errors become a sentence and an exit code, never a traceback."""
    try:
        build_app(sys.argv[1] if len(sys.argv) > 1 else None)()
    except MyriadError as error:
        err_console.print(str(error), markup=False)
        sys.exit(error.exit_code)
