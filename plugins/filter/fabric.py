"""Filters over `myriad.fleet.fabric` and the lock: interfaces of one node, packages of one component."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fabric
short_description: Interfaces between GPUs, from the description
description:
  - C(fabric_plan) gives the interfaces of one node from the description of its pool; empty where that has none.
  - C(has_fabric) tells whether the role fabric has something to do on a host.
  - C(locked_packages) are the packages that the lock has for a component on a distribution.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from myriad.fleet import fabric
from myriad.fleet.model import Fabric, pool_of_group
from myriad.stack.lock import load_lock
from pydantic import ValidationError


def fabric_plan(
    fabrics: Mapping[str, Any],
    host: str,
    group_names: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    hostvars: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Interfaces of one node. It reads the variables of this host and of the next one of its pool, no others."""
    group = next((name for name in group_names if name.startswith("pool_") and pool_of_group(name, fabrics)), None)
    if group is None:
        return {}
    pool = str(pool_of_group(group, fabrics))
    try:
        described = Fabric.model_validate(dict(fabrics[pool]))
        own = fabric.plan(host, _address(hostvars, host), described)
        ring = list(groups[group])
        after = ring[(ring.index(host) + 1) % len(ring)]
        peer = fabric.plan(after, _address(hostvars, after), described) if after != host else None
    except ValidationError as error:
        raise AnsibleFilterError(f"myriad_fabric.{pool} is wrong; `myriad validate` says where: {error}") from error
    except ValueError as error:
        raise AnsibleFilterError(f"myriad_fabric.{pool}: the address pattern {error}") from error
    return own.as_dict(peer=peer)


def _address(hostvars: Mapping[str, Mapping[str, Any]], host: str) -> str:
    try:
        return str(hostvars[host].get("ansible_host", host))
    except KeyError:
        return host


def has_fabric(
    fabrics: Mapping[str, Any] | None, topology: Mapping[str, Any] | None, group_names: Sequence[str]
) -> bool:
    """Whether the role fabric has something to do on a host: its pool has a fabric, or switches are described."""
    if (topology or {}).get("switches"):
        return "gpu_nodes" in group_names
    return any(name.startswith("pool_") and pool_of_group(name, fabrics or {}) for name in group_names)


def locked_packages(component: str, distribution: str, version: str) -> dict[str, str]:
    """Package to exact version; empty where the lock has none for this distribution.

    Args:
        component: its name in the lock.
        distribution: name as ansible has it (Debian).
        version: version of the distribution (12.11).
    """
    name = str(distribution).lower()
    major = str(version).split(".")[0] if name == "debian" else str(version)
    for found in load_lock().component(component).package_sets:
        if found.distribution == f"{name}{major}":
            return dict(found.packages)
    return {}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Filters by name."""
        return {"fabric_plan": fabric_plan, "has_fabric": has_fabric, "locked_packages": locked_packages}
