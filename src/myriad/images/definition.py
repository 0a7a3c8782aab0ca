"""`images/<name>/image.yml`: what an image holds and how it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from myriad.errors import InputError

_Repo = Annotated[str, Field(pattern=r"^[a-z0-9]+([._/-][a-z0-9]+)*$")]
_AbsolutePath = Annotated[str, Field(pattern=r"^/[^\s]*$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Wheels(_Model):
    """Python packages: a dependency group of pyproject.toml at the versions and hashes of uv.lock."""

    group: str
    #: Patterns below the installation folder that are left out (`*` spans directories).
    exclude: tuple[str, ...] = ()


class Source(_Model):
    """Myriad's own code: these modules or packages of src/, and the modules of Myriad that they import."""

    modules: tuple[str, ...] = Field(min_length=1)


class File(_Model):
    """A file of the image's folder."""

    source: str = Field(alias="from")
    target: _AbsolutePath = Field(alias="to")
    mode: Annotated[str, Field(pattern=r"^0?[0-7]{3}$")] = "0644"


class ImageDefinition(_Model):
    """An image. Paths in `files` are relative to its folder."""

    repo: _Repo
    title: str
    base: Literal["debian"] = "debian"
    wheels: Wheels | None = None
    source: Source | None = None
    files: tuple[File, ...] = ()
    entrypoint: tuple[str, ...] = Field(min_length=1)
    command: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    user: Annotated[str, Field(pattern=r"^\d+(:\d+)?$")] = "65532:65532"
    labels: dict[str, str] = Field(default_factory=dict)
    #: The most that a node with an empty store may have to pull, in MB (10**6 bytes), as compressed.
    budget_mb: Annotated[int, Field(gt=0)]


def load_definition(folder: Path) -> ImageDefinition:
    """Read and check `image.yml`.

    Raises:
        InputError: it is missing, is no YAML, or says something that is not allowed; all of it is reported together.
    """
    path = folder / "image.yml"
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("there is no image.yml", where=str(folder), hint="name a folder of images/") from None
    except yaml.YAMLError as error:
        raise InputError(f"not YAML: {error}", where=str(path)) from error
    try:
        return ImageDefinition.model_validate(value)
    except ValidationError as error:
        lines = [f"{'.'.join(str(part) for part in one['loc']) or 'image.yml'}: {one['msg']}" for one in error.errors()]
        raise InputError("; ".join(lines), where=str(path)) from error
