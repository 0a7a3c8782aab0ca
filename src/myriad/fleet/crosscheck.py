"""Does the description put the nodes where their cables say they are? Pure: places and sightings in, a report out.

Three ways, by what is known:

- The description names switches and their places (`myriad_topology.switches`): a node must stand where the switches
  stand that it hangs on. `check_node` does that for one node from what that node alone knows, so that each node's
  agent judges itself and nothing central has to ask 5,000 of them; `cross_check` does it for the whole site and finds
  out who was swapped with whom.
- It names none: nodes of one rack share their switches, nodes of two racks do not. Where most nodes of a switch are
  described in one place, the others are the odd ones out; where there is no majority, all of them are named.
- The NVLink domain of GPUs is a switch of the second kind without a name.

A switch may stand at any level: a leaf of a rail fabric serves a block, `{leaf-b1-rail0: hall1/b1}`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from myriad.fleet.neighbours import Sighting
from myriad.fleet.problems import host_ranges, natural

Place = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A node that is described in one place and seen in another.

    Attributes:
        node: the node.
        described: its place in the description.
        found: the place of what it hangs on; empty where nothing tells that place.
        sightings: what says so.
        swapped_with: the node that is described where this one was found, and found where this one is described.
        accepted: the description accepts it (`myriad_topology.accept`).
        message: both sides, and what to do.
    """

    node: str
    described: Place
    found: Place
    sightings: tuple[Sighting, ...]
    message: str
    swapped_with: str = ""
    accepted: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "node": self.node,
            "described": "/".join(self.described),
            "found": "/".join(self.found),
            "swapped_with": self.swapped_with or None,
            "accepted": self.accepted,
            "message": self.message,
            "sightings": [_sighting_dict(sighting) for sighting in self.sightings],
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What the cables say about the whole description.

    Attributes:
        mismatches: nodes that stand elsewhere than described, accepted ones too.
        unseen: nodes of which no sighting came.
        unknown: nodes that hang on switches only that the description does not name, though it names others:
            node -> these switches.
        agreeing: nodes whose cables agree with the description.
        inferred: places of switches that the description does not name, worked out from most of their nodes.
        unused: described switches that no node hangs on.
    """

    mismatches: tuple[Mismatch, ...] = ()
    unseen: tuple[str, ...] = ()
    unknown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    agreeing: tuple[str, ...] = ()
    inferred: Mapping[str, Place] = field(default_factory=dict)
    unused: tuple[str, ...] = ()

    @property
    def open(self) -> tuple[Mismatch, ...]:
        """Mismatches that nobody accepted."""
        return tuple(mismatch for mismatch in self.mismatches if not mismatch.accepted)

    @property
    def ok(self) -> bool:
        """Whether nothing contradicts the description. That a node was not seen contradicts nothing."""
        return not self.open

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "ok": self.ok,
            "mismatches": [mismatch.as_dict() for mismatch in self.mismatches],
            "agreeing": list(self.agreeing),
            "unseen": list(self.unseen),
            "unknown_switches": {node: list(switches) for node, switches in self.unknown.items()},
            "inferred_switches": {switch: "/".join(place) for switch, place in self.inferred.items()},
            "unused_switches": list(self.unused),
        }


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """What one node's own cables say about its place.

    Attributes:
        ok: False keeps the node out.
        expected: for a table: the place and the switches that stand there.
        found: for a table: what the node hangs on.
        cause: one sentence; empty when ok.
        next: what to do; empty when ok.
    """

    ok: bool
    expected: str
    found: str
    cause: str = ""
    next: str = ""


def switches_near(switches: Mapping[str, str], place: Sequence[str]) -> dict[str, str]:
    """The switches that one node has to know: those of the place around its own (its block), with their places.

    The whole table in every node's object would cost nodes times switches; the neighbours of a node that was put into
    the wrong rack are nearly always those of another rack close by, and a name from farther away is wrong as well.
    """
    around = tuple(place[:-1])
    near = {}
    for name, written in switches.items():
        at = tuple(written.split("/"))
        if _within(at, around) or _within(tuple(place), at):
            near[name] = written
    return near


def check_node(
    node: str,
    place: Sequence[str],
    switches: Mapping[str, str],
    sightings: Iterable[Sighting],
    *,
    required: bool = False,
    accepted: bool = False,
) -> NodeFinding:
    """Judge one node by what it sees itself.

    Args:
        node: the node.
        place: its place in the description.
        switches: switches that it may know (`switches_near`), name to place. Empty: nothing is asked.
        sightings: what it sees now.
        required: a node that sees nothing stays out (`myriad_topology.required`).
        accepted: the description accepts whatever it sees.
    """
    sightings = list(sightings)
    here = tuple(place)
    where = "/".join(here)
    seen = sorted({sighting.peer for sighting in sightings})
    known = _Switches(switches)
    own = sorted(name for name, at in known.places.items() if _within(here, at))
    expected = f"{where} ({', '.join(own)})" if own else where
    placed = [(sighting, at) for sighting in sightings if (at := known.place_of(sighting)) is not None]
    found = ", ".join(seen) or "no neighbour"
    if accepted:
        return NodeFinding(True, expected, f"{found}, accepted by myriad_topology.accept")
    if not own:
        return NodeFinding(True, expected, f"{found}; myriad_topology names no switch of {where}")
    wrong = [(sighting, at) for sighting, at in placed if not _within(here, at)]
    if wrong:
        # Of several, the one that tells most: the switch at the deepest place.
        sighting, at = max(wrong, key=lambda pair: len(pair[1]))
        return NodeFinding(False, expected, found, _sentence(node, here, at, sighting), _advice(node, found_place=at))
    if placed:
        return NodeFinding(True, expected, found)
    if seen:
        return NodeFinding(False, expected, found, _strange(node, here, own, sightings), _advice(node, found_place=()))
    if not required:
        return NodeFinding(True, expected, f"{found}; nothing contradicts the description")
    cause = f"{node} sees no neighbour; {_and(own)} should be at the other end of its cable"
    return NodeFinding(
        False,
        expected,
        found,
        cause,
        f"`lldpcli show neighbors` on {node}: is lldpd running, LLDP on at the switch, the cable in? "
        f"Or accept it with myriad_topology.accept: [{node}].",
    )


def cross_check(
    locations: Mapping[str, Sequence[str]],
    sightings: Iterable[Sighting],
    *,
    switches: Mapping[str, str] | None = None,
    accept: Iterable[str] = (),
    hosts: Iterable[str] = (),
) -> Report:
    """Compare the description of a site with everything that its nodes see. Linear in nodes and sightings.

    Args:
        locations: node to place, from the description; nodes without a place are left out by the caller.
        sightings: of all nodes and witnesses; those of strangers are ignored, and so is a node that sees a node.
        switches: switch name (or chassis id, or GUID) to place; None or empty: places are inferred.
        accept: nodes whose mismatch is accepted.
        hosts: other machines of the inventory; a neighbour that is one of them, or a node, is no switch.
    """
    known = _Switches(switches or {})
    places = {node: tuple(place) for node, place in locations.items() if place}
    machines = {_plain(name) for name in (*places, *hosts)}
    by_node: dict[str, list[Sighting]] = defaultdict(list)
    for sighting in sightings:
        is_machine = _plain(sighting.peer) in machines or _short(sighting.peer) in machines
        # A switch that is described is one, whatever else bears its name.
        if sighting.node in places and (not is_machine or known.name_of(sighting) is not None):
            by_node[sighting.node].append(sighting)
    key_of = _keys(sighting for seen in by_node.values() for sighting in seen)
    unnamed: dict[str, list[Sighting]] = defaultdict(list)
    for seen in by_node.values():
        for sighting in seen:
            if known.place_of(sighting) is None:
                unnamed[key_of(sighting)].append(sighting)
    inferred, doubtful = _infer(places, unnamed, named=known.sources(by_node))
    doubts = _doubts(places, doubtful, by_node, set(accept))
    served: dict[Place, list[str]] = defaultdict(list)
    for name, stands in known.places.items():
        served[stands].append(name)
    mismatches: list[Mismatch] = []
    found: dict[str, list[tuple[Sighting, Place]]] = {}
    strange: dict[str, tuple[str, ...]] = {}
    agreeing = []
    for node, here in places.items():
        seen = by_node.get(node, [])
        placed = [
            (sighting, at)
            for sighting in seen
            if (at := known.place_of(sighting) or inferred.get(key_of(sighting))) is not None
        ]
        wrong = [(sighting, at) for sighting, at in placed if not _within(here, at)]
        if wrong:
            found[node] = wrong
        elif node in doubts:
            mismatches.append(doubts[node])
        elif placed:
            agreeing.append(node)
        elif seen:
            strange[node] = tuple(sorted({sighting.peer for sighting in seen}))
            own = sorted(name for depth in range(len(here) + 1) for name in served.get(here[:depth], ()))
            if own:
                message = f"{_strange(node, here, own, seen)}. {_advice(node, found_place=())}"
                mismatches.append(Mismatch(node, here, (), tuple(seen), message, accepted=node in set(accept)))
    mismatches += _mismatches(places, found, set(accept))
    used = {known_as for seen in by_node.values() for sighting in seen if (known_as := known.name_of(sighting))}
    return Report(
        mismatches=tuple(sorted(mismatches, key=lambda mismatch: natural(mismatch.node))),
        unseen=tuple(node for node in places if node not in by_node),
        unknown=strange,
        agreeing=tuple(agreeing),
        inferred={
            key.split(" ", 1)[1]: place
            for key, place in inferred.items()
            if not all(sighting.node in doubts for sighting in unnamed[key])
        },
        unused=tuple(name for name in (switches or {}) if name not in used),
    )


def _keys(sightings: Iterable[Sighting]) -> Callable[[Sighting], str]:
    """Source and name of a switch as one text. Switches that were never given a name of their own ("switch") have one
    name and several chassis; their chassis tell them apart then."""
    first: dict[tuple[str, str], str] = {}
    chassis: dict[tuple[str, str], set[str]] = defaultdict(set)
    for sighting in sightings:
        name = (sighting.source, _plain(sighting.peer))
        first.setdefault(name, sighting.peer)
        if sighting.chassis:
            chassis[name].add(_plain(sighting.chassis))

    def key(sighting: Sighting) -> str:
        name = (sighting.source, _plain(sighting.peer))
        several = f" ({sighting.chassis.lower()})" if len(chassis[name]) > 1 and sighting.chassis else ""
        return f"{sighting.source} {first[name]}{several}"

    return key


class _Switches:
    """Described switches by any of their names; upper and lower case and a domain do not count.

    A host name that is that of switches of different places without its domain names none of them.
    """

    def __init__(self, switches: Mapping[str, str]) -> None:
        self.places: dict[str, Place] = {name: tuple(place.split("/")) for name, place in switches.items()}
        self._names: dict[str, str] = {}
        for name in switches:
            self._names.setdefault(_plain(name), name)
        short: dict[str, list[str]] = defaultdict(list)
        for name in switches:
            short[_short(name)].append(name)
        for said, alike in short.items():
            if len({self.places[name] for name in alike}) == 1:
                self._names.setdefault(said, alike[0])

    def name_of(self, sighting: Sighting) -> str | None:
        for said in (_plain(sighting.peer), _plain(sighting.chassis), _short(sighting.peer)):
            name = self._names.get(said) if said else None
            if name is not None:
                return name
        return None

    def place_of(self, sighting: Sighting) -> Place | None:
        name = self.name_of(sighting)
        return self.places[name] if name is not None else None

    def sources(self, by_node: Mapping[str, Sequence[Sighting]]) -> set[str]:
        """Witnesses that saw a described switch."""
        return {sighting.source for seen in by_node.values() for sighting in seen if self.name_of(sighting) is not None}


_HARDWARE = re.compile(r"(?:0x)?([0-9a-f]{2}(?:[:.-]?[0-9a-f]{2}){5}(?:(?:[:.-]?[0-9a-f]{2}){2})?)")


def _plain(name: str) -> str:
    """A name as it is compared: `AA:BB:CC:00:00:01`, `aabb.cc00.0001` and `aa-bb-cc-00-00-01` are one chassis."""
    text = name.strip().lower()
    hardware = _HARDWARE.fullmatch(text)
    return re.sub(r"[:.-]", "", hardware[1]) if hardware else text


def _short(name: str) -> str:
    """A host name without its domain. An address is no host name: its parts by themselves name nothing."""
    plain = _plain(name)
    first = plain.partition(".")[0]
    return plain if first.isdecimal() else first


def _within(place: Place, around: Place) -> bool:
    return place[: len(around)] == around


def _infer(
    places: Mapping[str, Place], unnamed: Mapping[str, Sequence[Sighting]], *, named: set[str]
) -> tuple[dict[str, Place], dict[str, list[Sighting]]]:
    """Places of switches from most of their nodes; and the switches of which no majority tells the place.

    A witness whose switches the description names is not guessed at: a switch that it leaves out is a stranger.
    """
    inferred: dict[str, Place] = {}
    doubtful: dict[str, list[Sighting]] = {}
    by_source: dict[str, list[str]] = defaultdict(list)
    for key in unnamed:
        by_source[key.split(" ", 1)[0]].append(key)
    for source, keys in by_source.items():
        if source in named:
            continue
        nodes = {key: sorted({sighting.node for sighting in unnamed[key]}, key=natural) for key in keys}
        level = _level(places, nodes.values(), deepest_only=source == "LLDP")
        for key in keys:
            votes = Counter(places[node][:level] for node in nodes[key])
            place, count = votes.most_common(1)[0]
            if len(votes) > 1 and count * 2 <= len(nodes[key]):
                doubtful[key] = list(unnamed[key])
            else:
                inferred[key] = place
    return inferred, doubtful


def _level(places: Mapping[str, Place], groups: Iterable[Sequence[str]], *, deepest_only: bool) -> int:
    """At how many steps from the outside the switches of a witness stand: the deepest at which half of them are pure.

    A top-of-rack switch (LLDP) stands in a rack; a leaf of a rail fabric may serve a block.
    """
    members = [nodes for nodes in groups if nodes]
    deepest = max(len(places[node]) for nodes in members for node in nodes)
    if deepest_only:
        return deepest
    for level in range(deepest, 0, -1):
        pure = sum(len({places[node][:level] for node in nodes}) == 1 for nodes in members)
        if pure * 2 >= len(members):
            return level
    return 1


def _mismatches(
    places: Mapping[str, Place], found: Mapping[str, Sequence[tuple[Sighting, Place]]], accept: set[str]
) -> list[Mismatch]:
    """One for each node, with its partner where two were swapped."""
    at: dict[str, tuple[Sighting, Place]] = {
        node: max(wrong, key=lambda pair: len(pair[1])) for node, wrong in found.items()
    }
    partners: dict[str, str] = {}
    waiting: dict[tuple[Place, Place], list[str]] = defaultdict(list)
    for node in sorted(at, key=natural):
        place = at[node][1]
        here = places[node][: len(place)]
        if waiting[(place, here)]:
            other = waiting[(place, here)].pop(0)
            partners[node], partners[other] = other, node
        else:
            waiting[(here, place)].append(node)
    result = []
    for node, (sighting, place) in at.items():
        partner = partners.get(node, "")
        message = _sentence(node, places[node], place, sighting) + "."
        if partner:
            theirs = at[partner][0]
            message += (
                f" {partner} the other way round: {_place(places[partner])} in the description, its neighbour is "
                f"{theirs.peer}{_seen(theirs)}: {_and(sorted((node, partner), key=natural))} are swapped."
            )
        message += f" {_advice(node, found_place=place, partner=partner)}"
        result.append(
            Mismatch(
                node, places[node], place, tuple(one for one, _ in found[node]), message,
                swapped_with=partner, accepted=node in accept,
            )
        )  # fmt: skip
    return result


def _doubts(
    places: Mapping[str, Place],
    doubtful: Mapping[str, Sequence[Sighting]],
    by_node: Mapping[str, Sequence[Sighting]],
    accept: set[str],
) -> dict[str, Mismatch]:
    """Nodes that share a switch but no place, where no majority tells who is right: all of them, each once.

    Nodes that are described in the same places and hang on another switch belong to the doubt: one of them may be the
    partner of a swap.
    """
    result: dict[str, Mismatch] = {}
    described: dict[Place, list[str]] = defaultdict(list)
    for node, place in places.items():
        described[place].append(node)
    for key, sightings in doubtful.items():
        source, switch = key.split(" ", 1)
        on = sorted({sighting.node for sighting in sightings}, key=natural)
        around = sorted({places[node] for node in on})
        elsewhere = {
            node: sighting
            for place in around
            for node in described[place]
            if node not in on
            for sighting in by_node.get(node, ())
            if sighting.source == source
        }
        said = "; ".join(
            f"{host_ranges([node for node in on if places[node] == place])} in {_place(place)}" for place in around
        )
        said += "".join(
            f"; {node}, described in {_place(places[node])} too, hangs on {sighting.peer}"
            for node, sighting in sorted(elsewhere.items(), key=lambda pair: natural(pair[0]))[:4]
        )
        first = {sighting.node: sighting for sighting in reversed(sightings)} | elsewhere
        for node, sighting in first.items():
            message = (
                f"{switch} joins nodes of different places ({source}{_on(sightings[0])}): {said}. "
                "No majority tells who stands elsewhere: name the switch's place in myriad_topology.switches, correct "
                f"myriad_location, or accept it with myriad_topology.accept: [{node}]."
            )
            result.setdefault(node, Mismatch(node, places[node], (), (sighting,), message, accepted=node in accept))
    return result


def _strange(node: str, here: Place, own: Sequence[str], sightings: Sequence[Sighting]) -> str:
    seen = sorted({sighting.peer for sighting in sightings})
    return (
        f"{node} is {_place(here)} in the description, where {_and(own)} stand{'s' if len(own) == 1 else ''}; "
        f"its neighbour is {_and(seen)}{_seen(sightings[0])}, of which no place near it is described"
    )


def _sentence(node: str, here: Place, place: Place, sighting: Sighting) -> str:
    return (
        f"{node} is {_place(here)} in the description; its neighbour {sighting.peer} stands in {_place(place)}"
        f"{_seen(sighting)}"
    )


def _seen(sighting: Sighting) -> str:
    """` (LLDP, eth0, seen 21:03)`."""
    parts = [str(sighting.source)]
    if sighting.interface:
        parts.append(sighting.interface + (f" to port {sighting.port}" if sighting.source == "ibnetdiscover" else ""))
    if len(sighting.at) >= 16:
        parts.append(f"seen {sighting.at[11:16]}")
    return f" ({', '.join(parts)})"


def _on(sighting: Sighting) -> str:
    return f", {sighting.interface}" if sighting.interface else ""


def _advice(node: str, *, found_place: Place, partner: str = "") -> str:
    names = ", ".join(sorted([node, partner], key=natural)) if partner else node
    to = f" to {_place(found_place)}" if found_place and not partner else ""
    of_both = " of both" if partner else ""
    return f"Correct myriad_location{of_both}{to}, or accept it with myriad_topology.accept: [{names}]."


def _place(place: Place) -> str:
    return "/".join(place)


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _sighting_dict(sighting: Sighting) -> dict[str, str]:
    return {
        "source": sighting.source,
        "interface": sighting.interface,
        "peer": sighting.peer,
        "port": sighting.port,
        "chassis": sighting.chassis,
        "at": sighting.at,
    }
