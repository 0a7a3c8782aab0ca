"""Which GPUs a lab node shows: the doubles' JSON document, made on the controller from the catalog of GPU models."""

from __future__ import annotations

from typing import Any

from myriad.fleet import mig
from myriad.fleet.catalog import CATALOG, GpuModel
from myriad.fleet.hardware import ARCHITECTURES
from myriad.lab.double.document import build

#: nvidia-smi's word for an architecture, where it is not the catalog's.
_WORDS = {"ada": "Ada Lovelace", "grace-hopper": "Hopper"}
#: NVSwitches of an HGX board, by its architecture: device id (a key of hardware.NVSWITCHES) and number.
_SWITCHES = {"ampere": ("0x1af1", 6), "hopper": ("0x22a3", 4)}
#: PCIe generation, by architecture.
_PCIE = {"volta": 3, "turing": 3, "ampere": 4, "ada": 4}
#: Memory that the driver reports where it is not the data sheet's figure in GiB, in MiB (as nvidia-smi shows it).
_MEMORY_MIB = {
    "H100-SXM5-80GB": 81559,
    "H100-PCIe-80GB": 81559,
    "H200": 143771,
    "B200": 183359,
    "L40S": 46068,
    "L4": 23034,
    "A10": 23028,
}
#: Order in which the driver takes places, by the number of memory slices and of compute slices (see double/mig.py).
_PREFERRED = {(1, 1): (6, 4, 5, 0, 1, 2, 3), (2, 2): (4, 0, 2), (2, 1): (6, 4, 0, 2), (4, 3): (4, 0)}


def card(model: str) -> dict[str, Any]:
    """Values of a model that `document.build` wants; an unknown model is shown under its own name."""
    known = CATALOG.get(model)
    if known is None:
        return {"name": model, "memory_mib": 81559, "pci_device_id": "0x2330", "architecture": "Hopper"}
    memory_mib = _MEMORY_MIB.get(model, known.memory_gib * 1024)
    architecture = ARCHITECTURES.get(known.architecture)
    word = _WORDS.get(known.architecture) or (architecture.name if architecture else "Hopper")
    switch = _SWITCHES.get(known.architecture) if known.switched else None
    return {
        "name": known.products[0] if known.products else f"NVIDIA {model}",
        "model": model,
        "memory_mib": memory_mib,
        "pci_device_id": f"0x{known.pci[0].device}" if known.pci else "0x2330",
        "pci_subsystem_id": f"0x{known.pci[0].subsystem.partition(':')[2] or '16c1'}" if known.pci else "0x16c1",
        "architecture": word,
        "compute_cap": known.compute_capability or "9.0",
        "pcie_gen": _PCIE.get(known.architecture, 5),
        "open_module": architecture.open_module if architecture else True,
        "nvswitch": {"pci_device_id": switch[0], "count": switch[1], "boards": list(known.switched)}
        if switch
        else None,
        "mig_profiles": _profiles(known, memory_mib),
    }


def _profiles(model: GpuModel, memory_mib: int) -> list[dict[str, Any]]:
    """The MIG profiles whose driver id is known, as the double's document holds them."""
    shape = mig.geometry(model.name)
    if shape is None:
        return []
    sms = 14 if model.architecture == "ampere" else 16
    return [
        {
            "name": profile.name,
            "id": profile.id,
            "slices": profile.slices,
            "size": profile.size,
            "starts": list(_PREFERRED.get((profile.size, profile.slices), profile.starts))
            if shape.slices == 7
            else list(profile.starts),
            "total": profile.count,
            "memory_mib": memory_mib * profile.size // shape.memory,
            "sms": sms * profile.slices,
            "dec": profile.slices // 2,
            "jpeg": int(profile.slices == shape.slices or profile.name.endswith("+me")),
            "ofa": int(profile.slices == shape.slices or profile.name.endswith("+me")),
        }
        for profile in shape.profiles.values()
        if profile.id is not None
    ]


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
