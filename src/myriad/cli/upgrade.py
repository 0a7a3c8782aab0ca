"""`myriad upgrade plan|run|rollback`: from what runs to what the lock names, node by node, and the way back."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from myriad.cli._playbook import check_limit, run_playbook
from myriad.cli.output import console, emit_json
from myriad.errors import InputError
from myriad.runs import RunResult, parse, result_of

InventoryOption = Annotated[Path, typer.Option("--inventory", "-i", help="Folder or file of the description.")]
LimitOption = Annotated[str | None, typer.Option("--limit", "-l", help="Only these hosts or groups.")]
BatchOption = Annotated[int | None, typer.Option(min=1, help="Nodes that are away at a time, at most.")]
RackOption = Annotated[int | None, typer.Option(min=1, help="Of one rack, at most.")]
JobsOption = Annotated[
    str, typer.Option(help="Jobs that hold GPUs: wait for them, ask them to checkpoint and go, or leave their nodes.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="One JSON document at the end; progress goes to standard error.")
]
POLICIES = ("wait", "checkpoint", "leave")
# Between two looks whether a job that is waited for has ended.
_AGAIN_S = 30.0


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    upgrade = typer.Typer(no_args_is_help=True, help="Upgrades: the plan, the run, the way back.")
    app.add_typer(upgrade, name="upgrade")
    upgrade.command("plan")(plan)
    upgrade.command("run")(run)
    upgrade.command("rollback")(rollback)


def plan(
    inventory: InventoryOption = Path("inventories/lab"),
    limit: LimitOption = None,
    batch: BatchOption = None,
    per_rack: RackOption = None,
    jobs: JobsOption = "wait",
    json_: JsonOption = False,
) -> None:
    """Say what would become another on which node, in which order, and what stands in the way. Touches nothing.

    Exit code: 0 it may begin, 1 wrong input or refused (versions, the control plane), 2 the look failed, 3 hosts were
    not reached, 4 it may begin and some nodes would be left.
    """
    extra = {**_extra(batch, per_rack, jobs), "upgrade_plan_only": "true"}
    result, found = _once(inventory, _limited(inventory, limit), extra, check=True, quiet=True)
    text = str(found.pop("plan", ""))
    refused = bool(found.get("refusals"))
    code = result.exit_code or (1 if refused else 4 if found.get("left") else 0)
    if json_:
        emit_json(
            {
                "exit_code": code,
                "seconds": round(result.seconds, 1),
                **found,
                "failures": _failures(result),
                "unreachable": _unreachable(result),
            }
        )
    else:
        console.print(_told(result, text), markup=False, soft_wrap=True)
    raise typer.Exit(code)


def run(
    inventory: InventoryOption = Path("inventories/lab"),
    limit: LimitOption = None,
    batch: BatchOption = None,
    per_rack: RackOption = None,
    jobs: JobsOption = "wait",
    wait_s: Annotated[
        int, typer.Option(min=0, help="Seconds to wait for jobs to end, their nodes closed to new ones meanwhile.")
    ] = 0,
    failures: Annotated[int, typer.Option(min=0, help="Nodes that may fail before no further wave begins.")] = 0,
    site: Annotated[
        bool, typer.Option("--site/--no-site", help="End with a site run: the cluster's programs, and the record.")
    ] = True,
    json_: JsonOption = False,
) -> None:
    """Upgrade control planes one by one, then nodes in waves, each drained, done, proven, given back; then a site run.

    A run that was killed is gone on with by the same command. Exit code: 0 everything is at the lock, 1 wrong input,
    2 failed (what was drained and not changed is as it was), 3 a node did not come back: it stays closed with the
    reason, 4 done, and some nodes were left with the reason.
    """
    arguments = _limited(inventory, limit)
    extra = {**_extra(batch, per_rack, jobs), "upgrade_failures": str(failures)}
    until = time.monotonic() + wait_s if jobs == "wait" else 0.0
    while True:
        is_waiting = time.monotonic() < until
        hold = {"upgrade_hold": "true"} if is_waiting else {}
        result, found = _once(inventory, arguments, {**extra, **hold}, quiet=json_)
        found.pop("plan", None)
        left = dict(found.get("left") or {})
        waited_for = [name for name, reason in left.items() if reason.startswith("the job ")]
        if result.exit_code or not (is_waiting and waited_for):
            break
        console.print(f"waiting for jobs on {', '.join(waited_for)}", markup=False) if not json_ else None
        time.sleep(min(_AGAIN_S, max(1.0, until - time.monotonic())))
    code, rest = result.exit_code, None
    if not code:
        rest = _site(inventory, limit, sorted(left), quiet=json_) if site else None
        code = (rest.exit_code if rest else 0) or (4 if left else 0)
    if json_:
        document = {
            "exit_code": code,
            "seconds": round(result.seconds + (rest.seconds if rest else 0.0), 1),
            **found,
            "failures": _failures(result) | (_failures(rest) if rest else {}),
            "not_back": _unreachable(result),
        }
        emit_json(document)
    else:
        console.print(_sentence(result, rest, found, code), markup=False, soft_wrap=True)
    raise typer.Exit(code)


def rollback(
    what: Annotated[str, typer.Argument(help="kueue, extension or volcano.")],
    kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    kept: Annotated[
        Path | None, typer.Option("--file", help="What was kept; by default the newest beside the kubeconfig.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Say what would change, change nothing.")] = False,
    json_: JsonOption = False,
) -> None:
    """Bring Kueue, the extension or Volcano back to what was applied before the last upgrade.

    The next site run applies what the lock says, so set the lock back too. Kubernetes itself has no way back: restore a
    backup for that.
    """
    from myriad.cli import _cluster as cluster
    from myriad.upgrade.rollback import SETS, back, newest_kept

    if what not in SETS:
        raise InputError(f'"{what}" has no way back here; allowed: {", ".join(SETS)}')
    path = kept
    if path is None:
        config = kubeconfig or os.environ.get("KUBECONFIG")
        folder = Path(config).parent / "rollback" if config else Path("rollback")
        path = newest_kept(folder, SETS[what])
        if path is None:
            raise InputError(
                f"nothing of {what} was kept", where=str(folder), hint="`myriad upgrade run` keeps it; or give --file"
            )
    outcome = back(cluster.reach(kubeconfig), SETS[what], path, dry_run=check)
    if json_:
        emit_json(
            {"file": str(path), "created": outcome.created, "changed": outcome.changed, "pruned": outcome.pruned,
             "unchanged": len(outcome.unchanged), "is_check": check}
        )  # fmt: skip
        return
    for word, names in (("created", outcome.created), ("changed", outcome.changed), ("removed", outcome.pruned)):
        for name in names:
            console.print(f"{word:<8} {name}", markup=False)
    would = "would be" if check else "is"
    console.print(
        f"{what} {would} as it was in {path}; {len(outcome.unchanged)} objects were that already", markup=False
    )
    if not check:
        console.print(
            "next: set the lock back before the next site run, which applies what the lock says", markup=False
        )


def _extra(batch: int | None, per_rack: int | None, jobs: str) -> dict[str, str]:
    if jobs not in POLICIES:
        raise InputError(f'--jobs is "{jobs}"; allowed: {", ".join(POLICIES)}')
    values = {"upgrade_batch": batch, "upgrade_per_rack": per_rack, "upgrade_jobs": jobs}
    return {name: str(value) for name, value in values.items() if value is not None}


def _limited(inventory: Path, limit: str | None) -> list[str]:
    if not limit:
        return []
    check_limit(inventory, limit)
    return ["--limit", f"{limit},localhost"]


def _once(
    inventory: Path, arguments: list[str], extra: dict[str, str], *, check: bool = False, quiet: bool
) -> tuple[RunResult, dict[str, Any]]:
    """One run of the playbook: how it ended, and the plan that it made."""
    _code, events = run_playbook(
        "upgrade",
        inventory=inventory,
        arguments=[*arguments, *(["--check"] if check else [])],
        extra=extra,
        quiet=quiet,
    )
    rows = parse(events.read_text().splitlines())
    events.unlink()
    reports = [row["report"] for row in rows if isinstance(row.get("report"), dict)]
    return result_of(rows), reports[-1] if reports else {}


def _site(inventory: Path, limit: str | None, left: list[str], *, quiet: bool) -> RunResult:
    """The rest of the site, and the record; hosts that were left are not touched."""
    scope = [limit or "all", "localhost", *(f"!{name}" for name in left)]
    arguments = ["--limit", ",".join(scope)] if limit or left else []
    _code, events = run_playbook("site", inventory=inventory, arguments=arguments, quiet=quiet)
    result = result_of(parse(events.read_text().splitlines()))
    events.unlink()
    return result


def _failures(result: RunResult) -> dict[str, Any]:
    return {name: host.failures for name, host in result.hosts.items() if host.failures}


def _unreachable(result: RunResult) -> dict[str, str]:
    return {name: " ".join(result.hosts[name].unreachable.split()) for name in result.unreachable_hosts}


def _told(result: RunResult, plan: str) -> str:
    """The plan, and what is missing of it; never nothing."""
    lines = [plan] if plan else []
    lines += [f"{name}: {task}: {text}" for name, found in _failures(result).items() for _role, task, text in found]
    lines += [f"not reached: {name}: {why}" for name, why in _unreachable(result).items()]
    return "\n".join(lines) or "no plan was made: the run ended before it looked at a host; what it printed says why"


def _sentence(result: RunResult, site: RunResult | None, found: dict[str, Any], code: int) -> str:
    seconds = result.seconds + (site.seconds if site else 0.0)
    if code == 2:
        failed = (site or result).failed_hosts or result.failed_hosts
        return (
            f"upgrade failed on {', '.join(failed) or 'its way'}: {seconds:.0f} s; the same command goes on from here"
        )
    if code == 3:
        return f"not back: {', '.join((site or result).unreachable_hosts)}; no further wave was begun: {seconds:.0f} s"
    done = len(found.get("control_plane") or []) + len(found.get("order") or [])
    many = "1 node" if done == 1 else f"{done} nodes"
    lines = [f"{name} was left: {reason}" for name, reason in (found.get("left") or {}).items()]
    return "\n".join([*lines, f"{many} upgraded, Kubernetes {found.get('to', '?')}: {seconds:.0f} s"])
