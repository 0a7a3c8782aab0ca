"""The description of a cluster: its model, everything that can be wrong with it, and what follows from it. Pure."""

from __future__ import annotations

from myriad.fleet.check import Checked, check
from myriad.fleet.labels import node_labels
from myriad.fleet.model import Fleet
from myriad.fleet.network import pod_cidr
from myriad.fleet.objects import objects_for_cluster_policy
from myriad.fleet.problems import Origin, Problem
from myriad.fleet.source import RawInventory, inventory_from_groups

__all__ = [
    "Checked",
    "Fleet",
    "Origin",
    "Problem",
    "RawInventory",
    "check",
    "inventory_from_groups",
    "node_labels",
    "objects_for_cluster_policy",
    "pod_cidr",
]
