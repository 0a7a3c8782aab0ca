"""Contexts on temporary folders, and a root file system small enough to read."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from myriad.images.context import BuildContext, BuildEvent

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def events() -> list[BuildEvent]:
    return []


@pytest.fixture
def ctx(tmp_path: Path, events: list[BuildEvent]) -> BuildContext:
    return BuildContext(
        store=tmp_path / "store", cache_dir=tmp_path / "cache", repository=REPOSITORY, on_event=events.append
    )


STATUS = """\
Package: base-files
Status: install ok installed
Version: 12.4

Package: apt
Status: install ok installed
Version: 2.6.1
Description: a text that mentions
 Package: nothing
"""


@pytest.fixture
def rootfs_tar(tmp_path: Path) -> Path:
    """What mmdebstrap might leave: two packages that share a file, caches, devices, a setuid program, hard links."""
    path = tmp_path / "rootfs.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:

        def add(name: str, data: bytes = b"", **fields: object) -> None:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(data), 1234567890, 0o644
            for key, value in fields.items():
                setattr(member, key, value)
            tar.addfile(member, io.BytesIO(data))

        def folder(name: str) -> None:
            add(name, type=tarfile.DIRTYPE, mode=0o755)

        for name in (
            "./",
            "./dev",
            "./etc",
            "./usr",
            "./usr/bin",
            "./usr/lib",
            "./var",
            "./var/cache",
            "./var/cache/apt",
        ):
            folder(name)
        add("./var/cache/apt/archives", type=tarfile.DIRTYPE, mode=0o700, uid=1000, gid=1000)
        add("./dev/null", type=tarfile.CHRTYPE, mode=0o666)
        add("./bin", type=tarfile.SYMTYPE, linkname="usr/bin")
        add("./etc/machine-id", b"uninitialized\n")
        add("./etc/resolv.conf", b"nameserver 192.0.2.1\n")
        add("./etc/shadow", b"root:*:20089:0:99999:7:::\n", mode=0o640, gid=42, uname="root", gname="shadow")
        add("./usr/bin/a-su", b"su", mode=0o4755)
        add("./usr/bin/b-su", type=tarfile.LNKTYPE, linkname="./usr/bin/a-su", mode=0o4755)
        add("./usr/bin/apt", b"apt", mode=0o755)
        add("./usr/bin/both", b"both", mode=0o755)
        add("./var/cache/apt/pkgcache.bin", b"0" * 100)
        add("./var/lib/dpkg/status", STATUS.encode())
        add("./var/lib/dpkg/info/base-files.list", b"/.\n/usr\n/usr/bin\n/bin/a-su\n/bin/b-su\n/usr/bin/both\n")
        add("./var/lib/dpkg/info/apt.list", b"/.\n/usr\n/usr/bin\n/bin/apt\n/usr/bin/both\n")
    return path


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """Makes an executable of the given content."""

    def make(content: str, name: str = "program") -> Path:
        path = tmp_path / name
        path.write_text(content)
        path.chmod(0o700)
        return path

    return make
