"""Filter over `myriad.fleet.model_policy.Alignment`: how the kubelet of one node keeps CPUs and devices together."""

from __future__ import annotations

DOCUMENTATION = r"""
name: alignment
short_description: How the kubelet of a node keeps CPUs and devices together, from the description
description:
  - C(node_alignment) gives topology_manager, scope, cpu_manager and reserved_cpus of a node's pool.
  - Outside of any pool they are the kubelet's own defaults.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from myriad.fleet.model import pool_of_group
from myriad.fleet.model_policy import Alignment


def node_alignment(pools: Mapping[str, Any] | None, group_names: Sequence[str]) -> dict[str, str]:
    """Policies of the kubelet; reserved_cpus is empty where none are kept.

    Args:
        pools: `myriad_pools`.
        group_names: groups of the node.
    """
    known = pools or {}
    found = (pool_of_group(group, known) for group in group_names if group.startswith("pool_"))
    name = next((pool for pool in found if pool is not None), None)
    try:
        alignment = Alignment.model_validate(dict((known.get(name) or {}).get("alignment") or {}) if name else {})
    except ValueError as error:  # pydantic's ValidationError is one
        raise AnsibleFilterError(
            f"myriad_pools.{name}.alignment is wrong; `myriad validate` says where: {error}"
        ) from error
    return {
        "topology_manager": alignment.topology_manager,
        "scope": alignment.scope,
        "cpu_manager": alignment.cpu_manager,
        "reserved_cpus": alignment.reserved_cpus or "",
    }


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Filters by name."""
        return {"node_alignment": node_alignment}
