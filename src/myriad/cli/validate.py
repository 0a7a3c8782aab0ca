"""`myriad validate`: everything that is wrong with a description, before anything is touched."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from myriad.cli.output import console, emit_json
from myriad.fleet import Checked, Problem, check
from myriad.inventory import read_inventory
from myriad.roles import roles_folder, with_role_settings

InventoryOption = Annotated[
    list[Path],
    typer.Option("--inventory", "-i", help="Inventory folder or file; may be given several times.", show_default=False),
]
ALIKE = 20
"""Problems of one rule that are told for a file; a thousand hosts with one slip are no thousand lines."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def validate(inventory: InventoryOption, as_json: JsonOption = False) -> None:
        """Check the inventory: hosts, teams, quotas, variables of roles. Exit 0 when it is right, 1 when it is not."""
        started = time.monotonic()
        raw = read_inventory(*inventory)
        checked = with_role_settings(check(raw), raw, roles_folder())
        elapsed_s = time.monotonic() - started
        if as_json:
            emit_json(as_document(inventory, checked, elapsed_s))
        else:
            print_problems(checked.problems)
            console.print(verdict(checked, elapsed_s), markup=False)
        if checked.errors:
            raise typer.Exit(1)


def as_document(inventory: Sequence[Path], checked: Checked, elapsed_s: float) -> dict[str, object]:
    """What `--json` prints."""
    fleet = checked.fleet
    return {
        "inventory": [str(path) for path in inventory],
        "ok": not checked.errors,
        "errors": [problem.as_dict() for problem in checked.errors],
        "warnings": [problem.as_dict() for problem in checked.warnings],
        "summary": {
            "cluster": fleet.cluster.name,
            "hosts": len(fleet.hosts),
            "control_plane": len(fleet.control_plane),
            "gpus": fleet.gpus,
            "pools": dict(fleet.capacity),
            "teams": sorted(fleet.teams),
            "elapsed_s": round(elapsed_s, 3),
        },
    }


def print_problems(problems: Sequence[Problem], *, to: Console = console) -> None:
    """Problems grouped by file, subjects in a column.

    Args:
        problems: what is told.
        to: standard error where a verb ends by them, so that --json leaves one document on standard output.
    """
    by_file: dict[str, list[Problem]] = {}
    for problem in problems:
        by_file.setdefault(problem.origin.file if problem.origin else "", []).append(problem)
    for file, members in by_file.items():
        to.print(file or "the description as a whole", markup=False)
        width = min(44, max(len(problem.subject) for problem in members))
        of_rule: Counter[str] = Counter()
        for problem in members:
            of_rule[problem.rule] += 1
            if of_rule[problem.rule] > ALIKE:
                continue
            line = f"  line {problem.origin.line}" if problem.origin and problem.origin.line else ""
            mark = "warning: " if problem.severity == "warning" else ""
            shown_line = "" if problem.subject.startswith("line ") else line
            to.print(f"  {problem.subject:<{width}}  {mark}{problem.message}{_place(shown_line)}", markup=False)
        for rule, count in of_rule.items():
            if count > ALIKE:
                to.print(f"  and {count - ALIKE:,} more of that kind ({rule}); --json has them all", markup=False)


def _place(line: str) -> str:
    return f"  ({line.strip()})" if line else ""


def verdict(checked: Checked, elapsed_s: float) -> str:
    """The last line: counts of what is wrong, or what was found right."""
    wrong, doubtful = len(checked.errors), len(checked.warnings)
    tail = f", {doubtful} warning{_s(doubtful)}" if doubtful else ""
    if wrong:
        rest = "" if checked.complete else " What depends on the unread part was not checked."
        return f"{wrong} error{_s(wrong)}{tail}, nothing was touched.{rest}"
    fleet = checked.fleet
    pools = ", ".join(f"{name} {gpus:,}" for name, gpus in fleet.capacity.items())
    nodes = sum(1 for host in fleet.hosts.values() if host.pool)
    return (
        f"{fleet.cluster.name}: {len(fleet.control_plane)} control plane{_s(len(fleet.control_plane))}, "
        f"{nodes:,} GPU node{_s(nodes)}, {fleet.gpus:,} GPUs in {len(fleet.capacity)} pool{_s(len(fleet.capacity))} "
        f"({pools}), "
        f"{len(fleet.teams)} team{_s(len(fleet.teams))}: valid{tail} ({elapsed_s:.1f} s)"
    )


def _s(count: int) -> str:
    return "" if count == 1 else "s"
