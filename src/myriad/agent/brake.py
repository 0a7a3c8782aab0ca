"""The brake: how many nodes may be closed at once.

A fault of one node closes that node. Many within minutes are rarely many broken nodes: a driver or plugin roll-out,
the fabric, the control plane. Closing them all would turn that into an outage, so the brake lets a few close, then
stops and says so. It concerns gates that were open: a node that was never proven since it booted needs no permission to
stay out.

The state of a pool is one small ConfigMap, read and written only by a node that wants to close (compare-and-swap by
resourceVersion): 5,000 healthy nodes cost nothing, and once the brake is on, the others read it and write nothing.
"""

from __future__ import annotations

import json
import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import CONFIG_MAPS

log = logging.getLogger("myriad.brake")

Json = dict[str, Any]
Kind = Literal["rack", "block", "pool"]

NAMESPACE = "myriad-system"
NAME_PREFIX = "myriad-brake-"
SIZES = "myriad-brake-sizes"
"""ConfigMap with the number of GPU nodes per pool, block and rack, from the description (`sizes`)."""
BRAKE_LABEL = "myriad.dev/brake"
ON = "the brake is on"
"""How every sentence of a brake that holds begins."""

WINDOW = timedelta(minutes=10)
_NOTICE = timedelta(seconds=60)
"""While nodes are held, one of them notes so about once a minute; a brake that no one waits at is let go."""
_ATTEMPTS = 6

SHARE: Mapping[Kind, float] = {"rack": 0.5, "block": 0.1, "pool": 0.02}
_SMALL = 8
_LEAST_OF_MANY = 4


def cap(kind: Kind, nodes: int) -> int:
    """How many nodes of a scope may be closed within the window.

    Up to 8 nodes: half, at least one, so that one broken node of a small cluster closes and never all do. Above: half
    of a rack, a tenth of a block, a fiftieth of a pool, at least four.
    """
    if nodes <= _SMALL or kind == "rack":
        return max(1, nodes // 2)
    return max(_LEAST_OF_MANY, math.ceil(nodes * SHARE[kind]))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node stands: its pool, and block and rack as whole paths joined by dots (empty where not described)."""

    pool: str
    block: str = ""
    rack: str = ""

    @classmethod
    def of(cls, pool: str, location: Iterable[str]) -> Place:
        """From a location's steps."""
        steps = tuple(location)
        return cls(pool, ".".join(steps[:-1]), ".".join(steps))

    def scopes(self) -> list[tuple[Kind, str]]:
        """Scopes that a claim counts in, the widest first: what reached all is not told as a rack's trouble."""
        found: list[tuple[Kind, str]] = [("pool", self.pool)]
        if self.block:
            found.append(("block", self.block))
        if self.rack:
            found.append(("rack", self.rack))
        return found


@dataclass(frozen=True, slots=True)
class Sizes:
    """GPU nodes of one pool: in all, by block and by rack. Unknown ones count as small."""

    nodes: int = 0
    blocks: Mapping[str, int] = field(default_factory=dict)
    racks: Mapping[str, int] = field(default_factory=dict)

    def of(self, kind: Kind, name: str) -> int:
        """Nodes of a scope; 0 where not known."""
        if kind == "pool":
            return self.nodes
        return (self.blocks if kind == "block" else self.racks).get(name, 0)


def sizes(nodes: Iterable[Mapping[str, Any]]) -> dict[str, Json]:
    """Sizes of every pool, from Node objects with the description's labels: the content of SIZES. Pure.

    Args:
        nodes: objects with `metadata.labels`; those without a pool are passed over.
    """
    found: dict[str, Json] = {}
    for node in nodes:
        labels = (node.get("metadata") or {}).get("labels") or {}
        pool = labels.get("myriad.dev/pool")
        if not pool:
            continue
        entry = found.setdefault(pool, {"nodes": 0, "blocks": {}, "racks": {}})
        entry["nodes"] += 1
        rack = deepest_place(labels)
        if rack:
            block = rack.rpartition(".")[0]
            entry["racks"][rack] = entry["racks"].get(rack, 0) + 1
            entry["blocks"][block] = entry["blocks"].get(block, 0) + 1
    return found


def deepest_place(labels: Mapping[str, str]) -> str:
    """The narrowest place in a node's labels as its whole path (`hall1.b1.r1`); empty where it has none.

    Keys of levels are the site's own words; the value of a level begins with the value of the level above.
    """
    own = {key: value for key, value in labels.items() if key.startswith("myriad.dev/")}
    paths = [v for v in own.values() if any(v.startswith(f"{other}.") for other in own.values())]
    return max(paths, key=len, default="")


@dataclass(frozen=True, slots=True)
class Claim:
    """One node that was closed: where, when."""

    at: datetime
    block: str
    rack: str


@dataclass(frozen=True, slots=True)
class Trip:
    """The brake is on for a scope.

    Attributes:
        at: since when.
        seen: when a held node last said that it waits.
        closed, cap, nodes: closed within the window, allowed, and nodes of the scope.
        node, cause: the first node that was held, and what it found.
    """

    at: datetime
    seen: datetime
    closed: int
    cap: int
    nodes: int
    node: str
    cause: str


@dataclass(frozen=True, slots=True)
class State:
    """What a pool's ConfigMap says. `released`: when a person last let the brake go."""

    claims: Mapping[str, Claim] = field(default_factory=dict)
    trips: Mapping[str, Trip] = field(default_factory=dict)
    released: datetime | None = None

    def text(self) -> str:
        """As JSON."""
        body: Json = {
            "claims": {n: [_stamp(c.at), c.block, c.rack] for n, c in sorted(self.claims.items())},
            "trips": {
                scope: {
                    "at": _stamp(t.at), "seen": _stamp(t.seen), "closed": t.closed, "cap": t.cap, "nodes": t.nodes,
                    "node": t.node, "cause": t.cause,
                }
                for scope, t in sorted(self.trips.items())
            },
        }  # fmt: skip
        if self.released:
            body["released"] = _stamp(self.released)
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str | None) -> State:
        """From JSON; an empty state where there is none, or none that can be read: it counts anew from there."""
        try:
            body = json.loads(text or "{}")
            return cls(
                {n: Claim(_time(at), block, rack) for n, (at, block, rack) in (body.get("claims") or {}).items()},
                {
                    scope: Trip(
                        _time(t["at"]), _time(t["seen"]), int(t["closed"]), int(t["cap"]), int(t["nodes"]), t["node"],
                        t["cause"],
                    )
                    for scope, t in (body.get("trips") or {}).items()
                },
                _time(body["released"]) if body.get("released") else None,
            )  # fmt: skip
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("the brake's state cannot be read, starting anew: %s", error)
            return cls()


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a node may be closed.

    Attributes:
        granted: it may.
        held: why not, with what to do; empty when granted, and where the brake was let go: judge anew, then ask again.
        tripped: this very question put the brake on.
        released: when a person last let the brake go; empty where nobody did.
    """

    granted: bool
    held: str = ""
    tripped: bool = False
    released: str = ""


def decide(
    state: State, size: Sizes, node: str, place: Place, cause: str, now: datetime, *, waits_since: str | None = None
) -> tuple[Decision, State]:
    """Answer one node, and the state afterwards (the same object where nothing has to be written). Pure.

    Args:
        state: as it stands.
        size: nodes of the pool.
        node: who asks.
        place: where it stands.
        cause: what it found.
        now: an aware time.
        waits_since: for a node that is held: the release that it knows of. One that came later is told before anything
            is granted, so that the node drops what was reported before it and judges anew.
    """
    claims = {name: claim for name, claim in state.claims.items() if now - claim.at < WINDOW}
    trips = {scope: trip for scope, trip in state.trips.items() if now - trip.seen < WINDOW}
    released = _stamp(state.released) if state.released else ""
    if waits_since is not None and released != waits_since:
        return Decision(False, released=released), state
    if node in claims:
        return Decision(True, released=released), state
    for kind, name in place.scopes():
        scope = f"{kind} {name}"
        trip = trips.get(scope)
        if trip is not None:
            decision = Decision(False, sentence(scope, trip, place.pool), released=released)
            if now - trip.seen < _NOTICE:
                return decision, state
            return decision, replace(state, claims=claims, trips={**trips, scope: replace(trip, seen=now)})
    for kind, name in place.scopes():
        scope = f"{kind} {name}"
        closed = sum(
            kind == "pool" or (claim.block if kind == "block" else claim.rack) == name for claim in claims.values()
        )
        allowed = cap(kind, size.of(kind, name))
        if closed >= allowed:
            trip = Trip(now, now, closed, allowed, size.of(kind, name), node, cause)
            decision = Decision(False, sentence(scope, trip, place.pool), True, released)
            return decision, replace(state, claims=claims, trips={**trips, scope: trip})
    claims[node] = Claim(now, place.block, place.rack)
    return Decision(True, released=released), replace(state, claims=claims, trips=trips)


def sentence(scope: str, trip: Trip, pool: str) -> str:
    """What the brake says: what happened, what to suspect, how to let it go."""
    count = f"{trip.closed} of {trip.nodes} nodes" if trip.nodes else f"{trip.closed} node{'s'[: trip.closed != 1]}"
    kind, _, name = scope.partition(" ")
    where = f"{kind} {name.replace('.', '/') if kind != 'pool' else name}"
    return (
        f"{ON}: {count} of {where} closed within "
        f"{int(WINDOW.total_seconds() // 60)} minutes, and {trip.node} would be one more ({trip.cause}); suspect what "
        f"they share (control plane, roll-out, fabric, power) first; let go with: myriad gate --release {pool}"
    )


def release(state: State, now: datetime) -> State:
    """Let the brake go: claims start anew, and what was held before is not replayed (each node takes note of it)."""
    del state
    return State({}, {}, now)


class Brake:
    """The brake of one node's pool, over the API.

    Args:
        api: the client.
        now: the time.
        sleep: waits between attempts; replaced in tests.
    """

    def __init__(
        self,
        api: Api,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._api = api
        self._now = now
        self._sleep = sleep

    def ask(self, node: str, place: Place, cause: str, *, waits_since: str | None = None) -> Decision:
        """May this node be closed? Two reads and at most one write; more only when others ask in the same moment.

        Raises ApiError where the API server refuses for another reason.
        """
        size = self.sizes(place.pool)
        for attempt in range(_ATTEMPTS):
            body, state = self._read(place.pool)
            decision, after = decide(state, size, node, place, cause, self._now(), waits_since=waits_since)
            if after is state or self._write(place.pool, body, after):
                return decision
            self._sleep(random.random() * 0.05 * 2**attempt)  # noqa: S311 - jitter, not a secret
        return Decision(False, f"the brake could not be asked ({_ATTEMPTS} others wrote first); asking again")

    def forget(self, node: str, place: Place) -> None:
        """A node that was closed takes work again and its claim counts no more. One attempt: it runs out anyway."""
        body, state = self._read(place.pool)
        if node in state.claims:
            rest = {name: claim for name, claim in state.claims.items() if name != node}
            self._write(place.pool, body, replace(state, claims=rest))

    def sizes(self, pool: str) -> Sizes:
        """Nodes of a pool, from the description."""
        body = self._api.find(CONFIG_MAPS, SIZES, namespace=NAMESPACE)
        try:
            entry = json.loads(((body or {}).get("data") or {}).get("sizes") or "{}").get(pool) or {}
            return Sizes(int(entry.get("nodes") or 0), entry.get("blocks") or {}, entry.get("racks") or {})
        except (ValueError, TypeError, AttributeError):
            return Sizes()

    def release(self, pool: str) -> State:
        """Let a pool's brake go; returns the state before. Raises ApiError."""
        for attempt in range(_ATTEMPTS):
            body, state = self._read(pool)
            if self._write(pool, body, release(state, self._now())):
                return state
            self._sleep(random.random() * 0.05 * 2**attempt)  # noqa: S311 - jitter, not a secret
        raise ApiError(409, "Conflict", "the brake's state kept changing", where=f"{NAME_PREFIX}{pool}")

    def _read(self, pool: str) -> tuple[Json | None, State]:
        body = self._api.find(CONFIG_MAPS, f"{NAME_PREFIX}{pool}", namespace=NAMESPACE)
        return body, State.parse(((body or {}).get("data") or {}).get("state"))

    def _write(self, pool: str, body: Json | None, state: State) -> bool:
        name = f"{NAME_PREFIX}{pool}"
        metadata = {"name": name, "namespace": NAMESPACE, "labels": {BRAKE_LABEL: pool}}
        made: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"state": state.text()}}
        try:
            if body is None:
                self._api.create(CONFIG_MAPS, made, namespace=NAMESPACE)
            else:
                made["metadata"]["resourceVersion"] = body["metadata"]["resourceVersion"]
                self._api.replace(CONFIG_MAPS, name, made, namespace=NAMESPACE)
        except ApiError as error:
            if error.is_conflict or error.is_not_found:
                return False
            raise
        return True


def trips(items: Iterable[Json], now: datetime) -> list[Json]:
    """Brakes that are on, from the ConfigMaps with BRAKE_LABEL: for `myriad status` and `myriad gate`. Pure."""
    found = []
    for item in items:
        pool = (item["metadata"].get("labels") or {}).get(BRAKE_LABEL, "")
        for scope, trip in State.parse((item.get("data") or {}).get("state")).trips.items():
            if now - trip.seen < WINDOW:
                found.append(
                    {"pool": pool, "scope": scope, "since": _stamp(trip.at), "says": sentence(scope, trip, pool)}
                )
    return found
