"""gpu_driver from a vendor's mirror: packages with NVIDIA's names, made by these tests, on a node of their own.

One node for all, in this order: what is refused before anything is there, the installation, and what happens to it.
"""

from __future__ import annotations

import pytest

from .conftest import MADE_KERNEL, MIRROR, Mirror
from .node import STATE, Node

from debian import Deb  # isort: skip
from openpgp import MADE_AT, YEAR_S, Key  # isort: skip
from vendor import DRIVER, NEWER, PLACE, driver_set  # isort: skip

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(600)]

BOTH = [*driver_set(DRIVER, MADE_KERNEL), *driver_set(NEWER, MADE_KERNEL)]


def driver_packages(node: Node) -> dict[str, str]:
    return {name: version for name, version in node.packages().items() if "nvidia" in name or name == "libcuda1"}


def test_a_runfile_is_refused_with_the_reason(node: Node, mirror: Mirror) -> None:
    run = node.role(mirror.inputs(gpu_driver_channel="runfile"))
    assert run.code != 0
    assert "runfile is refused: it writes files that no package database knows" in run.said


def test_skip_costs_one_look_at_the_inputs(node: Node) -> None:
    run = node.role({"gpu_driver_existing": "skip"})
    assert (run.code, run.count("changed")) == (0, 0)
    assert run.count("ok") == 3  # the look before, the inputs, the record after


def test_t06_a_kernel_without_headers_stops_before_any_package(node: Node, mirror: Mirror) -> None:
    mirror.serve(BOTH)
    before = node.packages()
    run = node.role(mirror.inputs(gpu_driver_kernel="6.1.0-2-nowhere"))
    assert run.code != 0
    assert "kernel 6.1.0-2-nowhere: its headers are not installed" in run.said
    assert "linux-headers-6.1.0-2-nowhere is missing" in run.said
    assert node.packages() == before
    assert run.count("changed") == 0


def test_t09_b7_an_expired_key_is_named_with_its_file_and_what_to_do(node: Node, mirror: Mirror) -> None:
    old = Key("NVIDIA CUDA, long ago (made by a test)", made_at=MADE_AT - 3 * YEAR_S, valid_s=YEAR_S)
    mirror.serve(BOTH, old)
    run = node.role(mirror.inputs(old))
    assert run.code != 0
    assert f"repository {MIRROR}: the signing key {old.key_id} in " in run.said
    assert "vendor.asc has expired" in run.said
    assert "Get the repository's present key from its owner" in run.said
    assert driver_packages(node) == {}


def test_t09_b7_a_rotated_key_is_named(node: Node, mirror: Mirror) -> None:
    other = Key("NVIDIA CUDA, the next one (made by a test)")
    mirror.serve(BOTH, other)
    run = node.role(mirror.inputs())
    assert run.code != 0
    assert f"the signing key {other.key_id} in " in run.said
    assert "signed with another key now" in run.said
    assert driver_packages(node) == {}


def test_a_changed_keyring_is_refused(node: Node, mirror: Mirror) -> None:
    run = node.role(mirror.inputs(gpu_driver_keyring_sha256="0" * 64))
    assert run.code != 0
    assert "somebody changed the keyring" in run.said


def test_t08_h3_a_vanished_version_is_refused_and_nothing_newer_installed(node: Node, mirror: Mirror) -> None:
    mirror.serve(driver_set(NEWER, MADE_KERNEL))
    run = node.role(mirror.inputs())
    assert run.code != 0
    assert f"nvidia-driver-cuda {DRIVER}-1" in run.said
    assert f"the repositories have {NEWER}-1" in run.said
    assert driver_packages(node) == {}


def test_c4_check_foretells_and_the_run_installs_the_set_with_the_fabric_manager(node: Node, mirror: Mirror) -> None:
    mirror.serve(BOTH)
    inputs = mirror.inputs()
    check = node.role(inputs, "--check", "--diff")
    assert check.code == 0, check.output[-3000:]
    assert driver_packages(node) == {}
    assert "after: package nvidia-fabricmanager" in check.said
    assert f"+{DRIVER}-1" in check.said

    run = node.role(inputs)
    assert run.code == 0, run.output[-3000:]
    assert run.count("changed") == check.count("changed")
    found = driver_packages(node)
    assert set(found.values()) == {f"{DRIVER}-1"}
    assert {"nvidia-kernel-open-dkms", "nvidia-fabricmanager", "nvidia-persistenced", "nvidia-driver-cuda"} <= set(
        found
    )
    assert set(node.sh("apt-mark showhold").split()) >= set(found)
    units = node.sh("systemctl is-enabled nvidia-fabricmanager nvidia-persistenced")
    assert units.split() == ["enabled", "enabled"]


def test_t16_the_second_run_changes_nothing_and_asks_no_repository(node: Node, mirror: Mirror) -> None:
    node.sh("systemctl stop made-mirror")
    try:
        run = node.role(mirror.inputs())
    finally:
        node.sh(
            f"systemd-run --unit=made-mirror --working-directory={PLACE}/mirror "
            "python3 -m http.server 8099 --bind 127.0.0.1"
        )
    assert run.code == 0, run.output[-3000:]
    assert run.count("changed") == 0


def test_t05_b1_a_library_that_moved_is_found_with_both_versions_and_comes_back(node: Node, mirror: Mirror) -> None:
    node.sh(f"dpkg --force-all -i {PLACE}/mirror/libnvidia-ml1_{NEWER}-1_amd64.deb")
    look = node.task("node_state", {"state": "check"})
    assert f'"expected": "{DRIVER}-1", "found": "{NEWER}-1", "item": "libnvidia-ml1", "kind": "package"' in look.said
    run = node.role(mirror.inputs())
    assert run.code == 0, run.output[-3000:]
    assert driver_packages(node)["libnvidia-ml1"] == f"{DRIVER}-1"
    assert "libnvidia-ml1" in node.sh("apt-mark showhold").split()


def test_a_hold_that_is_gone_is_drift_and_comes_back(node: Node, mirror: Mirror) -> None:
    node.sh("apt-mark unhold nvidia-driver-cuda")
    look = node.task("node_state", {"state": "check"})
    assert '"expected": "held", "found": "not held", "item": "nvidia-driver-cuda", "kind": "hold"' in look.said
    assert node.role(mirror.inputs()).code == 0
    assert "nvidia-driver-cuda" in node.sh("apt-mark showhold").split()


def test_the_locked_module_that_is_not_the_loaded_one_asks_for_a_reboot(node: Node, mirror: Mirror) -> None:
    """The gate reads the same two places: <sysfs>/module/nvidia/version and the version of the library."""
    node.put({f"{PLACE}/sys/module/nvidia/version": b"570.172.08\n"})
    try:
        run = node.role(mirror.inputs(), "-v")
    finally:
        node.sh(f"rm -r {PLACE}/sys/module")
    assert run.code == 0, run.output[-3000:]
    assert "the kernel runs module 570.172.08, 580.126.20 is installed" in run.said
    assert "myriad_reboot_required" in run.said


def test_e3_a_killed_dpkg_is_finished_by_the_next_run(node: Node, mirror: Mirror) -> None:
    """Half configured, as a SIGKILL between unpacking and configuring leaves it."""
    node.sh(
        f"dpkg --force-all --unpack {PLACE}/mirror/nvidia-modprobe_{DRIVER}-1_amd64.deb; "
        "dpkg-query -W -f '${db:Status-Status}' nvidia-modprobe | grep -q unpacked"
    )
    run = node.role(mirror.inputs())
    assert run.code == 0, run.output[-3000:]
    assert run.count("changed") == 1
    assert node.sh("dpkg --audit").strip() == ""


def test_t10_c3_without_an_nvswitch_the_fabric_manager_leaves(node: Node, mirror: Mirror) -> None:
    run = node.role(mirror.inputs(gpu_driver_sysfs=f"{PLACE}/sys-pcie"))
    assert run.code == 0, run.output[-3000:]
    assert "nvidia-fabricmanager" not in driver_packages(node)
    again = node.role(mirror.inputs(gpu_driver_sysfs=f"{PLACE}/sys-pcie"))
    assert (again.code, again.count("changed")) == (0, 0)


def test_t10_c2_a_fabric_manager_of_another_version_is_refused(node: Node, mirror: Mirror) -> None:
    packages = {
        **{deb.name: deb.version for deb in driver_set(DRIVER, MADE_KERNEL)},
        "nvidia-fabricmanager": f"{NEWER}-1",
    }
    run = node.role(mirror.inputs(gpu_driver_packages=packages))
    assert run.code != 0
    assert "nvidia-fabricmanager" in run.said and NEWER in run.said
    assert run.count("changed") == 0


def test_b4_a_transaction_that_would_remove_something_else_is_refused(node: Node, mirror: Mirror) -> None:
    """A package of the site that does not get along with the next version of a library."""
    stranger = Deb("site-monitor", "1.0", fields={"Conflicts": f"libnvidia-ml1 (>= {NEWER})"})
    node.put({f"{PLACE}/site-monitor.deb": stranger.data()})
    node.sh(f"dpkg -i {PLACE}/site-monitor.deb")
    newer = {deb.name: deb.version for deb in driver_set(NEWER, MADE_KERNEL)}
    inputs = mirror.inputs(
        gpu_driver_existing="replace", gpu_driver_packages=newer, gpu_driver_versions={"driver": NEWER}
    )
    before = node.packages()
    run = node.role(inputs)
    assert run.code != 0
    assert "would remove site-monitor" in run.said
    assert node.packages() == before
    node.sh("dpkg --purge site-monitor")


def test_a_reset_removes_what_was_brought_and_nothing_else(node: Node) -> None:
    before = node.packages()
    brought = {entry["name"] for kind in ("packages", "brought") for entry in node.record()[kind]}
    assert brought == set(driver_packages(node))
    run = node.playbook("reset")
    assert run.code == 0, run.output[-3000:]
    after = node.packages()
    assert set(before) - set(after) == brought
    assert not set(after) - set(before)
    assert node.sh("apt-mark showhold").strip() == ""
    assert node.sh(f"ls {STATE} /etc/apt/*/*myriad* 2>/dev/null", check=False).strip() == ""
