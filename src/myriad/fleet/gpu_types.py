"""The shape of a catalog entry: one GPU model and what belongs to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FormFactor = Literal["SXM", "PCIe", "OAM", "superchip"]
Vendor = Literal["nvidia", "amd", "huawei"]


@dataclass(frozen=True, slots=True)
class PciId:
    """How a model shows on the PCI bus.

    Attributes:
        device: device id, four lower-case hex digits.
        subsystem: `vendor:device` of the subsystem where one device id stands for several products; else empty.
    """

    device: str
    subsystem: str = ""


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One way to cut a card by MIG.

    Attributes:
        name: as nvidia-smi writes it, without "MIG " (`1g.10gb`, `1g.10gb+me`).
        slices: compute slices that one instance takes.
        memory_gib: memory of one instance as its name counts it.
        count: the most instances of this profile that one card holds.
    """

    name: str
    slices: int
    memory_gib: int
    count: int


@dataclass(frozen=True, slots=True)
class NvLink:
    """The card's NVLink.

    Attributes:
        generation: 2 (Volta) to 5 (Blackwell).
        gb_s: all links of one card together, both directions, GB/s.
        bridge: True where the links end in a bridge between two cards that may or may not be there.
    """

    generation: int
    gb_s: float
    bridge: bool = False


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One model.

    Attributes:
        name: the name in descriptions and in the label myriad.dev/gpu-model.
        memory_gib: memory of one card as the vendor's data sheet counts it (GB on NVIDIA's sheets).
        form: board form; cards in SXM and OAM form come soldered on boards of `per_board`.
        compute_capability: CUDA compute capability, e.g. "9.0"; None where the card does not run CUDA.
        per_board: the card counts that boards of this form are sold with; empty where any count is usual.
        source: where the figures stand.
        resource: extended resource that the vendor's device plugin registers.
        vendor: who makes it.
        architecture: chip generation, a key of `hardware.ARCHITECTURES` for NVIDIA's.
        pci: PCI ids; empty where no source for them was found.
        products: what nvidia-smi calls it (`NVIDIA H100 80GB HBM3`).
        bandwidth_gb_s: memory bandwidth of one card in GB/s; None where no source was found.
        nvlink: its NVLink; None without one.
        switched: board sizes (cards) that carry NVSwitches; a board of another size has direct links or none.
        rack_switched: the NVSwitches stand in trays of their own (NVL72), never on the host's PCI bus.
        mig: MIG profiles; empty where the card cannot be cut.
        mig_driver: first driver version with MIG on this card; empty without MIG.
        first_driver: first driver version that knows the card; empty where no source was found.
    """

    name: str
    memory_gib: int
    form: FormFactor
    compute_capability: str | None
    per_board: tuple[int, ...]
    source: str
    resource: str = "nvidia.com/gpu"
    vendor: Vendor = "nvidia"
    architecture: str = ""
    pci: tuple[PciId, ...] = ()
    products: tuple[str, ...] = ()
    bandwidth_gb_s: float | None = None
    nvlink: NvLink | None = None
    switched: tuple[int, ...] = ()
    rack_switched: bool = False
    mig: tuple[MigProfile, ...] = ()
    mig_driver: str = ""
    first_driver: str = ""

    @property
    def mig_capable(self) -> bool:
        """Whether the card can be cut by MIG."""
        return bool(self.mig)
