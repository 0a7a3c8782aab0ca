"""What a soak does and when: faults and gangs from a seed. Pure; the same seed gives the same plan, bit for bit.

Faults stand in two lanes. In the lane of the nodes at most one GPU node is away at a time, and the next fault comes
when the time that a node needs to come back has passed: a lab of three GPU nodes always keeps two. In the lane of the
centre (API server, leader of the extension, registry) the same holds among themselves. The lanes know nothing of each
other, so a node dies while the registry is down.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from myriad.errors import InputError

Json = dict[str, Any]
Lane = Literal["nodes", "centre"]

WARM_UP_S = 20.0
"""Gangs run before the first fault."""
LAST_GANG_BEFORE_END_S = 60.0
LEAST_TIMES, FROM_MINUTES = 3, 30
"""A soak of so many minutes has every fault so many times."""
CORDONED_SHARE = 0.34
"""Faults of a node that happen while somebody else has cordoned it."""
CORDONED_KINDS = ("containerd", "network", "disk", "clock")
"""Where pods live on: one that dies on a cordoned node has no place until the cordon goes, as whoever set it wants."""
TEAMS = ("vision", "speech")
MOST_GPUS = 16
"""Of one gang: no team of the lab may ever hold more."""
MOST_GAP_S = 12.0
"""Between the end of a fault's time and the next fault of its lane."""
KUBELET_FORGETS_S = 610.0
"""A container that dies again within ten minutes is started later each time, up to five minutes
(https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy): a soak is not about that."""
GANG_EVERY_S = 24.0
"""Mean time between gangs: by their size and length two of three nodes are enough to work them off."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    Attributes:
        name: as plan, report and command line call it.
        lane: which faults it never overlaps with.
        hold_s: shortest and longest time until it is taken back. Nothing is taken back of what ends by itself (0, 0).
        recovery_s: time that is kept free after it.
        apart_s: least time until the same kind comes again.
        text: what is done.
    """

    name: str
    lane: Lane
    hold_s: tuple[float, float]
    recovery_s: float
    apart_s: float
    text: str


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        # Shorter and longer than the 50 seconds after which the cluster gives a silent node up.
        Kind("node", "nodes", (20, 75), 75, 0, "a GPU node is killed, and started again"),
        Kind("containerd", "nodes", (0, 0), 45, 0, "containerd of a GPU node is killed with -9"),
        Kind("network", "nodes", (20, 80), 45, 0, "a GPU node and another node no longer reach each other"),
        Kind("disk", "nodes", (20, 45), 35, 0, "the disk of a GPU node's logs is full: no container can be made there"),
        Kind("clock", "nodes", (20, 60), 45, 0, "the clock of a GPU node is stepped"),
        Kind("api", "centre", (0, 0), 75, KUBELET_FORGETS_S, "the API server is killed with -9"),
        Kind(
            "leader", "centre", (0, 0), 45, KUBELET_FORGETS_S, "the leader of the scheduler extension is killed with -9"
        ),
        Kind("registry", "centre", (20, 60), 30, 200, "the registry is stopped"),
        Kind("postgresql", "centre", (20, 60), 30, 200, "PostgreSQL under the ledger is stopped"),
    )
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        number: from 1, in order of time.
        kind: a key of KINDS.
        at_s: when, in seconds after the begin.
        hold_s: how long until it is taken back.
        node: where.
        peer: the other end of a cut; empty otherwise.
        is_cordoned: somebody else has cordoned the node meanwhile.
    """

    number: int
    kind: str
    at_s: float
    hold_s: float
    node: str
    peer: str = ""
    is_cordoned: bool = False

    @property
    def free_s(self) -> float:
        """When the next fault of its lane may come."""
        return self.at_s + self.hold_s + KINDS[self.kind].recovery_s

    @property
    def title(self) -> str:
        """`network gpu1-cp1 (cordoned)`."""
        where = f"{self.node}-{self.peer}" if self.peer else self.node
        return f"{self.kind} {where}{' (cordoned)' if self.is_cordoned else ''}".rstrip()


@dataclass(frozen=True, slots=True)
class Gang:
    """One job: `pods` pods of `gpus` GPUs each for `seconds`, submitted `at_s` after the begin."""

    name: str
    namespace: str
    at_s: float
    pods: int
    gpus: int
    seconds: int

    @property
    def job(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole soak.

    Attributes:
        seed, minutes: what it was made from.
        marked: the node that gets a taint and a label of somebody else's.
        left_out: kinds that this lab cannot have, with the reason.
        faults, gangs: in order of time.
    """

    seed: int
    minutes: int
    marked: str
    left_out: Mapping[str, str]
    faults: tuple[Fault, ...]
    gangs: tuple[Gang, ...]

    @property
    def end_s(self) -> float:
        """When faults end; what is broken then has its time to recover."""
        return self.minutes * 60.0

    def times(self) -> dict[str, int]:
        """How often each kind happens; those that are left out are not in it."""
        return {name: sum(fault.kind == name for fault in self.faults) for name in KINDS if name not in self.left_out}

    def as_json(self) -> Json:
        """As one document."""
        return {**asdict(self), "left_out": dict(self.left_out)}

    def lines(self) -> list[str]:
        """As JSON lines; `read_plan` reads them back."""
        whole = self.as_json()
        faults, gangs = whole.pop("faults"), whole.pop("gangs")
        rows: list[Json] = [{"plan": whole}]
        rows += [{"fault": fault} for fault in faults]
        rows += [{"gang": gang} for gang in gangs]
        return [json.dumps(row, sort_keys=True, separators=(",", ":")) for row in rows]


class _Chance:
    """Random numbers whose sequence Python promises to keep: it does so for `random()` alone, not for what is built on
    it (https://docs.python.org/3/library/random.html#notes-on-reproducibility)."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a plan that can be repeated, no secret

    def share(self) -> float:
        """From 0 to 1."""
        return self._random.random()

    def between(self, least: float, most: float) -> float:
        """In tenths, so that the text of a plan is the plan."""
        return round(least + (most - least) * self.share(), 1)

    def whole(self, least: int, most: int) -> int:
        """Both ends included."""
        return least + int(self.share() * (most - least + 1))

    def pick(self, items: Sequence[str]) -> str:
        """One of them."""
        return items[int(self.share() * len(items))]

    def shuffled(self, items: Iterable[str]) -> list[str]:
        """Another order."""
        found = list(items)
        for i in range(len(found) - 1, 0, -1):
            j = int(self.share() * (i + 1))
            found[i], found[j] = found[j], found[i]
        return found


def schedule(
    seed: int,
    minutes: int,
    faults: Sequence[str],
    *,
    gpu_nodes: Sequence[str],
    control_planes: Sequence[str],
    left_out: Mapping[str, str] | None = None,
) -> Plan:
    """Make a plan.

    Args:
        seed: any integer.
        minutes: how long faults come.
        faults: kinds that are wanted, keys of KINDS.
        gpu_nodes: two at least, or there would be nowhere to go.
        control_planes: the first of them carries the registry.
        left_out: kinds that are not possible here, with the reason.

    Raises:
        InputError: for an unknown kind, too few nodes, or a time in which not every kind has its turns.
    """
    unknown = sorted(set(faults) - KINDS.keys())
    if unknown:
        raise InputError(f"there is no fault {', '.join(unknown)}", hint=f"There is {', '.join(KINDS)}.")
    if minutes < 1:
        raise InputError(f"a soak of {minutes} minutes is none", hint="Try MINUTES=5.")
    if len(gpu_nodes) < 2 or not control_planes:
        raise InputError("a soak needs a control plane and two GPU nodes", hint="`make lab` has them.")
    left = dict(left_out or {})
    chance = _Chance(seed)
    found: list[Fault] = []
    for lane in ("nodes", "centre"):
        kinds = [name for name, kind in KINDS.items() if kind.lane == lane and name in faults and name not in left]
        found += _lane(chance, kinds, minutes * 60.0, gpu_nodes, control_planes)
    found.sort(key=lambda fault: (fault.at_s, fault.kind))
    numbered = tuple(
        Fault(n, f.kind, f.at_s, f.hold_s, f.node, f.peer, f.is_cordoned) for n, f in enumerate(found, start=1)
    )
    plan = Plan(seed, minutes, chance.pick(gpu_nodes), left, numbered, tuple(_gangs(chance, seed, minutes * 60.0)))
    short = sorted(name for name, times in plan.times().items() if name in faults and times < LEAST_TIMES)
    if minutes >= FROM_MINUTES and short:
        raise InputError(
            f"{minutes} minutes are too short for {LEAST_TIMES} times {', '.join(short)}", hint="Take more minutes."
        )
    return plan


def _lane(
    chance: _Chance, kinds: Sequence[str], end_s: float, gpu_nodes: Sequence[str], control_planes: Sequence[str]
) -> list[Fault]:
    """One after another, always of those kinds that have come least often so far; chance decides between them."""
    found: list[Fault] = []
    times = dict.fromkeys(kinds, 0)
    next_s = dict.fromkeys(kinds, WARM_UP_S)
    at_s = WARM_UP_S
    while kinds:
        ready = [name for name in kinds if next_s[name] <= at_s]
        if not ready:
            at_s = min(next_s.values())
            continue
        name = chance.pick([name for name in ready if times[name] == min(times[other] for other in ready)])
        kind = KINDS[name]
        fault = _placed(chance, name, at_s, chance.between(*kind.hold_s), gpu_nodes, control_planes)
        if fault.free_s > end_s:
            break
        found.append(fault)
        times[name] += 1
        next_s[name] = round(fault.at_s + fault.hold_s + kind.apart_s, 1)
        at_s = round(fault.free_s + chance.between(0, MOST_GAP_S), 1)
    return found


def _placed(
    chance: _Chance, name: str, at_s: float, hold_s: float, gpu_nodes: Sequence[str], control_planes: Sequence[str]
) -> Fault:
    if KINDS[name].lane == "centre":
        # The registry's place is fixed; the leader is sought when its time has come.
        node = {"registry": control_planes[0], "leader": ""}.get(name) or chance.pick(control_planes)
        return Fault(0, name, at_s, hold_s, "" if name == "leader" else node)
    node = chance.pick(gpu_nodes)
    others = [*control_planes, *(other for other in gpu_nodes if other != node)]
    peer = chance.pick(others) if name == "network" else ""
    is_cordoned = chance.share() < CORDONED_SHARE and name in CORDONED_KINDS
    return Fault(0, name, at_s, hold_s, node, peer, is_cordoned)


def _gangs(chance: _Chance, seed: int, end_s: float) -> Iterable[Gang]:
    at_s, number = 0.0, 0
    while at_s <= max(end_s - LAST_GANG_BEFORE_END_S, 0.0):
        pods = chance.whole(1, 3)
        gpus = chance.whole(1, min(8, MOST_GPUS // pods))
        name = f"soak-{abs(seed) % 10000}-{number}"
        yield Gang(name, TEAMS[number % len(TEAMS)], round(at_s, 1), pods, gpus, chance.whole(15, 45))
        number += 1
        at_s += chance.between(GANG_EVERY_S / 2, GANG_EVERY_S * 3 / 2)


def read_plan(lines: Iterable[str]) -> Plan:
    """A plan from JSON lines, those of a report too; other lines are passed over.

    Raises:
        InputError: where there is no plan in them, or one of another version.
    """
    head: Json | None = None
    faults: list[Fault] = []
    gangs: list[Gang] = []
    try:
        for line in lines:
            row = json.loads(line) if line.strip() else {}
            if "plan" in row:
                head = row["plan"]
            elif "fault" in row:
                faults.append(Fault(**row["fault"]))
            elif "gang" in row:
                gangs.append(Gang(**row["gang"]))
        if head is None:
            raise InputError("there is no plan in it", hint="A soak writes its plan at the head of its JSON lines.")
        unknown = sorted({fault.kind for fault in faults} - KINDS.keys())
        if unknown:
            raise InputError(f"it has faults that this version does not know: {', '.join(unknown)}")
        return Plan(
            int(head["seed"]), int(head["minutes"]), str(head["marked"]), dict(head["left_out"]), tuple(faults),
            tuple(gangs),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"this is not a plan of a soak: {error}", hint="`make soak` writes one.") from error
