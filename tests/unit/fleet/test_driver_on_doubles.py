"""The same GPUs through all hands: the lab's doubles as files of sysfs, what a node reads there, and the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.myriad.gpu.plugins.module_utils import driver_facts

from myriad.fleet.catalog import CATALOG
from myriad.fleet.driver import DriverPlan, plan
from myriad.fleet.hardware import ARCHITECTURES
from myriad.lab.double.document import SYS_DIR
from myriad.lab.double.trees import pci_files
from myriad.lab.gpus import gpu_document

MODELS = [model.name for model in CATALOG.values() if model.vendor == "nvidia"]
PACKAGES = {
    "nvidia-driver-cuda": "580.126.20-1",
    "nvidia-kernel-dkms": "580.126.20-1",
    "nvidia-kernel-open-dkms": "580.126.20-1",
    "nvidia-persistenced": "580.126.20-1",
    "nvidia-fabricmanager": "580.126.20-1",
    "nvlsm": "2025.06.11-1",
}
WANT: dict[str, Any] = {
    "channel": "vendor",
    "existing": "replace",
    "versions": {"driver": "580.126.20"},
    "packages": PACKAGES,
}


def _bus(document: dict[str, Any], root: Path) -> list[dict[str, Any]]:
    for path, content in pci_files(document).items():
        target = root / Path(path).relative_to(SYS_DIR)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
    devices: list[dict[str, Any]] = driver_facts.pci_devices(str(root))
    return devices


def _plan(document: dict[str, Any], root: Path) -> DriverPlan:
    kernel = {"release": "6.1.0-57-amd64", "headers": True, "distribution": {"id": "debian", "version": "12"}}
    return plan({"pci": _bus(document, root), "kernel": kernel}, WANT)


@pytest.mark.parametrize("name", MODELS)
def test_a_lab_node_of_every_model_is_planned_like_the_machine_it_shows(name: str, tmp_path: Path) -> None:
    model = CATALOG[name]
    count = max(model.per_board, default=2)
    decided = _plan(gpu_document("gpu1", name, count), tmp_path)
    assert [gpu.model for gpu in decided.gpus] == [name] * count
    architecture = ARCHITECTURES[model.architecture]
    if architecture.open_module:
        assert decided.module == "open"
    else:
        assert decided.module == "proprietary"
    assert decided.mig_capable == model.mig_capable
    # Where the doubles show no NVSwitch of a board that has some (V100 SXM3), that is said.
    shown = any(device["class"] == "0x068000" for device in _bus(gpu_document("gpu1", name, count), tmp_path))
    fifth = model.nvlink is not None and model.nvlink.generation >= 5
    if model.switched and not shown and not fifth:
        assert any("come on a board with NVSwitches" in warning for warning in decided.warnings)
    else:
        assert decided.fabric_manager == bool(model.switched)
    assert decided.action == "install", [refusal.sentence for refusal in decided.refusals]


def test_c3_a_board_of_four_shows_no_switch_and_gets_no_fabric_manager(tmp_path: Path) -> None:
    decided = _plan(gpu_document("gpu1", "H100-SXM5-80GB", 4), tmp_path)
    assert not decided.fabric_manager and "nvidia-fabricmanager" not in decided.packages
    assert not decided.warnings
