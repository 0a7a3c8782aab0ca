"""`myriad restore`: the cluster's database from an archive, or from what a member that is left holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from myriad.cli._playbook import run_playbook
from myriad.cli.output import console, emit_json
from myriad.errors import InputError
from myriad.kube.backups import NEWEST, SURVIVOR
from myriad.runs import parse, result_of


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(restore)


def restore(
    archive: Annotated[
        str,
        typer.Argument(
            help=f"`{NEWEST}` of all control planes, `{SURVIVOR}` for what a member that is left holds, or a file here."
        ),
    ] = NEWEST,
    inventory: Annotated[Path, typer.Option("--inventory", "-i", help="Folder or file of the description.")] = Path(
        "inventories/lab"
    ),
    confirm: Annotated[
        str | None,
        typer.Option(help="The cluster's name; without it, what would be done is said and nothing is touched."),
    ] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="One JSON document at the end; progress goes to standard error.")
    ] = False,
) -> None:
    """Stop the control planes that are reached, put another state of the cluster in place, and say what was lost.

    Jobs that run go on. Exit code: 0 restored, 1 wrong input, 2 failed or not confirmed, 3 restored on those that were
    reached; the others join again with `myriad site --full` when they are back.
    """
    extra = {"restore_archive": archive, **({"restore_confirm": confirm} if confirm else {})}
    if archive not in (NEWEST, SURVIVOR):
        if not Path(archive).is_file():
            raise InputError("there is no such archive", where=archive, hint=f"name a file, `{NEWEST}` or `{SURVIVOR}`")
        extra["restore_archive"] = str(Path(archive).absolute())
    _code, events = run_playbook("restore", inventory=inventory, extra=extra, quiet=json_)
    run = result_of(parse(events.read_text().splitlines()))
    events.unlink()
    failures = {name: host.failures for name, host in run.hosts.items() if host.failures}
    if json_:
        emit_json(
            {
                "exit_code": run.exit_code,
                "seconds": round(run.seconds, 1),
                "failures": failures,
                "not_reached": list(run.unreachable_hosts),
            }
        )
    elif run.exit_code == 0:
        console.print(f"restored: {run.seconds:.0f} s", markup=False)
    elif run.exit_code == 3:
        away = ", ".join(run.unreachable_hosts)
        console.print(f"restored without {away}; when they are back: myriad site --full", markup=False)
    else:
        console.print("not restored; the last task says why", markup=False)
    raise typer.Exit(run.exit_code)
