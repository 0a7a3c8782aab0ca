"""A definition for "that image and these packages": what `myriad image derive` writes, locks and builds.

The result is an ordinary folder with image.yml, requirements.in and requirements.lock: it can be committed, built again
to the same digest, and derived from.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from myriad.errors import InputError
from myriad.images.context import BuildContext
from myriad.images.definition import ExternalBase, ImageDefinition, OwnBase, load_definition
from myriad.images.external import Base, pull_base, registry_of
from myriad.images.installed import BasePackages, of_layers
from myriad.images.lock import named_packages
from myriad.images.refs import parse_ref

_HEADER = """\
# Made by `myriad image derive {name}`: the base below with the packages of requirements.in. Keep the folder: it gives
# the same image again, and `myriad image lock {name} --upgrade` renews it.
"""
REQUIREMENTS, LOCK = "requirements.in", "requirements.lock"
#: MB that the packages may weigh beyond what their wheels do.
_SPARE_MB = 50


@dataclass(frozen=True)
class Start:
    """What a derived image starts from.

    Attributes:
        base: as it stands in image.yml.
        entrypoint, command, user, working_dir: of the base.
        python: of an external base, as it stands in image.yml; None for an own one.
        size: bytes of the base as pulled.
        repo: repository of a base in a registry: its layers need not be sent again there.
    """

    base: dict[str, str]
    entrypoint: list[str]
    command: list[str]
    user: str
    working_dir: str
    python: dict[str, str] | None
    size: int
    repo: str = ""


def start_of_own(name: str, images: Path, size: int) -> Start:
    """The start from another image of images/.

    Raises:
        InputError: there is none, or its packages lie where only its own module finds them.
    """
    definition = load_definition(images / name)
    if definition.wheels is not None and definition.wheels.group is not None:
        raise InputError(
            f"{name} is a lean image for one module, so nothing is put on top of it",
            where=str(images / name / "image.yml"),
            hint="derive from an image with wheels.requirements, such as pytorch",
        )
    return Start(
        base={"name": name},
        entrypoint=list(definition.entrypoint),
        command=list(definition.command),
        user=definition.user,
        working_dir=definition.working_dir or "",
        python=None,
        size=size,
    )


def start_of_ref(ctx: BuildContext, text: str) -> tuple[Start, BasePackages]:
    """The start from an image of a registry; a tag is followed once, and its digest is written down.

    Raises:
        InputError: the base has no Python packages, or runs as a user by name.
        MyriadError: the registry does not have it, or does not answer.
    """
    ref = parse_ref(text)
    if not ref.digest:
        with registry_of(ref.host) as registry:
            digest = registry.digest_of(ref.repo, ref.tag or "latest")
        if digest is None:
            raise InputError(f"the registry has no {text}", hint="check the name and the tag")
        text = f"{text}@{digest}"
    base: Base = pull_base(ctx, text)
    packages = of_layers(ctx, base.layers)
    prefix, version = packages.python
    if not version:
        raise InputError(
            f"{text} has no Python packages in site-packages or dist-packages, so it is not known where more belong",
            hint="write an image.yml with base, python and wheels instead: docs/images.md",
        )
    runtime = base.config or {}
    user = str(runtime.get("User") or "0")
    if not all(part.isdigit() for part in user.split(":")):
        raise InputError(
            f"{text} runs as {user!r}; a pod with runAsNonRoot needs a number", hint="write image.yml with user"
        )
    debian = packages.site == f"usr/local/lib/python{version}/dist-packages"
    interpreter = "/usr/bin/python3" if debian else f"/{prefix}/bin/python3"
    return (
        Start(
            base={"image": text},
            entrypoint=list(runtime.get("Entrypoint") or runtime.get("Cmd") or ["/bin/sh"]),
            command=list(runtime.get("Cmd") or []) if runtime.get("Entrypoint") else [],
            user=user,
            working_dir=str(runtime.get("WorkingDir") or ""),
            python={"version": version, "interpreter": interpreter, "site": f"/{packages.site}"},
            size=sum(layer.size for layer in base.layers),
            repo=ref.repo,
        ),
        packages,
    )


def check_wanted(requirements: str) -> None:
    """Raises InputError where requirements ask for nothing."""
    if not named_packages(requirements):
        raise InputError("the requirements name no package", hint="one a line, as numpy>=2")


def write_definition(folder: Path, start: Start, requirements: str, *, repo: str, title: str) -> ImageDefinition:
    """Write image.yml and requirements.in of a derived image; the lock is the next step.

    Raises:
        InputError: the folder holds an image that was not derived, or the requirements ask for nothing.
    """
    check_wanted(requirements)
    path = folder / "image.yml"
    if path.is_file() and "Made by `myriad image derive" not in path.read_text(encoding="utf-8"):
        raise InputError("is there already and was not derived", where=str(path), hint="choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REQUIREMENTS).write_text(requirements, encoding="utf-8")
    value: dict[str, Any] = {"repo": repo, "title": title, "base": start.base}
    if start.python:
        value["python"] = start.python
    value["wheels"] = {"requirements": REQUIREMENTS, "lock": LOCK}
    value["entrypoint"] = start.entrypoint
    if start.command:
        value["command"] = start.command
    value["user"] = start.user
    if start.working_dir:
        value["working_dir"] = start.working_dir
    value |= {"budget_mb": start.size // 10**6 + 10_000, "bundle": False}
    _dump(path, folder.name, value)
    return load_definition(folder)


def set_budget(folder: Path, start: Start, wheels: int) -> None:
    """Put the budget into image.yml: the base, the wheels (bytes) and a little."""
    path = folder / "image.yml"
    value = yaml.safe_load(path.read_text(encoding="utf-8"))
    value["budget_mb"] = (start.size + wheels) // 10**6 + _SPARE_MB
    _dump(path, folder.name, value)


def _dump(path: Path, name: str, value: dict[str, Any]) -> None:
    text = yaml.safe_dump(value, sort_keys=False, width=120, allow_unicode=True)
    path.write_text(_HEADER.format(name=name) + text, encoding="utf-8")


def base_kind(definition: ImageDefinition) -> str:
    """What a derived image stands on, for people."""
    if isinstance(definition.base, OwnBase):
        return definition.base.name
    return definition.base.image if isinstance(definition.base, ExternalBase) else json.dumps(definition.base)
