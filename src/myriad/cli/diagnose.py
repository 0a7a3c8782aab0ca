"""`myriad diagnose`: stranded gangs, phantom reservations, dead and idle holders, and what else costs GPUs unseen."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from myriad.cli import _cluster as cluster
from myriad.cli.output import console, emit_json
from myriad.errors import InputError
from myriad.scheduler.diagnose import Outside, report
from myriad.scheduler.diagnose.observer import read_outside
from myriad.scheduler.diagnose.prometheus import measured_from, usage_from
from myriad.scheduler.diagnose.use import advise_job, standing

_FOUND = 4


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def diagnose(
        job: Annotated[str, typer.Argument(help="Only what concerns this job, node, pool or queue.")] = "",
        prometheus: Annotated[
            str,
            typer.Option(
                help="Address of a Prometheus with the agent's or DCGM's gauges: finds idle GPUs too, and says of JOB "
                "what slows it down."
            ),
        ] = "",
        window_s: Annotated[
            int, typer.Option("--window", min=60, help="Seconds over which idleness is judged.")
        ] = 1800,
        json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
        kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    ) -> None:
        """What is wrong with the use of GPUs now; exit code 4 where something is."""
        if prometheus and not prometheus.startswith(("http://", "https://")):
            raise InputError(f"--prometheus {prometheus} is no address", hint="write http://HOST:PORT")
        api = cluster.reach(kubeconfig)
        cache, missing = cluster.read_cluster(api)
        outside: Outside = read_outside(api)
        if prometheus:
            outside = replace(outside, usage=usage_from(prometheus, window_s))
        found = [f for f in report(cache, outside) if job in f.about]
        runs = standing(cache, job) if job and prometheus else None
        advice = None if runs is None else advise_job(cache, runs, measured_from(prometheus, runs, window_s))
        if json_:
            emit_json(
                {
                    "findings": [f.as_dict() for f in found],
                    "advice": None if advice is None else asdict(advice),
                    "not_readable": missing,
                }
            )
        elif not found:
            console.print(
                "nothing is wrong with the use of GPUs" + ("" if prometheus else " (idle GPUs: not looked at)")
            )
        else:
            table = Table(box=None, pad_edge=False, header_style="dim")
            for head in ("what", "about", "GPUs", "", "next"):
                table.add_column(head, overflow="fold", no_wrap=head in ("what", "about"))
            for f in found:
                gpus = str(f.gpus) if f.gpus else ""
                table.add_row(f.kind.replace("_", " "), f.about, gpus, escape(f.sentence), escape(f.next))
            cluster.print_table(table)
        if advice is not None and not json_:
            console.print(f"{job}: {advice.verdict.replace('_', ' ')}: {advice.sentence}", markup=False)
            if advice.next:
                console.print(f"next: {advice.next}", markup=False)
        if missing and not json_:
            console.print(f"(these credentials may not read {', '.join(missing)}: the answer may lack them)")
        if found:
            raise typer.Exit(_FOUND)
