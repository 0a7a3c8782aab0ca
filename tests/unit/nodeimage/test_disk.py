"""A disk is put together: partitions, file system, boot loader, by the tools that do it and read back by others."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from myriad.errors import MyriadError
from myriad.nodeimage import chroot, seed
from myriad.nodeimage.disk import _BIOS_START, _ESP_START, _ROOT_START, SECTOR_BYTES, Identity, assemble, boot_files
from myriad.nodeimage.tools import which

IDENTITY = Identity("node-test/6.1.0-57-amd64/7")
TOOLS = ("mke2fs", "debugfs", "sfdisk", "mkfs.vfat", "mcopy", "mtype")
needs_tools = pytest.mark.skipif(
    any(which(tool) is None for tool in TOOLS), reason="apt-get install e2fsprogs fdisk dosfstools mtools"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name, content in {
        "etc/hosts": b"127.0.0.1 localhost\n",
        "boot/grub/i386-pc/core.img": b"\x52" * 700,
        "boot/grub/x86_64-efi/core.img": b"MZ uefi core",
        "usr/lib/grub/i386-pc/boot.img": bytes(range(256)) * 2,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (root / "etc/hosts").chmod(0o640)
    (root / "etc/link").symlink_to("hosts")
    return root


def at(disk: Path, offset: int, size: int) -> bytes:
    with disk.open("rb") as stream:
        stream.seek(offset)
        return stream.read(size)


@needs_tools
def test_a_tree_becomes_a_disk_with_three_partitions(tree: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    steps: list[str] = []
    assemble(tree, disk, size_gb=3, identity=IDENTITY, epoch=7, on_step=steps.append)
    assert steps == ["partition table", "root file system", "boot loader"]
    said = subprocess.run([str(which("sfdisk")), "--json", disk], capture_output=True, text=True, check=True).stdout
    table = json.loads(said)["partitiontable"]
    assert table["id"].lower() == IDENTITY.uuid("disk")
    assert [(one["name"], one["start"]) for one in table["partitions"]] == [
        ("bios", _BIOS_START),
        ("efi", _ESP_START),
        ("root", _ROOT_START),
    ]
    root = f"{disk}?offset={_ROOT_START * SECTOR_BYTES}"
    command = [str(which("debugfs")), "-R", "stat /etc/hosts", root]
    stat = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Mode:  0640" in stat
    command = [str(which("debugfs")), "-R", "cat /etc/hosts", root]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "127.0.0.1 localhost\n"
    command = [which("mtype") or "mtype", "-i", f"{disk}@@{_ESP_START * SECTOR_BYTES}", "::/EFI/BOOT/BOOTX64.EFI"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"MZ uefi core"


@needs_tools
def test_grub_s_first_sectors_point_at_its_core(tree: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    assemble(tree, disk, size_gb=3, identity=IDENTITY, epoch=7, on_step=lambda text: None)
    boot = at(disk, 0, 512)
    assert int.from_bytes(boot[0x5C:0x64], "little") == _BIOS_START
    assert boot[0x66:0x68] == b"\x90\x90"
    assert boot[510:] == b"\x55\xaa", "the partition table's own mark"
    core = at(disk, _BIOS_START * SECTOR_BYTES, 1024)
    assert core[:500] == b"\x52" * 500
    blocks = core[500:512]
    assert (int.from_bytes(blocks[:8], "little"), int.from_bytes(blocks[8:10], "little")) == (_BIOS_START + 1, 1)
    assert core[700:] == bytes(324), "the last sector is filled up"


def test_identifiers_follow_from_the_text_and_from_nothing_else() -> None:
    assert IDENTITY.uuid("root") == Identity("node-test/6.1.0-57-amd64/7").uuid("root")
    assert len({Identity(text).uuid(what) for text in ("a", "b") for what in ("disk", "root")}) == 4
    assert len(IDENTITY.volume) == 8


def test_a_tree_without_its_kernel_is_refused(tree: Path) -> None:
    with pytest.raises(MyriadError, match=r"/boot/vmlinuz-6\.1\.0-57-amd64 is not in the tree"):
        boot_files(tree, "6.1.0-57-amd64", "Title", IDENTITY, 7)


def test_programs_in_a_tree_run_in_namespaces_of_their_own(tmp_path: Path) -> None:
    command = chroot.in_tree(tmp_path, ["id", "-u"])
    assert command[:6] == ["unshare", "--mount", "--propagation", "private", "--pid", "--fork"]
    assert "--kill-child" in command
    assert command[-4:] == ["chroot", str(tmp_path), "id", "-u"]
    assert "sysfs" not in command[command.index("-c") + 1], "the build machine's GPUs are nobody's business"


@needs_tools
def test_a_seed_holds_the_key_the_name_and_the_addresses(tmp_path: Path) -> None:
    key = seed.make_key(tmp_path / "key")
    disk = tmp_path / "seed.img"
    seed.write_seed(disk, name="gpu1", public=key.public, addresses={"52:54:00:00:00:01": "10.88.0.12/24"})

    def text(name: str) -> str:
        return subprocess.run(
            [which("mtype") or "mtype", "-i", disk, f"::/{name}"], capture_output=True, text=True, check=True
        ).stdout

    assert text("user-data").startswith("#cloud-config\n")
    assert key.public in text("user-data")
    assert "local-hostname: gpu1" in text("meta-data")
    assert "10.88.0.12/24" in text("network-config")
    label = subprocess.run(["mlabel", "-s", "-i", disk, "::"], capture_output=True, text=True, check=True).stdout
    assert "CIDATA" in label
    assert key.private.stat().st_mode & 0o077 == 0
