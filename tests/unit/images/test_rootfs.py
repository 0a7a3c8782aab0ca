"""What of an installation is kept, and where packages come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from myriad.errors import InputError, MyriadError
from myriad.images import rootfs
from myriad.images.context import BuildContext, BuildEvent
from myriad.images.layer import Entry, file_from_bytes
from myriad.images.oci import Layer, write_layer
from myriad.images.rootfs import (
    BASE,
    DEBIAN_SOURCES,
    NODE,
    Recipe,
    apt_sources,
    build_base_layer,
    installed_packages,
    machine_sources,
    recipe_entries,
)
from myriad.images.rootfs_advice import advice
from myriad.stack.fetch import FetchError


def kept(archive: Path, recipe: Recipe) -> dict[str, Entry]:
    return {entry.path: entry for entry in recipe_entries(archive, recipe)}


def content(entry: Entry) -> bytes:
    assert entry.content is not None
    with entry.content() as file:
        return file.read()


def test_caches_devices_and_what_belongs_to_one_machine_are_left_out(rootfs_tar: Path) -> None:
    entries = kept(rootfs_tar, Recipe("r", ()))
    assert not {"dev/null", "etc/resolv.conf", "var/cache/apt/pkgcache.bin"} & set(entries)
    assert "var/cache/apt" in entries, "apt expects its folders"
    archives = entries["var/cache/apt/archives"]
    assert (archives.mode, archives.uid, archives.gid) == (0o755, 0, 0), "not those of the builder's package cache"
    assert content(entries["etc/machine-id"]) == b""
    assert (entries["etc/shadow"].gid, entries["etc/shadow"].mode) == (42, 0o640)


def test_a_purged_package_takes_its_own_files_and_its_status_with_it(rootfs_tar: Path) -> None:
    entries = kept(rootfs_tar, Recipe("r", (), purge=("apt",)))
    assert "usr/bin/apt" not in entries, "listed as /bin/apt by a package older than merged /usr"
    assert "usr/bin/both" in entries, "another package has it too"
    assert content(entries["var/lib/dpkg/status"]).decode().count("Package: ") == 1


def test_a_recipe_that_purges_what_is_not_installed_is_out_of_date(rootfs_tar: Path) -> None:
    with pytest.raises(MyriadError, match="not installed: perl-base"):
        kept(rootfs_tar, Recipe("r", (), purge=("perl-base",)))


def test_setuid_bits_go_unless_the_recipe_allows_them(rootfs_tar: Path) -> None:
    assert kept(rootfs_tar, Recipe("r", ()))["usr/bin/a-su"].mode == 0o4755
    without = kept(rootfs_tar, Recipe("r", (), setuid_allowed=False))
    assert {without["usr/bin/a-su"].mode, without["usr/bin/b-su"].mode} == {0o755}


def test_versions_are_read_from_the_installation(rootfs_tar: Path) -> None:
    assert installed_packages(rootfs_tar) == {"apt": "2.6.1", "base-files": "12.4"}


def test_images_have_no_setuid_programs_and_nodes_may() -> None:
    assert not BASE.setuid_allowed
    assert NODE.setuid_allowed
    assert NODE.purge == ()


def etc_with(root: Path, **files: str) -> Path:
    (root / "apt" / "sources.list.d").mkdir(parents=True)
    for name, text in files.items():
        stem, _, suffix = name.rpartition("_")
        folder = root / "apt" if stem == "sources" else root / "apt" / "sources.list.d"
        (folder / f"{stem}.{suffix}").write_text(text)
    return root


def test_this_machines_debian_mirrors_are_used_and_other_vendors_are_not(tmp_path: Path) -> None:
    etc = etc_with(
        tmp_path,
        debian_sources="# our mirror\nTypes: deb deb-src\nURIs: http://mirror.example/debian/\n"
        "Suites: bookworm bookworm-updates\nComponents: main contrib\n\nTypes: deb\nURIs: http://off.example/debian\n"
        "Suites: bookworm\nComponents: main\nEnabled: no\n",
        docker_list="deb [arch=amd64] https://download.docker.com/linux/debian bookworm stable\n",
        sources_list="# deb http://commented.example/debian bookworm main\n"
        "deb http://mirror.example/debian-security bookworm-security main # ours\n"
        "deb-src http://mirror.example/debian bookworm main\ndeb http://mirror.example/debian trixie main\n",
    )
    assert machine_sources(etc) == [
        "deb http://mirror.example/debian-security bookworm-security main",
        "deb http://mirror.example/debian bookworm main",
        "deb http://mirror.example/debian bookworm-updates main",
    ]


def test_a_machine_of_another_release_uses_debians_mirror_and_its_own_keyring(
    ctx: BuildContext, tmp_path: Path
) -> None:
    keyring = tmp_path / "keyring.gpg"
    keyring.write_bytes(b"")
    etc = etc_with(tmp_path / "etc", sources_list="deb http://archive.ubuntu.com/ubuntu noble main\n")
    sources = apt_sources(replace(ctx, apt_keyring=keyring), etc=etc)
    assert len(sources) == len(DEBIAN_SOURCES)
    assert sources[0] == f"deb [signed-by={keyring}] http://deb.debian.org/debian bookworm main"


def test_given_sources_win(ctx: BuildContext, tmp_path: Path) -> None:
    keyring = tmp_path / "keyring.gpg"
    keyring.write_bytes(b"")
    given = ("deb [trusted=yes] http://a.example/debian bookworm main", "deb http://b.example/debian bookworm main")
    sources = apt_sources(replace(ctx, apt_keyring=keyring, apt_sources=given))
    assert sources == (given[0], f"deb [signed-by={keyring}] http://b.example/debian bookworm main")


def test_a_missing_keyring_says_which_package_has_it(ctx: BuildContext, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="keyring") as caught:
        apt_sources(replace(ctx, apt_keyring=tmp_path / "none.gpg"))
    assert "apt-get install debian-archive-keyring" in (caught.value.hint or "")


def test_a_failed_installation_shows_the_last_lines_and_the_log(
    ctx: BuildContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "mmdebstrap").write_text("#!/bin/sh\necho 'I: downloading'\necho 'E: no such mirror' >&2\nexit 3\n")
    (tools / "mmdebstrap").chmod(0o755)
    keyring = tmp_path / "keyring.gpg"
    keyring.write_bytes(b"")
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    with pytest.raises(MyriadError, match=r"exit 3.*no such mirror") as caught:
        build_base_layer(replace(ctx, apt_keyring=keyring))
    assert "no such mirror" in Path(caught.value.where or "").read_text()
    assert not list((ctx.cache_dir / "layers").glob("*")), "a failure is not remembered"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "E: unable to pick chroot mode automatically (use --mode for manual selection)",
            ["apt-get install uidmap", "range of ids for ada in /etc/subuid and /etc/subgid", "run it as root"],
        ),
        ("W: cannot find newuidmap", ["apt-get install uidmap"]),
        ("tar: write error: No space left on device", ["TMPDIR"]),
        ("W: GPG error: http://a.example bookworm InRelease: NO_PUBKEY 0E98404D386FA1D9", ["debian-archive-keyring"]),
        ("E: Failed to fetch http://a.example/x.deb", ["look at the log; unreachable mirrors"]),
    ],
)
def test_a_failure_of_mmdebstrap_comes_with_what_to_do(line: str, words: list[str]) -> None:
    told = advice(["I: running apt-get update...", line], user="ada")
    assert all(word in told for word in words), told


def test_without_mmdebstrap_the_package_is_named(
    ctx: BuildContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring = tmp_path / "keyring.gpg"
    keyring.write_bytes(b"")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError) as caught:
        build_base_layer(replace(ctx, apt_keyring=keyring))
    assert caught.value.hint == "apt-get install mmdebstrap"


def test_a_new_stamp_installs_anew(ctx: BuildContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = tmp_path / "keyring.gpg"
    keyring.write_bytes(b"")
    made = []

    def make(ctx: BuildContext, recipe: Recipe) -> Layer:
        made.append(ctx.system_stamp)
        return write_layer(ctx.blobs, [file_from_bytes("/a", b"a")])

    monkeypatch.setattr(rootfs, "_base_layer", make)
    for stamp in ("", "", "2026-11-29", "2026-11-29"):
        build_base_layer(replace(ctx, apt_keyring=keyring, system_stamp=stamp))
    assert made == ["", "2026-11-29"]


def test_a_frozen_package_that_is_gone_is_an_error_or_told(
    ctx: BuildContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[BuildEvent]
) -> None:
    keyring = tmp_path / "keyring.gpg"
    keyring.write_bytes(b"")

    def make(ctx: BuildContext, recipe: Recipe) -> Layer:
        if recipe.frozen:
            raise FetchError("gone_1_all.deb cannot be had any more")
        return write_layer(ctx.blobs, [file_from_bytes("/a", b"a")])

    monkeypatch.setattr(rootfs, "_base_layer", make)
    with pytest.raises(FetchError, match="cannot be had any more"):
        build_base_layer(replace(ctx, apt_keyring=keyring, strict=True))
    assert build_base_layer(replace(ctx, apt_keyring=keyring)).size
    assert any("newest packages instead of the frozen ones: gone_1_all.deb" in event.detail for event in events)
    # What came instead is not taken for the frozen one later.
    assert rootfs.known_base_layer(replace(ctx, apt_keyring=keyring)) is None
