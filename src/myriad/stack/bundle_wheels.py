"""The controller's own environment in a bundle: the wheels that uv.lock names, for `make env` without a network.

What is needed is walked from the project's entry in uv.lock: its dependencies, the extra `build` and the group `dev`,
markers judged for Linux and each wanted Python. Of each package the best wheel for each Python is taken, as an
installer would choose it; a package without one comes as its source archive.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from myriad.errors import InputError
from myriad.stack.bundle import WheelEntry
from myriad.stack.fetch import Fetcher, FetchError, Wanted, make_client
from myriad.stack.settings import Settings
from myriad.stack.store import Store

#: Pythons that the project supports; Debian 12 has the first, Ubuntu 24.04 the second, Debian 13 the third.
PYTHONS = ("3.11", "3.12", "3.13")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_GLIBC_MINORS = range(40, 4, -1)
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """One file that uv.lock pins: of which package, its name, address and sha256 (hex)."""

    package: str
    version: str
    filename: str
    url: str
    sha256: str


def read_uv_lock(path: Path) -> dict[str, Any]:
    """uv.lock as a mapping. Raises InputError when it is not one."""
    try:
        value = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path), hint="run `uv lock` in the clone") from error
    if not isinstance(value.get("package"), list):
        raise InputError("names no packages", where=str(path), hint="run `uv lock` in the clone")
    return value


def environment_files(
    lock: Mapping[str, Any],
    *,
    arch: str,
    pythons: Iterable[str] = PYTHONS,
    extras: Iterable[str] = ("build",),
    groups: Iterable[str] = ("dev",),
) -> list[Pinned]:
    """The files of the project's environment.

    Args:
        lock: the content of uv.lock.
        arch: amd64 or arm64.
        pythons: versions as `3.11`.
        extras: of the project.
        groups: dependency groups of the project.

    Raises:
        InputError: a package has neither a wheel that fits nor a source archive, or a file has no sha256.
    """
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    root: Mapping[str, Any] | None = None
    for package in lock["package"]:
        by_name.setdefault(package["name"], []).append(package)
        if "editable" in package.get("source", {}) or "virtual" in package.get("source", {}):
            root = package
    if root is None:
        raise InputError("names no project of its own", where="uv.lock", hint="run `uv lock` in the clone")
    chosen: dict[str, Pinned] = {}
    for python in pythons:
        tags = _tags(python, arch)
        for package in _closure(root, by_name, _environment(python, arch), extras, groups):
            item = _choose(package, tags, python)
            chosen[item.filename] = item
    return sorted(chosen.values(), key=lambda item: item.filename)


def unbuildable(files: Iterable[Pinned]) -> list[str]:
    """A sentence for each source archive that an installer without a network could not build.

    uv.lock does not say what building needs; for nearly all that are without a wheel it is setuptools.
    """
    known = list(files)
    if any(canonicalize_name(item.package) == "setuptools" for item in known):
        return []
    return [
        f"{item.filename} has to be built where it is installed, and uv.lock has no setuptools to do it with: "
        "`make env` from these wheels will stop there; add setuptools to the group dev and run `uv lock`"
        for item in known
        if not item.filename.endswith(".whl")
    ]


def _closure(
    root: Mapping[str, Any],
    by_name: Mapping[str, list[Mapping[str, Any]]],
    environment: Mapping[str, str],
    extras: Iterable[str],
    groups: Iterable[str],
) -> Iterator[Mapping[str, Any]]:
    """The packages that the project needs in an environment, itself left out."""
    first = [*root.get("dependencies", [])]
    for extra in extras:
        first += root.get("optional-dependencies", {}).get(extra, [])
    for group in groups:
        first += root.get("dev-dependencies", {}).get(group, [])
    pending = list(first)
    seen: set[tuple[str, str]] = set()
    given: set[tuple[str, str]] = set()
    while pending:
        need = pending.pop()
        if "marker" in need and not Marker(need["marker"]).evaluate({**environment, "extra": ""}):
            continue
        for package in by_name.get(need["name"], []):
            if "version" in need and package.get("version") != need["version"]:
                continue  # uv.lock names one of several where the Pythons differ
            name = (package["name"], package.get("version", ""))
            wanted = [("", package.get("dependencies", []))]
            wanted += [
                (extra, package.get("optional-dependencies", {}).get(extra, [])) for extra in need.get("extra", [])
            ]
            for extra, more in wanted:
                if (f"{name}", extra) not in seen:
                    seen.add((f"{name}", extra))
                    pending += more
            if package is not root and name not in given:
                given.add(name)
                yield package


def _choose(package: Mapping[str, Any], tags: Mapping[Tag, int], python: str) -> Pinned:
    """The best wheel of a package for these tags, else its source archive."""
    best: tuple[int, Mapping[str, Any]] | None = None
    for wheel in package.get("wheels", []):
        try:
            _, _, _, found = parse_wheel_filename(_filename(wheel["url"]))
        except InvalidWheelFilename:
            continue
        rank = min((tags[tag] for tag in found if tag in tags), default=None)
        if rank is not None and (best is None or rank < best[0]):
            best = (rank, wheel)
    source = best[1] if best is not None else package.get("sdist")
    if source is None:
        raise InputError(
            f"{package['name']} {package.get('version', '')} has no wheel for Python {python} and no source archive",
            where="uv.lock",
            hint="leave the Python out (--python), or the environment (--no-wheels)",
        )
    algorithm, _, digest = str(source.get("hash", "")).partition(":")
    if algorithm != "sha256" or len(digest) != 64:
        raise InputError(f"{_filename(source['url'])} has no sha256", where="uv.lock", hint="run `uv lock` again")
    return Pinned(
        package=package["name"],
        version=package.get("version", ""),
        filename=_filename(source["url"]),
        url=source["url"],
        sha256=digest,
    )


def _filename(url: str) -> str:
    return urlsplit(url).path.rsplit("/", 1)[-1].replace("%2B", "+").replace("%2b", "+")


def _tags(python: str, arch: str) -> dict[Tag, int]:
    """Wheel tags of a CPython on Linux with glibc, the best first."""
    major, minor = (int(part) for part in python.split("."))
    machine = _MACHINES[arch]
    platforms = []
    for glibc in _GLIBC_MINORS:
        platforms.append(f"manylinux_2_{glibc}_{machine}")
        if glibc in _LEGACY:
            platforms.append(f"{_LEGACY[glibc]}_{machine}")
    platforms.append(f"linux_{machine}")
    ordered = [*cpython_tags((major, minor), platforms=platforms)]
    ordered += compatible_tags((major, minor), interpreter=f"cp{major}{minor}", platforms=platforms)
    return {tag: rank for rank, tag in reversed(list(enumerate(ordered)))}


def _environment(python: str, arch: str) -> dict[str, str]:
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": _MACHINES[arch],
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def fetch_wheels(
    files: Iterable[Pinned],
    store: Store,
    settings: Settings,
    on_fetched: Callable[[str, int], None] = lambda name, size: None,
) -> list[WheelEntry]:
    """Bring the files into the store, from where uv.lock says or from the mirror of the settings.

    Raises:
        FetchError: one cannot be had, or is another file.
    """
    wanted = list(files)
    index = settings.mirrors.python

    with Fetcher(store=store, settings=settings) as fetcher, make_client(settings) as client:

        def one(item: Pinned) -> WheelEntry:
            there = store.has(item.sha256)
            url = item.url if there or not index else find_in_index(client, index, item.package, item.filename)
            path = fetcher.fetch(Wanted(name=item.filename, url=url, sha256=item.sha256))
            size = path.stat().st_size
            if not there:
                on_fetched(item.filename, size)
            return WheelEntry(
                name=item.package,
                version=item.version,
                filename=item.filename,
                sha256=item.sha256,
                size=size,
                url=item.url,
            )

        with ThreadPoolExecutor(max_workers=settings.parallel) as pool:
            return list(pool.map(one, wanted))


def find_in_index(client: httpx.Client, index: str, package: str, filename: str) -> str:
    """The address of a file in a simple index, JSON or HTML. Raises FetchError when it lists no such file."""
    page = f"{index.rstrip('/')}/{canonicalize_name(package)}/"
    accept = {"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.5"}
    try:
        answer = client.get(page, headers=accept)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise FetchError(f"the index does not answer: {error}", where=page, hint="see MYRIAD_MIRROR_PYTHON") from error
    try:
        links = [(str(entry["filename"]), str(entry["url"])) for entry in answer.json()["files"]]
    except (ValueError, KeyError, TypeError):
        links = [(_filename(link), link.partition("#")[0]) for link in re.findall(r'href="([^"]+)"', answer.text)]
    for name, link in links:
        if name == filename:
            return urljoin(str(answer.url), link)
    raise FetchError(f"the index lists no {filename}", where=page, hint="the mirror has to hold what uv.lock names")


def simple_index(wheels: Iterable[WheelEntry]) -> dict[str, list[WheelEntry]]:
    """Files of a simple index by normalised project name."""
    found: dict[str, list[WheelEntry]] = {}
    for entry in wheels:
        found.setdefault(canonicalize_name(entry.name), []).append(entry)
    return dict(sorted(found.items()))
