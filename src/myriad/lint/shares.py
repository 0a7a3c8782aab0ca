"""How much a ClusterQueue can ever give: its own quota and what its cohorts lend it, flavor by flavor. Pure.

The arithmetic is Kueue's (hierarchical cohorts, borrowing and lending limits):
https://kueue.sigs.k8s.io/docs/concepts/cohort/ and https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from myriad.lint.scene import Scene, Thing, number, plain, rows, text

ZERO = Decimal(0)
#: Cohorts above each other; a tree of a site has three or four.
_DEEPEST = 64
Key = tuple[str, str]
"""Flavor and resource."""


@dataclass(frozen=True, slots=True)
class Quota:
    """One row of a queue or a cohort. A limit of None is none."""

    nominal: Decimal
    borrowing: Decimal | None = None
    lending: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """The most that a queue can give of one resource in one flavor.

    Attributes:
        most: what it can never exceed; None where queues that were not read may lend it any amount.
        read: the same as far as the queues go that were read.
        how: how `most` (or else `read`) comes about.
    """

    most: Decimal | None
    read: Decimal
    how: str


@dataclass(frozen=True)
class Tree:
    """The queues and cohorts of a scene, each name once.

    Attributes:
        whole: whether every queue is here.
        quotas: rows by node; a node is ("ClusterQueue" or "Cohort", name).
        parents: the cohort above each node, "" for none.
        cohorts: cohorts below each cohort.
        holders: queues of each cohort with a row of a flavor and resource, so that a sum asks no others.
        limited: of what somebody lends a part only.
    """

    whole: bool
    quotas: Mapping[tuple[str, str], Mapping[Key, Quota]]
    parents: Mapping[tuple[str, str], str]
    cohorts: Mapping[str, list[tuple[str, str]]]
    holders: Mapping[tuple[str, Key], list[tuple[str, str]]]
    limited: frozenset[Key] = frozenset()
    _subtrees: dict[tuple[str, str, Key], Decimal] = field(default_factory=dict, repr=False, compare=False)

    def subtree(self, node: tuple[str, str], key: Key, above: frozenset[str] = frozenset()) -> Decimal:
        """Quota of a node and of what is below it, less what the nodes below keep for themselves."""
        kept = self._subtrees.get((*node, key))
        if kept is not None:
            return kept
        row = self.quotas.get(node, {}).get(key)
        total = row.nominal if row else ZERO
        kind, name = node
        if kind == "Cohort" and name not in above and len(above) < _DEEPEST:
            for child in (*self.cohorts.get(name, ()), *self.holders.get((name, key), ())):
                total += self.subtree(child, key, above | {name}) - self.guaranteed(child, key, above | {name})
        self._subtrees[(*node, key)] = total
        return total

    def guaranteed(self, node: tuple[str, str], key: Key, above: frozenset[str] = frozenset()) -> Decimal:
        """What a node does not lend."""
        row = self.quotas.get(node, {}).get(key)
        if row is None or row.lending is None:
            return ZERO
        return max(ZERO, self.subtree(node, key, above) - row.lending)

    def potential(self, node: tuple[str, str], key: Key, seen: frozenset[str] = frozenset()) -> Decimal:
        """The most that a node can have while everything else is idle."""
        parent = self.parents.get(node, "")
        if not parent or parent in seen or len(seen) >= _DEEPEST:
            return self.subtree(node, key)
        most = self.guaranteed(node, key) + self.potential(("Cohort", parent), key, seen | {parent})
        row = self.quotas.get(node, {}).get(key)
        if row is not None and row.borrowing is not None:
            most = min(most, self.subtree(node, key) + row.borrowing)
        return most


def lenders_read(scene: Scene, queue: Thing) -> bool:
    """Whether others of a queue's cohort are among the objects, so that a sum over them says something."""
    tree = tree_of(scene)
    cohort = cohort_name(queue)
    own = ("ClusterQueue", queue.name)
    return ("Cohort", cohort) in tree.quotas or any(
        len(tree.holders.get((cohort, key), ())) > 1 for key in tree.quotas.get(own, ())
    )


def cohort_name(holder: Thing) -> str:
    """The cohort that a ClusterQueue or a Cohort is in, "" for none; v1beta1 calls a queue's field cohort."""
    if holder.kind == "Cohort":
        return text(holder.spec, "parentName")
    return text(holder.spec, "cohortName") or text(holder.spec, "cohort")


def tree_of(scene: Scene) -> Tree:
    """The tree of a scene, made once."""
    kept = scene.recall("shares")
    if isinstance(kept, Tree):
        return kept
    quotas: dict[tuple[str, str], dict[Key, Quota]] = {}
    parents: dict[tuple[str, str], str] = {}
    cohorts: dict[str, list[tuple[str, str]]] = defaultdict(list)
    holders: dict[tuple[str, Key], list[tuple[str, str]]] = defaultdict(list)
    for holder in scene.of("ClusterQueue", "Cohort"):
        node = (holder.kind, holder.name)
        if node in quotas:
            continue  # `defined-twice` says so.
        quotas[node] = _quotas(holder)
        parents[node] = cohort_name(holder)
        if parents[node] and holder.kind == "Cohort":
            cohorts[parents[node]].append(node)
        elif parents[node]:
            for key in quotas[node]:
                holders[parents[node], key].append(node)
    limited = frozenset(key for found in quotas.values() for key, row in found.items() if row.lending is not None)
    tree = Tree("ClusterQueue" in scene.sure, quotas, parents, cohorts, holders, limited)
    scene.remember("shares", tree)
    return tree


def _quotas(holder: Thing) -> dict[Key, Quota]:
    found: dict[Key, Quota] = {}
    for _, group in rows(holder.spec, "resourceGroups"):
        for _, flavor in rows(group, "flavors"):
            for _, row in rows(flavor, "resources"):
                nominal = number(row.get("nominalQuota"))
                if nominal is not None and nominal >= 0:
                    limits = (number(row.get("borrowingLimit")), number(row.get("lendingLimit")))
                    found[text(flavor, "name"), text(row, "name")] = Quota(nominal, *limits)
    return found


def shares_of(scene: Scene, queue: Thing) -> dict[Key, Share]:
    """The most that a queue can give, by flavor and resource."""
    kept = scene.recall(f"shares of {queue.name}")
    if kept is not None:
        return dict(kept)
    tree = tree_of(scene)
    node = ("ClusterQueue", queue.name)
    cohort = tree.parents.get(node, "")
    found: dict[Key, Share] = {}
    for key, row in tree.quotas.get(node, {}).items():
        if not cohort:
            found[key] = Share(row.nominal, row.nominal, "its nominal quota; it is in no cohort that lends")
            continue
        read = tree.potential(node, key)
        most = read if tree.whole else None if row.borrowing is None else row.nominal + row.borrowing
        borrowed = max(ZERO, (most if most is not None else read) - row.nominal)
        if row.borrowing is not None and borrowed == row.borrowing:
            how = f"{plain(row.nominal)} of its own and {plain(borrowed)} borrowed"
        else:
            how = f"the whole cohort {_root(tree, cohort)} has no more"
            if key in tree.limited:
                how += " to lend"
        found[key] = Share(most, read, how)
    scene.remember(f"shares of {queue.name}", found)
    return found


def _root(tree: Tree, cohort: str) -> str:
    seen: set[str] = set()
    while cohort not in seen:
        seen.add(cohort)
        parent = tree.parents.get(("Cohort", cohort), "")
        if not parent:
            break
        cohort = parent
    return cohort
