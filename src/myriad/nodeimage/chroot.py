"""Programs inside a tree that will be a disk, with mounts that end with them.

Everything is mounted in a mount namespace of the program's own, and its processes live in a process namespace: when it
ends, or is killed, no mount and no daemon is left on the build machine. `/sys` is not mounted: the GPUs of the machine
that builds are not those of the machines that the image is for.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from myriad.nodeimage.tools import run

#: Refuses to start services while packages are installed: there is nothing to run them on.
POLICY = "usr/sbin/policy-rc.d"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

_MOUNTS = """set -eu
root=$1; cache=$2; shift 2
mount --types proc proc "$root/proc"
mount --types tmpfs -o mode=0755 tmpfs "$root/run"
mount --types tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --types tmpfs -o mode=0755 tmpfs "$root/dev"
for device in {devices}; do : > "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"; done
mkdir -p "$root/dev/pts" "$root/dev/shm"
mount --types devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"; ln -s /proc/self/fd "$root/dev/fd"
# Names are resolved as on the build machine; the tree's own resolv.conf is a link into /run.
mkdir -p "$root/run/systemd/resolve" "$root/run/lock"
cp /etc/resolv.conf "$root/run/systemd/resolve/stub-resolv.conf"
if [ -n "$cache" ]; then
  mkdir -p "$root/var/cache/apt/archives"
  mount --bind "$cache" "$root/var/cache/apt/archives"
fi
umask 022
"$@"
"""


def in_tree(tree: Path, command: Sequence[object]) -> list[str]:
    """A command line that runs a program inside the tree."""
    return around_tree(tree, ["chroot", str(tree), *map(str, command)])


def around_tree(tree: Path, command: Sequence[object], *, apt_cache: Path | None = None) -> list[str]:
    """A command line that runs a program of the build machine while the tree's mounts are there.

    `apt_cache` is a folder of the build machine where downloaded packages are kept for the next build.
    """
    script = _MOUNTS.format(devices=" ".join(map(shlex.quote, _DEVICES)))
    namespace = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    return [*namespace, "sh", "-c", script, "sh", str(tree), str(apt_cache or ""), *map(str, command)]


def environment(epoch: int) -> dict[str, str]:
    """Variables for programs that install something: no questions, one language, one time."""
    return {
        "DEBIAN_FRONTEND": "noninteractive",
        "LC_ALL": "C.UTF-8",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SOURCE_DATE_EPOCH": str(epoch),
        "TZ": "UTC",
    }


def run_in_tree(
    tree: Path,
    command: Sequence[object],
    *,
    what: str,
    epoch: int,
    hint: str | None = None,
    log: Path | None = None,
    timeout_s: float = 1800,
    extra: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> str:
    """Run a program inside the tree to its end. Raises MyriadError with its last lines."""
    return run(
        in_tree(tree, command),
        what=what,
        hint=hint,
        log=log,
        timeout_s=timeout_s,
        env={**environment(epoch), **(extra or {})},
        on_line=on_line,
    )


def forbid_services(tree: Path) -> None:
    """Write policy-rc.d, so that packages do not start what they bring. The seal takes it out again."""
    path = tree / POLICY
    path.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    path.chmod(0o755)
