"""The PCI bus by sysfs: GPUs and NVSwitches that are there, whether a driver knows them or not."""

from __future__ import annotations

import re

from myriad.agent.collect.base import Findings, Slot, whole
from myriad.agent.collect.source import Source
from myriad.fleet.portrait import GPUS, PCI, Bus, Observation, PciDevice

DEVICES = "/sys/bus/pci/devices"
NVIDIA, HUAWEI, AMD = "10de", "19e5", "1002"
# PCI class codes (PCI Code and ID Assignment Specification): 03xx display controllers (0300 VGA, 0302 3D); 0680 other
# bridge, as which NVSwitches appear; 1200 processing accelerators, as which Ascend NPUs and Instinct cards
# appear (AMD's graphics are no GPU to compute with).
_DISPLAY, _BRIDGE, _ACCELERATOR = "03", "0680", "1200"
# Transfer rate of a lane to PCIe generation: PCI Express Base Specification 6.0, table 1-1 (raw bit rates).
_GENERATIONS = {
    "2.5": 1,
    "5": 2,
    "5.0": 2,
    "8": 3,
    "8.0": 3,
    "16": 4,
    "16.0": 4,
    "32": 5,
    "32.0": 5,
    "64": 6,
    "64.0": 6,
}
UNREAD = "the GPUs on the bus are AMD's, which the node agent cannot ask: it reads nvidia-smi and npu-smi"
_SPEED = re.compile(r"^([\d.]+) GT/s")


class Pci:
    """GPUs and switches of the bus."""

    name = "pci"
    every_s = 0.0

    def collect(self, source: Source, at: str) -> Findings:
        """See Collector."""
        found = Findings()
        addresses = source.names(DEVICES)
        if addresses is None:
            found.observations[PCI] = Observation(
                source=DEVICES, at=at, fault=f"the PCI bus cannot be read ({DEVICES})"
            )
            return found
        gpus: list[PciDevice] = []
        switches: list[PciDevice] = []
        for address in addresses:
            device = _device(source, address)
            if device is None:
                continue
            kind, described = device
            (switches if kind == "switch" else gpus).append(described)
            found.slots[address.lower()] = _slot(source, address)
        found.observations[PCI] = Observation(source=DEVICES, at=at)
        if any(gpu.vendor == AMD for gpu in gpus):
            # Whoever can ask the other GPUs of a mixed node says this again in its own words.
            found.observations[GPUS] = Observation(source=DEVICES, at=at, fault=UNREAD)
        found.pci = Bus(observed=PCI, gpus=tuple(gpus), switches=tuple(switches))
        return found


def gpus_on_bus(source: Source, vendor: str) -> list[str]:
    """Addresses of a vendor's GPUs."""
    return [
        address
        for address in source.names(DEVICES) or []
        if _id(source.read(f"{DEVICES}/{address}/vendor")) == vendor
        and _id(source.read(f"{DEVICES}/{address}/class")).startswith((_DISPLAY, _ACCELERATOR))
    ]


def is_absent(source: Source, vendor: str) -> bool:
    """Whether the bus can be read and shows no GPU of a vendor: its tools then have nothing to tell."""
    return source.names(DEVICES) is not None and not gpus_on_bus(source, vendor)


def _device(source: Source, address: str) -> tuple[str, PciDevice] | None:
    folder = f"{DEVICES}/{address}"
    # A device that is being removed while we look reads as nothing.
    vendor, kind = _id(source.read(f"{folder}/vendor")), _id(source.read(f"{folder}/class"))
    if vendor == NVIDIA and kind.startswith(_DISPLAY):
        role = "gpu"
    elif vendor == NVIDIA and kind.startswith(_BRIDGE):
        role = "switch"
    elif vendor in (HUAWEI, AMD) and kind.startswith(_ACCELERATOR):
        role = "gpu"
    else:
        return None
    driver = source.link(f"{folder}/driver")
    return role, PciDevice(
        address=address.lower(),
        vendor=vendor,
        device=_id(source.read(f"{folder}/device")),
        subsystem_vendor=_id(source.read(f"{folder}/subsystem_vendor")),
        subsystem_device=_id(source.read(f"{folder}/subsystem_device")),
        driver=driver.rpartition("/")[2] if driver else "",
        numa_node=whole(source.read(f"{folder}/numa_node")),
    )


def _slot(source: Source, address: str) -> Slot:
    folder = f"{DEVICES}/{address}"
    speed = _SPEED.match(source.read(f"{folder}/max_link_speed") or "")
    return Slot(
        numa_node=whole(source.read(f"{folder}/numa_node")),
        cpus=source.read(f"{folder}/local_cpulist") or "",
        generation_max=_GENERATIONS.get(speed[1]) if speed else None,
        width=_lanes(source.read(f"{folder}/current_link_width")),
        width_max=_lanes(source.read(f"{folder}/max_link_width")),
    )


def _lanes(text: str | None) -> int | None:
    # A device behind no PCIe link (a virtual machine's) says 0 or 255.
    lanes = whole(text)
    return lanes if lanes and lanes < 255 else None


def _id(text: str | None) -> str:
    return (text or "").strip().lower().removeprefix("0x")
