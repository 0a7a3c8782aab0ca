"""What a machine is, as one JSON document. Runs on the machine itself with Python 3.7 or newer and nothing else.

    ssh HOST python3 - [--root DIR] [--sysfs DIR] < probe.py

Reads; changes nothing. `--root` stands before every path, so that a recorded machine can be looked at like a live one;
`--sysfs` names another tree of sysfs below it. What cannot be read is left empty: judging it is up to whoever asked.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

# PCI vendors of GPUs: NVIDIA, AMD, Huawei. Others have no business in the answer.
VENDORS = ("0x10de", "0x1002", "0x19e5")
# What would be in the way of a cluster, or is one, by the name of its process. The kernel cuts names at 15 characters.
PROGRAMS = (
    "containerd", "cri-dockerd", "crio", "dockerd", "etcd", "k0s", "k3s-agent", "k3s-server", "kube-apiserver",
    "kubelet", "podman", "rke2", "slurmctld", "slurmd",
)  # fmt: skip
RECORDS = "var/lib/myriad/state"


class Machine:
    """Files of the machine below a root."""

    def __init__(self, root: str = "/", sysfs: str = "/sys") -> None:
        self.root = Path(root)
        self.sysfs = sysfs

    def path(self, *parts: str) -> Path:
        """A path of the machine."""
        return self.root.joinpath(*(part.lstrip("/") for part in parts))

    def read(self, *parts: str) -> str:
        """Text of a file, stripped; empty where it cannot be read."""
        try:
            return self.path(*parts).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def names(self, *parts: str) -> list[str]:
        """What a folder holds, sorted; nothing where it cannot be read."""
        try:
            return sorted(path.name for path in self.path(*parts).iterdir())
        except OSError:
            return []

    def document(self) -> dict[str, object]:
        """Everything."""
        address = self.address()
        return {
            "probe": 1,
            "hostname": self.read("proc/sys/kernel/hostname"),
            "machine_id": self.read("etc/machine-id"),
            "os": self.release(),
            "arch": os.uname().machine,
            "kernel": self.read("proc/sys/kernel/osrelease"),
            "cores": sum(line.startswith("processor") for line in self.read("proc/cpuinfo").splitlines()),
            "memory_mib": self.memory_mib(),
            "root": os.geteuid() == 0,
            "sudo": os.geteuid() == 0 or may_sudo(),
            "address": address,
            "network": self.network(address),
            "pci": self.pci(),
            "rdma": self.rdma(),
            "driver": self.read(self.sysfs, "module/nvidia/version"),
            "runs": self.running(),
            "in_cluster": self.path("etc/kubernetes/kubelet.conf").exists(),
            "recorded_roles": [n[:-5] for n in self.names(RECORDS) if n.endswith(".json")],
        }

    def release(self) -> dict[str, str]:
        """ID, VERSION_ID and PRETTY_NAME of os-release(5)."""
        found = {}
        for line in (self.read("etc/os-release") or self.read("usr/lib/os-release")).splitlines():
            name, _, value = line.partition("=")
            found[name] = value.strip("\"'")
        return {name.lower(): found.get(name, "") for name in ("ID", "VERSION_ID", "PRETTY_NAME")}

    def memory_mib(self) -> int:
        """MemTotal of /proc/meminfo, which counts in KiB."""
        for line in self.read("proc/meminfo").splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) // 1024
        return 0

    def address(self) -> str:
        """The address at which this connection reached the machine: that of its own interface, behind whatever name."""
        words = os.environ.get("SSH_CONNECTION", "").split()
        return words[2] if len(words) == 4 else ""

    def network(self, address: str) -> str:
        """The network of the interface with this IPv4 address, by the kernel's routes: 10.0.0.0/24. Empty for none."""
        own = as_number(address)
        best = None
        if own is None:
            return ""
        for line in self.read("proc/net/route").splitlines()[1:]:
            words = line.split()
            if len(words) < 8:
                continue
            # Numbers of 32 bits in the byte order of the machine, little endian on both architectures that count.
            target, gateway, mask = (int.from_bytes(bytes.fromhex(words[i]), "little") for i in (1, 2, 7))
            if mask and not gateway and own & mask == target and (best is None or mask > best[1]):
                best = (target, mask)
        if best is None:
            return ""
        target, mask = best
        return "{}/{}".format(".".join(str(target >> shift & 255) for shift in (24, 16, 8, 0)), bin(mask).count("1"))

    def pci(self) -> list[dict[str, str]]:
        """Devices of GPU makers, ids as sysfs writes them."""
        folder = f"{self.sysfs}/bus/pci/devices"
        found = []
        for address in self.names(folder):
            device = {
                name: self.read(folder, address, name)
                for name in ("vendor", "device", "class", "subsystem_vendor", "subsystem_device")
            }
            if device["vendor"] in VENDORS:
                # sysfs remembers the ids of a device that fell off the bus; its configuration space answers with ones.
                try:
                    with self.path(folder, address, "config").open("rb") as stream:
                        if stream.read(4) == b"\xff\xff\xff\xff":
                            device["vendor"] = device["device"] = "0xffff"
                except OSError:
                    pass
                found.append(dict(device, address=address))
        return found

    def rdma(self) -> list[dict[str, object]]:
        """RDMA devices: their first port's link layer, rate and state, and their network interfaces."""
        folder = f"{self.sysfs}/class/infiniband"
        return [
            {
                "name": name,
                "link_layer": self.read(folder, name, "ports/1/link_layer"),
                "rate": self.read(folder, name, "ports/1/rate"),
                "state": self.read(folder, name, "ports/1/state").rpartition(":")[2].strip(),
                "interfaces": self.names(folder, name, "device/net"),
            }
            for name in self.names(folder)
        ]

    def running(self) -> list[str]:
        """Programs of PROGRAMS that run."""
        found = {self.read("proc", name, "comm") for name in self.names("proc") if name.isdigit()}
        return [name for name in PROGRAMS if name[:15] in found]


def as_number(address: str) -> int | None:
    """An IPv4 address as a number; None for anything else."""
    words = address.split(".")
    if len(words) != 4 or not all(word.isdigit() and int(word) < 256 for word in words):
        return None
    return sum(int(word) << shift for word, shift in zip(words, (24, 16, 8, 0)))  # noqa: B905 - `strict` is Python 3.10


def may_sudo() -> bool:
    """Whether root's rights are had without a password."""
    if shutil.which("sudo") is None:
        return False
    return subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0


def main(arguments: list[str]) -> int:
    """Print the document."""
    given = dict(zip(arguments[::2], arguments[1::2]))  # noqa: B905 - `strict` is Python 3.10
    unknown = sorted(set(given) - {"--root", "--sysfs"})
    if unknown or len(arguments) % 2:
        sys.stderr.write("usage: probe.py [--root DIR] [--sysfs DIR]\n")
        return 1
    print(json.dumps(Machine(given.get("--root", "/"), given.get("--sysfs", "/sys")).document()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
