"""The rows of the catalog: what each GPU model is, with the source of every kind of figure.

Sources, for all rows:
    compute capability: https://developer.nvidia.com/cuda-gpus and https://developer.nvidia.com/cuda-legacy-gpus
    PCI ids: the PCI ID list, https://pci-ids.ucw.cz, version 2026.08.22; subsystems and product names: the table of
        compatible GPUs in the README of https://github.com/NVIDIA/open-gpu-kernel-modules, 595.45.04
    first driver: the first release whose README of that repository lists the id (from 515.48.07 on), or an older
        branch's release whose package does (Ubuntu's 535.161.08; tests/fixtures/driver/supported-ids.yml compares);
        none where older branches got the card later: then the architecture's first branch decides
    MIG profiles: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html and, by PCI id,
        deployments/systemd/config-default.yaml of https://github.com/NVIDIA/mig-parted (August 2026)
    first driver with MIG: .../mig-user-guide/620/deployment-considerations.html
    memory, bandwidth, NVLink, board: the data sheet that the row names
An id or figure whose source could not be found is left out: no entry is better than a guessed one.
"""

from __future__ import annotations

from myriad.fleet.gpu_types import GpuModel, MigProfile, NvLink, PciId


def _ids(*texts: str) -> tuple[PciId, ...]:
    """`2330` or `25b6/10de:14a9`."""
    return tuple(PciId(*text.split("/")) for text in texts)


def _mig(*texts: str) -> tuple[MigProfile, ...]:
    """`1g.10gb x7`: slices and memory stand in the name."""
    profiles = []
    for text in texts:
        name, _, count = text.partition(" x")
        slices, _, rest = name.partition("g.")
        profiles.append(MigProfile(name, int(slices), int(rest.partition("gb")[0]), int(count)))
    return tuple(profiles)


_MIG_A30 = _mig("1g.6gb x4", "1g.6gb+me x1", "2g.12gb x2", "2g.12gb+me x1", "4g.24gb x1")
_MIG_40 = _mig("1g.5gb x7", "1g.5gb+me x1", "1g.10gb x4", "2g.10gb x3", "3g.20gb x2", "4g.20gb x1", "7g.40gb x1")
_MIG_80 = _mig("1g.10gb x7", "1g.10gb+me x1", "1g.20gb x4", "2g.20gb x3", "3g.40gb x2", "4g.40gb x1", "7g.80gb x1")
_MIG_94 = _mig("1g.12gb x7", "1g.12gb+me x1", "1g.24gb x4", "2g.24gb x3", "3g.47gb x2", "4g.47gb x1", "7g.94gb x1")
_MIG_96 = _mig("1g.12gb x7", "1g.12gb+me x1", "1g.24gb x4", "2g.24gb x3", "3g.48gb x2", "4g.48gb x1", "7g.96gb x1")
_MIG_141 = _mig("1g.18gb x7", "1g.18gb+me x1", "1g.35gb x4", "2g.35gb x3", "3g.71gb x2", "4g.71gb x1", "7g.141gb x1")
_MIG_144 = _mig("1g.18gb x7", "1g.18gb+me x1", "1g.36gb x4", "2g.36gb x3", "3g.72gb x2", "4g.72gb x1", "7g.144gb x1")
_MIG_180 = _mig("1g.23gb x7", "1g.23gb+me x1", "1g.45gb x4", "2g.45gb x3", "3g.90gb x2", "4g.90gb x1", "7g.180gb x1")
_MIG_186 = _mig("1g.23gb x7", "1g.23gb+me x1", "1g.47gb x4", "2g.47gb x3", "3g.93gb x2", "4g.93gb x1", "7g.186gb x1")
_MIG_B300 = _mig("1g.34gb x7", "1g.34gb+me x1", "1g.67gb x4", "2g.67gb x3", "3g.135gb x2", "4g.135gb x1", "7g.269gb x1")
_MIG_GB300 = _mig(
    "1g.35gb x7", "1g.35gb+me x1", "1g.70gb x4", "2g.70gb x3", "3g.139gb x2", "4g.139gb x1", "7g.278gb x1"
)
_MIG_PRO = _mig(
    "1g.24gb x4", "1g.24gb+gfx x4", "1g.24gb+me.all x1", "1g.24gb-me x4",
    "2g.48gb x2", "2g.48gb+gfx x2", "2g.48gb+me.all x1", "2g.48gb-me x2",
    "4g.96gb x1", "4g.96gb+gfx x1",
)  # fmt: skip

MODELS: tuple[GpuModel, ...] = (
    GpuModel(
        "B300", 288, "SXM", "10.3", (8,), "NVIDIA HGX B300 data sheet",
        architecture="blackwell", pci=_ids("3182"), bandwidth_gb_s=8000,
        products=("NVIDIA B300 SXM6 AC",), nvlink=NvLink(5, 1800), switched=(8,),
        mig=_MIG_B300, mig_driver="580.82.07", first_driver="580.82.07",
    ),
    GpuModel(
        "B200", 180, "SXM", "10.0", (8,), "NVIDIA HGX B200 data sheet",
        architecture="blackwell", pci=_ids("2901"), bandwidth_gb_s=8000,
        products=("NVIDIA B200",), nvlink=NvLink(5, 1800), switched=(8,),
        mig=_MIG_180, mig_driver="570.133.20", first_driver="570.86.15",
    ),
    GpuModel(
        "GB200", 186, "superchip", "10.0", (4,), "NVIDIA GB200 NVL72 data sheet: 4 GPUs a compute tray",
        architecture="blackwell", pci=_ids("2941"), bandwidth_gb_s=8000,
        products=("NVIDIA GB200",), nvlink=NvLink(5, 1800), rack_switched=True,
        mig=_MIG_186, mig_driver="570.133.20", first_driver="570.124.04",
    ),
    GpuModel(
        "GB300", 288, "superchip", "10.3", (4,), "NVIDIA GB300 NVL72 data sheet: 4 GPUs a compute tray",
        architecture="blackwell", pci=_ids("31c2"), bandwidth_gb_s=8000,
        products=("NVIDIA GB300",), nvlink=NvLink(5, 1800), rack_switched=True,
        mig=_MIG_GB300, mig_driver="595.58.03", first_driver="580.82.07",
    ),
    GpuModel(
        "GH200-96GB", 96, "superchip", "9.0", (1, 2, 4), "NVIDIA GH200 data sheet",
        architecture="grace-hopper", pci=_ids("2342"), bandwidth_gb_s=4000,
        products=("NVIDIA GH200 120GB", "NVIDIA GH200 480GB"), nvlink=NvLink(4, 900),
        mig=_MIG_96, mig_driver="535.161.08", first_driver="535.161.08",
    ),
    GpuModel(
        "GH200-144GB", 144, "superchip", "9.0", (1, 2, 4), "NVIDIA GH200 data sheet",
        architecture="grace-hopper", pci=_ids("2348"), bandwidth_gb_s=4900,
        products=("NVIDIA GH200 144G HBM3e",), nvlink=NvLink(4, 900),
        mig=_MIG_144, mig_driver="565.57.01", first_driver="565.57.01",
    ),
    GpuModel(
        "H200", 141, "SXM", "9.0", (4, 8), "NVIDIA H200 data sheet (SXM)",
        architecture="hopper", pci=_ids("2335"), bandwidth_gb_s=4800,
        products=("NVIDIA H200",), nvlink=NvLink(4, 900), switched=(8,),
        mig=_MIG_141, mig_driver="550.90.07", first_driver="550.90.07",
    ),
    GpuModel(
        "H200-NVL", 141, "PCIe", "9.0", (), "NVIDIA H200 data sheet (NVL)",
        architecture="hopper", pci=_ids("233b"), bandwidth_gb_s=4800,
        products=("NVIDIA H200 NVL",), nvlink=NvLink(4, 900, bridge=True),
        mig=_MIG_141, mig_driver="565.57.01", first_driver="565.57.01",
    ),
    GpuModel(
        "H100-SXM5-80GB", 80, "SXM", "9.0", (4, 8), "NVIDIA H100 data sheet (SXM)",
        architecture="hopper", pci=_ids("2330"), bandwidth_gb_s=3350,
        products=("NVIDIA H100 80GB HBM3",), nvlink=NvLink(4, 900), switched=(8,),
        mig=_MIG_80, mig_driver="525.85.12", first_driver="525.85.05",
    ),
    GpuModel(
        "H100-PCIe-80GB", 80, "PCIe", "9.0", (), "NVIDIA H100 PCIe product brief",
        architecture="hopper", pci=_ids("2331"), bandwidth_gb_s=2000,
        products=("NVIDIA H100 PCIe",), nvlink=NvLink(4, 600, bridge=True),
        mig=_MIG_80, mig_driver="525.85.12", first_driver="520.56.06",
    ),
    GpuModel(
        "H100-NVL-94GB", 94, "PCIe", "9.0", (), "NVIDIA H100 data sheet (NVL)",
        architecture="hopper", pci=_ids("2321"), bandwidth_gb_s=3900,
        products=("NVIDIA H100 NVL",), nvlink=NvLink(4, 600, bridge=True),
        mig=_MIG_94, mig_driver="535.104.05", first_driver="535.104.05",
    ),
    GpuModel(
        "H20", 96, "SXM", "9.0", (8,), "NVIDIA HGX H20 product brief",
        architecture="hopper", pci=_ids("2329"), bandwidth_gb_s=4000,
        products=("NVIDIA H20",), nvlink=NvLink(4, 900), switched=(8,),
        mig=_MIG_96, mig_driver="535.161.07", first_driver="535.161.07",
    ),
    GpuModel(
        "H20-3e", 141, "SXM", "9.0", (8,), "NVIDIA HGX H20 product brief (HBM3e)",
        architecture="hopper", pci=_ids("232c"), bandwidth_gb_s=4800,
        products=("NVIDIA H20-3e",), nvlink=NvLink(4, 900), switched=(8,),
        mig=_MIG_141, mig_driver="535.309.01", first_driver="535.309.01",
    ),
    GpuModel(
        "H800-SXM5-80GB", 80, "SXM", "9.0", (8,), "NVIDIA H800 product brief",
        architecture="hopper", pci=_ids("2324"), bandwidth_gb_s=3350,
        products=("NVIDIA H800",), nvlink=NvLink(4, 400), switched=(8,),
        mig=_MIG_80, mig_driver="525.85.12",    ),
    GpuModel(
        "H800-PCIe-80GB", 80, "PCIe", "9.0", (), "NVIDIA H800 product brief",
        architecture="hopper", pci=_ids("2322"), bandwidth_gb_s=2000,
        products=("NVIDIA H800 PCIe",), nvlink=NvLink(4, 400, bridge=True),
        mig=_MIG_80, mig_driver="525.85.12",    ),
    GpuModel(
        "A100-SXM4-80GB", 80, "SXM", "8.0", (4, 8, 16), "NVIDIA A100 data sheet; HGX A100 with 4, 8 or 16",
        architecture="ampere", pci=_ids("20b2"), bandwidth_gb_s=2039,
        products=("NVIDIA A100-SXM4-80GB",), nvlink=NvLink(3, 600), switched=(8, 16),
        mig=_MIG_80, mig_driver="450.80.02", first_driver="450.80.02",
    ),
    GpuModel(
        "A100-SXM4-40GB", 40, "SXM", "8.0", (4, 8, 16), "NVIDIA A100 data sheet; HGX A100 with 4, 8 or 16",
        architecture="ampere", pci=_ids("20b0"), bandwidth_gb_s=1555,
        products=("NVIDIA A100-SXM4-40GB",), nvlink=NvLink(3, 600), switched=(8, 16),
        mig=_MIG_40, mig_driver="450.80.02", first_driver="450.80.02",
    ),
    GpuModel(
        "A100-PCIe-80GB", 80, "PCIe", "8.0", (), "NVIDIA A100 data sheet (PCIe)",
        architecture="ampere", pci=_ids("20b5"), bandwidth_gb_s=1935,
        products=("NVIDIA A100 80GB PCIe",), nvlink=NvLink(3, 600, bridge=True),
        mig=_MIG_80, mig_driver="450.80.02", first_driver="450.80.02",
    ),
    GpuModel(
        "A100-PCIe-40GB", 40, "PCIe", "8.0", (), "NVIDIA A100 data sheet (PCIe)",
        architecture="ampere", pci=_ids("20f1", "20b1"), bandwidth_gb_s=1555,
        products=("NVIDIA A100-PCIE-40GB",), nvlink=NvLink(3, 600, bridge=True),
        mig=_MIG_40, mig_driver="450.80.02", first_driver="450.80.02",
    ),
    GpuModel(
        "A800-SXM4-80GB", 80, "SXM", "8.0", (8,), "NVIDIA A800 product brief",
        architecture="ampere", pci=_ids("20f3"), bandwidth_gb_s=2039,
        products=("NVIDIA A800-SXM4-80GB",), nvlink=NvLink(3, 400), switched=(8,),
        mig=_MIG_80, mig_driver="525.53", first_driver="525.53",
    ),
    GpuModel(
        "A800-PCIe-80GB", 80, "PCIe", "8.0", (), "NVIDIA A800 product brief",
        architecture="ampere", pci=_ids("20f5"), bandwidth_gb_s=1935,
        products=("NVIDIA A800 80GB PCIe", "NVIDIA A800 80GB PCIe LC"), nvlink=NvLink(3, 400, bridge=True),
        mig=_MIG_80, mig_driver="525.53", first_driver="525.53",
    ),
    GpuModel(
        "L40S", 48, "PCIe", "8.9", (), "NVIDIA L40S data sheet",
        architecture="ada", pci=_ids("26b9"), bandwidth_gb_s=864,
        products=("NVIDIA L40S",),
        first_driver="535.104.05",
    ),
    GpuModel(
        "L40", 48, "PCIe", "8.9", (), "NVIDIA L40 data sheet",
        architecture="ada", pci=_ids("26b5"), bandwidth_gb_s=864,
        products=("NVIDIA L40",),
        first_driver="525.78.01",
    ),
    GpuModel(
        "L20", 48, "PCIe", "8.9", (), "NVIDIA L20 product brief",
        architecture="ada", pci=_ids("26ba", "26b7"), bandwidth_gb_s=864,
        products=("NVIDIA L20",),
        first_driver="535.161.08",
    ),
    GpuModel(
        "L4", 24, "PCIe", "8.9", (), "NVIDIA L4 data sheet",
        architecture="ada", pci=_ids("27b8"), bandwidth_gb_s=300,
        products=("NVIDIA L4",),
    ),
    GpuModel(
        "RTX-PRO-6000-BSE", 96, "PCIe", "12.0", (), "NVIDIA RTX PRO 6000 Blackwell Server Edition data sheet",
        architecture="blackwell", pci=_ids("2bb5"), bandwidth_gb_s=1597,
        products=("NVIDIA RTX PRO 6000 Blackwell Server Edition",),
        mig=_MIG_PRO, mig_driver="575.51.03", first_driver="575.51.03",
    ),
    GpuModel(
        "RTX-PRO-6000-WS", 96, "PCIe", "12.0", (), "NVIDIA RTX PRO 6000 Blackwell Workstation Edition data sheet",
        architecture="blackwell", pci=_ids("2bb1"), bandwidth_gb_s=1792,
        products=("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",),
        mig=_MIG_PRO, mig_driver="575.51.03", first_driver="570.133.07",
    ),
    GpuModel(
        "RTX-PRO-6000-Max-Q", 96, "PCIe", "12.0", (), "NVIDIA RTX PRO 6000 Blackwell Max-Q data sheet",
        architecture="blackwell", pci=_ids("2bb4"), bandwidth_gb_s=1792,
        products=("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",),
        mig=_MIG_PRO, mig_driver="575.51.03", first_driver="570.133.07",
    ),
    GpuModel(
        "RTX-5090", 32, "PCIe", "12.0", (), "NVIDIA GeForce RTX 5090 specifications",
        architecture="blackwell", pci=_ids("2b85"), bandwidth_gb_s=1792,
        products=("NVIDIA GeForce RTX 5090",),
        first_driver="570.86.16",
    ),
    GpuModel(
        "RTX-6000-Ada", 48, "PCIe", "8.9", (), "NVIDIA RTX 6000 Ada data sheet",
        architecture="ada", pci=_ids("26b1"), bandwidth_gb_s=960,
        products=("NVIDIA RTX 6000 Ada Generation",),
        first_driver="525.78.01",
    ),
    GpuModel(
        "RTX-4090", 24, "PCIe", "8.9", (), "NVIDIA GeForce RTX 4090 specifications",
        architecture="ada", pci=_ids("2684"), bandwidth_gb_s=1008,
        products=("NVIDIA GeForce RTX 4090",),
        first_driver="525.78.01",
    ),
    GpuModel(
        "A40", 48, "PCIe", "8.6", (), "NVIDIA A40 data sheet",
        architecture="ampere", pci=_ids("2235"), bandwidth_gb_s=696,
        products=("NVIDIA A40",), nvlink=NvLink(3, 112.5, bridge=True),
    ),
    GpuModel(
        "RTX-A6000", 48, "PCIe", "8.6", (), "NVIDIA RTX A6000 data sheet",
        architecture="ampere", pci=_ids("2230"), bandwidth_gb_s=768,
        products=("NVIDIA RTX A6000",), nvlink=NvLink(3, 112.5, bridge=True),
    ),
    GpuModel(
        "RTX-3090", 24, "PCIe", "8.6", (), "NVIDIA GeForce RTX 3090 specifications",
        architecture="ampere", pci=_ids("2204"), bandwidth_gb_s=936,
        products=("NVIDIA GeForce RTX 3090",),
    ),
    GpuModel(
        "A30", 24, "PCIe", "8.0", (), "NVIDIA A30 data sheet",
        architecture="ampere", pci=_ids("20b7"), bandwidth_gb_s=933,
        products=("NVIDIA A30",), nvlink=NvLink(3, 200, bridge=True),
        mig=_MIG_A30, mig_driver="460.73.01", first_driver="460.73.01",
    ),
    GpuModel(
        "A16", 16, "PCIe", "8.6", (4,), "NVIDIA A16 data sheet: 4 GPUs of 16 GB a card",
        architecture="ampere", pci=_ids("25b6/10de:14a9"), bandwidth_gb_s=200,
        products=("NVIDIA A16",),
    ),
    GpuModel(
        "A10", 24, "PCIe", "8.6", (), "NVIDIA A10 data sheet",
        architecture="ampere", pci=_ids("2236"), bandwidth_gb_s=600,
        products=("NVIDIA A10",),
    ),
    GpuModel(
        "A10G", 24, "PCIe", "8.6", (), "Amazon EC2 G5 instance documentation",
        architecture="ampere", pci=_ids("2237"), bandwidth_gb_s=600,
        products=("NVIDIA A10G",),
    ),
    GpuModel(
        "A2", 16, "PCIe", "8.6", (), "NVIDIA A2 data sheet",
        architecture="ampere", pci=_ids("25b6/10de:157e"), bandwidth_gb_s=200,
        products=("NVIDIA A2",),
    ),
    GpuModel(
        "T4", 16, "PCIe", "7.5", (), "NVIDIA T4 data sheet",
        architecture="turing", pci=_ids("1eb8"), bandwidth_gb_s=320,
        products=("Tesla T4",),
    ),
    GpuModel(
        "V100-SXM2-32GB", 32, "SXM", "7.0", (4, 8), "NVIDIA V100 data sheet",
        architecture="volta", pci=_ids("1db5"), bandwidth_gb_s=900,
        products=("Tesla V100-SXM2-32GB",), nvlink=NvLink(2, 300),
    ),
    GpuModel(
        "V100-SXM2-16GB", 16, "SXM", "7.0", (4, 8), "NVIDIA V100 data sheet",
        architecture="volta", pci=_ids("1db1", "1df5"), bandwidth_gb_s=900,
        products=("Tesla V100-SXM2-16GB",), nvlink=NvLink(2, 300),
    ),
    GpuModel(
        "V100-SXM3-32GB", 32, "SXM", "7.0", (16,), "NVIDIA DGX-2 data sheet",
        architecture="volta", pci=_ids("1db8"),
        products=("Tesla V100-SXM3-32GB",), nvlink=NvLink(2, 300), switched=(16,),
    ),
    GpuModel(
        "V100-PCIe-32GB", 32, "PCIe", "7.0", (), "NVIDIA V100 data sheet",
        architecture="volta", pci=_ids("1db6"), bandwidth_gb_s=900,
        products=("Tesla V100-PCIE-32GB",),
    ),
    GpuModel(
        "V100-PCIe-16GB", 16, "PCIe", "7.0", (), "NVIDIA V100 data sheet",
        architecture="volta", pci=_ids("1db4"), bandwidth_gb_s=900,
        products=("Tesla V100-PCIE-16GB",),
    ),
    GpuModel(
        "P100-SXM2-16GB", 16, "SXM", "6.0", (4, 8), "NVIDIA Tesla P100 data sheet",
        architecture="pascal", pci=_ids("15f9"), bandwidth_gb_s=732,
        products=("Tesla P100-SXM2-16GB",), nvlink=NvLink(1, 160),
    ),
    GpuModel(
        "P100-PCIe-16GB", 16, "PCIe", "6.0", (), "NVIDIA Tesla P100 data sheet",
        architecture="pascal", pci=_ids("15f8"), bandwidth_gb_s=732,
        products=("Tesla P100-PCIE-16GB",),
    ),
    GpuModel(
        "P40", 24, "PCIe", "6.1", (), "NVIDIA Tesla P40 data sheet",
        architecture="pascal", pci=_ids("1b38"), bandwidth_gb_s=346,
        products=("Tesla P40",),
    ),
    GpuModel(
        "MI300X", 192, "OAM", None, (8,), "AMD Instinct MI300X data sheet",
        resource="amd.com/gpu", vendor="amd", architecture="cdna3", pci=_ids("74a1"), bandwidth_gb_s=5300,
    ),
    GpuModel(
        "MI325X", 256, "OAM", None, (8,), "AMD Instinct MI325X data sheet",
        resource="amd.com/gpu", vendor="amd", architecture="cdna3", pci=_ids("74a5"), bandwidth_gb_s=6000,
    ),
    GpuModel(
        "Ascend910B", 64, "OAM", None, (8, 16), "Huawei Atlas 800T A2 documentation",
        resource="huawei.com/Ascend910", vendor="huawei", architecture="davinci",
    ),
    GpuModel(
        "Ascend310P", 24, "PCIe", None, (), "Huawei Atlas 300I Pro documentation",
        resource="huawei.com/Ascend310P", vendor="huawei", architecture="davinci", bandwidth_gb_s=204.8,
    ),
)  # fmt: skip
"""Every known model."""
