"""The lock of an image's wheels: what is wanted, resolved once by uv, each wheel named with its hash and size."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from myriad.errors import InputError, MyriadError
from myriad.images.context import BuildContext
from myriad.images.definition import ImageDefinition
from myriad.images.oci import sha256_digest
from myriad.images.python import run_uv
from myriad.images.requirements import check_requirements, wanted_hashes
from myriad.images.wheels import Locked, Wheel, parse_lock, write_lock
from myriad.images.wheels_index import Wheelhouse
from myriad.images.wheels_settings import wheel_settings
from myriad.stack.store import Store

#: Replacing these on top would leave gigabytes of the old release in the image below.
KEPT = frozenset({"torch", "triton"})
PLATFORM = "x86_64-manylinux_2_36"
_WANTED = re.compile(r"^# wanted: (?P<file>\S+) (?P<digest>sha256:[0-9a-f]{64})$", re.M)


@dataclass(frozen=True)
class LockChange:
    """What a new lock has otherwise: package, version before and after; empty where it was or is not there."""

    name: str
    before: str
    after: str


def lock_wheels(
    ctx: BuildContext,
    requirements: str,
    *,
    python: str,
    base: Mapping[str, str] | None = None,
    previous: str = "",
    indexes: Sequence[str] = (),
    upgrade: Sequence[str] | None = (),
    where: str,
) -> list[Wheel]:
    """Resolve requirements for an image's Python and processor.

    Args:
        requirements: the text of a requirements file.
        python: first two parts of the version.
        base: name to version of what the image's base has. It stays as it is where the requirements allow that, and
            is not returned then; a package that they name themselves may get another version on top.
        previous: an earlier lock; its versions are kept where they still fit.
        indexes: further indexes to ask.
        upgrade: packages to take anew; None takes all of them anew.
        where: the requirements file, for messages.

    Raises:
        MyriadError: there is no solution; uv's own explanation is in the message.
        InputError: a package has no wheel, or the requirements ask for what no lock can hold.
    """
    check_requirements(requirements, where=where)
    with tempfile.TemporaryDirectory(prefix="myriad-lock-") as scratch:
        folder = Path(scratch)
        (folder / "requirements.in").write_text(requirements, encoding="utf-8")
        out = folder / "requirements.txt"
        if previous:
            out.write_text(_plain(previous), encoding="utf-8")
        command = [
            "pip",
            "compile",
            "--quiet",
            "--generate-hashes",
            "--only-binary",
            ":all:",
            "--no-annotate",
            "--no-header",
        ]
        command += ["--python-version", python, "--python-platform", PLATFORM, "--output-file", str(out)]
        for url in indexes:
            # The first index that has a package serves all of it, so nobody else's file of that name is taken.
            command += ["--index", url]
        for name in upgrade or ():
            command += ["--upgrade-package", name]
        if upgrade is None:
            command.append("--upgrade")
        _resolve(ctx, folder, command, requirements, base or {}, where)
        locked = parse_lock(out.read_text(encoding="utf-8"), where=where, python=python)
    with Wheelhouse(Store(ctx.store), wheel_settings(ctx), indexes=indexes) as house:
        made = [
            house.complete(house.choose(one, python=python))
            for one in locked
            if (base or {}).get(one.name) != one.version
        ]
    _check_hashes(made, requirements, where)
    return made


def _check_hashes(made: Sequence[Wheel], requirements: str, where: str) -> None:
    """uv writes the index's hashes and does not hold them against those that the requirements name."""
    allowed = wanted_hashes(requirements)
    for wheel in made:
        if wheel.sha256 not in allowed.get(wheel.name, {wheel.sha256}):
            raise MyriadError(
                f"{wheel.filename} of the index has sha256 {wheel.sha256[:12]}..., and the requirements allow only "
                f"{', '.join(f'{one[:12]}...' for one in sorted(allowed[wheel.name]))}",
                where=where,
                hint="the file or the line was changed: find out which before you lock it; hashes may also be left out",
            )


def _resolve(
    ctx: BuildContext, folder: Path, command: Sequence[str], requirements: str, base: Mapping[str, str], where: str
) -> None:
    """Run uv with the base's packages as they are; if that has no solution, without those that are asked for by name.

    The rest of the base then counts as required, so that what is found fits all of it.
    """
    constraints = folder / "base.txt"
    pinned = [f"{name}=={version}" for name, version in sorted(base.items())]
    constraints.write_text("\n".join(pinned) + "\n", encoding="utf-8")
    strict = [*command, "--constraint", "base.txt", "requirements.in"] if base else [*command, "requirements.in"]
    named = named_packages(requirements)
    try:
        run_uv(ctx, strict, what="locking the wheels", where=where, folder=folder)
        return
    except MyriadError as error:
        fixed = sorted(named & base.keys() & KEPT)
        if not named & base.keys() or fixed:
            hint = error.hint
            if base:
                hint = "packages of the base stay as they are unless the requirements name them"
            if fixed:
                hint = f"{', '.join(fixed)} of the base cannot be replaced on top: take another base or variant"
            raise MyriadError(error.message, where=where, hint=hint) from error
    (folder / "rest.txt").write_text(
        "\n".join(one for one in pinned if one.partition("==")[0] not in named) + "\n", encoding="utf-8"
    )
    # What it names and the base has in a fitting version is preferred: uv keeps what the output file has.
    out = folder / "requirements.txt"
    known = out.read_text(encoding="utf-8").splitlines() if out.is_file() else []
    said = {line.partition("==")[0] for line in known}
    out.write_text("\n".join([*known, *(one for one in pinned if one.partition("==")[0] not in said)]) + "\n")
    run_uv(ctx, [*command, "requirements.in", "rest.txt"], what="locking the wheels", where=where, folder=folder)


def named_packages(requirements: str) -> set[str]:
    """The packages that a requirements file names itself, normalised."""
    found = set()
    for line in requirements.removeprefix("\ufeff").splitlines():
        match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^]]*\])?\s*(@|[=<>!~;#]|$|\s)", line)
        if match:
            found.add(str(canonicalize_name(match[1])))
    return found


def lock_text(wheels: Sequence[Wheel], *, image: str, wanted: str, requirements: str, python: str) -> str:
    """The lock file's text.

    Args:
        image: what to say to `myriad image lock`.
        wanted: the name of the requirements file, with its text.
    """
    header = [
        f"Made by `myriad image lock {image}` for Python {python} on {PLATFORM}; change {wanted} and run it again.",
        f"wanted: {wanted} {requirements_digest(requirements)}",
    ]
    return write_lock(wheels, header=header)


def requirements_digest(text: str) -> str:
    """The digest of what a requirements file wants, whatever its comments and blank lines."""
    lines = [re.sub(r"(^|\s)#.*$", "", line).strip() for line in text.splitlines()]
    return sha256_digest("\n".join(line for line in lines if line).encode())


def check_fresh(folder: Path, definition: ImageDefinition, image: str) -> None:
    """Raises InputError where the requirements were changed after the lock was made from them.

    A lock that another tool made says nothing about it and is taken as it is.
    """
    wheels = definition.wheels
    if wheels is None or wheels.requirements is None or wheels.lock is None:
        return
    lock, wanted = folder / wheels.lock, folder / wheels.requirements
    if not lock.is_file() or not wanted.is_file():
        return
    said = _WANTED.search(lock.read_text(encoding="utf-8"))
    if said is not None and said["digest"] != requirements_digest(wanted.read_text(encoding="utf-8")):
        raise InputError(
            f"{wheels.requirements} was changed after this lock was made from it",
            where=str(lock),
            hint=f"`myriad image lock {image}`",
        )


def changes(before: Sequence[Locked], after: Sequence[Wheel]) -> list[LockChange]:
    """What differs between two locks."""
    old = {one.name: one.version for one in before}
    new = {one.name: one.version for one in after}
    return [
        LockChange(name, old.get(name, ""), new.get(name, ""))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def read_previous(path: Path) -> tuple[str, list[Locked]]:
    """An earlier lock as text and as rows; nothing where there is none or it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
        return text, parse_lock(text, where=str(path))
    except (OSError, MyriadError):
        return "", []


def _plain(lock: str) -> str:
    """A lock without hashes, as versions to keep: hashes of one wheel alone would forbid the others."""
    return "\n".join(f"{one.name}=={one.version}" for one in parse_lock(lock, where="the earlier lock")) + "\n"
