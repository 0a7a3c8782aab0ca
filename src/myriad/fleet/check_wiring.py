"""Rules about cables: places of switches, interfaces of a fabric, thresholds of the burn-in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from myriad.fleet import fabric as fabrics
from myriad.fleet import model, names
from myriad.fleet.problems import Problem
from myriad.fleet.source import RawInventory


def check_wiring(fleet: model.Fleet, raw: RawInventory) -> Iterable[Problem]:
    """Problems of `myriad_topology`, `myriad_fabric` and `myriad_burn_in` against hosts and pools."""
    yield from _topology(fleet, raw)
    for variable, described in (("myriad_fabric", fleet.fabrics), ("myriad_burn_in", fleet.burn_in)):
        for pool in described:
            if pool not in fleet.pools:
                yield Problem(
                    "unknown-pool",
                    f'"{pool}" is not a pool{names.did_you_mean(pool, fleet.pools)}',
                    key=f"{variable}.{pool}",
                    origin=raw.origin_of((variable, pool)),
                )
    for pool, fabric in fleet.fabrics.items():
        if pool in fleet.pools:
            yield from _fabric(fleet, raw, pool, fabric)


def _topology(fleet: model.Fleet, raw: RawInventory) -> Iterable[Problem]:
    depth = len(fleet.cluster.topology_levels)
    known = {"/".join(place) for level in range(depth) for place in fleet.places(level)}
    hosts = {host.lower() for host in fleet.hosts}
    first: dict[str, str] = {}
    for switch, place in fleet.topology.switches.items():
        twin = first.setdefault(switch.lower(), switch)
        if fleet.topology.switches[twin] != place:
            yield Problem(
                "switch-twice",
                f"is {place}, but {twin} is {fleet.topology.switches[twin]}; upper and lower case do not tell switches "
                "apart: keep one",
                key=f"myriad_topology.switches.{switch}",
                origin=raw.origin_of(("myriad_topology", "switches", switch)),
            )
        if known and place not in known:
            alike = sorted(other for other in known if other.count("/") == place.count("/")) or sorted(known)
            yield Problem(
                "switch-place",
                f'is "{place}", where no node of the description stands; known: {names.listing(alike)}',
                key=f"myriad_topology.switches.{switch}",
                origin=raw.origin_of(("myriad_topology", "switches", switch)),
            )
        # A host by its own name or with a domain, in any case: what is seen is compared in the same way.
        if {switch.lower(), switch.lower().partition(".")[0]} & hosts:
            yield Problem(
                "switch-is-host",
                "is a host of the inventory; name the switch as it calls itself in LLDP",
                key=f"myriad_topology.switches.{switch}",
                origin=raw.origin_of(("myriad_topology", "switches", switch)),
            )
    for index, node in enumerate(fleet.topology.accept):
        if node not in fleet.hosts:
            yield Problem(
                "unknown-host",
                f'"{node}" is not a host of the inventory{names.did_you_mean(node, fleet.hosts)}',
                key=f"myriad_topology.accept[{index}]",
                origin=raw.origin_of(("myriad_topology", "accept", index)),
            )


def _given(raw: RawInventory, pool: str) -> bool:
    """Whether rails stand in the description, be they refused."""
    written = raw.variables.get("myriad_fabric")
    described = written.get(pool) if isinstance(written, Mapping) else None
    return isinstance(described, Mapping) and bool(described.get("rails"))


def _fabric(fleet: model.Fleet, raw: RawInventory, pool: str, fabric: model.Fabric) -> Iterable[Problem]:
    key = f"myriad_fabric.{pool}"

    def problem(rule: str, message: str, *steps: str | int) -> Problem:
        inner = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
        return Problem(rule, message, key=f"{key}{inner}", origin=raw.origin_of(("myriad_fabric", pool, *steps)))

    if not fabric.rails and not _given(raw, pool):
        yield problem("rails", "has no rails; list the interfaces, for example [{interface: ens1f0np0}]")
    if fabric.kind == "infiniband":
        if fabric.mtu > fabrics.IPOIB_MTU:
            yield problem(
                "mtu",
                f"is {fabric.mtu}; an InfiniBand interface takes at most {fabrics.IPOIB_MTU} (datagram mode)",
                "mtu",
            )
        for setting in ("pfc", "ecn"):
            if getattr(fabric, setting):
                yield problem("lossless", "is for RoCE; InfiniBand loses no packets by itself", setting)
    interfaces: dict[str, int] = {}
    for place, rail in enumerate(fabric.rails):
        first = interfaces.setdefault(rail.interface, place)
        if first != place:
            yield problem("rail-twice", f"is {rail.interface}, as rails[{first}] is", "rails", place, "interface")
    addresses: dict[str, str] = {}
    management = {host.address: host.name for host in fleet.hosts.values()}
    refused: set[int] = set()
    for host in fleet.hosts_by_pool.get(pool, ()):
        for place, rail in enumerate(fabric.rails):
            if place in refused:
                continue
            try:
                text = fabrics.address(rail.address, rail=place, node=host.name, management=host.address)
            except ValueError as error:
                refused.add(place)
                yield problem("rail-address", str(error), "rails", place, "address")
                continue
            ip = text.partition("/")[0]
            owner = addresses.setdefault(ip, f"{host.name} {rail.interface}") if ip else ""
            if ip and owner != f"{host.name} {rail.interface}":
                refused.add(place)
                yield problem(
                    "rail-address",
                    f'is "{rail.address}"; {host.name} {rail.interface} and {owner} would both be {ip}: '
                    "use {rail} and a part that differs from node to node",
                    "rails", place, "address",
                )  # fmt: skip
            elif ip in management:
                refused.add(place)
                yield problem(
                    "rail-address",
                    f'is "{rail.address}"; {host.name} would get {ip}, by which {management[ip]} is managed',
                    "rails", place, "address",
                )  # fmt: skip
