"""Where things are fetched from and kept: mirrors, proxies and the cache, read once and passed on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from myriad.errors import InputError

_DEBIAN = "http://deb.debian.org/debian"
_ENV_PREFIX = "MYRIAD_MIRROR_"
_PROXY_KEYS = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


class Mirrors(BaseModel):
    """The one place for mirrors and proxies. An unset mirror means: the origin itself.

    Environment: `MYRIAD_MIRROR_PYTHON`, `MYRIAD_MIRROR_GO`, `MYRIAD_MIRROR_GO_SUMDB`, `MYRIAD_MIRROR_APT`,
    `MYRIAD_MIRROR_APT_SECURITY`, `MYRIAD_MIRROR_REGISTRIES` and `MYRIAD_MIRROR_RELEASES`
    (`host=url[,host=url...]`; `*` stands for every other host), `HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY`.
    File: `MYRIAD_MIRRORS_FILE`, else `~/.config/myriad/mirrors.yml`, with the same keys in lower case. The
    environment wins over the file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    python: str | None = Field(None, description="Python package index, as UV_INDEX_URL takes it")
    go: str | None = Field(None, description="Go module proxy, as GOPROXY takes it")
    go_sumdb: str | None = Field(None, description="Go checksum database, as GOSUMDB takes it; `off` behind a mirror")
    apt: str | None = Field(None, description="base URL that replaces http://deb.debian.org/debian")
    apt_security: str | None = Field(None, description="base URL that replaces the distribution's security archive")
    registries: dict[str, str] = Field(default_factory=dict, description="registry host -> base URL of its mirror")
    releases: dict[str, str] = Field(default_factory=dict, description="release host -> base URL of its mirror")
    http_proxy: str | None = None
    https_proxy: str | None = None
    no_proxy: str | None = None

    def release_url(self, url: str) -> str:
        """The URL to fetch from: `url` itself, or its path below the mirror of its host."""
        return _mirrored(url, self.releases)

    def registry_url(self, host: str) -> str:
        """The base URL of a registry host, or of its mirror."""
        return _mirrored(f"https://{host}", self.registries)

    def apt_url(self, pool: str) -> str:
        """The URL of a file of the Debian archive, or of its mirror."""
        return f"{(self.apt or _DEBIAN).rstrip('/')}/{pool}"

    def proxy_environment(self) -> dict[str, str]:
        """The proxy variables in both spellings, for child processes and for the nodes' units; empty without one."""
        values = dict(zip(_PROXY_KEYS, (self.http_proxy, self.https_proxy, self.no_proxy), strict=True))
        set_values = {key: value for key, value in values.items() if value}
        return set_values | {key.lower(): value for key, value in set_values.items()}

    def go_environment(self) -> dict[str, str]:
        """GOPROXY and GOSUMDB for the go command; empty when neither is set here."""
        values = {"GOPROXY": self.go, "GOSUMDB": self.go_sumdb}
        return {key: value for key, value in values.items() if value}

    def python_environment(self) -> dict[str, str]:
        """The index variables of uv and pip. uv.lock stays valid: it names files by hash, the mirror serves them."""
        return {"UV_DEFAULT_INDEX": self.python, "PIP_INDEX_URL": self.python} if self.python else {}


def _mirrored(url: str, mirrors: Mapping[str, str]) -> str:
    parts = urlsplit(url)
    mirror = mirrors.get(parts.netloc) or mirrors.get("*")
    if not mirror:
        return url
    base = urlsplit(mirror)
    # Under `*` several hosts share one mirror, so the host becomes the first part of the path.
    host = "" if parts.netloc in mirrors else f"/{parts.netloc}"
    return urlunsplit((base.scheme, base.netloc, f"{base.path.rstrip('/')}{host}{parts.path}", parts.query, ""))


def read_mirrors(environment: Mapping[str, str] | None = None) -> Mirrors:
    """Read the mirror settings from the file and the environment.

    Raises:
        InputError: the file or a variable is not what Mirrors allows; names it.
    """
    env = os.environ if environment is None else environment
    default = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "~")).expanduser() / ".config")
    path = Path(env["MYRIAD_MIRRORS_FILE"]) if env.get("MYRIAD_MIRRORS_FILE") else default / "myriad" / "mirrors.yml"
    values: dict[str, object] = {}
    if path.is_file():
        try:
            loaded = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except yaml.YAMLError as error:
            raise InputError(f"is not YAML: {error}", where=str(path)) from error
        if not isinstance(loaded, dict):
            raise InputError("must be a mapping of mirror names to URLs", where=str(path))
        values.update(loaded)
    elif env.get("MYRIAD_MIRRORS_FILE"):
        raise InputError("does not exist", where=str(path), hint="correct or unset MYRIAD_MIRRORS_FILE")
    for key in ("python", "go", "go_sumdb", "apt", "apt_security"):
        if value := env.get(f"{_ENV_PREFIX}{key.upper()}"):
            values[key] = value
    for key in ("registries", "releases"):
        if value := env.get(f"{_ENV_PREFIX}{key.upper()}"):
            values[key] = _pairs(value, where=f"{_ENV_PREFIX}{key.upper()}")
    for key in _PROXY_KEYS:
        if value := env.get(key) or env.get(key.lower()):
            values[key.lower()] = value
    try:
        return Mirrors.model_validate(values)
    except ValidationError as error:
        names = ", ".join(".".join(str(part) for part in item["loc"]) for item in error.errors())
        raise InputError(
            f"wrong mirror settings: {names}", where=str(path), hint=f"allowed: {', '.join(Mirrors.model_fields)}"
        ) from error


def _pairs(value: str, *, where: str) -> dict[str, str]:
    pairs = {}
    for item in filter(None, (part.strip() for part in value.split(","))):
        host, separator, url = item.partition("=")
        if not separator or not url:
            raise InputError(f"{item!r} is not host=url", where=where)
        pairs[host.strip()] = url.strip()
    return pairs


def cache_root(environment: Mapping[str, str] | None = None) -> Path:
    """`$XDG_CACHE_HOME/myriad`, by default `~/.cache/myriad`."""
    env = os.environ if environment is None else environment
    base = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME", "~")).expanduser() / ".cache")
    return Path(base) / "myriad"


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Seconds. A server that sends nothing for `read_s` is slow; a host that does not answer in `probe_s` is away."""

    probe_s: float = 2.0
    connect_s: float = 10.0
    read_s: float = 30.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the stack's functions need from their surroundings; passed in, never global."""

    cache: Path = field(default_factory=cache_root)
    mirrors: Mirrors = field(default_factory=Mirrors)
    timeouts: Timeouts = field(default_factory=Timeouts)
    parallel: int = 4
    retries: int = 3
    arch: str = "amd64"

    @property
    def store_root(self) -> Path:
        """The content-addressed store."""
        return self.cache / "store"

    @property
    def downloads(self) -> Path:
        """Partial downloads that a later run resumes."""
        return self.cache / "downloads"

    @property
    def builds(self) -> Path:
        """Build records: key -> what was built, so that nothing is built twice."""
        return self.cache / "builds"


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of this machine: its cache directory, mirrors and architecture."""
    return Settings(cache=cache_root(environment), mirrors=read_mirrors(environment), arch=machine_arch())


def machine_arch() -> str:
    """The architecture in Go's words, `amd64` or `arm64`. Raises InputError for any other machine."""
    machine = os.uname().machine
    names = {"x86_64": "amd64", "aarch64": "arm64"}
    if machine not in names:
        raise InputError(f"this machine is {machine}; the stack is built for x86_64 and aarch64")
    return names[machine]
