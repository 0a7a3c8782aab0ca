"""The description, read once for all tasks of a run.

ansible templates a variable anew wherever it is used, in a process of its own for each task and host. What follows from
the whole inventory would be read again each time: seconds for a large site, and a start of every inventory script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ansible.errors import AnsibleError, AnsibleFilterError
from myriad.errors import MyriadError
from myriad.fleet import Checked, RawInventory, check, node_labels, objects_for_cluster_policy
from myriad.fleet.access import access_objects
from myriad.fleet.portrait_spec import portrait_specs
from myriad.inventory import read_inventory

#: By the sources; filled before the first fork and never by a task, so that no two tasks of a run see different ones.
_kept: dict[tuple[str, ...], tuple[RawInventory, dict[str, Any] | None]] = {}


def keep(sources: Sequence[str]) -> None:
    """Read the description for all that follow. One that is wrong is told by the first task that needs it."""
    key = tuple(str(source) for source in sources)
    with suppress(AnsibleError, MyriadError):
        raw = read_inventory(*key)
        _kept[key] = raw, None
        _kept[key] = raw, _fleet(raw)


def forget() -> None:
    """Read anew from now on."""
    _kept.clear()


def raw_inventory(sources: Any) -> RawInventory:
    """What stands in the inventory sources.

    Raises:
        AnsibleFilterError: no sources are given.
    """
    key = _key(sources)
    return _kept[key][0] if key in _kept else read_inventory(*key)


def fleet_of(sources: Any) -> dict[str, Any]:
    """The whole fleet, and what follows from it.

    Raises:
        AnsibleFilterError: the description is wrong; the text holds everything that is.
    """
    key = _key(sources)
    kept = _kept.get(key)
    if kept is not None and kept[1] is not None:
        return kept[1]
    return _fleet(kept[0] if kept is not None else read_inventory(*key))


def checked(raw: RawInventory) -> Checked:
    """A description without errors."""
    found = check(raw)
    if found.errors:
        lines = [
            f"{problem.origin.file + ': ' if problem.origin else ''}{problem.subject} {problem.message}"
            for problem in found.errors
        ]
        raise AnsibleFilterError("the description is wrong, nothing was touched:\n  " + "\n  ".join(lines))
    return found


def _key(sources: Any) -> tuple[str, ...]:
    if isinstance(sources, str):
        sources = [sources]
    if isinstance(sources, Mapping) or not isinstance(sources, Sequence) or not sources:
        raise AnsibleFilterError("give the inventory sources, as ansible_inventory_sources has them")
    return tuple(str(source) for source in sources)


def _fleet(raw: RawInventory) -> dict[str, Any]:
    fleet = checked(raw).fleet
    return {
        "cluster": fleet.cluster.model_dump(mode="json"),
        "hosts": {
            name: {**host.model_dump(mode="json"), "labels": node_labels(fleet, name)}
            for name, host in fleet.hosts.items()
        },
        "pools": {name: pool.model_dump(mode="json") for name, pool in fleet.pools.items()},
        "capacity": dict(fleet.capacity),
        "objects": objects_for_cluster_policy(fleet),
        "access": access_objects(fleet),
        "portraits": portrait_specs(fleet),
    }
