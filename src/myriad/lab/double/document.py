"""The JSON file that drives a node's GPU doubles: its content, and the faults that can be switched (pure).

Layout of `/etc/myriad-lab/gpu.json`::

    {"node": "gpu1",
     "driver_version": "580.126.20", "nvml_version": "580.126.20", "fabric_manager_version": "580.126.20",
     "cuda_version": "13.0", "module_license": "Dual MIT/GPL",
     "gpus": [{"index": 0, "uuid": "GPU-...", "bus_id": "00000000:1B:00.0", "name": "NVIDIA H100 80GB HBM3", ...}],
     "nvswitches": [{"bus_id": "00000000:07:00.0", "pci_device_id": "0x22a3"}],
     "nics": [{"name": "rail0", "link": "InfiniBand", ...}],
     "fabric": {"cluster_uuid": "00000000-...", "clique_id": 0},
     "mig_profiles": [{"name": "1g.10gb", "id": 19, "slices": 1, "size": 1, "starts": [0, ...], ...}],
     "mig": {"0": {"current": "Enabled", "pending": "Enabled",
                   "instances": [{"gi": 7, "profile": "1g.10gb", "start": 0}]}},
     "faults": [{"kind": "ecc", "gpu": 3}, {"kind": "xid", "gpu": 1, "value": "48"}]}

What a model's values are is not known here: whoever writes the file (`myriad.lab.gpus`) takes them from the catalog.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Document = dict[str, Any]

#: Where the file stands on a node.
PATH = "/etc/myriad-lab/gpu.json"
#: Where the trees of sysfs and procfs stand on a node.
LAB_DIR = "/var/lib/myriad-lab"
SYS_DIR = f"{LAB_DIR}/sys"
PROC_DIR = f"{LAB_DIR}/proc"
#: Where the PCI tree stands: the same files as /sys/bus/pci/devices.
PCI_DIR = f"{SYS_DIR}/bus/pci/devices"

#: PCI bus and NUMA node of the eight GPUs of an HGX board, as a two-socket server numbers them.
_SLOTS = [("1B", 0), ("43", 0), ("52", 0), ("61", 0), ("9D", 1), ("C3", 1), ("D1", 1), ("DF", 1)]
_SWITCH_SLOTS = ["07", "08", "09", "0A", "0B", "0C"]
_NIC_SLOTS = [("18", 0), ("40", 0), ("4F", 0), ("5E", 0), ("9A", 1), ("C0", 1), ("CE", 1), ("DC", 1)]

DRIVER_VERSION = "580.126.20"
MISMATCHED_VERSION = "580.142.09"
VERSION_PARTS = {
    "module": "driver_version",
    "library": "nvml_version",
    "fabric_manager": "fabric_manager_version",
}
#: Xids that a program causes, not the GPU: the vendor's device plugin does not call the device unhealthy for them.
#: https://github.com/NVIDIA/k8s-device-plugin (README, DP_DISABLE_HEALTHCHECKS)
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
#: https://docs.nvidia.com/deploy/xid-errors/
XID_TEXTS = {
    13: "Graphics Exception: ESR 0x504730=0x20009 0x504734=0x4 0x504728=0xc81eb60 0x50472c=0x1174",
    31: "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f1a_4c000000. Fault is of type FAULT_PDE",
    43: "Ch 00000018",
    45: "Ch 00000008",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 6.",
    63: "Row Remapper: New row marked for remapping, reset gpu to activate.",
    64: "Row Remapper: Error recording row remapping.",
    74: "NVLink: fatal error detected on link 10(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    79: "GPU has fallen off the bus.",
    92: "High single-bit ECC error rate",
    94: "Contained: FBHUB (0x1). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    119: "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL).",
    145: "RLW_REMAP Nonfatal XC1 i0 Link 03 (0x00000004 0x80000000 0x00000000 0x00000000 0x00000000 0x00000000)",
}


class Fault(NamedTuple):
    """One kind of fault.

    Attributes:
        text: what it does, as a sentence without its full stop.
        per_gpu: whether it concerns one GPU.
        value: the value that it takes when none is given; empty for kinds without one.
        allowed: what the value must match (a regular expression), with the words for it.
    """

    text: str
    per_gpu: bool
    value: str = ""
    allowed: tuple[str, str] = ("", "")


#: Fault kinds: what each one does, whether it names one GPU, and its value.
FAULTS: dict[str, Fault] = {
    "missing": Fault("the GPU is gone from the PCI bus, nvidia-smi and the device plugin", True),
    "lost": Fault(
        "the driver has lost the GPU: still on the PCI bus, nvidia-smi ends with 15, its device does not open", True
    ),
    "xid": Fault(
        "an Xid in the kernel's log (79 unless VALUE names another; with 79 the GPU is also lost to the driver)",
        True,
        "79",
        (r"[1-9]\d{0,2}", "the number of an Xid, for example 48"),
    ),
    "ecc": Fault("uncorrectable memory errors: counted by nvidia-smi, unhealthy for the device plugin", True),
    "row_remap": Fault(
        "row remapping is pending (or, with VALUE failure, has failed): nvidia-smi says so, a reset applies it",
        True,
        "pending",
        ("pending|failure", "pending or failure"),
    ),
    "wrong_pci": Fault(
        "another device stands in the GPU's slot: the PCI bus shows the device id VALUE (0x20f1 unless given)",
        True,
        "0x20f1",
        ("0x[0-9a-f]{4}", "a PCI device id, for example 0x2331"),
    ),
    "device_node": Fault("the device node /dev/nvidiaN does not open: no such device or address", True),
    "mig_refused": Fault("creating the last GPU instance of a layout fails: Insufficient Resources", True),
    "mig_pending": Fault(
        "a change of the MIG mode stays pending until the node reboots (with VALUE reset, until the GPU is reset)",
        False,
        "reboot",
        ("reboot|reset", "reboot or reset"),
    ),
    "hang": Fault("nvidia-smi never answers", False),
    "counts": Fault(
        "the driver brings up fewer GPUs than stand on the PCI bus: VALUE of them (all but one unless given)",
        False,
        "",
        (r"\d{1,2}|", "a number of GPUs"),
    ),
    "versions": Fault(
        "one part of the driver has another version, VALUE is module=, library= or fabric_manager=VERSION "
        f"(library={MISMATCHED_VERSION} unless given)",
        False,
        f"library={MISMATCHED_VERSION}",
        (r"(module|library|fabric_manager)=\d+(\.\d+){1,2}", "PART=VERSION, for example module=580.95.05"),
    ),
    "nvml_mismatch": Fault("user-space library newer than the loaded module: nvidia-smi exits 18", False),
    "fabric": Fault(
        "the NVLink fabric is not complete (VALUE in_progress unless failed is given) while nvidia-smi looks healthy",
        False,
        "in_progress",
        ("in_progress|failed", "in_progress or failed"),
    ),
    "no_driver": Fault("the kernel module is not loaded: nvidia-smi exits 9, no device is healthy", False),
    "module_refused": Fault(
        "the kernel refused the module (Key was rejected by service): as no_driver, and the kernel's log says why",
        False,
    ),
}


def build(
    node: str,
    card: Mapping[str, Any],
    count: int,
    *,
    nics: Sequence[Mapping[str, Any]] = (),
    driver: str = DRIVER_VERSION,
) -> Document:
    """The healthy content for one node. The same node always gets the same UUIDs and serial numbers.

    Args:
        node: the node's name.
        card: values of the model: name, memory_mib, pci_device_id and the rest of a `gpus` entry that is the same for
            every card, and `nvswitch` ({pci_device_id, count, boards} or None), `mig_profiles`, `open_module`.
        count: number of GPUs, 0 to 16.
        nics: network cards, as {link: InfiniBand or Ethernet, rate_gb_s, pci_device_id, driver}.
        driver: version of all parts of the driver.

    Raises:
        ValueError: when count is out of range.
    """
    if not 0 <= count <= 16:
        raise ValueError(f"a lab node has 0 to 16 GPU doubles, not {count}")
    own = {key: value for key, value in card.items() if key not in ("nvswitch", "mig_profiles", "open_module")}
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
                "numa_node": numa,
                **own,
            }
        )
    switch = card.get("nvswitch")
    if switch and count not in switch.get("boards", (count,)):
        switch = None
    switches = [
        {"bus_id": f"00000000:{slot}:00.0", "pci_device_id": switch["pci_device_id"], "numa_node": 0}
        for slot in _SWITCH_SLOTS[: switch["count"]]
    ] if switch else []  # fmt: skip
    return {
        "node": node,
        "driver_version": driver,
        "nvml_version": driver,
        "fabric_manager_version": driver if switches else None,
        "cuda_version": "13.0",
        "module_license": "Dual MIT/GPL" if card.get("open_module", True) else "NVIDIA",
        "gpus": gpus,
        "nvswitches": switches,
        "nics": [
            {"name": f"rail{number}", "bus_id": f"00000000:{slot}:00.0", "numa_node": numa, **nic}
            for number, (nic, (slot, numa)) in enumerate(zip(nics, _NIC_SLOTS, strict=False))
        ],
        "fabric": {"cluster_uuid": "00000000-0000-0000-0000-000000000000", "clique_id": 0},
        "mig_profiles": list(card.get("mig_profiles") or ()),
        "mig": {},
        "faults": [],
    }


def set_fault(
    document: Document,
    kind: str,
    *,
    gpu: int | None = None,
    clear: bool = False,
    value: str | None = None,
    uptime_s: float | None = None,
) -> Document:
    """The document with one fault switched on, or off with `clear`.

    Args:
        document: the present content.
        kind: a key of FAULTS.
        gpu: index of the GPU for kinds that name one; None with `clear` clears the kind on every GPU.
        value: for kinds that take one (xid, versions, ...).
        uptime_s: the node's uptime now, for the kernel's log.

    Raises:
        ValueError: as a sentence, when the kind is unknown, a GPU is missing, unknown or superfluous, or a value is.
    """
    if kind not in FAULTS:
        raise ValueError(f'"{kind}" is not a fault; there are {", ".join(sorted(FAULTS))}')
    fault = FAULTS[kind]
    known = [entry["index"] for entry in document["gpus"]]
    if gpu is not None and not fault.per_gpu:
        raise ValueError(f'"{kind}" concerns the whole node; leave out the GPU number')
    if gpu is not None and gpu not in known:
        raise ValueError(f"there is no GPU {gpu}; this node has {_range(known)}")
    if gpu is None and fault.per_gpu and not clear:
        raise ValueError(f'"{kind}" concerns one GPU; say which, {_range(known)}')
    entry: Document = {"kind": kind, "gpu": gpu}
    if not clear:
        entry.update(_valued(kind, fault, value, len(known)))
    if uptime_s is not None:
        entry["uptime_s"] = round(uptime_s, 6)

    def replaced(other: Document) -> bool:
        if other["kind"] != kind or (gpu is not None and other.get("gpu") != gpu):
            return False
        # Three parts may differ at once, and one GPU may have several Xids; anything else is there once.
        several = kind == "xid" or (kind == "versions" and _part(other) != _part(entry))
        return clear or not (several and other.get("value") != entry.get("value"))

    rest = [other for other in document["faults"] if not replaced(other)]
    return {**document, "faults": rest if clear else [*rest, entry]}


def _valued(kind: str, fault: Fault, value: str | None, gpus: int) -> Document:
    pattern, words = fault.allowed
    if not pattern:
        if value is not None:
            raise ValueError(f'"{kind}" takes no value; leave out "{value}"')
        return {}
    given = fault.value if value is None else value
    if re.fullmatch(pattern, given) is None:
        raise ValueError(f'"{given}" is no value of {kind}; write {words}')
    if kind == "counts":
        given = given or str(max(gpus - 1, 0))
        if int(given) > gpus:
            raise ValueError(f"the driver cannot bring up {given} of {gpus} GPUs; write a number from 0 to {gpus}")
    # The plain form of an Xid is what older callers compare with.
    return {} if kind == "xid" and value is None else {"value": given}


def _part(fault: Document) -> str:
    return str(fault.get("value", "")).split("=", 1)[0]


def _range(indices: list[int]) -> str:
    return f"{indices[0]} to {indices[-1]}" if indices else "no GPU at all"


# What the faults mean. Every face of the doubles asks these, so that no two of them disagree by accident.


def faulty(document: Document, *kinds: str) -> set[int]:
    """Indices of the GPUs with one of these faults switched on."""
    return {fault["gpu"] for fault in document["faults"] if fault["kind"] in kinds and fault.get("gpu") is not None}


def has_fault(document: Document, kind: str) -> bool:
    """Whether a fault of the whole node is switched on."""
    return any(fault["kind"] == kind for fault in document["faults"])


def value_of(document: Document, kind: str, gpu: int | None = None) -> str | None:
    """The value of a fault; None where it is not on."""
    for fault in document["faults"]:
        if fault["kind"] == kind and fault.get("gpu") == gpu:
            return str(fault.get("value", FAULTS[kind].value))
    return None


def xids(document: Document) -> list[tuple[int, int, float]]:
    """(GPU index, code, uptime in seconds) of the Xids in the kernel's log, oldest first."""
    found = [
        (fault["gpu"], int(fault.get("value", FAULTS["xid"].value)), float(fault.get("uptime_s", 60.0 + number)))
        for number, fault in enumerate(document["faults"])
        if fault["kind"] == "xid"
    ]
    return sorted(found, key=lambda row: row[2])


def lost_gpus(document: Document) -> set[int]:
    """GPUs that the driver has lost."""
    return faulty(document, "lost") | {gpu for gpu, code, _ in xids(document) if code == 79}


def sick_gpus(document: Document) -> set[int]:
    """GPUs that a device plugin calls unhealthy."""
    broken = {gpu for gpu, code, _ in xids(document) if code not in APPLICATION_XIDS}
    return lost_gpus(document) | broken | faulty(document, "ecc", "device_node")


def versions(document: Document) -> dict[str, str | None]:
    """Versions of the parts: module (loaded), library, fabric_manager (None where there is no NVSwitch), module_file
    (what `modinfo` would say: the same package as the library)."""
    parts: dict[str, str | None] = {part: document.get(key) for part, key in VERSION_PARTS.items()}
    if has_fault(document, "nvml_mismatch"):
        parts["library"] = MISMATCHED_VERSION
    for fault in document["faults"]:
        if fault["kind"] == "versions":
            part, version = str(fault.get("value", FAULTS["versions"].value)).split("=", 1)
            if part != "fabric_manager" or parts["fabric_manager"] is not None:
                parts[part] = version
    return parts


def module_loaded(document: Document) -> bool:
    """Whether the kernel module is loaded."""
    return not (has_fault(document, "no_driver") or has_fault(document, "module_refused"))


def bus_gpus(document: Document) -> list[Document]:
    """GPUs on the PCI bus, with the device id that stands there."""
    gone, wrong = faulty(document, "missing"), faulty(document, "wrong_pci")
    return [
        {**gpu, "pci_device_id": value_of(document, "wrong_pci", gpu["index"])} if gpu["index"] in wrong else gpu
        for gpu in document["gpus"]
        if gpu["index"] not in gone
    ]


def driver_gpus(document: Document) -> list[Document]:
    """GPUs that the driver lists, lost ones included; none where the module is not loaded."""
    if not module_loaded(document):
        return []
    gpus = bus_gpus(document)
    count = value_of(document, "counts")
    return gpus if count is None else gpus[: int(count)]


def fabric_state(document: Document) -> tuple[str, str]:
    """(state, status) of the NVLink fabric as nvidia-smi words them; N/A without an NVSwitch."""
    if not document.get("nvswitches"):
        return "N/A", "N/A"
    value = value_of(document, "fabric")
    if value == "failed":
        return "Completed", "Failure"
    parts = versions(document)
    # A fabric manager of another version does not start, so nobody completes the fabric.
    if value == "in_progress" or parts["fabric_manager"] != parts["module"]:
        return "In Progress", "N/A"
    return "Completed", "Success"


def pci_address(device: Document) -> str:
    """The sysfs name of a device: `0000:1b:00.0` for NVML's `00000000:1B:00.0`."""
    return str(device["bus_id"])[4:].lower()
