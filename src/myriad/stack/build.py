"""`myriad bundle build`: a bundle from a lock, from wherever the lock's files can be had."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Literal

from myriad.errors import InputError, MyriadError
from myriad.stack.archive import extract_members, folder_as_tgz
from myriad.stack.bundle import (
    FILE_MEDIA_TYPE,
    MANIFEST,
    Bundle,
    FileEntry,
    ImageEntry,
    Manifest,
    Origin,
    manifest_bytes,
)
from myriad.stack.bundle_images import ImageBuilder
from myriad.stack.bundle_offline import OfflineWish, gather
from myriad.stack.bundle_offline import check as check_wish
from myriad.stack.compat import check
from myriad.stack.events import Event, OnEvent, ignore
from myriad.stack.fetch import (
    Fetcher,
    NotReachableError,
    Reachability,
    SlowServerError,
    TruncatedError,
    VanishedError,
    Wanted,
)
from myriad.stack.gobuild import GoBuilder, find_toolchain
from myriad.stack.lock import OPEN, Lock, ModuleSource, PackageSource, load_rules
from myriad.stack.settings import Settings
from myriad.stack.sources import Choice, Plan, SourceMode, origins, plan_sources, release_gives, release_url, selected
from myriad.stack.store import Store, link_or_copy

_KEPT_TOGETHER = (NotReachableError, VanishedError, TruncatedError, SlowServerError)
_SOURCE_ROOT = Path(__file__).resolve().parents[1]


class SourcesError(MyriadError):
    """Required files cannot be had; names each and why, before anything is built."""


def lock_digest(lock: Lock) -> str:
    """The sha256 (hex) of a lock's content, whatever its comments and layout."""
    text = json.dumps(lock.model_dump(mode="json", by_alias=True), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def build_bundle(
    lock: Lock,
    out: Path,
    settings: Settings,
    on_event: OnEvent = ignore,
    *,
    source: SourceMode = "auto",
    only: Iterable[str] | None = None,
    also: Iterable[str] = (),
    images: bool = True,
    without: Iterable[str] = (),
    unreachable: Callable[[str], str | None] | None = None,
    offline: OfflineWish | None = None,
) -> Bundle:
    """Make a bundle directory. What is in the store already is neither fetched nor built again.

    Args:
        lock: the lock.
        out: the bundle's directory; a bundle that is there is brought up to date, and blobs it no longer names go.
        settings: cache, mirrors, timeouts, architecture.
        on_event: told of every step.
        source: see `plan_sources`.
        only: components; all but those on request when None. A bundle of some components holds just those.
        also: components on request to add.
        images: build images as well; Myriad's own only in a bundle of all components.
        without: folders of images/ to leave out.
        unreachable: URL -> reason; probes each host once when None.
        offline: packages, wheels and keys for a site without a network; none when None.

    Raises:
        InputError: the lock's versions do not go together.
        SourcesError: required files cannot be had; nothing has been built then.
        FetchError, BuildError, ArchiveError: one could not be had after all.
    """
    only_names = set(only) if only is not None else None
    components = selected(lock, only=only_names, also=set(also))
    refuse_conflicts(lock.program_versions())
    check_wish(offline or OfflineWish())
    if unreachable is None:
        reachability = Reachability(settings)
        if source != "modules":
            reachability.probe(origins(components, arch=settings.arch))
        unreachable = reachability.reason_unreachable
    plan = plan_sources(lock, components, mode=source, arch=settings.arch, unreachable=unreachable)
    if plan.refused:
        by_reason: dict[str, list[str]] = {}
        for name, reason in plan.refused.items():
            by_reason.setdefault(reason, []).append(name)
        lines = "\n".join(f"  {', '.join(names)}: {reason}" for reason, names in by_reason.items())
        raise SourcesError(
            f"{len(plan.refused)} required files cannot be had, so nothing was built:\n{lines}",
            hint="use a bundle from elsewhere, set MYRIAD_MIRROR_RELEASES, or build from modules: --source modules",
        )
    for name, reason in plan.left_out.items():
        on_event(Event(state="left_out", what=name, text=reason))
    builder = _Builder(lock, settings, on_event)
    files = builder.files(plan)
    made: list[ImageEntry] = []
    if images:
        image_builder = ImageBuilder(store=builder.store, settings=settings, on_event=on_event)
        made = image_builder.component_images(components, files)
        made += image_builder.upstream_images(components, plan.images)
        if only_names is None:
            made += image_builder.own_images(without=set(without))
    versions = _versions(lock, files)
    refuse_conflicts(lock.program_versions() | versions)
    more = gather(offline or OfflineWish(), lock, builder.store, settings, on_event)
    manifest = Manifest(
        myriad=package_version("myriad"),
        arch=settings.arch,
        lock_sha256=lock_digest(lock),
        versions=versions,
        files=list(files.values()),
        images=made,
        left_out=plan.left_out,
        only=sorted(only_names) if only_names is not None else [],
        packages=more.packages,
        wheels=more.wheels,
        served=more.served,
        apt=more.apt,
    )
    return write_bundle(manifest, out, builder.store)


def refuse_conflicts(versions: Mapping[str, str]) -> None:
    """Raise InputError when versions do not go together by the compatibility rules."""
    errors = [finding for finding in check(versions, load_rules()) if finding.level == "error"]
    if errors:
        lines = "\n".join(f"  {finding}" for finding in errors)
        raise InputError(f"the versions do not go together:\n{lines}", hint="see `myriad lock verify`")


def _versions(lock: Lock, files: Mapping[str, FileEntry]) -> dict[str, str]:
    """The lock's versions, corrected by what a source really gave (Debian's runc has a version of its own)."""
    return lock.versions() | {entry.component: entry.version for entry in files.values()}


def write_bundle(manifest: Manifest, out: Path, store: Store) -> Bundle:
    """Put the manifest and its blobs into `out`: blobs first, the manifest last, so that it never promises too much."""
    bundle = Bundle(out, manifest)
    wanted = set()
    for _, blob in bundle.blobs():
        target = bundle.path(blob.sha256)
        wanted.add(target)
        if not (target.is_file() and target.stat().st_size == blob.size):
            link_or_copy(store.need(blob.sha256), target)
    for entry in manifest.files:
        path = bundle.path(entry.sha256)
        if entry.kind == "binary" and path.stat().st_mode & 0o777 != 0o555:
            path.chmod(0o555)  # a program runs from where it lies
    temporary = out / f".{MANIFEST}.{os.getpid()}"
    temporary.write_bytes(manifest_bytes(manifest))
    temporary.replace(out / MANIFEST)
    for path in (out / "sha256").glob("??/*"):
        if path not in wanted:
            path.unlink()
    return bundle


class _Builder:
    """Executes a plan: downloads in parallel, then modules one after the other (go itself uses every core)."""

    def __init__(self, lock: Lock, settings: Settings, on_event: OnEvent) -> None:
        self._lock = lock
        self._settings = settings
        self._on_event = on_event
        self.store = Store(settings.store_root)
        self._fetcher = Fetcher(store=self.store, settings=settings)
        self._go: GoBuilder | None = None

    def files(self, plan: Plan) -> dict[str, FileEntry]:
        """All artifacts of the plan, in the lock's order."""
        with self._fetcher:
            return self._files(plan)

    def _files(self, plan: Plan) -> dict[str, FileEntry]:
        done: dict[str, FileEntry] = {}
        releases: dict[tuple[str, str], list[Choice]] = {}
        for choice in plan.choices:
            if choice.how == "release" and choice.release is not None:
                releases.setdefault((choice.component, choice.release), []).append(choice)
        rest = [choice for choice in plan.choices if choice.how != "release"]
        with ThreadPoolExecutor(max_workers=self._settings.parallel) as pool:
            for entries, failed in pool.map(self._release, releases.values()):
                done |= entries
                rest += failed
        done |= self._modules(rest)
        for choice in rest:
            if choice.how == "package":
                done |= self._package(choice)
            elif choice.how == "local":
                done[choice.artifact] = self._local(choice)
        return {choice.artifact: done[choice.artifact] for choice in plan.choices}

    def _release(self, choices: list[Choice]) -> tuple[dict[str, FileEntry], list[Choice]]:
        """One release file and the artifacts taken from it; or the choices to fall back to when it cannot be had."""
        first = choices[0]
        component = self._lock.component(first.component)
        key = first.release or ""
        file = component.sources.release[key]
        url = release_url(component, key, arch=self._settings.arch)
        pin = file.sha256[self._settings.arch]  # type: ignore[index]
        started = time.monotonic()

        def progress(received: int, total: int | None) -> None:
            self._on_event(
                Event(state="progress", what=first.component, how="release", done_bytes=received, total_bytes=total)
            )

        cached = self.store.has(pin)
        try:
            path = self._fetcher.fetch(Wanted(name=first.component, url=url, sha256=pin), progress=progress)
        except _KEPT_TOGETHER as error:
            if any(choice.fallback is None for choice in choices):
                raise
            text = f"{first.component}: {error.message} ({url}); built from source at the same version instead"
            self._on_event(Event(state="note", what=first.component, text=text))
            return {}, [choice.fallback for choice in choices if choice.fallback is not None]
        members = {
            choice.artifact: file.members[choice.artifact].format(version=component.version, arch=self._settings.arch)
            for choice in choices
            if file.members
        }
        digests = self._members(path, pin, members, where=url) if members else {choices[0].artifact: pin}
        entries = {}
        for choice in choices:
            origin = Origin(source="release", url=url, sha256=pin, member=members.get(choice.artifact))
            entries[choice.artifact] = self._entry(choice, component.version, digests[choice.artifact], origin)
        names = ", ".join(release_gives(key, file))
        seconds = time.monotonic() - started
        self._on_event(Event(state="cached" if cached else "done", what=names, how="release", seconds=seconds))
        return entries, []

    def _modules(self, choices: list[Choice]) -> dict[str, FileEntry]:
        grouped: dict[str, list[Choice]] = {}
        for choice in choices:
            if choice.how == "module" and choice.module is not None:
                grouped.setdefault(f"{choice.module.path}@{choice.module.version}", []).append(choice)
        entries: dict[str, FileEntry] = {}
        for group in grouped.values():
            module = group[0].module
            if module is None:
                continue
            component = self._lock.component(group[0].component)
            binaries = {choice.artifact for choice in group if choice.artifact in module.packages}
            built = self._builder().build_module(
                module, component_version=component.version, only=binaries, on_event=self._on_event
            )
            for choice in group:
                origin = Origin(
                    source="module",
                    module=f"{module.path}@{module.version}",
                    h1=module.h1,
                    go=self._lock.go,
                    package=module.packages.get(choice.artifact),
                    ldflags=module.ldflags or None,
                    staging=module.staging,
                    folder=module.folders.get(choice.artifact),
                    deps_sha256=built[choice.artifact].deps_sha256 if choice.artifact in built else None,
                )
                if choice.artifact in built:
                    digest = built[choice.artifact].sha256
                else:
                    digest = self._folder(module, module.folders[choice.artifact], choice.artifact)
                entries[choice.artifact] = self._entry(choice, component.version, digest, origin)
        return entries

    def _folder(self, module: ModuleSource, folder: str, name: str) -> str:
        """A folder of a module as a tar.gz in the store. Returns its sha256."""
        key = f"folder\0{module.path}\0{module.h1}\0{folder}"

        def make() -> dict[str, str]:
            root = self._builder().module_folder(module) / folder
            if not root.is_dir():
                raise SourcesError(f"the module holds no folder {folder}", where=f"{module.path}@{module.version}")
            return {name: self.store.put_bytes(folder_as_tgz(root, top=root.name))}

        return self._memo(key, make, name)[name]

    def _package(self, choice: Choice) -> dict[str, FileEntry]:
        component = self._lock.component(choice.component)
        package = component.sources.package
        if package is None:
            return {}
        started = time.monotonic()
        url, pin = package_url(package, self._settings)
        cached = self.store.has(pin)
        path = self._fetcher.fetch(Wanted(name=f"{package.name} {package.version}", url=url, sha256=pin))
        member = package.members[choice.artifact]
        digest = self._members(path, pin, {choice.artifact: member}, where=url)[choice.artifact]
        origin = Origin(
            source="package", package=package.name, package_version=package.version, sha256=pin, member=member, url=url
        )
        state: Literal["cached", "done"] = "cached" if cached else "done"
        self._on_event(Event(state=state, what=choice.artifact, how="package", seconds=time.monotonic() - started))
        return {choice.artifact: self._entry(choice, package.version, digest, origin)}

    def _local(self, choice: Choice) -> FileEntry:
        component = self._lock.component(choice.component)
        local = component.sources.local
        if local is None:
            raise SourcesError("the lock names no own source of it", where=choice.artifact)
        built = self._builder().build_local(
            _SOURCE_ROOT / local.folder, artifact=choice.artifact, on_event=self._on_event
        )
        origin = Origin(source="local", folder=f"src/myriad/{local.folder}", go=self._lock.go)
        return self._entry(choice, component.version, built.sha256, origin)

    def _members(self, archive: Path, pin: str, members: dict[str, str], *, where: str) -> dict[str, str]:
        key = f"members\0{pin}\0{json.dumps(members, sort_keys=True)}"
        return self._memo(key, lambda: extract_members(archive, members, self.store, where=where), *members)

    def _memo(self, key: str, make: Callable[[], dict[str, str]], *names: str) -> dict[str, str]:
        """Remember name -> sha256 under a key, as long as the store has the blobs."""
        path = self._settings.builds / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            known = json.loads(path.read_text(encoding="utf-8"))
            if all(self.store.has(known.get(name, "")) for name in names):
                return {name: str(known[name]) for name in names}
        made = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(made), encoding="utf-8")
        temporary.replace(path)
        return made

    def _builder(self) -> GoBuilder:
        if self._go is None:
            self._go = GoBuilder(toolchain=find_toolchain(self._lock.go), store=self.store, settings=self._settings)
        return self._go

    def _entry(self, choice: Choice, version: str, digest: str, origin: Origin) -> FileEntry:
        gzipped = choice.kind == "chart" or (origin.folder is not None and origin.source == "module")
        media_type = "application/gzip" if gzipped else FILE_MEDIA_TYPE
        return FileEntry(
            name=choice.artifact,
            component=choice.component,
            version=version,
            kind=choice.kind,
            sha256=digest,
            size=self.store.need(digest).stat().st_size,
            media_type=media_type,
            origin=origin,
        )


def package_url(package: PackageSource, settings: Settings) -> tuple[str, str]:
    """The URL and the sha256 of a Debian package. Raises SourcesError when its checksum is open."""
    pin = package.sha256.get(settings.arch, OPEN)  # type: ignore[call-overload]
    if pin == OPEN:
        raise SourcesError(
            f"the package's checksum for {settings.arch} is open",
            where=f"{package.name} {package.version}",
            hint="record it in the lock from the distribution's signed Packages index",
        )
    pool = package.pool.format(version=package.version, arch=settings.arch)
    return settings.mirrors.apt_url(pool), pin
