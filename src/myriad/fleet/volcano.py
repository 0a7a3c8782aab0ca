"""Volcano's objects for pools with engine `volcano`: one neutral queue and the tree of HyperNodes.

The queue has neither capability nor deserved: Kueue is the only ledger. HyperNode format: topology.volcano.sh/v1alpha1.
"""

from __future__ import annotations

from typing import Any

from myriad.fleet import model
from myriad.fleet.labels import POOL_LABEL, hypernode_name, level_label, place_value

QUEUE_NAME = "myriad"


def volcano_objects(fleet: model.Fleet, *, labels: dict[str, str]) -> list[dict[str, Any]]:
    """Queue and HyperNodes in apply order (inner places first); empty where no pool uses Volcano.

    Args:
        fleet: the description.
        labels: labels of every object.
    """
    pools = sorted(name for name, pool in fleet.pools.items() if pool.engine == "volcano")
    if not pools:
        return []
    levels = fleet.cluster.topology_levels
    locations = {host.location for pool in pools for host in fleet.hosts_by_pool[pool] if host.location}
    queue = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": QUEUE_NAME, "labels": dict(labels)},
        "spec": {"weight": 1, "reclaimable": False},
    }
    result: list[dict[str, Any]] = [queue]
    for depth in range(len(levels), 0, -1):
        for place in sorted({location[:depth] for location in locations}):
            if depth == len(levels):
                selector: dict[str, Any] = {
                    "matchLabels": {level_label(levels[depth - 1]): place_value(place)},
                    # A rack may hold nodes of other pools, which Volcano must not use.
                    "matchExpressions": [{"key": POOL_LABEL, "operator": "In", "values": pools}],
                }
                members = [{"type": "Node", "selector": {"labelMatch": selector}}]
            else:
                inner = sorted({location[: depth + 1] for location in locations if location[:depth] == place})
                members = [
                    {"type": "HyperNode", "selector": {"exactMatch": {"name": hypernode_name(child)}}}
                    for child in inner
                ]
            result.append(
                {
                    "apiVersion": "topology.volcano.sh/v1alpha1",
                    "kind": "HyperNode",
                    "metadata": {"name": hypernode_name(place), "labels": dict(labels)},
                    "spec": {"tier": len(levels) - depth + 1, "tierName": levels[depth - 1], "members": members},
                }
            )
    return result
