"""Filter over `myriad.fleet.portrait_spec`: the NodePortrait objects of a site. The logic is in src/myriad/fleet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from myriad.fleet.portrait_spec import node_portraits as fleet_portraits


def node_portraits(
    specs: Mapping[str, Mapping[str, Any]], site: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """NodePortrait objects from `fleet_from_inventory(...).portraits` and what a site sets for all nodes.

    `site` may hold `versions`, `registry`, `images`, `taints`, `label_sets` and `zone_level`.
    """
    if not isinstance(specs, Mapping):
        raise AnsibleFilterError("node_portraits takes the specs by host, as fleet_from_inventory gives them")
    try:
        return fleet_portraits(_plain(specs), **_plain(dict(site or {})))
    except (TypeError, ValueError) as error:
        raise AnsibleFilterError(f"the NodePortraits cannot be derived: {error}") from error


def _plain(value: Any) -> Any:
    """Variables whose parts are still to be templated, as plain values: pydantic looks past Python's iteration."""
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in value}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


class FilterModule:
    """The filters of the collection that are about portraits."""

    def filters(self) -> dict[str, Any]:
        """Filters by name."""
        return {"node_portraits": node_portraits}
