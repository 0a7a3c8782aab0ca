"""`myriad bundle build|verify|push|show`: the one way in which artifacts come to a site."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, cast

import typer

from myriad.cli.output import console, emit_json
from myriad.errors import MyriadError
from myriad.stack.build import build_bundle, lock_digest
from myriad.stack.bundle import Bundle
from myriad.stack.events import Event, plain_line
from myriad.stack.lock import load_lock
from myriad.stack.push import push_bundle
from myriad.stack.settings import Settings, read_settings
from myriad.stack.sources import SourceMode

LockOption = Annotated[Path | None, typer.Option("--lock", help="The lock; by default stack.lock.yml.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]


def default_bundle_dir(settings: Settings, lock_sha256: str) -> Path:
    """Where a bundle of a lock lies by default: one directory per lock and architecture, below the cache."""
    return settings.cache / "bundles" / f"{lock_sha256[:12]}-{settings.arch}"


def register(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    bundle = typer.Typer(no_args_is_help=True, help="Make, check and publish bundles.")
    bundle.command("build")(build)
    bundle.command("verify")(verify)
    bundle.command("push")(push)
    app.add_typer(bundle, name="bundle")


def build(
    source: Annotated[str, typer.Option(help="auto, release or modules.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="The bundle's directory.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only these components (repeat it).")] = None,
    also: Annotated[list[str] | None, typer.Option("--with", help="Components on request to add.")] = None,
    without: Annotated[list[str] | None, typer.Option(help="Folders of images/ to leave out.")] = None,
    lock_path: LockOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a bundle from releases, or from Go modules and Debian packages where releases cannot be had."""
    if source not in ("auto", "release", "modules"):
        raise typer.BadParameter(f"{source!r} is not auto, release or modules", param_hint="--source")
    lock = load_lock(lock_path)
    settings = read_settings()
    directory = out or default_bundle_dir(settings, lock_digest(lock))
    started = time.monotonic()

    cached = 0

    def report(event: Event) -> None:
        nonlocal cached
        cached += event.state == "cached"
        line = plain_line(event)
        if line is not None and not as_json:
            console.print(line, markup=False)

    bundle = build_bundle(
        lock,
        directory,
        settings,
        report,
        source=cast(SourceMode, source),
        only=only or None,
        also=also or (),
        without=without or (),
    )
    seconds = time.monotonic() - started
    if as_json:
        emit_json(bundle.as_ansible_vars() | {"seconds": round(seconds, 1)})
        return
    manifest = bundle.manifest
    names = {"release": "releases", "module": "Go modules", "package": "Debian packages", "local": "own source"}
    counts = Counter(entry.origin.source for entry in manifest.files)
    origins = ", ".join(f"{count} from {names.get(kind, kind)}" for kind, count in sorted(counts.items()))
    console.print(
        f"{len(manifest.files)} files ({origins}) and {len(manifest.images)} images, {cached} of them cached, "
        f"{seconds:.0f} s: {directory}",
        markup=False,
    )


def verify(
    directory: Annotated[Path, typer.Argument(help="The bundle's directory.")],
    as_json: JsonOption = False,
) -> None:
    """Compare every file of a bundle with its manifest, and name what is missing or changed."""
    bundle = Bundle.load(directory)
    problems = bundle.verify()
    if as_json:
        emit_json({"ok": not problems, "problems": [problem.model_dump() for problem in problems]})
        raise typer.Exit(2 if problems else 0)
    if problems:
        lines = "\n".join(f"  {item.problem:8} {item.name}  {item.path}: {item.detail}" for item in problems)
        raise MyriadError(
            f"{len(problems)} of its blobs are not as the manifest says:\n{lines}",
            where=str(directory),
            hint="run `myriad bundle build` again with this --out, or copy the bundle again",
        )
    count = sum(1 for _ in bundle.blobs())
    console.print(f"{directory}: {count} blobs, all as the manifest says (bundle {bundle.digest[:12]})", markup=False)


def push(
    directory: Annotated[Path, typer.Argument(help="The bundle's directory.")],
    registry: Annotated[str, typer.Argument(help="The registry, host:port or a URL.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be sent.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Fill a site's registry from a bundle; only what it lacks is sent."""

    def report(name: str, size: int) -> None:
        if not as_json:
            console.print(f"sent {name} ({size / 1e6:.1f} MB)", markup=False)

    result = push_bundle(directory, registry, dry_run=dry_run, on_sent=report)
    if as_json:
        emit_json(asdict(result))
        return
    verb = "would be sent" if dry_run else "sent"
    console.print(
        f"{registry}: {len(result.sent)} {verb} ({result.sent_bytes / 1e6:.1f} MB), {result.present} were there",
        markup=False,
    )
