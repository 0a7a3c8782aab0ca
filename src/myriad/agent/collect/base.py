"""What every collector gives: part of a portrait, the looks that it comes from, and numbers that move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from myriad.agent.collect.source import Source
from myriad.fleet.portrait import (
    Bus,
    DeviceNodes,
    Driver,
    Fabric,
    Gpu,
    HostCuda,
    Kernel,
    Neighbour,
    Nic,
    Observation,
    Xid,
)


@dataclass(frozen=True, slots=True)
class Slot:
    """A PCI device's place: its NUMA node, the CPUs next to it, and its link. None and empty where not known."""

    numa_node: int | None = None
    cpus: str = ""
    generation_max: int | None = None
    width: int | None = None
    width_max: int | None = None


@dataclass(frozen=True, slots=True)
class Gauge:
    """A number that moves: for Prometheus, never for the portrait. `gpu` is the driver's index, empty for the node."""

    name: str
    value: float
    gpu: str = ""
    label: str = ""


@dataclass(slots=True)
class Findings:
    """What one collector (or all of them together) learnt.

    Attributes:
        observations: looks by key; each fact's group names the one that it comes from.
        slots: places on the PCI bus by address, to be joined with the GPUs.
        xids: error reports by PCI address; None where the kernel's log could not be read.
        gauges: numbers that move.
    """

    observations: dict[str, Observation] = field(default_factory=dict)
    machine_id: str = ""
    boot_id: str = ""
    kernel: Kernel | None = None
    pci: Bus | None = None
    gpus: list[Gpu] = field(default_factory=list)
    drivers: list[Driver] = field(default_factory=list)
    fabric: Fabric | None = None
    device_nodes: DeviceNodes | None = None
    nics: list[Nic] = field(default_factory=list)
    neighbours: list[Neighbour] = field(default_factory=list)
    host_cuda: list[HostCuda] = field(default_factory=list)
    slots: dict[str, Slot] = field(default_factory=dict)
    xids: dict[str, tuple[Xid, ...]] | None = None
    gauges: list[Gauge] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        """Take in what another collector learnt."""
        self.observations |= other.observations
        self.machine_id = other.machine_id or self.machine_id
        self.boot_id = other.boot_id or self.boot_id
        self.kernel = other.kernel or self.kernel
        self.pci = other.pci or self.pci
        self.gpus += other.gpus
        self.drivers += other.drivers
        self.fabric = other.fabric or self.fabric
        self.device_nodes = other.device_nodes or self.device_nodes
        self.nics += other.nics
        self.neighbours += other.neighbours
        self.host_cuda += other.host_cuda
        self.slots |= other.slots
        self.xids = other.xids if other.xids is not None else self.xids
        self.gauges += other.gauges


class Collector(Protocol):
    """Asks one kind of source.

    Attributes:
        name: for messages and metrics.
        every_s: least time between two looks; in between the last findings stand.
    """

    name: str
    every_s: float

    def collect(self, source: Source, at: str) -> Findings:
        """Look once. `at` is now (RFC 3339). Never raises: what cannot be learnt is an observation with a fault."""


def at_least(count: int) -> int:
    """The largest power of two that is not above `count`; 0 for 0. A running counter then changes rarely."""
    return 0 if count <= 0 else 1 << (count.bit_length() - 1)


Clock = Callable[[], float]


def whole(text: str | None) -> int | None:
    """An integer of sysfs (`-1` is "not known" there) or of a tool; None where it is none."""
    try:
        number = int((text or "").strip(), 0)
    except ValueError:
        return None
    return None if number < 0 else number
