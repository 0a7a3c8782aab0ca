"""Reboots: which nodes need one, in which batches, and bringing one node through it.

The state of a reboot stands in annotations of the Node alone, so a controller that was killed in the middle goes on
where it stopped: `myriad.dev/reboot` holds the boot from which a node is to get away, and `myriad.dev/cordon-owner` how
it was found.

A *boot* is told by the kernel's boot id and the start time of process 1: a machine that is a container shares the boot
id with its host.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from myriad.errors import MyriadError
from myriad.kube.client import Api, Json
from myriad.kube.drain import Cordon, Gang, cordon_patch, now_text, patch_node, release_patch
from myriad.kube.kinds import LEASES, NODES
from myriad.kube.patience import patient, unless_away

BY = "reboot"
REBOOT_ANNOTATION = "myriad.dev/reboot"
GATE_ANNOTATION = "myriad.dev/gate"
GATE_RUN_ANNOTATION = "myriad.dev/gate-run"
EXPECTED_LABEL = "myriad.dev/gpu-expected"
RACK_LABEL = "myriad.dev/rack"
CONTROL_PLANE_LABEL = "node-role.kubernetes.io/control-plane"

GangPolicy = Literal["together", "apart", "wait"]
GANG_POLICIES: tuple[GangPolicy, ...] = ("together", "apart", "wait")
"""Nodes that share a running gang: in one batch, in different ones, or left out until it ends."""


class NotBackError(MyriadError):
    """A node did not come back to work; it was left closed. Exit code 3."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Mark:
    """A reboot that was begun, as the Node's annotation says.

    Attributes:
        boot: the boot that the node is to get away from.
        at: since when (RFC 3339, UTC).
        reasons: why.
        fault: why it did not come back; empty while it is under way.
    """

    boot: str
    at: str = ""
    reasons: tuple[str, ...] = ()
    fault: str = ""

    def text(self) -> str:
        """The annotation's value."""
        body: Json = {"boot": self.boot, "at": self.at, "reasons": list(self.reasons)}
        return json.dumps(body | ({"fault": self.fault} if self.fault else {}), separators=(",", ":"))

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> Mark | None:
        """The mark on a Node, None where no reboot was begun."""
        text = (node["metadata"].get("annotations") or {}).get(REBOOT_ANNOTATION)
        try:
            body = json.loads(text or "")
            reasons = tuple(str(reason) for reason in body.get("reasons") or ())
            return cls(str(body["boot"]), str(body.get("at") or ""), reasons, str(body.get("fault") or ""))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


# The plan


@dataclass(frozen=True, slots=True)
class Candidate:
    """A host that was looked at.

    Attributes:
        name: of the host and of its Node.
        reasons: why it needs a reboot; empty where it does not.
        rack: where it stands; hosts without one share the rack "".
        is_control_plane: goes alone, after the others.
        is_begun: a run before this one began its reboot.
        is_node: whether the cluster knows it.
    """

    name: str
    reasons: tuple[str, ...] = ()
    rack: str = ""
    is_control_plane: bool = False
    is_begun: bool = False
    is_node: bool = True


@dataclass(frozen=True, slots=True)
class Rules:
    """How many nodes may be away at a time.

    Attributes:
        force: also nodes that need no reboot.
        batch: nodes in a batch at most; 0 = no bound but the racks.
        per_rack: nodes of one rack in a batch at most.
        gangs: what becomes of nodes that share a running gang.
    """

    force: bool = False
    batch: int = 10
    per_rack: int = 1
    gangs: GangPolicy = "together"


@dataclass(frozen=True, slots=True)
class Plan:
    """Who is rebooted when.

    Attributes:
        batches: names, batch by batch.
        reasons: why, by name.
        left: hosts that stay as they are, with the reason.
        notes: what a person should know before it begins.
    """

    batches: tuple[tuple[str, ...], ...]
    reasons: Mapping[str, tuple[str, ...]]
    left: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def order(self) -> list[str]:
        """All names, first batch first."""
        return [name for batch in self.batches for name in batch]

    def text(self) -> str:
        """As people read it."""
        count, total = len(self.order), len(self.order) + len(self.left)
        batches = "1 batch" if len(self.batches) == 1 else f"{len(self.batches)} batches"
        lines = [f"reboot of {count} of {total} nodes in {batches}" if count else "no node is rebooted"]
        for number, batch in enumerate(self.batches, start=1):
            for index, name in enumerate(batch):
                head = f"batch {number}" if index == 0 else ""
                lines.append(f"  {head:<10}{name:<20} {'; '.join(self.reasons[name])}")
        for reason in dict.fromkeys(self.left.values()):
            names = [name for name, found in self.left.items() if found == reason]
            lines.append(f"  {'stays':<10}{', '.join(names)}: {reason}")
        lines += [f"  {'note':<10}{note}" for note in self.notes]
        return "\n".join(lines)

    def as_dict(self) -> Json:
        """Plain types."""
        return {
            "batches": [list(batch) for batch in self.batches],
            "order": self.order,
            "sizes": [len(batch) for batch in self.batches],
            "reasons": {name: list(reasons) for name, reasons in self.reasons.items()},
            "left": dict(self.left),
            "notes": list(self.notes),
        }


def candidate(name: str, reasons: Iterable[str], node: Mapping[str, Any] | None) -> Candidate:
    """A host from what was found on it and its Node (None where the cluster has none)."""
    labels = (node["metadata"].get("labels") or {}) if node else {}
    mark = Mark.of(node) if node else None
    found = tuple(reasons)
    if mark is not None:
        began = f"its reboot began at {mark.at}" + (f" and failed: {mark.fault}" if mark.fault else "")
        found = (began, *(reason for reason in (found or mark.reasons)))
    return Candidate(
        name,
        found,
        rack=str(labels.get(RACK_LABEL) or ""),
        is_control_plane=CONTROL_PLANE_LABEL in labels,
        is_begun=mark is not None,
        is_node=node is not None,
    )


def plan(candidates: Sequence[Candidate], gangs: Sequence[Gang], rules: Rules) -> Plan:
    """Batches for those who need a reboot: hosts begun before go first, the control plane alone and last.

    A batch takes nodes while it has fewer than `batch` and than `per_rack` of their rack. Nodes that share a running
    gang go in the same batch even where that is more than the rules allow otherwise: the gang stops once, and it never
    runs on old and new nodes together.
    """
    left: dict[str, str] = {}
    notes: list[str] = []
    chosen: list[Candidate] = []
    for host in candidates:
        if not host.is_node:
            left[host.name] = "the cluster has no such node"
        elif not (host.reasons or rules.force):
            left[host.name] = "needs no reboot"
        else:
            chosen.append(host)
    names = {host.name for host in chosen}
    shared = [gang for gang in gangs if names & set(gang.nodes)]
    if rules.gangs == "wait":
        for gang in shared:
            for name in sorted(names & set(gang.nodes)):
                left.setdefault(name, f"the gang {gang.name} runs on it; the next run takes it when that has ended")
        chosen = [host for host in chosen if host.name not in left]
        shared = []
    units = _units(chosen, shared if rules.gangs == "together" else [])
    for gang in shared:
        here, outside = sorted(names & set(gang.nodes)), sorted(set(gang.nodes) - names)
        words = f"{gang.sentence()}: it is interrupted"
        if rules.gangs == "together" and len(here) > 1:
            words += f" once, {', '.join(here)} go together"
        if outside:
            words += (
                f", though {', '.join(outside)} stays" if len(outside) == 1 else f", though {', '.join(outside)} stay"
            )
        notes.append(words)
    by_name = {host.name: host for host in chosen}
    batches: list[list[str]] = []
    for unit in units:
        for batch in batches:
            if _fits(unit, batch, by_name, rules):
                batch += unit
                break
        else:
            batches.append(list(unit))
    ordered = sorted(batches, key=lambda batch: (any(by_name[n].is_control_plane for n in batch),
                                                 not any(by_name[n].is_begun for n in batch)))  # fmt: skip
    reasons = {host.name: host.reasons or ("asked for",) for host in chosen}
    return Plan(tuple(tuple(batch) for batch in ordered), reasons, left, tuple(notes))


def _units(chosen: Sequence[Candidate], gangs: Sequence[Gang]) -> list[list[str]]:
    """Names that must stay together: connected by gangs, in the order of the first."""
    leader = {host.name: host.name for host in chosen}

    def find(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    for gang in gangs:
        members = [host.name for host in chosen if host.name in gang.nodes]
        for other in members[1:]:
            leader[find(other)] = find(members[0])
    units: dict[str, list[str]] = defaultdict(list)
    for host in chosen:
        units[find(host.name)].append(host.name)
    return list(units.values())


def _fits(unit: Sequence[str], batch: Sequence[str], hosts: Mapping[str, Candidate], rules: Rules) -> bool:
    together = [hosts[name] for name in (*batch, *unit)]
    if any(host.is_control_plane for host in together):
        return False
    if rules.batch and len(together) > rules.batch:
        return False
    racks: dict[str, int] = defaultdict(int)
    for host in together:
        racks[host.rack] += 1
    return max(racks.values()) <= rules.per_rack


# One node


class Machine(Protocol):
    """A host, as the action plugin reaches it."""

    def boot(self) -> str | None:
        """Its boot; None where it does not answer."""

    def reboot(self) -> None:
        """Start its reboot. Raises MyriadError where the command is refused."""


@dataclass(frozen=True, slots=True)
class Waits:
    """How long one node may take.

    Attributes:
        reboot_s: until it answers again with another boot.
        ready_s: from then until its kubelet is Ready.
        gate_s: from then until its GPU gate is open.
        poll_s: between two looks.
    """

    reboot_s: float = 1200.0
    ready_s: float = 300.0
    gate_s: float = 600.0
    poll_s: float = 2.0


def reboot(
    api: Api,
    name: str,
    machine: Machine,
    reasons: Sequence[str],
    *,
    waits: Waits,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = lambda _text: None,
) -> bool:
    """Bring a drained node through its reboot and give it back. Returns whether it was rebooted by this call.

    A node that a killed run had sent down already is only waited for. One that does not come back stays closed, with
    the reason in its annotations.

    Raises:
        NotBackError: it does not answer, its kubelet is not Ready, or its gate stays closed.
    """
    node = api.get(NODES, name)
    mark = Mark.of(node)
    boot = machine.boot()
    if mark is None:
        if boot is None:
            raise NotBackError(
                "the host does not answer, so it was not rebooted", where=name, hint="look at its console"
            )
        mark = Mark(boot, now_text(), tuple(reasons))
        _annotate(api, name, mark)
    elif mark.fault:
        mark = Mark(mark.boot, mark.at, mark.reasons)
        _annotate(api, name, mark)
    again = boot == mark.boot
    if again:
        say(f"{name}: rebooting ({'; '.join(mark.reasons) or 'asked for'})")
        try:
            machine.reboot()
        except MyriadError:
            # It is up and was never sent down: it must not stay closed for that.
            patch_node(api, name, given_back)
            raise
    try:
        _until(
            lambda: machine.boot() not in (None, mark.boot), waits.reboot_s, waits.poll_s, sleep, clock,
            lambda: "it does not answer over SSH" if machine.boot() is None else "it answers, but it did not reboot",
        )  # fmt: skip
        say(f"{name}: is back, waiting for its kubelet")
        _wait_ready(api, name, waits, sleep, clock)
        _wait_gate(api, name, mark, waits, sleep, clock, say)
    except NotBackError as error:
        fault = Mark(mark.boot, mark.at, mark.reasons, error.message)
        # It may be the API server that does not come back: the node is closed then by the mark that stands there.
        unless_away(lambda: _annotate(api, name, fault, closed_for=fault.fault))
        raise NotBackError(
            f"{error.message}; it was left closed",
            where=name,
            hint=f"look at its console; when it works again the same command goes on, or "
            f"`myriad reboot --give-back {name}` opens it as it is",
        ) from error
    patient(lambda: patch_node(api, name, given_back), waits.ready_s, waits.poll_s, sleep=sleep, clock=clock)
    return again


def given_back(node: Json) -> Json | None:
    """The merge patch that ends a reboot: no mark, and closed or open as it was found."""
    body = release_patch(node, BY)
    if Mark.of(node) is None:
        return body
    body = body or {"metadata": {"resourceVersion": node["metadata"].get("resourceVersion"), "annotations": {}}}
    body["metadata"]["annotations"][REBOOT_ANNOTATION] = None
    return body


def _annotate(api: Api, name: str, mark: Mark, *, closed_for: str = "") -> None:
    def change(node: Json) -> Json:
        body: Json = {"metadata": {"resourceVersion": node["metadata"].get("resourceVersion"), "annotations": {}}}
        found = Cordon.of(node)
        if closed_for and (found is None or found.by == BY):
            body = cordon_patch(node, BY, closed_for, now_text()) or body
        body["metadata"]["annotations"][REBOOT_ANNOTATION] = mark.text()
        return body

    patch_node(api, name, change)


def _wait_ready(api: Api, name: str, waits: Waits, sleep: Callable[[float], None], clock: Callable[[], float]) -> None:
    """Ready, and said by the kubelet of this boot: its Lease is renewed after the host came back."""
    first = _renewed(api, name)

    def is_ready() -> bool:
        nonlocal first
        node = unless_away(lambda: api.find(NODES, name))
        renewed = _renewed(api, name)
        # An API server that was away until now, on this very host, still has what the last boot's kubelet said.
        before, first = first, first or renewed
        return node is not None and not _not_ready(node) and before != "" and renewed not in ("", before)

    def reason() -> str:
        node = unless_away(lambda: api.find(NODES, name))
        if node is None:
            return "the API server does not answer, or has no such node any more"
        words = _not_ready(node) or "its kubelet does not renew its Lease"
        return f"it is back, and its kubelet is not ready: {words}"

    _until(is_ready, waits.ready_s, waits.poll_s, sleep, clock, reason)


def _not_ready(node: Mapping[str, Any]) -> str:
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = next((item for item in conditions if item["type"] == "Ready"), None)
    if ready is None:
        return "it has said nothing yet"
    return "" if ready["status"] == "True" else str(ready.get("message") or ready.get("reason") or "Ready is not True")


def _renewed(api: Api, name: str) -> str:
    lease = unless_away(lambda: api.find(LEASES, name, namespace="kube-node-lease"))
    return str((lease or {}).get("spec", {}).get("renewTime") or "")


def _wait_gate(
    api: Api,
    name: str,
    mark: Mark,
    waits: Waits,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    say: Callable[[str], None],
) -> None:
    """The GPU gate, judged afresh: the agent is asked, and its answer names the question."""
    node = patient(lambda: api.get(NODES, name), waits.ready_s, waits.poll_s, sleep=sleep, clock=clock)
    if EXPECTED_LABEL not in (node["metadata"].get("labels") or {}):
        return
    say(f"{name}: ready, waiting for its gate")
    question = f"reboot-{mark.at}"

    def ask(node: Json) -> Json | None:
        if (node["metadata"].get("annotations") or {}).get(GATE_RUN_ANNOTATION) == question:
            return None
        version = node["metadata"].get("resourceVersion")
        return {"metadata": {"resourceVersion": version, "annotations": {GATE_RUN_ANNOTATION: question}}}

    patient(lambda: patch_node(api, name, ask), waits.ready_s, waits.poll_s, sleep=sleep, clock=clock)

    def fault() -> str:
        node = unless_away(lambda: api.find(NODES, name))
        return gate_fault(node, question) if node is not None else "the API server does not answer"

    _until(lambda: not fault(), waits.gate_s, waits.poll_s, sleep, clock, lambda: f"it is back, and {fault()}")


def gate_fault(node: Mapping[str, Any], question: str) -> str:
    """Why the gate does not count as open, "" where it does and was judged for this question."""
    text = (node["metadata"].get("annotations") or {}).get(GATE_ANNOTATION)
    try:
        body = json.loads(text or "")
        run, is_open = str(body.get("run") or ""), bool(body.get("open"))
        causes = [
            str(check.get("cause") or check["check"]) for check in body.get("checks") or () if not check.get("ok")
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return "its agent has said nothing of the gate"
    if run != question:
        return "its agent has not judged the gate since (`kubectl -n myriad-system get pods -o wide` shows it)"
    if is_open:
        return ""
    return f"its gate is closed: {causes[0] if causes else 'no cause given'}"


def _until(
    check: Callable[[], bool],
    timeout_s: float,
    poll_s: float,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    reason: Callable[[], str],
) -> None:
    end = clock() + timeout_s
    while not check():
        if clock() >= end:
            raise NotBackError(f"{reason()}, {timeout_s:.0f} s long")
        sleep(poll_s)
