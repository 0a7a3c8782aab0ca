"""Interfaces between GPUs: what each node gets from the description of its pool, and whether it has it. Pure.

An address follows from a pattern and the node's own name or address alone, so a node that is added or taken away
changes nobody else's.
"""

from __future__ import annotations

import ipaddress
import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from myriad.fleet.model import Fabric

FIELDS = ("rail", "number", "high", "low", "o1", "o2", "o3", "o4")
"""What an address pattern may name: the rail's place in the list (from 0), the last number in the node's name, that
number's two bytes, and the parts of the node's IPv4 address."""

IPOIB_MTU = 4092
"""Most that an IPoIB interface in datagram mode takes: 4096 of the link without its own header.
https://docs.kernel.org/infiniband/ipoib.html"""

_FORM = re.compile(r"(0?\d)?[dx]?", re.ASCII)
_LAST_NUMBER = re.compile(r"(\d+)\D*$")


@dataclass(frozen=True, slots=True)
class RailPlan:
    """One interface of one node. `address` with its prefix length, or empty."""

    interface: str
    address: str = ""

    @property
    def ip(self) -> str:
        """The address without its prefix length."""
        return self.address.partition("/")[0]


@dataclass(frozen=True, slots=True)
class NodePlan:
    """All interfaces of one node with their settings."""

    node: str
    kind: str
    mtu: int
    rails: tuple[RailPlan, ...]
    rate_gbit_s: int | None = None
    pfc: bool = False
    ecn: bool = False
    priority: int = 3
    trust: str = "dscp"

    def as_dict(self, *, peer: NodePlan | None = None) -> dict[str, Any]:
        """The plan as the node's program reads it.

        Args:
            peer: the node whose addresses are asked whether a packet of full size comes through.
        """
        theirs = {rail.interface: rail.ip for rail in peer.rails} if peer else {}
        return {
            "kind": self.kind,
            "mtu": self.mtu,
            "rate_gbit_s": self.rate_gbit_s,
            "pfc": self.pfc,
            "ecn": self.ecn,
            "priority": self.priority,
            "trust": self.trust,
            "rails": [
                {"interface": rail.interface, "address": rail.address, "peer": theirs.get(rail.interface, "")}
                for rail in self.rails
            ],
        }


def plan(node: str, management: str, fabric: Fabric) -> NodePlan:
    """Interfaces of one node.

    Args:
        node: its name.
        management: its ansible_host.
        fabric: the description of its pool's fabric.

    Raises:
        ValueError: a pattern gives no address; the message reads on from the pattern's key.
    """
    rails = tuple(
        RailPlan(rail.interface, address(rail.address, rail=index, node=node, management=management))
        for index, rail in enumerate(fabric.rails)
    )
    return NodePlan(
        node, fabric.kind, fabric.mtu, rails, fabric.rate_gbit_s, fabric.pfc, fabric.ecn, fabric.priority, fabric.trust
    )


def address(pattern: str | None, *, rail: int, node: str, management: str) -> str:
    """The address of a rail on a node, with prefix length; empty without a pattern.

    Raises:
        ValueError: the pattern names what is not known, or what comes out is no address.
    """
    if pattern is None:
        return ""
    number = _LAST_NUMBER.search(node)
    values: dict[str, int] = {"rail": rail}
    if number is not None:
        values["number"] = int(number[1])
        values["high"], values["low"] = divmod(int(number[1]), 256)
    try:
        octets = ipaddress.IPv4Address(management).packed
        values |= {f"o{place}": octet for place, octet in enumerate(octets, 1)}
    except ValueError:
        pass  # the host is reached by a name: patterns with {o1} to {o4} then say what they lack
    try:
        parts = [part for part in string.Formatter().parse(pattern) if part[1] is not None]
    except ValueError as error:
        raise ValueError(f'is "{pattern}"; the braces do not fit ({error})') from error
    for _, field, form, conversion in parts:
        if field not in FIELDS:
            raise ValueError(f'is "{pattern}"; {{{field}}} is not known: use {{{"}, {".join(FIELDS)}}}')
        if field not in values:
            lacks = (
                "a name without a number"
                if field in ("number", "high", "low")
                else f'"{management}" as ansible_host, no IPv4 address'
            )
            raise ValueError(f'is "{pattern}"; {node} has {lacks}, so {{{field}}} is not known')
        if conversion or not _FORM.fullmatch(form or ""):
            raise ValueError(
                f'is "{pattern}"; {{{field}{"!" if conversion else ":"}{conversion or form}}} is no number: '
                f"write {{{field}}}, or {{{field}:x}} for hexadecimal digits"
            )
    text = pattern.format(**values)
    try:
        interface = ipaddress.ip_interface(text)
    except ValueError:
        interface = None
    if interface is None or "/" not in text:
        raise ValueError(
            f'is "{pattern}", for {node} "{text}"; that is no address with prefix length such as 10.200.0.17/24'
        )
    network = interface.network
    if network.prefixlen < network.max_prefixlen - 1 and interface.ip in (
        network.network_address,
        network.broadcast_address,
    ):
        raise ValueError(f'is "{pattern}", for {node} "{text}"; that is the network\'s own address')
    return str(interface)


def peers(plans: Iterable[NodePlan]) -> dict[str, NodePlan]:
    """For each node of a pool the next one, round in a ring: whom it asks whether full-size packets come through."""
    ring = list(plans)
    return {here.node: ring[(place + 1) % len(ring)] for place, here in enumerate(ring) if len(ring) > 1}


def expected_interfaces(node: NodePlan) -> dict[str, dict[str, str | int | float]]:
    """What the gate expects of each interface: kind, MTU, and a rate where one is described."""
    wanted: dict[str, dict[str, str | int | float]] = {}
    for rail in node.rails:
        wanted[rail.interface] = {"kind": node.kind, "mtu": node.mtu}
        if node.rate_gbit_s is not None:
            wanted[rail.interface]["rate_gbit_s"] = node.rate_gbit_s
    return wanted


def interface_faults(
    expected: Mapping[str, Mapping[str, Any]], nics: Iterable[Mapping[str, Any]]
) -> list[tuple[str, str, str, str]]:
    """Interfaces that are not as described, each as (interface, expected, found, cause).

    Args:
        expected: interface to {kind, mtu, rate_gbit_s}, as `expected_interfaces` gives it.
        nics: the portrait's interfaces with name, state, mtu, kind, rate_gbit_s.
    """
    by_name = {str(nic["name"]): nic for nic in nics}
    faults = []
    for name, wanted in expected.items():
        nic = by_name.get(name)
        words = _words(wanted)
        if nic is None:
            there = ", ".join(sorted(by_name)) or "none"
            faults.append((name, words, "not there", f"{name} is described and not there; interfaces: {there}"))
            continue
        found = _words(nic) + ("" if nic.get("state") == "up" else ", down")
        if nic.get("state") != "up":
            faults.append((name, words, found, f"{name} is down: cable, transceiver or switch port"))
        elif wanted.get("kind") and nic.get("kind") != wanted["kind"]:
            faults.append((name, words, found, f"{name} is {nic.get('kind')}, described is {wanted['kind']}"))
        elif wanted.get("mtu") and nic.get("mtu") != wanted["mtu"]:
            faults.append((name, words, found, f"{name} has MTU {nic.get('mtu')}, described is {wanted['mtu']}"))
        elif wanted.get("rate_gbit_s") and float(nic.get("rate_gbit_s") or 0) < float(wanted["rate_gbit_s"]):
            faults.append(
                (
                    name,
                    words,
                    found,
                    f"{name} runs at {nic.get('rate_gbit_s') or 0:g} Gb/s, described is {wanted['rate_gbit_s']:g}: "
                    "a link that came up slower has a bad cable or a port set to another speed",
                )
            )
    return faults


def _words(nic: Mapping[str, Any]) -> str:
    parts = [str(nic.get("kind") or "")]
    if nic.get("rate_gbit_s"):
        parts.append(f"{nic['rate_gbit_s']:g} Gb/s")
    if nic.get("mtu"):
        parts.append(f"MTU {nic['mtu']}")
    return ", ".join(part for part in parts if part)
