"""`myriad report`: GPU-hours of a period by team: used, borrowed, lent, waited, effective, recomputed, idle."""

from __future__ import annotations

import csv
import sys
from contextlib import closing
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from myriad.cli import _cluster as cluster
from myriad.cli._ledger import ask, hours
from myriad.cli.output import console, emit_json
from myriad.errors import InputError
from myriad.scheduler.words import duration

Json = dict[str, Any]

_BY = ("project", "owner", "namespace", "job")
_COLUMNS = {
    "used": "used_h",
    "borrowed": "borrowed_h",
    "lent": "lent_h",
    "own unused": "unused_h",
    "waited": "waited_h",
    "effective": "effective_h",
    "recomputed": "recomputed_h",
    "lost": "lost_h",
    "idle": "idle_h",
}
_DETAILS = {"used": "used_h", "waited": "waited_h", "effective": "effective_h", "recomputed": "recomputed_h"}


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def report(
        team: Annotated[str, typer.Option("--team", help="Only this team.")] = "",
        month: Annotated[str, typer.Option("--month", help="As 2026-11; the current one without it.")] = "",
        period: Annotated[
            str, typer.Option("--period", help="Another period: 2026, 2026-Q4, 2026-W49 or 2026-11-30.")
        ] = "",
        by: Annotated[str, typer.Option("--by", help="Break it down: project, owner, namespace or job.")] = "",
        prometheus: Annotated[
            str, typer.Option(help="Address of a Prometheus with DCGM's gauges by pod: tells idle GPU-hours too.")
        ] = "",
        as_csv: Annotated[bool, typer.Option("--csv", help="One line a team and pool, for a spreadsheet.")] = False,
        json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
        kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    ) -> None:
        """GPU-hours of a period by team and pool, from the ledger."""
        if month and period:
            raise InputError("--month and --period are one or the other")
        if month and len(month) != len("2026-11"):
            raise InputError(f'"{month}" is no month', hint="write 2026-11; --period takes other periods")
        if by and by not in _BY:
            raise InputError(f'"{by}" is nothing to break a report down by', hint=f"one of {', '.join(_BY)}")
        with closing(cluster.reach(kubeconfig)) as api:
            found = ask(api, "/v1/report", {"team": team, "period": month or period, "by": by})
            if prometheus:
                from myriad.cli._idle import add_idle

                add_idle(api, found, prometheus)
        if json_:
            emit_json(found)
        elif as_csv:
            _csv(found)
        else:
            _show(found, team)


def _csv(found: Json) -> None:
    rows = found["details"] or found["rows"]
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(sys.stdout, ["period", *names], lineterminator="\n")
    writer.writeheader()
    writer.writerows({"period": found["period"], **row} for row in rows)


def _show(found: Json, team: str) -> None:
    so_far = "" if found["until"] == found["end"] else f", until {found['until'][:16].replace('T', ' ')}"
    console.print(f"GPU-hours of {found['period']}{so_far}", markup=False)
    if not found["rows"]:
        who = f"team {team}" if team else "any team that these credentials may see"
        console.print(f"the ledger has nothing of {who} in that period", markup=False)
        return
    measured = any("idle_h" in row for row in found["rows"])
    columns = {head: name for head, name in _COLUMNS.items() if name != "idle_h" or measured}
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in ("team", "pool", "jobs", "charged", *columns, "median wait"):
        table.add_column(head, justify="left" if head in ("team", "pool") else "right", no_wrap=True)
    for row in found["rows"]:
        wait = "" if row["wait_median_s"] is None else duration(row["wait_median_s"])
        cells = [row["team"] or "(no team)", row["pool"], str(row["jobs"]), hours(row["charged_h"])]
        cells += [hours(row.get(name)) for name in columns.values()]
        table.add_row(*(escape(cell) for cell in [*cells, wait]))
    cluster.print_table(table)
    if found["details"]:
        _show_details(found)
    for correction in found["corrections"]:
        console.print(
            f"corrected {correction['at'][:10]} {correction['team']} {correction['pool']}"
            f"{' project ' + correction['project'] if correction['project'] else ''}: {correction['hours']:+,g} h by "
            f"{correction['who']}: {correction['why']}",
            markup=False,
        )
    for row in found["rows"]:
        if row["estimated_h"]:
            console.print(
                f"{row['team']} {row['pool']}: {hours(row['estimated_h'])} of these hours end at a time that nobody "
                "saw and that is estimated",
                markup=False,
            )
    if found["others"]["teams"]:
        console.print(
            f"({found['others']['teams']} other teams used {hours(found['others']['used_h'])} GPU-hours)", markup=False
        )
    if not measured:
        console.print("(idle GPUs: not looked at; --prometheus URL measures them)", markup=False)


def _show_details(found: Json) -> None:
    console.print(f"\nby {found['by']}", markup=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in (found["by"], "team", "pool", "jobs", *_DETAILS):
        left = head in (found["by"], "team", "pool")
        table.add_column(head, justify="left" if left else "right", no_wrap=True)
    for row in sorted(found["details"], key=lambda r: -r["used_h"]):
        cells = [row["name"] or f"(no {found['by']})", row["team"], row["pool"], str(row["jobs"])]
        table.add_row(*(escape(cell) for cell in [*cells, *(hours(row[name]) for name in _DETAILS.values())]))
    cluster.print_table(table)
