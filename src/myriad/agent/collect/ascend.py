"""Huawei Ascend: what npu-smi prints. The tables have two lines a chip; their columns grew over the versions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from myriad.agent.collect.base import Findings, Gauge, whole
from myriad.agent.collect.pci import HUAWEI, is_absent
from myriad.agent.collect.source import Source
from myriad.fleet.portrait import GPUS, MODULE, Driver, Gpu, Link, Observation

INFO = ("npu-smi", "info")
TOPOLOGY = ("npu-smi", "info", "-t", "topo")
DRIVER_INFO = "/usr/local/Ascend/driver/version.info"
_VERSION = re.compile(r"npu-smi\s+(?P<tool>\S+)\s+Version:\s+(?P<driver>\S+)")
_BUS = re.compile(r"^[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]$")
_USAGE = re.compile(r"(\d+)\s*/\s*(\d+)")


@dataclass(slots=True)
class Chip:
    """One chip of `npu-smi info`."""

    npu: int
    chip: int
    name: str
    health: str
    address: str
    memory_mib: int | None
    gauges: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Ascend:
    """NPUs. What the board says (serial number, firmware) and HCCS are asked again only when the chips changed."""

    name: str = "ascend"
    every_s: float = 0.0
    timeout_s: float = 20.0
    _asked_for: tuple[tuple[int, str], ...] | None = None
    _boards: dict[int, dict[str, str]] = field(default_factory=dict)
    _links: dict[int, dict[int, str]] = field(default_factory=dict)

    def collect(self, source: Source, at: str) -> Findings:
        """See Collector."""
        found = Findings()
        if is_absent(source, HUAWEI):
            return found
        done = source.run(INFO, timeout_s=self.timeout_s)
        said = " ".join(INFO)
        chips = [] if done.fault else table(done.stdout)
        if done.fault or not chips:
            fault = done.fault or f"npu-smi ended with {done.rc} and listed no chip: {done.said or 'it said nothing'}"
            found.observations[GPUS] = Observation(source=said, at=at, fault=fault)
            return found
        found.observations[GPUS] = Observation(source=said, at=at)
        self._ask(source, chips)
        version = _VERSION.search(done.stdout)
        for index, chip in enumerate(chips):
            found.observations[f"{GPUS}/{index}"] = Observation(source=said, at=at)
            found.gpus.append(self._gpu(chip, index, version["driver"] if version else ""))
            found.gauges += [Gauge(name, value, str(index)) for name, value in chip.gauges.items()]
        found.drivers = [self._driver(source, chips)]
        found.observations[MODULE] = Observation(source=f"npu-smi info -t board, {DRIVER_INFO}", at=at)
        return found

    def _ask(self, source: Source, chips: list[Chip]) -> None:
        shape = tuple((chip.npu, chip.address) for chip in chips)
        if shape == self._asked_for:
            return
        self._boards = {
            npu: board(source.run((*INFO, "-t", "board", "-i", str(npu)), timeout_s=self.timeout_s).stdout)
            for npu in sorted({chip.npu for chip in chips})
        }
        self._links = topology(source.run(TOPOLOGY, timeout_s=self.timeout_s).stdout)
        self._asked_for = shape

    def _gpu(self, chip: Chip, index: int, driver: str) -> Gpu:
        about = self._boards.get(chip.npu, {})
        peers = self._links.get(index)
        joined = None if peers is None else tuple(sorted(peer for peer, way in peers.items() if way.startswith("HCCS")))
        vendor, device = about.get("PCI Vendor ID", ""), about.get("PCI Device ID", "")
        return Gpu(
            observed=f"{GPUS}/{index}",
            index=index,
            # Chips have no UUID of their own; the board's serial number and the chip's place on it name one.
            uuid=f"{about['Serial Number']}/{chip.chip}" if about.get("Serial Number") else "",
            vendor="ascend",
            product=f"Ascend {chip.name.removeprefix('Ascend').strip()}",
            memory_mib=chip.memory_mib,
            link=Link(peers=joined, kind=None if joined is None else "hccs" if joined else "pcie"),
            pci_address=chip.address,
            pci_device=f"{vendor}:{device}".lower().replace("0x", "") if vendor and device else "",
            vbios=about.get("Firmware Version", ""),
            driver=driver,
            fault="" if chip.health in ("OK", "Warning") else f"npu-smi reports its health as {chip.health}",
        )

    def _driver(self, source: Source, chips: list[Chip]) -> Driver:
        loaded = next(
            (
                self._boards[c.npu]["Software Version"]
                for c in chips
                if "Software Version" in self._boards.get(c.npu, {})
            ),
            None,
        )
        installed = re.search(r"^Version=(\S+)", source.read(DRIVER_INFO) or "", re.MULTILINE)
        return Driver(observed=MODULE, vendor="ascend", loaded=loaded, userspace=installed[1] if installed else None)


def table(text: str) -> list[Chip]:
    """Chips of `npu-smi info`, in its order."""
    chips: list[Chip] = []
    upper: list[str] | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 3 or not all(cells) or not line.lstrip().startswith("|"):
            continue
        if _BUS.match(cells[1]) and upper is not None:
            chips.append(_chip(upper, cells))
            upper = None
        elif re.match(r"^\d+\s+\S", cells[0]):
            upper = cells
    return chips


def _chip(upper: list[str], lower: list[str]) -> Chip:
    # | 0     910B3               | OK            | 92.1        36                0    / 0             |
    # | 0                         | 0000:C1:00.0  | 0           0    / 0          3161 / 65536         |
    npu, _, name = upper[0].partition(" ")
    usages = _USAGE.findall(lower[2])
    # The last usage is the high-bandwidth memory; cards without it have only the first.
    used, total = next(((int(a), int(b)) for a, b in reversed(usages) if int(b)), (0, 0))
    gauges = {}
    values = upper[2].split()
    for position, gauge in ((0, "power_watts"), (1, "temperature_celsius")):
        if len(values) > position and re.fullmatch(r"[0-9]+(\.[0-9]+)?", values[position]):
            gauges[gauge] = float(values[position])
    cores = lower[2].split()
    if cores and cores[0].isdecimal():
        gauges["utilization_percent"] = float(cores[0])
    if total:
        gauges["memory_used_mib"] = float(used)
    return Chip(
        npu=int(npu),
        chip=whole(lower[0].split()[0]) or 0,
        name=name.strip(),
        health=upper[1],
        address=lower[1].lower(),
        memory_mib=total or None,
        gauges=gauges,
    )


def board(text: str) -> dict[str, str]:
    """Names and values of `npu-smi info -t board -i N`; what is NA is left out."""
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs if value.strip() not in ("", "NA", "N/A")}


def topology(text: str) -> dict[int, dict[int, str]]:
    """Ways between chips by `npu-smi info -t topo`: HCCS, HCCS_SW, SYS, PHB, PIX, ..."""
    columns: list[str] = []
    found: dict[int, dict[int, str]] = {}
    for line in text.splitlines():
        cells = line.split()
        if not columns and len(cells) > 1 and all(re.fullmatch(r"NPU\d+", cell) for cell in cells[:2]):
            columns = cells
        elif columns and cells and re.fullmatch(r"NPU\d+", cells[0]):
            peers = found.setdefault(int(cells[0][3:]), {})
            for column, cell in zip(columns, cells[1:], strict=False):
                if re.fullmatch(r"NPU\d+", column) and cell != "X":
                    peers[int(column[3:])] = cell
    return found
