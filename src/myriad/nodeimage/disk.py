"""A tree becomes a disk that boots by BIOS and by UEFI, without a mount, a loop device or a boot loader's installer.

Partitions: one for GRUB's core (BIOS), one for UEFI, one ext4 with everything. Identifiers follow from the image's name
and version of its content, so that two builds give the same table, the same file system and the same boot loader.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from myriad.errors import MyriadError
from myriad.nodeimage.chroot import run_in_tree
from myriad.nodeimage.tools import run

SECTOR_BYTES = 512
_MIB_SECTORS = 2048
_BIOS_START = _MIB_SECTORS
_BIOS_SECTORS = 2 * _MIB_SECTORS
_ESP_START = _BIOS_START + _BIOS_SECTORS
_ESP_SECTORS = 64 * _MIB_SECTORS
_ROOT_START = _ESP_START + _ESP_SECTORS
_TAIL_SECTORS = _MIB_SECTORS  # the second copy of the partition table
_TYPES = {
    "bios": "21686148-6449-6E6F-744E-656564454649",
    "esp": "C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
    "root": "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709",  # Linux root, x86-64
}
_NAMESPACE = uuid.UUID("6a1c3f1e-2f7b-5c55-9d0c-0f6d79726961")

_MODULES = (
    *("part_gpt", "ext2", "search", "search_fs_uuid", "normal", "configfile", "linux", "test"),
    *("echo", "serial", "terminal", "ls", "reboot", "halt"),
)
_BIOS_MODULES = ("biosdisk", *_MODULES)
_EFI_MODULES = ("fat", "efi_gop", "all_video", *_MODULES)
# Where GRUB's first sectors keep what its installer fills in (grub-core/boot/i386/pc/{boot,diskboot}.S).
_BOOT_KERNEL_SECTOR = 0x5C
_BOOT_DRIVE_CHECK = 0x66
_CODE_BYTES = 440
_BLOCKLIST = SECTOR_BYTES - 12
_CORE_SEGMENT = 0x820

OnStep = Callable[[str], None]


@dataclass(frozen=True)
class Identity:
    """Identifiers of a disk, all derived from one text."""

    text: str

    def uuid(self, what: str) -> str:
        """The UUID of the disk, a partition or a file system."""
        return str(uuid.uuid5(_NAMESPACE, f"{self.text}/{what}"))

    @property
    def volume(self) -> str:
        """The serial number of the UEFI partition: eight hex digits."""
        return self.uuid("esp")[:8]


def boot_files(tree: Path, kernel: str, title: str, identity: Identity, epoch: int) -> None:
    """Write the boot loader's images and configuration, and fstab, into the tree.

    Raises:
        MyriadError: the kernel or its initramfs is not in the tree, or GRUB's programs are not.
    """
    for name in (f"vmlinuz-{kernel}", f"initrd.img-{kernel}"):
        if not (tree / "boot" / name).is_file():
            raise MyriadError(
                f"/boot/{name} is not in the tree", where=str(tree), hint=f"is linux-image-{kernel} in the archive?"
            )
    root = identity.uuid("root-fs")
    grub = tree / "boot" / "grub"
    grub.mkdir(parents=True, exist_ok=True)
    (grub / "grub.cfg").write_text(_grub_config(kernel, title, root), encoding="utf-8")
    early = f"search.fs_uuid {root} root\nset prefix=($root)/boot/grub\n"
    (grub / "early.cfg").write_text(early, encoding="utf-8")
    for platform, modules in (("i386-pc", _BIOS_MODULES), ("x86_64-efi", _EFI_MODULES)):
        (grub / platform).mkdir(exist_ok=True)
        command = ["grub-mkimage", "--format", platform, "--output", f"/boot/grub/{platform}/core.img"]
        command += ["--prefix", "/boot/grub", "--config", "/boot/grub/early.cfg", *modules]
        run_in_tree(tree, command, what=f"grub-mkimage could not make the core for {platform}", epoch=epoch)
    (tree / "boot" / "efi").mkdir(exist_ok=True)
    (tree / "etc" / "fstab").write_text(
        f"UUID={root} / ext4 errors=remount-ro 0 1\n"
        f"UUID={identity.volume[:4].upper()}-{identity.volume[4:].upper()} /boot/efi vfat umask=0077,nofail 0 1\n",
        encoding="utf-8",
    )


def _grub_config(kernel: str, title: str, root: str) -> str:
    return f"""set default=0
set timeout=1
if serial --unit=0 --speed=115200; then
  terminal_input console serial
  terminal_output console serial
fi
menuentry '{title.replace("'", "")}' {{
  linux /boot/vmlinuz-{kernel} root=UUID={root} ro console=tty0 console=ttyS0,115200
  initrd /boot/initrd.img-{kernel}
}}
"""


def assemble(tree: Path, disk: Path, *, size_gb: int, identity: Identity, epoch: int, on_step: OnStep) -> None:
    """Write the tree as a raw disk (sparse) of `size_gb` 10**9 bytes.

    Raises:
        MyriadError: the tree does not fit, or a tool failed.
    """
    sectors = size_gb * 10**9 // SECTOR_BYTES
    root_sectors = (sectors - _ROOT_START - _TAIL_SECTORS) // 8 * 8
    disk.parent.mkdir(parents=True, exist_ok=True)
    disk.unlink(missing_ok=True)
    with disk.open("wb") as stream:
        stream.truncate(sectors * SECTOR_BYTES)
    on_step("partition table")
    table = [
        "label: gpt",
        f"label-id: {identity.uuid('disk')}",
        f"start={_BIOS_START}, size={_BIOS_SECTORS}, type={_TYPES['bios']}, uuid={identity.uuid('bios')}, name=bios",
        f"start={_ESP_START}, size={_ESP_SECTORS}, type={_TYPES['esp']}, uuid={identity.uuid('esp-part')}, name=efi",
        f"start={_ROOT_START}, size={root_sectors}, type={_TYPES['root']}, uuid={identity.uuid('root')}, name=root",
    ]
    run(
        ["sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", disk],
        what="sfdisk could not write the partition table",
        stdin="\n".join(table) + "\n",
    )
    on_step("root file system")
    _root_file_system(tree, disk, root_sectors, identity, epoch)
    on_step("boot loader")
    _esp(tree, disk, identity, epoch)
    _bios_core(tree, disk)


def _root_file_system(tree: Path, disk: Path, sectors: int, identity: Identity, epoch: int) -> None:
    """ext4 straight from the tree, with owners, devices and extended attributes. mke2fs writes into the disk's file."""
    command = ["mke2fs", "-q", "-t", "ext4", "-F", "-L", "myriad-root", "-m", "1", "-U", identity.uuid("root-fs")]
    options = f"hash_seed={identity.uuid('hash')},lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0"
    command += ["-E", f"{options},offset={_ROOT_START * SECTOR_BYTES}", "-d", str(tree), str(disk)]
    run(
        [*command, f"{sectors * SECTOR_BYTES // 1024}k"],
        what="mke2fs could not write the root file system",
        hint="if it says that there is no space: a larger disk.size_gb in image.yml",
        env={"E2FSPROGS_FAKE_TIME": str(epoch)},
    )


def _esp(tree: Path, disk: Path, identity: Identity, epoch: int) -> None:
    """The UEFI partition with one file, at the path that firmware looks for without being told."""
    part = disk.with_suffix(".esp")
    env = {"SOURCE_DATE_EPOCH": str(epoch), "MTOOLS_SKIP_CHECK": "1", "TZ": "UTC"}
    try:
        with part.open("wb") as stream:
            stream.truncate(_ESP_SECTORS * SECTOR_BYTES)
        command = ["mkfs.vfat", "-F", "32", "-s", "1", "-n", "EFI", "-i", identity.volume, "--invariant", part]
        run(command, what="mkfs.vfat could not make the UEFI partition", env=env)
        core = tree / "boot" / "grub" / "x86_64-efi" / "core.img"
        run(["mmd", "-i", part, "::/EFI", "::/EFI/BOOT"], what="mmd failed", env=env)
        run(["mcopy", "-i", part, core, "::/EFI/BOOT/BOOTX64.EFI"], what="mcopy failed", env=env)
        _write_at(disk, _ESP_START * SECTOR_BYTES, part.read_bytes())
    finally:
        part.unlink(missing_ok=True)


def _bios_core(tree: Path, disk: Path) -> None:
    """GRUB for BIOS: its first sector before the partitions, its core in the partition that is there for it."""
    boot = bytearray((tree / "usr" / "lib" / "grub" / "i386-pc" / "boot.img").read_bytes()[:_CODE_BYTES])
    core = bytearray((tree / "boot" / "grub" / "i386-pc" / "core.img").read_bytes())
    sectors = -(-len(core) // SECTOR_BYTES)
    if sectors > _BIOS_SECTORS:
        raise MyriadError(f"GRUB's core has {sectors} sectors, its partition {_BIOS_SECTORS}")
    core.extend(bytes(sectors * SECTOR_BYTES - len(core)))
    boot[_BOOT_KERNEL_SECTOR : _BOOT_KERNEL_SECTOR + 8] = _BIOS_START.to_bytes(8, "little")
    # Two no-ops instead of a jump: firmware that hands over a wrong drive number is not believed.
    boot[_BOOT_DRIVE_CHECK : _BOOT_DRIVE_CHECK + 2] = b"\x90\x90"
    core[_BLOCKLIST:SECTOR_BYTES] = (
        (_BIOS_START + 1).to_bytes(8, "little")
        + (sectors - 1).to_bytes(2, "little")
        + _CORE_SEGMENT.to_bytes(2, "little")
    )
    _write_at(disk, 0, bytes(boot))
    _write_at(disk, _BIOS_START * SECTOR_BYTES, bytes(core))


def _write_at(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)


@contextmanager
def mounted(disk: Path, scratch: Path) -> Iterator[Path]:
    """The root file system of a disk, read-only. qcow2 is unpacked to a raw file beside the mount point first.

    The journal is not replayed: what is not on the disk is not in the image.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    point = scratch / "mnt"
    point.mkdir(exist_ok=True)
    raw = disk
    if disk.suffix != ".raw":
        raw = scratch / "disk.raw"
        run(["qemu-img", "convert", "-O", "raw", disk, raw], what="qemu-img could not unpack the disk")
    try:
        options = f"ro,loop,noload,offset={_ROOT_START * SECTOR_BYTES}"
        run(
            ["mount", "-t", "ext4", "-o", options, raw, point],
            what="the root file system of the image cannot be mounted",
            hint="reading an image needs a loop device (/dev/loop-control); compare manifests where there is none",
        )
        try:
            yield point
        finally:
            run(["umount", point], what="the root file system of the image cannot be unmounted")
    finally:
        if raw != disk:
            raw.unlink(missing_ok=True)
        if not any(point.iterdir()):
            shutil.rmtree(point)
