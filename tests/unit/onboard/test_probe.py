"""The probe as a program on machines that are folders: what it says, and what it keeps to itself."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from .conftest import H100, PROBE


def test_a_gpu_node_says_what_it_is(machines: Any) -> None:
    machines.add(
        "10.0.0.5", hostname="gpu-a", machine_id="ab" * 16, runs=("containerd", "kube-controller-manager"),
        files={
            "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand",
            "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
            "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
            "sys/class/infiniband/mlx5_0/device/net/ibp1s0/mtu": "4092",
            "sys/module/nvidia/version": "580.126.20",
        },
    )  # fmt: skip
    said = machines.probe("10.0.0.5")
    assert said["hostname"] == "gpu-a" and said["machine_id"] == "ab" * 16
    assert said["os"] == {"id": "debian", "version_id": "12", "pretty_name": "Debian GNU/Linux 12 (bookworm)"}
    assert (said["cores"], said["memory_mib"]) == (64, 1031524)
    assert (said["address"], said["network"]) == ("10.0.0.5", "10.0.0.0/24")
    assert len(said["pci"]) == 8
    assert said["pci"][0] == {
        "address": "0000:01:00.0", "vendor": H100[0], "device": H100[1], "class": H100[2],
        "subsystem_vendor": "0x10de", "subsystem_device": "0x16c1",
    }  # fmt: skip
    assert said["rdma"] == [
        {
            "name": "mlx5_0", "link_layer": "InfiniBand", "rate": "400 Gb/sec (4X NDR)", "state": "ACTIVE",
            "interfaces": ["ibp1s0"],
        }
    ]  # fmt: skip
    assert said["driver"] == "580.126.20"
    assert said["runs"] == ["containerd"]
    assert said["in_cluster"] is False and said["recorded_roles"] == []


def test_a_node_of_a_cluster_says_so(machines: Any) -> None:
    machines.add(
        "n", runs=("kubelet", "containerd"),
        files={"etc/kubernetes/kubelet.conf": "{}", "var/lib/myriad/state/kubernetes_node.json": "{}"},
    )  # fmt: skip
    said = machines.probe("n")
    assert said["in_cluster"] is True and said["recorded_roles"] == ["kubernetes_node"]
    assert said["runs"] == ["containerd", "kubelet"]


def test_names_that_the_kernel_cuts_are_found(machines: Any) -> None:
    machines.add("n", runs=("kube-apiserver", "kube-apiserver-x"))
    assert machines.probe("n")["runs"] == ["kube-apiserver"]


def test_a_gpu_that_fell_off_the_bus_is_told_from_one_that_answers(machines: Any) -> None:
    root = machines.add("n", gpus=2)
    (root / "sys/bus/pci/devices/0000:01:00.0/config").write_bytes(b"\xff" * 64)
    (root / "sys/bus/pci/devices/0000:02:00.0/config").write_bytes(b"\xde\x10\x30\x23")
    assert [device["vendor"] for device in machines.probe("n")["pci"]] == ["0xffff", "0x10de"]


def test_sysfs_may_stand_elsewhere(machines: Any) -> None:
    root = machines.add("n", gpus=1)
    (root / "sys").rename(root / "other")
    assert machines.probe("n")["pci"] == []
    assert len(machines.probe("n", "--sysfs", "/other")["pci"]) == 1


@pytest.mark.parametrize(
    ("address", "network"),
    [("10.0.0.200", "10.0.0.0/24"), ("10.100.7.1", "10.100.0.0/16"), ("172.16.0.1", ""), ("2001:db8::5", "")],
)
def test_the_network_is_that_of_the_interface_that_was_reached(machines: Any, address: str, network: str) -> None:
    machines.add("n", address=address)
    assert machines.probe("n")["network"] == network


def test_an_empty_machine_leaves_fields_empty_and_does_not_fail(machines: Any) -> None:
    (machines.root / "machines" / "bare").mkdir()
    (machines.root / "bare.address").write_text("10.0.0.9")
    said = machines.probe("bare")
    assert (said["hostname"], said["cores"], said["pci"], said["os"]["id"]) == ("", 0, [], "")


def test_it_needs_nothing_but_python() -> None:
    """With neither site packages nor the environment's paths: what a bare machine has."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-"], input=PROBE.read_text(), capture_output=True, text=True, check=True
    )
    assert '"probe": 1' in done.stdout


def test_an_option_that_it_does_not_know_is_refused() -> None:
    done = subprocess.run([sys.executable, str(PROBE), "--rot", "/x"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "usage" in done.stderr
