"""The few facts that Myriad's roles read, gathered from files: no subprocess, a few milliseconds."""

from __future__ import annotations

import os
import platform
import socket
import struct
import sys

from ansible_collections.myriad.gpu.plugins.module_utils.record import below

# ID of os-release to the name and family that ansible's own setup module uses.
DISTRIBUTIONS = {
    "debian": ("Debian", "Debian"),
    "ubuntu": ("Ubuntu", "Debian"),
    "rocky": ("Rocky", "RedHat"),
    "rhel": ("RedHat", "RedHat"),
    "almalinux": ("AlmaLinux", "RedHat"),
    "centos": ("CentOS", "RedHat"),
    "fedora": ("Fedora", "RedHat"),
    "sles": ("SLES", "Suse"),
}


def read(path, default=""):
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return default


def os_release(root="/"):
    values = {}
    for line in read(below(root, "/etc/os-release")).splitlines():
        key, separator, value = line.partition("=")
        if separator:
            values[key.strip()] = value.strip().strip("\"'")
    return values


def default_route(root="/"):
    """Interface and gateway of the IPv4 default route with the lowest metric."""
    best = None
    for line in read(below(root, "/proc/net/route")).splitlines()[1:]:
        columns = line.split()
        if len(columns) < 8 or columns[1] != "00000000" or columns[7] != "00000000":
            continue
        metric = int(columns[6])
        if best is None or metric < best[0]:
            best = (metric, columns[0], socket.inet_ntoa(struct.pack("<L", int(columns[2], 16))))
    return (best[1], best[2]) if best else (None, None)


def address():
    """The address from which the default route is used; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1, RFC 5737
            return probe.getsockname()[0]
        except OSError:
            return None


def memory_mb(root="/"):
    total, swap = 0, 0
    for line in read(below(root, "/proc/meminfo")).splitlines():
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) // 1024
        elif line.startswith("SwapTotal:"):
            swap = int(line.split()[1]) // 1024
    return total, swap


def facts(root="/"):
    """Facts under the names of ansible's setup module, without the prefix."""
    release = os_release(root)
    identity = release.get("ID", "")
    name, family = DISTRIBUTIONS.get(identity, (release.get("NAME", identity), identity.capitalize()))
    version = release.get("VERSION_ID", "")
    kernel = os.uname()
    interface, gateway = default_route(root)
    memory, swap = memory_mb(root)
    cgroup_version = 2 if os.path.exists(below(root, "/sys/fs/cgroup/cgroup.controllers")) else 1
    return {
        "distribution": name,
        "distribution_version": version,
        "distribution_major_version": version.split(".")[0],
        "distribution_release": release.get("VERSION_CODENAME", ""),
        "os_family": family,
        "pkg_mgr": {"Debian": "apt", "RedHat": "dnf", "Suse": "zypper"}.get(family, "unknown"),
        "service_mgr": "systemd" if os.path.isdir(below(root, "/run/systemd/system")) else "unknown",
        "system": kernel.sysname,
        "architecture": kernel.machine,
        "kernel": kernel.release,
        "hostname": kernel.nodename.split(".")[0],
        "nodename": kernel.nodename,
        "machine_id": read(below(root, "/etc/machine-id")),
        "boot_id": read(below(root, "/proc/sys/kernel/random/boot_id")),
        "default_ipv4": {"address": address(), "interface": interface, "gateway": gateway} if interface else {},
        "processor_vcpus": os.cpu_count() or 1,
        "memtotal_mb": memory,
        "swaptotal_mb": swap,
        "cgroup_version": cgroup_version,
        "python_version": platform.python_version(),
        "python": {
            "executable": sys.executable,
            "version": {"major": sys.version_info[0], "minor": sys.version_info[1]},
        },
    }
