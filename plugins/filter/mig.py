"""Filters over `myriad.fleet.mig`: how the GPUs of one node are cut, and which nodes that concerns."""

from __future__ import annotations

DOCUMENTATION = r"""
name: mig
short_description: MIG layouts, from the description
description:
  - C(mig_layouts) gives the profiles of each GPU of a node by index; an empty list is a whole card. Empty for a pool
    without C(mig).
  - C(has_mig) tells whether the pool of a node says C(mig); C(mig) whole turns slices back into cards.
  - C(shared_pools) is how many pods share one GPU, by pool.
  - C(mig_strategy) is the device plugin's strategy, C(none) where no pool is cut.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from myriad.fleet import mig
from myriad.fleet.model import Pool, pool_of_group


def _pool(pools: Mapping[str, Any], name: str) -> Pool:
    try:
        return Pool.model_validate(dict(pools[name]))
    except ValueError as error:  # pydantic's ValidationError is one
        raise AnsibleFilterError(f"myriad_pools.{name} is wrong; `myriad validate` says where: {error}") from error


def mig_layouts(
    pools: Mapping[str, Any], host: str, group_names: Sequence[str], gpus: int | None = None
) -> dict[str, list[str]]:
    """Profiles by GPU index, in the order of creation.

    Args:
        pools: `myriad_pools`.
        host: the node's name.
        group_names: its groups.
        gpus: its `myriad_gpus`, where it has fewer than its pool's nodes.
    """
    found = (pool_of_group(group, pools) for group in group_names if group.startswith("pool_"))
    name = next((pool for pool in found if pool is not None), None)
    if name is None or "mig" not in pools[name]:
        return {}
    pool = _pool(pools, name)
    count = pool.gpus_per_node if gpus is None else int(gpus)
    cut = mig.node_layout(pool.mig, model=pool.model, host=host, gpus=count)
    return {str(index): cut.get(str(index), []) for index in range(count)}


def has_mig(pools: Mapping[str, Any] | None, group_names: Sequence[str]) -> bool:
    """Whether the pool of a node says `mig`."""
    said = {name: pool for name, pool in (pools or {}).items() if "mig" in (pool or {})}
    return any(group.startswith("pool_") and pool_of_group(group, said) for group in group_names)


def mig_strategy(pools: Mapping[str, Any] | None) -> str:
    """none, single or mixed: the strategy of the pools that are cut."""
    for name in pools or {}:
        cut = _pool(pools or {}, name).mig
        if any(layout for _, layout in cut.layouts):
            return cut.strategy
    return "none"


def shared_pools(pools: Mapping[str, Any] | None) -> dict[str, int]:
    """How many pods share one GPU, for pools that share."""
    counts = {name: _pool(pools or {}, name).sharing.replicas for name in pools or {}}
    return {name: count for name, count in counts.items() if count > 1}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Filters by name."""
        return {
            "mig_layouts": mig_layouts,
            "has_mig": has_mig,
            "shared_pools": shared_pools,
            "mig_strategy": mig_strategy,
        }
