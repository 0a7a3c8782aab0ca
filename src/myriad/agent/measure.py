"""Asks the node itself: the driver through nvidia-smi, the hardware through the PCI tree of sysfs."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from myriad.agent.counts import Gpu, Measurement

QUERY = ("--query-gpu=index,uuid,name,driver_version", "--format=csv,noheader")
_NVIDIA = "0x10de"
# Display controllers: VGA (0x0300), 3D (0x0302). Audio functions and NVSwitches of the same vendor are others.
_DISPLAY = "0x03"


@dataclass(frozen=True, slots=True)
class Source:
    """How to ask.

    Attributes:
        root: where the node's root file system is mounted; "/" when the agent runs on the node itself.
        nvidia_smi: the program, as the node sees it.
        pci_devices: the folder of PCI devices, as the node sees it.
        timeout_s: nvidia-smi hangs on a broken driver; then it is given up.
    """

    root: Path = Path("/")
    nvidia_smi: str = "/usr/bin/nvidia-smi"
    pci_devices: str = "/sys/bus/pci/devices"
    timeout_s: float = 20.0

    def command(self) -> list[str]:
        """The call, in the node's own root: the program needs its libraries."""
        call = [self.nvidia_smi, *QUERY]
        return call if self.root == Path("/") else ["chroot", str(self.root), *call]


def measure(source: Source) -> Measurement:
    """Ask driver and bus; what cannot be asked is None with the reason."""
    gpus, gpus_fault = _driver(source)
    pci, pci_fault = _pci(source.root / source.pci_devices.lstrip("/"))
    return Measurement(gpus=gpus, pci=pci, gpus_fault=gpus_fault, pci_fault=pci_fault)


def _driver(source: Source) -> tuple[tuple[Gpu, ...] | None, str]:
    try:
        done = subprocess.run(
            source.command(),
            capture_output=True,
            text=True,
            timeout=source.timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return None, f"nvidia-smi does not answer within {source.timeout_s:.0f} s: the driver hangs"
    except OSError as error:
        return None, f"nvidia-smi cannot be started ({source.nvidia_smi}: {error.strerror})"
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())
        return None, f"nvidia-smi ended with {done.returncode}: {said[:200] or 'it said nothing'}"
    return parse(done.stdout)


def parse(text: str) -> tuple[tuple[Gpu, ...] | None, str]:
    """GPUs from the CSV that `QUERY` asks for."""
    gpus = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if not row:
            continue
        if len(row) != 4:
            return None, f"nvidia-smi said something else than four fields: {','.join(row)[:200]}"
        index, uuid, name, driver = (cell.strip() for cell in row)
        gpus.append(Gpu(index, uuid, name, driver))
    return tuple(gpus), ""


def _pci(folder: Path) -> tuple[int | None, str]:
    try:
        devices: Sequence[Path] = sorted(folder.iterdir())
    except OSError as error:
        return None, f"the PCI bus cannot be read ({folder}: {error.strerror})"
    return sum(_is_gpu(device) for device in devices), ""


def _is_gpu(device: Path) -> bool:
    try:
        vendor = (device / "vendor").read_text().strip()
        kind = (device / "class").read_text().strip()
    except OSError:
        # A device that is being removed while we look.
        return False
    return vendor == _NVIDIA and kind.startswith(_DISPLAY)
