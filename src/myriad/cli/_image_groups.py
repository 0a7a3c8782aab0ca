"""Groups of equal nodes for image verdicts: which GPU and which driver, and who says so.

In this order: `--driver`, what the nodes' portraits report, `gpu_driver_versions.driver` in the inventory, and last the
lock's driver for the role's channel, which the site run installs on a host that has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.manager import VariableManager

from myriad.cli import _cluster as cluster
from myriad.fleet import Fleet
from myriad.fleet.catalog import CATALOG
from myriad.fleet.hardware import by_product
from myriad.fleet.model import Host
from myriad.fleet.portrait import Portrait
from myriad.images.compat import NodeGroup
from myriad.stack.lock import load_lock

LOCKED = "lock"

_CHANNEL = "distribution"
"""Default of role gpu_driver."""


def groups_of(
    fleet: Fleet, inventory: Sequence[Path], given: Mapping[str, str], kubeconfig: str | None
) -> list[NodeGroup]:
    """Nodes with GPUs, those that are equal together; pools in the order of the description."""
    portraits = read_portraits(kubeconfig) if kubeconfig else {}
    described: dict[str, tuple[str, str]] | None = None
    counted: Counter[NodeGroup] = Counter()
    for pool, hosts in fleet.hosts_by_pool.items():
        for host in hosts:
            found = measured(host, portraits[host.name]) if host.name in portraits else []
            if not found:
                mig = any(fleet.pools[pool].mig.of(host.name, host.gpus))
                found = [NodeGroup(pool=pool, model=host.gpu_model or "", mig=mig)]
            for group in found:
                if pool in given:
                    group = replace(group, driver=given[pool], source="--driver")
                elif not group.driver and runs_cuda(group):
                    if described is None:
                        described = described_drivers(
                            inventory, [one for all_ in fleet.hosts_by_pool.values() for one in all_]
                        )
                    version, source = described.get(host.name, ("", ""))
                    group = replace(group, driver=version, source=source)
                counted[group] += 1
    return [replace(group, nodes=nodes) for group, nodes in counted.items()]


def runs_cuda(group: NodeGroup) -> bool:
    """Whether NVIDIA's driver is asked for at all: not on other makers' cards."""
    model = CATALOG.get(group.model)
    return model is None or model.vendor == "nvidia"


def measured(host: Host, portrait: Portrait) -> list[NodeGroup]:
    """What a portrait says: one group for each kind of GPU in the node; none where its GPUs do not answer."""
    loaded = {driver.vendor: driver.loaded or "" for driver in portrait.drivers}
    groups = []
    for gpu in portrait.usable:
        model = gpu.model
        if not model:
            known = by_product(gpu.product)
            model = known.name if known else gpu.product
        groups.append(
            NodeGroup(
                pool=host.pool or "",
                model=model,
                driver=gpu.driver or loaded.get(gpu.vendor, ""),
                source="portrait",
                mig=gpu.mig is not None and gpu.mig.mode == "enabled",
            )
        )
    return list(dict.fromkeys(groups))


def read_portraits(kubeconfig: str) -> dict[str, Portrait]:
    """Portraits of a cluster by node. Raises MyriadError where it has none."""
    items = cluster.node_portraits(
        cluster.reach(kubeconfig),
        without="`myriad site` installs the agent that makes them; without it: --driver POOL=VERSION",
    )
    return {
        item["metadata"]["name"]: Portrait.model_validate({"node": item["metadata"]["name"], **item["status"]})
        for item in items
        if item.get("status")
    }


def described_drivers(inventory: Sequence[Path], hosts: Sequence[Host]) -> dict[str, tuple[str, str]]:
    """Driver of each host as its inventory describes it, with who says so; hosts that keep theirs are left out."""
    loader = DataLoader()
    manager = InventoryManager(loader=loader, sources=[str(path.absolute()) for path in inventory])
    variables = VariableManager(loader=loader, inventory=manager)
    locked: dict[str, str] = {}
    found = {}
    for host in hosts:
        known = manager.get_host(host.name)
        if known is None:
            continue
        values: Mapping[str, Any] = variables.get_vars(host=known, include_hostvars=False)
        versions = values.get("gpu_driver_versions")
        version = versions.get("driver") if isinstance(versions, Mapping) else None
        if isinstance(version, str) and "{{" not in version:
            found[host.name] = (version, "inventory")
        elif values.get("gpu_driver_existing") != "skip":
            channel = str(values.get("gpu_driver_channel", _CHANNEL))
            if channel not in locked:
                locked[channel] = locked_driver(channel)
            if locked[channel]:
                found[host.name] = (locked[channel], LOCKED)
    return found


def locked_driver(channel: str) -> str:
    """The lock's driver for a channel, where all its distributions have the same; else empty."""
    component = load_lock().component("nvidia-driver")
    versions = {one.driver for one in component.package_sets if one.channel == channel and one.driver}
    return versions.pop() if len(versions) == 1 else ""
