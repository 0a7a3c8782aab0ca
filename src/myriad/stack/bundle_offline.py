"""What a site without a network needs beside the stack itself: packages for its nodes, wheels for its controller, keys.

The set of packages is frozen when it is resolved for the first time: a later build of the same bundle takes the same
packages from the store and asks nobody, until `refresh` or another set of names asks the archive again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from myriad.errors import InputError
from myriad.stack import apt_repo
from myriad.stack.bundle import AptRepository, PackageEntry, ServedFile, WheelEntry
from myriad.stack.bundle_wheels import PYTHONS, environment_files, fetch_wheels, read_uv_lock, unbuildable
from myriad.stack.events import Event, OnEvent, ignore
from myriad.stack.fetch import Fetcher, Wanted
from myriad.stack.lock import Lock
from myriad.stack.settings import Settings
from myriad.stack.store import Store


@dataclass(frozen=True, kw_only=True)
class OfflineWish:
    """What a build adds for a site without a network.

    Attributes:
        distributions: of the nodes, as debian12; empty for no packages.
        roles: folder of the roles, which name what every node gets.
        extra_packages: `name` or `name=version`, for kernels' headers and the like.
        refresh: resolve the packages anew, although a frozen set is there.
        uv_lock: of the project; None for no wheels.
        pythons: that the controller may have.
        keys: public key files that go along, for images or vendors' repositories.
        signing_home: folder with the key that signs the apt repository; made when missing.
    """

    distributions: tuple[str, ...] = ()
    roles: Path | None = None
    extra_packages: tuple[str, ...] = ()
    refresh: bool = False
    uv_lock: Path | None = None
    pythons: tuple[str, ...] = PYTHONS
    keys: tuple[Path, ...] = ()
    signing_home: Path | None = None


def check(wish: OfflineWish) -> None:
    """Refuse what cannot be fulfilled, before an hour of building. Raises InputError."""
    for name in wish.distributions:
        apt_repo.distribution(name)
    for path in wish.keys:
        _key_bytes(path)
    if wish.uv_lock is not None:
        read_uv_lock(wish.uv_lock)


@dataclass(frozen=True, kw_only=True)
class OfflineParts:
    """What came of a wish: parts of the manifest, whose blobs are in the store."""

    packages: list[PackageEntry] = field(default_factory=list)
    wheels: list[WheelEntry] = field(default_factory=list)
    served: list[ServedFile] = field(default_factory=list)
    apt: AptRepository | None = None


def gather(wish: OfflineWish, lock: Lock, store: Store, settings: Settings, on_event: OnEvent = ignore) -> OfflineParts:
    """Bring everything that is wished for into the store.

    Raises:
        InputError: an unknown distribution, a key that cannot be read, a uv.lock that is none.
        AptError, FetchError: something cannot be had.
    """
    served = [_key_file(path, store) for path in wish.keys]
    packages: list[PackageEntry] = []
    apt: AptRepository | None = None
    if wish.distributions:
        work = _Packages(wish, lock, store, settings, on_event)
        packages, apt, indexes = work.gather()
        served += indexes
    wheels: list[WheelEntry] = []
    if wish.uv_lock is not None:
        wheels = _wheels(wish.uv_lock, wish.pythons, store, settings, on_event)
    return OfflineParts(packages=packages, wheels=wheels, served=served, apt=apt)


def _wheels(
    path: Path, pythons: tuple[str, ...], store: Store, settings: Settings, on_event: OnEvent
) -> list[WheelEntry]:
    started = time.monotonic()
    files = environment_files(read_uv_lock(path), arch=settings.arch, pythons=pythons)
    for sentence in unbuildable(files):
        on_event(Event(state="note", what="wheels", text=sentence))
    fetched, report = _counter("wheels", len(files), on_event)
    entries = fetch_wheels(files, store, settings, report)
    what = f"{len(entries)} wheels for Python {', '.join(pythons)}"
    on_event(_done(what, fetched(), time.monotonic() - started))
    return entries


def _counter(what: str, count: int, on_event: OnEvent) -> tuple[Callable[[], int], Callable[[str, int], None]]:
    done = [0, 0]

    def report(name: str, size: int) -> None:
        done[0] += 1
        done[1] += size
        text = f"{what} {done[0]} of {count}, {name}"
        on_event(Event(state="progress", what=text, how="release", done_bytes=done[1]))

    return (lambda: done[0]), report


def _done(what: str, fetched: int, seconds: float) -> Event:
    return Event(state="done" if fetched else "cached", what=what, how="release", seconds=seconds)


def _key_file(path: Path, store: Store) -> ServedFile:
    return _served(f"keys/{path.name}", _key_bytes(path), store)


def _key_bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    if b"PRIVATE KEY" in data:
        raise InputError("is a private key; a bundle goes to every node", where=str(path), hint="give the public half")
    return data


def _served(path: str, data: bytes, store: Store) -> ServedFile:
    return ServedFile(path=path, sha256=store.put_bytes(data), size=len(data))


class _Packages:
    """Resolves, fetches and indexes the packages of a wish."""

    def __init__(self, wish: OfflineWish, lock: Lock, store: Store, settings: Settings, on_event: OnEvent) -> None:
        self._wish = wish
        self._lock = lock
        self._store = store
        self._settings = settings
        self._on_event = on_event

    def gather(self) -> tuple[list[PackageEntry], AptRepository, list[ServedFile]]:
        """The packages of all distributions, what the manifest says of the repository, and its indexes."""
        if self._wish.roles is None:
            raise InputError("packages need the folder of the roles, which name what every node gets")
        entries: dict[str, PackageEntry] = {}
        suites: dict[str, str] = {}
        wanted: dict[str, list[str]] = {}
        unsigned: dict[str, tuple[bytes, str]] = {}
        indexes: list[ServedFile] = []
        for name in self._wish.distributions:
            item = apt_repo.distribution(name)
            groups = apt_repo.wanted_packages(self._lock, self._wish.roles, name, extra=self._wish.extra_packages)
            resolved, date = self._frozen(item, groups)
            self._fetch(name, resolved)
            for package in resolved:
                known = entries.get(package.sha256)
                entries[package.sha256] = PackageEntry(
                    name=package.name,
                    version=package.version,
                    arch=package.arch,
                    distributions=[*(known.distributions if known else []), name],
                    sha256=package.sha256,
                    size=package.size,
                    url=package.url,
                )
            suites[name] = item.suite
            wanted[name] = sorted({package for group in groups for package in group})
            for path, data in apt_repo.repository_files(item.suite, self._settings.arch, resolved, date=date).items():
                indexes.append(_served(f"apt/{path}", data, self._store))
                if path.endswith("/Release"):
                    unsigned[path] = (data, date)
        fingerprint, key, signatures = self._sign(unsigned)
        indexes += signatures
        repository = AptRepository(suites=suites, wanted=wanted, fingerprint=fingerprint, key=key)
        ordered = sorted(entries.values(), key=lambda entry: (entry.name, entry.version, entry.arch))
        return ordered, repository, sorted(indexes, key=lambda entry: entry.path)

    def _frozen(self, item: apt_repo.Distribution, groups: list[list[str]]) -> tuple[list[apt_repo.Resolved], str]:
        """The resolved set and its date: the frozen one, or a fresh one that is frozen now."""
        resolver = apt_repo.Resolver(item, self._settings)
        key = json.dumps([item.name, self._settings.arch, groups, resolver.sources()])
        record = self._settings.cache / "apt" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
        if not self._wish.refresh:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                value = json.loads(record.read_text(encoding="utf-8"))
                return [apt_repo.Resolved(**entry) for entry in value["packages"]], str(value["date"])
        self._on_event(Event(state="start", what=f"packages of {item.name}", how="package"))
        started = time.monotonic()
        resolver.update()
        found: dict[tuple[str, str, str], apt_repo.Resolved] = {}
        for group in groups:
            self._on_event(Event(state="progress", what=f"packages of {item.name}: {group[0]} and others", how="apt"))
            found |= apt_repo.by_name(resolver.resolve(group))
        resolved = [found[name] for name in sorted(found)]
        record.parent.mkdir(parents=True, exist_ok=True)
        temporary = record.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps({"date": resolver.date, "packages": [asdict(entry) for entry in resolved]}))
        temporary.replace(record)
        seconds = time.monotonic() - started
        text = f"{item.name}: {len(resolved)} packages resolved, archive of {resolver.date}, {seconds:.0f} s"
        self._on_event(Event(state="note", what=item.name, text=text))
        return resolved, resolver.date

    def _fetch(self, name: str, packages: Iterable[apt_repo.Resolved]) -> None:
        started = time.monotonic()
        wanted = [package for package in packages if not self._store.has(package.sha256)]
        fetched, report = _counter(f"packages of {name}", len(wanted), self._on_event)
        with Fetcher(store=self._store, settings=self._settings) as fetcher:

            def one(package: apt_repo.Resolved) -> None:
                fetcher.fetch(Wanted(name=package.name, url=package.url, sha256=package.sha256))
                report(package.name, package.size)

            with ThreadPoolExecutor(max_workers=self._settings.parallel) as pool:
                list(pool.map(one, wanted))
        self._on_event(_done(f"packages of {name}", fetched(), time.monotonic() - started))

    def _sign(self, unsigned: dict[str, tuple[bytes, str]]) -> tuple[str, str, list[ServedFile]]:
        """Fingerprint, public key and the signed indexes; empty ones where gpg is not here."""
        if not apt_repo.Signer.available():
            text = "gpg is not here: the apt repository is unsigned, and nodes take it as trusted by its address alone"
            self._on_event(Event(state="note", what="apt repository", text=text))
            return "", "", []
        signer = apt_repo.Signer(self._wish.signing_home or default_signing_home())
        try:
            fingerprint = signer.fingerprint()
            files: list[ServedFile] = []
            for path, (data, date) in unsigned.items():
                clear, detached = signer.sign(data, date=date)
                folder = f"apt/{path.removesuffix('Release')}"
                files.append(_served(f"{folder}InRelease", clear, self._store))
                files.append(_served(f"{folder}Release.gpg", detached, self._store))
            return fingerprint, signer.public_key(), files
        finally:
            signer.close()


def default_signing_home() -> Path:
    """Where the key lies that signs apt repositories of bundles: beside the mirror settings, not in the cache."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "myriad" / "bundle-key"


def package_path(entry: PackageEntry) -> str:
    """Where `serve` and the index have a package, below the repository's root."""
    return apt_repo.pool_path(entry)
