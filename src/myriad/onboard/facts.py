"""What a probe found, typed; what of it a site cannot be made of, and what its owner should know. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from myriad.errors import MyriadError
from myriad.fleet import names
from myriad.fleet.catalog import GpuModel
from myriad.fleet.hardware import Device, read_bus, unknown_gpu
from myriad.fleet.systems import system_fault

ARCHITECTURES = ("x86_64", "aarch64")
RUNTIMES = ("containerd", "dockerd", "podman")
CLUSTERS = ("k0s", "k3s-agent", "k3s-server", "rke2", "crio", "cri-dockerd")
"""Programs of a cluster, or of a runtime under one, that Myriad would fight with."""
_LEAST_CORES = 2
_LEAST_MIB = 1700
"""What kubeadm asks of a control plane, cores and MiB (its preflight checks NumCPU and Mem)."""


@dataclass(frozen=True, slots=True)
class Rdma:
    """One RDMA device.

    Attributes:
        name: as the kernel names it (mlx5_0).
        link_layer: Ethernet or InfiniBand.
        rate: as the kernel writes it (`400 Gb/sec (4X NDR)`).
        state: of its first port: ACTIVE, DOWN.
        interfaces: its network interfaces.
    """

    name: str
    link_layer: str
    rate: str
    state: str
    interfaces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One machine.

    Attributes:
        asked: the host as the user wrote it, without the user's name.
        gpus: GPUs that answer, with their model; None for one that the catalog does not know.
        dead: GPUs that fell off the bus.
        address, network: of the interface that was reached; empty where they are not IPv4.
        runs: programs that run, of those that the probe looks for.
        in_cluster: a kubelet has joined some cluster.
        by_myriad: a role of Myriad has been here.
    """

    asked: str
    hostname: str = ""
    machine_id: str = ""
    os_id: str = ""
    os_version: str = ""
    os_name: str = ""
    arch: str = ""
    cores: int = 0
    memory_mib: int = 0
    may_be_root: bool = True
    address: str = ""
    network: str = ""
    gpus: tuple[tuple[Device, GpuModel | None], ...] = ()
    dead: int = 0
    rdma: tuple[Rdma, ...] = ()
    driver: str = ""
    runs: tuple[str, ...] = ()
    in_cluster: bool = False
    by_myriad: bool = False

    @property
    def model(self) -> GpuModel | None:
        """The model of its GPUs; None where it has none, or several."""
        models = {model.name: model for _, model in self.gpus if model is not None}
        return next(iter(models.values())) if len(models) == 1 else None


def read_facts(asked: str, document: Mapping[str, Any]) -> HostFacts:
    """Type the probe's document.

    Args:
        asked: the host as the user wrote it.
        document: what `myriad.onboard.probe` printed.

    Raises:
        MyriadError: it is of another shape.
    """
    try:
        bus = read_bus(document["pci"])
        release = document["os"]
        return HostFacts(
            asked=asked,
            hostname=str(document["hostname"]),
            machine_id=str(document["machine_id"]),
            os_id=str(release["id"]),
            os_version=str(release["version_id"]),
            os_name=str(release["pretty_name"]),
            arch=str(document["arch"]),
            cores=int(document["cores"]),
            memory_mib=int(document["memory_mib"]),
            may_be_root=bool(document["sudo"]),
            address=str(document["address"]),
            network=str(document["network"]),
            gpus=bus.gpus,
            dead=len(bus.dead),
            rdma=tuple(
                Rdma(r["name"], r["link_layer"], r["rate"], r["state"], tuple(r["interfaces"]))
                for r in document["rdma"]
            ),
            driver=str(document["driver"]),
            runs=tuple(map(str, document["runs"])),
            in_cluster=bool(document["in_cluster"]),
            by_myriad=bool(document["recorded_roles"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MyriadError(f"the probe's answer has another shape ({error!r})", where=asked) from error


def faults(host: HostFacts) -> list[str]:
    """Why a site cannot be made of this machine as it is, each with what to do; empty where it can."""
    found = []
    wanted = system_fault(host.os_id, host.os_version)
    if wanted:
        found.append(
            f"runs {host.os_name or 'a system without os-release'}; Myriad takes {wanted}: reinstall it, or leave it "
            "out"
        )
    if host.arch not in ARCHITECTURES:
        found.append(
            f"is {host.arch or 'of no known architecture'}; the stack is built for {' and '.join(ARCHITECTURES)}"
        )
    if not host.may_be_root:
        found.append("the user may not become root without a password: log in as root (--user root), or allow sudo")
    foreign = [name for name in host.runs if name in CLUSTERS]
    if foreign:
        found.append(f"runs {', '.join(foreign)}: remove it first, or leave the machine out")
    elif host.in_cluster and not host.by_myriad:
        found.append(
            "its kubelet belongs to a cluster: `myriad adopt` describes that cluster as it is; `kubeadm reset` on it "
            "frees the machine"
        )
    unknown = sorted({unknown_gpu(device) for device, model in host.gpus if model is None})
    found += [f"has a GPU that cannot be described: {text}" for text in unknown]
    models = sorted({model.name for _, model in host.gpus if model is not None})
    if len(models) > 1:
        found.append(f"has GPUs of {len(models)} models ({', '.join(models)}); the nodes of a pool have one")
    return found


def clones(hosts: Sequence[HostFacts]) -> list[tuple[str, str]]:
    """Machines that cannot be told apart, as (host, what is wrong)."""
    first: dict[str, str] = {}
    found = []
    for host in hosts:
        other = first.setdefault(host.machine_id, host.asked) if host.machine_id else host.asked
        if other != host.asked:
            found.append(
                (
                    host.asked,
                    f"has the machine-id of {other}: one machine under two addresses, or clones of one image. For a "
                    "clone: rm /etc/machine-id && systemd-machine-id-setup, then reboot",
                )
            )
    return found


def notes(host: HostFacts, *, is_control_plane: bool) -> list[str]:
    """What the owner of a machine that can be used should know."""
    found = []
    if host.by_myriad:
        found.append("was set up by Myriad before: a site run goes on from what it recorded there")
    runtimes = [] if host.by_myriad else [name for name in host.runs if name in RUNTIMES]
    if runtimes:
        found.append(
            f"runs {' and '.join(runtimes)} already: `myriad site --check --diff` shows what would change of it "
            "(roles/container_runtime/README.md)"
        )
    if any(name.startswith("slurm") for name in host.runs):
        found.append("runs Slurm, which hands out the same GPUs: drain it there first (docs/choosing.md)")
    if host.driver and not host.by_myriad:
        found.append(
            f"has driver {host.driver} loaded: gpu_driver_existing says whether it is kept (docs/operations.md)"
        )
    if host.dead:
        found.append(f"GPUs that fell off the bus, and are not counted: {host.dead}")
    if is_control_plane and (host.cores < _LEAST_CORES or host.memory_mib < _LEAST_MIB):
        found.append(
            f"has {host.cores} cores and {host.memory_mib} MiB; a control plane needs {_LEAST_CORES} and {_LEAST_MIB}"
        )
    active = [device for device in host.rdma if device.state == "ACTIVE"]
    if active:
        named = names.listing(f"{d.name} ({d.link_layer}, {d.rate})" for d in active)
        found.append(
            f"RDMA: {named}. Nothing is set on them until myriad_fabric names them "
            "(inventories/example/group_vars/all/fabric.yml)"
        )
    return found


def inventory_names(hosts: Iterable[HostFacts]) -> dict[str, str]:
    """A name for each host (by `asked`): its own, short where that tells it from the others, else `node1`, `node2`."""
    machines = list(hosts)
    full = [host.hostname.lower() for host in machines]
    short = [name.split(".")[0] for name in full]
    counts = Counter(short)
    # A made-up name is never one that a machine has.
    own = {*full, *short}
    taken: set[str] = set()
    chosen: dict[str, str] = {}
    for number, host in enumerate(machines, 1):
        real = [short[number - 1]] if counts[short[number - 1]] == 1 else []
        real = [name for name in (*real, full[number - 1]) if name != "localhost" and not names.host_name_fault(name)]
        made_up = (f"node{n}" for n in itertools.chain([number], itertools.count(1)) if f"node{n}" not in own)
        name = next(name for name in itertools.chain(real, made_up) if name not in taken)
        taken.add(name)
        chosen[host.asked] = name
    return chosen
