"""Single files out of archives: tar (gz, xz, zst) and Debian packages, and folders into one repeatable tar.gz."""

from __future__ import annotations

import contextlib
import gzip
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from myriad.errors import MyriadError
from myriad.stack.store import Store

_AR_MAGIC = b"!<arch>\n"
_AR_HEADER_BYTES = 60
_CHUNK_BYTES = 1 << 20


class ArchiveError(MyriadError):
    """An archive lacks a member, or is not an archive."""


def extract_members(archive: Path, members: dict[str, str], store: Store, *, where: str) -> dict[str, str]:
    """Take files out of an archive into the store. Returns name -> sha256.

    Args:
        archive: a .tar.gz, .tar.xz, .tar.zst, .tar or .deb, told by its first bytes.
        members: name -> path in the archive (a leading ./ does not matter).
        where: for messages, such as the archive's URL.

    Raises:
        ArchiveError: a member is missing or no regular file, or the archive is damaged.
    """
    by_path = {path.removeprefix("./"): name for name, path in members.items()}
    found: dict[str, str] = {}
    try:
        with _open_tar(archive) as tar:
            for item in tar:
                name = by_path.get(item.name.removeprefix("./"))
                if name is None or not item.isreg():
                    continue
                stream = tar.extractfile(item)
                if stream is None:
                    continue
                with store.writer() as writer:
                    while chunk := stream.read(_CHUNK_BYTES):
                        writer.write(chunk)
                found[name] = writer.sha256
                if len(found) == len(members):
                    break
    except (tarfile.TarError, OSError, EOFError, zstandard.ZstdError) as error:
        raise ArchiveError(f"is no archive that can be read: {error}", where=where) from error
    missing = [members[name] for name in members if name not in found]
    if missing:
        raise ArchiveError(f"does not hold {', '.join(missing)}", where=where, hint="correct `members` in the lock")
    return found


@contextlib.contextmanager
def _open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    with path.open("rb") as stream:
        head = stream.read(len(_AR_MAGIC))
        stream.seek(0)
        inner: BinaryIO = stream
        if head == _AR_MAGIC:
            inner = _deb_data(stream)
        magic = inner.read(4)
        inner.seek(-len(magic), io.SEEK_CUR)
        if magic == b"\x28\xb5\x2f\xfd":
            with (
                zstandard.ZstdDecompressor().stream_reader(inner) as plain,
                tarfile.open(fileobj=plain, mode="r|") as tar,
            ):
                yield tar
        else:
            with tarfile.open(fileobj=inner, mode="r:*" if head != _AR_MAGIC else "r|*") as tar:
                yield tar


def _deb_data(stream: BinaryIO) -> BinaryIO:
    """The data.tar.* member of a .deb, as a stream of its own. See deb(5) and ar(5)."""
    stream.seek(len(_AR_MAGIC))
    while header := stream.read(_AR_HEADER_BYTES):
        name = header[:16].decode("ascii").strip().rstrip("/")
        size = int(header[48:58].decode("ascii"))
        if name.startswith("data.tar"):
            return io.BytesIO(stream.read(size))
        stream.seek(size + size % 2, io.SEEK_CUR)
    raise tarfile.ReadError("the package has no data.tar")


def folder_as_tgz(folder: Path, *, top: str) -> bytes:
    """A folder as a tar.gz that is the same on every run: sorted names, no owners, no times.

    Args:
        folder: the folder; links and special files in it are left out.
        top: the name of the folder inside the archive (helm wants the chart's name there).
    """
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            info = tarfile.TarInfo(f"{top}/{path.relative_to(folder).as_posix()}")
            info.size = path.stat().st_size
            info.mode = 0o644
            with path.open("rb") as stream:
                tar.addfile(info, stream)
    return gzip.compress(plain.getvalue(), compresslevel=9, mtime=0)
