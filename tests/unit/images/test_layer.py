"""The same entries give the same bytes; nothing of the building machine gets in."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path

import pytest

from myriad.errors import MyriadError
from myriad.images.layer import (
    SOURCE_DATE_EPOCH,
    Entry,
    Kind,
    clean_path,
    directory,
    file_from_bytes,
    file_from_path,
    from_tar,
    from_tree,
    symlink,
    with_parents,
    write_tar,
)


def tar_of(entries: list[Entry]) -> bytes:
    out = io.BytesIO()
    write_tar(entries, out)
    return out.getvalue()


def members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: member for member in tar}


def test_order_of_collection_does_not_matter() -> None:
    entries = [file_from_bytes("/b/x", b"1"), symlink("/a", "b/x"), directory("/b", mode=0o700)]
    assert tar_of(entries) == tar_of(entries[::-1])


def test_names_times_and_owners_of_the_machine_stay_out(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    member = members(tar_of(list(from_tree(tmp_path, prefix="opt"))))["opt/x"]
    assert (member.uid, member.gid, member.uname, member.gname, member.mtime) == (0, 0, "", "", SOURCE_DATE_EPOCH)
    assert member.pax_headers == {}


def test_umask_and_time_zone_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    previous = os.umask(0o022)
    try:
        for umask, zone in ((0o022, "UTC"), (0o077, "Asia/Tokyo")):
            os.umask(umask)
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            root = tmp_path / zone.replace("/", "-")
            (root / "bin").mkdir(parents=True)
            (root / "bin" / "run").write_text("#!/bin/sh\n")
            (root / "bin" / "run").chmod(0o777 & ~umask)
            (root / "data").write_text("data")
            made.append(tar_of(list(from_tree(root))))
    finally:
        os.umask(previous)
        monkeypatch.undo()
        time.tzset()
    assert made[0] == made[1]
    assert members(made[0])["bin/run"].mode == 0o755


def test_parents_are_added_once_and_sorted_before_their_children() -> None:
    paths = [entry.path for entry in with_parents([file_from_bytes("/usr/local/bin/x", b""), directory("/usr")])]
    assert paths == ["usr", "usr/local", "usr/local/bin", "usr/local/bin/x"]


def test_one_path_written_twice_is_refused() -> None:
    with pytest.raises(MyriadError, match="both write /a"):
        with_parents([file_from_bytes("/a", b"1"), file_from_bytes("/a", b"2")])


@pytest.mark.parametrize("path", ["../etc/passwd", "/usr/../../x", "/", ""])
def test_paths_that_leave_the_image_are_refused(path: str) -> None:
    with pytest.raises(MyriadError, match="not a path inside an image"):
        clean_path(path)


def test_long_and_foreign_names_survive() -> None:
    name = "opt/" + "x" * 120 + "/größe"
    data = tar_of([file_from_bytes(name, b"1")])
    assert name in members(data)
    assert data == tar_of([file_from_bytes(name, b"1")])


def test_a_tar_is_read_with_its_owners_and_without_devices(rootfs_tar: Path) -> None:
    entries = {entry.path: entry for entry in from_tar(rootfs_tar)}
    assert "dev/null" not in entries
    assert (entries["etc/shadow"].mode, entries["etc/shadow"].gid) == (0o640, 42)
    assert entries["usr/bin/b-su"].kind is Kind.HARDLINK
    again = members(tar_of(list(entries.values())))
    assert again["usr/bin/b-su"].linkname == "usr/bin/a-su"


def test_a_hard_link_becomes_the_file_when_its_first_name_is_left_out(rootfs_tar: Path) -> None:
    entries = {entry.path: entry for entry in from_tar(rootfs_tar, keep=lambda entry: entry.path != "usr/bin/a-su")}
    content = entries["usr/bin/b-su"].content
    assert content is not None
    with content() as file:
        assert file.read() == b"su"


def test_a_hard_link_follows_its_file_even_if_it_sorts_first() -> None:
    link = Entry("a", Kind.HARDLINK, mode=0o755, target="z")
    assert list(members(tar_of([link, file_from_bytes("z", b"1", mode=0o755)]))) == ["z", "a"]


def test_mode_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    assert file_from_path("/x", tmp_path / "x", mode=0o400).mode == 0o400
