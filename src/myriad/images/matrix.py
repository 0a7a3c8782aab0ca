"""`images/<name>/matrix.yml`: variants of an image, torch x CUDA x Python, each with a lock of its own.

Pure but for reading the file. Which of them exist at all is in the published facts: a combination that nobody built
wheels for is named with the reason before anything is locked.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from myriad.errors import InputError
from myriad.images.compat_facts import Facts, at_least, minor
from myriad.images.compat_facts import facts as own_facts
from myriad.images.definition import DEBIAN_PYTHON, DigestRef, ExternalBase, ImageDefinition, Python, load_definition
from myriad.images.definition_errors import problems_of, read_yaml, report

MATRIX_FILE = "matrix.yml"


def _quoted(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f'{value} is a number to YAML, which drops zeros; write it in quotes: "{value}"')
    return value


_Torch = Annotated[str, BeforeValidator(_quoted), Field(pattern=r"^\d+\.\d+\.\d+$")]
_Minor = Annotated[str, BeforeValidator(_quoted), Field(pattern=r"^\d+\.\d+$")]


def _index(value: str) -> str:
    url = urlsplit(value)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f'"{value}" is no address of an index, such as https://download.pytorch.org/whl/cu126')
    if url.username or url.password:
        raise ValueError("keeps a password in the address; ~/.netrc is its place")
    return value


_Index = Annotated[str, AfterValidator(_index)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Combination(_Model):
    """Some of the axes; what is left out matches all."""

    torch: _Torch | None = Field(None, description='a torch release in quotes, such as "2.12.1"')
    cuda: _Minor | None = Field(None, description='a CUDA release in quotes, such as "13.0"')
    python: _Minor | None = Field(None, description='a Python in quotes, such as "3.11"')


class PythonBase(_Model):
    """An external base that brings a Python which Debian 12 does not have."""

    image: DigestRef = Field(description="registry/repository@sha256:<digest>")
    interpreter: str = Field("/usr/local/bin/python3", description="the interpreter inside it")


class Matrix(_Model):
    """The axes, and what differs along them."""

    torch: tuple[_Torch, ...] = Field(
        min_length=1, description='a list of torch releases in quotes, such as ["2.12.1"]'
    )
    cuda: tuple[_Minor, ...] = Field(min_length=1, description='a list of CUDA releases in quotes, such as ["13.0"]')
    python: tuple[_Minor, ...] = Field(
        (DEBIAN_PYTHON,), min_length=1, description='a list of Pythons in quotes, such as ["3.11"]'
    )
    indexes: dict[_Minor, _Index] = Field(
        default_factory=dict, description="by CUDA release, the index with its wheels; without one the usual index"
    )
    bases: dict[_Minor, PythonBase] = Field(
        default_factory=dict, description="by Python, the external base that brings it: {image, interpreter}"
    )
    exclude: tuple[Combination, ...] = Field((), description="combinations to leave out: {torch, cuda, python}")
    budget_mb: Annotated[int, Field(gt=0)] | None = Field(None, description="a whole number of MB above 0")


@dataclass(frozen=True)
class Variant:
    """One variant.

    Attributes:
        name: `pytorch-2.11-cu130-py311`.
        torch, cuda, python: its versions.
        definition: its image.yml.
        requirements: text of its requirements file, made from the image's.
        index: further index for its wheels; empty for the usual one.
        refused: why it cannot be built; empty where it can.
    """

    name: str
    torch: str
    cuda: str
    python: str
    definition: ImageDefinition
    requirements: str
    index: str
    refused: str


def load_matrix(folder: Path, facts: Facts | None = None) -> list[Variant]:
    """The variants of an image, in the order of the axes.

    Raises:
        InputError: matrix.yml or image.yml is wrong; all of it is reported together.
    """
    path = folder / MATRIX_FILE
    value, problems = read_yaml(path, hint="an image without it has no variants")
    try:
        matrix = Matrix.model_validate(value)
    except ValidationError as error:
        raise InputError(report([*problems, *problems_of(error, Matrix)]), where=str(path)) from error
    definition = load_definition(folder)
    if definition.wheels is None or definition.wheels.requirements is None:
        problems.append(("the file", "has axes, but image.yml has no wheels.requirements to vary"))
    for python in matrix.python:
        if python != DEBIAN_PYTHON and python not in matrix.bases:
            problems.append(
                (f"python {python}", f"is not in Debian 12 (it has {DEBIAN_PYTHON}); bases must name an image")
            )
    problems += [
        (f"indexes.{cuda}", f"is for no CUDA of this matrix ({', '.join(matrix.cuda)})")
        for cuda in matrix.indexes
        if cuda not in matrix.cuda
    ]
    names = Counter(
        short_name(folder.name, torch, cuda, python)
        for torch, cuda, python in product(matrix.torch, matrix.cuda, matrix.python)
        if not any(_matches(one, torch, cuda, python) for one in matrix.exclude)
    )
    problems += [
        ("the file", f"makes {times} variants that are called {name}: one lock cannot be for all of them")
        for name, times in names.items()
        if times > 1
    ]
    if problems:
        raise InputError(report(problems), where=str(path))
    wanted = (folder / str(definition.wheels.requirements)).read_text(encoding="utf-8") if definition.wheels else ""
    table = facts or own_facts()
    return [
        variant_of(folder.name, definition, matrix, wanted, torch, cuda, python, table)
        for torch, cuda, python in product(matrix.torch, matrix.cuda, matrix.python)
        if not any(_matches(one, torch, cuda, python) for one in matrix.exclude)
    ]


def short_name(image: str, torch: str, cuda: str, python: str) -> str:
    """What a variant is called: `pytorch-2.11-cu130-py311`."""
    return f"{image}-{minor(torch)}-cu{cuda.replace('.', '')}-py{python.replace('.', '')}"


def variant_of(
    image: str,
    definition: ImageDefinition,
    matrix: Matrix,
    wanted: str,
    torch: str,
    cuda: str,
    python: str,
    facts: Facts,
) -> Variant:
    """One variant of an image."""
    short = short_name(image, torch, cuda, python)
    pins = {
        key: value for key, value in definition.pins.items() if key not in ("torch", "cuda", "cudnn", "nccl", "python")
    }
    gpu = definition.gpu
    refused = _refused(torch, cuda, python, facts)
    build = facts.build(torch, cuda)
    wheels = definition.wheels
    changes: dict[str, Any] = {
        "title": f"{definition.title.partition(' ')[0]} {minor(torch)} with CUDA {cuda}, Python {python}",
        "pins": {**pins, "torch": torch, "cuda": cuda, "python": python},
        "wheels": wheels.model_copy(update={"lock": f"locks/{short}.lock", "requirements": None}) if wheels else None,
        "budget_mb": matrix.budget_mb or definition.budget_mb,
    }
    if gpu is not None:
        archs = tuple(
            arch for arch in gpu.archs if build is None or arch in {one.removesuffix("+PTX") for one in build.archs}
        )
        changes["gpu"] = gpu.model_copy(
            update={"torch": torch, "cuda": cuda, "cudnn": None, "nccl": None, "archs": archs}
        )
    if python in matrix.bases:
        base = matrix.bases[python]
        changes["base"] = ExternalBase(image=base.image)
        changes["python"] = Python(version=python, interpreter=base.interpreter)
    return Variant(
        name=short,
        torch=torch,
        cuda=cuda,
        python=python,
        definition=definition.model_copy(update=changes),
        requirements=_with_torch(wanted, torch, cuda),
        index=matrix.indexes.get(cuda, ""),
        refused=refused,
    )


def _with_torch(wanted: str, torch: str, cuda: str) -> str:
    """The image's requirements with another torch."""
    lines = [
        line for line in wanted.splitlines() if not line.replace(" ", "").startswith(("torch==", "torch>=", "torch<"))
    ]
    return "\n".join((f"torch=={torch}", f"# CUDA {cuda}", *lines)) + "\n"


def _matches(one: Combination, torch: str, cuda: str, python: str) -> bool:
    return one.torch in (None, torch) and one.cuda in (None, cuda) and one.python in (None, python)


def _refused(torch: str, cuda: str, python: str, facts: Facts) -> str:
    """Why there are no wheels of a combination; empty where there are, or where the facts do not reach."""
    release = facts.torch_release(torch)
    if release is None:
        return ""
    if cuda not in [minor(one) for one in release.cuda]:
        return f"torch {minor(torch)} has no wheels for CUDA {cuda} (there are {', '.join(release.cuda)})"
    first, last = release.python
    if not (at_least(python, first) and at_least(last, python)):
        return f"torch {minor(torch)} has wheels for Python {first} to {last}, not for {python}"
    return ""
