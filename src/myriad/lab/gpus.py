"""Which GPUs a lab node shows: the doubles' JSON document, made on the controller from the catalog of GPU models."""

from __future__ import annotations

from typing import Any

from myriad.fleet.catalog import CATALOG
from myriad.lab.double.document import build

#: What the catalog does not hold: product name as NVML reports it, memory in MiB, device and subsystem id, VBIOS.
_CARDS: dict[str, dict[str, Any]] = {
    "B200": {"name": "NVIDIA B200", "memory_mib": 183359, "pci_device_id": "0x2901", "pci_subsystem_id": "0x1999"},
    "H200": {"name": "NVIDIA H200", "memory_mib": 143771, "pci_device_id": "0x2335", "pci_subsystem_id": "0x18be"},
    "H100-SXM5-80GB": {
        "name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "pci_device_id": "0x2330", "pci_subsystem_id": "0x16c1",
    },
    "A100-SXM4-80GB": {
        "name": "NVIDIA A100-SXM4-80GB", "memory_mib": 81920, "pci_device_id": "0x20b2", "pci_subsystem_id": "0x147f",
        "pcie_gen": 4, "power_w": 400, "vbios": "92.00.36.00.02",
    },
    "A100-SXM4-40GB": {
        "name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960, "pci_device_id": "0x20b0", "pci_subsystem_id": "0x134f",
        "pcie_gen": 4, "power_w": 400, "vbios": "92.00.36.00.02",
    },
    "V100-SXM2-32GB": {
        "name": "Tesla V100-SXM2-32GB", "memory_mib": 32768, "pci_device_id": "0x1db5", "pci_subsystem_id": "0x1249",
        "pcie_gen": 3, "power_w": 300, "open_module": False,
    },
    "L40S": {
        "name": "NVIDIA L40S", "memory_mib": 46068, "pci_device_id": "0x26b9", "pci_subsystem_id": "0x1851",
        "pcie_gen": 4, "power_w": 350,
    },
}  # fmt: skip
_ARCHITECTURES = {
    "7": "Volta",
    "8.0": "Ampere",
    "8.6": "Ampere",
    "8.9": "Ada Lovelace",
    "9": "Hopper",
    "10": "Blackwell",
    "12": "Blackwell",
}
#: NVSwitches of an HGX board, by its architecture: device id and number.
_SWITCHES = {"Ampere": ("0x1af1", 6), "Hopper": ("0x22a3", 4)}


def card(model: str) -> dict[str, Any]:
    """Values of a model that `document.build` wants; an unknown model is shown under its own name."""
    known = CATALOG.get(model)
    capability = (known.compute_capability if known else None) or "9.0"
    architecture = _ARCHITECTURES.get(capability) or _ARCHITECTURES.get(capability.split(".")[0], "Hopper")
    if capability == "7.5":
        architecture = "Turing"
    form = known.form if known else "SXM"
    memory_mib = (known.memory_gib if known else 80) * 1024
    switch = _SWITCHES.get(architecture) if form == "SXM" else None
    return {
        "name": f"NVIDIA {model}",
        "memory_mib": memory_mib,
        "pci_device_id": "0x2330",
        "architecture": architecture,
        "compute_cap": capability,
        "nvswitch": {"pci_device_id": switch[0], "count": switch[1]} if switch else None,
        **_CARDS.get(model, {}),
    }


def gpu_document(node: str, model: str, count: int, *, nics: int = 0) -> dict[str, Any]:
    """The healthy document of one node.

    Args:
        node: the node's name; the same node always gets the same UUIDs and serial numbers.
        model: GPU model as the description names it.
        count: number of GPUs, 0 to 16.
        nics: number of network cards for RDMA, 0 to 8.

    Raises:
        ValueError: when count is out of range.
    """
    rail = {"link": "InfiniBand", "rate_gb_s": 400, "pci_device_id": "0x1021"}
    return build(node, card(model), count, nics=[rail] * nics)
