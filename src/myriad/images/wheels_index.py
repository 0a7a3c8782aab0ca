"""Where wheels come from: a package index, asked by hash, into the store.

Speaks the simple repository API (https://packaging.python.org/en/latest/specifications/simple-repository-api/) as JSON
or as HTML. What is in the store by its sha256 is never asked for again, so an image is rebuilt without an index.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import httpx
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from myriad.errors import InputError, MyriadError, UnreachableError
from myriad.images.wheels import Locked, Wheel, rank, supported_tags
from myriad.stack.fetch import Fetcher, LazyClient, VanishedError, Wanted
from myriad.stack.settings import Settings
from myriad.stack.store import Store

PYPI = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json"
_ANCHOR = re.compile(r'<a\s[^>]*href="([^"]+)"', re.I)


OnFile = Callable[[Wanted, int, "int | None"], None]
"""Told the file, the bytes that came, and all of them where the server says it."""


@dataclass(frozen=True)
class _File:
    """A file that an index offers."""

    filename: str
    url: str
    sha256: str
    size: int


def index_urls(
    settings: Settings, extra: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> list[str]:
    """The indexes to ask, in order: the image's own, then the one that uv and pip are told to use, else PyPI."""
    env = os.environ if environment is None else environment
    told = settings.mirrors.python or env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or env.get("PIP_INDEX_URL")
    return [*(settings.mirrors.release_url(url).rstrip("/") for url in extra), (told or PYPI).rstrip("/")]


class Wheelhouse:
    """Finds and fetches wheels.

    Args:
        store: where they are kept by sha256.
        settings: mirrors, proxies, timeouts.
        indexes: further indexes to ask first.
    """

    def __init__(self, store: Store, settings: Settings, *, indexes: Sequence[str] = ()) -> None:
        self._store = store
        self._settings = settings
        self._indexes = index_urls(settings, indexes)
        self._client = LazyClient(settings, None)
        self._pages: dict[tuple[str, str], list[_File]] = {}

    def __enter__(self) -> Wheelhouse:
        return self

    def __exit__(self, *details: object) -> None:
        self._client.close()

    def choose(self, locked: Locked, *, python: str) -> Wheel:
        """The file of a locked package that fits the image best.

        Raises:
            InputError: none of its hashes belongs to a wheel for this Python and processor.
            UnreachableError: no index answers and the lock does not name the file.
        """
        if locked.filename and len(locked.hashes) == 1 and locked.size:
            if rank(locked.filename, supported_tags(python)) is None:
                raise InputError(
                    f"{locked.filename} is not for Python {python} on x86_64",
                    hint="`myriad image lock NAME` for this Python",
                )
            return Wheel(locked.name, locked.version, locked.filename, locked.hashes[0], locked.size)
        tags = supported_tags(python)
        fitting = [
            (order, file)
            for file in self._offered(locked.name)
            if file.sha256 in locked.hashes and (order := rank(file.filename, tags)) is not None
        ]
        if not fitting:
            raise InputError(
                f"no wheel of {locked.name} {locked.version} for Python {python} on x86_64 has a hash of the lock",
                hint="lock it again; packages without wheels are not built here",
            )
        file = min(fitting, key=lambda one: (one[0], one[1].filename))[1]
        return Wheel(locked.name, locked.version, file.filename, file.sha256, file.size)

    def complete(self, wheel: Wheel) -> Wheel:
        """The wheel with its size, where the index or the store says it."""
        if wheel.size:
            return wheel
        if self._store.has(wheel.sha256):
            return replace(wheel, size=self._store.path(wheel.sha256).stat().st_size)
        found = next((file for file in self._offered(wheel.name) if file.sha256 == wheel.sha256), None)
        return replace(wheel, size=found.size) if found is not None else wheel

    def fetch(self, wheels: Iterable[Wheel], *, progress: OnFile | None = None) -> None:
        """Bring wheels into the store.

        Raises:
            VanishedError: no index has a file with that hash.
            UnreachableError, FetchError, ChecksumError.
        """
        missing = [wheel for wheel in wheels if not self._store.has(wheel.sha256)]
        if not missing:
            return
        wanted = []
        for wheel in missing:
            file = next((one for one in self._offered(wheel.name) if one.sha256 == wheel.sha256), None)
            if file is None:
                raise VanishedError(
                    f"no index has a file of {wheel.name} {wheel.version} with sha256 {wheel.sha256}",
                    where=", ".join(self._indexes),
                    hint="it was withdrawn or replaced; another file is never taken: lock the package again",
                )
            wanted.append(Wanted(name=wheel.filename, url=file.url, sha256=wheel.sha256))
        with Fetcher(store=self._store, settings=self._settings, client=self._client.get()) as fetcher:
            fetcher.fetch_all(wanted, progress=progress)

    def _offered(self, name: str) -> list[_File]:
        """Every file that the indexes offer for a package, the first index first."""
        found: list[_File] = []
        silent: list[str] = []
        for index in self._indexes:
            try:
                found += self._page(index, name)
            except UnreachableError as error:
                silent.append(str(error))
        if not found and silent:
            raise UnreachableError(
                f"no index answers for {name}: {silent[0]}",
                hint="set MYRIAD_MIRROR_PYTHON, UV_DEFAULT_INDEX or a proxy",
            )
        return found

    def _page(self, index: str, name: str) -> list[_File]:
        if (index, name) in self._pages:
            return self._pages[index, name]
        url = f"{index}/{name}/"
        try:
            response = self._client.get().get(url, headers={"Accept": f"{_JSON}, text/html;q=0.5"})
        except httpx.TransportError as error:
            raise UnreachableError(f"the package index does not answer ({error})", where=url) from error
        if response.status_code == 404:
            files: list[_File] = []
        elif response.status_code != 200:
            raise UnreachableError(f"the package index answers {response.status_code}", where=url)
        elif "json" in response.headers.get("Content-Type", ""):
            files = [
                _File(
                    one["filename"],
                    urljoin(str(response.url), one["url"]),
                    one["hashes"].get("sha256", ""),
                    one.get("size") or 0,
                )
                for one in response.json()["files"]
            ]
        else:
            files = list(_anchors(response.text, str(response.url)))
        self._pages[index, name] = files
        return files


def _anchors(page: str, base: str) -> Iterable[_File]:
    for match in _ANCHOR.finditer(page):
        url = urlsplit(urljoin(base, unescape(match[1])))
        hashed = re.fullmatch(r"sha256=([0-9a-f]{64})", url.fragment)
        if hashed:
            yield _File(unquote(url.path.rpartition("/")[2]), url._replace(fragment="").geturl(), hashed[1], 0)


def project_wheels(repository: Path, locked: Sequence[Locked], *, python: str) -> list[Wheel]:
    """The wheels of a dependency group: uv.lock names each file with its hash and size.

    Raises:
        InputError: a package has no wheel for this Python and processor there.
    """
    tags = supported_tags(python)
    offered: dict[str, list[Wheel]] = {}
    for package in tomllib.loads((repository / "uv.lock").read_text(encoding="utf-8"))["package"]:
        name = str(canonicalize_name(package["name"]))
        for file in package.get("wheels", ()):
            filename = unquote(urlsplit(file["url"]).path.rpartition("/")[2])
            value = file["hash"].removeprefix("sha256:")
            offered.setdefault(name, []).append(Wheel(name, package["version"], filename, value, file.get("size", 0)))
    found = []
    for one in locked:
        fitting = [
            (order, wheel)
            for wheel in offered.get(one.name, ())
            if wheel.sha256 in one.hashes and (order := rank(wheel.filename, tags)) is not None
        ]
        if not fitting:
            raise InputError(
                f"{one.name} {one.version} has no wheel for Python {python} on x86_64",
                where=str(repository / "uv.lock"),
                hint="packages without wheels are not built into images",
            )
        found.append(min(fitting, key=lambda each: (each[0], each[1].filename))[1])
    return found


def wheel_of(filename: str, sha256: str, size: int) -> Wheel:
    """A wheel from its file name.

    Raises:
        MyriadError: it is no wheel's name.
    """
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        raise MyriadError(f"{filename} is no wheel: {error}") from error
    return Wheel(str(name), str(version), filename, sha256, size)
