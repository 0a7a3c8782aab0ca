"""Filters about the GPU gate. The logic is in src/myriad/agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from myriad.agent.brake import sizes


def brake_sizes(nodes: Any) -> dict[str, Any]:
    """GPU nodes per pool, block and rack, from Node objects with the description's labels."""
    if not isinstance(nodes, Sequence) or isinstance(nodes, str) or not all(isinstance(n, Mapping) for n in nodes):
        raise AnsibleFilterError("brake_sizes takes a list of Node objects with their labels")
    return sizes(nodes)


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Name to function."""
        return {"brake_sizes": brake_sizes}
