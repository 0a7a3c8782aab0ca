"""How many nodes may pull at once, so that no uplink of a rack and no registry carries more than it may. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from myriad.errors import InputError


@dataclass(frozen=True, slots=True)
class Limits:
    """What a rollout may take of the network, and when it gives up.

    A runtime has no brake on its pulls. So a node counts with the most that it can draw (`node_gbit`: its own link, or
    what it manages to unpack), and as many pull at once as fit under both caps: the rates stay below them whatever the
    nodes do.

    Attributes:
        registry_gbit, rack_gbit: Gbit/s that one registry may serve, and that may go into one rack.
        registry_nodes, rack_nodes: nodes that may pull from one registry, and in one rack, at a time.
        node_gbit: the most that one node draws, in Gbit/s.
        jitter_s: a node waits up to so long before its pull, so that a wave does not begin with one knock on the door.
        failure_share: share of the nodes tried so far that may fail before no further wave begins.
        failures: that many may fail whatever the share is: of 13 nodes one bad one is no sign of a bad image.
    """

    registry_gbit: float = 20.0
    rack_gbit: float = 10.0
    registry_nodes: int = 64
    rack_nodes: int = 8
    node_gbit: float = 2.5
    jitter_s: float = 2.0
    failure_share: float = 0.05
    failures: int = 1

    @classmethod
    def read(cls, given: dict[str, Any] | None) -> Limits:
        """From a mapping. Raises InputError that names what is wrong with it."""
        known = {field.name: field for field in fields(cls)}
        if given is not None and not isinstance(given, dict):
            raise InputError(f"the limits of a prewarm are {given!r}; they are names with numbers")
        for name, value in (given or {}).items():
            if name not in known:
                raise InputError(f'"{name}" is no limit of a prewarm', hint=f"there are {', '.join(known)}")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"the limit {name} is {value!r}; it is a number")
            if not math.isfinite(value):
                raise InputError(f"the limit {name} is {value}; it is a number with an end")
            if value < 0 or (value == 0 and name not in ("jitter_s", "failure_share", "failures")):
                raise InputError(f"the limit {name} is {value}; it is above 0")
            if known[name].type == "int" and value != int(value):
                raise InputError(f"the limit {name} is {value}; it is a whole number")
        limits = cls(**(given or {}))
        if limits.failure_share > 1:
            raise InputError(f"the limit failure_share is {limits.failure_share}; it is a share from 0 to 1")
        for name, cap in (("registry_gbit", limits.registry_gbit), ("rack_gbit", limits.rack_gbit)):
            if cap < limits.node_gbit:
                raise InputError(
                    f"the limit {name} is {cap:g}, below the {limits.node_gbit:g} Gbit/s that a single node draws "
                    "(node_gbit): no node could ever pull",
                    hint=f"raise {name}, or lower node_gbit if the nodes have slower links",
                )
        return limits

    @property
    def registry_slots(self) -> int:
        """Nodes that may pull from one registry at a time, by both caps."""
        return min(int(self.registry_nodes), _whole(self.registry_gbit / self.node_gbit))

    @property
    def rack_slots(self) -> int:
        """Nodes of one rack that may pull at a time, by both caps."""
        return min(int(self.rack_nodes), _whole(self.rack_gbit / self.node_gbit))


def _whole(quotient: float) -> int:
    # 10 / 2.5 must be 4 however it is rounded in between.
    return int(quotient + 1e-9)
