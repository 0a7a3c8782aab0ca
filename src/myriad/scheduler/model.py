"""Data classes that the planner, the explanation and the decision log share. Pure: no I/O, no API client.

Resources are plain mappings from a resource name to an integer in one fixed unit: ``cpu_milli`` (thousandths of a
core), ``memory_bytes``, ``pods`` and every extended resource by its Kubernetes name (``nvidia.com/gpu``) as a count.
`resources_from_kubernetes` makes one from a Kubernetes map of quantities.

A place is a path from the broadest level to the narrowest: ``("hall1", "b1", "r2")`` for the levels
``("room", "block", "rack")``. People read it with slashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any, Literal

from myriad import quantity
from myriad.errors import InputError

LABEL_PREFIX = "myriad.dev/"
POOL_LABEL = "myriad.dev/pool"
HOSTNAME_LABEL = "kubernetes.io/hostname"
GATE_TAINT = "myriad.dev/gpu-not-ready"
UNHEALTHY_TAINT = "myriad.dev/gpu-unhealthy"
RESERVED_TAINT = "myriad.dev/reserved"
DEFAULT_GPU_RESOURCE = "nvidia.com/gpu"
DEFAULT_LEVELS = ("room", "block", "rack")

CPU = "cpu_milli"
MEMORY = "memory_bytes"
PODS = "pods"

Resources = Mapping[str, int]
"""Resource name -> amount in the module's fixed units."""

TopologyMode = Literal["required", "preferred", "unconstrained"]
RefusalKind = Literal["never", "not_now"]


def parse_quantity(text: str | int | float) -> Decimal:
    """Read a Kubernetes quantity (``500m``, ``16Gi``, ``8``, ``1e3``) as an exact decimal in its base unit.

    Raises InputError where the text is no quantity.
    """
    try:
        return quantity.parse(str(text))
    except ValueError as error:
        raise InputError(
            f"{text!r} is not a Kubernetes quantity",
            hint="write a number with an optional suffix, such as 500m, 16Gi or 8",
        ) from error


def resources_from_kubernetes(
    amounts: Mapping[str, str | int | float] | None, *, round_up: bool = True
) -> dict[str, int]:
    """Turn a Kubernetes resource map (``{"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "8"}``) into `Resources`.

    Requests are rounded up, allocatable amounts (``round_up=False``) down, so that rounding never over-allocates.
    """
    out: dict[str, int] = {}
    for name, text in (amounts or {}).items():
        value = parse_quantity(text)
        key = {"cpu": CPU, "memory": MEMORY}.get(name, name)
        if name == "cpu":
            value *= 1000
        whole = int(value)
        out[key] = whole + 1 if round_up and value > whole else whole
    return out


def add_resources(*parts: Resources) -> dict[str, int]:
    """Sum of several resource maps, name by name."""
    total: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return total


def is_gpu_resource(name: str) -> bool:
    """Whether a resource name stands for GPUs (whole cards or MIG slices) of any vendor."""
    return name.endswith(("/gpu", "/gpus")) or "/mig-" in name


def gpus_words(count: int, gpu_name: str = "GPUs") -> str:
    """``1 GPU``, ``8 GPUs``, ``8 H100``."""
    return "1 GPU" if count == 1 and gpu_name == "GPUs" else f"{count} {gpu_name}"


def place(path: Sequence[str]) -> str:
    """A path as people read it: ``hall1/b1/r2``; ``the cluster`` for the empty path."""
    return "/".join(path) if path else "the cluster"


def level_label(level: str) -> str:
    """The node label of a topology level: ``rack`` -> ``myriad.dev/rack``; a full label key stays as it is."""
    return level if "/" in level else LABEL_PREFIX + level


def level_value(level: str, path: Sequence[str]) -> str:
    """The value of that label in a place: Myriad's own carries the whole path, another tool's its own step."""
    return path[-1] if "/" in level else ".".join(path)


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of a pod; an empty key with ``Exists`` tolerates everything, an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Kubernetes' rule: https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/"""
        if self.effect and self.effect != taint.effect:
            return False
        if not self.key:
            return self.operator == "Exists"
        if self.key != taint.key:
            return False
        return self.operator == "Exists" or self.value == taint.value


@dataclass(frozen=True, slots=True)
class Expression:
    """One line of a node selector term: In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """A node selector term: all expressions hold (ANDed); the terms of a list are ORed.

    ``fields`` are matchFields, of which Kubernetes knows only ``metadata.name``.
    """

    expressions: tuple[Expression, ...] = ()
    fields: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What the planner knows of one node.

    ``location`` runs from the broadest level to the narrowest and may be shorter than the levels (an unlabelled node)
    or hold empty strings; such a node belongs to no domain of the missing levels.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    ready: bool = True
    location: tuple[str, ...] = ()
    pool: str = ""
    allocatable: Resources = field(default_factory=dict)
    mixed_gpus: bool = False
    """More than one GPU model in the node: it is never placed by product (its one product label is a guess)."""
    cordoned_by: str = ""
    gate_reason: str = ""
    """Why the gate is closed, where the node agent said so; the gate itself is a taint."""

    @property
    def gate_closed(self) -> bool:
        """Whether the node waits for its gate: not proven yet, or unhealthy since (GATE_TAINT, UNHEALTHY_TAINT)."""
        return any(t.key in (GATE_TAINT, UNHEALTHY_TAINT) for t in self.taints)

    @property
    def usable(self) -> bool:
        """Whether the node may take any new work at all (taints are judged per podset)."""
        return self.ready and not self.cordoned


@dataclass(frozen=True, slots=True)
class PodUse:
    """What one pod takes from its node: until it is terminal, so a terminating pod still counts as used.

    ``requests`` are the pod's effective requests without ``pods``; every pod also takes one pod slot. A reservation
    (an admitted gang whose pods do not exist yet) is a PodUse with a uid of the caller's own making.
    """

    uid: str
    node: str
    requests: Resources = field(default_factory=dict)
    terminating: bool = False
    owner: str = ""
    """The job that the pod belongs to, ``namespace/name``, for sentences."""
    permanent: bool = False
    """A pod of a DaemonSet or a static pod: it makes room for nobody, so it counts for "never" too."""


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """The topology wish of a podset; ``level`` is a level name (``rack``), its label key or the hostname label."""

    mode: TopologyMode = "unconstrained"
    level: str = ""


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods of one kind in a gang: ``count`` pods with the same requests and constraints."""

    name: str
    count: int
    requests: Resources = field(default_factory=dict)
    min_count: int | None = None
    """The smallest count the job runs with (elastic jobs); None = count."""
    gpu_resource: str = DEFAULT_GPU_RESOURCE
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: tuple[NodeTerm, ...] = ()
    """Required node affinity terms (ORed); empty = none."""
    tolerations: tuple[Toleration, ...] = ()
    topology: TopologyRequest = TopologyRequest()
    group: str = ""
    """Podsets of one group that require a level get the same domain (Kueue's podset-group-name)."""
    images: tuple[str, ...] = ()
    """Digests (`sha256:<hex>`) of its containers' images, of those that are named by one."""

    @property
    def gpus_per_pod(self) -> int:
        """GPUs that one pod asks for."""
        return int(self.requests.get(self.gpu_resource, 0))

    @property
    def gpus(self) -> int:
        """GPUs of the whole podset."""
        return self.gpus_per_pod * self.count


@dataclass(frozen=True, slots=True)
class Gang:
    """A job that starts whole or not at all. ``pool`` "" = any pool the selectors allow."""

    name: str
    namespace: str
    podsets: tuple[PodSet, ...]
    uid: str = ""
    priority: int = 0
    queue: str = ""
    team: str = ""
    pool: str = ""

    @property
    def gpus(self) -> int:
        """GPUs of all podsets."""
        return sum(p.gpus for p in self.podsets)

    @property
    def least_pods(self) -> int:
        """Pods that it goes on with: fewer than `pods` where it is elastic."""
        return sum(p.count if p.min_count is None else p.min_count for p in self.podsets)

    @property
    def pods(self) -> int:
        """Pods of all podsets."""
        return sum(p.count for p in self.podsets)

    def size(self, gpu_name: str = "GPUs") -> str:
        """``8 pods x 8 GPUs`` (or the model's name), podsets of different size joined by ``+``."""
        parts = []
        for p in self.podsets:
            if p.count:
                noun = "pod" if p.count == 1 else "pods"
                each = f" x {gpus_words(p.gpus_per_pod, gpu_name)}" if p.gpus_per_pod else " without GPUs"
                parts.append(f"{p.count} {noun}{each}")
        return " + ".join(parts) or "0 pods"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A domain that could hold the gang, and what it would cost. Smaller is better in every figure.

    Order of comparison:

    1. ``doubtful``: pods that would have to go to nodes with a penalty of 1 or more.
    2. ``breaks``: 1 where a whole free node would be used in part though the tier is one node.
    3. ``around``: free units on whole free nodes of the enclosing domain that is to stay whole (the block): gangs
       gather in blocks that are already broken.
    4. ``cold``: pods that would have to go to nodes with any penalty (a cold image).
    5. ``leftover``: free units of the gang's scarce resource left in the domain: the fullest domain that fits wins.
    6. ``broken``: whole free nodes used in part; ``penalty``: the sum over the nodes used.
    7. ``outer``: as ``around`` for all enclosing levels, narrowest first; then the order of node names.
    """

    tier: str
    domain: tuple[str, ...]
    capacity_pods: int
    leftover: int
    breaks: int = 0
    around: int = 0
    cold: int = 0
    broken: int = 0
    doubtful: int = 0
    penalty: float = 0.0
    outer: tuple[int, ...] = ()

    def fit(self) -> tuple[int, ...]:
        """The figures that are known before the gang is laid out, in order."""
        return (self.doubtful, self.breaks, self.around, self.cold, self.leftover)


@dataclass(frozen=True, slots=True)
class PodSetPlacement:
    """Where the pods of one podset go; ``domain`` and ``tier`` are the narrowest that hold all of them."""

    podset: str
    nodes: tuple[tuple[str, int], ...]
    tier: str
    domain: tuple[str, ...]

    @property
    def pods(self) -> int:
        """Pods placed."""
        return sum(n for _, n in self.nodes)


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole gang placed. ``tier`` is node, a level name or cluster; ``domain`` its path (for node: path + name)."""

    tier: str
    domain: tuple[str, ...]
    placements: tuple[PodSetPlacement, ...]
    cost: float
    """Weight of the tier (policy.tier_weights): lower is nearer."""
    score: Candidate
    """What the choice costs, for the decision record."""
    candidates: tuple[Candidate, ...] = ()
    """The best few domains of the tier in order, the choice first."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Nodes by class (eligible, other_nodes, cordoned, not_ready, taint, unlabelled) and, as ``fitting``, how many
    domains of the tier have room."""
    reason: str = ""
    ok: Literal[True] = True

    @property
    def nodes(self) -> dict[str, int]:
        """Pods by node over all podsets, in node order."""
        out: dict[str, int] = {}
        for placement in self.placements:
            for node, pods in placement.nodes:
                out[node] = out.get(node, 0) + pods
        return out

    def selector(self, podset: str, levels: Sequence[str]) -> dict[str, str]:
        """The node selector that pins a podset to its domain (empty for the whole cluster).

        ``levels`` are the topology levels, broadest first. A podset on one node is pinned by the hostname label.
        """
        for p in self.placements:
            if p.podset == podset:
                if p.tier == "cluster":
                    return {}
                if p.tier == "node":
                    return {HOSTNAME_LABEL: p.domain[-1]}
                return {level_label(p.tier): ".".join(p.domain[: list(levels).index(p.tier) + 1])}
        names = ", ".join(p.podset for p in self.placements)
        raise InputError(f"the plan has no podset {podset!r}", hint=f"name one of: {names}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a gang has no place: ``never`` (no state of this cluster can hold it) or ``not_now``."""

    kind: RefusalKind
    sentence: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    unblocks: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    """Further lines, e.g. what is free in the best domain and which nodes are held back."""
    counts: Mapping[str, int] = field(default_factory=dict)
    ok: Literal[False] = False


Outcome = Plan | Refusal


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """Inputs of the planner that a site may change; part of the hash of a decision.

    ``tier_weights`` maps node, level names and cluster to their cost (hops in a fat tree by default: a pod pair in one
    node costs 0, in one rack 1, ...); tiers missing here get their rank.
    """

    tier_weights: Mapping[str, float] = field(default_factory=dict)
    whole_location_only: bool = True
    """Leave out nodes that lack the label of any level, as Kueue's TAS does (kueue#6996)."""
    keep_whole: str = ""
    """The level whose domains are kept whole for large gangs; "" = the second narrowest (the block over the racks)."""
    keep_candidates: int = 3
    search_limit: int = 20_000
    """Bound on states of the exact search that runs where the greedy packing of several podsets fails."""


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One line of the decision log. See `myriad.scheduler.decisions`."""

    time: str
    event: Literal["planned", "steered", "refused", "assigned", "outcome"]
    uid: str
    namespace: str
    name: str
    inputs: str = ""
    """Hash of snapshot + gang + policy (`decisions.inputs_hash`)."""
    counts: Mapping[str, int] = field(default_factory=dict)
    scores: tuple[Mapping[str, Any], ...] = ()
    tier: str = ""
    domain: tuple[str, ...] = ()
    nodes: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    assigned: Mapping[str, int] = field(default_factory=dict)
    """What TAS assigned: pods by node."""
    assigned_tier: str = ""
    agree: bool | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """A JSON-able mapping in field order, without empty fields."""
        return {k: v for k, v in asdict(self).items() if v not in (None, "", (), {}, [])}
