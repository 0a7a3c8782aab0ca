"""The brake for evictions and taints of Myriad's own, over the whole cluster. Pure.

The node agents' brake (`myriad.agent.brake`) caps how many gates close. This one is asked by whatever in the extension
evicts a job, asks one to leave, or taints a domain, before it does so:

- many nodes NotReady at once is rarely many dead nodes: a partition, the API server, a switch. Then nothing is evicted
  and nothing tainted until they are back or somebody has looked and cordoned them (kubernetes#24597);
- after the API server was away its picture of the nodes is old: nothing for a while (kubernetes#24200);
- after a change of leader the same, for this replica may have seen only the outage (kubernetes#32510);
- what is allowed is capped per rack, block and team within ten minutes, at least one and at most the share of it
  (slurm-bridge#43, kubernetes#104617).

What Kueue preempts is Kueue's and is not asked for here; an owner who ends a job is not either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

WINDOW = timedelta(minutes=10)
LEADER_SETTLE_S = 60.0
Kind = Literal["evict", "taint"]

NOT_READY_SHARE = 0.1
NOT_READY_LEAST = 3
"""From so many nodes on that are NotReady together, and so large a part of a scope, the control plane is suspected."""
_TOGETHER = timedelta(minutes=5)
_SHARES: Mapping[str, float] = {"rack": 1.0, "block": 0.25, "team": 0.25, "cluster": 0.05}
_LEAST: Mapping[str, int] = {"rack": 1, "block": 2, "team": 2, "cluster": 4}


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node as the brake sees it: where it stands, and since when it is not ready.

    None: it is ready, or cordoned: then a person or a program knows of it.
    """

    name: str
    location: tuple[str, ...] = ()
    not_ready_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """What somebody is about to do.

    Attributes:
        kind: evict a job, or taint a domain.
        what: its name, `namespace/job` or a path.
        nodes: nodes that it concerns.
        team: whose job; "" for a taint.
        by: who asks, for the sentence (`protection`, `budget`).
    """

    kind: Kind
    what: str
    nodes: tuple[str, ...]
    team: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that was allowed, and so counts for the caps."""

    at: datetime
    ask: Ask


@dataclass(frozen=True, slots=True)
class State:
    """What the brake remembers.

    Attributes:
        deeds: allowed within the window, oldest first.
        leader_since: since when this replica leads; None: it does not.
        api_back_at: when the API server last answered again after an outage; None: it was never away.
        api_away: it does not answer now.
    """

    deeds: tuple[Deed, ...] = ()
    leader_since: datetime | None = None
    api_back_at: datetime | None = None
    api_away: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether it may be done.

    Attributes:
        allowed: it may.
        reason: why not, as a sentence with what to do; "" where it may.
        retry_s: when to ask again; 0 where nobody can say.
    """

    allowed: bool
    reason: str = ""
    retry_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """Nodes that fell silent together."""

    scope: str
    not_ready: tuple[str, ...]
    nodes: int
    since: datetime

    def sentence(self) -> str:
        """What it looks like, and what to do."""
        some = ", ".join(self.not_ready[:3]) + (" and others" if len(self.not_ready) > 3 else "")
        return (
            f"{len(self.not_ready)} of {self.nodes} nodes of {self.scope} are not ready since about "
            f"{self.since:%H:%M:%S} UTC ({some}): suspect the control plane or the network before the nodes. "
            "Nothing is evicted and no domain protected until they are back, or cordoned by whoever has looked"
        )


def outage_begins(state: State) -> State:
    """The API server stopped answering."""
    return replace(state, api_away=True)


def outage_ends(state: State, now: datetime) -> State:
    """It answers again (no change where it was never away)."""
    return replace(state, api_away=False, api_back_at=now) if state.api_away else state


def leads(state: State, now: datetime) -> State:
    """This replica has become the leader (no change where it leads already)."""
    return state if state.leader_since else replace(state, leader_since=now)


def follows(state: State) -> State:
    """Another replica leads."""
    return replace(state, leader_since=None)


def trouble(nodes: Iterable[NodeState]) -> Trouble | None:
    """Nodes of the cluster or of one broadest domain that fell silent within minutes of each other; None for none.

    A domain of its own counts because a partition cuts off a room or a block and leaves the rest (kubernetes#104617).
    """
    scopes: dict[str, list[NodeState]] = {}
    for node in nodes:
        scopes.setdefault("the cluster", []).append(node)
        for depth in range(1, len(node.location)):
            scopes.setdefault("/".join(node.location[:depth]), []).append(node)
    found: list[Trouble] = []
    for scope, members in scopes.items():
        silent = [n for n in members if n.not_ready_since is not None]
        many = max(NOT_READY_LEAST, math.ceil(len(members) * NOT_READY_SHARE))
        together = _largest_burst([n.not_ready_since for n in silent if n.not_ready_since is not None])
        # A small cluster never has ten dead nodes: more than half of it is as telling.
        if (len(silent) >= many and together >= many) or (len(members) > 1 and together * 2 > len(members)):
            since = min(n.not_ready_since for n in silent if n.not_ready_since is not None)
            found.append(Trouble(scope, tuple(sorted(n.name for n in silent)), len(members), since))
    return max(found, key=lambda t: (len(t.not_ready), -t.nodes), default=None)


def _largest_burst(times: Sequence[datetime]) -> int:
    ordered = sorted(times)
    best = first = 0
    for last, at in enumerate(ordered):
        while at - ordered[first] > _TOGETHER:
            first += 1
        best = max(best, last - first + 1)
    return best


def cap(scope: str, nodes: int) -> int:
    """How many nodes of a scope may be touched within the window."""
    return max(_LEAST[scope], math.floor(nodes * _SHARES[scope]))


@dataclass(frozen=True, slots=True)
class Brake:
    """The brake over one picture of the nodes.

    Args:
        nodes: all GPU nodes.
        team_nodes: how many nodes each team holds now.
        settle_s: nothing is done so long after a change of leader, and twice as long after an outage.
    """

    nodes: Mapping[str, NodeState]
    team_nodes: Mapping[str, int] = field(default_factory=dict)
    settle_s: float = LEADER_SETTLE_S

    def ask(self, state: State, ask: Ask, now: datetime) -> tuple[Verdict, State]:
        """May it be done? With the state afterwards, where it counts."""
        state = replace(state, deeds=tuple(d for d in state.deeds if now - d.at < WINDOW))
        settling = _settling(state, now, self.settle_s)
        if settling is not None:
            return settling, state
        found = trouble(self.nodes.values())
        if found is not None:
            return Verdict(False, found.sentence()), state
        # Who asks again about what was allowed goes on with it.
        if any(d.ask.kind == ask.kind and d.ask.what == ask.what for d in state.deeds):
            return Verdict(True), state
        for scope, name in self._scopes(ask):
            verdict = self._capped(state, ask, scope, name, now)
            if verdict is not None:
                return verdict, state
        return Verdict(True), replace(state, deeds=(*state.deeds, Deed(now, ask)))

    def _scopes(self, ask: Ask) -> list[tuple[str, str]]:
        places = [self.nodes[n].location for n in ask.nodes if n in self.nodes]
        racks = sorted({"/".join(p) for p in places if p})
        blocks = sorted({"/".join(p[:-1]) for p in places if len(p) > 1})
        found = [("cluster", "")]
        found += [("block", b) for b in blocks] + [("rack", r) for r in racks]
        return found + ([("team", ask.team)] if ask.team else [])

    def _size(self, scope: str, name: str) -> int:
        if scope == "cluster":
            return len(self.nodes)
        if scope == "team":
            return self.team_nodes.get(name, 0)
        steps = tuple(name.split("/"))
        return sum(n.location[: len(steps)] == steps for n in self.nodes.values())

    def _inside(self, ask: Ask, scope: str, name: str) -> int:
        if scope == "team":
            return len(ask.nodes) if ask.team == name else 0
        if scope == "cluster":
            return len(ask.nodes)
        steps = tuple(name.split("/"))
        return sum(self.nodes[n].location[: len(steps)] == steps for n in ask.nodes if n in self.nodes)

    def _capped(self, state: State, ask: Ask, scope: str, name: str, now: datetime) -> Verdict | None:
        same = [d for d in state.deeds if d.ask.kind == ask.kind]
        done = sum(self._inside(d.ask, scope, name) for d in same)
        allowed = cap(scope, self._size(scope, name))
        # One gang may be larger than the cap: alone it goes, for else it could never be asked to leave.
        if done == 0 or done + self._inside(ask, scope, name) <= allowed:
            return None
        first = min(d.at for d in same if self._inside(d.ask, scope, name))
        retry = max(1.0, (first + WINDOW - now).total_seconds())
        where = "the cluster" if scope == "cluster" else f"{scope} {name}"
        done_words = "evicted from" if ask.kind == "evict" else "tainted in"
        return Verdict(
            False,
            f"{ask.what} waits: {done} nodes were {done_words} {where} within "
            f"{int(WINDOW.total_seconds() // 60)} minutes, and {allowed} is the most at a time; next in "
            f"{math.ceil(retry / 60)} min",
            retry,
        )


def _settling(state: State, now: datetime, leader_settle_s: float) -> Verdict | None:
    if state.api_away:
        return Verdict(False, "the API server does not answer: what is known of the nodes is old")
    if state.leader_since is None:
        return Verdict(False, "another replica leads")
    for since, settle_s, what in (
        (state.api_back_at, 2 * leader_settle_s, "the API server was away"),
        (state.leader_since, leader_settle_s, "this replica has just become the leader"),
    ):
        left = settle_s - (now - since).total_seconds() if since else 0.0
        if left > 0:
            return Verdict(
                False, f"{what}: nodes get {settle_s:.0f} s to report before anything is evicted or tainted", left
            )
    return None
