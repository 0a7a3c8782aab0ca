"""The collectors against the lab's doubles: what a fault of the driver looks like in the portrait."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from myriad.agent.collect.assemble import collectors, portrait_of
from myriad.agent.collect.source import Done, Host
from myriad.fleet.portrait import FABRIC_MANAGER, GPUS, MODULE, Portrait
from myriad.lab import double
from myriad.lab.double.document import PROC_DIR, SYS_DIR, set_fault
from myriad.lab.double.files import document_files, program_files
from myriad.lab.gpus import gpu_document

AT = "2026-11-29T10:00:00Z"
DOUBLES = Path(double.__file__).parent


@dataclass(slots=True)
class Node(Host):
    """A host whose programs are the doubles, without a chroot."""

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Done:
        program = self.root / "usr/bin" / argv[0]
        if not program.exists():
            return Done(127, fault=f"{argv[0]} is not installed")
        here = Host(programs={argv[0]: sys.executable})
        return here.run([argv[0], str(program), *argv[1:]], timeout_s=timeout_s)


Look = Callable[..., Portrait]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """A look at a node of eight doubles with these faults."""
    monkeypatch.setenv("MYRIAD_LAB_GPU_JSON", str(tmp_path / "etc/myriad-lab/gpu.json"))

    def at(*faults: tuple[Any, ...], model: str = "H100-SXM5-80GB", timeout_s: float = 20.0) -> Portrait:
        document = gpu_document("gpu1", model, 8)
        for kind, gpu, *value in faults:
            document = set_fault(document, kind, gpu=gpu, **({"value": value[0]} if value else {}))
        for path, (content, mode) in {**program_files(), **document_files(document)}.items():
            target = tmp_path / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.replace(b"/usr/local/lib/myriad-lab/double", str(DOUBLES.parents[2]).encode()))
            target.chmod(mode)
        environment = {"MYRIAD_LAB_GPU_JSON": str(tmp_path / "etc/myriad-lab/gpu.json")}
        monkeypatch.setattr("myriad.agent.collect.source._environment", lambda: environment)
        node = Node(root=tmp_path, sysfs=SYS_DIR, procfs=PROC_DIR)
        return portrait_of("gpu1", node, AT, collectors(kernel_log="/proc/kmsg", timeout_s=timeout_s))[0]

    return at


def test_a_healthy_node(look: Look) -> None:
    portrait = look()
    assert len(portrait.usable) == len(portrait.pci.gpus) == 8
    first = portrait.gpus[0]
    assert first.model == "H100-SXM5-80GB" and first.numa_node == 0 and first.cpu_affinity
    assert first.link.kind == "nvswitch" and (first.link.pcie_generation, first.link.pcie_width) == (5, 16)
    assert first.xids == () and first.throttle == () and first.temperature == "normal"
    driver = portrait.driver
    assert driver is not None and driver.loaded == driver.userspace == driver.fabric_manager == first.driver
    assert portrait.fabric.state == "completed" and portrait.fabric.status == "success"
    # The doubles of this test bring neither device files nor interfaces.
    faults = {key for key, seen in portrait.observations.items() if seen.fault}
    assert faults <= {"device-nodes", "network"}


@pytest.mark.parametrize(
    ("fault", "bus", "driver", "text"),
    [
        (("missing", 3), 7, 7, ""),
        (("counts", None), 8, 7, ""),
        (("nvml_mismatch", None), 8, 0, "Driver/library version mismatch"),
        (("no_driver", None), 8, 0, "couldn't communicate with the NVIDIA driver"),
    ],
)
def test_faults_are_seen_for_what_they_are(look: Look, fault: Any, bus: int, driver: int, text: str) -> None:
    portrait = look(fault)
    assert (len(portrait.pci.gpus), len(portrait.usable)) == (bus, driver)
    assert text in portrait.fault(GPUS) and bool(text) == bool(portrait.fault(GPUS))


def test_a_lost_gpu_keeps_its_place_and_says_why(look: Look) -> None:
    portrait = look(("xid", 3, "79"))
    assert [gpu.index for gpu in portrait.gpus if gpu.fault] == [3] and len(portrait.usable) == 7
    lost = portrait.gpus[3]
    assert lost.pci_address == portrait.pci.gpus[3].address
    assert [xid.code for xid in lost.xids or ()] == [79]
    assert "lost" in lost.fault and not portrait.fault(GPUS)
    assert all(gpu.uuid and gpu.model for gpu in portrait.usable)


def test_an_xid_that_costs_no_gpu(look: Look) -> None:
    portrait = look(("xid", 1, "48"))
    assert [[xid.code for xid in gpu.xids or ()] for gpu in portrait.gpus] == [[], [48], *([[]] * 6)]
    assert len(portrait.usable) == 8


def test_memory_errors_and_rows(look: Look) -> None:
    portrait = look(("ecc", 2), ("row_remap", 4))
    ecc, remap = portrait.gpus[2].ecc, portrait.gpus[4].row_remap
    assert ecc is not None and (ecc.uncorrected or 0) + (ecc.volatile_uncorrected or 0) > 0
    assert remap is not None and remap.pending and not remap.failure


def test_t05_versions_come_from_the_places_that_know_them(look: Look) -> None:
    portrait = look(("versions", None, "library=580.142.09"))
    driver = portrait.driver
    assert driver is not None and (driver.loaded, driver.userspace) == ("580.126.20", "580.142.09")
    portrait = look(("versions", None, "fabric_manager=580.95.05"))
    assert portrait.driver is not None and portrait.driver.fabric_manager == "580.95.05"
    assert not portrait.fault(FABRIC_MANAGER) and not portrait.fault(MODULE)


def test_c1_t11_a_fabric_in_progress_shows(look: Look) -> None:
    portrait = look(("fabric", None))
    assert portrait.fabric.state == "in-progress" and len(portrait.usable) == 8


def test_a_driver_that_hangs_is_given_up(look: Look) -> None:
    assert "the driver hangs" in look(("hang", None), timeout_s=0.5).fault(GPUS)


def test_a_card_that_is_another_one_than_it_says(look: Look) -> None:
    portrait = look(("wrong_pci", 5, "0x2331"))
    assert portrait.pci.gpus[5].device == "2331"
