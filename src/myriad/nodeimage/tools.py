"""Programs that a build needs: all that are missing are named at once, with the one command that brings them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from myriad.errors import InputError, MyriadError

#: Program to Debian package.
PACKAGES: Mapping[str, str] = {
    "mke2fs": "e2fsprogs",
    "mkfs.vfat": "dosfstools",
    "mcopy": "mtools",
    "mmdebstrap": "mmdebstrap",
    "packer": "packer",
    "qemu-img": "qemu-utils",
    "qemu-system-x86_64": "qemu-system-x86",
    "sfdisk": "fdisk",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
}
_SYSTEM_PATH = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")
_TAIL = 12


def which(program: str) -> str | None:
    """Where a program is: on PATH, or where distributions keep those of the administrator."""
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM_PATH]))


def need(programs: Iterable[str]) -> None:
    """Raises InputError that names every program that is missing and how to get them together."""
    missing = [program for program in programs if which(program) is None]
    if missing:
        packages = sorted({PACKAGES.get(program, program) for program in missing})
        raise InputError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not on this machine",
            hint=f"apt-get install --no-install-recommends {' '.join(packages)}",
        )


def need_root(what: str) -> None:
    """Raises InputError when not run by root."""
    if os.geteuid() != 0:
        raise InputError(
            f"{what} needs root: it installs packages in a change root and mounts file systems in a mount namespace",
            hint="run it with sudo, or in a build container with CAP_SYS_ADMIN",
        )


def run(
    command: Sequence[object],
    *,
    what: str,
    hint: str | None = None,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout_s: float = 3600,
    on_line: Callable[[str], None] | None = None,
) -> str:
    """Run a program to its end and give what it printed; its whole process group ends with it.

    Args:
        what: what it does, for the message: "mke2fs could not write the root file system".
        log: where its output is kept as well.
        timeout_s: seconds after which it is stopped.
        on_line: told every line while it runs.

    Raises:
        MyriadError: it failed or took too long; with its last lines.
    """
    program = which(str(command[0])) or str(command[0])
    lines: list[str] = []
    deadline = time.monotonic() + timeout_s
    with subprocess.Popen(
        [program, *map(str, command[1:])],
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=dict(os.environ, **(env or {})),
        cwd=cwd,
        start_new_session=True,
    ) as process:
        late = False
        try:
            if stdin is not None and process.stdin is not None:
                process.stdin.write(stdin)
                process.stdin.close()
            for line in process.stdout or ():
                lines.append(line.rstrip("\n"))
                if on_line is not None:
                    on_line(line.rstrip("\n"))
                if time.monotonic() > deadline:
                    late = True
                    break
            if not late:
                process.wait(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = True
        finally:
            if process.poll() is None:
                end_group(process)
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if late or process.returncode != 0:
        why = f"took longer than {timeout_s:.0f} s" if late else f"exit {process.returncode}"
        raise MyriadError(
            f"{what} ({why}): " + (" | ".join(line for line in lines[-_TAIL:] if line.strip()) or "it said nothing"),
            where=str(log) if log is not None else None,
            hint=hint,
        )
    return "\n".join(lines)


def end_group(process: subprocess.Popen[str], grace_s: float = 10) -> None:
    """Stop a program that was started in a session of its own, with all that it started: first asked, then killed.

    The group counts, not only its leader: what a shell puts in the background ignores SIGINT and outlives it.
    """
    for sign, wait_s in ((signal.SIGINT, grace_s), (signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + wait_s
        try:
            os.killpg(process.pid, sign)
            while time.monotonic() < deadline:
                process.poll()  # takes in the leader, which would count as a member of its group until then
                os.killpg(process.pid, 0)
                time.sleep(0.05)
        except ProcessLookupError:
            break
    process.wait()
