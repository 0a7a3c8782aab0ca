"""`myriad image lock`: the wheels of an image, resolved once and named with their hashes; and the digest of a base's
tag."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from myriad.cli import _image_shared as shared
from myriad.cli.output import console, emit_json
from myriad.errors import InputError, MyriadError
from myriad.images.context import BuildContext
from myriad.images.definition import ExternalBase, ImageDefinition, OwnBase, load_definition, runtime_folders
from myriad.images.definition_errors import read_yaml
from myriad.images.external import pull_base, registry_of
from myriad.images.find import find_image
from myriad.images.frozen import LOCK_FILE, frozen_text, read_frozen
from myriad.images.installed import of_layers
from myriad.images.lock import LockChange, changes, lock_text, lock_wheels, read_previous
from myriad.images.matrix import MATRIX_FILE, Variant, load_matrix
from myriad.images.oci import sha256_digest
from myriad.images.proof_types import counted
from myriad.images.refs import parse_ref
from myriad.images.rootfs import newest_packages
from myriad.images.runtime import check_pins
from myriad.images.wheels import Wheel
from myriad.images.wheels_layers import locked_wheels


def add(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command(name="lock")
    def lock(
        name: Annotated[str, typer.Argument(metavar="NAME", help="A folder of images/, or a variant.")] = "",
        system: Annotated[
            bool, typer.Option("--system", help="Write images/debian12.lock: the newest Debian packages of all images.")
        ] = False,
        upgrade: Annotated[bool, typer.Option("--upgrade", help="Take the newest of every package.")] = False,
        upgrade_package: Annotated[
            list[str] | None, typer.Option("--upgrade-package", help="Take the newest of this one; may be repeated.")
        ] = None,
        check: Annotated[
            bool, typer.Option("--check", help="Write nothing; exit 2 where the lock would change.")
        ] = False,
        images: shared.ImagesOption = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    ) -> None:
        """Resolve requirements and write the lock with hashes. 0: written or unchanged; 2: no solution, or --check."""
        folder = shared.images_folder(images)
        if system == bool(name):
            raise InputError("name an image, or say --system", hint="myriad image lock pytorch")
        if system:
            _lock_system(folder, as_json)
            return
        pinned = pin_base(folder / name, write=not check)
        if pinned and not as_json:
            console.print(f"base   {pinned}", markup=False)
        found = find_image(name, folder)
        variant = _variant(found.folder, found.name)
        wheels = found.definition.wheels
        if wheels is None or wheels.lock is None:
            if pinned:
                return
            raise InputError(
                "has no wheels.requirements to lock"
                + ("; its group is locked by `uv lock`" if wheels is not None else ""),
                where=str(found.folder / "image.yml"),
            )
        ctx = shared.context(lambda event: None)
        base = packages_below(ctx, found.folder, found.definition)
        wanted = str(wheels.requirements or MATRIX_FILE)
        requirements = variant.requirements if variant else (found.folder / wanted).read_text(encoding="utf-8")
        path = found.folder / wheels.lock
        text, before = read_previous(path)
        made = lock_wheels(
            ctx,
            requirements,
            python=found.definition.python_version,
            base=base,
            previous=text,
            indexes=[variant.index] if variant and variant.index else (),
            upgrade=None if upgrade else tuple(upgrade_package or ()),
            where=str(found.folder / wanted),
        )
        check_pins(found.folder, found.definition, [*_as_wheels(base, made), *made])
        new = lock_text(
            made, image=found.name, wanted=wanted, requirements=requirements, python=found.definition.python_version
        )
        differs = changes(before, made)
        if not check and new != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(new, encoding="utf-8")
        _tell(path, made, differs, changed=new != text, check=check, as_json=as_json, pinned=pinned)
        if check and new != text:
            raise typer.Exit(2)


def _lock_system(images: Path, as_json: bool) -> None:
    """Freeze the newest Debian packages of the base and of every image."""
    wanted: list[str] = []
    for folder in runtime_folders(images):
        wanted += load_definition(folder).packages
    with shared.progress(as_json) as show:
        ctx = shared.context(show)
        before = read_frozen(ctx.repository)
        debs, taken = newest_packages(ctx, sorted(set(wanted)))
    old = {deb.name: deb.file for deb in before.debs} if before is not None else {}
    new = {deb.name: deb.file for deb in debs}
    changed = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    path = ctx.repository / LOCK_FILE
    if changed:
        path.write_text(frozen_text(debs, taken), encoding="utf-8")
    if as_json:
        emit_json({"lock": str(path), "packages": len(debs), "changed": changed})
        return
    for name in changed:
        console.print(f"{name.ljust(28)}{old.get(name, '-')} -> {new.get(name, '-')}", markup=False)
    size = shared.megabytes(sum(deb.size for deb in debs))
    console.print(f"{path}: {len(debs)} packages, {size}; {'written' if changed else 'unchanged'}", markup=False)


def packages_below(ctx: BuildContext, folder: Path, definition: ImageDefinition) -> dict[str, str]:
    """Name and version of the Python packages that an image's base has."""
    if isinstance(definition.base, OwnBase):
        lower = folder.parent / definition.base.name
        own = load_definition(lower)
        found = packages_below(ctx, lower, own)
        return {**found, **{wheel.name: wheel.version for wheel in locked_wheels(ctx, lower, own)}}
    if isinstance(definition.base, ExternalBase):
        layers = pull_base(ctx, definition.base.image).layers
        return {name: one.version for name, one in of_layers(ctx, layers).found.items()}
    return {}


def _as_wheels(base: Mapping[str, str], made: list[Wheel]) -> list[Wheel]:
    """The base's packages that stay, for the look at pins."""
    replaced = {wheel.name for wheel in made}
    return [Wheel(name, version, "", "", 0) for name, version in base.items() if name not in replaced]


def _variant(folder: Path, name: str) -> Variant | None:
    if name == folder.name or not (folder / MATRIX_FILE).is_file():
        return None
    return next(one for one in load_matrix(folder) if one.name == name)


def pin_base(folder: Path, *, write: bool) -> str:
    """Put the digest that a base's tag names now into image.yml; the reference, or nothing where none was missing.

    Raises:
        InputError: `write` is off and a digest is missing.
        MyriadError: the registry does not have the tag, or does not answer.
    """
    path = folder / "image.yml"
    if not path.is_file():
        return ""
    value, _ = read_yaml(path, hint="")
    base = value.get("base")
    image = base.get("image") if isinstance(base, dict) else None
    if not isinstance(image, str) or "@" in image:
        return ""
    if not write:
        raise InputError(
            f"base.image {image} has no digest", where=str(path), hint=f"`myriad image lock {folder.name}`"
        )
    ref = parse_ref(image)
    with registry_of(ref.host) as registry:
        digest = registry.digest_of(ref.repo, ref.tag or "latest")
    if digest is None:
        raise MyriadError(f"the registry has no {image}", where=str(path), hint="check the name and the tag")
    pinned = f"{image}@{digest}"
    text = path.read_text(encoding="utf-8")
    changed = re.sub(rf"{re.escape(image)}(?![\w.@:/-])", pinned, text, count=1)
    if sha256_digest(changed.encode()) == sha256_digest(text.encode()):
        raise MyriadError(f"could not write the digest; write base: {{image: {pinned!r}}}", where=str(path))
    path.write_text(changed, encoding="utf-8")
    return pinned


def _tell(
    path: Path,
    made: list[Wheel],
    differs: list[LockChange],
    *,
    changed: bool,
    check: bool,
    as_json: bool,
    pinned: str,
) -> None:
    size = sum(wheel.size for wheel in made)
    if as_json:
        emit_json(
            {
                "lock": str(path),
                "packages": len(made),
                "size": size,
                "changed": changed,
                "base": pinned or None,
                "changes": [vars(one) for one in differs],
            }
        )
        return
    for one in differs:
        console.print(f"{one.name.ljust(28)}{one.before or '-'} -> {one.after or '-'}", markup=False)
    state = ("is out of date" if check else "written") if changed else "unchanged"
    console.print(f"{path}: {counted(len(made), 'wheel')}, {shared.megabytes(size)}; {state}", markup=False)
