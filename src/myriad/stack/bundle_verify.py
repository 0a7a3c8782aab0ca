"""Is a bundle whole? Every file of its directory or tar against the manifest, and the manifest against the lock.

Hashing runs on every core (hashlib lets go of the interpreter), and what was read before and has the same size, time
and inode since need not be read again where the caller says so: the check before a site run costs one stat a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from myriad.errors import InputError
from myriad.stack.bundle import MANIFEST, Bundle, parse_manifest
from myriad.stack.lock import Lock
from myriad.stack.store import sha256_of

Kind = Literal["missing", "changed", "unreadable", "extra", "unnamed"]
OnProgress = Callable[[int, int], None]
_CHUNK_BYTES = 1 << 20
_MOST_MANIFEST = 256 << 10
"""Bytes; a manifest with a hundred layers has 20 kB."""
_ACTIONS: Mapping[Kind, str] = {
    "missing": "copy the bundle again from where it was made, or run `myriad bundle build` with the same --out",
    "changed": "copy the bundle again from where it was made, or run `myriad bundle build` with the same --out",
    "unreadable": "give the user that runs this the right to read it",
    "extra": "remove it: nothing in bundle.yml names it",
    "unnamed": "build the bundle again with this lock",
}


class Problem(BaseModel):
    """One thing that is wrong.

    Attributes:
        problem: missing, changed (size or content), unreadable, extra, or unnamed: the lock has it, bundle.yml has not.
        path: the file, relative to the bundle; empty where the lock names something that the manifest does not.
        component: whose it is, in words for images and packages; empty where nothing names the file.
        name: what it is called: an artifact, `image REPO:TAG`, `package NAME VERSION`, `wheel FILE`.
        expected: digest by the manifest, `sha256:<hex>`; empty where nothing is expected.
        found: digest of what lies there; empty where nothing does.
        detail: what is wrong, as a clause.
        action: what to do.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    problem: Kind
    path: str
    component: str
    name: str
    expected: str = ""
    found: str = ""
    detail: str
    action: str

    def sentence(self) -> str:
        """One line for people."""
        where = f"  {self.path}" if self.path else ""
        whose = f" ({self.component})" if self.component else ""
        return f"{self.problem:10} {self.name}{whose}{where}: {self.detail}"


def _nobody(done: int, total: int) -> None:
    """An OnProgress that reports to nobody."""


class _Content(Protocol):
    """The files of a bundle, wherever they lie. Paths are relative, with slashes."""

    def sizes(self) -> Mapping[str, int]:
        """Every file but bundle.yml, with its bytes; -1 for what is no file."""
        ...

    def digests(self, paths: Iterable[str], on_bytes: Callable[[int], None]) -> Mapping[str, str]:
        """sha256 (hex) of files; an error of the system, in words, where one cannot be read."""
        ...

    def manifest(self, path: str) -> bytes:
        """A file that may be an image's manifest; empty for what cannot be read or is too large to be one."""
        ...


class Directory:
    """A bundle directory on disk.

    Args:
        root: the directory.
        stamps: what is known to be right already; None reads everything.
        parallel: files that are read at once.
    """

    def __init__(self, root: Path, *, stamps: Stamps | None = None, parallel: int | None = None) -> None:
        self._root = root
        self._stamps = stamps
        self._parallel = parallel or os.cpu_count() or 2
        self._stats: dict[str, os.stat_result] = {}

    def sizes(self) -> Mapping[str, int]:
        """See _Content."""
        found = {}
        for path, info in _walk(self._root):
            name = path.relative_to(self._root).as_posix()
            if name != MANIFEST:
                found[name] = info.st_size if stat.S_ISREG(info.st_mode) else -1
                self._stats[name] = info
        return found

    def digests(self, paths: Iterable[str], on_bytes: Callable[[int], None]) -> Mapping[str, str]:
        """See _Content."""
        found: dict[str, str] = {}
        wanted = []
        for name in paths:
            known = self._stamps.known(name, self._stats[name]) if self._stamps is not None else None
            if known is not None:
                found[name] = known
                on_bytes(self._stats[name].st_size)
            else:
                wanted.append(name)

        def one(name: str) -> tuple[str, str]:
            try:
                digest = sha256_of(self._root / name)
            except OSError as error:
                return name, f"{error.strerror}"
            on_bytes(self._stats[name].st_size)
            return name, digest

        # The largest first, so that no core is left alone with it at the end.
        wanted.sort(key=lambda name: -self._stats[name].st_size)
        with ThreadPoolExecutor(max_workers=self._parallel) as pool:
            for name, digest in pool.map(one, wanted):
                found[name] = digest
                if self._stamps is not None and len(digest) == 64:
                    self._stamps.add(name, self._stats[name], digest)
        return found

    def manifest(self, path: str) -> bytes:
        """See _Content."""
        try:
            return (self._root / path).read_bytes() if self._stats[path].st_size <= _MOST_MANIFEST else b""
        except OSError:
            return b""


class Archive:
    """A bundle in a tar file, read once from front to end.

    Args:
        path: the tar.
        on_bytes: told of progress as bytes of the tar.
    """

    def __init__(self, path: Path, on_bytes: Callable[[int], None]) -> None:
        self._found: dict[str, tuple[int, str]] = {}
        self._manifests: dict[str, bytes] = {}
        manifest: bytes | None = None
        try:
            with tarfile.open(path, "r:*") as tar:
                for member in tar:
                    if member.isdir():
                        continue
                    name = member.name.removeprefix("./")
                    stream = tar.extractfile(member) if member.isfile() else None
                    if stream is None:
                        self._found[name] = (-1, "")
                        continue
                    if name == MANIFEST:
                        manifest = stream.read()
                        continue
                    digest = hashlib.sha256()
                    while chunk := stream.read(_CHUNK_BYTES):
                        digest.update(chunk)
                        on_bytes(len(chunk))
                        if member.size <= _MOST_MANIFEST and chunk.startswith(b"{"):
                            self._manifests[name] = chunk
                    self._found[name] = (member.size, digest.hexdigest())
        except tarfile.ReadError as error:
            known = not self._found and manifest is None
            text = "is no tar" if known else "ends early, or is damaged"
            raise InputError(text, where=str(path), hint="give a bundle's directory or tar; copy it again") from error
        except (tarfile.TarError, OSError, EOFError) as error:
            raise InputError(
                f"cannot be read to its end as a tar: {error}", where=str(path), hint="copy it again"
            ) from error
        if manifest is None:
            raise InputError("is no bundle: bundle.yml is not in it", where=str(path), hint="see `myriad bundle build`")
        self.bundle = Bundle(path, parse_manifest(manifest, where=f"{path}:{MANIFEST}"))

    def sizes(self) -> Mapping[str, int]:
        """See _Content."""
        return {name: size for name, (size, _) in self._found.items()}

    def digests(self, paths: Iterable[str], on_bytes: Callable[[int], None]) -> Mapping[str, str]:
        """See _Content."""
        return {name: self._found[name][1] for name in paths}

    def manifest(self, path: str) -> bytes:
        """See _Content."""
        return self._manifests.get(path, b"")


class Stamps:
    """What was read once and found to be right: size, time and inode of each file, and its digest.

    Args:
        path: the record's file; need not be there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, list[Any]] = {}
        self._changed = False
        with contextlib.suppress(OSError, ValueError):
            loaded = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(loaded, dict):
                self._entries = loaded

    @classmethod
    def of(cls, directory: Path, cache: Path) -> Stamps:
        """The record of one bundle directory, below the cache."""
        name = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:24]
        return cls(cache / "verified" / f"{name}.json")

    def known(self, name: str, info: os.stat_result) -> str | None:
        """The digest of a file that has not changed since it was read."""
        entry = self._entries.get(name)
        if not isinstance(entry, list) or entry[:-1] != [info.st_size, info.st_mtime_ns, info.st_ino]:
            return None
        return str(entry[-1])

    def add(self, name: str, info: os.stat_result, digest: str) -> None:
        """Remember a file that was read."""
        self._entries[name] = [info.st_size, info.st_mtime_ns, info.st_ino, digest]
        self._changed = True

    def save(self) -> None:
        """Write the record; a cache that cannot be written costs time, and nothing else."""
        if not self._changed:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_text(json.dumps(self._entries), encoding="utf-8")
            temporary.replace(self._path)


def verify_path(
    path: Path, *, lock: Lock | None = None, on_progress: OnProgress = _nobody, parallel: int | None = None
) -> tuple[Bundle, list[Problem]]:
    """Read every byte of a bundle, a directory or a tar.

    Args:
        path: the directory or the tar.
        lock: what it should hold; None asks nothing about completeness.
        on_progress: told bytes read and bytes in all.
        parallel: files of a directory that are read at once; one for each core when None.

    Raises:
        InputError: there is no bundle, or its manifest cannot be read.
    """
    done = 0
    total = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        on_progress(done, total)

    content: _Content
    if path.is_file():
        total = path.stat().st_size
        archive = Archive(path, count)
        bundle, content = archive.bundle, archive
    else:
        bundle = Bundle.load(path)
        total = sum(blob.size for _, blob in bundle.blobs())
        content = Directory(path, parallel=parallel)
    problems = _compare(bundle, content, count)
    problems += _unlisted(bundle, content, {one.path for one in problems})
    return bundle, problems + (lock_problems(bundle, lock) if lock is not None else [])


def quick_problems(directory: Path, cache: Path) -> list[Problem]:
    """What is missing or changed, reading only what was not read before: the check before a run.

    Extra files are passed over; they harm nobody in a run.

    Raises:
        InputError: there is no bundle, or its manifest cannot be read.
    """
    bundle = Bundle.load(directory)
    stamps = Stamps.of(directory, cache)
    problems = _compare(bundle, Directory(directory, stamps=stamps), lambda count: None)
    stamps.save()
    return [problem for problem in problems if problem.problem != "extra"]


def _compare(bundle: Bundle, content: _Content, on_bytes: Callable[[int], None]) -> list[Problem]:
    sizes = content.sizes()
    named = {}
    owners = _owners(bundle)
    problems = []
    for name, blob in bundle.blobs():
        path = f"sha256/{blob.sha256[:2]}/{blob.sha256}"
        named[path] = (name, blob)
    # What has another size is read too, so that the message can tell what lies there.
    digests = content.digests([path for path in named if sizes.get(path, -1) >= 0], on_bytes)
    for path, (name, blob) in named.items():
        common = {"path": path, "component": owners.get(name, ""), "name": name, "expected": f"sha256:{blob.sha256}"}
        size, found = sizes.get(path), digests.get(path, "")
        if size is None:
            problems.append(_problem("missing", "it is not there", **common))
        elif size < 0:
            problems.append(_problem("missing", "what lies there is no file", **common))
        elif len(found) != 64:
            problems.append(_problem("unreadable", found, **common))
        elif size != blob.size or found != blob.sha256:
            said = f"{size} bytes instead of {blob.size}, " if size != blob.size else ""
            detail = f"{said}what lies there has sha256 {found[:12]}..., expected {blob.sha256[:12]}..."
            problems.append(_problem("changed", detail, found=f"sha256:{found}", **common))
    for path in sorted(set(sizes) - set(named)):
        problems.append(_problem("extra", "nothing in bundle.yml names it", path=path, name=path, component=""))
    return problems


def _unlisted(bundle: Bundle, content: _Content, wrong: set[str]) -> list[Problem]:
    """Parts that an image's own manifest names and bundle.yml does not: a pull of the image would end there."""
    problems = []
    for image in bundle.manifest.images:
        own = image.digest.removeprefix("sha256:")
        path = f"sha256/{own[:2]}/{own}"
        if path in wrong:
            continue
        try:
            value = json.loads(content.manifest(path) or b"{}")
            named = [str(part["digest"]).removeprefix("sha256:") for part in (value["config"], *value["layers"])]
        except (ValueError, KeyError, TypeError):
            continue  # an index, or an artifact of another kind: its parts are its own
        listed = {blob.sha256 for blob in image.blobs}
        for part in dict.fromkeys(named):
            if part not in listed:
                problems.append(
                    _problem(
                        "missing",
                        f"its manifest names sha256 {part[:12]}..., and bundle.yml does not",
                        path=f"sha256/{part[:2]}/{part}",
                        component=f"{image.component} {image.version}",
                        name=f"image {image.ref}",
                        expected=f"sha256:{part}",
                    )
                )
    return problems


def lock_problems(bundle: Bundle, lock: Lock) -> list[Problem]:
    """What a lock names and a bundle's manifest does not, by artifact, image and version.

    Components on request and those that the bundle says it left out, or was told to leave out, are no problem.
    """
    manifest = bundle.manifest
    problems = []
    there = {entry.name: entry for entry in manifest.files}
    repositories = {entry.repo for entry in manifest.images}
    versions = manifest.versions
    for name, component in lock.components.items():
        skipped = component.on_request or name in manifest.left_out or (manifest.only and name not in manifest.only)
        if skipped or not (component.artifacts or component.upstream_images):
            continue
        replaced = {image.replaces for image in component.upstream_images.values() if image.replaces}
        for artifact in component.artifacts:
            if artifact not in there and artifact not in replaced:
                problems.append(_lacking(artifact, name, f"the lock has {artifact} of {name} {component.version}"))
        required = [repo for repo, image in component.upstream_images.items() if image.replaces is None]
        for repo in [*component.images, *required]:
            if repo not in repositories:
                problems.append(_lacking(f"image {repo}", name, f"the lock has the image {repo} of {name}"))
        given = component.sources.package.version if component.sources.package else component.version
        if name in versions and versions[name] not in (component.version, given):
            detail = f"the lock has {name} {component.version}, the bundle {versions[name]}"
            problems.append(_problem("unnamed", detail, path="", component=name, name=name))
    return problems


def _lacking(what: str, component: str, detail: str) -> Problem:
    return _problem("unnamed", f"{detail}; bundle.yml does not name it", path="", component=component, name=what)


def _problem(kind: Kind, detail: str, *, path: str, component: str, name: str, **more: str) -> Problem:
    return Problem(
        problem=kind, path=path, component=component, name=name, detail=detail, action=_ACTIONS[kind], **more
    )


def _owners(bundle: Bundle) -> dict[str, str]:
    manifest = bundle.manifest
    owners = {entry.name: f"{entry.component} {entry.version}" for entry in manifest.files}
    owners |= {f"image {image.ref}": f"{image.component} {image.version}" for image in manifest.images}
    owners |= {f"package {item.name} {item.version}": ", ".join(item.distributions) for item in manifest.packages}
    return owners | {f"wheel {item.filename}": "the controller's environment" for item in manifest.wheels}


def _walk(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder) / name
            try:
                yield path, path.stat()
            except OSError:  # a link to nothing or to itself: the link is what lies there, and no file
                with contextlib.suppress(FileNotFoundError):
                    yield path, path.lstat()
