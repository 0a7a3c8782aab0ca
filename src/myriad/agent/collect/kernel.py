"""The node's kernel: identity, release, device files, and the error reports (Xids) in its log."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from myriad.agent.collect.base import Findings, at_least, whole
from myriad.agent.collect.nvidia_xml import address
from myriad.agent.collect.source import Source
from myriad.fleet.portrait import DEVICE_NODES, KERNEL, KERNEL_LOG, DeviceNodes, Kernel, Observation, Xid

_DEVICES = re.compile(
    r"^(nvidia\d+|nvidiactl|nvidia-uvm|nvidia-nvswitch(ctl|\d+)|davinci\d+|davinci_manager|hisi_hdc)$"
)
# NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
# https://docs.nvidia.com/deploy/xid-errors/
_XID = re.compile(r"NVRM: Xid \(PCI:(?P<address>[0-9A-Fa-f:]+)(?:\.\d)?\): (?P<code>\d+)")
# /dev/kmsg: priority,sequence,microseconds,flags;message. /proc/kmsg and dmesg: <priority>[ seconds.micro] message.
_KMSG = re.compile(r"^\d+,(?P<sequence>\d+),(?P<micro>\d+),")
# A kernel starts init within its first minute; ticks are hundredths of a second.
_EARLY_TICKS = 6000
_DMESG = re.compile(r"^(?:<\d+>)?\[\s*(?P<seconds>\d+\.\d+)\]")


class KernelFacts:
    """Identity, release, processors, and device files of GPU drivers."""

    name = "kernel"
    every_s = 0.0

    def collect(self, source: Source, at: str) -> Findings:
        """See Collector."""
        release = (source.read("/proc/sys/kernel/osrelease") or "").strip()
        numa = [name for name in source.names("/sys/devices/system/node") or [] if re.fullmatch(r"node\d+", name)]
        found = Findings(
            machine_id=(source.read("/etc/machine-id") or "").strip(),
            boot_id=boot_of(source),
            kernel=Kernel(
                observed=KERNEL,
                release=release,
                numa_nodes=len(numa) or None,
                cpus=_cpus(source.read("/sys/devices/system/cpu/online")),
            ),
        )
        found.observations[KERNEL] = Observation(source="/proc/sys/kernel, /sys/devices/system", at=at)
        names = source.names("/dev")
        found.observations[DEVICE_NODES] = Observation(
            source="/dev", at=at, fault="" if names is not None else "the device files cannot be listed (/dev)"
        )
        found.device_nodes = DeviceNodes(
            observed=DEVICE_NODES, names=tuple(name for name in names or [] if _DEVICES.match(name))
        )
        return found


def boot_of(source: Source) -> str:
    """Which start of the node this is: the kernel's id, and where the node shares its kernel with others (a container)
    the start of its own init."""
    boot = (source.read("/proc/sys/kernel/random/boot_id") or "").strip()
    # proc_pid_stat(5): the 22nd field; the second is in parentheses and may hold blanks.
    fields = (source.read("/proc/1/stat") or "").rpartition(")")[2].split()
    started = whole(fields[19]) if len(fields) > 19 else None
    return f"{boot}.{started}" if boot and started is not None and started > _EARLY_TICKS else boot


def _cpus(text: str | None) -> int | None:
    total = 0
    for part in (text or "").strip().split(","):
        first, _, last = part.partition("-")
        low, high = whole(first), whole(last or first)
        if low is None or high is None:
            return None
        total += high - low + 1
    return total or None


@dataclass(slots=True)
class Xids:
    """Xids of this boot. The kernel's ring forgets; what was seen is kept here (and, over a restart, by the portrait).

    Attributes:
        path: the kernel's log, as the node sees it.
    """

    path: str = "/dev/kmsg"
    name: str = "kernel-log"
    every_s: float = 0.0
    _seen: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)
    _sequence: int = -1

    def collect(self, source: Source, at: str) -> Findings:
        """See Collector."""
        found = Findings()
        text = source.log(self.path)
        if text is None:
            found.observations[KERNEL_LOG] = Observation(
                source=self.path, at=at, fault=f"the kernel's log cannot be read ({self.path})"
            )
            return found
        found.observations[KERNEL_LOG] = Observation(source=self.path, at=at)
        self._read(text, boot_time(source))
        xids: dict[str, list[Xid]] = {}
        for (where, code), (count, first) in sorted(self._seen.items()):
            xids.setdefault(where, []).append(
                Xid(observed=KERNEL_LOG, code=code, at_least=at_least(count), first_at=first)
            )
        found.xids = {where: tuple(codes) for where, codes in xids.items()}
        return found

    @property
    def counts(self) -> dict[tuple[str, int], int]:
        """Xids seen, by PCI address and code."""
        return {key: count for key, (count, _first) in self._seen.items()}

    def _read(self, text: str, booted: datetime | None) -> None:
        plain: dict[tuple[str, int], tuple[int, str]] = {}
        for line in text.splitlines():
            match = _XID.search(line)
            if match is None:
                continue
            key = (_bus(match["address"]), int(match["code"]))
            record = _KMSG.match(line)
            if record is None:
                # A log without numbers is read as a whole each time.
                count, first = plain.get(key, (0, _when(booted, _DMESG.match(line))))
                plain[key] = (count + 1, first)
            elif int(record["sequence"]) > self._sequence:
                self._sequence = int(record["sequence"])
                count, first = self._seen.get(key, (0, ""))
                self._seen[key] = (count + 1, first or _stamp(booted, int(record["micro"]) / 1e6))
        for key, (count, first) in plain.items():
            before, first_before = self._seen.get(key, (0, first))
            self._seen[key] = (max(count, before), first_before)


def _bus(text: str) -> str:
    # The driver leaves out the function; a GPU is function 0.
    return f"{address(text)}.0"


def _when(booted: datetime | None, match: re.Match[str] | None) -> str:
    return _stamp(booted, float(match["seconds"])) if match else ""


def _stamp(booted: datetime | None, after_s: float) -> str:
    try:
        return "" if booted is None else (booted + timedelta(seconds=int(after_s))).strftime("%Y-%m-%dT%H:%M:%SZ")
    except OverflowError:
        return ""


def boot_time(source: Source) -> datetime | None:
    """When the kernel started, by /proc/stat."""
    match = re.search(r"^btime (\d+)$", source.read("/proc/stat") or "", re.MULTILINE)
    try:
        return datetime.fromtimestamp(int(match[1]), UTC) if match else None
    except (OverflowError, OSError, ValueError):
        return None
