"""Filters over `myriad.fleet`: what follows from the description, for playbooks. The logic is in src/myriad/fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError
from myriad.fleet import Checked, RawInventory, check, inventory_from_groups, node_labels, objects_for_cluster_policy
from myriad.fleet import pod_cidr as fleet_pod_cidr
from myriad.fleet.labels import labels_from_variables
from myriad.fleet.portrait_spec import portrait_specs
from myriad.inventory import read_inventory
from myriad.roles import with_role_settings


def _refused(checked: Checked) -> AnsibleFilterError:
    lines = [
        f"{problem.origin.file + ': ' if problem.origin else ''}{problem.subject} {problem.message}"
        for problem in checked.errors
    ]
    return AnsibleFilterError("the description is wrong, nothing was touched:\n  " + "\n  ".join(lines))


def _checked(raw: RawInventory) -> Checked:
    checked = check(raw)
    if checked.errors:
        raise _refused(checked)
    return checked


def _read(sources: Any) -> RawInventory:
    if isinstance(sources, str):
        sources = [sources]
    if not isinstance(sources, Sequence) or not sources:
        raise AnsibleFilterError("give the inventory sources, as ansible_inventory_sources has them")
    return read_inventory(*(str(source) for source in sources))


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
    return objects_for_cluster_policy(_checked(raw).fleet)


def fleet_from_inventory(sources: Any) -> dict[str, Any]:
    """The whole fleet, read from the inventory sources in one go."""
    fleet = _checked(_read(sources)).fleet
    return {
        "cluster": fleet.cluster.model_dump(mode="json"),
        "hosts": {
            name: {**host.model_dump(mode="json"), "labels": node_labels(fleet, name)}
            for name, host in fleet.hosts.items()
        },
        "pools": {name: pool.model_dump(mode="json") for name, pool in fleet.pools.items()},
        "capacity": dict(fleet.capacity),
        "objects": objects_for_cluster_policy(fleet),
        "portraits": portrait_specs(fleet),
    }


def fleet_problems(sources: Any) -> list[dict[str, Any]]:
    """Everything that is wrong with the inventory sources: the description, and variables of the roles."""
    raw = _read(sources)
    checked = with_role_settings(check(raw), raw, Path(__file__).parents[2] / "roles")
    return [problem.as_dict() | {"subject": problem.subject} for problem in checked.problems]


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
            "node_labels": fleet_node_labels,
            "pod_cidr": pod_cidr,
        }
