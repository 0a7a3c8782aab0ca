"""What must hold at every look, whatever breaks. Pure: a rule is shown looks, one by one, and says what is wrong.

A rule keeps what it has to remember of earlier looks; it never asks anything and knows no clock but that of the looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from myriad.lab.soak.seen import Look, NodeSeen, PodSeen
from myriad.scheduler.policy import NAMESPACE as SYSTEM

Json = dict[str, Any]

EXTRA_S = 60.0
"""A gang may stand in part for its grace and so much more."""
MOST_BETWEEN_LOOKS_S = 6.0
"""Longer without a look counts as this long: while no API server answers nobody can bind, delete or evict."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must never be.

    Attributes:
        rule: the name of the rule.
        at: of the look that shows it (seconds since the epoch).
        subject: the gang, node or device; a rule's subject is told once.
        text: what is wrong, as a sentence.
        shown: the part of the look that shows it.
    """

    rule: str
    at: float
    subject: str
    text: str
    shown: Json = field(default_factory=dict)


class Rule(Protocol):
    """What is checked at each look."""

    name: str
    text: str

    def see(self, look: Look) -> list[Violation]:
        """What this look shows to be wrong."""
        ...


class PartlyBound:
    """No gang is bound in part for longer than its grace and a minute.

    A pod that is leaving still holds its node and counts as bound until it is gone: a gang that was told to go and
    whose pods end one after another stands in part only from the first end on, and has its grace for the rest.

    Args:
        sizes: job (`namespace/name`) -> pods of the gang.
        grace_s: the gangs' grace period.
    """

    name = "gang"
    text = "no gang is bound in part beyond its grace and 60 s"

    def __init__(self, sizes: Mapping[str, int], *, grace_s: float) -> None:
        self._sizes = sizes
        self.limit_s = grace_s + EXTRA_S
        self.partly_s: dict[str, float] = {}
        self._before: float | None = None

    def see(self, look: Look) -> list[Violation]:
        """See Rule."""
        bound: dict[str, list[PodSeen]] = {}
        done: dict[str, int] = {}
        for pod in look.pods:
            if pod.holds:
                bound.setdefault(pod.job, []).append(pod)
            elif pod.is_succeeded:
                done[pod.job] = done.get(pod.job, 0) + 1
        passed_s = 0.0 if self._before is None else min(look.at - self._before, MOST_BETWEEN_LOOKS_S)
        self._before = look.at
        partly = {
            job for job, pods in bound.items() if job in self._sizes and len(pods) + done.get(job, 0) < self._sizes[job]
        }
        # A gang that is whole again, or gone, begins anew; one that is first seen in part has lasted no time yet.
        self.partly_s = {job: self.partly_s[job] + passed_s if job in self.partly_s else 0.0 for job in partly}
        return [
            Violation(
                self.name,
                look.at,
                job,
                f"{job} has stood with {len(bound[job])} of {self._sizes[job]} pods for {lasted_s:.0f} s "
                f"(allowed are {self.limit_s:.0f})",
                {"bound": {pod.name: pod.node for pod in bound[job]}, "succeeded": done.get(job, 0)},
            )
            for job, lasted_s in sorted(self.partly_s.items())
            if lasted_s > self.limit_s
        ]


class DoubleBooked:
    """No GPU is given twice: by the scheduler (pods on a node), by Kueue (what holds quota), by a kubelet (devices).

    The gate's probe is put onto its node by name and asks for all GPUs: whether it gets them is the kubelet's word, so
    it counts among the devices and not among the pods.

    Args:
        gpus: node -> GPUs that it has.
    """

    name = "gpu"
    text = "no GPU is given twice"

    def __init__(self, gpus: Mapping[str, int]) -> None:
        self._gpus = gpus

    def see(self, look: Look) -> list[Violation]:
        """See Rule."""
        standing: dict[str, dict[str, int]] = {}
        for pod in look.pods:
            if pod.holds and not pod.name.startswith(f"{SYSTEM}/"):
                standing.setdefault(pod.node, {})[pod.name] = pod.gpus
        given: dict[str, dict[str, int]] = {}
        for workload in look.workloads:
            for node, gpus in workload.gpus_by_node.items():
                given.setdefault(node, {})[workload.job] = gpus
        found = [
            Violation(
                self.name,
                look.at,
                f"{node} ({who})",
                f"{sum(takers.values())} GPUs of {node}, which has {self._gpus[node]}, {what}",
                {who: takers},
            )
            for who, what, by_node in (
                ("pods", "are held by pods", standing),
                ("kueue", "were given away by Kueue", given),
            )
            for node, takers in sorted(by_node.items())
            if node in self._gpus and sum(takers.values()) > self._gpus[node]
        ]
        for node, devices in sorted(look.devices.items()):
            for device, uids in sorted(devices.items()):
                if len(uids) > 1:
                    names = {pod.uid: pod.name for pod in look.pods}
                    holders = sorted(names.get(uid, uid) for uid in uids)
                    text = f"GPU {device} of {node} was given to {' and '.join(holders)}"
                    found.append(Violation(self.name, look.at, device, text, {"holders": holders}))
        return found


class GateKept:
    """No gang's pod comes to a node whose gate is closed, or which was started since its gate was last judged.

    A pod that came while the gate was open stays: closing takes nobody's node away. A node that its agent has not
    judged since the last start counts as closed, whatever stands on it from before.

    Args:
        jobs: jobs whose pods do not ask to go past the gate.
    """

    name = "gate"
    text = "no node is taken without its gate"

    def __init__(self, jobs: Iterable[str]) -> None:
        self._jobs = frozenset(jobs)
        self._before: Look | None = None
        # node -> (start of the machine, what the gate had judged before that start)
        self._starts: dict[str, tuple[float, str]] = {}
        # node -> (since when its gate is closed by its own word, end of the first look that showed that)
        self._closed: dict[str, tuple[str, float]] = {}

    def see(self, look: Look) -> list[Violation]:
        """See Rule."""
        before, self._before = self._before, look
        for name, node in look.nodes.items():
            known = before.nodes.get(name) if before else None
            if known is not None and node.started > known.started > 0:
                self._starts[name] = (node.started, known.boot)
            if node.is_open:
                self._closed.pop(name, None)
            elif self._closed.get(name, ("", 0.0))[0] != node.gate_since or name not in self._closed:
                self._closed[name] = (node.gate_since, look.nodes_read)
        found = []
        for pod in look.pods:
            node_ = look.nodes.get(pod.node)
            if pod.job not in self._jobs or not pod.scheduled or node_ is None:
                continue
            why = self._why(pod, node_, look)
            if why:
                text = f"{pod.name} was bound to {pod.node} {why}"
                shown = {"scheduled": pod.scheduled, "gate_since": node_.gate_since, "boot": node_.boot}
                found.append(Violation(self.name, look.at, pod.name, text, {**shown, "taints": sorted(node_.taints)}))
        return found

    def _why(self, pod: PodSeen, node: NodeSeen, look: Look) -> str:
        # Times of pods are rounded down: what was bound a second before a look was bound before that look.
        start = self._starts.get(node.name)
        if start and node.boot == start[1] and start[0] < pod.scheduled <= look.at - 1:
            return f"{pod.scheduled - start[0]:.0f} s after the node was started and before its gate had judged that"
        closed = self._closed.get(node.name)
        if closed and closed[1] + 1 <= pod.scheduled <= look.at - 1:
            return f"while its gate was closed ({', '.join(sorted(node.taints))})"
        return ""


@dataclass(slots=True)
class Planted:
    """State of somebody else on a node.

    Attributes:
        node: where.
        what: taint, label or cordon.
        value: `key=value:effect` of a taint, `key=value` of a label, empty for a cordon.
        since: it was there from then on.
        until: it was there up to then; None while it stays.
    """

    node: str
    what: Literal["taint", "label", "cordon"]
    value: str
    since: float
    until: float | None = None


class ForeignKept:
    """What somebody else set on nodes stays as it is, through faults, gates and restarts.

    Args:
        planted: what was set; more may come, and ends may be set, while looks are shown.
    """

    name = "foreign"
    text = "no state of somebody else is touched"

    def __init__(self, planted: list[Planted]) -> None:
        self.planted = planted

    def see(self, look: Look) -> list[Violation]:
        """See Rule."""
        found = []
        for one in list(self.planted):
            # Only where the whole question about nodes lay within the time can the answer be held against anybody.
            if look.at < one.since or (one.until is not None and look.nodes_read > one.until):
                continue
            node = look.nodes.get(one.node)
            if node is None or not _is_there(one, node):
                text = f"the {one.what} {one.value}".rstrip() + f" that somebody set on {one.node} is gone"
                shown: Json = {"node": one.node, "exists": node is not None}
                if node is not None:
                    shown |= {"taints": sorted(node.taints), "labels": dict(node.labels), "cordon": node.is_cordoned}
                found.append(Violation(self.name, look.at, f"{one.node} {one.what}", text, shown))
        return found


def _is_there(one: Planted, node: NodeSeen) -> bool:
    if one.what == "cordon":
        return node.is_cordoned
    if one.what == "taint":
        return one.value in node.taints
    key, _, value = one.value.partition("=")
    return node.labels.get(key) == value
