"""Interfaces between nodes by sysfs: Ethernet, RoCE and InfiniBand ports that stand on a bus."""

from __future__ import annotations

import re
from dataclasses import dataclass

from myriad.agent.collect.base import Findings, whole
from myriad.agent.collect.source import Source
from myriad.fleet.portrait import NETWORK, Nic, Observation

NET = "/sys/class/net"
RDMA = "/sys/class/infiniband"
# 400 Gb/sec (4X NDR)
_RATE = re.compile(r"^([\d.]+) Gb/sec")
_NO_GUID = "0000:0000:0000:0000"


@dataclass(slots=True)
class Network:
    """Interfaces with a device behind them, bonds and VLANs over such, and those that the description names. Bridges,
    veth pairs and tunnels carry nothing of their own.

    Attributes:
        described: names in the description.
    """

    name: str = "network"
    every_s: float = 0.0
    described: frozenset[str] = frozenset()

    def collect(self, source: Source, at: str) -> Findings:
        """See Collector."""
        found = Findings()
        names = source.names(NET)
        if names is None:
            found.observations[NETWORK] = Observation(source=NET, at=at, fault=f"interfaces cannot be listed ({NET})")
            return found
        devices = source.names(RDMA) or []
        owners = {
            interface: device for device in devices for interface in source.names(f"{RDMA}/{device}/device/net") or []
        }
        nics = [
            _interface(source, name, owners.get(name, ""))
            for name in names
            if name in self.described or _carries(source, name)
        ]
        # An InfiniBand port needs no network interface.
        bare = [_port(source, device, name=device) for device in devices if device not in owners.values()]
        found.nics = [nic for nic in [*nics, *bare] if nic is not None]
        found.observations[NETWORK] = Observation(source=f"{NET}, {RDMA}" if devices else NET, at=at)
        return found


def _carries(source: Source, name: str) -> bool:
    inside = source.names(f"{NET}/{name}") or []
    if "bridge" in inside:
        return False
    # A bond or VLAN names what it stands on as lower_NAME.
    return "device" in inside or any(entry.startswith("lower_") for entry in inside)


def _interface(source: Source, name: str, device: str) -> Nic | None:
    folder = f"{NET}/{name}"
    mtu = whole(source.read(f"{folder}/mtu"))
    if device:
        return _port(source, device, name=name, mtu=mtu)
    speed = whole(source.read(f"{folder}/speed"))
    up = (source.read(f"{folder}/operstate") or "").strip() == "up"
    return Nic(
        observed=NETWORK,
        name=name,
        kind="ethernet",
        rate_gbit_s=speed / 1000 if speed and up else None,
        state="up" if up else "down",
        mtu=mtu,
        numa_node=whole(source.read(f"{folder}/device/numa_node")),
        pci_address=_address(source.link(f"{folder}/device")),
    )


def _port(source: Source, device: str, *, name: str, mtu: int | None = None) -> Nic | None:
    folder = f"{RDMA}/{device}"
    port = next(iter(source.names(f"{folder}/ports") or ["1"]))
    infiniband = (source.read(f"{folder}/ports/{port}/link_layer") or "").strip() == "InfiniBand"
    # "4: ACTIVE"
    up = (source.read(f"{folder}/ports/{port}/state") or "").strip().startswith("4")
    rate = _RATE.match(source.read(f"{folder}/ports/{port}/rate") or "")
    guid = (source.read(f"{folder}/node_guid") or "").strip()
    return Nic(
        observed=NETWORK,
        name=name,
        device=device,
        kind="infiniband" if infiniband else "roce",
        rate_gbit_s=float(rate[1]) if rate and up else None,
        state="up" if up else "down",
        mtu=mtu,
        numa_node=whole(source.read(f"{folder}/device/numa_node")),
        pci_address=_address(source.link(f"{folder}/device")),
        guid="" if guid == _NO_GUID else guid,
    )


def _address(link: str | None) -> str:
    last = (link or "").rpartition("/")[2].lower()
    return last if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", last) else ""
