"""Files out of archives, and folders into one that is the same on every run."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
import zstandard

from myriad.stack.archive import ArchiveError, extract_members, folder_as_tgz
from myriad.stack.store import Store


def _tar(files: dict[str, bytes], mode: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _ar(members: dict[str, bytes]) -> bytes:
    out = b"!<arch>\n"
    for name, data in members.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data
        out += b"\n" if len(data) % 2 else b""
    return out


_FILES = {"./bin/tool": b"tool" * 1000, "bin/other": b"other", "README": b"read me"}


def _archive(kind: str) -> bytes:
    plain = _tar(_FILES, "w")
    match kind:
        case "tar.zst":
            return zstandard.ZstdCompressor().compress(plain)
        case "deb.xz":
            return _ar({"debian-binary": b"2.0", "control.tar.xz": b"odd", "data.tar.xz": _tar(_FILES, "w:xz")})
        case "deb.zst":
            data = zstandard.ZstdCompressor().compress(plain)
            return _ar({"debian-binary": b"2.0\n", "control.tar.zst": b"x", "data.tar.zst": data})
        case _:
            return _tar(_FILES, {"tar": "w", "tar.gz": "w:gz", "tar.xz": "w:xz"}[kind])


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.xz", "tar.zst", "deb.xz", "deb.zst"])
def test_members_are_taken_out_of_every_kind(kind: str, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(_archive(kind))
    store = Store(tmp_path / "store")
    found = extract_members(archive, {"tool": "bin/tool", "second": "./bin/other"}, store, where="https://x")
    assert store.read_bytes(found["tool"]) == b"tool" * 1000
    assert store.read_bytes(found["second"]) == b"other"


def test_a_missing_member_is_named(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(_archive("tar.gz"))
    with pytest.raises(ArchiveError, match="does not hold bin/none"):
        extract_members(archive, {"tool": "bin/tool", "none": "bin/none"}, Store(tmp_path / "s"), where="x")


@pytest.mark.parametrize("content", [b"<html>not found</html>", b"", _ar({"debian-binary": b"2.0\n"})])
def test_what_is_no_archive_is_told(content: bytes, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(content)
    with pytest.raises(ArchiveError, match="is no archive that can be read"):
        extract_members(archive, {"tool": "bin/tool"}, Store(tmp_path / "s"), where="https://x/tool.tgz")


def test_a_cut_archive_is_told(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(_archive("tar.gz")[:40])
    with pytest.raises(ArchiveError):
        extract_members(archive, {"tool": "README"}, Store(tmp_path / "s"), where="x")


def test_a_folder_gives_the_same_bytes_whatever_its_times_modes_and_order(tmp_path: Path) -> None:
    made = []
    for number, names in enumerate((["a", "b/c"], ["b/c", "a"])):
        folder = tmp_path / str(number)
        for name in names:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
            path.chmod(0o600 + 0o044 * number)
            os.utime(path, (number * 1000, number * 1000))
        made.append(folder_as_tgz(folder, top="chart"))
    assert made[0] == made[1]
    with tarfile.open(fileobj=io.BytesIO(made[0])) as tar:
        assert tar.getnames() == ["chart/a", "chart/b/c"]
