"""A host that a kubelet can run on."""

from typing import Any

import pytest
from testinfra.host import Host

testinfra_hosts = ["ansible://control_plane", "ansible://gpu_nodes"]


def test_it_has_the_name_of_the_inventory(host: Host) -> None:
    assert host.check_output("hostname") == host.backend.get_hostname()


@pytest.mark.parametrize("program", ["conntrack", "ethtool", "iptables", "modprobe", "socat"])
def test_programs_of_the_kubelet_are_there(host: Host, program: str) -> None:
    assert host.exists(program)


def test_packets_are_forwarded(host: Host) -> None:
    assert host.sysctl("net.ipv4.ip_forward") == 1


def test_kernel_settings_outlive_a_reboot_and_hold_now(host: Host, variables: dict[str, Any]) -> None:
    optional = set(variables.get("node_base_sysctls_optional", []))
    settings = dict(
        line.split(" = ", 1)
        for line in host.file("/etc/sysctl.d/90-myriad.conf").content_string.splitlines()
        if " = " in line
    )
    assert "net.ipv4.ip_forward" in settings
    wrong = {
        name: value
        for name, value in settings.items()
        if name not in optional and host.check_output("sysctl -n %s", name) != value
    }
    assert wrong == {}


def test_modules_are_loaded_at_boot(host: Host) -> None:
    modules = host.file("/etc/modules-load.d/myriad.conf").content_string
    assert "overlay" in modules and "br_netfilter" in modules


def test_swap_is_off_unless_the_description_keeps_it(host: Host, variables: dict[str, Any]) -> None:
    if not variables.get("node_base_swap_enabled", False):
        assert host.check_output("swapon --show --noheadings") == ""
        assert host.run("grep -E '^[^#].*\\sswap\\s' /etc/fstab").rc != 0


def test_the_clock_is_kept_unless_somebody_else_does(host: Host, variables: dict[str, Any]) -> None:
    if variables.get("node_base_time_sync_enabled", True):
        assert host.service("chrony").is_running
        assert host.service("chrony").is_enabled


def test_unattended_upgrades_leave_the_locked_packages_alone(host: Host) -> None:
    blacklist = host.check_output("apt-config dump Unattended-Upgrade::Package-Blacklist")
    for package in ("linux-image-", "nvidia-", "containerd", "kubelet"):
        assert f'"{package}' in blacklist


def test_services_may_open_many_files(host: Host) -> None:
    limits = host.file("/etc/security/limits.d/90-myriad.conf").content_string.split("\n")
    hard = next(line.split()[-1] for line in limits if line.startswith("* hard nofile"))
    assert int(hard) >= 1048576


def test_the_management_path_is_untouched(host: Host) -> None:
    assert host.service("ssh").is_running
    assert not host.file("/etc/nftables.d/myriad.nft").exists
