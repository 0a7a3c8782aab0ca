"""`myriad ledger dump|load`: the ledger of GPU-hours in a file, whatever database keeps it, and back again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from myriad.cli.output import console, emit_json
from myriad.errors import InputError

UrlOption = Annotated[str | None, typer.Option("--url", help="The database; $MYRIAD_SCHEDULER_LEDGER_URL without it.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    ledger = typer.Typer(no_args_is_help=True, help="The ledger of GPU-hours: kept in a file, and brought back.")
    ledger.command("dump")(dump)
    ledger.command("load")(load)
    app.add_typer(ledger, name="ledger")


def dump(
    out: Annotated[Path, typer.Argument(help="The file.")], url: UrlOption = None, json_: JsonOption = False
) -> None:
    """Write every row of the ledger, as of one moment. The database is only read."""
    from myriad.scheduler.ledger.archive import dump as lines_of

    part = out.with_name(f".{out.name}.part")
    count = -2  # the first line and the last are no rows
    with part.open("w") as file:
        for line in lines_of(_url(url)):
            file.write(line + "\n")
            count += 1
    part.chmod(0o600)
    part.replace(out)
    emit_json({"rows": count, "file": str(out)}) if json_ else console.print(f"{count} rows in {out}", markup=False)


def load(
    file: Annotated[Path, typer.Argument(help="A file that `myriad ledger dump` wrote.")],
    url: UrlOption = None,
    json_: JsonOption = False,
) -> None:
    """Fill an empty database from a dump: all of it, or nothing."""
    from myriad.scheduler.ledger.archive import load as filled

    if not file.is_file():
        raise InputError("there is no such dump", where=str(file))
    with file.open() as lines:
        count = filled(_url(url), lines)
    emit_json({"rows": count}) if json_ else console.print(f"{count} rows", markup=False)


def _url(given: str | None) -> str:
    url = given or os.environ.get("MYRIAD_SCHEDULER_LEDGER_URL", "")
    if not url:
        raise InputError(
            "no database is named", hint="--url postgresql://USER:PASSWORD@HOST/DATABASE or sqlite:////path/ledger.db"
        )
    return url
