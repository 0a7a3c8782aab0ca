"""The `myriad` command: one small module a verb, found here and registered once."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import NoReturn

import typer

from myriad import cli
from myriad.cli.output import emit_json, err_console
from myriad.errors import InputError, MyriadError

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
    """Entry point: errors become a sentence and an exit code, never a traceback; with --json a document too."""
    # typer ends with 2 where a flag is wrong, which means "failed" here (docs/operations.md).
    usage_error = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")
    usage_error.exit_code = InputError.exit_code  # type: ignore[attr-defined]
    try:
        build_app(sys.argv[1] if len(sys.argv) > 1 else None)()
    except MyriadError as error:
        _end(error)
    except OSError as error:
        if error.filename is None:
            raise
        # A disk that is full, a folder that may not be read: no fault of the program.
        _end(MyriadError(error.strerror or type(error).__name__, where=str(error.filename)))


def _end(error: MyriadError) -> NoReturn:
    if "--json" in sys.argv[1:]:
        emit_json({"exit_code": error.exit_code, "error": error.message, "where": error.where, "next": error.hint})
    err_console.print(str(error), markup=False)
    sys.exit(error.exit_code)
