"""What the hardware asks for: which kernel module, which driver branches, a fabric manager or none, MIG or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from myriad.fleet.catalog import CATALOG, GpuModel, model_fault
from myriad.fleet.driver.notes import Notes, Wish, count_of
from myriad.fleet.driver.result import FoundGpu, ModuleKind
from myriad.fleet.driver.rules import kind_of
from myriad.fleet.driver.versions import branch, older, upstream
from myriad.fleet.hardware import (
    ARCHITECTURES,
    NVIDIA,
    OPEN_DEFAULT_BRANCH,
    OPEN_FIRST_BRANCH,
    PROPRIETARY_LAST_BRANCH,
    VENDORS,
    Bus,
    Device,
    unknown_gpu,
)


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of a host, as far as the driver is concerned.

    Attributes:
        found: all of them, for the plan.
        models: catalog entries of NVIDIA's GPUs that the driver is for; one for each card.
        unknown: NVIDIA's GPUs with ids that the catalog does not know.
        others: GPUs of other makers (`8 x MI300X`), empty without any.
        guests: GPUs given to virtual machines.
    """

    found: tuple[FoundGpu, ...]
    models: tuple[GpuModel, ...]
    unknown: tuple[Device, ...]
    others: str
    guests: int


_GUEST_DRIVERS = ("vfio-pci", "xen-pciback", "pci-stub")


def sort_gpus(bus: Bus, wish: Wish, notes: Notes) -> Gpus:
    """Which of the devices need NVIDIA's driver. Unknown and dead ones are refused here."""
    found: list[FoundGpu] = []
    models: list[GpuModel] = []
    unknown: list[Device] = []
    others: list[str] = []
    guests = 0
    for device, model in bus.gpus:
        guest = device.driver in _GUEST_DRIVERS
        name = model.name if model else ""
        found.append(FoundGpu(device.address, device.id, name, device.driver if guest else ""))
        if guest:
            guests += 1
        elif device.vendor != NVIDIA:
            others.append(name or f"{VENDORS[device.vendor]} {device.id}")
        elif model is None:
            unknown.append(device)
        else:
            models.append(model)
    for device in bus.dead:
        notes.refuse(
            "dead-device",
            f"PCI {device.address}",
            "the device answers with ones only, so it fell off the bus",
            "power the machine off and on; when it stays so, reseat or replace the card. A driver cannot bring it back",
        )
    for ident in dict.fromkeys((device.id, device.subsystem) for device in unknown):
        _judge_unknown([device for device in unknown if (device.id, device.subsystem) == ident], wish, notes)
    if not bus.gpus and not bus.dead:
        models.extend(_assumed(wish, notes))
    return Gpus(tuple(found), tuple(models), tuple(unknown), count_of(others), guests)


def _judge_unknown(alike: Sequence[Device], wish: Wish, notes: Notes) -> None:
    device = alike[0]
    where = f"PCI {device.address}" + (f" and {len(alike) - 1} more" if len(alike) > 1 else "")
    if wish.module == "auto":
        notes.refuse(
            "unknown-gpu",
            where,
            f"{unknown_gpu(device)}, so the module and the branch that it needs are not known",
            "add it to the catalog (myriad/fleet/gpu_rows.py), or set gpu_driver_module to open or proprietary to "
            "decide "
            "yourself",
        )
        return
    notes.warn(
        f"PCI {device.address}: {unknown_gpu(device)}; the {wish.module} module is taken because gpu_driver_module "
        "says "
        "so, and nobody checked that the driver knows this card"
    )


def _assumed(wish: Wish, notes: Notes) -> list[GpuModel]:
    """An image is made where no GPU is: the models that it is for stand in the wish."""
    models = []
    for name in wish.models:
        fault = model_fault(str(name))
        if fault is None:
            models.append(CATALOG[str(name)])
        else:
            notes.refuse("unknown-gpu", "gpu_driver_models", fault.split(";")[0], "use a name of the catalog")
    return [model for model in models if model.vendor == "nvidia"]


def choose_module(gpus: Gpus, wish: Wish, notes: Notes) -> tuple[ModuleKind | None, str]:
    """Open or proprietary, and why; None where no module can serve all GPUs of the host."""
    chips = _architectures(gpus.models)
    only_open = [name for name in chips if not ARCHITECTURES[name].proprietary_module]
    only_proprietary = [name for name in chips if not ARCHITECTURES[name].open_module]
    if only_open and only_proprietary:
        notes.refuse(
            "mixed-host",
            "PCI bus",
            f"{_people(gpus.models, only_proprietary)} needs the proprietary module and "
            f"{_people(gpus.models, only_open)} "
            "the open one, and a host loads one module only",
            "move one kind of card to another host",
        )
        return None, ""
    if only_open:
        kind, why = _as_kind("open"), f"{_people(gpus.models, only_open)} is supported with the open module only"
    elif only_proprietary:
        kind = _as_kind("proprietary")
        why = f"{_people(gpus.models, only_proprietary)} has no GSP, which the open module needs"
    elif wish.module in ("open", "proprietary"):
        kind, why = _as_kind(wish.module), "gpu_driver_module says so"
    else:
        kind, why = _by_branch(wish)
    if wish.module not in ("auto", kind):
        notes.refuse(
            "module",
            "gpu_driver_module",
            f"{wish.module} is asked for, but {why}",
            f"set it to auto or {kind}",
        )
    return kind, why


def _as_kind(text: str) -> ModuleKind:
    return "open" if text == "open" else "proprietary"


def _by_branch(wish: Wish) -> tuple[ModuleKind, str]:
    """Both modules serve these GPUs: the guide's suggestion for the branch, unless the lock has only the other one."""
    preferred: ModuleKind = "open" if branch(wish.driver) >= OPEN_DEFAULT_BRANCH else "proprietary"
    other: ModuleKind = "proprietary" if preferred == "open" else "open"
    locked = {kind.name for name in wish.packages if (kind := kind_of(name)) is not None}
    if f"module-{preferred}" not in locked and f"module-{other}" in locked:
        return other, f"both modules serve these GPUs, and the lock names the {other} one only"
    if preferred == "open":
        return preferred, f"both modules serve these GPUs; from R{OPEN_DEFAULT_BRANCH} on the open one is the default"
    return preferred, f"both modules serve these GPUs; before R{OPEN_DEFAULT_BRANCH} the proprietary one is the default"


def check_branch(
    gpus: Gpus, module: ModuleKind | None, driver: str, where: str, notes: Notes, *, todo: str = ""
) -> None:
    """Refuse a driver version that does not know every GPU of the host.

    Args:
        where: what names the version, for the sentence (`gpu_driver_versions.driver`).
        todo: what to do instead of locking another version, where the version is not the lock's.
    """
    if not upstream(driver):
        return  # check_channel says that it is no version
    number = branch(driver)
    for model in dict.fromkeys(gpus.models):
        fault = driver_fault(model, driver)
        if fault is not None:
            notes.refuse("branch", where, fault[0], todo or fault[1])
    if module == "open" and number < OPEN_FIRST_BRANCH:
        notes.refuse(
            "branch",
            where,
            f"{driver} has no open module; R{OPEN_FIRST_BRANCH} is the first with one",
            "lock a newer driver",
        )
    if module == "proprietary" and number > PROPRIETARY_LAST_BRANCH:
        notes.refuse(
            "branch",
            where,
            f"{driver} has no proprietary module; R{PROPRIETARY_LAST_BRANCH} is the last with one",
            "set gpu_driver_module to auto, or lock an older driver",
        )


def driver_fault(model: GpuModel, driver: str) -> tuple[str, str] | None:
    """Why a driver version does not serve a GPU, and what to do; None when it does."""
    chip = ARCHITECTURES[model.architecture]
    number = branch(driver)
    if number < chip.first_branch or (model.first_driver and older(driver, model.first_driver)):
        newest = model.first_driver if branch(model.first_driver) >= chip.first_branch else f"R{chip.first_branch}"
        return (
            f"{driver} does not know {model.name} ({chip.name}), which needs {newest} or newer",
            "lock a newer driver for this pool",
        )
    if chip.last_branch is not None and number > chip.last_branch:
        return (
            f"{driver} no longer serves {model.name} ({chip.name}); R{chip.last_branch} is the last branch for it",
            f"lock a driver of R{chip.last_branch} for this pool",
        )
    return None


def choose_fabric(bus: Bus, gpus: Gpus, wish: Wish, notes: Notes, *, virtual: bool) -> tuple[bool, str]:
    """Whether the fabric manager belongs on the host, and why. Only and always where NVSwitches are."""
    if wish.fabric_manager is not None:
        answer = "belongs here" if wish.fabric_manager else "does not belong here"
        return wish.fabric_manager, f"gpu_driver_fabric_manager says that it {answer}"
    if bus.nvswitches:
        count = len(bus.nvswitches)
        return True, f"{count} NVSwitch{'' if count == 1 else 'es'} on the PCI bus ({bus.nvswitches[0].id})"
    if bus.switch_links:
        links = len(bus.switch_links)
        return True, f"{links} ConnectX-7 functions lead to NVSwitches (SW_MNG in their vital product data)"
    boards = [model for model in dict.fromkeys(gpus.models) if model.switched]
    counts = {model.name: gpus.models.count(model) for model in boards}
    if bus.strange_bridges and boards:
        bridge = bus.strange_bridges[0]
        notes.warn(
            f"PCI {bridge.address}: {bridge.id} is a bridge of NVIDIA that the catalog does not know; with "
            f"{boards[0].name} "
            "beside it, it is taken for an NVSwitch. Set gpu_driver_fabric_manager if that is wrong"
        )
        return True, f"{len(bus.strange_bridges)} bridges of NVIDIA next to {boards[0].name}"
    if boards and not gpus.found:
        return _fabric_of_image(boards, gpus, notes)
    racks = [model for model in dict.fromkeys(gpus.models) if model.rack_switched]
    if racks:
        return False, f"{racks[0].name}: its NVSwitches stand in switch trays, and those manage the fabric"
    fifth = [model for model in boards if model.nvlink and model.nvlink.generation >= 5]
    if fifth and not virtual:
        # A card that is missing does not change the board, so the count does not decide here.
        return True, f"{fifth[0].name} comes on boards with NVSwitches only, which NVLink 5 keeps off the PCI bus"
    # Boards of a size without NVSwitches (HGX with four cards) have direct links; any other count is part of a board.
    parts = [model for model in boards if counts[model.name] not in set(model.per_board) - set(model.switched)]
    if parts:
        notes.warn(
            f"{counts[parts[0].name]} x {parts[0].name} come on a board with NVSwitches, and none is on the PCI bus: "
            "CUDA will answer error 802 unless a hypervisor manages the fabric. Look for them with lspci -d 10de::0680"
        )
    return False, "no NVSwitch on the PCI bus"


def _fabric_of_image(boards: Sequence[GpuModel], gpus: Gpus, notes: Notes) -> tuple[bool, str]:
    plain = [model.name for model in dict.fromkeys(gpus.models) if not model.switched]
    if plain:
        notes.warn(
            f"the image also serves {' and '.join(plain)}: enable the fabric manager's unit on hosts with NVSwitches "
            "only, it "
            "fails elsewhere"
        )
    return True, f"the image is for {boards[0].name}, whose boards of {max(boards[0].switched)} have NVSwitches"


def needs_subnet_manager(bus: Bus, gpus: Gpus, *, fabric: bool) -> bool:
    """Whether the NVLink subnet manager belongs beside the fabric manager: boards with NVLink 5."""
    fifth = any(model.switched and model.nvlink and model.nvlink.generation >= 5 for model in gpus.models)
    return fabric and (fifth or bool(bus.switch_links))


SWITCH_LINK_MODULES = ("ib_umad", "mlx5_ib")
"""Without them the fabric manager of a board with NVLink 5 ends early, while nvidia-smi looks healthy.
https://github.com/NVIDIA/gpu-operator/issues/2781, https://github.com/spectrocloud/CanvOS/pull/700"""


def check_imex(gpus: Gpus, wish: Wish, notes: Notes) -> None:
    """NVL72 trays share memory across hosts through a daemon of the driver's version."""
    racks = [model.name for model in dict.fromkeys(gpus.models) if model.rack_switched]
    if racks and not any((kind := kind_of(name)) is not None and kind.name == "imex" for name in wish.packages):
        notes.warn(
            f"{racks[0]}: jobs over several trays need nvidia-imex {wish.driver} beside the driver, and the lock "
            "names none"
        )


def check_mig(gpus: Gpus, driver: str, notes: Notes) -> bool:
    """Whether any GPU can be cut by MIG; warns where the driver is too old for it."""
    for model in dict.fromkeys(gpus.models):
        if model.mig_driver and driver and older(driver, model.mig_driver):
            notes.warn(f"{model.name}: MIG needs driver {model.mig_driver} or newer, the plan has {driver}")
    return any(model.mig_capable for model in gpus.models)


def _architectures(models: Sequence[GpuModel]) -> list[str]:
    return list(dict.fromkeys(model.architecture for model in models))


def _people(models: Sequence[GpuModel], architectures: Sequence[str]) -> str:
    """`V100-PCIe-16GB (Volta)`: the models of these architectures."""
    names = dict.fromkeys(
        f"{model.name} ({ARCHITECTURES[model.architecture].name})"
        for model in models
        if model.architecture in architectures
    )
    return " and ".join(names)
