"""The real thing: Debian's NVIDIA packages at the locked versions, the module built by dkms for a real Debian kernel.

The node gets a kernel and its headers as a machine has them; GPUs are four L40S on a PCI bus made of files. No GPU is
needed to build and prove the module, and none is there to load it on. Most of the time is the compiler's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from myriad.stack.lock import load_lock

from .node import Node, driver_node

from debian import Deb  # isort: skip
from vendor import KERNEL, PCIE_L40S, PLACE, pci  # isort: skip

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.network, pytest.mark.timeout(2400)]

LOCKED = next(
    found for found in load_lock().component("nvidia-driver").package_sets
    if (found.channel, found.distribution) == ("distribution", "debian12")
)  # fmt: skip
INPUTS: dict[str, Any] = {
    "gpu_driver_channel": "distribution",
    "gpu_driver_kernel": KERNEL,
    "gpu_driver_load_modules": False,
    "gpu_driver_sysfs": f"{PLACE}/sys",
    "gpu_driver_procfs": f"{PLACE}/proc",
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A machine that was installed with a Debian kernel, its headers, and nothing of NVIDIA."""
    with driver_node(tmp_path_factory.mktemp("node"), "debian") as node:
        node.put(pci(PCIE_L40S, f"{PLACE}/sys"))
        node.put({f"{PLACE}/proc/cmdline": b"quiet\n"})
        # Without an initramfs, which nothing boots from here, and without waiting for the disk after every file.
        node.put({"/etc/dpkg/dpkg.cfg.d/unsafe-io": b"force-unsafe-io\n"})
        node.sh(
            "apt-get update -qq && INITRD=No DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "
            f"--no-install-recommends linux-image-{KERNEL} linux-headers-{KERNEL}"
        )
        yield node


@pytest.fixture(scope="module")
def before(machine: Node) -> dict[str, str]:
    """Packages of the machine before the role came."""
    return machine.packages()


def test_h3_the_locked_set_is_installed_and_its_module_built_for_the_kernel(
    machine: Node, before: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    run = machine.role(INPUTS)
    seconds = time.monotonic() - started
    assert run.code == 0, run.output[-6000:]
    modinfo = machine.sh(f"modinfo -k {KERNEL} nvidia-current")
    shown = [line for line in modinfo.splitlines() if line.startswith(("filename", "version", "vermagic", "signer"))]
    with capsys.disabled():
        print(f"\ngpu_driver installs {len(LOCKED.packages)} locked packages and builds the module: {seconds:.0f} s")
        print("\n".join(f"  {line}" for line in shown))
    found = machine.packages()
    assert {name: found.get(name) for name in LOCKED.packages} == LOCKED.packages
    assert f"version:        {LOCKED.driver}" in modinfo
    assert f"vermagic:       {KERNEL} " in modinfo
    assert set(LOCKED.packages) <= set(machine.sh("apt-mark showhold").split())
    # What was there is there as it was: no kernel moved, nothing was removed.
    assert {name: found.get(name) for name in before} == before
    assert "couldn't communicate with the NVIDIA driver" in machine.sh("nvidia-smi", check=False)


def test_t16_the_second_run_changes_nothing(machine: Node, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    run = machine.role(INPUTS)
    with capsys.disabled():
        print(f"\nsecond run: changed={run.count('changed')} in {time.monotonic() - started:.0f} s ", end="")
    assert run.code == 0, run.output[-3000:]
    assert run.count("changed") == 0


def test_t05_b1_userspace_upgraded_behind_our_back_is_found_and_comes_back(machine: Node, tmp_path: Path) -> None:
    locked = LOCKED.packages["libnvidia-ml1"]
    bumped = Deb("libnvidia-ml1", "535.999.01-1", fields={"Provides": "libnvidia-ml.so.1 (= 535.999.01)"})
    machine.put({f"{PLACE}/libnvidia-ml1.deb": bumped.data()})
    machine.sh(f"dpkg --force-all -i {PLACE}/libnvidia-ml1.deb")
    look = machine.task("node_state", {"state": "check"})
    assert f'"expected": "{locked}", "found": "535.999.01-1", "item": "libnvidia-ml1", "kind": "package"' in look.said
    run = machine.role(INPUTS)
    assert run.code == 0, run.output[-3000:]
    assert machine.packages()["libnvidia-ml1"] == locked


def test_a_reset_takes_driver_and_compiler_away_and_leaves_the_kernel(machine: Node, before: dict[str, str]) -> None:
    run = machine.playbook("reset")
    assert run.code == 0, run.output[-3000:]
    assert machine.packages() == before
    assert machine.sh("apt-mark showhold").strip() == ""
