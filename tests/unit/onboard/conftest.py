"""Machines as folders, and an `ssh` that runs what it is given on one of them: the real probe, without a network."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from myriad.cli import build_app
from myriad.errors import MyriadError

PROBE = Path(__file__).parents[3] / "src/myriad/onboard/probe.py"
H100 = ("0x10de", "0x2330", "0x030200")
L40S = ("0x10de", "0x26b9", "0x030200")
DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n'

SSH = """#!{python}
# Takes what ssh takes, notes it, and runs the command on the folder of that name.
import json, os, subprocess, sys
here = {root!r}
words = sys.argv[1:]
with open(os.path.join(here, "calls"), "a") as log:
    log.write(json.dumps(words) + "\\n")
host, command = words[-2], words[-1]
failure = os.path.join(here, host + ".fails")
if os.path.exists(failure):
    code, _, text = open(failure).read().partition("\\n")
    sys.stdin.read()
    sys.stderr.write(text)
    sys.exit(int(code))
root = os.path.join(here, "machines", host)
address = open(os.path.join(here, host + ".address")).read()
environment = dict(os.environ, SSH_CONNECTION="192.0.2.1 40000 " + address + " 22")
banner = os.path.join(here, host + ".banner")
if os.path.exists(banner):
    sys.stdout.write(open(banner).read())
    sys.stdout.flush()
command = command.replace("python3 -", "{python} - --root " + root)
sys.exit(subprocess.run(["/bin/sh", "-c", command], env=environment).returncode)
"""


class Machines:
    """Folders that the probe takes for machines."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "machines").mkdir()
        self.bin = root / "bin"
        self.bin.mkdir()
        ssh = self.bin / "ssh"
        ssh.write_text(SSH.format(python=sys.executable, root=str(root)))
        ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)

    def add(
        self,
        host: str,
        *,
        hostname: str = "",
        address: str = "",
        gpus: int = 8,
        model: tuple[str, str, str] = H100,
        release: str = DEBIAN,
        machine_id: str = "",
        runs: tuple[str, ...] = ("systemd", "sshd"),
        files: dict[str, str] | None = None,
    ) -> Path:
        """A machine at `root/machines/HOST`."""
        root = self.root / "machines" / host
        address = address or host
        (self.root / f"{host}.address").write_text(address)
        wanted = {
            "proc/sys/kernel/hostname": (hostname or host) + "\n",
            "proc/sys/kernel/osrelease": "6.1.0-31-amd64\n",
            "proc/cpuinfo": "".join(f"processor\t: {n}\nmodel name\t: a processor\n\n" for n in range(64)),
            "proc/meminfo": "MemTotal:       1056280576 kB\nMemFree: 1 kB\n",
            # 10.0.0.0/24 on one interface and a default route by 10.0.0.1.
            "proc/net/route": (
                "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
                "eno1\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
                "eno1\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
                "ens1\t0000640A\t00000000\t0001\t0\t0\t100\t0000FFFF\t0\t0\t0\n"
            ),
            "etc/machine-id": (machine_id or f"{abs(hash(host)):032x}"[-32:]) + "\n",
            "etc/os-release": release,
            **{f"proc/{100 + n}/comm": f"{name[:15]}\n" for n, name in enumerate(runs)},
            **(files or {}),
        }
        for slot in range(gpus):
            folder = f"sys/bus/pci/devices/0000:{slot + 1:02x}:00.0"
            vendor, device, class_ = model
            wanted |= {
                f"{folder}/vendor": vendor, f"{folder}/device": device, f"{folder}/class": class_,
                f"{folder}/subsystem_vendor": "0x10de", f"{folder}/subsystem_device": "0x16c1",
            }  # fmt: skip
        # A service processor's display and a network card have no business in the answer.
        wanted |= {
            "sys/bus/pci/devices/0000:00:02.0/vendor": "0x1a03",
            "sys/bus/pci/devices/0000:00:02.0/class": "0x030000",
        }
        for name, text in wanted.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    def fails(self, host: str, code: int, said: str) -> None:
        """Let ssh end so for this host."""
        (self.root / f"{host}.fails").write_text(f"{code}\n{said}")

    def banner(self, host: str, text: str) -> None:
        """What a login script prints first."""
        (self.root / f"{host}.banner").write_text(text)

    def calls(self) -> list[list[str]]:
        """How ssh was called."""
        path = self.root / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def probe(self, host: str, *arguments: str) -> dict[str, Any]:
        """The probe as a program on the machine itself."""
        address = (self.root / f"{host}.address").read_text()
        done = subprocess.run(
            [sys.executable, str(PROBE), "--root", str(self.root / "machines" / host), *arguments],
            env={**os.environ, "SSH_CONNECTION": f"192.0.2.1 40000 {address} 22"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return dict(json.loads(done.stdout))


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    root = tmp_path / "lan"
    root.mkdir()
    made = Machines(root)
    monkeypatch.setenv("PATH", f"{made.bin}{os.pathsep}{os.environ['PATH']}")
    return made


@dataclass(frozen=True)
class Done:
    """What a person sees of a verb that has ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def myriad() -> Callable[..., Done]:
    """The command, as a person types it; in this process, because its imports would be most of the test."""

    def run(*arguments: str) -> Done:
        result = CliRunner().invoke(build_app(arguments[0]), list(arguments), env={"COLUMNS": "200"})
        if isinstance(result.exception, MyriadError):
            # As `myriad.cli.main` ends.
            return Done(result.exception.exit_code, result.stdout, str(result.exception))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)

    return run
