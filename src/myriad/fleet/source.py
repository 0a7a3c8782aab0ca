"""What a reader of inventories hands to the checks: plain data with its origin, nothing judged yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from myriad.fleet.problems import Origin, Problem

KeyPath = tuple[str | int, ...]


@dataclass(slots=True)
class RawGroup:
    """An inventory group.

    Attributes:
        parents: groups that list it as a child.
        children: groups that it lists.
        hosts: hosts that it lists itself (not those of its children).
        variables: description variables that are set for it, merged from the inventory and group_vars.
        origin: where it is defined.
        origins: where each of its variables was written.
    """

    name: str
    parents: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    variables: dict[str, Any] = field(default_factory=dict)
    origin: Origin | None = None
    origins: dict[str, Origin] = field(default_factory=dict)


@dataclass(slots=True)
class RawHost:
    """A host with the variables that Ansible would give it (description variables and `ansible_host` only).

    Attributes:
        groups: every group that it is in, those of parents included.
        own: names of the variables that were set for the host itself rather than for a group.
    """

    name: str
    groups: frozenset[str] = frozenset()
    variables: dict[str, Any] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    origin: Origin | None = None
    origins: dict[str, Origin] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RawSetting:
    """A variable that is not of the description, where it was set: a role may take it.

    Attributes:
        holder: `group NAME` or `host NAME`.
        value: plain data; templates in it are not resolved.
    """

    name: str
    value: Any
    holder: str
    origin: Origin | None = None


@dataclass(slots=True)
class RawInventory:
    """Everything that was read.

    Attributes:
        name: the inventory as the user named it.
        variables: description variables of group `all`.
        origins: where each key of them was written, by its path; a missing path is looked up at its parents.
        settings: variables of groups and hosts that are not of the description, in the order in which they were read.
        problems: what was already wrong while reading (syntax, duplicate keys, templates).
        complete: False where hosts or variables are missing because they could not be read. Then only what was read is
            checked: what is missing would only lead to false complaints.
    """

    name: str = "inventory"
    groups: dict[str, RawGroup] = field(default_factory=dict)
    hosts: dict[str, RawHost] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    settings: list[RawSetting] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    complete: bool = True

    def origin_of(self, path: KeyPath) -> Origin | None:
        """Where the value at `path` was written, or the nearest part around it."""
        for length in range(len(path), 0, -1):
            found = self.origins.get(path[:length])
            if found is not None:
                return found
        return None


def inventory_from_groups(
    variables: Mapping[str, Any],
    groups: Mapping[str, list[str]],
    *,
    locations: Mapping[str, Any] | None = None,
    addresses: Mapping[str, str] | None = None,
    gpus: Mapping[str, int] | None = None,
    name: str = "inventory",
) -> RawInventory:
    """Raw data from what a running playbook knows: description variables and the magic variable `groups`.

    Args:
        variables: `myriad_*` variables by name; other names are left out.
        groups: group name to all of its hosts, those of child groups included (as Ansible gives it).
        locations: `myriad_location` by host.
        addresses: `ansible_host` by host; a missing one is the host's name.
        gpus: `myriad_gpus` by host.
        name: what to call the inventory in messages.
    """
    hosts: dict[str, RawHost] = {}
    membership: dict[str, set[str]] = {}
    for group, members in groups.items():
        for host in members:
            membership.setdefault(str(host), set()).add(str(group))
    for host, its_groups in membership.items():
        values: dict[str, Any] = {}
        for variable, given in (
            ("myriad_location", locations),
            ("ansible_host", addresses),
            ("myriad_gpus", gpus),
        ):
            if given is not None and given.get(host) is not None:
                values[variable] = given[host]
        hosts[host] = RawHost(
            name=host, groups=frozenset(its_groups | {"all"}), variables=values, own=frozenset(values)
        )
    # The magic variable has lost which group is a child of which; it is taken to be below what holds all its hosts.
    pool_of = {host: group for group, members in groups.items() if group.startswith("pool_") for host in members}
    gpu_nodes = set(groups.get("gpu_nodes", ()))
    raw_groups: dict[str, RawGroup] = {}
    for group, members in groups.items():
        parent = "all"
        if group.startswith("pool_"):
            parent = "gpu_nodes" if members and gpu_nodes.issuperset(members) else "all"
        elif group not in {"all", "gpu_nodes", "control_plane"} and members:
            pools = {pool_of.get(host, "all") for host in members}
            parent = pools.pop() if len(pools) == 1 else "all"
        raw_groups[group] = RawGroup(name=group, parents=(parent,), hosts=tuple(members))
    for child in raw_groups.values():
        for parent in child.parents:
            if parent in raw_groups and parent != child.name:
                raw_groups[parent].children += (child.name,)
    described = {key: value for key, value in variables.items() if key.startswith("myriad_")}
    return RawInventory(name=name, groups=raw_groups, hosts=hosts, variables=described)
