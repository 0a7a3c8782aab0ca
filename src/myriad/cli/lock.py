"""`myriad lock verify|show|diff|outside|pin`: the one place where versions and checksums stand."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from myriad.cli.output import console, emit_json
from myriad.errors import InputError
from myriad.stack.bundle import Bundle
from myriad.stack.compat import check
from myriad.stack.fetch import Fetcher
from myriad.stack.lock import OPEN, Lock, default_lock_path, load_lock, load_rules
from myriad.stack.lockdiff import diff_locks
from myriad.stack.outside import of_build, of_site
from myriad.stack.pin import find_pins, record_pins
from myriad.stack.pull import Puller
from myriad.stack.settings import read_settings
from myriad.stack.store import Store

LockOption = Annotated[Path | None, typer.Option("--lock", help="The lock; by default stack.lock.yml.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    lock = typer.Typer(no_args_is_help=True, help="The lock of the stack: versions, sources, checksums.")
    lock.command("verify")(verify)
    lock.command("show")(show)
    lock.command("diff")(diff)
    lock.command("outside")(outside)
    lock.command("pin")(pin)
    app.add_typer(lock, name="lock")


def open_pins(lock: Lock) -> list[str]:
    """`component file arch` of every checksum that is still open."""
    found = []
    for name, component in lock.components.items():
        for key, file in component.sources.release.items():
            found += [f"{name} {key} {arch}" for arch, pin in file.sha256.items() if pin == OPEN]
        for repo, image in component.upstream_images.items():
            found += [f"{name} {repo} {arch}" for arch, pin in image.sha256.items() if pin == OPEN]
    return found


def verify(lock_path: LockOption = None, as_json: JsonOption = False) -> None:
    """Check the lock's form and that its versions go together; list the checksums that are open."""
    lock = load_lock(lock_path)
    findings = check(lock.program_versions(), load_rules())
    errors = [finding for finding in findings if finding.level == "error"]
    opened = open_pins(lock)
    if as_json:
        emit_json({"ok": not errors, "findings": [asdict(finding) for finding in findings], "open_pins": opened})
        raise typer.Exit(1 if errors else 0)
    for finding in findings:
        if finding.level == "warning":
            console.print(f"warning: {finding}", markup=False)
    if opened:
        names = sorted({item.split()[0] for item in opened})
        console.print(
            f"{len(opened)} checksums are open ({', '.join(names)}): `release` refuses these files until "
            "`myriad lock pin NAME` records them",
            markup=False,
        )
    if errors:
        raise InputError(
            "the versions do not go together:\n" + "\n".join(f"  {finding}" for finding in errors),
            where=str(lock_path or default_lock_path()),
        )
    console.print(
        f"{len(lock.components)} components, {len(load_rules())} rules: the versions go together", markup=False
    )


def show(
    name: Annotated[str | None, typer.Argument(help="One component, with its sources.")] = None,
    lock_path: LockOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the components and their sources, or one of them whole."""
    lock = load_lock(lock_path)
    if name is not None:
        component = lock.component(name)
        value: dict[str, Any] = component.model_dump(mode="json", exclude_defaults=True)
        if as_json:
            emit_json({name: value})
        else:
            import yaml

            console.print(yaml.safe_dump({name: value}, sort_keys=False, width=110), markup=False, end="")
        return
    if as_json:
        emit_json(lock.model_dump(mode="json", by_alias=True))
        return
    table = Table("component", "version", "sources", "gives", box=None, pad_edge=False)
    opened = {item.split()[0] for item in open_pins(lock)}
    for key, component in lock.components.items():
        sources = [
            ("release (some checksums open)" if key in opened else "release") if component.sources.release else "",
            "module" if component.sources.modules else "",
            "package" if component.sources.package else "",
            "own source" if component.sources.local else "",
        ]
        gives = ", ".join(component.artifacts) or "(a subject of the rules)"
        table.add_row(key, component.version, ", ".join(filter(None, sources)), gives)
    console.print(table)


def outside(
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", help="What a site that has this bundle contacts, instead of who builds one."),
    ] = None,
    lock_path: LockOption = None,
    as_json: JsonOption = False,
) -> None:
    """List every address outside the site that is contacted where no mirror stands in between, by whom and what for."""
    if bundle is None:
        found = of_build(load_lock(lock_path))
    else:
        manifest = Bundle.load(bundle).manifest
        found = of_site(distributions=manifest.apt.suites if manifest.apt else (), has_wheels=bool(manifest.wheels))
    if as_json:
        emit_json({"outside": [asdict(address) for address in found]})
        return
    if not found:
        console.print("none: nodes, controller and pods take everything from the bundle", markup=False)
        return
    table = Table("who", "address", "what for", box=None, pad_edge=False)
    for address in found:
        table.add_row(address.by, address.host, address.purpose)
    console.print(table)


def diff(
    old: Annotated[Path, typer.Argument(help="The older lock.")],
    new: Annotated[Path | None, typer.Argument(help="The newer lock; by default stack.lock.yml.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what changed between two locks, and what the compatibility rules say of the new one."""
    newer = load_lock(new)
    changes = diff_locks(load_lock(old), newer)
    findings = check(newer.program_versions(), load_rules())
    if as_json:
        emit_json({"changes": [asdict(item) for item in changes], "findings": [asdict(item) for item in findings]})
        return
    for change in changes:
        console.print(str(change), markup=False)
    for finding in findings:
        console.print(f"{finding.level}: {finding}", markup=False)
    if not changes:
        console.print("no difference", markup=False)


def pin(
    name: Annotated[str, typer.Argument(help="The component.")],
    arch: Annotated[str | None, typer.Option(help="amd64 or arm64; by default this machine's.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the checksums and record nothing.")] = False,
    lock_path: LockOption = None,
    as_json: JsonOption = False,
) -> None:
    """Download what a component's open checksums stand for, print what is trusted from now on, and record it."""
    path = lock_path or default_lock_path()
    lock = load_lock(path)
    settings = read_settings()
    machine = arch or settings.arch
    if machine not in ("amd64", "arm64"):
        raise InputError(f"{machine!r} is neither amd64 nor arm64", where="--arch")
    store = Store(settings.store_root)
    with Fetcher(store=store, settings=settings) as fetcher, Puller(store=store, settings=settings) as puller:
        pins = find_pins(lock, name, arch=machine, fetcher=fetcher, puller=puller)
    if pins and not dry_run:
        record_pins(path, pins)
    if as_json:
        emit_json({"recorded": not dry_run, "pins": [asdict(item) for item in pins]})
        return
    for item in pins:
        console.print(f"{item.url}\n  {item.size} bytes, sha256 {item.sha256}", markup=False)
    if not pins:
        console.print(f"{name} has no open checksum for {machine}", markup=False)
    elif dry_run:
        console.print("nothing was recorded (--dry-run)", markup=False)
    else:
        console.print(
            f"recorded in {path}: from now on exactly these bytes are trusted. Compare them with what the project "
            "publishes before you commit.",
            markup=False,
        )
