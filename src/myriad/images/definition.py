"""`images/<name>/image.yml`: what an image holds and how it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from myriad.errors import InputError

_Repo = Annotated[str, Field(pattern=r"^[a-z0-9]+([._/-][a-z0-9]+)*$")]
_AbsolutePath = Annotated[str, Field(pattern=r"^/[^\s]*$")]


def _text(value: Any) -> Any:
    if isinstance(value, int | float):
        raise ValueError(f'{value} is a number to YAML, which drops zeros; write it in quotes: "{value}"')
    return value


_Version = Annotated[str, BeforeValidator(_text), Field(pattern=r"^\d+(\.\d+)+([.+-][0-9A-Za-z.]+)?$")]
_Arch = Annotated[str, BeforeValidator(_text), Field(pattern=r"^\d+\.\d(\+PTX)?$")]


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


class Gpu(_Model):
    """What the image asks of GPUs and their driver; `myriad image verdict` holds it against the fleet.

    Attributes:
        kind: `pytorch`, or `cuda` for the CUDA runtime alone; without it `pytorch` where torch is pinned.
        torch: version of the torch wheel, such as "2.12.1"; a local part ("+cu130") must agree with `cuda`.
        cuda: version of the CUDA toolkit in the image, such as "13.0" or "13.0.2".
        cudnn: version of cuDNN.
        nccl: version of NCCL.
        archs: compute capabilities to cover, such as "9.0"; empty takes what the wheels are compiled for.
        cuda_compat: NVIDIA's package cuda-compat is in the image (forward compatibility).
    """

    kind: Literal["pytorch", "cuda"] | None = None
    torch: _Version | None = None
    cuda: _Version | None = None
    cudnn: _Version | None = None
    nccl: _Version | None = None
    archs: tuple[_Arch, ...] = ()
    cuda_compat: bool = False


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
    #: None: the image has no need of a GPU.
    gpu: Gpu | None = None
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
