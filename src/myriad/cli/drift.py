"""`myriad drift`: what differs between the description and the lock, and the live nodes and objects."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from myriad.cli._playbook import check_limit, run_playbook
from myriad.cli.output import console, emit_json
from myriad.drift.report import report_of
from myriad.runs import parse


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(drift)


def drift(
    inventory: Annotated[Path, typer.Option("--inventory", "-i", help="Folder or file of the description.")] = Path(
        "inventories/lab"
    ),
    limit: Annotated[
        str | None, typer.Option("--limit", "-l", help="Only these hosts or groups; the cluster with its first host.")
    ] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="One JSON document at the end; progress goes to standard error.")
    ] = False,
) -> None:
    """Compare description and lock with every node (one task each) and with the cluster's objects. Changes nothing.

    Exit code: 0 nothing differs, 1 wrong input, 2 the look failed somewhere, 3 some hosts were not reached and the rest
    agrees, 5 something differs.
    """
    arguments = []
    if limit:
        check_limit(inventory, limit)
        arguments = ["--limit", limit]
    _code, events = run_playbook("drift", inventory=inventory, arguments=arguments, quiet=True)
    report = report_of(parse(events.read_text().splitlines()))
    events.unlink()
    if json_:
        emit_json(report.as_dict())
    else:
        for line in report.lines(str(inventory)):
            console.print(line, markup=False, soft_wrap=True)
    raise typer.Exit(report.exit_code)
