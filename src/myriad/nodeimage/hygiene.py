"""What must not be in an image: one table, applied to a tree or in the guest, and held against a manifest.

Standard library only: packer runs this very file inside the guest as its last step
(`python3 hygiene.py --root / --epoch SECONDS`), and the build imports it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Rule:
    """Paths (with `*`, which spans directories) that an image must not have.

    Attributes:
        what: the kind of thing, in words.
        patterns: absolute paths; directories themselves stay.
        action: remove the file, or leave it there and empty.
        why: what goes wrong on machines that share it.
    """

    what: str
    patterns: tuple[str, ...]
    why: str
    action: Literal["remove", "empty"] = "remove"


RULES = (
    Rule("ssh host key", ("/etc/ssh/ssh_host_*",), "whoever has the image can pose as every machine made from it"),
    Rule(
        "key of a person",
        ("/root/.ssh/*", "/home/*/.ssh/*", "/etc/ssh/authorized_keys/*"),
        "it opens every machine made from the image",
    ),
    Rule(
        "signing key",
        ("/var/lib/dkms/mok.key", "/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/*"),
        "whoever has the image can sign kernel modules that its machines trust",
    ),
    Rule(
        "machine id",
        ("/etc/machine-id",),
        "machines with one id get one DHCP lease and one node identity",
        action="empty",
    ),
    Rule(
        "identity of one machine",
        (
            "/etc/hostname",
            "/var/lib/dbus/machine-id",
            "/var/lib/systemd/credential.secret",
            "/etc/iscsi/initiatorname.iscsi",
            "/var/lib/containerd/io.containerd.grpc.v1.introspection/uuid",
        ),
        "it must be made on each machine",
    ),
    Rule(
        "random seed",
        ("/var/lib/systemd/random-seed", "/boot/efi/loader/random-seed"),
        "machines that start from one seed draw the same keys",
    ),
    Rule(
        "log",
        (
            "/var/log/*",
            "/root/.bash_history",
            "/root/.lesshst",
            "/root/.wget-hsts",
            "/var/lib/dkms/*/make.log",
            "/var/lib/dkms/*/*.log.gz",
        ),
        "it tells about the build machine, and changes with every build",
    ),
    Rule(
        "lease or time",
        (
            *("/var/lib/dhcp/*", "/var/lib/dhclient/*", "/var/lib/NetworkManager/*", "/run/systemd/netif/*"),
            *("/var/lib/chrony/*", "/var/lib/systemd/timesync/*", "/var/lib/systemd/timers/*"),
        ),
        "it belongs to the network and the clock of the build",
    ),
    Rule(
        "package list or cache",
        (
            *("/var/lib/apt/lists/*", "/var/cache/apt/*", "/var/cache/debconf/*-old", "/var/cache/man/*"),
            *("/var/cache/ldconfig/*", "/var/cache/fontconfig/*", "/var/cache/apparmor/*", "/var/lib/apt/periodic/*"),
            *("/var/lib/apt/extended_states-old", "/root/.cache/*", "/root/.ansible/*"),
        ),
        "it is old on the day of the boot, and costs space",
    ),
    Rule(
        "backup",
        (
            *("/var/backups/*", "/var/lib/dpkg/*-old", "/etc/passwd-", "/etc/shadow-", "/etc/group-", "/etc/gshadow-"),
            *("/etc/subuid-", "/etc/subgid-", "/var/lib/ucf/*.[0-9]", "/var/lib/ucf/cache/*"),
            *("/boot/*.dpkg-bak", "/boot/*.old-dkms"),
        ),
        "it is another state of a file that is there",
    ),
    Rule(
        "state of a boot",
        (
            *("/var/lib/cloud/*", "/etc/sudoers.d/90-cloud-init-users", "/etc/netplan/50-cloud-init.yaml"),
            "/etc/ssh/sshd_config.d/50-cloud-init.conf",
            *(
                "/etc/systemd/network/10-cloud-init-*",
                "/run/cloud-init/*",
                "/var/lib/sudo/*",
                "/var/lib/systemd/coredump/*",
            ),
            *(
                "/var/lib/private/systemd/*",
                "/etc/.pwd.lock",
            ),
            *(
                "/etc/default/locale",
                "/etc/cloud/cloud-init.disabled",
                "/var/lib/systemd/linger/*",
                "/var/lib/systemd/rfkill/*",
            ),
        ),
        "the first boot of a machine must find none",
    ),
    Rule(
        "leftover of the build",
        ("/tmp/*", "/var/tmp/*", "/usr/sbin/policy-rc.d"),  # noqa: S108 (of the image, not of this machine)
        "only the build needs it",
    ),
    Rule(
        "traces of containers",
        (
            *("/var/lib/containerd/tmpmounts/*", "/var/lib/containerd/io.containerd.content.v1.content/ingest/*"),
            *(
                "/var/lib/containerd/io.containerd.runtime.v2.task/*",
                "/var/lib/containerd/io.containerd.mount-manager.v1.bolt/*",
            ),
        ),
        "no container runs in an image",
    ),
)
"""Every rule. Folders stay, because the programs that write below them expect them; `/tmp` and the like are emptied."""

RECORDS = "/var/lib/myriad/state"
_EMPTIED = (
    *("/tmp", "/var/tmp", "/run"),  # noqa: S108 (of the image)
    *("/root/.ansible", "/root/.cache", "/root/.ssh", "/var/lib/cloud", "/var/log/journal"),
)
_MACHINE_FIELDS = ("inode", "mtime_ns", "size")


@dataclass(frozen=True)
class Finding:
    """Something that is in an image and must not be."""

    path: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}; {self.why}"


# Nearly every path falls under none: one expression for all tells so at once (the guest may be emulated).
_ANY = re.compile("|".join(translate(pattern) for rule in RULES for pattern in rule.patterns))


def rule_of(path: str) -> Rule | None:
    """The rule that a path falls under."""
    if not _ANY.match(path):
        return None
    return next((rule for rule in RULES if any(fnmatchcase(path, pattern) for pattern in rule.patterns)), None)


def findings(files: Iterable[tuple[str, int, bool]]) -> list[Finding]:
    """What an image has and must not have.

    Args:
        files: path, size in bytes and whether a private key was seen in it, of everything that is not a directory.
    """
    found = []
    for path, size, has_key in files:
        rule = rule_of(path)
        if rule is not None and (rule.action == "remove" or size):
            found.append(Finding(path, rule.what, rule.why))
        elif has_key:
            found.append(Finding(path, "private key", "whoever has the image has the key"))
    return found


def seal(root: Path, epoch: int) -> list[str]:
    """Remove from a tree what the rules name, make the roles' records those of an image, and set times back.

    Returns the paths that were removed or emptied.
    """
    done = []
    for path, entry, info in _walk(str(root)):
        rule = None if entry.is_dir(follow_symlinks=False) else rule_of(path)
        if rule is None:
            continue
        if rule.action == "remove":
            Path(entry.path).unlink()
            done.append(path)
        elif info.st_size:
            os.truncate(entry.path, 0)
            done.append(path)
    device = root.lstat().st_dev
    for folder in (root / name.lstrip("/") for name in _EMPTIED):
        # In a guest /run is a file system of its own, and systemd tells by its empty folders that it runs.
        if folder.is_dir() and folder.lstat().st_dev == device:
            _remove_empty_folders(folder)
    machine_id = root / "etc/machine-id"
    if not machine_id.exists() and machine_id.parent.is_dir():
        # systemd makes an id only where it finds the file and finds it empty.
        machine_id.touch(mode=0o444)
    records = root / RECORDS.lstrip("/")
    for record in sorted(records.glob("*.json")) if records.is_dir() else ():
        value = settled(json.loads(record.read_text(encoding="utf-8")))
        record.write_text(json.dumps(value, sort_keys=True, indent=1) + "\n", encoding="utf-8")
    _set_back(root, epoch)
    return done


def settled(record: object) -> object:
    """A role's record without what is different on every machine: runs, inodes and times."""
    if isinstance(record, dict):
        kept = {key: settled(value) for key, value in record.items() if key not in _MACHINE_FIELDS}
        return {key: "image" if key == "run" else value for key, value in kept.items() if key != "started"}
    return [settled(value) for value in record] if isinstance(record, list) else record


def _walk(top: str, prefix: str = "") -> Iterator[tuple[str, os.DirEntry[str], os.stat_result]]:
    """Everything below a folder on its file system, what is in a folder before the folder itself: path in the image,
    entry, status.

    A mount that stands in the tree (the guest's /proc and /run) is no part of the image. Written with os.scandir: an
    emulated guest walks a hundred thousand paths here.
    """
    device = os.lstat(top).st_dev

    def below(folder: str, name: str) -> Iterator[tuple[str, os.DirEntry[str], os.stat_result]]:
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
        for entry in entries:
            info = entry.stat(follow_symlinks=False)
            if info.st_dev != device:
                continue
            path = f"{name}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from below(entry.path, path)
            yield path, entry, info

    yield from below(top, prefix)


def _remove_empty_folders(top: Path) -> None:
    for _path, entry, _info in _walk(str(top)):
        if entry.is_dir(follow_symlinks=False) and not any(Path(entry.path).iterdir()):
            Path(entry.path).rmdir()


def _set_back(root: Path, epoch: int) -> None:
    """Give everything that is newer than the image's time that time (as tar's --clamp-mtime does), folders last."""
    for _path, entry, info in _walk(str(root)):
        if info.st_mtime > epoch and not stat.S_ISSOCK(info.st_mode):
            os.utime(entry.path, (epoch, epoch), follow_symlinks=False)
    if root.stat().st_mtime > epoch:
        os.utime(root, (epoch, epoch))


_PRIVATE_KEY = re.compile(rb"^-----BEGIN ([A-Z0-9]+ )?PRIVATE KEY-----\s*$", re.MULTILINE)


def has_private_key(content: bytes) -> bool:
    """Whether a file holds a private key in PEM: a line of its own, so programs that know the words do not count."""
    return _PRIVATE_KEY.search(content) is not None


def main() -> None:
    """Seal the root that this runs in."""
    parser = argparse.ArgumentParser(description="Remove what must not be in an image.")
    parser.add_argument("--root", type=Path, default=Path("/"))
    parser.add_argument("--epoch", type=int, required=True)
    options = parser.parse_args()
    done = seal(options.root, options.epoch)
    sys.stdout.write(f"sealed: {len(done)} files removed or emptied\n")


if __name__ == "__main__":
    main()
