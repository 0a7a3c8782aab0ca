"""The frozen Debian packages: their lock, what is refused, and that a vanished one is named and never replaced."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from myriad.errors import InputError, MyriadError
from myriad.images.context import BuildContext
from myriad.images.frozen import LOCK_FILE, Deb, control, deb_of, frozen_sources, frozen_text, read_frozen
from myriad.stack.fetch import FetchError

REPOSITORY = Path(__file__).parents[3]


def write(root: Path, text: str) -> Path:
    path = root / LOCK_FILE
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return root


def test_the_lock_is_read_as_it_is_written(tmp_path: Path) -> None:
    debs = [
        Deb("b_1_all.deb", "b" * 64, 2, "pool/main/b/b/b_1_all.deb"),
        Deb("a_2-1_amd64.deb", "a" * 64, 1, "pool/main/a/x/a_2-1_amd64.deb"),
    ]
    frozen = read_frozen(write(tmp_path, frozen_text(debs, "20260101T000000Z")))
    assert frozen is not None
    assert (frozen.taken, [deb.name for deb in frozen.debs]) == ("20260101T000000Z", ["a", "b"])
    assert frozen == read_frozen(write(tmp_path / "again", frozen_text(debs[::-1], "20260101T000000Z")))


@pytest.mark.parametrize(
    "line",
    ["a 1.0", "a_1_amd64.deb xyz 1 pool/a", f"a_1_arm64.deb {'a' * 64} 1 pool/a", f"a_1_all.deb {'a' * 64} 1 ../a"],
)
def test_a_line_that_is_no_package_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(InputError, match=r"debian12\.lock:2: .*is not `file sha256 bytes path`"):
        read_frozen(write(tmp_path, f"# x\n{line}\n"))


def test_a_checkout_without_one_installs_from_the_mirror(tmp_path: Path) -> None:
    assert read_frozen(tmp_path) is None


def test_the_shipped_lock_holds_the_base_and_the_packages_of_images() -> None:
    frozen = read_frozen(REPOSITORY)
    assert frozen is not None
    assert {"python3", "libc6", "iptables", "dpkg", "gcc", "git"} <= {deb.name for deb in frozen.debs}
    assert len({deb.name for deb in frozen.debs}) == len(frozen.debs)


@pytest.fixture
def deb(tmp_path: Path) -> Path:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg on this machine")
    root = tmp_path / "root"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        "Package: libx1\nSource: libx (2.0)\nVersion: 1:1.0-2\nArchitecture: amd64\n"
        "Maintainer: a <a@b>\nDescription: x\n more\n"
    )
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", str(root), str(tmp_path / "x.deb")],
        check=True,
        capture_output=True,
    )
    return tmp_path / "x.deb"


def test_a_package_file_says_where_its_archive_keeps_it(deb: Path) -> None:
    found = deb_of(deb)
    assert (found.file, found.path) == ("libx1_1.0-2_amd64.deb", "pool/main/libx/libx/libx1_1.0-2_amd64.deb")
    assert control(deb)["Description"] == "x\n more"
    (deb.parent / "no.deb").write_text("no")
    with pytest.raises(MyriadError, match="is no Debian package"):
        control(deb.parent / "no.deb")


def test_the_repository_holds_the_frozen_files_alone(deb: Path, ctx: BuildContext, tmp_path: Path) -> None:
    own = deb_of(deb)
    frozen = read_frozen(write(tmp_path / "checkout", frozen_text([own], "")))
    assert frozen is not None
    kept = ctx.cache_dir / "debs"
    kept.mkdir(parents=True)
    shutil.copyfile(deb, kept / own.file)
    (line,) = frozen_sources(ctx, frozen)
    folder = Path(line.split("copy:")[1].split()[0])
    assert sorted(path.name for path in folder.iterdir()) == ["Packages", "Release", own.file]
    stanza = (folder / "Packages").read_text()
    assert f"SHA256: {own.sha256}" in stanza and f"Filename: ./{own.file}" in stanza
    assert "Suite: bookworm" in (folder / "Release").read_text()


def test_a_vanished_package_is_named_with_the_places(
    ctx: BuildContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A port on which nobody listens stands for every archive.
    monkeypatch.setenv("MYRIAD_MIRROR_RELEASES", "*=http://127.0.0.1:9")
    gone = Deb("gone_1_all.deb", "c" * 64, 1, "pool/main/g/gone/gone_1_all.deb")
    frozen = read_frozen(write(tmp_path / "checkout", frozen_text([gone], "")))
    assert frozen is not None
    with pytest.raises(FetchError, match=r"gone_1_all\.deb cannot be had any more: http://deb\.debian\.org/debian: "):
        frozen_sources(replace(ctx, strict=True), frozen)
