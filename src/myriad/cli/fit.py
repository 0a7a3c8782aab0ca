"""`myriad fit`: what fits now, tier by tier; with --nodes and --gpus, where a gang would go or who is in its way."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from myriad.cli import _cluster as cluster
from myriad.cli._scope import own_namespace, read_what_is_allowed
from myriad.cli.output import console, emit_json
from myriad.errors import InputError
from myriad.scheduler.inquiry import PLACEMENT
from myriad.scheduler.whatif import fit_report, fragmentation_report

Json = dict[str, Any]

NOW, NEVER, NOT_NOW = 0, 1, 4


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def fit(
        nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Pods of the gang, one a node.")] = None,
        gpus: Annotated[int | None, typer.Option("--gpus", min=1, help="GPUs of each pod.")] = None,
        pool: Annotated[str, typer.Option("--pool", help="Pool; may be left out where there is one.")] = "",
        team: Annotated[str, typer.Option("--team", help="Whose quota is asked too.")] = "",
        level: Annotated[str, typer.Option("--level", help="Level that all pods must share: rack, block, ...")] = "",
        priority: Annotated[
            int | None, typer.Option("--priority", help="Ask nobody of a higher priority to leave.")
        ] = None,
        json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
        kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    ) -> None:
        """Where a gang would go, who would have to leave, or whose end makes room. Nothing is changed.

        Exit code 0: it fits now (or only a view was asked for), 4: not now, 1: never.
        """
        if (nodes is None) != (gpus is None):
            raise InputError("--nodes and --gpus go together", hint="myriad fit --nodes 64 --gpus 8")
        alone = [name for name, given in (("--team", team), ("--level", level), ("--priority", priority)) if given]
        if nodes is None and alone:
            raise InputError(f"{', '.join(alone)} needs a gang", hint="add --nodes and --gpus")
        cache, missing = read_what_is_allowed(cluster.reach(kubeconfig), own_namespace(kubeconfig))
        if PLACEMENT in missing or "nodes" in missing:
            raise InputError(
                "these credentials may not read all nodes and pods, so what is free is not known",
                hint="the page and `myriad why JOB` answer for your own namespace; cluster viewers may ask this",
            )
        if nodes is None or gpus is None:
            report = fragmentation_report(cache, pool)
            emit_json(report) if json_ else _show_view(report)
            return
        report = fit_report(
            cache, nodes=nodes, gpus=gpus, pool=pool, team=team, level=level, priority=priority, missing=missing
        )
        emit_json(report) if json_ else _show(report)
        raise typer.Exit({"now": NOW, "never": NEVER}.get(report["fits"], NOT_NOW))


def _show_view(report: Json) -> None:
    for pool in report["pools"]:
        held = f", {pool['free_on_nodes_out_of_work']} more on nodes that take no work" if (
            pool["free_on_nodes_out_of_work"]
        ) else ""  # fmt: skip
        console.print(
            f"pool {pool['pool']}: {pool['free_gpus']} of {pool['gpus']} GPUs free, {pool['stranded_gpus']} of them "
            f"stranded on nodes that are partly used{held}",
            markup=False,
        )
        for row in pool["largest_gang"]:
            size = f"{row['whole_nodes']} whole nodes, {row['gpus']} GPUs" if row["tier"] != "node" else (
                f"{row['gpus']} GPUs"
            )  # fmt: skip
            where = f"   {row['place']}" if row["gpus"] and row["tier"] != "cluster" else ""
            console.print(f"  largest gang in one {row['tier']:<8}{size}{where}", markup=False)
    if not report["pools"]:
        console.print("the cluster has no pool with GPUs yet")


def _show(report: Json) -> None:
    about = f"{report['nodes']} x {report['gpus_per_node']} GPUs in pool {report['pool']}"
    console.print(f"{about}{' in one ' + report['level'] if report['level'] else ''}", markup=False)
    console.print(f"  placement   {report['sentence']}", markup=False)
    for line in report.get("details") or []:
        console.print(f"              {line}", markup=False)
    if report["quota"]:
        console.print(f"  quota       {report['quota']['sentence']}", markup=False)
    for name, heading in (("leave", "or leave"), ("after", "or after")):
        found = report[name]
        if found:
            console.print(f"  {heading:<12}{found['sentence']} (then in {found['place']})", markup=False)
    for text in report.get("unblocks") or []:
        console.print(f"  {'unblocks':<12}{text}", markup=False)
