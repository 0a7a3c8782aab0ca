"""What a PCI bus says: which GPUs and NVSwitches there are, and what a driver must be for them. Pure.

Devices are mappings as sysfs holds them: `address`, `vendor`, `device`, `class` and, where read, `subsystem_vendor`,
`subsystem_device`, `driver` (the kernel driver bound to it) and `vpd` (text of its vital product data).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from myriad.fleet.catalog import CATALOG, GpuModel

NVIDIA = "10de"
AMD = "1002"
HUAWEI = "19e5"
MELLANOX = "15b3"
VENDORS = {NVIDIA: "NVIDIA", AMD: "AMD", HUAWEI: "Huawei"}
"""PCI vendor ids of GPU makers. https://pci-ids.ucw.cz"""

_DISPLAY = ("0300", "0302", "0380", "1200")
"""Class and subclass: VGA controller, 3D controller, display controller, processing accelerator (MI300, Ascend)."""
_BRIDGE = "0680"
"""Class and subclass "bridge, other": how NVSwitches of NVLink 2 to 4 show."""

# nvswitch_lr10_device_ids and the management endpoints of nvswitch_ls10_device_ids in
# src/common/nvswitch/kernel/nvswitch.c of https://github.com/NVIDIA/open-gpu-kernel-modules, 595.45.04;
# 1af1 and 22a3 also stand in the PCI ID list as "GA100 [A100 NVSwitch]" and "GH100 [H100 NVSwitch]".
_LR10 = frozenset({"1ae8", *(f"{number:04x}" for number in range(0x1AF0, 0x1B00))})
_LS10 = frozenset(f"{number:04x}" for number in range(0x22A0, 0x22A8))
NVSWITCHES: dict[str, str] = {
    **dict.fromkeys(sorted(_LR10), "NVSwitch of the A100 generation"),
    **dict.fromkeys(sorted(_LS10), "NVSwitch of the H100 generation"),
}
"""Device ids of NVSwitches that stand on the host's PCI bus."""

# The NVSwitches of HGX B200 and B300 are not on the PCI bus: ConnectX-7 functions (the same id as the network card)
# lead to them, told apart by SW_MNG in their vital product data. NVIDIA Fabric Manager User Guide, "Systems Using
# Fourth Generation NVSwitches"; https://github.com/NVIDIA/gpu-operator/issues/2781 shows the failure without them.
_CONNECTX7 = "1021"
_SWITCH_MARK = "SW_MNG"


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a chip generation asks of the driver.

    Attributes:
        name: as people say it.
        open_module: the open kernel module drives it.
        proprietary_module: the proprietary kernel module drives it.
        first_branch: first driver branch for it (the number before the first dot).
        last_branch: last driver branch for it; None while it goes on.
        source: where that stands.
    """

    name: str
    open_module: bool
    proprietary_module: bool
    first_branch: int
    last_branch: int | None
    source: str


_MODULES = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html"
_MATRIX = "https://docs.nvidia.com/datacenter/tesla/drivers/cuda-toolkit-driver-and-architecture-matrix.html"
_OPEN_ONLY = "https://developer.nvidia.com/blog/nvidia-transitions-fully-towards-open-source-gpu-kernel-modules/"
_CUDA = "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes: driver of the first toolkit for it"

ARCHITECTURES: dict[str, Architecture] = {
    "maxwell": Architecture("Maxwell", False, True, 340, 580, f"{_MODULES} {_MATRIX}"),
    "pascal": Architecture("Pascal", False, True, 367, 580, f"{_MODULES} {_MATRIX}"),
    "volta": Architecture("Volta", False, True, 384, 580, f"{_MODULES} {_MATRIX}"),
    "turing": Architecture("Turing", True, True, 410, None, f"{_MODULES} {_CUDA}"),
    "ampere": Architecture("Ampere", True, True, 450, None, f"{_MODULES} {_CUDA}"),
    "ada": Architecture("Ada", True, True, 520, None, f"{_MODULES} {_CUDA}"),
    "hopper": Architecture("Hopper", True, True, 520, None, f"{_MODULES} {_CUDA}"),
    "grace-hopper": Architecture("Grace Hopper", True, False, 535, None, _OPEN_ONLY),
    "blackwell": Architecture("Blackwell", True, False, 570, None, f"{_OPEN_ONLY} {_CUDA}"),
}
"""NVIDIA's chip generations by the catalog's key."""

OPEN_FIRST_BRANCH = 515
"""First branch with an open kernel module (driver installation guide, "Kernel Modules")."""
OPEN_DEFAULT_BRANCH = 560
"""From this branch on the open module is "the default and suggested installation" (the same page)."""
PROPRIETARY_LAST_BRANCH = 610
"""The guide for 610 has both flavors, the guide for 620 the open one; Ubuntu builds 615 as open modules only."""


@dataclass(frozen=True, slots=True)
class Device:
    """One PCI device, ids as four lower-case hex digits."""

    address: str
    vendor: str
    device: str
    class_code: str
    subsystem: str = ""
    driver: str = ""
    vpd: str = ""

    @property
    def id(self) -> str:
        """`10de:2330`."""
        return f"{self.vendor}:{self.device}"

    @property
    def dead(self) -> bool:
        """The device answers with ones only: it fell off the bus."""
        return self.vendor == "ffff" or self.device == "ffff"


@dataclass(frozen=True, slots=True)
class Bus:
    """The devices of a host that matter here.

    Attributes:
        gpus: each GPU with its catalog entry, or None for an id that the catalog does not know.
        nvswitches: NVSwitches with ids that the catalog knows.
        strange_bridges: bridges of NVIDIA with ids that it does not know.
        switch_links: ConnectX functions that lead to the NVSwitches of an HGX B200 or B300 board.
        dead: devices that answer with ones only.
    """

    gpus: tuple[tuple[Device, GpuModel | None], ...]
    nvswitches: tuple[Device, ...]
    strange_bridges: tuple[Device, ...]
    switch_links: tuple[Device, ...]
    dead: tuple[Device, ...]


def hex_id(value: Any) -> str:
    """`0x10DE`, `10de` or `10DE` as `10de`; empty for nothing."""
    text = str(value or "").strip().lower().removeprefix("0x")
    return text.zfill(4) if text else ""


def device_of(raw: Mapping[str, Any]) -> Device:
    """One device of a facts document."""
    vendor, device = hex_id(raw.get("subsystem_vendor")), hex_id(raw.get("subsystem_device"))
    return Device(
        address=str(raw.get("address", "")),
        vendor=hex_id(raw.get("vendor")),
        device=hex_id(raw.get("device")),
        class_code=str(raw.get("class", "")).strip().lower().removeprefix("0x").zfill(6),
        subsystem=f"{vendor}:{device}" if vendor and device else "",
        driver=str(raw.get("driver") or ""),
        vpd=str(raw.get("vpd") or ""),
    )


_MAKERS = {NVIDIA: "nvidia", AMD: "amd", HUAWEI: "huawei"}
_BY_ID: dict[tuple[str, str], list[tuple[str, GpuModel]]] = {}
for _model in CATALOG.values():
    for _id in _model.pci:
        _BY_ID.setdefault((_model.vendor, _id.device), []).append((_id.subsystem, _model))


def by_pci(vendor: str, device: str, subsystem: str | None = None) -> GpuModel | None:
    """The model with these PCI ids, or None.

    Args:
        vendor: `0x10de` or `10de`.
        device: `0x2330` or `2330`.
        subsystem: `10de:16c1`; decides only where one device id stands for several products.
    """
    rows = _BY_ID.get((_MAKERS.get(hex_id(vendor), ""), hex_id(device)), [])
    exact = [model for wanted, model in rows if wanted and wanted == (subsystem or "").lower()]
    plain = [model for wanted, model in rows if not wanted]
    return next(iter(exact or plain), None)


def by_product(product: str) -> GpuModel | None:
    """The model that nvidia-smi calls so (`NVIDIA H100 80GB HBM3`), or None. Case and the maker's name do not count."""
    return _BY_PRODUCT.get(_plain(product))


def _plain(product: str) -> str:
    return " ".join(product.lower().replace("nvidia ", "").split())


_BY_PRODUCT = {_plain(product): model for model in CATALOG.values() for product in model.products}


def read_bus(devices: Iterable[Mapping[str, Any]]) -> Bus:
    """Sort the devices of a host; order is that of their addresses."""
    gpus: list[tuple[Device, GpuModel | None]] = []
    switches: list[Device] = []
    strange: list[Device] = []
    links: list[Device] = []
    dead: list[Device] = []
    for device in sorted(map(device_of, devices), key=lambda one: one.address):
        kind = device.class_code[:4]
        if device.dead:
            dead.append(device)
        elif device.vendor in VENDORS and kind in _DISPLAY:
            gpus.append((device, by_pci(device.vendor, device.device, device.subsystem)))
        elif device.vendor == NVIDIA and kind == _BRIDGE:
            (switches if device.device in NVSWITCHES else strange).append(device)
        elif device.vendor == MELLANOX and device.device == _CONNECTX7 and _SWITCH_MARK in device.vpd:
            links.append(device)
    # The service processor's display (a Matrox or ASPEED chip) is no GPU maker's; Huawei's own one is (Hi171x).
    gpus = [(device, model) for device, model in gpus if not (device.vendor == HUAWEI and device.device == "1711")]
    return Bus(tuple(gpus), tuple(switches), tuple(strange), tuple(links), tuple(dead))


def unknown_gpu(device: Device) -> str:
    """What to say about a GPU whose id the catalog does not know: the id, and the known ids next to it."""
    maker = VENDORS.get(device.vendor, device.vendor)
    number = int(device.device, 16)
    rows = [
        (abs(int(ident, 16) - number), ident, model.name)
        for (vendor, ident), entries in _BY_ID.items()
        if vendor == _MAKERS.get(device.vendor)
        for _subsystem, model in entries
    ]
    near = [f"{ident} is {name}" for _distance, ident, name in sorted(rows)[:2]]
    hint = f" (near it: {', '.join(near)})" if near else ""
    shown = f"{device.id}, subsystem {device.subsystem}" if device.subsystem else device.id
    return f"{shown} is a GPU of {maker} that the catalog does not know{hint}"
