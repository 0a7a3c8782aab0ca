"""What may be written into our entry of a Workload's admission checks, and when. Pure; docs/adr/0010-steering.md
gives the reasons and what was read in Kueue's source.

The rules in short:

- Never Rejected (deactivates the gang), and Retry (sends it to the back of its priority) for one reason alone: its
  quota came with nodes that the selector in the entry excludes, so its pods would be Pending for ever.
- Nothing while Evicted=True, nothing on a finished, inactive or deleted Workload, nothing in a state that is not ours.
- Quota is held and the entry is Pending: Ready without podSetUpdates. A selector against an assignment already made
  would leave the pods Pending for ever, and an old one may still be in the entry: it is cleared explicitly.
- The gang waits and fits into a domain now: Ready with a selector for that domain, before quota.
- The gang waits and fits nowhere now: Pending without a selector. Then Kueue's TAS may place it anywhere the moment
  that quota and nodes are free, and we accept at once.
- A selector is never changed in place (Kueue's webhook refuses it): back to Pending first, then Ready again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from myriad.scheduler.model import (
    HOSTNAME_LABEL,
    Gang,
    Plan,
    PodSet,
    PodSetPlacement,
    Toleration,
    level_label,
    level_value,
    place,
)
from myriad.scheduler.objects import PodSetUpdate, WorkloadView


@dataclass(frozen=True, slots=True)
class Wish:
    """What steering would like for a waiting gang; without updates TAS is left free."""

    updates: tuple[PodSetUpdate, ...] = ()
    message: str = ""


@dataclass(frozen=True, slots=True)
class Write:
    """One change of our entry."""

    state: Literal["Ready", "Pending", "Retry"]
    message: str
    updates: tuple[PodSetUpdate, ...]
    why: Literal["accepted", "steered", "released", "misled"]


def next_write(view: WorkloadView, wish: Wish | None, *, misled: bool = False) -> Write | None:
    """The next change of our entry, or None where it is as it should be or not ours to change.

    Args:
        view: the Workload as last seen; the write must be made with its resourceVersion.
        wish: for a waiting gang; None = no opinion (not planned in this pass).
        misled: what `is_misled` says of it.
    """
    check = view.check
    if check is None or view.finished or view.deleting or view.evicted or not view.active:
        return None
    if check.state not in ("Pending", "Ready"):
        return None
    if view.quota_reserved:
        if check.state == "Ready":
            if not misled:
                return None
            text = f"its quota came with {_nodes_text(view)}, which it had just been led away from: once more"
            return Write("Retry", text, (), "misled")
        return Write("Ready", f"accepted as placed by Kueue: {_nodes_text(view)}", (), "accepted")
    if wish is None:
        return None
    if not wish.updates:
        if check.state == "Ready" and check.updates:
            return Write("Pending", wish.message, (), "released")
        return None
    if check.state == "Pending":
        return Write("Ready", wish.message, wish.updates, "steered")
    if same_updates(check.updates, wish.updates):
        return None
    return Write("Pending", "the domain that it was steered to changes", (), "released")


def is_misled(view: WorkloadView, labels_of: Callable[[str], Mapping[str, str] | None]) -> bool:
    """Whether a gang holds nodes that the selector in its entry excludes.

    Kueue's apply of an admission carries the check states that it had seen. Where it had seen no entry yet, and ours
    was written in between, ours stays as it is beside nodes that were chosen without it.

    Args:
        view: a gang that holds quota.
        labels_of: a node's labels; None where the node is not known, which proves nothing.
    """
    updates = {u.name: u.node_selector for u in view.check.updates} if view.check is not None else {}
    for podset, nodes in (view.assignment or {}).items():
        selector = updates.get(podset) or {}
        for node in nodes if selector else ():
            labels = labels_of(node)
            if labels is not None and any(labels.get(key) != value for key, value in selector.items()):
                return True
    return False


def same_updates(a: Sequence[PodSetUpdate], b: Sequence[PodSetUpdate]) -> bool:
    """Whether two lists of updates say the same, whatever their order."""
    return sorted(a, key=lambda u: u.name) == sorted(b, key=lambda u: u.name)


def updates_for(
    gang: Gang,
    plan: Plan,
    levels: Sequence[str],
    *,
    tolerations: tuple[Toleration, ...] = (),
) -> tuple[PodSetUpdate, ...]:
    """The podSetUpdates that lead a gang to its plan: one selector of one topology label for each podset.

    A plan on one node pins the node's rack, not the host: inside the domain TAS chooses as well as we do, and a
    looser pin has more ways to come true. Where the user's own selector names that label, or a host, nothing is
    added. A domain that is the whole cluster needs no selector.
    """
    by_name = {placement.podset: placement for placement in plan.placements}
    updates = []
    for podset in gang.podsets:
        placement = by_name.get(podset.name)
        selector = _selector(podset, placement, levels) if placement is not None else {}
        if selector or tolerations:
            updates.append(PodSetUpdate(podset.name, selector, tolerations))
    return tuple(updates)


def _selector(podset: PodSet, placement: PodSetPlacement, levels: Sequence[str]) -> Mapping[str, str]:
    depth = len(levels) if placement.tier == "node" else len(placement.domain)
    path = list(placement.domain[:depth])
    if placement.tier == "node" and len(placement.domain) <= depth:
        # A node that lacks level labels: its path is shorter than the levels and ends with its own name.
        path = path[:-1]
    if not path or placement.tier == "cluster":
        return {}
    level = levels[len(path) - 1]
    key = level_label(level)
    if HOSTNAME_LABEL in podset.node_selector or key in podset.node_selector:
        return {}
    return {key: level_value(level, path)}


def with_updates(gang: Gang, updates: Sequence[PodSetUpdate]) -> Gang:
    """The gang as Kueue sees it once the updates are Ready: selectors and tolerations added."""
    by_name = {u.name: u for u in updates}
    podsets = []
    for podset in gang.podsets:
        update = by_name.get(podset.name)
        if update is not None:
            podset = replace(
                podset,
                node_selector={**podset.node_selector, **update.node_selector},
                tolerations=(*podset.tolerations, *update.tolerations),
            )
        podsets.append(podset)
    return replace(gang, podsets=tuple(podsets))


def steered_to(updates: Sequence[PodSetUpdate]) -> str:
    """The domain that updates name, as people read it; empty where they name none."""
    places = {place(value.split(".")) for u in updates for value in u.node_selector.values()}
    return ", ".join(sorted(places))


def _nodes_text(view: WorkloadView) -> str:
    nodes = list(view.nodes)
    if not nodes:
        return "a flavor without topology"
    shown = ", ".join(nodes[:4])
    return shown if len(nodes) <= 4 else f"{shown} and {len(nodes) - 4} more nodes"
