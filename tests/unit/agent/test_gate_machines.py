"""From what programs print to the verdict: recorded and composed machines, and every fault of the lab's doubles."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from myriad.agent.collect.assemble import collectors, portrait_of
from myriad.agent.collect.source import Host, Recorded
from myriad.agent.gate import Kubelet, Verdict, judge
from myriad.agent.probe import ProbeResult
from myriad.fleet.portrait import Expected, ExpectedMig, Portrait
from myriad.lab.double.document import PROC_DIR, SYS_DIR, set_fault
from myriad.lab.double.files import document_files
from myriad.lab.gpus import gpu_document

MACHINES = Path(__file__).resolve().parents[2] / "fixtures" / "machines"
AT = "2026-11-29T21:00:00Z"
RESOURCE = "nvidia.com/gpu"
H100 = "H100-SXM5-80GB"
A100 = "A100-SXM4-80GB"


def verdict(found: Portrait, expected: Expected) -> Verdict:
    """As if kubelet and container had no objection: what is left is what the machine itself shows."""
    slices = sum(expected.mig.profiles.values()) * expected.gpus
    count = {RESOURCE: slices or expected.gpus}
    return judge(expected, found, Kubelet(count, count), ProbeResult(expected.gpus, expected.gpus))


@pytest.mark.parametrize(
    ("machine", "expected", "failing", "cause"),
    [
        ("h100-sxm5-x8", Expected(gpus=8, model=H100), (), ""),
        ("a100-sxm4-40gb-x8", Expected(gpus=8, model="A100-SXM4-40GB"), (), ""),
        ("h200-sxm-x8", Expected(gpus=8, model="H200"), (), ""),
        ("h100-pcie-pair", Expected(gpus=2, model="H100-PCIe-80GB"), (), ""),
        ("l40s-x4", Expected(gpus=4, model="L40S"), (), ""),
        (
            "v100-sxm2-x4", Expected(gpus=4, model="V100-SXM2-32GB"), ("row-remap",),
            "a row remap is pending until the GPU is reset",
        ),
        ("a10-x1", Expected(gpus=1, model="A10"), (), ""),
        ("no-gpu", Expected(gpus=0), (), ""),
        ("no-gpu", Expected(gpus=8), ("pci", "module"), "0 of 8 GPUs are on the PCI bus"),
        (
            "h100-sxm5-fabric-in-progress", Expected(gpus=8, model=H100), ("versions",),
            "the fabric manager is 590.44.01, the driver is 590.48.01: it starts with its own version only",
        ),
        ("h100-one-lost", Expected(gpus=8, model=H100), ("lost", "xid"), "GPU 3: GPU is lost."),
        (
            "a100-sxm4-80gb-x8", Expected(gpus=8, model=A100), ("ecc", "row-remap"),
            "GPU 5: 2 uncorrected memory errors since the driver was loaded",
        ),
        ("a100-mig-single", Expected(gpus=2), ("mig",), "GPU 1: MIG is enabled, described: whole card"),
        ("mixed-models", Expected(gpus=4, model="L40S"), ("model",), "the description says L40S"),
        ("driver-not-loaded", Expected(gpus=4), ("module",), "the kernel has no nvidia module loaded"),
        (
            "nvml-mismatch", Expected(gpus=2), ("versions",),
            "the running module is 535.183.01, the library is 535.309.01: packages were changed since",
        ),
        ("no-devices", Expected(gpus=2), ("answers",), "No devices were found"),
        ("l40s-x4", Expected(gpus=4, model=H100), ("model",), f"the description says {H100}"),
    ],
)  # fmt: skip
def test_machines_are_judged_by_what_their_programs_print(
    machine: str, expected: Expected, failing: tuple[str, ...], cause: str
) -> None:
    found, _ = portrait_of("gpu3", Recorded(MACHINES / machine), AT)
    judged = verdict(found, expected)
    assert judged.failing == failing
    assert cause in judged.cause
    assert judged.open or (judged.next and "NODE" not in judged.next)


def test_mig_as_the_machine_has_it_is_open() -> None:
    found, _ = portrait_of("gpu3", Recorded(MACHINES / "a100-mig-single"), AT)
    profiles: dict[str, int] = {}
    for part in found.gpus[0].mig.slices if found.gpus[0].mig else ():
        profiles[part.profile] = profiles.get(part.profile, 0) + 1
    assert profiles
    assert verdict(found, Expected(gpus=2, mig=ExpectedMig(profiles=profiles))).open


# The lab's doubles


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The portrait of a node with eight doubles and these faults, through the real programs of the lab."""
    package = Path(sys.modules["myriad"].__file__ or "").parents[1]

    def program(name: str, module: str, arguments: str) -> str:
        path = tmp_path / name
        path.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(package)!r})\n"
            f"from myriad.lab.double import {module}\nsys.exit({module}.main({arguments}))\n"
        )
        path.chmod(0o755)
        return str(path)

    monkeypatch.setenv("MYRIAD_LAB_GPU_JSON", str(tmp_path / "etc/myriad-lab/gpu.json"))
    monkeypatch.setattr("myriad.agent.collect.source._environment", lambda: dict(os.environ))
    programs = {
        "nvidia-smi": program("nvidia-smi", "nvidia_smi", ""),
        "nv-fabricmanager": program("nv-fabricmanager", "node", "sys.argv[1:]"),
    }

    def show(*faults: tuple[str, int | None, str | None]) -> Portrait:
        document = gpu_document("gpu1", H100, 8)
        for kind, gpu, value in faults:
            document = set_fault(document, kind, gpu=gpu, value=value)
        for path, (content, _) in document_files(document).items():
            target = tmp_path / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        host = Host(sysfs=f"{tmp_path}{SYS_DIR}", procfs=f"{tmp_path}{PROC_DIR}", programs=programs)
        log = f"{tmp_path}{PROC_DIR}/kmsg"
        # Short only where nothing answers anyway: a busy machine starts a program slowly.
        wait_s = 3.0 if any(kind == "hang" for kind, _, _ in faults) else 60.0
        return portrait_of("gpu3", host, AT, collectors(kernel_log=log, timeout_s=wait_s))[0]

    return show


@pytest.mark.parametrize(
    ("faults", "failing", "cause"),
    [
        ((), (), ""),
        ((("missing", 3, None),), ("pci",), "7 of 8 GPUs are on the PCI bus"),
        ((("counts", None, "6"),), ("driver",), "6 of 8 GPUs are seen by the driver"),
        ((("ecc", 5, None),), ("ecc",), "GPU 5: 2 uncorrected memory errors since the driver was loaded"),
        ((("row_remap", 2, "failure"),), ("row-remap",), "GPU 2: row remapping failed"),
        ((("xid", 4, "119"),), ("xid",), "GPU 4: Xid 119: the GPU's system processor (GSP) does not answer"),
        ((("xid", 4, "31"),), (), ""),
        ((("hang", None, None),), ("answers",), "nvidia-smi -q -x does not answer within 3 s: the driver hangs"),
        ((("no_driver", None, None),), ("module",), "module"),
        ((("nvml_mismatch", None, None),), ("versions",), "the running module is 580.126.20, the library is 580.142"),
        (
            (("versions", None, "fabric_manager=580.95.05"),), ("versions",),
            "the fabric manager is 580.95.05, the driver is 580.126.20",
        ),
        ((("fabric", None, "in_progress"),), ("fabric",), "the NVLink fabric is in-progress, although"),
        ((("fabric", None, "failed"),), ("fabric",), "the NVLink fabric is "),
    ],
)  # fmt: skip
def test_every_fault_of_the_doubles_is_told_by_its_own_check(
    double: Any, faults: Any, failing: tuple[str, ...], cause: str
) -> None:
    judged = verdict(double(*faults), Expected(gpus=8, model=H100))
    assert judged.failing == failing, judged.cause
    assert cause in judged.cause
    assert judged.open or judged.next


def test_a_gpu_that_fell_off_the_bus_is_named_with_its_report(double: Any) -> None:
    judged = verdict(double(("xid", 4, "79")), Expected(gpus=8, model=H100))
    assert judged.failing == ("lost", "xid")
    assert judged.cause.startswith("GPU 4: ") and "lost" in judged.cause and "reboot" in judged.next
