"""One portrait out of what collectors found: GPUs joined with their place on the bus, the catalog and their Xids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from myriad.agent.collect.ascend import Ascend
from myriad.agent.collect.base import Collector, Findings, Slot
from myriad.agent.collect.host_cuda import HostCudaTrees
from myriad.agent.collect.kernel import KernelFacts, Xids
from myriad.agent.collect.lldp import Lldp
from myriad.agent.collect.network import Network
from myriad.agent.collect.nvidia import Nvidia, NvidiaVersions
from myriad.agent.collect.pci import HUAWEI, NVIDIA, Pci
from myriad.agent.collect.source import Source
from myriad.fleet.catalog import CATALOG as CATALOG_MODELS
from myriad.fleet.gpu_types import GpuModel
from myriad.fleet.hardware import by_pci, by_product
from myriad.fleet.portrait import (
    CATALOG,
    GPUS,
    MODULE,
    Bus,
    DeviceNodes,
    Driver,
    Fabric,
    Gpu,
    Kernel,
    Link,
    Observation,
    Portrait,
    Vendor,
)

_ARCHITECTURES = {"ada": "ada-lovelace", "grace-hopper": "hopper"}
"""The catalog's names where nvidia-smi has others: a GPU that does not say its own is not of another architecture."""
_VENDORS: dict[str, Vendor] = {NVIDIA: "nvidia", HUAWEI: "ascend"}


def collectors(*, kernel_log: str = "/dev/kmsg", timeout_s: float = 20.0) -> tuple[Collector, ...]:
    """All of them, in an order in which none needs a later one."""
    return (
        KernelFacts(),
        Pci(),
        Nvidia(timeout_s=timeout_s),
        NvidiaVersions(timeout_s=timeout_s),
        Ascend(timeout_s=timeout_s),
        Network(),
        Xids(path=kernel_log),
        Lldp(),
        HostCudaTrees(),
    )


def portrait_of(
    node: str, source: Source, at: str, using: Iterable[Collector] | None = None
) -> tuple[Portrait, Findings]:
    """Look once at everything. The findings carry the numbers that move."""
    parts = [(one, one.collect(source, at)) for one in (collectors() if using is None else using)]
    return assemble(node, parts, at)


def assemble(node: str, parts: Sequence[tuple[Collector, Findings]], at: str) -> tuple[Portrait, Findings]:
    """The portrait of `node` and all findings together.

    Args:
        parts: collectors with what each found, in their order.
        at: now; only the catalog's own observation takes it.
    """
    bus = next((findings.pci for _one, findings in parts if findings.pci is not None), None)
    # Without the bus, whoever found GPUs is there; where nobody did, NVIDIA's tool has the word.
    answered = {gpu.vendor for _one, findings in parts for gpu in findings.gpus} or {"nvidia"}
    present: set[Vendor] = (
        {_VENDORS[gpu.vendor] for gpu in bus.gpus if gpu.vendor in _VENDORS} if bus is not None else answered
    )
    found = Findings()
    for one, findings in parts:
        found.add(_relevant(one.name, findings, present))
    found.gpus.sort(key=lambda gpu: gpu.index)
    gpus = tuple(_joined(gpu, found) for gpu in found.gpus)
    if any(gpu.model for gpu in gpus):
        found.observations[CATALOG] = Observation(source="catalog of GPU models", at=at)
    portrait = Portrait(
        node=node,
        machine_id=found.machine_id,
        boot_id=found.boot_id,
        observations=dict(sorted(found.observations.items())),
        kernel=found.kernel or Kernel(),
        pci=found.pci or Bus(),
        gpus=gpus,
        drivers=_merged(found.drivers),
        fabric=found.fabric or Fabric(),
        device_nodes=found.device_nodes or DeviceNodes(),
        nics=tuple(found.nics),
        neighbours=tuple(found.neighbours),
        host_cuda=tuple(found.host_cuda),
    )
    return portrait, found


def _relevant(name: str, findings: Findings, present: set[Vendor]) -> Findings:
    """A vendor's tool that finds nothing says something only where that vendor's GPUs are on the bus."""
    vendor: Vendor | None = {"nvidia": "nvidia", "nvidia-versions": "nvidia", "ascend": "ascend"}.get(name)  # type: ignore[assignment]
    if vendor is None or vendor in present or findings.gpus:
        return findings
    if name == "nvidia-versions" and any(driver.loaded for driver in findings.drivers):
        return findings
    return replace(findings, observations={}, drivers=[], fabric=None)


def _joined(gpu: Gpu, found: Findings) -> Gpu:
    slot = found.slots.get(gpu.pci_address, Slot())
    on_bus = next((device for device in (found.pci or Bus()).gpus if device.address == gpu.pci_address), None)
    ids = gpu.pci_device or (f"{on_bus.vendor}:{on_bus.device}" if on_bus else "")
    subsystem = f"{on_bus.subsystem_vendor}:{on_bus.subsystem_device}" if on_bus and on_bus.subsystem_device else None
    model = _model(ids, subsystem, gpu.product)
    link = gpu.link.model_copy(
        update={
            "kind": _kind(gpu, model, found),
            "pcie_generation": gpu.link.pcie_generation or slot.generation_max,
            "pcie_width": gpu.link.pcie_width or slot.width,
            "pcie_width_max": gpu.link.pcie_width_max or slot.width_max,
        }
    )
    return gpu.model_copy(
        update={
            "model": model.name if model else "",
            "architecture": gpu.architecture or _architecture(model),
            "memory_bandwidth_gb_s": model.bandwidth_gb_s if model else None,
            "pci_device": ids,
            "numa_node": slot.numa_node,
            "cpu_affinity": slot.cpus,
            "link": Link() if gpu.fault else link,
            "xids": None if found.xids is None else found.xids.get(gpu.pci_address, ()),
        }
    )


def _model(ids: str, subsystem: str | None, product: str) -> GpuModel | None:
    vendor, _, device = ids.partition(":")
    known = by_pci(vendor, device, subsystem) if device else None
    # A virtual machine may show another id; what the driver calls the card is the second witness.
    return known or (by_product(product) if product else None) or _family(product)


def _family(product: str) -> GpuModel | None:
    """Ascend chips come in bins (910B1 to 910B4) of one model of the catalog."""
    plain = product.replace(" ", "")
    return max(
        (model for model in CATALOG_MODELS.values() if model.vendor == "huawei" and plain.startswith(model.name)),
        key=lambda model: len(model.name),
        default=None,
    )


def _architecture(model: GpuModel | None) -> str:
    return "" if model is None else _ARCHITECTURES.get(model.architecture, model.architecture)


def _kind(gpu: Gpu, model: GpuModel | None, found: Findings) -> str | None:
    if gpu.vendor != "nvidia":
        return gpu.link.kind
    switched = bool(found.pci and found.pci.switches) or bool(found.fabric and found.fabric.state)
    cards = len(found.gpus)
    if gpu.link.peers == () and cards > 1:
        return "pcie"
    if model is not None and model.nvlink is not None:
        if switched or model.rack_switched or cards in model.switched:
            return "nvswitch"
        return "nvlink" if gpu.link.peers or (model.form != "PCIe" and cards > 1) else "pcie"
    return gpu.link.kind or "pcie"


def _merged(drivers: Sequence[Driver]) -> tuple[Driver, ...]:
    """One driver for each vendor: what two collectors say of it, put together."""
    merged: dict[Vendor, Driver] = {}
    for driver in drivers:
        before = merged.get(driver.vendor)
        if before is None:
            merged[driver.vendor] = driver
            continue
        said = {name: value for name, value in driver if value is not None}
        if GPUS in (driver.observed, before.observed):
            said["observed"] = MODULE if MODULE in (driver.observed, before.observed) else GPUS
        merged[driver.vendor] = before.model_copy(update=said)
    return tuple(merged.values())
