"""`myriad monitoring render`: alert rules for Prometheus and a dashboard for Grafana."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
import yaml

from myriad.cli.output import console, emit_json
from myriad.errors import InputError
from myriad.scheduler.monitoring import dashboard, rules


def register(app: typer.Typer) -> None:
    """Add the verb."""
    verbs = typer.Typer(no_args_is_help=True, help="Alert rules and a dashboard over the extension's metrics.")

    @verbs.callback()
    def keep() -> None:
        """Alert rules and a dashboard over the extension's metrics."""

    @verbs.command()
    def render(
        out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the two files; made where it is missing.")],
        json_: Annotated[bool, typer.Option("--json", help="One JSON document: the paths of the files.")] = False,
    ) -> None:
        """Write myriad-rules.yml for Prometheus and myriad-dashboard.json for Grafana."""
        files = {
            "myriad-rules.yml": yaml.safe_dump(rules(), sort_keys=False, width=10_000),
            "myriad-dashboard.json": json.dumps(dashboard(), indent=2) + "\n",
        }
        try:
            out.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (out / name).write_text(text)
        except OSError as error:
            raise InputError(
                f"it cannot be written: {error.strerror}", where=str(error.filename or out), hint="name another folder"
            ) from error
        if json_:
            emit_json({"files": [str(out / name) for name in files]})
            return
        console.print(f"{', '.join(files)} in {out}; check the rules with `promtool check rules`", markup=False)

    app.add_typer(verbs, name="monitoring")
