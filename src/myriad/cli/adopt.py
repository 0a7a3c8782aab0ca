"""`myriad adopt`: a running cluster as a description. Touches nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from myriad.cli.output import console, emit_json
from myriad.cli.validate import JsonOption
from myriad.errors import InputError
from myriad.fleet import Checked, names
from myriad.kube.client import connect
from myriad.onboard.live import adopt as describe_live
from myriad.onboard.live import read_live
from myriad.onboard.live_nodes import Gap
from myriad.onboard.write import refuse_existing, write


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def adopt(
        kubeconfig: Annotated[Path, typer.Option(help="Kubeconfig of the cluster; reading rights are enough.")],
        out: Annotated[Path, typer.Option("--out", help="Folder to write; it must not exist.")],
        name: Annotated[str, typer.Option(help="The cluster's name; the folder's without it.")] = "",
        as_json: JsonOption = False,
    ) -> None:
        """Write the inventory that describes a cluster as it runs, and name what it has no word for."""
        refuse_existing(out)
        chosen = name or out.name.lower()
        fault = names.dns_label_fault(chosen)
        if fault is not None:
            raise InputError(fault, where="--name", hint="give --name one that Kubernetes takes")
        with contextlib.closing(connect(kubeconfig, in_cluster=False)) as api:
            live = read_live(api)
        made = describe_live(live, name=chosen, kubeconfig=str(kubeconfig.absolute()))
        if not made.gpus:
            raise InputError(
                "no node with GPUs can be described; nothing was written\n" + _lines(made.gaps),
                where=live.address,
                hint="a node needs the label nvidia.com/gpu.product (GPU feature discovery) or myriad.dev/gpu-model",
            )
        checked = write(made.description, out)
        if as_json:
            emit_json(
                {
                    "out": str(out),
                    "hosts": made.hosts,
                    "gpus": made.gpus,
                    "pools": dict(made.pools),
                    "teams": list(made.teams),
                    "not_described": [{"subject": gap.subject, "what": gap.what} for gap in made.gaps],
                    "warnings": [problem.as_dict() for problem in checked.warnings],
                    "next": next_commands(out, kubeconfig),
                }
            )
            return
        _show(out, kubeconfig, made.gaps, checked)


def _show(out: Path, kubeconfig: Path, gaps: Sequence[Gap], checked: Checked) -> None:
    if gaps:
        console.print("not described, or described otherwise", markup=False)
        console.print(_lines(gaps), markup=False)
    for problem in checked.warnings:
        console.print(f"warning  {problem.subject} {problem.message}", markup=False)
    fleet = checked.fleet
    pools = ", ".join(f"{name} {gpus:,}" for name, gpus in fleet.capacity.items())
    console.print(
        f"{out}: {len(fleet.hosts):,} hosts, {fleet.gpus:,} GPUs ({pools}), {len(fleet.teams)} "
        f"team{'' if len(fleet.teams) == 1 else 's'}; valid. Nothing was changed in the cluster.",
        markup=False,
    )
    console.print("next", markup=False)
    for line in next_commands(out, kubeconfig):
        console.print(f"  {line}", markup=False)


def _lines(gaps: Sequence[Gap]) -> str:
    width = min(44, max((len(gap.subject) for gap in gaps), default=0))
    return "\n".join(f"  {gap.subject:<{width}}  {gap.what}" for gap in gaps)


def next_commands(out: Path, kubeconfig: Path) -> list[str]:
    """What to do with the folder, in order."""
    return [
        f"myriad validate -i {out}",
        f"myriad policy diff -i {out} --kubeconfig {kubeconfig}    # what applying it would change",
        f"myriad policy preview -i {out} --kubeconfig {kubeconfig}    # whom its quotas would preempt",
        f"KUBECONFIG={kubeconfig} myriad status    # then `myriad why JOB`, `myriad fit`: they only read",
    ]
