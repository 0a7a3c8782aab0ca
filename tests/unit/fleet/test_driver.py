"""Driver plans of whole hosts: every fixture with everything that is printed, and what holds for all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from myriad.cli.driver import lines
from myriad.fleet.driver import DriverPlan, plan
from myriad.fleet.driver.rules import exact, is_prebuilt, kind_of
from myriad.fleet.driver.versions import upstream

HOSTS = sorted((Path(__file__).parents[2] / "fixtures/driver/hosts").glob("*.yml"))
ACTIONS = {"none", "skip", "keep", "adopt", "install", "replace", "refused"}


def _read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def _plan(name: str) -> tuple[DriverPlan, dict[str, Any]]:
    document = _read(HOSTS[0].parent / f"{name}.yml")
    return plan(document["facts"], document["want"]), document


@pytest.mark.parametrize("path", HOSTS, ids=lambda path: path.stem)
def test_a_recorded_host_is_planned_as_written(path: Path) -> None:
    document = _read(path)
    decided = plan(document["facts"], document["want"])
    assert "\n".join(lines(decided, document["want"])) + "\n" == document["printed"]


@pytest.mark.parametrize("path", HOSTS, ids=lambda path: path.stem)
def test_what_holds_for_every_plan(path: Path) -> None:
    document = _read(path)
    facts, want = document["facts"], document["want"]
    decided = plan(facts, want)
    told = decided.to_dict()
    assert document["provenance"].startswith("composed; "), "none of these hosts was recorded whole"
    assert decided.action in ACTIONS
    assert told["refused"] == (decided.action == "refused") == bool(decided.refusals)
    if decided.refusals:
        assert not decided.packages and not decided.remove and not decided.hold, "a refused plan changes nothing"
    if decided.action in ("install", "replace"):
        assert set(decided.packages.items()) <= set(want["packages"].items()), "never another version than the locked"
    driver = decided.driver
    if decided.packages:
        assert set(exact(decided.packages).values()) <= {driver}
        kinds = {kind.name for name in decided.packages if (kind := kind_of(name)) is not None}
        assert ("fabric-manager" in kinds) == decided.fabric_manager
        assert f"module-{decided.module}" in kinds
        assert not kinds & ({"module-open", "module-proprietary"} - {f"module-{decided.module}"})
        assert set(decided.packages) <= set(decided.hold)
        assert any(name.startswith("linux-image-") for name in decided.hold), "the kernel stays too"
        assert not set(decided.remove) & set(decided.packages)
    for refusal in decided.refusals:
        assert refusal.what and refusal.where and refusal.todo
        assert refusal.sentence == f"{refusal.where}: {refusal.what}; {refusal.todo}"


def test_every_action_and_every_rule_has_a_host() -> None:
    plans = [plan(document["facts"], document["want"]) for document in map(_read, HOSTS)]
    assert {decided.action for decided in plans} == ACTIONS
    assert {refusal.rule for decided in plans for refusal in decided.refusals} >= {
        "adopt", "branch", "channel", "dead-device", "distribution", "downgrade", "fabric-manager", "headers", "kernel",
        "kernel-change", "lock", "mixed", "mixed-host", "prebuilt", "module", "removal", "runfile", "secure-boot",
        "simulation", "strange-module", "unknown-gpu", "vanished",
    }  # fmt: skip
    assert len(HOSTS) >= 70


def test_t06_without_headers_nothing_is_touched() -> None:
    decided, _ = _plan("t06-headers-missing")
    (refusal,) = decided.refusals
    assert refusal.rule == "headers"
    assert "linux-headers-6.1.0-57-amd64" in refusal.what and "6.1.192-3" in refusal.todo and "main" in refusal.todo


def test_t08_a_vanished_version_names_what_there_is_and_never_takes_it() -> None:
    decided, _ = _plan("t08-version-vanished")
    assert [refusal.rule for refusal in decided.refusals] == ["vanished", "vanished"]
    assert "535.261.03-1" in decided.refusals[1].what
    assert decided.packages == {}


def test_t10_the_fabric_manager_has_the_drivers_version_or_nothing_happens() -> None:
    decided, _ = _plan("t10-fabric-manager-of-another-version")
    (refusal,) = decided.refusals
    assert "580.142-1" in refusal.what and "580.126.20" in refusal.what


def test_t05_both_versions_are_told() -> None:
    decided, _ = _plan("t05-adopt-userspace-moved")
    assert "535.261.03: " in decided.refusals[0].what and "535.309.01: " in decided.refusals[0].what
    back, _ = _plan("t05-replace-userspace-moved")
    assert back.action == "replace" and back.reboot


def test_facts_that_were_not_asked_for_conclude_nothing() -> None:
    """The first look at a host asks neither for versions nor for a simulation."""
    document = _read(HOSTS[0].parent / "t08-version-vanished.yml")
    facts = {key: value for key, value in document["facts"].items() if key not in ("candidates", "simulation")}
    assert plan(facts, document["want"]).action == "install"
    bare = {"pci": facts["pci"], "kernel": facts["kernel"]}
    assert plan(bare, document["want"]).action == "install"


def test_asked_and_not_asked_of_the_repositories_are_told_apart() -> None:
    document = _read(HOSTS[0].parent / "t06-headers-missing.yml")
    not_asked = plan({**document["facts"], "candidates": None}, document["want"])
    assert "no repository of this host offers" not in not_asked.refusals[0].todo
    nothing = plan({**document["facts"], "candidates": {}}, document["want"])
    assert {refusal.rule for refusal in nothing.refusals} == {"headers", "vanished"}
    assert "no repository of this host offers" in nothing.refusals[0].todo


def test_b8_a_secure_boot_that_cannot_be_read_is_said() -> None:
    document = _read(HOSTS[0].parent / "c4-h100x8-nvswitch.yml")
    decided = plan({**document["facts"], "secure_boot": None}, document["want"])
    assert decided.action == "install"
    assert any(warning.startswith("Secure Boot: whether it is on could not be read") for warning in decided.warnings)
    unloaded = plan({**document["facts"], "secure_boot": None}, {**document["want"], "load_modules": False})
    assert not any("Secure Boot" in warning for warning in unloaded.warnings)


@pytest.mark.parametrize("existing", ["adopt", "replace"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"built": {"signer": ""}}, "on the disk is not signed"),
        ({"built": {"signer": "DKMS module signing key"}, "mok_enrolled": False}, "is not enrolled"),
        ({"built": {"signer": "DKMS module signing key"}, "mok_enrolled": True}, ""),
        ({"built": {"signer": "the site's own key"}, "mok_enrolled": None}, ""),
        ({"built": {"signer": ""}, "loaded": True}, ""),
        ({"built": {"signer": ""}, "secure_boot": False}, ""),
    ],
)
def test_b8_a_module_that_is_there_and_not_let_in_is_refused(existing: str, change: dict[str, Any], words: str) -> None:
    document = _read(HOSTS[0].parent / "b6-adopt-the-locked-set.yml")
    driver = document["want"]["versions"]["driver"]
    built = {**document["facts"]["module"]["built"], **change["built"]}
    facts = {
        **document["facts"],
        "secure_boot": change.get("secure_boot", True),
        "mok_enrolled": change.get("mok_enrolled"),
        "module": {"loaded": driver if change.get("loaded") else None, "built": built},
    }
    decided = plan(facts, {**document["want"], "existing": existing})
    if not words:
        assert not decided.refused
        return
    (refusal,) = decided.refusals
    assert refusal.rule == "secure-boot" and words in refusal.what and "Key was rejected" in refusal.what


def test_what_is_wrong_with_installed_packages_is_not_put_right_in_the_lock() -> None:
    document = _read(HOSTS[0].parent / "b6-adopt-another-version.yml")
    installed = dict.fromkeys(document["facts"]["installed"], "470.256.02-1")
    decided = plan({**document["facts"], "installed": installed}, document["want"])
    branches = [refusal for refusal in decided.refusals if refusal.rule in ("branch", "mixed")]
    assert branches and all("gpu_driver_existing to replace" in refusal.todo for refusal in branches)


@pytest.mark.parametrize("version", ["latest", "580", "580.x"])
def test_a_version_that_is_none_is_said_once(version: str) -> None:
    document = _read(HOSTS[0].parent / "c4-h100x8-nvswitch.yml")
    decided = plan(document["facts"], {**document["want"], "versions": {"driver": version}})
    adopting = _read(HOSTS[0].parent / "b6-adopt-another-version.yml")
    assert plan(adopting["facts"], {**adopting["want"], "versions": {"driver": version}}).refused
    assert [refusal.what for refusal in decided.refusals if refusal.where == "gpu_driver_versions.driver"] == [
        f'"{version}" is no exact driver version'
    ]


def test_a_release_that_is_none_is_no_old_kernel() -> None:
    document = _read(HOSTS[0].parent / "c4-h100x8-nvswitch.yml")
    kernel = {**document["facts"]["kernel"], "release": "custom"}
    (refusal,) = plan({**document["facts"], "kernel": kernel}, document["want"]).refusals
    assert refusal.rule == "kernel" and "begins with no version" in refusal.what


@pytest.mark.parametrize(
    ("distribution", "words"),
    [
        (None, "distribution: the facts name none"),
        ({"id": "debian", "version": ""}, "debian: it names no release (testing and unstable do not)"),
        ({"id": "rocky", "version": "9.5"}, "rocky 9.5: its driver packages are not known; use one of debian 12"),
    ],
)
def test_a_distribution_without_a_set_says_why(distribution: Any, words: str) -> None:
    document = _read(HOSTS[0].parent / "c4-h100x8-nvswitch.yml")
    kernel = {**document["facts"]["kernel"], "distribution": distribution}
    decided = plan({**document["facts"], "kernel": kernel}, document["want"])
    assert [refusal.rule for refusal in decided.refusals] == ["distribution"]
    assert words in decided.refusals[0].sentence


def test_the_plan_is_the_same_for_any_order_of_devices() -> None:
    document = _read(HOSTS[0].parent / "c4-h100x8-nvswitch.yml")
    facts = {**document["facts"], "pci": list(reversed(document["facts"]["pci"]))}
    assert plan(facts, document["want"]) == plan(document["facts"], document["want"])


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("channel", "distro", '"distro" is no channel; did you mean "distribution"?'),
        ("existing", "adapt", '"adapt" is no choice; did you mean "adopt"?'),
        ("module", "Open-source", '"Open-source" is no module'),
    ],
)
def test_a_misspelled_wish_is_refused(key: str, value: str, sentence: str) -> None:
    document = _read(HOSTS[0].parent / "c4-h100x8-nvswitch.yml")
    decided = plan(document["facts"], {**document["want"], key: value})
    assert decided.action == "refused"
    assert any(sentence in refusal.what for refusal in decided.refusals), decided.refusals


def test_the_fabric_manager_can_be_decided_by_hand() -> None:
    document = _read(HOSTS[0].parent / "c4-a100x8-switches-hidden.yml")
    decided = plan(document["facts"], {**document["want"], "fabric_manager": True})
    assert decided.fabric_manager and "nvidia-fabricmanager" in decided.packages
    assert decided.fabric_reason == "gpu_driver_fabric_manager says that it belongs here"


def test_dependencies_of_the_driver_are_held_too() -> None:
    document = _read(HOSTS[0].parent / "c4-h100x8-nvswitch.yml")
    along = {"libnvidia-cfg1": "580.126.20-1", "dkms": "3.0.10-8+deb12u1"}
    simulation: dict[str, Any] = {
        "install": {**document["want"]["packages"], **along},
        "remove": [],
        "upgrade": {},
        "error": None,
    }
    decided = plan({**document["facts"], "simulation": simulation}, document["want"])
    assert decided.action == "install"
    assert "libnvidia-cfg1" in decided.hold and "dkms" not in decided.hold


def test_a_signed_module_may_come_although_its_name_begins_like_a_kernel() -> None:
    document = _read(HOSTS[0].parent / "b8-secure-boot-signed-modules.yml")
    simulation: dict[str, Any] = {
        "install": dict(document["want"]["packages"]),
        "remove": [],
        "upgrade": {},
        "error": None,
    }
    decided = plan({**document["facts"], "simulation": simulation}, document["want"])
    assert decided.action == "install"
    assert [name for name in decided.packages if is_prebuilt(name)]
    assert upstream(decided.packages["nvidia-utils-580-server"]) == decided.driver
