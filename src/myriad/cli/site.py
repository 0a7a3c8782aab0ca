"""`myriad site` and `myriad reset`: the playbooks as verbs, with Myriad's exit codes and a verdict at the end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from myriad.cli._playbook import check_limit, run_playbook
from myriad.cli.output import console, emit_json
from myriad.runs import RunResult, parse, result_of

InventoryOption = Annotated[Path, typer.Option("--inventory", "-i", help="Folder or file of the description.")]
LimitOption = Annotated[str | None, typer.Option("--limit", "-l", help="Only these hosts or groups.")]
CheckOption = Annotated[bool, typer.Option("--check", help="Say what would change, change nothing.")]
DiffOption = Annotated[bool, typer.Option("--diff", help="Show each change.")]
JsonOption = Annotated[
    bool, typer.Option("--json", help="One JSON document at the end; progress goes to standard error.")
]
KubeconfigOption = Annotated[str | None, typer.Option(help="Kubeconfig for the verdict; $KUBECONFIG without it.")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(site)


def site(
    context: typer.Context,
    inventory: InventoryOption = Path("inventories/lab"),
    limit: LimitOption = None,
    check: CheckOption = False,
    diff: DiffOption = False,
    full: Annotated[bool, typer.Option("--full", help="Look at every host, converged or not.")] = False,
    json_: JsonOption = False,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Bring a site to what the description says. Further arguments go to ansible-playbook as they are.

    Exit code: 0 converged, 1 wrong input, 2 failed, 3 some hosts unreachable and the rest converged, 4 converged but
    some nodes take no work.
    """
    arguments = [*(["--check"] if check else []), *(["--diff"] if diff else []), *context.args]
    if limit:
        check_limit(inventory, limit)
        arguments += ["--limit", limit]
    _code, events = run_playbook(
        "site", inventory=inventory, arguments=arguments, extra={"site_full": "true"} if full else {}, quiet=json_
    )
    run = result_of(parse(events.read_text().splitlines()))
    events.unlink()
    closed = [] if check or run.exit_code else _closed_gates(kubeconfig)
    code = run.exit_code or (4 if closed else 0)
    if json_:
        emit_json(_document(run, code, closed))
    else:
        from myriad.cli.status import trouble

        for node in closed:
            console.print(f"{node['node']}  takes no work: {trouble(node)}", markup=False)
        console.print(_sentence(run, code, closed), markup=False)
    raise typer.Exit(code)


def _closed_gates(kubeconfig: str | None) -> list[dict[str, Any]]:
    """Nodes of the cluster that take no work; empty where no kubeconfig was named (the playbook has its own)."""
    if not kubeconfig and not os.environ.get("KUBECONFIG"):
        return []
    from myriad.cli import _cluster as cluster
    from myriad.scheduler.inquiry import status_report

    cache, _missing = cluster.read_cluster(cluster.reach(kubeconfig))
    return [node for node in status_report(cache)["nodes"] if not node["takes_work"]]


def _document(run: RunResult, code: int, closed: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "exit_code": code,
        "seconds": round(run.seconds, 1),
        "plays": {name: round(seconds, 1) for name, seconds in run.play_seconds.items()},
        "hosts": {
            host.name: {
                "ok": host.ok,
                "tasks": host.tasks,
                "changed": [{"role": role, "task": task} for role, task in host.changed],
                "failures": [{"role": role, "task": task, "message": text} for role, task, text in host.failures],
                "unreachable": host.unreachable,
                "reboot_required": host.reboot,
            }
            for host in run.hosts.values()
        },
        "nodes_without_work": closed,
    }


def _sentence(run: RunResult, code: int, closed: list[dict[str, Any]]) -> str:
    if code == 2:
        return f"site failed on {', '.join(run.failed_hosts) or 'its way'} after {run.seconds:.0f} s"
    if code == 3:
        return f"site converged but for {', '.join(run.unreachable_hosts)}, not reached: {run.seconds:.0f} s"
    if code == 4:
        return f"site converged, {len(closed)} nodes take no work: {run.seconds:.0f} s"
    if run.is_check:
        return f"{run.changed_count} changes predicted: {run.seconds:.0f} s"
    return f"site ready, {run.changed_count or 'nothing'} changed: {run.seconds:.0f} s"
