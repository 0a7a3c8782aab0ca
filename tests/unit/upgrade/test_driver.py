"""Another driver in the lock: what the plan of an upgrade says of it, host by host."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.myriad.gpu.plugins.action.node_upgrade import _driver_of

from myriad.kube.drain import Gang
from myriad.upgrade.plan import Change, DriverWish, Limits, Look, Plan, Target, changes_of, plan

LOCK = Target({"kubernetes": "1.35.4"}, {"kubelet": ("same", "1.35.4")})
OLD = {"libcuda1": "535.261.03-1", "nvidia-kernel-dkms": "535.261.03-1", "nvidia-persistenced": "535.171.04-1~deb12u1"}
NEW = {
    "libcuda1": "580.126.20-1", "nvidia-kernel-dkms": "580.126.20-1", "nvidia-kernel-open-dkms": "580.126.20-1",
    "nvidia-persistenced": "535.171.04-1~deb12u1",
}  # fmt: skip


def look(
    packages: dict[str, str] | None = None, *, wanted: dict[str, str] | None = None, replaces: bool = True
) -> Look:
    wish = DriverWish("580.126.20", NEW if wanted is None else wanted, replaces)
    return Look({"kubelet": "same"}, OLD if packages is None else packages, wish)


def node(name: str, rack: str = "") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"myriad.dev/rack": rack or f"r-{name}"}},
        "spec": {},
        "status": {"nodeInfo": {"kubeletVersion": "v1.35.4"}, "allocatable": {"nvidia.com/gpu": "8"}},
    }


def planned(looks: dict[str, Look], jobs: list[Gang] | None = None, jobs_are: str = "wait") -> Plan:
    nodes = {name: node(name) for name in looks}
    return plan(looks, nodes, LOCK, jobs or [], Limits(jobs=jobs_are), api_server="1.35.4")  # type: ignore[arg-type]


def test_the_set_moves_as_one() -> None:
    assert changes_of(look(), node("gpu1"), LOCK) == (Change("driver", "535.261.03", "580.126.20"),)


def test_a_host_without_a_driver_and_one_at_the_lock_have_nothing_to_do() -> None:
    at_lock = {name: version for name, version in NEW.items() if name != "nvidia-kernel-dkms"}
    for packages in ({}, {"runc": "1.1.5"}, at_lock):
        assert changes_of(look(packages), node("gpu1"), LOCK) == ()


def test_a_set_that_is_half_moved_is_still_to_be_moved() -> None:
    half = {**OLD, "libcuda1": "580.126.20-1"}
    assert changes_of(look(half), node("gpu1"), LOCK) == (Change("driver", "535.261.03", "580.126.20"),)


def test_a_package_with_a_version_of_its_own_is_named() -> None:
    here = {**NEW, "nvidia-persistenced": "535.129.03-1"}
    found = changes_of(look(here), node("gpu1"), LOCK)
    assert found == (Change("nvidia-persistenced", "535.129.03-1", "535.171.04-1~deb12u1"),)


def test_nodes_are_emptied_for_it_and_one_job_never_spans_two_drivers() -> None:
    looks = {f"gpu{n}": look() for n in range(4)}
    gang = Gang("vision/train", {"gpu0": 1, "gpu1": 1})
    waits = planned(looks, [gang])
    assert set(waits.left) == {"gpu0", "gpu1"} and waits.empties == {"gpu0", "gpu1", "gpu2", "gpu3"}
    assert set(waits.order) == {"gpu2", "gpu3"}
    assert "driver 535.261.03 -> 580.126.20" in waits.text()
    asked = planned(looks, [gang], "checkpoint")
    (wave,) = (wave for wave in asked.waves if "gpu0" in wave)
    assert "gpu1" in wave


def test_where_an_existing_driver_is_adopted_the_plan_says_that_it_stays() -> None:
    found = planned({f"gpu{n}": look(replaces=False) for n in range(3)})
    assert found.order == [] and not found.changes
    (note,) = found.notes
    assert "gpu0" in note and "keep driver 535.261.03, the lock has 580.126.20" in note and "replace" in note
    assert found.text().startswith("nothing to upgrade")


def test_no_set_for_the_distribution_is_no_change() -> None:
    assert changes_of(look(wanted={}), node("gpu1"), LOCK) == ()


DEBIAN = {"distribution": "Debian", "distribution_version": "12.11"}


@pytest.mark.parametrize("channel", ["distribution", "vendor"])
def test_the_wish_is_the_role_s(channel: str) -> None:
    """The same variables and defaults as the role's, so that the plan and the run agree."""
    wish = _driver_of({"gpu_driver_channel": channel, "gpu_driver_existing": "replace", "ansible_facts": DEBIAN})
    assert wish.replaces and wish.version.split(".")[0] in ("535", "580")
    assert all(version for version in wish.packages.values()) and "libcuda1" in wish.packages


def test_the_wish_without_a_word_keeps_what_is_there_and_own_versions_go_first() -> None:
    assert not _driver_of({"ansible_facts": DEBIAN}).replaces
    own = {"gpu_driver_versions": {"driver": "570.1"}, "gpu_driver_packages": {"libcuda1": "570.1-1"}}
    assert _driver_of({**own, "ansible_facts": DEBIAN}) == DriverWish("570.1", {"libcuda1": "570.1-1"}, False)
    assert _driver_of({}) == DriverWish()
