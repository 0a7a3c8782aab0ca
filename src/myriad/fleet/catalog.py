"""GPU models that Myriad knows, by the name that a description uses.

Names follow `<chip>-<form>-<memory>` of the vendors' data sheets. A description may only use a name of this table:
everything downstream (labels, image verdicts, placement) compares it with what the node agent measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from myriad.fleet.names import closest, listing

FormFactor = Literal["SXM", "PCIe", "OAM", "superchip"]


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One model.

    Attributes:
        name: the name in descriptions and in the label myriad.dev/gpu-model.
        memory_gib: memory of one card as the vendor's data sheet counts it (GB on NVIDIA's sheets).
        form: board form; cards in SXM and OAM form come soldered on boards of `per_board`.
        compute_capability: CUDA compute capability, e.g. "9.0"; None where the card does not run CUDA.
        per_board: the card counts that boards of this form are sold with; empty where any count is usual.
        resource: extended resource that the vendor's device plugin registers.
        source: where the figures stand.
    """

    name: str
    memory_gib: int
    form: FormFactor
    compute_capability: str | None
    per_board: tuple[int, ...]
    source: str
    resource: str = "nvidia.com/gpu"


# Compute capabilities: https://developer.nvidia.com/cuda-gpus and, for older cards,
# https://developer.nvidia.com/cuda-legacy-gpus. Memory and form: the data sheet named in each row.
_MODELS = (
    GpuModel("B300", 288, "SXM", "10.3", (8,), "NVIDIA HGX B300 data sheet"),
    GpuModel("B200", 180, "SXM", "10.0", (8,), "NVIDIA HGX B200 data sheet"),
    GpuModel("GB200", 186, "superchip", "10.0", (4,), "NVIDIA GB200 NVL72 data sheet: 4 GPUs a compute tray"),
    GpuModel("GH200-96GB", 96, "superchip", "9.0", (1, 2, 4), "NVIDIA GH200 data sheet"),
    GpuModel("GH200-144GB", 144, "superchip", "9.0", (1, 2, 4), "NVIDIA GH200 data sheet"),
    GpuModel("H200", 141, "SXM", "9.0", (4, 8), "NVIDIA H200 data sheet (SXM)"),
    GpuModel("H200-NVL", 141, "PCIe", "9.0", (), "NVIDIA H200 data sheet (NVL)"),
    GpuModel("H100-SXM5-80GB", 80, "SXM", "9.0", (4, 8), "NVIDIA H100 data sheet (SXM)"),
    GpuModel("H100-PCIe-80GB", 80, "PCIe", "9.0", (), "NVIDIA H100 PCIe product brief"),
    GpuModel("H100-NVL-94GB", 94, "PCIe", "9.0", (), "NVIDIA H100 data sheet (NVL)"),
    GpuModel("H20", 96, "SXM", "9.0", (8,), "NVIDIA HGX H20 product brief"),
    GpuModel("H800-SXM5-80GB", 80, "SXM", "9.0", (8,), "NVIDIA H800 product brief"),
    GpuModel("A100-SXM4-80GB", 80, "SXM", "8.0", (4, 8, 16), "NVIDIA A100 data sheet; HGX A100 with 4, 8 or 16"),
    GpuModel("A100-SXM4-40GB", 40, "SXM", "8.0", (4, 8, 16), "NVIDIA A100 data sheet; HGX A100 with 4, 8 or 16"),
    GpuModel("A100-PCIe-80GB", 80, "PCIe", "8.0", (), "NVIDIA A100 data sheet (PCIe)"),
    GpuModel("A100-PCIe-40GB", 40, "PCIe", "8.0", (), "NVIDIA A100 data sheet (PCIe)"),
    GpuModel("A800-SXM4-80GB", 80, "SXM", "8.0", (8,), "NVIDIA A800 product brief"),
    GpuModel("L40S", 48, "PCIe", "8.9", (), "NVIDIA L40S data sheet"),
    GpuModel("L40", 48, "PCIe", "8.9", (), "NVIDIA L40 data sheet"),
    GpuModel("L20", 48, "PCIe", "8.9", (), "NVIDIA L20 product brief"),
    GpuModel("L4", 24, "PCIe", "8.9", (), "NVIDIA L4 data sheet"),
    GpuModel("RTX-PRO-6000-BSE", 96, "PCIe", "12.0", (), "NVIDIA RTX PRO 6000 Blackwell Server Edition data sheet"),
    GpuModel("RTX-6000-Ada", 48, "PCIe", "8.9", (), "NVIDIA RTX 6000 Ada data sheet"),
    GpuModel("RTX-4090", 24, "PCIe", "8.9", (), "NVIDIA GeForce RTX 4090 specifications"),
    GpuModel("A40", 48, "PCIe", "8.6", (), "NVIDIA A40 data sheet"),
    GpuModel("A30", 24, "PCIe", "8.0", (), "NVIDIA A30 data sheet"),
    GpuModel("A10", 24, "PCIe", "8.6", (), "NVIDIA A10 data sheet"),
    GpuModel("T4", 16, "PCIe", "7.5", (), "NVIDIA T4 data sheet"),
    GpuModel("V100-SXM2-32GB", 32, "SXM", "7.0", (4, 8), "NVIDIA V100 data sheet"),
    GpuModel("V100-SXM2-16GB", 16, "SXM", "7.0", (4, 8), "NVIDIA V100 data sheet"),
    GpuModel("V100-SXM3-32GB", 32, "SXM", "7.0", (16,), "NVIDIA DGX-2 data sheet"),
    GpuModel("V100-PCIe-32GB", 32, "PCIe", "7.0", (), "NVIDIA V100 data sheet"),
    GpuModel("V100-PCIe-16GB", 16, "PCIe", "7.0", (), "NVIDIA V100 data sheet"),
    # Resource names of other vendors: the README of each vendor's Kubernetes device plugin.
    GpuModel("MI300X", 192, "OAM", None, (8,), "AMD Instinct MI300X data sheet", "amd.com/gpu"),
    GpuModel("MI325X", 256, "OAM", None, (8,), "AMD Instinct MI325X data sheet", "amd.com/gpu"),
    GpuModel("Ascend910B", 64, "OAM", None, (8, 16), "Huawei Atlas 800T A2 documentation", "huawei.com/Ascend910"),
    GpuModel("Ascend310P", 24, "PCIe", None, (), "Huawei Atlas 300I Pro documentation", "huawei.com/Ascend310P"),
)

CATALOG: dict[str, GpuModel] = {model.name: model for model in _MODELS}
"""Every known model by its name."""


def model_fault(name: str) -> str | None:
    """Why `name` is not a GPU model of the catalog, with the nearest names; None when it is."""
    if name in CATALOG:
        return None
    wanted = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    plain = {known.lower().replace("-", ""): known for known in CATALOG}
    begins = [known for text, known in plain.items() if wanted and text.startswith(wanted)]
    if wanted in plain:
        begins = [plain[wanted]]
    if len(begins) > 1:
        return f'"{name}" is not a GPU model; is it {", ".join(begins[:-1])} or {begins[-1]}?'
    best = begins[0] if begins else closest(name, CATALOG)
    if best is not None:
        return f'"{name}" is not a known GPU model; did you mean "{best}"?'
    return f'"{name}" is not a known GPU model; known: {listing(CATALOG, limit=40)}'
