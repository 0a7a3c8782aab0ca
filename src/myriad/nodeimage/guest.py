"""A QEMU machine that is started from a disk, reached over ssh, and gone afterwards."""

from __future__ import annotations

import functools
import os
import re
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from myriad.errors import MyriadError
from myriad.nodeimage.hang import Evidence, classify, keep
from myriad.nodeimage.tools import end_group, run, which

_PROBE_S = 20
_SSH = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "GlobalKnownHostsFile=/dev/null")
_SSH_QUIET = (
    *_SSH,
    "-o",
    "LogLevel=ERROR",
    "-o",
    "IdentitiesOnly=yes",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=20",
)


@functools.cache
def accelerator(wanted: str = "auto") -> str:
    """`kvm` or `tcg`. With auto, KVM is taken only where a machine was seen to run with it: on some hosts /dev/kvm is
    there and guests hang.

    The probe boots the firmware alone without a disk: within some seconds it says "No bootable device" on its console.
    """
    if wanted != "auto":
        return wanted
    program = which("qemu-system-x86_64")
    kvm = Path("/dev/kvm")
    if program is None or not kvm.exists():
        return "tcg"
    command = [program, "-machine", "pc,accel=kvm", "-m", "64", "-nographic", "-nodefaults", "-serial", "stdio"]
    command += ["-fw_cfg", "name=etc/sercon-port,string=0x3f8", "-net", "none", "-no-reboot"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        seen = b""
        deadline = time.monotonic() + _PROBE_S
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)
            while time.monotonic() < deadline and process.poll() is None:
                seen += process.stdout.read() or b""
                if b"No bootable device" in seen:
                    break
                time.sleep(0.2)
        process.kill()
    return "kvm" if b"No bootable device" in seen else "tcg"


def free_port() -> int:
    """A TCP port of this machine that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Guest:
    """A machine on a disk that stays as it is: what the machine writes goes to a copy-on-write file of its own.

    Attributes:
        disk: the disk, qcow2.
        scratch: folder for the copy, the console and the log.
        seed: the seed's disk, or None for a machine without one.
        key: private key that the seed lets in.
        ports: further ports of the guest that are reached on this machine: guest's port to this machine's.
        network: False for a machine without a network card.
        firmware: a UEFI firmware; BIOS when None.
        wire: multicast `ADDRESS:PORT` of a wire that machines share as if they hung on one switch; none when empty.
        number: tells machines on one wire apart, 1 to 250.
    """

    disk: Path
    scratch: Path
    key: Path
    seed: Path | None = None
    memory_mb: int = 2048
    cpus: int = 2
    accelerator: str = "tcg"
    ports: dict[int, int] = field(default_factory=dict)
    network: bool = True
    firmware: Path | None = None
    wire: str = ""
    number: int = 1
    ssh_port: int = 0
    process: subprocess.Popen[str] | None = None

    @property
    def console(self) -> Path:
        """What the machine wrote on its serial console."""
        return self.scratch / "console.log"

    def __enter__(self) -> Guest:
        self.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the machine; it has not booted yet then."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        overlay = self.scratch / "overlay.qcow2"
        overlay.unlink(missing_ok=True)
        self.console.unlink(missing_ok=True)
        command = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", self.disk.resolve(), overlay]
        run(command, what="qemu-img could not make a copy-on-write disk")
        self.ssh_port = self.ssh_port or free_port()
        with (self.scratch / "qemu.log").open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [which("qemu-system-x86_64") or "qemu-system-x86_64", *self.arguments(overlay)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def arguments(self, overlay: Path) -> list[str]:
        """QEMU's command line without the program."""
        forwards = {22: self.ssh_port, **self.ports}
        rules = "".join(f",hostfwd=tcp:127.0.0.1:{here}-:{there}" for there, here in forwards.items())
        thread = ",thread=multi" if self.accelerator == "tcg" else ""
        command = ["-machine", "pc", "-accel", f"{self.accelerator}{thread}", "-cpu", "max", "-m", str(self.memory_mb)]
        command += ["-smp", str(self.cpus), "-display", "none", "-serial", f"file:{self.console}", "-no-reboot"]
        command += ["-drive", f"file={overlay},if=virtio,cache=unsafe,format=qcow2"]
        if self.seed is not None:
            command += ["-drive", f"file={self.seed},if=virtio,format=raw,readonly=on"]
        if self.firmware is not None:
            command += ["-bios", str(self.firmware)]
        if self.network:
            command += ["-netdev", f"user,id=net0{rules}", "-device", f"virtio-net-pci,netdev=net0,mac={self.mac(0)}"]
        else:
            command += ["-nic", "none"]
        if self.wire:
            command += ["-netdev", f"socket,id=net1,mcast={self.wire},localaddr=127.0.0.1"]
            command += ["-device", f"virtio-net-pci,netdev=net1,mac={self.mac(1)}"]
        return [*command, "-device", "virtio-rng-pci"]

    def mac(self, interface: int) -> str:
        """Address of an interface: 0 leads outside, 1 is on the wire."""
        return f"52:54:00:6d:{interface:02x}:{self.number:02x}"

    def stop(self) -> None:
        """Stop the machine and remove what it wrote; the console's log stays."""
        if self.process is not None and self.process.poll() is None:
            end_group(self.process, grace_s=5)
        (self.scratch / "overlay.qcow2").unlink(missing_ok=True)

    def ssh_arguments(self) -> list[str]:
        """Options of ssh for this machine."""
        return [*_SSH_QUIET, "-i", str(self.key), "-p", str(self.ssh_port)]

    def wait(self, timeout_s: float) -> float:
        """Wait until ssh lets the key in and the first boot is over; the seconds that it took.

        Raises:
            MyriadError: it does not in this time; with the cause that the console tells.
        """
        begun = time.monotonic()
        said = ""
        while time.monotonic() - begun < timeout_s:
            if self.process is None or self.process.poll() is not None:
                break
            done = self._ssh(["cloud-init", "status", "--wait"], timeout_s=max(5.0, timeout_s))
            # cloud-init ends with 1 or 2 on an error of its own: then ssh works all the same.
            if done.returncode in (0, 1, 2) and "status:" in done.stdout:
                return time.monotonic() - begun
            said = done.stderr.strip() or said
            time.sleep(2)
        log = (self.scratch / "qemu.log").read_text(errors="replace").splitlines()
        running = self.process is not None and self.process.poll() is None
        evidence = Evidence(
            stage="ssh" if running or self.console.is_file() else "start",
            late=running,
            seconds=time.monotonic() - begun,
            errors=tuple(said.splitlines()),
            said=tuple(log),
            console=tuple(console_lines(self.console)),
        )
        keep(evidence, self.scratch / "evidence.json")
        cause = classify(evidence)
        raise MyriadError(f"the machine {cause.sentence}", where=str(self.console), hint=cause.hint)

    def run(self, script: str, *, timeout_s: float = 600, check: bool = True) -> str:
        """Run a shell script in the machine; what it printed.

        Raises:
            MyriadError: it failed.
        """
        done = self._ssh(["sh", "-s"], stdin=script, timeout_s=timeout_s)
        if check and done.returncode != 0:
            words = (done.stderr or done.stdout).strip()[-600:]
            raise MyriadError(f"a step in the machine failed ({done.returncode}): {words}", where=script.strip()[:200])
        return done.stdout

    def _ssh(
        self, command: Sequence[str], *, stdin: str | None = None, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        full = ["ssh", *self.ssh_arguments(), "root@127.0.0.1", *command]
        try:
            return subprocess.run(
                full,
                input=stdin or "",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(full, 255, "", f"no answer within {timeout_s:.0f} s")


def console_lines(path: Path, last: int = 400) -> list[str]:
    """The last lines of a console without the terminal's control sequences."""
    if not path.is_file():
        return []
    text = path.read_bytes().decode("utf-8", "replace").replace("\r", "")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return [line for line in plain.splitlines() if line.strip()][-last:]
