"""NVIDIA: nvidia-smi for what the driver knows, procfs and sysfs for what the kernel has loaded."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from myriad.agent.collect import nvidia_xml
from myriad.agent.collect.base import Findings
from myriad.agent.collect.pci import NVIDIA, gpus_on_bus, is_absent
from myriad.agent.collect.source import Done, Source
from myriad.fleet.portrait import FABRIC_MANAGER, GPUS, MODULE, Driver, Fabric, Gpu, Observation

QUERY = ("nvidia-smi", "-q", "-x")
LIST = ("nvidia-smi", "-L")
TOPOLOGY = ("nvidia-smi", "topo", "-m")
VERSION = ("nvidia-smi", "--version")
MANAGER = ("nv-fabricmanager", "--version")

PROC_VERSION = "/proc/driver/nvidia/version"
SYS_VERSION = "/sys/module/nvidia/version"
# Where distributions keep the library that CUDA programs load first; its name ends in the exact version.
LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
)
_KERNEL_MODULE = re.compile(
    r"^NVRM version:.*?Kernel Module\D*?(?:for \S+)?\s+(?P<version>\d+\.\d+(?:\.\d+)?)", re.MULTILINE
)
_LIBRARY = re.compile(r"libnvidia-ml\.so\.(?P<version>\d+\.\d+(?:\.\d+)?)$")
_MANAGER = re.compile(r"version is\s*:?\s*(?P<version>\d+\.\d+(?:\.\d+)?)", re.IGNORECASE)
# nvidia-smi(1), RETURN VALUE.
_RETURN = {
    4: "the user may not do this",
    6: "no GPU was found",
    8: "a GPU's power cable is not attached",
    9: "the driver is not loaded",
    10: "the kernel has an interrupt problem with a GPU",
    12: "the library libnvidia-ml.so is not found",
    13: "the library is older than nvidia-smi",
    14: "a GPU's infoROM is corrupted",
    15: "a GPU fell off the bus or cannot be reached",
}
_APART_S = 60.0
# The order in which states are better.
_STATES = ("not-started", "in-progress", "completed")


@dataclass(slots=True)
class Nvidia:
    """The driver's own view. Static things (MIG names, NVLinks) are asked again only when the GPUs changed.

    Attributes:
        timeout_s: nvidia-smi hangs on a broken driver; then it is given up.
    """

    name: str = "nvidia"
    every_s: float = 0.0
    timeout_s: float = 20.0
    _slices_of: tuple[object, ...] | None = None
    _slices: dict[str, list[tuple[str, str]]] | None = None
    _links_of: tuple[str, ...] | None = None
    _links: dict[int, dict[int, int]] | None = None
    _apart: tuple[str, float, list[str]] = ("", float("-inf"), [])

    def collect(self, source: Source, at: str) -> Findings:
        """See Collector."""
        found = Findings()
        if is_absent(source, NVIDIA):
            return found
        done = source.run(QUERY, timeout_s=self.timeout_s)
        log = None if done.fault else nvidia_xml.read(done.stdout)
        said = " ".join(QUERY)
        if log is None and not done.fault and nvidia_xml.lost(done.stdout + done.stderr):
            log = self._one_by_one(source, done)
        if log is None:
            found.observations[GPUS] = Observation(source=said, at=at, fault=_fault(done))
            return found
        fault = log.fault or (_fault(done) if done.rc not in (0, 15) and not log.gpus else "")
        found.observations[GPUS] = Observation(source=said, at=at, fault=fault)
        for gpu in log.gpus:
            found.observations[f"{GPUS}/{gpu.index}"] = Observation(source=said, at=at)
        found.gpus = [self._linked(source, gpu, log.gpus) for gpu in self._sliced(source, log.gpus)]
        found.fabric = _fabric(log.fabrics)
        found.gauges = log.gauges
        found.drivers = [Driver(observed=GPUS, vendor="nvidia", cuda=log.cuda or None)]
        return found

    def _one_by_one(self, source: Source, done: Done) -> nvidia_xml.Log | None:
        """Some versions of nvidia-smi give up at the first GPU that is lost; the others are asked one by one, but not
        at every look: on a sick machine each call takes seconds."""
        clock = time.monotonic()
        said, asked_at, answers = self._apart
        if said != done.stdout or clock - asked_at >= _APART_S:
            answers = [done.stdout]
            for address in gpus_on_bus(source, NVIDIA):
                domain, _, rest = address.partition(":")
                call = (*QUERY, "-i", f"{domain.rjust(8, '0')}:{rest}".upper())
                answers.append(source.run(call, timeout_s=self.timeout_s).stdout)
            self._apart = (done.stdout, clock, answers)
        return nvidia_xml.read(*answers)

    def _sliced(self, source: Source, gpus: list[Gpu]) -> list[Gpu]:
        shape = tuple(
            (gpu.uuid, tuple((piece.gpu_instance, piece.compute_instance) for piece in gpu.mig.slices))
            for gpu in gpus
            if gpu.mig is not None and gpu.mig.slices
        )
        if not shape:
            return gpus
        if shape != self._slices_of:
            done = source.run(LIST, timeout_s=self.timeout_s)
            self._slices, self._slices_of = nvidia_xml.mig_devices(done.stdout), shape
        return [nvidia_xml.name_slices(gpu, (self._slices or {}).get(gpu.uuid, [])) for gpu in gpus]

    def _linked(self, source: Source, gpu: Gpu, gpus: list[Gpu]) -> Gpu:
        usable = tuple(one.uuid for one in gpus if not one.fault)
        if len(usable) < 2 or gpu.fault:
            return gpu
        if usable != self._links_of:
            done = source.run(TOPOLOGY, timeout_s=self.timeout_s)
            self._links, self._links_of = (nvidia_xml.links(done.stdout) if not done.rc else {}), usable
        peers = (self._links or {}).get(gpu.index)
        if peers is None:
            return gpu
        joined = tuple(sorted(peer for peer, count in peers.items() if count))
        link = gpu.link.model_copy(
            update={"peers": joined, "links": max(peers.values(), default=0), "kind": "nvlink" if joined else "pcie"}
        )
        return gpu.model_copy(update={"link": link})


@dataclass(slots=True)
class NvidiaVersions:
    """Versions of module, library and fabric manager, each from the place that cannot be wrong about it."""

    name: str = "nvidia-versions"
    every_s: float = 30.0
    timeout_s: float = 20.0

    def collect(self, source: Source, at: str) -> Findings:
        """See Collector."""
        found = Findings()
        text = source.read(PROC_VERSION)
        match = _KERNEL_MODULE.search(text or "")
        loaded = match["version"] if match else (source.read(SYS_VERSION) or "").strip() or None
        userspace, where = _library(source, self.timeout_s)
        if loaded is None and userspace is None:
            return found
        looked = PROC_VERSION if match else SYS_VERSION
        found.observations[MODULE] = Observation(
            source=f"{looked}, {where}" if where else looked,
            at=at,
            fault="" if loaded else "the kernel has no nvidia module loaded",
        )
        open_module = None if text is None else "Open Kernel Module" in text
        driver = Driver(observed=MODULE, vendor="nvidia", loaded=loaded, userspace=userspace, open=open_module)
        manager = source.run(MANAGER, timeout_s=self.timeout_s)
        if not manager.missing:
            version = _MANAGER.search(manager.stdout + manager.stderr)
            found.observations[FABRIC_MANAGER] = Observation(
                source=" ".join(MANAGER), at=at, fault="" if version else manager.fault or f"it says: {manager.said}"
            )
            if version:
                driver = driver.model_copy(update={"fabric_manager": version["version"]})
        found.drivers = [driver]
        return found


def _library(source: Source, timeout_s: float) -> tuple[str | None, str]:
    for path in LIBRARIES:
        match = _LIBRARY.search(source.link(path) or "")
        if match:
            return match["version"], path
    done = source.run(VERSION, timeout_s=timeout_s)
    said = nvidia_xml.versions(done.stdout + "\n" + done.stderr)
    tool, library = said.get("tool", ""), said.get("library", "")
    # NVML says two parts of its version; where the tool's own version continues them, that is the whole.
    version = tool if library and tool.startswith(library) else library or tool
    return (version or None), (" ".join(VERSION) if version else "")


def _fabric(states: dict[int, nvidia_xml.FabricState]) -> Fabric | None:
    """The worst of all GPUs; None where no GPU has a fabric."""
    known = [state for state in states.values() if state.state]
    if not known:
        return None

    def rank(one: nvidia_xml.FabricState) -> tuple[int, bool]:
        place = _STATES.index(one.state) if one.state in _STATES else -1
        return place, one.status in (None, "success")

    worst = min(known, key=rank)
    domains = {(one.cluster_uuid, one.clique) for one in known}
    status = worst.status
    if len(domains) > 1 and rank(worst) == (_STATES.index("completed"), True):
        status = "domains-differ"
    return Fabric(observed=GPUS, state=worst.state, status=status, cluster_uuid=worst.cluster_uuid, clique=worst.clique)


def _fault(done: Done) -> str:
    if done.fault:
        return done.fault
    reason = _RETURN.get(done.rc)
    said = done.said or "it said nothing"
    return f"nvidia-smi ended with {done.rc}{f' ({reason})' if reason else ''}: {said}"
