"""`myriad image derive`: an image with a few packages more, locked, built, proven, pushed. Exit 2: a finding was made,
and nothing was pushed."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from myriad.cli import _image_shared as shared
from myriad.cli._image_build import write_layout
from myriad.cli._image_lock import packages_below
from myriad.cli._image_push import push_to, target_of, told
from myriad.cli._image_verify import lines as proof_lines
from myriad.cli.output import console, emit_json, err_console
from myriad.errors import InputError
from myriad.images.context import BuildContext
from myriad.images.definition import NODE_PREFIX, load_definition, runtime_folders
from myriad.images.derive import (
    LOCK,
    REQUIREMENTS,
    Start,
    check_wanted,
    set_budget,
    start_of_own,
    start_of_ref,
    write_definition,
)
from myriad.images.lock import lock_text, lock_wheels, read_previous
from myriad.images.proof import Report, declared_of, look, prove
from myriad.images.proof_layout import open_image
from myriad.images.proof_run import run_image
from myriad.images.refs import parse_ref
from myriad.images.requirements import check_requirements
from myriad.images.runtime import RuntimeImage, build_runtime, plan_image
from myriad.images.wheels import Wheel


def add(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command(name="derive")
    def derive(
        name: Annotated[str, typer.Argument(help="Name of the new image: a folder of that name is written.")],
        base: Annotated[str, typer.Option("--from", help="An image of images/, or registry/repo:tag or @sha256:...")],
        requirements: Annotated[Path, typer.Option(help="A requirements file: what is wanted beyond the base.")],
        to: Annotated[str | None, typer.Option(help="Push it there: registry/team/name[:tag].")] = None,
        out: Annotated[Path | None, typer.Option(help="Write the image there as well, as an OCI layout.")] = None,
        run: Annotated[bool, typer.Option("--run/--no-run", help="Also start it for the proof.")] = True,
        ca: shared.CaOption = None,
        images: shared.ImagesOption = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    ) -> None:
        """Put a layer of packages on top of an image; prints its digest, ready for `myriad job new --image`."""
        begun = time.monotonic()
        wanted = _read(requirements)
        # All that can be wrong is asked before a file is written or a wheel is fetched.
        check_name(name)
        check_requirements(wanted, where=str(requirements))
        check_wanted(wanted)
        if name == base:
            raise InputError(f"{name} cannot stand on itself", hint="give the new image a name of its own")
        if to is not None:
            target_of(to)
        folder = shared.images_folder(images) / name
        with shared.progress(False) as show:
            ctx = shared.context(show)
            start = _start(ctx, base, shared.images_folder(images))
            definition = write_definition(
                folder, start, wanted, repo=_repo(name, to), title=f"{base.partition('@')[0]} with packages of {name}"
            )
            before = packages_below(ctx, folder, definition)
            text, _ = read_previous(folder / LOCK)
            made = lock_wheels(
                ctx, wanted, python=definition.python_version, base=before, previous=text, where=str(requirements)
            )
            if not made:
                raise InputError(
                    f"{base} has all of that already; nothing is needed on top",
                    where=str(requirements),
                    hint=f"use {base}",
                )
            (folder / LOCK).write_text(
                lock_text(made, image=name, wanted=REQUIREMENTS, requirements=wanted, python=definition.python_version),
                encoding="utf-8",
            )
            set_budget(folder, start, sum(wheel.size for wheel in made))
            image = build_runtime(ctx, folder, shared.tag_or_version(_tag(to)))
        scratch = Path(tempfile.mkdtemp(dir=_beside(ctx)))
        try:
            layout = write_layout(image.built, out or scratch / "layout")
            report = _proof(folder, layout.root, run=run)
            pushed = None
            if report.ok and to is not None:
                pushed, done = push_to(layout, to, ca=ca, mount_from=start.repo)
                if not as_json:
                    told(done, time.monotonic() - begun)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        _tell(folder, image, made, before, report, pushed, seconds=time.monotonic() - begun, as_json=as_json)
        if not report.ok:
            raise typer.Exit(2)


def check_name(name: str) -> None:
    """Raises InputError where a folder of images/ cannot be called so."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) or name.startswith(NODE_PREFIX):
        raise InputError(
            f'"{name}" cannot name an image: small letters, digits, and . _ - after the first; '
            f'names that begin with "{NODE_PREFIX}" are those of node images',
            hint="for example my-train",
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from error


def _start(ctx: BuildContext, base: str, images: Path) -> Start:
    if (images / base / "image.yml").is_file():
        size = sum(layer.size for layer in plan_image(ctx, images / base, load_definition(images / base)))
        return start_of_own(base, images, size)
    if "/" not in base:
        known = ", ".join(one.name for one in runtime_folders(images)) if images.is_dir() else ""
        raise InputError(
            f'there is no image "{base}"', where=str(images), hint=f"there are {known}, or registry/repo:tag"
        )
    return start_of_ref(ctx, base)[0]


def _beside(ctx: BuildContext) -> Path:
    folder = ctx.cache_dir / "layouts"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _repo(name: str, to: str | None) -> str:
    return parse_ref(to.rpartition("://")[2]).repo if to else name


def _tag(to: str | None) -> str:
    return parse_ref(to.rpartition("://")[2]).tag if to else ""


def _proof(folder: Path, layout: Path, *, run: bool) -> Report:
    declared, rules, own = declared_of(folder)
    subject = look(open_image(layout), declared)
    more = run_image(subject, smoke=own.smoke, gpu="auto") if run else ()
    return prove(subject, rules, today=datetime.now(UTC).date(), more=more)


def _tell(
    folder: Path,
    image: RuntimeImage,
    made: list[Wheel],
    before: dict[str, str],
    report: Report,
    pushed: str | None,
    *,
    seconds: float,
    as_json: bool,
) -> None:
    own = image.layers[len(image.base.layers) :]
    size = sum(layer.size for layer in own)
    if as_json:
        emit_json(
            {
                "image": folder.name,
                "folder": str(folder),
                "ref": pushed,
                "digest": image.built.manifest_digest,
                "layers": [layer.digest for layer in own],
                "size": size,
                "packages": {wheel.name: wheel.version for wheel in made},
                "replaced": {wheel.name: before[wheel.name] for wheel in made if wheel.name in before},
                "proof": report.document(),
                "seconds": round(seconds, 1),
            }
        )
        return
    for wheel in made:
        was = f"   instead of {before[wheel.name]}" if wheel.name in before else ""
        console.print(f"{wheel.name} {wheel.version}{was}", markup=False)
    for line in proof_lines(report, console.width if console.is_terminal else None):
        err_console.print(line, markup=False)
    layers = f"{len(own)} layer{'' if len(own) == 1 else 's'}"
    console.print(
        f"{layers} on top, {shared.megabytes(size)}   {shared.listed_seconds(seconds)}   definition in {folder}",
        markup=False,
    )
    if not report.ok:
        err_console.print("the proof has findings, so nothing was pushed", markup=False)
    console.print(pushed or image.built.manifest_digest, markup=False)
