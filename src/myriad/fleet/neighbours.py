"""What a node sees at the other end of its cables, read from what the tools print. Pure: text in, sightings out.

Three witnesses, each in its own words, become one kind of `Sighting`:

- LLDP: `lldpcli -f json0 show neighbors details` of lldpd, on the node. The neighbour is the switch that it hangs on.
- InfiniBand: `ibnetdiscover`, run once anywhere in the fabric. It lists switches with the host channel adapter behind
  each port.
- NVLink: cluster UUID and clique of a GPU fabric (`nvidia-smi -q`, section Fabric). Nodes with one UUID and clique
  stand in one NVLink domain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Source = Literal["LLDP", "ibnetdiscover", "NVLink"]

NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
"""Cluster UUID of GPUs that form no fabric beyond their own board."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """One end of a cable, seen from a node.

    Attributes:
        node: host that saw it, by its name in the inventory.
        peer: what it saw: the switch's system name, or its chassis id or GUID where it has no name.
        source: how it was seen.
        interface: the node's own port (`eth0`, `mlx5_0`).
        port: the peer's port, as the peer names it; empty where the witness does not tell.
        chassis: the peer's chassis id or GUID, a second name for it.
        at: when this was first seen so (ISO 8601, UTC); empty where the witness does not tell.
    """

    node: str
    peer: str
    source: Source = "LLDP"
    interface: str = ""
    port: str = ""
    chassis: str = ""
    at: str = ""


class NeighbourFormatError(ValueError):
    """The text is not what the tool prints; the message says what was found instead."""


def lldp_sightings(node: str, text: str) -> tuple[Sighting, ...]:
    """Neighbours from `lldpcli -f json0 show neighbors details`.

    json0 is the form whose shape does not depend on how many neighbours there are; the shorter `json` is read too.
    lldpd prints ages and no times: whoever asks adds the time.

    Raises:
        NeighbourFormatError: the text is no JSON of lldpcli.
    """
    try:
        document = json.loads(text or "{}")
    except ValueError as error:
        raise NeighbourFormatError(f"lldpcli printed no JSON ({error}): {text.strip()[:80]!r}") from error
    if not isinstance(document, Mapping) or (document and "lldp" not in document):
        raise NeighbourFormatError(f'lldpcli printed JSON without "lldp": {text.strip()[:80]!r}')
    found = []
    for interface, body in _interfaces(document.get("lldp", [])):
        chassis = _first(body.get("chassis"))
        name = _text(chassis.get("name"))
        if not name and len(chassis) == 1 and "id" not in chassis:
            # The form `json` files the chassis under its own name.
            name, inner = next(iter(chassis.items()))
            chassis = _first(inner)
        identity = _text(chassis.get("id"))
        port = _first(body.get("port"))
        label = _text(port.get("descr")) or _text(port.get("id"))
        if (name or identity) and not _is_phone(chassis):
            found.append(
                Sighting(node, str(name) or identity, "LLDP", interface, _text(port.get("id")) or label, identity)
            )
    return tuple(found)


def _interfaces(value: Any) -> Iterable[tuple[str, Mapping[str, Any]]]:
    for holder in value if isinstance(value, list) else [value]:
        interfaces = holder.get("interface", []) if isinstance(holder, Mapping) else []
        for item in interfaces if isinstance(interfaces, list) else [interfaces]:
            if not isinstance(item, Mapping):
                continue
            if "chassis" in item:
                yield _text(item.get("name")), item
            else:
                yield from ((str(name), body) for name, body in item.items() if isinstance(body, Mapping))


def _first(value: Any) -> Mapping[str, Any]:
    if isinstance(value, list):
        value = value[0] if value else {}
    return value if isinstance(value, Mapping) else {}


def _is_phone(chassis: Mapping[str, Any]) -> bool:
    """Whether a neighbour says that it is a telephone: one has a bridge inside for the desk behind it, and no place."""
    given = chassis.get("capability")
    listed = given if isinstance(given, list) else [given]
    return any(isinstance(one, Mapping) and one.get("type") == "Tel" and one.get("enabled") is True for one in listed)


def _text(value: Any) -> str:
    """The text of a leaf: `"eth0"`, `{"value": "eth0"}` or a list of one of them."""
    if isinstance(value, list):
        value = value[0] if value else ""
    if isinstance(value, Mapping):
        value = value.get("value", "")
    return str(value).strip() if value is not None else ""


# Switch	36 "S-0002c9030060dc20"		# "MF0;tor-a:SX6036/U1" enhanced port 0 lid 3 lmc 0
# [1]	"H-0002c903000e0b72"[1](2c903000e0b73) 		# "gpu1 mlx5_0" lid 5 4xHDR
# Format: ibnetdiscover(8), section TOPOLOGY FILE FORMAT.
_SWITCH = re.compile(r'^Switch\s+(?P<ports>\d+)\s+"S-(?P<guid>[0-9a-f]{16})"\s*#\s*"(?P<name>[^"]*)"')
_PORT = re.compile(
    r'^\[(?P<port>\d+)\](?:\[ext \d+\])?\s+"(?P<kind>[HSR])-(?P<guid>[0-9a-f]{16})"\[(?P<peer_port>\d+)\]'
    r'(?:\[ext \d+\])?(?:\([0-9a-f]+\))?\s*#\s*"(?P<name>[^"]*)"'
)
_OTHER = re.compile(r"^(Ca|Rt)\s")
# Managed switches say "MF0;NAME:MODEL/U1" (Mellanox node description); the name stands between.
_MANAGED = re.compile(r"^MF0;(?P<name>[^:;]+)[:;]")


def ib_sightings(text: str) -> tuple[Sighting, ...]:
    """Which host hangs on which leaf switch, from the output of `ibnetdiscover`.

    A host's channel adapter describes itself as `HOST DEVICE` (rdma-ndd writes it so); the first word is the node.

    Raises:
        NeighbourFormatError: no switch is in the text.
    """
    found: list[Sighting] = []
    switch: tuple[str, str] | None = None
    seen_switch = False
    for line in text.splitlines():
        if (head := _SWITCH.match(line)) is not None:
            seen_switch = True
            managed = _MANAGED.match(head["name"])
            name = managed["name"] if managed else head["name"].strip()
            switch = (name or f"0x{head['guid']}", f"0x{head['guid']}")
        elif _OTHER.match(line):
            switch = None
        elif switch is not None and (port := _PORT.match(line)) is not None and port["kind"] == "H":
            words = port["name"].split()
            # The subnet manager's own adapter of a switch ("Mellanox Technologies Aggregation Node") is no host.
            if words and "Aggregation" not in words:
                found.append(
                    Sighting(
                        words[0].split(".")[0],
                        switch[0],
                        "ibnetdiscover",
                        words[1] if len(words) > 1 else f"port {port['peer_port']}",
                        port["port"],
                        switch[1],
                    )
                )
    if not seen_switch:
        raise NeighbourFormatError(
            'no switch is in it; expected the output of ibnetdiscover, with lines such as Switch 40 "S-..."'
        )
    return tuple(found)


def nvlink_sightings(node: str, fabrics: Iterable[tuple[str, str]], *, at: str = "") -> tuple[Sighting, ...]:
    """The NVLink domains of a node's GPUs, each once.

    Args:
        node: the node.
        fabrics: cluster UUID and clique id of each GPU. GPUs of a board of its own have a UUID of zeros or none.
        at: when they were read.
    """
    domains = {
        (cluster.strip().lower(), str(clique).strip())
        for cluster, clique in fabrics
        if re.fullmatch(r"[0-9a-fA-F-]{32,36}", cluster.strip()) and cluster.strip() != NO_CLUSTER
    }
    return tuple(
        Sighting(node, f"{cluster}/{clique}", "NVLink", "GPU fabric", at=at) for cluster, clique in sorted(domains)
    )
