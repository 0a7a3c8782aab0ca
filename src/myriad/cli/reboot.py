"""`myriad reboot`: the nodes that need one, drained first, batch by batch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from myriad.cli._playbook import check_limit, run_playbook
from myriad.cli.output import console, emit_json
from myriad.errors import InputError
from myriad.runs import RunResult, parse, result_of


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(reboot)


def reboot(
    nodes: Annotated[list[str] | None, typer.Argument(help="Hosts or groups; all of them without any.")] = None,
    inventory: Annotated[Path, typer.Option("--inventory", "-i", help="Folder or file of the description.")] = Path(
        "inventories/lab"
    ),
    force: Annotated[bool, typer.Option("--force", help="Also those that need no reboot.")] = False,
    batch: Annotated[int | None, typer.Option(min=1, help="Nodes that are away at a time, at most.")] = None,
    per_rack: Annotated[int | None, typer.Option(min=1, help="Of one rack, at most.")] = None,
    gangs: Annotated[
        str | None, typer.Option(help="Nodes that share a running gang: together, wait (leave them) or apart.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Print the plan and what stands in its way; touch nothing.")
    ] = False,
    give_back: Annotated[
        bool, typer.Option("--give-back", help="Reboot nothing: open the named nodes that a reboot left closed.")
    ] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="One JSON document at the end; progress goes to standard error.")
    ] = False,
    kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig for --give-back; $KUBECONFIG without it.")] = None,
) -> None:
    """Reboot the nodes that need it: drain, reboot, wait for kubelet and gate, give back; one batch after another.

    Exit code: 0 all are back, 1 wrong input, 2 failed (blocked evictions too; the nodes are as they were),
    3 a node did not come back: it is left closed with the reason, and no further batch was begun.
    """
    if give_back:
        _give_back(nodes or [], kubeconfig)
        return
    if gangs is not None and gangs not in ("together", "wait", "apart"):
        raise InputError(f'--gangs is "{gangs}"; allowed: together, wait or apart')
    if nodes:
        check_limit(inventory, ",".join(nodes))
    extra = {"reboot_force": "true"} if force else {}
    for name, value in (("reboot_batch", batch), ("reboot_per_rack", per_rack), ("reboot_gangs", gangs)):
        if value is not None:
            extra[name] = str(value)
    arguments = [*(["--check"] if check else []), *(["--limit", ",".join(nodes)] if nodes else [])]
    _code, events = run_playbook("reboot", inventory=inventory, arguments=arguments, extra=extra, quiet=json_)
    run = result_of(parse(events.read_text().splitlines()))
    events.unlink()
    back = sorted({name for name, host in run.hosts.items() if any("Reboot" in task for _, task in host.changed)})
    if json_:
        emit_json(
            {
                "exit_code": run.exit_code,
                "seconds": round(run.seconds, 1),
                "is_check": run.is_check,
                "rebooted": back,
                "failures": {name: host.failures for name, host in run.hosts.items() if host.failures},
                "not_back": {name: run.hosts[name].unreachable for name in run.unreachable_hosts},
            }
        )
    else:
        console.print(_sentence(run, back), markup=False)
    raise typer.Exit(run.exit_code)


def _sentence(run: RunResult, back: list[str]) -> str:
    many = "1 node" if len(back) == 1 else f"{len(back)} nodes"
    if run.is_check and not run.exit_code:
        return f"{many} would be rebooted"
    if run.exit_code == 2:
        failed = ", ".join(run.failed_hosts) or "its way"
        return f"reboot failed on {failed}, {many} rebooted before: {run.seconds:.0f} s"
    if run.exit_code == 3:
        return f"not back: {', '.join(run.unreachable_hosts)}; {many} rebooted and back at work: {run.seconds:.0f} s"
    return f"{many} rebooted and back at work: {run.seconds:.0f} s" if back else "no node needed a reboot"


def _give_back(nodes: list[str], kubeconfig: str | None) -> None:
    from myriad.cli import _cluster as cluster
    from myriad.kube.drain import patch_node
    from myriad.kube.reboot import given_back

    if not nodes:
        raise InputError("--give-back opens nodes that are named", hint="name them: `myriad reboot --give-back gpu7`")
    api = cluster.reach(kubeconfig)
    for name in nodes:
        changed = patch_node(api, name, given_back)
        console.print(f"{name}  {'given back as it was found' if changed else 'no reboot holds it'}", markup=False)
