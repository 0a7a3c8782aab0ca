"""Filters over `myriad.fleet`: what follows from the description, for playbooks. The logic is in src/myriad/fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.myriad.gpu.plugins.plugin_utils.described import checked, fleet_of, raw_inventory
from myriad.fleet import check, inventory_from_groups, objects_for_cluster_policy
from myriad.fleet import pod_cidr as fleet_pod_cidr
from myriad.fleet.labels import labels_from_variables
from myriad.fleet.systems import system_fault
from myriad.roles import with_role_settings


def fleet_objects(
    description: Mapping[str, Any],
    groups: Mapping[str, Sequence[str]],
    locations: Mapping[str, Any] | None = None,
    gpus: Mapping[str, int] | None = None,
) -> list[dict[str, Any]]:
    """Kubernetes objects of the policy, from variables that a play has."""
    if not isinstance(description, Mapping):
        raise AnsibleFilterError("fleet_objects takes a mapping of the myriad_* variables")
    raw = inventory_from_groups(
        description, {name: list(hosts) for name, hosts in groups.items()}, locations=locations, gpus=gpus
    )
    return objects_for_cluster_policy(checked(raw).fleet)


def fleet_from_inventory(sources: Any) -> dict[str, Any]:
    """The whole fleet, read from the inventory sources in one go."""
    return fleet_of(sources)


def fleet_problems(sources: Any) -> list[dict[str, Any]]:
    """Everything that is wrong with the inventory sources: the description, and variables of the roles."""
    raw = raw_inventory(sources)
    found = with_role_settings(check(raw), raw, Path(__file__).parents[2] / "roles")
    return [problem.as_dict() | {"subject": problem.subject} for problem in found.problems]


def fleet_node_labels(
    location: str | None,
    group_names: Sequence[str],
    cluster: Mapping[str, Any],
    pools: Mapping[str, Mapping[str, Any]],
    gpus: int | None = None,
) -> dict[str, str]:
    """Labels of one node, from its own variables."""
    try:
        return labels_from_variables(
            location=location, group_names=group_names, cluster=cluster, pools=pools, gpus=gpus
        )
    except ValueError as error:  # pydantic's ValidationError is one
        raise AnsibleFilterError(f"the labels of the node cannot be derived: {error}") from error


def network_peers(sources: Any, mode: str) -> list[str]:
    """Addresses of all nodes, sorted, where each node has a route to each other one; none in other networks."""
    if mode != "routed":
        return []
    return sorted(str(host["address"]) for host in fleet_of(sources)["hosts"].values())


def pod_cidr(address: str, node_network: str, pod_network: str, prefix: int = 24) -> str:
    """Pod CIDR of a node from its address."""
    try:
        return fleet_pod_cidr(
            str(address), node_network=str(node_network), pod_network=str(pod_network), prefix=int(prefix)
        )
    except ValueError as error:
        raise AnsibleFilterError(f"no pod network for {address}: {error}") from error


class FilterModule:
    """The filters of the collection that come from the description."""

    def filters(self) -> dict[str, Any]:
        """Filters by name."""
        return {
            "fleet_objects": fleet_objects,
            "fleet_from_inventory": fleet_from_inventory,
            "fleet_problems": fleet_problems,
            "network_peers": network_peers,
            "node_labels": fleet_node_labels,
            "pod_cidr": pod_cidr,
            "system_fault": system_fault,
        }
