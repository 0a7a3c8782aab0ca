"""The published tables behind image verdicts: complete, in order, with a source, and equal to the stack's own rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from myriad.fleet.catalog import CATALOG
from myriad.images.compat_facts import at_least, dotted, facts, major, minor
from myriad.stack.lock import load_lock, load_rules

FACTS = facts()
MACHINES = Path(__file__).parents[2] / "fixtures/machines"
RECORDED = sorted(MACHINES.glob("recorded-*/nvidia-smi-q-x.xml"))


def test_every_table_names_a_source() -> None:
    assert {row.source for row in FACTS.architectures} <= set(FACTS.sources)
    assert all("http" in source for source in FACTS.sources.values())


def test_toolkits_and_their_drivers_rise_together() -> None:
    releases = [dotted(release) for release, _ in FACTS.releases]
    assert releases == sorted(set(releases))
    drivers = [dotted(driver) for _, driver in FACTS.releases if driver]
    assert drivers == sorted(drivers)


@pytest.mark.parametrize(
    ("cuda", "driver"),
    [
        ("11.0.3", "450.51.06"), ("11.1.1", "455.32"), ("11.2.2", "460.32.03"), ("11.3.1", "465.19.01"),
        ("11.4.3", "470.82.01"), ("11.5.2", "495.29.05"), ("11.6.0", "510.39.01"), ("11.6.2", "510.47.03"),
        ("11.7", "515.43.04"), ("11.7.1", "515.48.07"), ("11.8", "520.61.05"), ("12.0", "525.60.13"),
        ("12.0.1", "525.85.12"), ("12.1.1", "530.30.02"), ("12.2", "535.54.03"), ("12.2.1", "535.86.09"),
        ("12.2.2", "535.104.05"), ("12.3", "545.23.06"), ("12.3.1", "545.23.08"), ("12.4", "550.54.14"),
        ("12.4.1", "550.54.15"), ("12.5", "555.42.02"), ("12.5.1", "555.42.06"), ("12.6", "560.28.03"),
        ("12.6.2", "560.35.03"), ("12.6.3", "560.35.05"), ("12.8", "570.26"), ("12.8.1", "570.124.06"),
        ("12.9", "575.51.03"), ("12.9.1", "575.57.08"), ("13.0", "580.65.06"), ("13.0.1", "580.82.07"),
        ("13.0.2", "580.95.05"), ("13.1", "590.44.01"), ("13.1.1", "590.48.01"), ("13.2", "595.45.04"),
        ("13.2.1", "595.58.03"), ("13.2.2", "595.71.05"), ("13.3", "610.43.02"), ("13.3.1", "610.43.02"),
        # A release between two rows asks for the next row's driver, one behind all rows for nothing that is known.
        ("11.4.0", "470.82.01"), ("12.6.9", "570.26"), ("13.4.1", None), ("13.9", None),
    ],
)  # fmt: skip
def test_the_driver_of_each_toolkit(cuda: str, driver: str | None) -> None:
    assert FACTS.native_driver(cuda) == driver


@pytest.mark.parametrize(
    ("driver", "level"),
    [("535.309.01", "12.2"), ("565.57.01", "12.7"), ("580.65.06", "13.0"), ("580.65.05", "12.9"), ("440.33.01", None)],
)
def test_the_level_that_a_driver_reports(driver: str, level: str | None) -> None:
    assert FACTS.level_of(driver) == level


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_recorded_machines_report_the_level_that_the_table_gives(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    driver, level = (re.search(f"<{key}>([^<]+)<", text) for key in ("driver_version", "cuda_version"))
    assert driver is not None and level is not None
    assert FACTS.level_of(driver[1]) == level[1]


def test_every_wheel_has_its_code_and_every_build_a_wheel() -> None:
    for release in FACTS.torch:
        for cuda in release.cuda:
            assert FACTS.build(release.torch, cuda) is not None, (release.torch, cuda)
            assert cuda in FACTS.minors
    for build in FACTS.builds:
        ends = [FACTS.torch_release(torch) for torch in build.torch]
        assert all(row is not None and build.cuda in row.cuda for row in ends), build


def test_wheels_are_compiled_only_for_what_their_toolkit_compiles() -> None:
    for build in FACTS.builds:
        assert {arch.removesuffix("+PTX") for arch in build.archs} <= set(FACTS.compiled_by(build.cuda)), build


def test_every_cuda_card_of_the_catalog_is_of_one_kind_and_known_to_a_toolkit() -> None:
    products = FACTS.products
    listed = [*products.data_center, *products.workstation, *products.consumer]
    cards = [model for model in CATALOG.values() if model.compute_capability]
    assert sorted(listed) == sorted(model.name for model in cards)
    assert all(FACTS.architecture(str(model.compute_capability)) for model in cards)


def test_forward_branches_are_older_than_the_toolkits_own() -> None:
    for row in FACTS.forward:
        for cuda in row.cuda:
            own = FACTS.native_driver(cuda)
            assert own is not None and max(row.branches) < major(own), cuda


def test_the_stacks_own_rules_say_the_same() -> None:
    """stack/compat.yml checks the lock; a figure that changes in one place must change in the other."""
    rules = {rule.id: rule for rule in load_rules()}
    for row in rules["driver-for-cuda"].rows:
        cuda = row.when.split(",")[0].lstrip(">=")
        floor, own = FACTS.family_floor(cuda), FACTS.native_driver(cuda)
        assert row.allow == [f">={floor}"]
        assert not row.tested or own is None or at_least(own, row.tested[0].lstrip(">="))
    for row in rules["cuda-for-pytorch"].rows:
        release = FACTS.torch_release(row.when.split(",")[0].lstrip(">="))
        assert release is not None
        assert [minor(allowed.split(",")[0].lstrip(">=")) for allowed in row.allow] == release.cuda


def test_the_locks_own_torch_and_cuda_are_a_wheel() -> None:
    lock = load_lock()
    torch, cuda = lock.component("pytorch").version, lock.component("cuda").version
    assert FACTS.build(torch, cuda) is not None
    assert any(release == cuda for release, _ in FACTS.releases)


@pytest.mark.parametrize("text", ["", "12.x", "v12.8", "12..8", "latest"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="is no version"):
        dotted(text)


def test_versions_are_compared_in_full() -> None:
    assert at_least("580.65.06", "580.65.6") and at_least("12.10", "12.9") and at_least("13.0", "13.0.0")
    assert not at_least("580.65.05", "580.65.06") and not at_least("570.26", "570.124.06")
