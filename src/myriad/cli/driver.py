"""`myriad driver plan`: what would become of the GPU driver of a host, from a recorded facts file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from myriad.cli.output import console, emit_json
from myriad.errors import InputError
from myriad.fleet.driver import DriverPlan, plan
from myriad.fleet.driver.facts import form_faults
from myriad.fleet.driver.notes import count_of
from myriad.stack.lock import load_lock

FactsOption = Annotated[
    Path,
    typer.Option(
        "--facts", help="JSON or YAML: the facts of one host, or {facts: ..., want: ...}.", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    driver = typer.Typer(no_args_is_help=True, help="The GPU driver of a host.")
    app.add_typer(driver, name="driver")

    @driver.callback()
    def group() -> None:
        """The GPU driver of a host."""

    @driver.command(name="plan")
    def plan_(
        facts: FactsOption,
        channel: Annotated[str, typer.Option(help="distribution or vendor.")] = "",
        existing: Annotated[str, typer.Option(help="skip, adopt or replace.")] = "",
        version: Annotated[
            str, typer.Option(help="Driver version; the lock's, when nothing is given.", show_default=False)
        ] = "",
        as_json: JsonOption = False,
    ) -> None:
        """Decide for one host and say why; nothing is touched. Exit 0 where the plan stands, 1 where it is refused."""
        document = read(facts)
        found = document["facts"]
        want = dict(document.get("want") or {})
        if channel:
            want["channel"] = channel
        if existing:
            want["existing"] = existing
        complete(want, found, version)
        decided = plan(found, want)
        if as_json:
            emit_json({"facts": str(facts), "want": want, "plan": decided.to_dict()})
        else:
            for line in lines(decided, want):
                console.print(line, markup=False)
        if decided.refused:
            raise typer.Exit(1)


def read(path: Path) -> dict[str, Any]:
    """The document of a facts file: `facts`, and `want` where it has one.

    Raises:
        InputError: the file cannot be read or holds no facts.
    """
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path), hint="record one with driver_facts") from error
    if not isinstance(value, dict):
        raise InputError("holds no facts", where=str(path), hint="a mapping with kernel, pci, installed, ...")
    document = value if isinstance(value.get("facts"), dict) else {"facts": value}
    if "pci" not in document["facts"]:
        raise InputError("has no pci", where=str(path), hint="record the host with driver_facts; `pci: []` is no GPU")
    want = document.get("want") or {}
    if not isinstance(want, dict):
        raise InputError("want is no mapping", where=str(path), hint="channel, existing, versions, packages, ...")
    faults = form_faults(document["facts"], want)
    if faults:
        raise InputError(
            "cannot be taken for a host's facts:" + "".join(f"\n  {fault}" for fault in faults),
            where=str(path),
            hint="correct the file, or record the host with driver_facts",
        )
    return document


def complete(want: dict[str, Any], facts: Mapping[str, Any], version: str) -> None:
    """Fill in what the file does not say from the lock: the set of the host's distribution and channel."""
    want.setdefault("channel", "distribution")
    described = (facts.get("kernel") or {}).get("distribution") or {}
    name, release = str(described.get("id") or "").lower(), str(described.get("version") or "")
    wanted = f"{name}{release.split('.')[0] if name == 'debian' else release}"
    component = load_lock().component("nvidia-driver")
    locked = next(
        (one for one in component.package_sets if one.channel == want["channel"] and one.distribution == wanted), None
    )
    if "packages" not in want and locked is not None and version in ("", locked.driver):
        want["packages"] = dict(locked.packages)
        want.setdefault("versions", {"driver": locked.driver})
    if version:
        want["versions"] = {"driver": version}
    want.setdefault("versions", {"driver": component.version})


def lines(decided: DriverPlan, want: Mapping[str, Any]) -> list[str]:
    """The plan for people."""
    names = [gpu.model or gpu.device for gpu in decided.gpus]
    shown = [f"gpus       {count_of(names) or 'none'}"]
    if decided.module:
        shown.append(f"module     {decided.module}: {decided.module_reason or 'as installed'}")
    if decided.fabric_reason:
        yes = "yes" if decided.fabric_manager else "no"
        shown.append(f"fabric     manager {yes}: {decided.fabric_reason}")
    if decided.gpus:
        shown.append(f"mig        {'yes' if decided.mig_capable else 'no'}")
    shown.append(f"{decided.action:<10} {decided.reason} (channel {want.get('channel')})")
    word = "has" if decided.action in ("keep", "adopt") else "install"
    shown.extend(f"  {word:<7}  {name} {version}" for name, version in decided.packages.items())
    shown.extend(f"  remove   {name}" for name in decided.remove)
    if decided.boot_modules:
        shown.append(f"  load     {', '.join(decided.boot_modules)} before the fabric manager")
    if decided.hold:
        shown.append(f"  hold     {', '.join(decided.hold)}")
    shown.extend(f"  refused  {refusal.sentence}" for refusal in decided.refusals)
    shown.extend(f"  warning  {warning}" for warning in decided.warnings)
    shown.extend(f"  reboot   {reason}" for reason in decided.reboot)
    return shown
