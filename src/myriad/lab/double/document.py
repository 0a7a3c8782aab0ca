"""The JSON file that drives a node's GPU doubles: its content, and the faults that can be switched (pure).

Layout of `/etc/myriad-lab/gpu.json`::

    {"driver_version": "580.126.20", "nvml_version": "580.126.20", "cuda_version": "13.0",
     "gpus": [{"index": 0, "uuid": "GPU-...", "bus_id": "00000000:1B:00.0", "name": "NVIDIA H100 80GB HBM3", ...}],
     "faults": [{"kind": "ecc", "gpu": 3}, {"kind": "nvml_mismatch", "gpu": null}]}
"""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

#: Where the file stands on a node.
PATH = "/etc/myriad-lab/gpu.json"
#: Where the PCI tree stands: the same files as /sys/bus/pci/devices.
PCI_DIR = "/var/lib/myriad-lab/pci/devices"

#: PCI bus and NUMA node of the eight GPUs of an HGX board, as a two-socket server numbers them.
_SLOTS = [("1B", 0), ("43", 0), ("52", 0), ("61", 0), ("9D", 1), ("C3", 1), ("D1", 1), ("DF", 1)]

#: Model name in the description -> (product name as NVML reports it, memory in MiB, PCI device id).
_MODELS = {
    "H100-SXM5-80GB": ("NVIDIA H100 80GB HBM3", 81559, "0x2330"),
    "H200-SXM5-141GB": ("NVIDIA H200", 143771, "0x2335"),
    "B200-SXM-180GB": ("NVIDIA B200", 183359, "0x2901"),
    "A100-SXM4-80GB": ("NVIDIA A100-SXM4-80GB", 81920, "0x20b2"),
    "A100-SXM4-40GB": ("NVIDIA A100-SXM4-40GB", 40960, "0x20b0"),
    "V100-SXM2-32GB": ("Tesla V100-SXM2-32GB", 32768, "0x1db5"),
    "L40S-PCIE-48GB": ("NVIDIA L40S", 46068, "0x26b9"),
}

#: Fault kinds: what each one does, and whether it names one GPU.
FAULTS: dict[str, tuple[str, bool]] = {
    "missing": ("the GPU is gone from the PCI bus, nvidia-smi and the device plugin", True),
    "xid": ("Xid 79: the GPU has fallen off the bus; on the PCI bus still, but lost to the driver", True),
    "ecc": ("uncorrectable memory errors: counted by nvidia-smi, unhealthy for the device plugin", True),
    "hang": ("nvidia-smi never answers", False),
    "nvml_mismatch": ("user-space library newer than the loaded module: nvidia-smi exits 18", False),
    "no_driver": ("the kernel module is not loaded: nvidia-smi exits 9, no device is healthy", False),
}

DRIVER_VERSION = "580.126.20"
MISMATCHED_VERSION = "580.142.09"


def gpu_document(node: str, model: str, count: int) -> dict[str, Any]:
    """The healthy content for one node. The same node always gets the same UUIDs and serial numbers.

    Args:
        node: the node's name.
        model: GPU model as the description names it; an unknown one is shown under its own name.
        count: number of GPUs, 0 to 16.

    Raises:
        ValueError: when count is out of range.
    """
    if not 0 <= count <= 16:
        raise ValueError(f"a lab node has 0 to 16 GPU doubles, not {count}")
    name, memory_mib, device = _MODELS.get(model, (model, 81559, "0x2330"))
    gpus = []
    for index in range(count):
        bus, numa = _SLOTS[index % len(_SLOTS)]
        digest = hashlib.sha256(f"{node}/{index}".encode()).digest()
        gpus.append(
            {
                "index": index,
                "uuid": f"GPU-{uuid.UUID(bytes=digest[:16])}",
                "serial": str(int.from_bytes(digest[16:21], "big") % 10**13).zfill(13),
                "bus_id": f"00000000:{bus}:{index // len(_SLOTS):02X}.0",
                "name": name,
                "memory_mib": memory_mib,
                "pci_device_id": device,
                "numa_node": numa,
            }
        )
    return {
        "driver_version": DRIVER_VERSION,
        "nvml_version": DRIVER_VERSION,
        "cuda_version": "13.0",
        "gpus": gpus,
        "faults": [],
    }


def set_fault(document: dict[str, Any], kind: str, *, gpu: int | None = None, clear: bool = False) -> dict[str, Any]:
    """The document with one fault switched on, or off with `clear`.

    Args:
        document: the present content.
        kind: a key of FAULTS.
        gpu: index of the GPU for kinds that name one; None with `clear` clears the kind on every GPU.

    Raises:
        ValueError: as a sentence, when the kind is unknown, or a GPU is missing, unknown or superfluous.
    """
    if kind not in FAULTS:
        raise ValueError(f'"{kind}" is not a fault; there are {", ".join(sorted(FAULTS))}')
    per_gpu = FAULTS[kind][1]
    known = [entry["index"] for entry in document["gpus"]]
    if gpu is not None and not per_gpu:
        raise ValueError(f'"{kind}" concerns the whole node; leave out the GPU number')
    if gpu is not None and gpu not in known:
        raise ValueError(f"there is no GPU {gpu}; this node has {_range(known)}")
    if gpu is None and per_gpu and not clear:
        raise ValueError(f'"{kind}" concerns one GPU; say which, {_range(known)}')
    rest = [
        fault
        for fault in document["faults"]
        if not (fault["kind"] == kind and (gpu is None or fault.get("gpu") == gpu))
    ]
    return {**document, "faults": rest if clear else [*rest, {"kind": kind, "gpu": gpu}]}


def _range(indices: list[int]) -> str:
    return f"{indices[0]} to {indices[-1]}" if indices else "no GPU at all"


def faulty(document: dict[str, Any], *kinds: str) -> set[int]:
    """Indices of the GPUs with one of these faults switched on."""
    return {fault["gpu"] for fault in document["faults"] if fault["kind"] in kinds and fault.get("gpu") is not None}


def has_fault(document: dict[str, Any], kind: str) -> bool:
    """Whether a fault of the whole node is switched on."""
    return any(fault["kind"] == kind for fault in document["faults"])


def pci_files(document: dict[str, Any]) -> dict[str, str]:
    """The PCI tree for this document: absolute path to content, with the file names and formats of sysfs."""
    gone = faulty(document, "missing")
    files = {}
    for gpu in document["gpus"]:
        if gpu["index"] in gone:
            continue
        folder = f"{PCI_DIR}/{pci_address(gpu)}"
        files[f"{folder}/vendor"] = "0x10de\n"
        files[f"{folder}/device"] = f"{gpu['pci_device_id']}\n"
        files[f"{folder}/class"] = "0x030200\n"
        files[f"{folder}/numa_node"] = f"{gpu['numa_node']}\n"
        files[f"{folder}/subsystem_vendor"] = "0x10de\n"
    return files


def pci_address(gpu: dict[str, Any]) -> str:
    """The sysfs name of a GPU: `0000:1b:00.0` for NVML's `00000000:1B:00.0`."""
    return str(gpu["bus_id"])[4:].lower()
