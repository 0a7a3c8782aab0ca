"""The cluster as numpy arrays: what every node has free, which domain it stands in, who may use it. Pure.

Nodes are sorted by (location, name), so that the nodes of one domain of any level are neighbours and a sum over
domains is one `np.add.reduceat`. Shapes: R resources (rows), N nodes (columns), G domains of a level.

A `Snapshot` is built in one pass (`Snapshot.build`) and then kept in step by `apply_pod`, `remove_pod` and
`update_node`, each a few array writes. Only a node that comes, goes or moves lays the arrays out again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from myriad.scheduler.model import (
    DEFAULT_LEVELS,
    HOSTNAME_LABEL,
    LABEL_PREFIX,
    PODS,
    POOL_LABEL,
    Expression,
    NodeInfo,
    NodeTerm,
    PodSet,
    PodUse,
    Taint,
    Toleration,
    is_gpu_resource,
    level_label,
)

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

EXPECTED_LABEL = "myriad.dev/gpu-expected"
PRODUCT_KEYS = frozenset({POOL_LABEL, "myriad.dev/gpu-model", "nvidia.com/gpu.product"})
"""Labels that say which GPU model a node has: meaningless on a node with two models."""

_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
_TRANSIENT_PREFIXES = (LABEL_PREFIX, "node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")

_Vector = tuple[tuple[int, int], ...]


class Level:
    """One topology level laid over the sorted nodes.

    Attributes:
        name: the level's name.
        gid: (N,) domain number of each node.
        starts: (G,) first node of each domain, for `np.add.reduceat`.
        valid: (G,) False for the domain of one that a node without this level stands in.
        paths: G paths, broadest level first.
    """

    __slots__ = ("gid", "name", "paths", "starts", "stops", "valid")

    def __init__(self, name: str, depth: int, nodes: Sequence[NodeInfo]) -> None:
        self.name = name
        starts: list[int] = []
        paths: list[tuple[str, ...]] = []
        valid: list[bool] = []
        gid = np.zeros(len(nodes), dtype=np.int64)
        last: tuple[str, ...] | None = None
        for i, node in enumerate(nodes):
            path = tuple(node.location[:depth])
            known = len(path) == depth and all(path)
            if not known or path != last:
                starts.append(i)
                paths.append(path)
                valid.append(known)
            last = path if known else None
            gid[i] = len(starts) - 1
        self.gid = gid
        self.starts = np.array(starts, dtype=np.int64)
        self.stops = np.array([*starts[1:], len(nodes)], dtype=np.int64)
        self.valid = np.array(valid, dtype=np.bool_)
        self.paths = paths

    def sums(self, values: IntArray) -> IntArray:
        """Sum of a per-node array (N,) by domain: (G,)."""
        if not len(self.starts):
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(values, self.starts)


class Snapshot:
    """The state of the cluster that one decision is made on. See the module's text."""

    def __init__(self, levels: Sequence[str] = DEFAULT_LEVELS) -> None:
        self.levels: tuple[str, ...] = tuple(levels)
        self.version = 0
        """Grows with every change; two equal versions of one object are the same state."""
        self._pods: dict[str, tuple[int, PodUse, _Vector]] = {}
        self._pods_shared = False
        self._orphans: dict[str, PodUse] = {}
        self._layout([], [])

    # -- construction --------------------------------------------------------------------------------------------

    @classmethod
    def build(
        cls, nodes: Iterable[NodeInfo], pods: Iterable[PodUse] = (), *, levels: Sequence[str] = DEFAULT_LEVELS
    ) -> Snapshot:
        """Lay out nodes and pods. Pods on nodes that are not there are kept and count when the node comes."""
        snapshot = cls(levels)
        snapshot._layout(list(nodes), list(pods))
        return snapshot

    def _layout(self, nodes: list[NodeInfo], pods: list[PodUse]) -> None:
        depth = len(self.levels)
        nodes.sort(key=lambda n: (tuple(n.location[:depth]) + ("",) * (depth - len(n.location)), n.name))
        self.nodes: list[NodeInfo] = nodes
        self.index: dict[str, int] = {n.name: i for i, n in enumerate(nodes)}
        names = {PODS}
        for node in nodes:
            names.update(node.allocatable)
        self.resources: tuple[str, ...] = tuple(sorted(names))
        self.row: dict[str, int] = {r: k for k, r in enumerate(self.resources)}
        n = len(nodes)
        self.alloc: IntArray = np.zeros((len(self.resources), n), dtype=np.int64)
        self.used: IntArray = np.zeros_like(self.alloc)
        self.level: tuple[Level, ...] = tuple(Level(name, k + 1, nodes) for k, name in enumerate(self.levels))
        self.located: BoolArray = np.ones(n, dtype=np.bool_)
        """(N,) nodes that stand in a domain of every level."""
        for level in self.level:
            self.located &= level.valid[level.gid] if n else self.located
        self.cordoned: BoolArray = np.zeros(n, dtype=np.bool_)
        self.ready: BoolArray = np.zeros(n, dtype=np.bool_)
        self.mixed: BoolArray = np.zeros(n, dtype=np.bool_)
        self.taint_id: IntArray = np.zeros(n, dtype=np.int64)
        self._taint_sets: list[tuple[Taint, ...]] = []
        self._taint_ids: dict[tuple[Taint, ...], int] = {}
        self._tolerated: dict[tuple[Toleration, ...], BoolArray] = {}
        self._codes: dict[str, tuple[IntArray, dict[str, int]]] = {}
        self._masks: dict[Any, BoolArray] = {}
        self._digests: list[bytes | None] = [None] * n
        self._pristine: Snapshot | None = None
        self._pristine_shared = False
        for i, node in enumerate(nodes):
            self._write_node(i, node)
        self._pods, self._orphans, self._pods_shared = {}, {}, False
        self._count_pods(pods)
        self.version += 1

    def _write_node(self, i: int, node: NodeInfo) -> None:
        self.nodes[i] = node
        self.alloc[:, i] = 0
        for name, amount in node.allocatable.items():
            self.alloc[self.row[name], i] = amount
        if PODS not in node.allocatable:
            self.alloc[self.row[PODS], i] = 110  # the kubelet's own default
        self.cordoned[i] = node.cordoned
        self.ready[i] = node.ready
        self.mixed[i] = node.mixed_gpus
        taints = tuple(sorted((t for t in node.taints if t.effect in _BLOCKING_EFFECTS), key=str))
        number = self._taint_ids.get(taints)
        if number is None:
            number = self._taint_ids[taints] = len(self._taint_sets)
            self._taint_sets.append(taints)
            self._tolerated = {}
        self.taint_id[i] = number
        self._digests[i] = None

    def _vector(self, pod: PodUse) -> _Vector:
        row = self.row
        return (*((row[r], a) for r, a in pod.requests.items() if a and r in row and r != PODS), (row[PODS], 1))

    def _count_pods(self, pods: Iterable[PodUse]) -> None:
        rows: list[int] = []
        columns: list[int] = []
        amounts: list[int] = []
        for pod in pods:
            i = self.index.get(pod.node)
            if i is None:
                self._orphans[pod.uid] = pod
                continue
            vector = self._vector(pod)
            self._pods[pod.uid] = (i, pod, vector)
            for r, a in vector:
                rows.append(r)
                columns.append(i)
                amounts.append(a)
        np.add.at(self.used, (rows, columns), amounts)

    def recount(self, pods: Iterable[PodUse]) -> None:
        """Count these pods and no others, on the nodes as they are."""
        self.used = np.zeros_like(self.alloc)
        self._pods, self._orphans, self._pods_shared = {}, {}, False
        self._pristine, self._pristine_shared = None, False
        self._count_pods(pods)
        self.version += 1

    # -- changes -------------------------------------------------------------------------------------------------

    def _own_pods(self) -> None:
        if self._pods_shared:
            self._pods, self._orphans, self._pods_shared = dict(self._pods), dict(self._orphans), False

    def _own_pristine(self, pristine: Snapshot) -> Snapshot:
        """The pristine copy, made this snapshot's own before it is written."""
        if self._pristine_shared:
            pristine = pristine.clone()
            self._pristine, self._pristine_shared = pristine, False
        return pristine

    def apply_pod(self, pod: PodUse) -> None:
        """Count a pod, new or changed. The same uid is never counted twice."""
        self._own_pods()
        known = self._pods.get(pod.uid)
        if known is not None:
            old = known[1]
            if (old.node, old.requests, old.permanent) == (pod.node, pod.requests, pod.permanent):
                self._pods[pod.uid] = (known[0], pod, known[2])
                self.version += 1
                return
            self.remove_pod(pod.uid)
        i = self.index.get(pod.node)
        if i is None:
            self._orphans[pod.uid] = pod
            return
        vector = self._vector(pod)
        for r, a in vector:
            self.used[r, i] += a
        self._pods[pod.uid] = (i, pod, vector)
        self._orphans.pop(pod.uid, None)
        if pod.permanent and self._pristine is not None:
            self._own_pristine(self._pristine).apply_pod(pod)
        self.version += 1

    def remove_pod(self, uid: str) -> bool:
        """Forget a pod that is terminal or gone; False where it was not known."""
        self._own_pods()
        known = self._pods.pop(uid, None)
        if known is None:
            return self._orphans.pop(uid, None) is not None
        i, pod, vector = known
        for r, a in vector:
            self.used[r, i] -= a
        if pod.permanent and self._pristine is not None:
            self._own_pristine(self._pristine).remove_pod(uid)
        self.version += 1
        return True

    def update_node(self, node: NodeInfo) -> None:
        """Put a node in, new or changed. O(resources) unless it is new, moved or brings a resource of a new name."""
        i = self.index.get(node.name)
        depth = len(self.levels)
        moved = i is None or self.nodes[i].location[:depth] != node.location[:depth]
        if i is None or moved or any(r not in self.row for r in node.allocatable):
            others = [n for n in self.nodes if n.name != node.name]
            self._layout([*others, node], self.pods())
            return
        old = self.nodes[i]
        if old == node:
            return
        self._write_node(i, node)
        if old.labels != node.labels or old.pool != node.pool or old.mixed_gpus != node.mixed_gpus:
            self._codes, self._masks = {}, {}
        if self._pristine is not None:
            self._own_pristine(self._pristine).update_node(_at_its_best(node))
        self.version += 1

    def remove_node(self, name: str) -> bool:
        """Take a node out; its pods are kept aside. False where it was not known."""
        if name not in self.index:
            return False
        self._layout([n for n in self.nodes if n.name != name], self.pods())
        return True

    def clone(self) -> Snapshot:
        """A what-if copy: arrays are copied (tens of microseconds), tables shared until one side changes them."""
        other = Snapshot.__new__(Snapshot)
        other.__dict__.update(self.__dict__)
        other.nodes = list(self.nodes)
        for name in ("alloc", "used", "cordoned", "ready", "mixed", "taint_id"):
            setattr(other, name, getattr(self, name).copy())
        other._taint_sets, other._taint_ids = list(self._taint_sets), dict(self._taint_ids)
        other._tolerated, other._codes, other._masks = dict(self._tolerated), dict(self._codes), dict(self._masks)
        other._digests = list(self._digests)
        self._pods_shared = other._pods_shared = True
        self._pristine_shared = other._pristine_shared = True
        return other

    def pristine(self) -> Snapshot:
        """The same nodes empty, uncordoned, ready, their gates open and all expected GPUs there: for "never".

        Taints under myriad.dev/ and Kubernetes' own node conditions pass, so they do not count; others do, and so do
        permanent pods.
        """
        if self._pristine is None:
            stay = [pod for pod in self.pods() if pod.permanent]
            self._pristine = Snapshot.build([_at_its_best(n) for n in self.nodes], stay, levels=self.levels)
            self._pristine_shared = False
        return self._pristine

    def rename_owners(self, name: Callable[[str], str]) -> None:
        """Give every pod another owner: who is shown this snapshot may not be shown who owns what."""
        self._own_pods()
        self._pods = {uid: (i, replace(pod, owner=name(pod.owner)), v) for uid, (i, pod, v) in self._pods.items()}
        self._orphans = {uid: replace(pod, owner=name(pod.owner)) for uid, pod in self._orphans.items()}
        self._pristine = None

    # -- questions -----------------------------------------------------------------------------------------------

    @property
    def free(self) -> IntArray:
        """(R, N) allocatable minus used; negative where allocatable fell below what runs there."""
        return self.alloc - self.used

    @property
    def usable(self) -> BoolArray:
        """(N,) nodes that are ready and not cordoned."""
        return self.ready & ~self.cordoned

    def pods(self) -> list[PodUse]:
        """All pods counted, with those on unknown nodes."""
        return [pod for _, pod, _ in self._pods.values()] + list(self._orphans.values())

    def pod(self, uid: str) -> PodUse | None:
        """One pod by uid."""
        known = self._pods.get(uid)
        return known[1] if known else self._orphans.get(uid)

    def amounts(self, array: IntArray, resource: str) -> IntArray:
        """(N,) one resource's row of an (R, N) array; zeros for a resource that no node has."""
        k = self.row.get(resource)
        return array[k] if k is not None else np.zeros(len(self.nodes), dtype=np.int64)

    def label_values(self, key: str, mask: BoolArray) -> list[str]:
        """The values that a label has on the masked nodes, sorted; "" where one of them lacks it."""
        codes, values = self._label(key)
        by_code = {code: text for text, code in values.items()}
        return sorted(by_code.get(int(c), "") for c in np.unique(codes[mask]))

    def inside(self, path: tuple[str, ...]) -> BoolArray:
        """(N,) nodes of the domain with this path; all nodes for the empty path, one for a path down to a node."""
        n = len(self.nodes)
        if not path:
            return np.ones(n, dtype=np.bool_)
        mask = np.zeros(n, dtype=np.bool_)
        if len(path) > len(self.levels):
            mask[self.index[path[-1]]] = True
        else:
            level = self.level[len(path) - 1]
            for g in np.flatnonzero(level.valid):
                if level.paths[g] == path:
                    mask[level.starts[g] : level.stops[g]] = True
        return mask

    def label_mask(self, podset: PodSet, pool: str = "") -> BoolArray:
        """(N,) nodes that satisfy selector, affinity and pool, and may be named by product; cached by signature."""
        selector = tuple(sorted(podset.node_selector.items()))
        wants_gpu = podset.gpus_per_pod > 0
        key = (selector, podset.affinity, pool, wants_gpu)
        mask = self._masks.get(key)
        if mask is None:
            mask = np.ones(len(self.nodes), dtype=np.bool_)
            wanted = (*selector, (POOL_LABEL, pool)) if pool else selector
            for label, value in wanted:
                codes, values = self._label(label)
                mask &= codes == values.get(value, -2)
            if podset.affinity:
                mask &= np.logical_or.reduce([self._term_mask(t) for t in podset.affinity])
            keys = {label for label, _ in wanted} | {e.key for t in podset.affinity for e in t.expressions}
            if wants_gpu and keys & PRODUCT_KEYS:
                mask &= ~self.mixed
            self._masks[key] = mask
        return mask

    def tolerated(self, tolerations: tuple[Toleration, ...]) -> BoolArray:
        """(N,) nodes whose NoSchedule and NoExecute taints are all tolerated."""
        by_set = self._tolerated.get(tolerations)
        if by_set is None:
            by_set = np.array(
                [all(any(x.tolerates(t) for x in tolerations) for t in taints) for taints in self._taint_sets],
                dtype=np.bool_,
            )
            self._tolerated[tolerations] = by_set
        if not len(by_set):
            return np.zeros(0, dtype=np.bool_)
        return by_set[self.taint_id]

    def eligible(self, podset: PodSet, pool: str = "") -> BoolArray:
        """(N,) nodes on which a pod of the podset may be put at all, whatever is free there."""
        return self.label_mask(podset, pool) & self.tolerated(podset.tolerations) & self.usable

    def carries(self, key: str) -> BoolArray:
        """(N,) nodes that carry a label, whatever its value."""
        return self._label(key)[0] >= 0

    def _label(self, key: str) -> tuple[IntArray, dict[str, int]]:
        """(N,) value codes of a label (-1 = absent) and the code of each value."""
        cached = self._codes.get(key)
        if cached is None:
            implied = {level_label(name): k + 1 for k, name in enumerate(self.levels)}.get(key)
            values: dict[str, int] = {}
            codes = np.full(len(self.nodes), -1, dtype=np.int64)
            for i, node in enumerate(self.nodes):
                value = node.labels.get(key)
                if value is None:
                    # What the node's facts imply holds also where the caller did not repeat it as a label.
                    if key == HOSTNAME_LABEL:
                        value = node.name
                    elif key == POOL_LABEL and node.pool:
                        value = node.pool
                    elif implied and len(node.location) >= implied and all(node.location[:implied]):
                        value = ".".join(node.location[:implied])
                    else:
                        continue
                codes[i] = values.setdefault(value, len(values))
            cached = self._codes[key] = (codes, values)
        return cached

    def _term_mask(self, term: NodeTerm) -> BoolArray:
        n = len(self.nodes)
        if not term.expressions and not term.fields:
            return np.zeros(n, dtype=np.bool_)  # Kubernetes: an empty term matches nothing
        mask = np.ones(n, dtype=np.bool_)
        for e in term.expressions:
            mask &= self._expression_mask(e, *self._label(e.key))
        for e in term.fields:
            names = {node.name: i for i, node in enumerate(self.nodes)} if e.key == "metadata.name" else {}
            mask &= self._expression_mask(e, np.arange(n, dtype=np.int64), names)
        return mask

    @staticmethod
    def _expression_mask(e: Expression, codes: IntArray, values: Mapping[str, int]) -> BoolArray:
        if e.operator == "Exists":
            return codes >= 0
        if e.operator == "DoesNotExist":
            return codes < 0
        if e.operator in ("In", "NotIn"):
            chosen = [values[v] for v in e.values if v in values]
            inside = np.isin(codes, chosen)
            return inside if e.operator == "In" else ~inside
        if e.operator in ("Gt", "Lt"):
            try:
                bound = int(e.values[0])
            except (IndexError, ValueError):
                return np.zeros(len(codes), dtype=np.bool_)
            chosen = []
            for text, code in values.items():
                try:
                    number = int(text)
                except ValueError:
                    continue
                if (number > bound) if e.operator == "Gt" else (number < bound):
                    chosen.append(code)
            return np.isin(codes, chosen)
        return np.zeros(len(codes), dtype=np.bool_)

    def group_path(self, tier: str, i: int) -> tuple[str, ...]:
        """The path of the domain of a tier that node ``i`` stands in (node: its path and name; cluster: empty)."""
        if tier == "cluster":
            return ()
        if tier == "node":
            return (*self.nodes[i].location[: len(self.levels)], self.nodes[i].name)
        level = self.level[self.levels.index(tier)]
        return level.paths[int(level.gid[i])]

    def tier_of(self, nodes: Iterable[str]) -> tuple[str, tuple[str, ...]]:
        """The narrowest tier whose one domain holds all these nodes, and its path. Unknown nodes: the cluster."""
        positions = [self.index.get(name, -1) for name in nodes]
        if not positions or min(positions) < 0:
            return "cluster", ()
        first = positions[0]
        if all(i == first for i in positions):
            return "node", self.group_path("node", first)
        for level in reversed(self.level):
            g = int(level.gid[first])
            if level.valid[g] and all(int(level.gid[i]) == g for i in positions):
                return level.name, level.paths[g]
        return "cluster", ()

    def digest(self) -> str:
        """Hash of everything a decision reads: nodes, their states, and what is used. Equal states hash equal."""
        h = hashlib.sha256()
        h.update(json.dumps([self.levels, self.resources]).encode())
        for i, d in enumerate(self._digests):
            if d is None:
                self._digests[i] = hashlib.sha256(_node_text(self.nodes[i]).encode()).digest()
        h.update(b"".join(d for d in self._digests if d is not None))
        h.update(self.used.tobytes())
        return h.hexdigest()


def _node_text(node: NodeInfo) -> str:
    """All fields of a node that a decision or its sentence reads, in one canonical text."""
    return json.dumps(
        [
            node.name,
            sorted(node.labels.items()),
            [str(t) for t in node.taints],
            node.cordoned,
            node.ready,
            node.location,
            node.pool,
            sorted(node.allocatable.items()),
            node.mixed_gpus,
            node.cordoned_by,
            node.gate_reason,
        ]
    )


def _at_its_best(node: NodeInfo) -> NodeInfo:
    """The node as it will be when everything that passes has passed."""
    taints = tuple(t for t in node.taints if not t.key.startswith(_TRANSIENT_PREFIXES))
    return replace(node, cordoned=False, ready=True, taints=taints, allocatable=_with_expected_gpus(node))


def _with_expected_gpus(node: NodeInfo) -> dict[str, int]:
    """Allocatable with the GPUs that the description expects, where the node has one kind of GPU resource."""
    amounts = dict(node.allocatable)
    expected = node.labels.get(EXPECTED_LABEL, "")
    gpus = [r for r in amounts if is_gpu_resource(r)]
    if expected.isdigit() and len(gpus) == 1:
        amounts[gpus[0]] = max(amounts[gpus[0]], int(expected))
    return amounts
