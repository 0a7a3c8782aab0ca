"""Deterministic file trees: the entries of a layer, and the tar stream that they make.

The same entries give the same bytes, whatever the machine, user, umask, time zone, time of day or order in which they
were collected:
paths are sorted, owners are numbers, every time stamp is the given epoch, and no name or attribute of the building
machine is recorded.
"""

from __future__ import annotations

import io
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import IO, Protocol, cast

from myriad.errors import MyriadError

#: 2025-01-01T00:00:00Z: the time stamp of everything inside an image
#: (https://reproducible-builds.org/specs/source-date-epoch/).
SOURCE_DATE_EPOCH = 1735689600


class Kind(Enum):
    """What a path of a layer is. Device nodes and sockets are never part of one: the runtime makes them."""

    DIRECTORY = "directory"
    FILE = "file"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"


class Opener(Protocol):
    """Opens the content of a file for reading, as often as asked."""

    def __call__(self) -> IO[bytes]: ...


@dataclass(frozen=True)
class Entry:
    """One path of a layer.

    `path` is relative and normalised (`usr/bin/python3`); `mode` holds permission bits only; `size` is in bytes;
    `target` is the link's
    target (for a hard link another path of the same layer); `content` is present for files only, `source` for those
    of this machine.
    """

    path: str
    kind: Kind
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    size: int = 0
    target: str = ""
    content: Opener | None = None
    source: Path | None = None


def directory(path: str, *, mode: int = 0o755, uid: int = 0, gid: int = 0) -> Entry:
    """A directory."""
    return Entry(clean_path(path), Kind.DIRECTORY, mode=mode, uid=uid, gid=gid)


def symlink(path: str, target: str) -> Entry:
    """A symbolic link; `target` is written as it is given."""
    return Entry(clean_path(path), Kind.SYMLINK, mode=0o777, target=target)


def file_from_bytes(path: str, data: bytes, *, mode: int = 0o644, uid: int = 0, gid: int = 0) -> Entry:
    """A file whose content is at hand."""
    return Entry(
        clean_path(path), Kind.FILE, mode=mode, uid=uid, gid=gid, size=len(data), content=lambda: io.BytesIO(data)
    )


def file_from_path(path: str, source: Path, *, mode: int | None = None, uid: int = 0, gid: int = 0) -> Entry:
    """A file of this machine. Without `mode` it is 0755 when its owner may execute it, else 0644: the umask never
    reaches an image."""
    status = source.stat()
    if mode is None:
        mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
    return Entry(
        clean_path(path),
        Kind.FILE,
        mode=mode,
        uid=uid,
        gid=gid,
        size=status.st_size,
        content=lambda: source.open("rb"),
        source=source,
    )


def clean_path(path: str) -> str:
    """`/usr//bin/./x` and `./usr/bin/x` are `usr/bin/x`; a path that climbs out of the image is refused."""
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", ".")]
    if not parts or ".." in parts:
        raise MyriadError(f"{path!r} is not a path inside an image", hint="use a path below / without '..'")
    return "/".join(parts)


def with_parents(entries: Iterable[Entry]) -> list[Entry]:
    """The entries and every directory above them, sorted by path; the directories that nobody gave are root's with
    mode 0755.

    Raises:
        MyriadError: two entries claim one path and differ.
    """
    known: dict[str, Entry] = {}
    for entry in entries:
        other = known.get(entry.path)
        if other is not None and not (entry.kind is Kind.DIRECTORY and other == entry):
            raise MyriadError(f"two parts of one layer both write /{entry.path}", hint="give each file one place")
        known[entry.path] = entry
    for path in list(known):
        parent = PurePosixPath(path).parent
        while str(parent) != ".":
            known.setdefault(str(parent), directory(str(parent)))
            parent = parent.parent
    return sorted(known.values(), key=lambda entry: entry.path.split("/"))


def from_tree(root: Path, *, prefix: str = "", keep: Callable[[str], bool] = lambda path: True) -> Iterator[Entry]:
    """The entries of a directory of this machine, below `prefix`; `keep` sees paths relative to `root`.

    Owners become root and modes 0755 or 0644: what a build leaves behind depends on who runs it, an image must not.
    """
    base = f"{prefix}/" if prefix else ""
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root).as_posix()
        if not keep(relative):
            continue
        name = base + relative
        if path.is_symlink():
            yield symlink(name, str(path.readlink()))
        elif path.is_dir():
            yield directory(name)
        elif path.is_file():
            yield file_from_path(name, path)


class _TarContent:
    """Opens one member of a tar file again and again."""

    def __init__(self, archive: Path, offset: int, size: int) -> None:
        self._archive, self._offset, self._size = archive, offset, size

    def __call__(self) -> IO[bytes]:
        return cast(IO[bytes], _Slice(self._archive, self._offset, self._size))


class _Slice(io.RawIOBase):
    """A window of a file, read-only."""

    def __init__(self, path: Path, offset: int, size: int) -> None:
        self._file = path.open("rb")
        self._file.seek(offset)
        self._left = size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size is None or size < 0 else min(size, self._left)
        data = self._file.read(wanted)
        self._left -= len(data)
        return data

    def close(self) -> None:
        self._file.close()
        super().close()


def from_tar(archive: Path, *, keep: Callable[[Entry], bool] = lambda entry: True) -> Iterator[Entry]:
    """The entries of an uncompressed tar file, with its owners and modes; devices, fifos and extended attributes are
    left out.

    The content stays in the archive and is read when the layer is written. A hard link whose first name is not kept
    becomes the file.
    """
    files: dict[str, Entry] = {}
    kept: set[str] = set()
    with tarfile.open(archive, "r:") as tar:
        for member in tar:
            if member.name in (".", "./", ""):
                continue
            path = clean_path(member.name)
            mode = stat.S_IMODE(member.mode)
            entry: Entry | None = None
            if member.isdir():
                entry = directory(path, mode=mode, uid=member.uid, gid=member.gid)
            elif member.issym():
                entry = Entry(path, Kind.SYMLINK, mode=0o777, uid=member.uid, gid=member.gid, target=member.linkname)
            elif member.isfile():
                content = _TarContent(archive, member.offset_data, member.size)
                entry = Entry(
                    path, Kind.FILE, mode=mode, uid=member.uid, gid=member.gid, size=member.size, content=content
                )
                files[path] = entry
            elif member.islnk():
                target = clean_path(member.linkname)
                original = files[target]
                files[path] = original
                if target in kept:
                    entry = Entry(path, Kind.HARDLINK, mode=mode, uid=member.uid, gid=member.gid, target=target)
                else:
                    entry = replace(original, path=path)
            if entry is None or not keep(entry):
                continue
            if entry.kind is Kind.FILE:
                kept.add(path)
            yield entry


def extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Unpack one member below a folder, never above it.

    Python 3.11 before 3.11.4, which Debian 12 has, knows no filter.
    """
    clean_path(member.name)
    if hasattr(tarfile, "tar_filter"):
        tar.extract(member, target, filter="tar")
    else:
        tar.extract(member, target)


def write_tar(entries: Iterable[Entry], out: IO[bytes], *, epoch: int = SOURCE_DATE_EPOCH) -> None:
    """Write the entries, with the directories above them, as a POSIX tar stream. The same entries give the same
    bytes."""
    ordered = with_parents(entries)
    order = {entry.path: number for number, entry in enumerate(ordered)}
    # A hard link must follow its file; from_tar keeps the archive's order, sorting may turn it around.
    ordered.sort(key=lambda entry: (entry.kind is Kind.HARDLINK, order[entry.path]))
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, bufsize=1 << 20) as tar:
        for entry in ordered:
            member = _member(entry, epoch)
            if entry.content is None:
                tar.addfile(member)
                continue
            with entry.content() as content:
                tar.addfile(member, content)


_TYPES = {
    Kind.DIRECTORY: tarfile.DIRTYPE,
    Kind.FILE: tarfile.REGTYPE,
    Kind.SYMLINK: tarfile.SYMTYPE,
    Kind.HARDLINK: tarfile.LNKTYPE,
}


def _member(entry: Entry, epoch: int) -> tarfile.TarInfo:
    """The header of an entry."""
    member = tarfile.TarInfo(entry.path)
    member.type = _TYPES[entry.kind]
    member.mode, member.uid, member.gid, member.mtime = entry.mode, entry.uid, entry.gid, epoch
    member.linkname = entry.target
    member.size = entry.size
    return member
