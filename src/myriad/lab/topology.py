"""Which nodes the lab has: read from its inventory, so that a fourth worker is one more line there."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from myriad.errors import InputError

#: First host number inside the lab's /24; the gateway is .1.
FIRST_HOST = 10


@dataclass(frozen=True)
class LabNode:
    """One node that the lab makes.

    Attributes:
        name: inventory and Kubernetes name.
        address: fixed IPv4 address on the lab's network.
        gpus: GPU doubles on it, 0 for a node without.
        model: GPU model of its pool, as the description names it.
        location: room/block/rack path, empty for a node without one.
        nics: doubles of network cards for RDMA (host variable lab_nics).
    """

    name: str
    address: str
    gpus: int = 0
    model: str = ""
    location: str = ""
    nics: int = 0


def read_nodes(inventory: Path, subnet: str) -> list[LabNode]:
    """The lab's nodes in inventory order: control plane first, then the pools.

    Args:
        inventory: the folder with `hosts.yml` and `group_vars/all/cluster.yml`.
        subnet: the lab's network, for example `10.77.0.0/24`.

    Raises:
        InputError: when the inventory has no host, or more than the subnet holds.
    """
    hosts_file = inventory / "hosts.yml"
    tree = yaml.safe_load(hosts_file.read_text()) or {}
    cluster = yaml.safe_load((inventory / "group_vars" / "all" / "cluster.yml").read_text()) or {}
    pools: dict[str, Any] = cluster.get("myriad_pools", {})
    found: dict[str, dict[str, Any]] = {}
    for group, name, variables in _walk("all", tree.get("all") or {}):
        entry = found.setdefault(name, {})
        entry.update(variables)
        if group.startswith("pool_"):
            entry["pool"] = group.removeprefix("pool_")
    network = ipaddress.ip_network(subnet)
    if not found:
        raise InputError("no host is listed", where=str(hosts_file), hint="List cp1 and at least one GPU node.")
    if len(found) > network.num_addresses - FIRST_HOST - 2:
        raise InputError(
            f"{len(found)} hosts do not fit into {subnet}", where=str(hosts_file), hint="A lab holds about 240 nodes."
        )
    nodes = []
    for number, (name, entry) in enumerate(found.items()):
        pool = pools.get(entry.get("pool", ""), {})
        nodes.append(
            LabNode(
                name=name,
                address=str(network.network_address + FIRST_HOST + number),
                gpus=int(entry.get("myriad_gpus", pool.get("gpus_per_node", 0))),
                model=str(entry.get("myriad_gpu_model", pool.get("model", ""))),
                location=str(entry.get("myriad_location", "")),
                nics=int(entry.get("lab_nics", 0)),
            )
        )
    return nodes


def _walk(group: str, body: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Every (group, host, host variables) of a YAML inventory tree, depth first."""
    rows = [(group, name, dict(variables or {})) for name, variables in (body.get("hosts") or {}).items()]
    for child, child_body in (body.get("children") or {}).items():
        rows += _walk(child, child_body or {})
    return rows
