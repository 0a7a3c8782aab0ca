"""`myriad backup`: an archive of the cluster's database and keys now, and a copy on this controller."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from myriad.cli._playbook import run_playbook
from myriad.cli.output import console, emit_json
from myriad.runs import parse, result_of


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(backup)


def backup(
    inventory: Annotated[Path, typer.Option("--inventory", "-i", help="Folder or file of the description.")] = Path(
        "inventories/lab"
    ),
    to: Annotated[Path | None, typer.Option(help="Folder on this controller for the copy.")] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="One JSON document at the end; progress goes to standard error.")
    ] = False,
) -> None:
    """Take an archive on every control plane that is reached, copy it off the hosts as described, and one to here.

    Exit code: 0 all have one, 2 one failed or a copy did, 3 a control plane was not reached; the others have one.
    """
    extra = {"site_backup_folder": str(to.absolute())} if to else {}
    _code, events = run_playbook("backup", inventory=inventory, extra=extra, quiet=json_)
    run = result_of(parse(events.read_text().splitlines()))
    events.unlink()
    failures = {name: host.failures for name, host in run.hosts.items() if host.failures}
    if json_:
        emit_json({"exit_code": run.exit_code, "seconds": round(run.seconds, 1), "failures": failures})
    elif run.exit_code:
        missing = ", ".join([*run.failed_hosts, *run.unreachable_hosts])
        console.print(f"no archive, or no copy of it, from {missing}", markup=False)
    else:
        console.print(f"backed up: {run.seconds:.0f} s", markup=False)
    raise typer.Exit(run.exit_code)
