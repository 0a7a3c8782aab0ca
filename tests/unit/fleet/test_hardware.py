"""The catalog against what drivers say they serve, and what a PCI bus says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from myriad.fleet.catalog import CATALOG, GpuModel
from myriad.fleet.driver.choice import driver_fault
from myriad.fleet.driver.versions import branch
from myriad.fleet.hardware import (
    ARCHITECTURES,
    NVSWITCHES,
    OPEN_FIRST_BRANCH,
    by_pci,
    by_product,
    hex_id,
    read_bus,
    unknown_gpu,
)

RECORDED: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[2] / "fixtures/driver/supported-ids.yml").read_text(encoding="utf-8")
)
NVIDIA = [model for model in CATALOG.values() if model.vendor == "nvidia"]


@pytest.mark.parametrize("record", RECORDED, ids=lambda record: f"{record['driver']}-{record['module']}")
def test_the_catalog_says_of_every_model_what_the_release_says(record: dict[str, Any]) -> None:
    """Recorded from packages: a release serves a model exactly when the catalog says so."""
    listed = set(record["ids"].split())
    driver = record["driver"]
    different = []
    for model in NVIDIA:
        expected = any(one.device in listed for one in model.pci)
        served = driver_fault(model, driver) is None
        if record["module"] == "open":
            served = served and ARCHITECTURES[model.architecture].open_module and branch(driver) >= OPEN_FIRST_BRANCH
        if expected != served:
            different.append((model.name, "listed" if expected else "not listed"))
    assert different == []


@pytest.mark.parametrize("model", NVIDIA, ids=lambda model: model.name)
def test_every_nvidia_model_has_what_a_driver_plan_needs(model: GpuModel) -> None:
    assert model.architecture in ARCHITECTURES
    assert model.pci, "an id from the PCI ID list"
    assert model.products
    assert all(by_pci("0x10de", f"0x{one.device}", one.subsystem) is model for one in model.pci)
    assert all(by_product(product) is model for product in model.products)
    assert bool(model.mig) == bool(model.mig_driver)


@pytest.mark.parametrize("model", [model for model in NVIDIA if model.mig], ids=lambda model: model.name)
def test_mig_profiles_fit_into_the_card(model: GpuModel) -> None:
    whole = max(profile.slices for profile in model.mig)
    assert whole in (4, 7)
    for profile in model.mig:
        assert profile.slices * profile.count <= whole or profile.name.startswith("1g"), profile
        # A name rounds its memory up to the next GB.
        assert (profile.memory_gib - 1) * profile.count < model.memory_gib, profile
        assert profile.name.startswith(f"{profile.slices}g.{profile.memory_gib}gb")


def test_boards_with_switches_are_boards_that_are_sold() -> None:
    for model in CATALOG.values():
        assert set(model.switched) <= set(model.per_board), model.name
        assert not (model.switched and model.rack_switched)
        if model.switched or model.rack_switched:
            assert model.nvlink is not None and not model.nvlink.bridge


@pytest.mark.parametrize(
    ("subsystem", "name"), [("10de:14a9", "A16"), ("10de:157e", "A2"), ("10de:ffff", None), (None, None)]
)
def test_one_device_id_of_two_products_is_told_apart_by_its_subsystem(subsystem: str | None, name: str | None) -> None:
    found = by_pci("0x10de", "0x25B6", subsystem)
    assert (found.name if found else None) == name


def test_ids_are_read_in_any_spelling() -> None:
    assert hex_id("0x10DE") == hex_id("10de") == "10de"
    assert hex_id(None) == ""
    found = by_product("nvidia h100 80gb hbm3")
    assert found is not None and found.name == "H100-SXM5-80GB"
    assert by_product("NVIDIA H300") is None


def _device(address: str, device: str, klass: str, vendor: str = "0x10de", **more: str) -> dict[str, str]:
    return {"address": address, "vendor": vendor, "device": device, "class": klass, **more}


def test_c3_switches_gpus_audio_and_other_makers_are_told_apart() -> None:
    bus = read_bus(
        [
            _device("0000:07:00.0", "0x22a3", "0x068000"),
            _device("0000:06:00.0", "0x22a8", "0x060400"),  # a PCI-PCI bridge inside the switch is none
            _device("0000:1b:00.0", "0x2330", "0x030200"),
            _device("0000:1b:00.1", "0x22ba", "0x040300"),  # the audio function of a card
            _device("0000:02:00.0", "0x2000", "0x030000", "0x1a03"),  # the service processor's display
            _device("0000:03:00.0", "0x1711", "0x030000", "0x19e5"),  # Huawei's one
            _device("0000:04:00.0", "0x1021", "0x020700", "0x15b3"),  # a network card
            _device("0000:05:00.0", "0x1021", "0x020700", "0x15b3", vpd="Nvidia ConnectX-7 ... SMDL SW_MNG"),
            _device("0000:08:00.0", "0x1af9", "0x068000"),
            _device("0000:09:00.0", "0x0000", "0x068000"),
            _device("0000:0a:00.0", "0xffff", "0xffffff", "0xffff"),
            _device("0000:0b:00.0", "0x74a1", "0x120000", "0x1002"),
        ]
    )
    assert [(device.address, model and model.name) for device, model in bus.gpus] == [
        ("0000:0b:00.0", "MI300X"),
        ("0000:1b:00.0", "H100-SXM5-80GB"),
    ]
    assert [device.address for device in bus.nvswitches] == ["0000:07:00.0", "0000:08:00.0"]
    assert [device.address for device in bus.switch_links] == ["0000:05:00.0"]
    assert [device.address for device in bus.strange_bridges] == ["0000:09:00.0"]
    assert [device.address for device in bus.dead] == ["0000:0a:00.0"]


def test_nvswitch_ids_of_the_pci_id_list_are_known() -> None:
    assert "A100" in NVSWITCHES["1af1"]
    assert "H100" in NVSWITCHES["22a3"]
    assert not set(NVSWITCHES) & {one.device for model in NVIDIA for one in model.pci}


def test_an_unknown_gpu_is_named_with_its_neighbours() -> None:
    bus = read_bus(
        [_device("0000:1b:00.0", "0x2909", "0x030200", subsystem_vendor="0x10de", subsystem_device="0x1999")]
    )
    ((device, model),) = bus.gpus
    assert model is None
    assert unknown_gpu(device) == (
        "10de:2909, subsystem 10de:1999 is a GPU of NVIDIA that the catalog does not know "
        "(near it: 2901 is B200, 2941 is GB200)"
    )
