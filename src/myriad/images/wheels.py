"""Wheels that are locked: a lock file's lines, which file of a release fits an image, and what installing one writes.

A lock is a requirements file that pip and uv read as well: `name==version --hash=sha256:...`, one line a package, and
above it a comment with the wheel's file name and bytes, so that a plan needs neither the index nor the files.
Installing follows https://packaging.python.org/en/latest/specifications/binary-distribution-format/.
"""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import re
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO

from packaging.markers import InvalidMarker, Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from myriad.errors import InputError, MyriadError
from myriad.images.layer import Entry, clean_path, file_from_bytes
from myriad.images.layer import Kind as EntryKind

#: The oldest and newest glibc of wheels that run on Debian 12.
_GLIBC = (5, 36)
_LINE = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(\[[^]]*\])?\s*==\s*(?P<version>[^\s;\\#]+)(?P<marker>\s*;[^#\\]*?(?=\s+--|\s*$))?(?P<rest>(\s.*)?)"
)
_HASH = re.compile(r"--hash=(?P<kind>[a-z0-9]+):(?P<value>[0-9a-f]+)")
_COMMENT = re.compile(r"#\s*(?P<file>\S+\.whl), (?P<size>\d+) bytes")
#: Options of a requirements file that say where wheels come from; all others name packages of elsewhere.
_SOURCES = re.compile(
    r"(-i|-f|--(index-url|extra-index-url|find-links|no-index|only-binary|no-binary|prefer-binary|require-hashes|"
    r"trusted-host|pre|use-feature))([\s=].*)?"
)
_ANY_CUDA = re.compile(r"nvidia-|cuda-toolkit$|cuda-bindings$|cuda-pathfinder$|cuda-python$|cuda-core$")
#: Python packages of NVIDIA that hold no CUDA library.
_NO_LIBRARY = ("nvidia-ml-py", "nvidia-dali")


@dataclass(frozen=True, order=True)
class Locked:
    """A line of a lock: a package at one version, with the hashes that its file may have.

    Attributes:
        name: normalised (PEP 503).
        filename, size: the wheel and its bytes, where the lock says them; else empty and 0.
    """

    name: str
    version: str
    hashes: tuple[str, ...]
    filename: str = ""
    size: int = 0


@dataclass(frozen=True, order=True)
class Wheel:
    """One wheel: normalised name, version, file name, sha256 as hex, bytes."""

    name: str
    version: str
    filename: str
    sha256: str
    size: int

    @property
    def is_cuda(self) -> bool:
        """A CUDA library or what belongs to it."""
        return _ANY_CUDA.match(self.name) is not None and not self.name.startswith(_NO_LIBRARY)


def read_lock(path: Path, *, python: str = "3.11") -> list[Locked]:
    """The packages of a lock file for a Python, sorted by name. Lines whose marker is not for it are passed over.

    Raises:
        InputError: it is missing, or a line has no exact version, no sha256, or is a kind that is not locked.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            "there is no lock file", where=str(path), hint="`myriad image lock NAME` makes it from requirements.in"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read: {error}", where=str(path), hint="`myriad image lock NAME` writes it anew"
        ) from error
    return parse_lock(text, where=str(path), python=python)


def parse_lock(text: str, *, where: str, python: str = "3.11") -> list[Locked]:
    """As `read_lock`, for text."""
    found: dict[str, Locked] = {}
    problems: list[str] = []
    said: re.Match[str] | None = None
    joined = ""
    # One line more than there are, so that a backslash on the last one does not swallow its package.
    for number, raw in enumerate([*text.removeprefix("\ufeff").splitlines(), ""], start=1):
        line = raw.strip()
        if not joined and line.startswith("#"):
            said = _COMMENT.match(line) or said
            continue
        joined = f"{joined} {line}".strip()
        if joined.endswith("\\"):
            joined = joined.removesuffix("\\").strip()
            continue
        line, joined = re.sub(r"\s#.*$", "", joined), ""
        if not line or _SOURCES.fullmatch(line):
            continue
        if line.startswith("-") and not line.startswith("--hash"):
            problems.append(f"line {number}: {line[:80]!r} leads to packages of elsewhere; a lock holds all of them")
            continue
        match = _LINE.fullmatch(line)
        if match is None or not _exact(match["version"]):
            problems.append(f"line {number}: {line[:80]!r} has no exact version (name==version)")
            continue
        hashes = [
            one["value"] for one in _HASH.finditer(match["rest"]) if one["kind"] == "sha256" and len(one["value"]) == 64
        ]
        if not hashes:
            problems.append(f"line {number}: {match['name']}=={match['version']} has no --hash=sha256:...")
            continue
        try:
            if match["marker"] and not Marker(match["marker"].strip(" ;")).evaluate(_environment(python)):
                continue
        except InvalidMarker as error:
            problems.append(f"line {number}: {error}")
            continue
        name = str(canonicalize_name(match["name"]))
        if name in found:
            problems.append(f"line {number}: {name} stands there twice")
            continue
        fits = said is not None and str(canonicalize_name(said["file"].partition("-")[0])) == name
        found[name] = Locked(
            name=name,
            version=match["version"],
            hashes=tuple(sorted(hashes)),
            filename=said["file"] if said is not None and fits else "",
            size=int(said["size"]) if said is not None and fits else 0,
        )
        said = None
    if problems:
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise InputError(
            "; ".join(problems[:5]) + more,
            where=where,
            hint="only wheels with hashes are built in; `myriad image lock NAME` writes them",
        )
    return [found[name] for name in sorted(found)]


def _exact(version: str) -> bool:
    """Is this one version, and no pattern such as 2.*?"""
    try:
        Version(version)
    except InvalidVersion:
        return False
    return True


def _environment(python: str) -> dict[str, str]:
    """What markers ask of the machine that an image is for."""
    return {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def write_lock(wheels: Iterable[Wheel], *, header: Sequence[str]) -> str:
    """A lock file's text."""
    lines = [f"# {line}" for line in header]
    for wheel in sorted(wheels):
        lines += [f"# {wheel.filename}, {wheel.size} bytes"]
        lines += [f"{wheel.name}=={wheel.version} \\", f"    --hash=sha256:{wheel.sha256}"]
    return "\n".join(lines) + "\n"


def supported_tags(python: str, *, machine: str = "x86_64") -> dict[Tag, int]:
    """The tags of wheels that an image takes, with their rank; the lowest is the best.

    Args:
        python: first two parts of its version.
        machine: processor as wheels write it.
    """
    version = tuple(int(part) for part in python.split("."))
    legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    platforms: list[str] = []
    for minor in range(_GLIBC[1], _GLIBC[0] - 1, -1):
        platforms.append(f"manylinux_2_{minor}_{machine}")
        if minor in legacy:
            platforms.append(f"{legacy[minor]}_{machine}")
    platforms.append(f"linux_{machine}")
    interpreter = f"cp{version[0]}{version[1]}"
    ranked = [
        *cpython_tags(version, abis=[interpreter], platforms=platforms),
        *compatible_tags(version, interpreter, platforms),
    ]
    return {tag: rank for rank, tag in reversed(list(enumerate(ranked)))}


def rank(filename: str, tags: dict[Tag, int]) -> int | None:
    """How well a wheel fits; None where it does not, or is no wheel."""
    try:
        own = parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return None
    ranks = [tags[tag] for tag in own if tag in tags]
    return min(ranks) if ranks else None


@dataclass(frozen=True)
class Scheme:
    """Where an installation puts things, relative to the image's root, and the interpreter that scripts name.

    `lean` leaves out what only an installer or a type checker reads, and all programs: for images that run one module.
    """

    site: str
    prefix: str
    interpreter: str
    python: str
    lean: bool = False

    @property
    def scripts(self) -> str:
        """Where programs go."""
        return f"{self.prefix}/bin"


def debian_scheme(python: str = "3.11") -> Scheme:
    """Debian's place for what its packages did not bring: it is searched without PYTHONPATH."""
    return Scheme(f"usr/local/lib/python{python}/dist-packages", "usr/local", "/usr/bin/python3", python)


@dataclass(frozen=True)
class WheelFile:
    """A file that installing a wheel writes: path in the image, bytes, and bytes as the wheel compresses them."""

    path: str
    size: int
    compressed: int


# What an installer leaves that depends on the building machine, or that nothing reads in a lean image.
_LEAN = (
    ".*",
    "*/__pycache__/*",
    "*.pyc",
    "*.pyi",
    "*.dist-info/RECORD",
    "*.dist-info/INSTALLER",
)
_NEVER = ("*/__pycache__/*", "*.pyc")
_SCRIPT = """#!{interpreter}
import sys

from {module} import {attribute}

if __name__ == "__main__":
    sys.argv[0] = sys.argv[0].removesuffix(".exe")
    sys.exit({call}())
"""


class OpenWheel:
    """A wheel file that is read: what installing it writes, as entries of a layer.

    Args:
        path: the file.
        wheel: what it is.
        scheme: where things go.
        exclude: patterns below the installation folder that are left out.
    """

    def __init__(self, path: Path, wheel: Wheel, scheme: Scheme, *, exclude: Sequence[str] = ()) -> None:
        self.wheel = wheel
        self._scheme = scheme
        self._exclude = (*(_LEAN if scheme.lean else _NEVER), *exclude)
        #: Of the given patterns, those that leave something of this wheel out.
        self.excluded: set[str] = set()
        self._lock = threading.Lock()
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise MyriadError(f"{wheel.filename} is no wheel: {error}", where=str(path)) from error
        self._entries = {entry.path: (entry, compressed) for entry, compressed in self._install()}

    def close(self) -> None:
        """Close the file. Entries cannot be read after that."""
        self._zip.close()

    @property
    def files(self) -> tuple[WheelFile, ...]:
        """What it writes, sorted by path."""
        return tuple(
            WheelFile(path, entry.size, compressed) for path, (entry, compressed) in sorted(self._entries.items())
        )

    def entries(self, wanted: Callable[[str], bool] = lambda path: True) -> Iterator[Entry]:
        """Its entries whose path is wanted."""
        return (entry for path, (entry, _) in sorted(self._entries.items()) if wanted(path))

    def _install(self) -> Iterator[tuple[Entry, int]]:
        site, record = self._scheme.site, []
        info = self._info_folder()
        for item in self._zip.infolist():
            if item.is_dir() or item.filename == f"{info}/RECORD" or item.filename == f"{info}/RECORD.jws":
                continue
            place = self._place(item.filename)
            if place is None:
                continue
            entry, compressed = self._entry(item, place)
            if entry.path.startswith(f"{site}/") and self._left_out(entry.path.removeprefix(f"{site}/")):
                continue
            if self._scheme.lean and entry.path.startswith(f"{self._scheme.scripts}/"):
                continue
            record.append(entry)
            yield entry, compressed
        if self._scheme.lean:
            return
        for entry in (*self._console_scripts(info), file_from_bytes(f"{site}/{info}/INSTALLER", b"myriad\n")):
            record.append(entry)
            yield entry, entry.size
        # PEP 710: from which file it was installed. A list of parts and a derived image read it.
        text = (
            f'{{"archive_info": {{"hashes": {{"sha256": "{self.wheel.sha256}"}}}}, "url": "{self.wheel.filename}"}}\n'
        )
        entry = file_from_bytes(f"{site}/{info}/provenance_url.json", text.encode())
        record.append(entry)
        yield entry, entry.size
        yield (written := self._record(record, info)), written.size // 2

    def _info_folder(self) -> str:
        for name in self._zip.namelist():
            folder = name.partition("/")[0]
            if folder.endswith(".dist-info") and str(canonicalize_name(folder.partition("-")[0])) == self.wheel.name:
                return folder
        raise MyriadError(
            f"{self.wheel.filename} has no .dist-info folder of {self.wheel.name}", hint="the wheel is broken"
        )

    def _place(self, name: str) -> str | None:
        """The path in the image of a member."""
        first, _, rest = name.partition("/")
        if not first.endswith(".data"):
            return (
                clean_path(f"{self._scheme.site}/{name}")
                if ".." not in PurePosixPath(name).parts
                else self._escapes(name)
            )
        kind, _, path = rest.partition("/")
        if not path or ".." in PurePosixPath(path).parts:
            return self._escapes(name)
        folders = {
            "purelib": self._scheme.site,
            "platlib": self._scheme.site,
            "scripts": self._scheme.scripts,
            "data": self._scheme.prefix,
            "headers": f"{self._scheme.prefix}/include/python{self._scheme.python}/{self.wheel.name}",
        }
        return clean_path(f"{folders[kind]}/{path}") if kind in folders else self._escapes(name)

    def _escapes(self, name: str) -> str:
        raise MyriadError(
            f"{self.wheel.filename} would write {name!r}, which is no place for a wheel", hint="do not use it"
        )

    def _entry(self, item: zipfile.ZipInfo, path: str) -> tuple[Entry, int]:
        mode = 0o755 if (item.external_attr >> 16) & 0o111 else 0o644
        if path.startswith(f"{self._scheme.scripts}/"):
            data = self._read(item)
            if data.startswith(b"#!python"):
                first, newline, rest = data.partition(b"\n")
                data = (
                    b"#!"
                    + self._scheme.interpreter.encode()
                    + first[len(b"#!python") :].replace(b"w", b"", 1)
                    + newline
                    + rest
                )
            return file_from_bytes(path, data, mode=0o755), item.compress_size
        content = self._opener(item)
        return Entry(path, EntryKind.FILE, mode=mode, size=item.file_size, content=content), item.compress_size

    def _opener(self, item: zipfile.ZipInfo) -> Callable[[], IO[bytes]]:
        return lambda: self._zip.open(item)

    def _read(self, item: zipfile.ZipInfo) -> bytes:
        with self._lock:
            return self._zip.read(item)

    def _left_out(self, relative: str) -> bool:
        found = [pattern for pattern in self._exclude if fnmatchcase(relative, pattern)]
        self.excluded.update(found)
        return bool(found)

    def _console_scripts(self, info: str) -> Iterator[Entry]:
        try:
            text = self._zip.read(f"{info}/entry_points.txt").decode()
        except KeyError:
            return
        parser = configparser.ConfigParser(delimiters=("=",), strict=False, interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(text)
        for section in ("console_scripts", "gui_scripts"):
            for name, target in sorted(parser.items(section)) if parser.has_section(section) else ():
                module, _, call = target.partition("[")[0].strip().partition(":")
                text = _SCRIPT.format(
                    interpreter=self._scheme.interpreter,
                    module=module.strip(),
                    attribute=call.strip().partition(".")[0],
                    call=call.strip(),
                )
                yield file_from_bytes(f"{self._scheme.scripts}/{name}", text.encode(), mode=0o755)

    def _record(self, entries: Sequence[Entry], info: str) -> Entry:
        """RECORD with what was written, so that pip can replace it and a check can compare it."""
        given = self._given_hashes(info)
        site = PurePosixPath("/" + self._scheme.site)
        lines = []
        for entry in entries:
            relative = _relative(PurePosixPath("/" + entry.path), site)
            value = given.get(entry.path) if entry.mode == 0o644 or entry.source is None else None
            if value is None or entry.path.startswith(f"{self._scheme.scripts}/"):
                value = _record_hash(entry)
            lines.append(f"{_quoted(relative)},{value},{entry.size}")
        lines.append(f"{_quoted(f'{info}/RECORD')},,")
        return file_from_bytes(f"{self._scheme.site}/{info}/RECORD", ("\n".join(sorted(lines)) + "\n").encode())

    def _given_hashes(self, info: str) -> dict[str, str]:
        """Hashes that the wheel's own RECORD gives, by path in the image: the file as a whole was checked already."""
        found = {}
        with self._zip.open(f"{info}/RECORD") as file:
            for row in csv.reader(io.TextIOWrapper(file, "utf-8")):
                if len(row) >= 2 and row[1] and not row[0].startswith(("/", "..")):
                    place = self._place(row[0]) if "/" in row[0] or not row[0].endswith(".data") else None
                    if place is not None:
                        found[place] = row[1]
        return found


def _relative(path: PurePosixPath, start: PurePosixPath) -> str:
    common = 0
    for one, other in zip(path.parts, start.parts, strict=False):
        if one != other:
            break
        common += 1
    return "/".join([".."] * (len(start.parts) - common) + list(path.parts[common:]))


def _quoted(path: str) -> str:
    return f'"{path}"' if "," in path else path


def _record_hash(entry: Entry) -> str:
    if entry.content is None:
        return ""
    value = hashlib.sha256()
    with entry.content() as file:
        while chunk := file.read(1 << 20):
            value.update(chunk)
    return "sha256=" + base64.urlsafe_b64encode(value.digest()).rstrip(b"=").decode()
