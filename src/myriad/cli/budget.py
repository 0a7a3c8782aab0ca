"""`myriad budget`: GPU-hours that are left, and corrections of what was charged."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from myriad.cli import _cluster as cluster
from myriad.cli._ledger import ask, hours
from myriad.cli.output import console, emit_json

Json = dict[str, Any]

_STATES = {"ok": "", "short": "short", "used_up": "used up"}


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    budget = typer.Typer(no_args_is_help=True, help="GPU-hours that are left, and corrections of what was charged.")
    app.add_typer(budget, name="budget")
    budget.command()(show)


def show(
    team: Annotated[str, typer.Argument(help="Only this team.")] = "",
    json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
) -> None:
    """Every budget in its current period: used, left, until when, and what is held because of it."""
    found = ask(cluster.reach(kubeconfig), "/v1/budgets", {"team": team})
    if json_:
        emit_json(found)
        return
    rows = found["budgets"]
    if not rows:
        who = f"team {team} has" if team else "these credentials see"
        console.print(f"{who} no budget (`gpu_hours` of a team in the inventory makes one)", markup=False)
    else:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for head in ("team", "project", "pool", "period", "budget", "used", "left", "until", ""):
            table.add_column(head, justify="right" if head in ("budget", "used", "left") else "left", no_wrap=True)
        for row in rows:
            cells = [row["team"], row["project"], row["pool"], row["period_name"]]
            cells += [hours(row[name]) for name in ("budget_h", "used_h", "left_h")]
            held = f", holds {', '.join(row['held'])}" if row["held"] else ""
            cells += [row["period_end"][:10], _STATES[row["state"]] + held]
            table.add_row(*(escape(cell) for cell in cells))
        cluster.print_table(table)
        for row in rows:
            if row["sentence"]:
                console.print(f"  {row['sentence']}", markup=False)
    if found["others"]:
        console.print(f"({found['others']} budgets of other teams are not shown)", markup=False)
    ledger = found["ledger"]
    if ledger.get("queued") or ledger.get("error"):
        console.print(
            f"the ledger is {ledger['lag_s']:.0f} s behind ({ledger['queued']} facts wait"
            f"{': ' + ledger['error'] if ledger.get('error') else ''})",
            markup=False,
        )
