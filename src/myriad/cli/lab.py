"""`myriad lab up|down|clean|status|fault|soak`: the embedded default, as `make lab` and its siblings call it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from myriad.cli.output import console, emit_json, err_console

if TYPE_CHECKING:
    from myriad.lab.display import Display

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
CloneOption = Annotated[Path | None, typer.Option("--clone", help="The clone that the lab belongs to.", hidden=True)]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    lab = typer.Typer(
        no_args_is_help=True,
        help="A real cluster on this machine: nodes as containers, GPU doubles behind real sockets.",
    )
    lab.command("up")(up)
    lab.command("down")(down)
    lab.command("clean")(clean)
    lab.command("status")(status)
    lab.command("fault")(fault)
    lab.command("soak")(soak)
    app.add_typer(lab, name="lab")


def up(
    from_make: Annotated[
        bool, typer.Option("--from-make", help="make has printed preflight and environment.", hidden=True)
    ] = False,
    jobs: Annotated[bool, typer.Option(help="Submit the example jobs at the end.")] = True,
    full: Annotated[bool, typer.Option("--full", help="Look at every host, converged or not.")] = False,
    nodes_only: Annotated[bool, typer.Option("--nodes-only", help="Stop when the nodes answer over ssh.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Block every way out of the lab; packages come from the bundle.")
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            help="Another lab: `ha` has three control planes. Without it the one that is up, or the usual one."
        ),
    ] = None,
    as_json: JsonOption = False,
    clone: CloneOption = None,
) -> None:
    """Bring the lab up, or go on where the last run was cut short."""
    from myriad.lab.display import Display
    from myriad.lab.state import clone_root
    from myriad.lab.up import Bringup, bring_up, guarded

    root = clone_root(clone)
    display = Display(err_console if as_json else console)

    def action() -> int:
        if nodes_only:
            Bringup(root, display, profile=profile).nodes_up(after_make=from_make)
            return 0
        site = ["-e", "site_full=true"] if full else []
        return bring_up(
            root, display, after_make=from_make, jobs=jobs, site=site, without_egress=offline, profile=profile
        )

    _end(display, guarded(display, action), as_json)


def down(as_json: JsonOption = False, clone: CloneOption = None) -> None:
    """Remove the lab, its network and settings, and the engine if make lab started it; the caches stay."""
    from myriad.lab.display import Display
    from myriad.lab.down import take_down
    from myriad.lab.state import clone_root
    from myriad.lab.up import guarded

    display = Display(err_console if as_json else console)
    _end(display, guarded(display, lambda: take_down(clone_root(clone), display)), as_json)


def clean(as_json: JsonOption = False, clone: CloneOption = None) -> None:
    """Remove the lab and the caches: store, bundles, Go and Python caches, node images."""
    from myriad.lab import down as removal
    from myriad.lab.display import Display
    from myriad.lab.state import clone_root
    from myriad.lab.up import guarded

    display = Display(err_console if as_json else console)
    _end(display, guarded(display, lambda: removal.clean(clone_root(clone), display)), as_json)


def _end(display: Display, code: int, as_json: bool) -> None:
    """End a verb of phases: its progress went to standard error when the document goes to standard output."""
    if as_json:
        emit_json({"exit_code": code, "phases": display.as_json()})
    raise typer.Exit(code)


def status(as_json: JsonOption = False, clone: CloneOption = None) -> None:
    """What the lab is, whether its nodes run, and which of them take work. Exit 4 when one does not."""
    from myriad.lab.status import lab_status, print_status

    report = lab_status(clone)
    if as_json:
        emit_json(report)
    else:
        print_status(report)
    raise typer.Exit(0 if report["takes_work"] else 4)


def fault(
    node: Annotated[str | None, typer.Argument(help="A GPU node of the lab; none lists the kinds of faults.")] = None,
    kind: Annotated[str | None, typer.Argument(help="A kind of fault; none tells which are on.")] = None,
    gpu: Annotated[int | None, typer.Option("--gpu", help="Which GPU, for faults of one GPU.")] = None,
    value: Annotated[str | None, typer.Option("--value", help="For kinds that take one: an Xid, a version.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Switch it off again.")] = False,
    as_json: JsonOption = False,
    clone: CloneOption = None,
) -> None:
    """Switch a fault of a node's GPUs on or off; without KIND, tell which are on; without NODE, which there are."""
    from myriad.lab.fault import read_document, switch
    from myriad.lab.state import LabPaths, clone_root, require_state

    if node is None:
        _list_faults(as_json=as_json)
        return
    state = require_state(LabPaths(clone_root(clone)))
    if kind is None:
        document = read_document(state, node)
    else:
        document = switch(state, node, kind, gpu=gpu, clear=clear, value=value)
    if as_json:
        emit_json({"node": node, "faults": document["faults"]})
        return
    console.print(_faults_text(node, document), markup=False)


def soak(
    minutes: Annotated[int, typer.Option("--minutes", help="How long faults come; recovery comes on top.")] = 30,
    seed: Annotated[
        int | None, typer.Option("--seed", help="The same seed is the same plan; drawn without it.")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option("--replay", help="The plan in these JSON lines, of an earlier soak.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only this kind of fault; may be given again.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and touch nothing.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="JSON lines; a file in .lab/logs without it.")] = None,
    as_json: JsonOption = False,
    clone: CloneOption = None,
) -> None:
    """Random faults against running gangs on the lab; what must hold is checked all along. Exit 2 where it did not."""
    from myriad.lab.soak.command import planned, soaked
    from myriad.lab.soak.report import plan_lines, result_lines
    from myriad.lab.state import clone_root

    root = clone_root(clone)
    plan = planned(root, minutes=minutes, seed=seed, replay=replay, only=only or [])
    say = err_console if as_json else console
    if not as_json or not dry_run:
        for line in plan_lines(plan):
            say.print(line, markup=False)
    if dry_run:
        if as_json:
            emit_json({"plan": plan.as_json()})
        return
    result = soaked(root, plan, out=out, say=lambda text: say.print(text, markup=False))
    if as_json:
        emit_json(result.as_json())
    else:
        for line in result_lines(result):
            say.print(line, markup=False)
    raise typer.Exit(130 if result.is_cut_short else 0 if result.ok else 2)


def _list_faults(*, as_json: bool) -> None:
    from myriad.lab.double.document import FAULTS

    if as_json:
        emit_json({name: {"text": kind.text, "per_gpu": kind.per_gpu} for name, kind in FAULTS.items()})
        return
    for name, kind in FAULTS.items():
        console.print(
            f"{name:15} {'--gpu N  ' if kind.per_gpu else '         '}{kind.text}", markup=False, highlight=False
        )


def _faults_text(node: str, document: dict[str, Any]) -> str:
    from myriad.lab.double.document import FAULTS

    if not document["faults"]:
        return f"{node}: {len(document['gpus'])} GPUs, no fault"
    lines = []
    for entry in document["faults"]:
        where = "" if entry.get("gpu") is None else f" on GPU {entry['gpu']}"
        value = f" {entry['value']}" if entry.get("value") else ""
        lines.append(f"{node}: {entry['kind']}{value}{where}: {FAULTS[entry['kind']].text}")
    return "\n".join(lines)
