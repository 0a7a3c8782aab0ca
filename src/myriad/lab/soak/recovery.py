"""When all is well again: after one fault, and after all of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from myriad.lab.soak.plan import KINDS, Fault
from myriad.lab.soak.seen import Look, NodeSeen

BOUND_S = 300.0
"""After the last fault everything is well within this time."""
SETTLED_S = 20.0
"""Well for so long is well: a kubelet says every ten seconds what has changed."""
WORK_BOUND_S = 900.0
"""And every gang has ended within this one."""


@dataclass(slots=True)
class Course:
    """What became of a fault. Times are seconds since the epoch; None where it did not come to that.

    Attributes:
        fault: as planned.
        injected: when it was there.
        undone: when it was taken back (of one that ends by itself: the same).
        recovered: of the first look from which on its target was well again.
        boot: what the node's gate had judged before.
        skipped: why it did not happen.
    """

    fault: Fault
    injected: float | None = None
    undone: float | None = None
    recovered: float | None = None
    boot: str = ""
    skipped: str = ""
    is_settled: bool = False

    @property
    def recovery_s(self) -> float | None:
        """From when it was taken back."""
        return None if self.recovered is None or self.undone is None else max(self.recovered - self.undone, 0.0)


def node_ills(node: NodeSeen | None, gpus: int) -> list[str]:
    """Why a GPU node takes no work; a cordon is the harness's own affair and no ill."""
    if node is None:
        return ["it is not in the cluster"]
    ills = []
    if not node.is_ready:
        ills.append("its kubelet is not ready")
    if not node.is_open:
        ills.append("its gate is closed")
    if node.gpus != gpus:
        ills.append(f"{node.gpus} of {gpus} GPUs")
    return ills


def ills(look: Look, gpus: Mapping[str, int]) -> list[str]:
    """Everything that is not as it should be at rest; empty where all is well."""
    found = [
        f"{name}: {', '.join(what)}" for name, count in gpus.items() if (what := node_ills(look.nodes.get(name), count))
    ]
    found += [
        f"{name}: its kubelet is not ready" for name, node in look.nodes.items() if not (node.is_ready or name in gpus)
    ]
    found += [f"{name}: it is cordoned" for name, node in look.nodes.items() if node.is_cordoned]
    if not look.is_led:
        found.append("nobody leads the extension")
    if not look.is_extension_ready:
        found.append("a replica of the extension is not ready")
    if look.unsteered:
        found.append(f"unsteered: {', '.join(look.unsteered)}")
    if not look.has_registry:
        found.append("the registry does not answer")
    return found


def is_healed(course: Course, look: Look, gpus: Mapping[str, int]) -> bool:
    """Whether a look shows that the target of a fault that was taken back is well again."""
    fault = course.fault
    if course.undone is None or course.injected is None or look.at <= course.undone:
        return False
    if fault.kind == "node":
        # Shortly after its start the cluster still believes what it knew before.
        node = look.nodes.get(fault.node)
        if node is None or node.boot == course.boot:
            return False
    if KINDS[fault.kind].lane == "nodes":
        return not any(node_ills(look.nodes.get(name), gpus[name]) for name in (fault.node, fault.peer) if name in gpus)
    if fault.kind == "leader":
        return look.is_led and look.renewed > course.injected
    if fault.kind == "registry":
        return look.has_registry
    # The API server, and PostgreSQL, whose absence only the ledger's lag would show: a look is an answer.
    return True


def follow(course: Course, look: Look, gpus: Mapping[str, int]) -> None:
    """Bring a course up to date. What falls ill again has not recovered, until it has been well for a while."""
    if course.is_settled or course.skipped or course.undone is None:
        return
    if not is_healed(course, look, gpus):
        course.recovered = None
    elif course.recovered is None:
        course.recovered = look.at
    elif look.at - course.recovered >= SETTLED_S:
        course.is_settled = True
