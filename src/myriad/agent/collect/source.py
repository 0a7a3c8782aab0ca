"""Where collectors get their raw material: the node itself, a recorded folder, or the node while it is recorded.

Collectors name programs and files as the node knows them (`nvidia-smi`, `/sys/bus/pci/devices/...`). `Host` maps sysfs,
procfs and devfs to where they really stand; `Recorded` answers from a folder that `Recorder` (or a person) wrote, so a
machine that nobody here owns is one folder in a test.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import yaml

from myriad.errors import InputError

NOT_FOUND = 127
_KERNELS_OWN = ("/proc/1/", "/proc/stat", "/proc/sys/", "/sys/devices/system/")
"""Paths that belong to the kernel alone: where another sysfs or procfs is shown and lacks them, they are asked for."""
_READ_MOST_BYTES = 4 << 20
_IDENTITIES = ("/etc/machine-id", "/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Done:
    """A program's end. `fault` says why there is no answer (missing, hangs); `rc` is then NOT_FOUND or -1."""

    rc: int
    stdout: str = ""
    stderr: str = ""
    fault: str = ""

    @property
    def missing(self) -> bool:
        """The program is not installed."""
        return self.rc == NOT_FOUND

    @property
    def said(self) -> str:
        """What it wrote, on one line, shortened."""
        return " ".join((self.stdout + " " + self.stderr).split())[:300]


class Source(Protocol):
    """Reads one machine. Files are text; what cannot be read is None (never an exception)."""

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Done:
        """Run a program of the node."""

    def read(self, path: str) -> str | None:
        """A file's text without the last newline."""

    def names(self, path: str) -> list[str] | None:
        """The sorted names in a folder."""

    def link(self, path: str) -> str | None:
        """Where a symbolic link ends, as an absolute path of the node; None where there is no link."""

    def log(self, path: str) -> str | None:
        """The kernel's log as far as it is kept, without waiting for more."""


@dataclass(slots=True)
class Host:
    """The node that the agent runs on.

    Attributes:
        root: where the node's root file system is mounted.
        sysfs, procfs, devfs: where those stand, as the node sees them.
        programs: paths of programs that are not found by name, `{"nvidia-smi": "/usr/bin/nvidia-smi"}`.
    """

    root: Path = Path("/")
    sysfs: str = "/sys"
    procfs: str = "/proc"
    devfs: str = "/dev"
    programs: dict[str, str] = field(default_factory=dict)
    _hung: dict[tuple[str, ...], tuple[subprocess.Popen[bytes], float]] = field(default_factory=dict)

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Done:
        """Run in the node's own root: programs need their libraries.

        A program that hangs in the driver cannot be killed. It is left alone and not started a second time while it
        lives, so a broken driver costs one process and not one for each look.
        """
        key = tuple(argv)
        if key in self._hung:
            process, since = self._hung[key]
            if process.poll() is None:
                return _hangs(argv, time.monotonic() - since)
            del self._hung[key]
        call = [self.programs.get(argv[0], argv[0]), *argv[1:]]
        if self.root != Path("/"):
            call = ["chroot", str(self.root), *call]
        try:
            process = subprocess.Popen(
                call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()
            )
        except OSError as error:
            return Done(NOT_FOUND, fault=f"{argv[0]} cannot be started ({call[0]}: {error.strerror})")
        began = time.monotonic()
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=0.5)
                return _hangs(argv, timeout_s)
            self._hung[key] = (process, began)
            return _hangs(argv, timeout_s)
        done = Done(process.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"))
        # chroot(1) ends with 127 where it does not find the program.
        if self.root != Path("/") and done.rc == NOT_FOUND and not done.stdout:
            return Done(NOT_FOUND, fault=f"{argv[0]} is not installed ({call[2]})")
        return done

    def read(self, path: str) -> str | None:
        """See Source."""
        try:
            with self._real(path).open("rb") as file:
                return file.read(_READ_MOST_BYTES).decode(errors="replace").rstrip("\n")
        except OSError:
            return None

    def names(self, path: str) -> list[str] | None:
        """See Source."""
        try:
            return sorted(entry.name for entry in self._real(path).iterdir())
        except OSError:
            return None

    def link(self, path: str) -> str | None:
        """See Source. Links are followed inside the node's root."""
        here = self._mapped(path)
        for _hop in range(16):
            try:
                target = str(self._below(here).readlink())
            except OSError:
                return None if here == self._mapped(path) else self._unmapped(here)
            here = os.path.normpath(os.path.join(os.path.dirname(here), target))  # noqa: PTH118, PTH120
        return None

    def log(self, path: str) -> str | None:
        """Records of /dev/kmsg without waiting; a plain file is read as it stands."""
        real = self._real(path)
        try:
            if stat.S_ISREG(real.stat().st_mode):
                return self.read(path)
            handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            return b"".join(_records(handle)).decode(errors="replace")
        finally:
            os.close(handle)

    def _real(self, path: str) -> Path:
        real = self._below(self._mapped(path))
        return self._below(path) if path.startswith(_KERNELS_OWN) and not real.exists() else real

    def _below(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _mapped(self, path: str) -> str:
        for known, real in (("/sys", self.sysfs), ("/proc", self.procfs), ("/dev", self.devfs)):
            if path == known or path.startswith(known + "/"):
                return real + path[len(known) :]
        return path

    def _unmapped(self, path: str) -> str:
        for known, real in (("/sys", self.sysfs), ("/proc", self.procfs), ("/dev", self.devfs)):
            if path == real or path.startswith(real + "/"):
                return known + path[len(real) :]
        return path


def _environment() -> dict[str, str]:
    # The agent's own service account has no business in the node's programs.
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


def _hangs(argv: Sequence[str], for_s: float) -> Done:
    return Done(-1, fault=f"{' '.join(argv)} does not answer within {for_s:.0f} s: the driver hangs")


def _records(handle: int) -> Iterator[bytes]:
    # https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg: one record a read, EAGAIN at the end, EPIPE where
    # records were overwritten in the meantime.
    while True:
        try:
            record = os.read(handle, 8192)
        except BlockingIOError:
            return
        except BrokenPipeError:
            continue
        except OSError:
            return
        if not record:
            return
        yield record


class Recorded:
    """A folder with `commands.yml` and `files.yml`.

    `commands.yml` is a list of `{argv, rc, stdout, stderr}`, where `stdout_file` may stand for a long stdout;
    `files.yml` maps a path to its text, or to `{link: TARGET}`. Folders follow from the paths.

    Raises:
        InputError: the folder holds neither.
    """

    def __init__(self, folder: Path) -> None:
        self._commands: dict[tuple[str, ...], Done] = {}
        commands, files = folder / "commands.yml", folder / "files.yml"
        if not commands.exists() and not files.exists():
            raise InputError(
                "is no recorded machine: neither commands.yml nor files.yml is there",
                where=str(folder),
                hint="record one on a GPU node: myriad portrait --local --record DIR",
            )
        try:
            for entry in _yaml(commands) or []:
                text = entry.get("stdout", "")
                if entry.get("stdout_file"):
                    text = (folder / entry["stdout_file"]).read_text()
                self._commands[tuple(entry["argv"])] = Done(
                    int(entry.get("rc", 0)), text, entry.get("stderr", ""), entry.get("fault", "")
                )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                "is no list of commands", where=str(commands), hint="each is {argv: [...], rc: 0, stdout: ...}"
            ) from error
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=str(error.filename)) from error
        try:
            self._files: dict[str, Any] = dict(_yaml(files) or {})
            self._links = {str(at): str(body["link"]) for at, body in self._files.items() if isinstance(body, dict)}
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                "is no table of files", where=str(files), hint="each is PATH: TEXT, or PATH: {link: TARGET}"
            ) from error
        self._folders: dict[str, set[str]] = {}
        for path in self._files:
            pure = PurePosixPath(path)
            for child, parent in zip([pure, *pure.parents], pure.parents, strict=False):
                self._folders.setdefault(str(parent), set()).add(child.name)

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Done:
        """What was recorded; a program that was not is not installed."""
        del timeout_s
        return self._commands.get(tuple(argv)) or Done(NOT_FOUND, fault=f"{argv[0]} is not installed")

    def read(self, path: str) -> str | None:
        """See Source."""
        found = self._files.get(self._follow(path))
        return None if found is None or isinstance(found, dict) else str(found).rstrip("\n")

    def names(self, path: str) -> list[str] | None:
        """See Source."""
        found = self._folders.get(self._follow(path))
        return None if found is None else sorted(found)

    def link(self, path: str) -> str | None:
        """See Source."""
        followed = self._follow(path)
        return None if followed == path else followed

    def log(self, path: str) -> str | None:
        """See Source."""
        return self.read(path)

    def _follow(self, path: str) -> str:
        for _hop in range(16):
            end = len(path)
            while end > 0 and path[:end] not in self._links:
                end = path.rfind("/", 0, end)
            if end <= 0:
                return path
            head, target = path[:end], self._links[path[:end]]
            base = target if target.startswith("/") else f"{head.rpartition('/')[0]}/{target}"
            path = os.path.normpath(base + path[end:])
        return path


class Recorder:
    """Passes everything on to another source and remembers it for `save`."""

    def __init__(self, inner: Source) -> None:
        self._inner = inner
        self._commands: dict[tuple[str, ...], Done] = {}
        self._files: dict[str, Any] = {}

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Done:
        """See Source."""
        done = self._inner.run(argv, timeout_s=timeout_s)
        self._commands[tuple(argv)] = done
        return done

    def read(self, path: str) -> str | None:
        """See Source."""
        text = self._inner.read(path)
        if text is not None:
            # Which machine it was is nobody's business.
            self._files[path] = re.sub(r"[0-9a-f]", "0", text) if path in _IDENTITIES else text
        return text

    def names(self, path: str) -> list[str] | None:
        """See Source. Names without a file that was read are remembered as empty files."""
        names = self._inner.names(path)
        for name in names or []:
            self._files.setdefault(f"{path}/{name}", "")
        return names

    def link(self, path: str) -> str | None:
        """See Source."""
        target = self._inner.link(path)
        if target is not None:
            self._files[path] = {"link": target}
        return target

    def log(self, path: str) -> str | None:
        """Only what the driver said: a kernel's log holds much that is nobody's business."""
        text = self._inner.log(path)
        if text is not None:
            self._files[path] = "\n".join(line for line in text.splitlines() if "NVRM" in line or "davinci" in line)
        return text

    def save(self, folder: Path) -> None:
        """Write the folder that `Recorded` reads, without what names the machine or its cards."""
        folder.mkdir(parents=True, exist_ok=True)
        commands = []
        known: dict[str, str] = {}
        for number, (argv, done) in enumerate(self._commands.items()):
            entry: dict[str, Any] = {"argv": list(argv), "rc": done.rc}
            if done.stdout:
                entry["stdout_file"] = f"{number:02}-{argv[0].rpartition('/')[2]}.out"
                (folder / entry["stdout_file"]).write_text(_anonymous(done.stdout, known))
            entry |= {key: text for key, text in (("stderr", done.stderr), ("fault", done.fault)) if text}
            commands.append(entry)
        # A folder that was listed and then entered is no file.
        parents = {str(parent) for path in self._files for parent in PurePosixPath(path).parents}
        files = {path: text for path, text in sorted(self._files.items()) if path not in parents}
        (folder / "commands.yml").write_text(yaml.safe_dump(commands, sort_keys=False))
        (folder / "files.yml").write_text(yaml.safe_dump(files, sort_keys=False))


_UUID = re.compile(r"(?<=[GM][PI][UG]-)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SERIAL = re.compile(r"(<serial>|<pdi>0x|Serial Number\s*: )([0-9A-Za-z]+)")


def _anonymous(text: str, known: dict[str, str]) -> str:
    """Serial numbers as zeros, UUIDs numbered in the order in which they are met: the same one stays the same."""
    text = _UUID.sub(lambda m: known.setdefault(m[0], f"00000000-0000-4000-8000-{len(known):012d}"), text)
    return _SERIAL.sub(lambda m: m[1] + "0" * len(m[2]), text)


def _yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text()) if path.exists() else None
    except yaml.YAMLError as error:
        raise InputError(f"is no YAML: {' '.join(str(error).split())}", where=str(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from error
