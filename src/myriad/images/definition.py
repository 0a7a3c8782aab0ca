"""`images/<name>/image.yml`: what an image holds and how it starts. docs/images.md explains it, docs/schema/image.json
is its JSON schema."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from posixpath import normpath
from typing import Annotated, Any, Literal

from packaging.utils import canonicalize_name
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from myriad.errors import InputError
from myriad.images.compat_facts import facts
from myriad.images.compat_require import VARIABLE as REQUIRE_CUDA
from myriad.images.definition_errors import problems_of, read_yaml, report
from myriad.images.refs import DIGEST, parse_ref

SCHEMA_FILE = "docs/schema/image.json"
SCHEMA_ID = "https://myriad.dev/schema/image.json"

#: The Python of Debian 12, which the base `debian` brings.
DEBIAN_PYTHON = "3.11"
#: Folders of node images begin with it: their image.yml describes a machine's disk.
NODE_PREFIX = "node-"
#: What a layer may weigh when image.yml does not say, in MB as compressed: small enough that several are pulled side
#: by side, large enough that an image stays below containerd's and overlayfs' limits on their number.
LAYER_MB = 500

_MOST_ID = 2**32 - 2
"""The largest uid of Linux; the next one means "no user"."""


def _text(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f'{value} is a number to YAML, which drops zeros; write it in quotes: "{value}"')
    return value


def _octal(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        # 0644 is read as octal, 644 as it stands; a mode has no more than 0777.
        digits = f"{value:04o}" if 0 <= value <= 0o777 else f"{value:04}"
        meant = f'"{digits}" in quotes'
        if digits != f"{value:04}" and set(str(value)) <= set("045"):
            meant += f', or "{value:04}" where those digits are meant'
        raise ValueError(f"without quotes is the number {value} to YAML; write {meant}")
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"is {str(value).lower()} to YAML, which is no number of MB")
    return value


def _plain_path(value: str) -> str:
    plain = normpath(value).replace("//", "/", 1)
    if value != plain:
        raise ValueError(f'"{value}" takes a detour; write "{plain}"')
    return value


def _below_folder(value: str) -> str:
    if value.startswith("/") or ".." in Path(value).parts:
        raise ValueError(f'"{value}" leaves the image\'s folder, so another checkout would build another image')
    return value


def _known_card(value: str) -> str:
    known = facts().capabilities
    plain = value.removesuffix("+PTX")
    if plain not in known:
        raise ValueError(
            f"no GPU has compute capability {plain} (sm_{plain.replace('.', '')}); those that NVIDIA made have "
            f"{', '.join(known)}"
        )
    return value


def _by_digest(value: str) -> str:
    name, at, digest = value.partition("@")
    try:
        parse_ref(name)
    except InputError as error:
        raise ValueError(f"{error.message}; write registry/repository@sha256:<digest>") from error
    if not at:
        raise ValueError(
            f'"{value}" can name other bits tomorrow; name the digest: '
            f"{name}@sha256:<digest> (`myriad image lock` looks a tag's digest up)"
        )
    if not DIGEST.fullmatch(digest):
        raise ValueError(
            f'"{value}": what follows @ is {len(digest.removeprefix("sha256:"))} characters and not sha256: with '
            "64 hexadecimal digits in small letters; copy the digest whole"
        )
    return value


def _capability(value: Any) -> Any:
    """`sm_90` as `9.0`, `sm_120+PTX` as `12.0+PTX`."""
    value = _text(value)
    own = re.fullmatch(r"(?:sm|compute)_(\d+)[af]", value) if isinstance(value, str) else None
    if own:
        raise ValueError(f"{value} is how code for that one kind of card is called; write the card itself: sm_{own[1]}")
    match = re.fullmatch(r"(?:sm|compute)_(\d+)(\d)(\+PTX)?", value) if isinstance(value, str) else None
    return f"{match[1]}.{match[2]}{match[3] or ''}" if match else value


def _words(value: Any) -> Any:
    """A command in one line as its words."""
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise ValueError(f"{value!r} is no command: {error}") from error
    return value


def _smoke(value: Any) -> Any:
    return {"run": value} if isinstance(value, str | list) else value


_Repo = Annotated[str, Field(pattern=r"^[a-z0-9]+([._/-][a-z0-9]+)*$")]
_AbsolutePath = Annotated[str, Field(pattern=r"^/[^\s]*$"), AfterValidator(_plain_path)]
DigestRef = Annotated[str, AfterValidator(_by_digest)]
"""An image of a registry by digest."""
_OwnFile = Annotated[str, AfterValidator(_below_folder)]
_Version = Annotated[str, BeforeValidator(_text), Field(pattern=r"^\d+(\.\d+)+([.+-][0-9A-Za-z.]+)?$")]
_Arch = Annotated[str, BeforeValidator(_capability), Field(pattern=r"^\d+\.\d(\+PTX)?$"), AfterValidator(_known_card)]
_Package = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ExternalBase(_Model):
    """An image of a registry to build on, by digest."""

    image: DigestRef = Field(
        description="registry/repository@sha256:<digest>: exactly these bits, whatever its tags name"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_base(cls, value: Any) -> Any:
        if isinstance(value, dict) and "name" in value:
            raise ValueError("has both image and name; keep the one to build on")
        return value


class OwnBase(_Model):
    """Another image of this folder's neighbours to build on."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]*$", description="the folder of the image to build on, such as pytorch"
    )


class Python(_Model):
    """The Python of an external base, for the wheels on top of it."""

    version: Annotated[str, BeforeValidator(_text), Field(pattern=r"^3\.\d+$")] = Field(
        description='first two parts in quotes, such as "3.12"'
    )
    interpreter: _AbsolutePath = Field("/usr/local/bin/python3", description="the interpreter inside the base")
    site: _AbsolutePath | None = Field(
        None, description="where wheels go; by default the site-packages of the interpreter's prefix"
    )


class Wheels(_Model):
    """Python packages: a requirements file with its hash-locked file, or a dependency group of pyproject.toml."""

    group: str | None = Field(None, description="a dependency group of pyproject.toml, at the versions of uv.lock")
    requirements: _OwnFile | None = Field(None, description="file of the image's folder with what is wanted")
    lock: _OwnFile | None = Field(None, description="file that `myriad image lock` writes: versions with hashes")
    exclude: tuple[str, ...] = Field(
        (), description="patterns of files to leave out, below the installation folder (* spans directories)"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Wheels:
        if (self.group is None) == (self.requirements is None and self.lock is None):
            raise ValueError("needs either group, or requirements with lock")
        if self.group is None and (self.requirements is None or self.lock is None):
            missing = "lock" if self.lock is None else "requirements"
            raise ValueError(f"{missing} is missing; requirements says what is wanted, lock with which hashes")
        if self.requirements is not None and self.requirements == self.lock:
            raise ValueError(f"requirements and lock are both {self.lock}, which locking would overwrite")
        return self


class Source(_Model):
    """Myriad's own code: these modules or packages of src/, and the modules of Myriad that they import."""

    modules: tuple[str, ...] = Field(min_length=1, description="at least one module of src/, such as myriad.agent")


class File(_Model):
    """A file of the image's folder."""

    source: _OwnFile = Field(alias="from", description="path in the image's folder")
    target: _AbsolutePath = Field(alias="to", description="absolute path inside the image")
    mode: Annotated[str, BeforeValidator(_octal), Field(pattern=r"^0?[0-7]{3}$")] = Field(
        "0644", description='three octal digits in quotes, such as "0755"; no setuid'
    )

    @field_validator("target")
    @classmethod
    def _names_a_file(cls, value: str) -> str:
        if value == "/":
            raise ValueError("/ is a folder; write the path of the file")
        return value


class Gpu(_Model):
    """What the image asks of GPUs and their driver; `myriad image verdict` holds it against the fleet.

    Versions that `pins` gives need not be said again.
    """

    kind: Literal["pytorch", "cuda"] | None = Field(
        None, description="pytorch, or cuda for the runtime alone; by default pytorch where torch is pinned"
    )
    torch: _Version | None = Field(
        None, description='version of the torch wheel, such as "2.12.1"; a local part ("+cu130") must agree with cuda'
    )
    cuda: _Version | None = Field(None, description='version of CUDA in the image in quotes, such as "13.0"')
    cudnn: _Version | None = Field(None, description="version of cuDNN in quotes")
    nccl: _Version | None = Field(None, description="version of NCCL in quotes")
    archs: tuple[_Arch, ...] = Field(
        (), description='compute capabilities to cover, "9.0" or sm_90; empty takes what the wheels are compiled for'
    )
    cuda_compat: bool = Field(
        False, description="whether NVIDIA's package cuda-compat is in the image (forward compatibility)"
    )


class Smoke(_Model):
    """A command that must succeed in a container of the image, without a GPU."""

    run: Annotated[tuple[str, ...], BeforeValidator(_words, json_schema_input_type=str | list[str])] = Field(
        min_length=1, description="a command, in one line or as a list of words"
    )
    expect: str = Field("", description="regular expression that its output must match; empty looks at the exit code")
    timeout_s: Annotated[int, Field(gt=0, le=3600)] = Field(120, description="seconds, 1 to 3600")

    @field_validator("expect")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from error
        return value


def _kind_of_base(value: Any) -> str:
    """Which of the three a base is meant to be, so that only what is wrong with that one is told."""
    if isinstance(value, dict):
        return "name" if "name" in value and "image" not in value else "image"
    if isinstance(value, ExternalBase):
        return "image"
    return "name" if isinstance(value, OwnBase) else "debian"


_Base = Annotated[
    Annotated[Literal["debian"], Tag("debian")]
    | Annotated[ExternalBase, Tag("image")]
    | Annotated[OwnBase, Tag("name")],
    Discriminator(_kind_of_base),
]


class ImageDefinition(_Model):
    """An image. Paths in `files` are relative to its folder."""

    repo: _Repo = Field(description="repository in the registry: lower case, digits, and . _ - / between them")
    title: str = Field(min_length=1, description="what the image is, in a few words")
    base: _Base = Field(
        "debian",
        description="debian (the shared minimal Debian 12 with Python), {image: registry/repository@sha256:...}, or "
        "{name: <another image here>}",
    )
    packages: tuple[_Package, ...] = Field((), description="names of Debian packages on top of the base")
    python: Python | None = Field(
        None, description="the Python of an external base: {version}, and interpreter and site where they are elsewhere"
    )
    wheels: Wheels | None = Field(
        None, description="Python packages: {requirements, lock}, files of this folder, or {group} of pyproject.toml"
    )
    source: Source | None = Field(None, description="modules of Myriad: {modules: [...]}")
    files: tuple[File, ...] = Field((), description="files of the image's folder: {from, to, mode}")
    entrypoint: tuple[str, ...] = Field(
        min_length=1, description="the program and its first arguments, at least one word"
    )
    command: tuple[str, ...] = Field((), description="arguments that a user may replace")
    env: dict[str, str] = Field(default_factory=dict, description="environment variables, both sides text")
    user: Annotated[str, Field(pattern=r"^\d+(:\d+)?$")] = Field(
        "65532:65532", description='numeric uid or uid:gid in quotes, such as "65532:65532"'
    )
    working_dir: _AbsolutePath | None = Field(None, description="absolute path")
    labels: dict[str, str] = Field(default_factory=dict, description="OCI labels, both sides text")
    gpu: Gpu | None = Field(
        None, description="what the image asks of GPUs, such as {archs: [sm_90]}; without it, it has no need of one"
    )
    pins: dict[str, _Version] = Field(
        default_factory=dict,
        description='versions that must be found in the image, two parts or more in quotes as "2.12.1": python, '
        "torch, cuda, cudnn, nccl, or a package's name",
    )
    budget_mb: Annotated[int, BeforeValidator(_whole), Field(gt=0)] = Field(
        description="most that a node with an empty store may pull, a whole number of MB (10**6 bytes) above 0"
    )
    layer_mb: Annotated[int, BeforeValidator(_whole), Field(ge=1, le=10_000)] = Field(
        LAYER_MB, description="most that one layer may weigh in MB, 1 to 10000, unless one file alone is larger"
    )
    compression: Literal["zstd", "gzip"] = Field(
        "zstd", description="zstd, or gzip for runtimes before containerd 1.5 and Docker 23"
    )
    smoke: tuple[Annotated[Smoke, BeforeValidator(_smoke, json_schema_input_type=str | list[str] | Smoke)], ...] = (
        Field(
            (),
            description="commands that must succeed in a container: a line, a list, or {run, expect, timeout_s}",
        )
    )
    bundle: bool = Field(True, description="whether a bundle carries the image; large ones are pushed by themselves")

    @model_validator(mode="before")
    @classmethod
    def _versions_once(cls, value: Any) -> Any:
        """What `pins` says of CUDA and torch holds for `gpu` too."""
        if (
            not isinstance(value, dict)
            or not isinstance(value.get("gpu"), dict)
            or not isinstance(value.get("pins"), dict)
        ):
            return value
        gpu = dict(value["gpu"])
        for key in ("torch", "cuda", "cudnn", "nccl"):
            if isinstance(value["pins"].get(key), str):
                gpu.setdefault(key, value["pins"][key])
        return {**value, "gpu": gpu}

    @field_validator("entrypoint")
    @classmethod
    def _starts_something(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value[0].strip():
            raise ValueError("its first word is empty; name the program")
        return value

    @field_validator("user")
    @classmethod
    def _ids(cls, value: str) -> str:
        if any(int(part) > _MOST_ID for part in value.split(":")):
            raise ValueError(f"{value} is beyond the largest id of Linux, {_MOST_ID}")
        return value

    @field_validator("env")
    @classmethod
    def _names_of_variables(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not name or re.search(r"[=\s\0]", name):
                raise ValueError(f'"{name}" cannot name a variable: no blank, no "=", and not empty')
            if name == REQUIRE_CUDA:
                raise ValueError(f"{name} is computed from gpu (`myriad image verdict` prints it); leave it out")
            if "\0" in value[name]:
                raise ValueError(f"{name} has a NUL in it, which no variable can hold")
        return value

    @field_validator("pins")
    @classmethod
    def _pinned_once(cls, value: dict[str, str]) -> dict[str, str]:
        seen: dict[str, str] = {}
        for name in value:
            plain = str(canonicalize_name(name))
            if not plain:
                raise ValueError("one has no name; say which package it is for")
            if plain in seen:
                raise ValueError(f"{seen[plain]} and {name} are the same package; pin it once")
            seen[plain] = name
        return value

    @model_validator(mode="after")
    def _consistent(self) -> ImageDefinition:
        if self.gpu is not None:
            for key in ("torch", "cuda", "cudnn", "nccl"):
                own, pinned = getattr(self.gpu, key), self.pins.get(key)
                if own and pinned and own != pinned:
                    raise ValueError(f"gpu.{key} is {own}, but pins.{key} is {pinned}; say it once, in pins")
        external = isinstance(self.base, ExternalBase)
        if self.python is not None and not external:
            raise ValueError(f"python is for an external base; this one has Python {DEBIAN_PYTHON} of Debian 12")
        if external and self.packages:
            raise ValueError("packages are installed on debian; an external base brings its own")
        if external and self.python is None and (self.wheels is not None or self.source is not None):
            raise ValueError('wheels on an external base need to know its Python: python: {version: "3.12"}')
        targets = [file.target for file in self.files]
        twice = sorted({one for one in targets if targets.count(one) > 1})
        if twice:
            raise ValueError(f"files: two are written to {', '.join(twice)}")
        for target in sorted(targets):
            within = [one for one in targets if one.startswith(f"{target}/")]
            if within:
                raise ValueError(f"files: {target} is a file, so {within[0]} cannot lie in it")
        return self

    @property
    def python_version(self) -> str:
        """The Python that wheels are for."""
        return self.python.version if self.python is not None else DEBIAN_PYTHON


def runtime_folders(images: Path) -> list[Path]:
    """The folders of runtime images below `images/`, sorted; those of node images (`node-*`) are of another kind."""
    return sorted(path.parent for path in images.glob("*/image.yml") if not path.parent.name.startswith(NODE_PREFIX))


def load_definition(folder: Path) -> ImageDefinition:
    """Read and check `image.yml`, alone and against the files that it names.

    Raises:
        InputError: it is missing, is no YAML, or says something that is not allowed; all of it is reported together.
    """
    path = folder / "image.yml"
    if folder.name.startswith(NODE_PREFIX):
        raise InputError(
            "is a node image, not a runtime image", where=str(folder), hint="`myriad image --help` lists its verbs"
        )
    value, problems = read_yaml(path, hint="name a folder of images/")
    definition: ImageDefinition | None = None
    try:
        definition = ImageDefinition.model_validate(value)
    except ValidationError as error:
        problems += problems_of(error, ImageDefinition)
    problems += _missing_files(folder, value)
    if problems or definition is None:
        raise InputError(report(problems), where=str(path), hint="docs/images.md explains every key; nothing was built")
    return definition


def _missing_files(folder: Path, value: Any) -> list[tuple[str, str]]:
    """Files that image.yml names and the folder lacks, whatever else is wrong with it."""
    if not isinstance(value, dict):
        return []
    named: list[tuple[str, Any, str]] = []
    files = value.get("files")
    for number, file in enumerate(files if isinstance(files, list) else []):
        if isinstance(file, dict):
            named.append((f"files.{number}.from", file.get("from"), f"a file of {folder}"))
    wheels = value.get("wheels")
    if isinstance(wheels, dict):
        named.append(("wheels.requirements", wheels.get("requirements"), "a file of the image's folder"))
    found = []
    for key, name, allowed in named:
        if not isinstance(name, str) or name.startswith("/") or ".." in Path(name).parts:
            continue  # the model says what is wrong with it
        if (folder / name).is_dir():
            found.append((key, f'is "{name}", which is a folder; {allowed}'))
        elif not (folder / name).is_file():
            found.append((key, f'is "{name}", which does not exist; {allowed}'))
    return found


def schema_text() -> str:
    """The JSON schema of image.yml as it stands in docs/schema/image.json."""
    schema = ImageDefinition.model_json_schema(by_alias=True)
    named = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **schema}
    return json.dumps(named, indent=2, sort_keys=False) + "\n"
