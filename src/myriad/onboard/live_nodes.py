"""Nodes of a running cluster as hosts and pools. Pure.

What a node's GPUs are is read from labels that others write too: Myriad's own, then those of GPU feature discovery
(https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery). Where it stands follows from the
labels that Kueue's Topology names, then Myriad's own, then Topograph's and the cloud's well-known keys.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from myriad.fleet import names
from myriad.fleet.catalog import CATALOG, GpuModel
from myriad.fleet.derived_labels import label_value
from myriad.fleet.labels import GPU_EXPECTED_LABEL, GPU_MODEL_LABEL, HOSTNAME_LABEL, POOL_LABEL, PREFIX
from myriad.fleet.model import MAX_GPUS_PER_NODE
from myriad.fleet.model_policy import level_fault
from myriad.onboard.describe import UNKNOWN, pool_names

Json = dict[str, Any]

CONTROL_PLANE_LABELS = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
PRODUCT_LABEL = "nvidia.com/gpu.product"
COUNT_LABEL = "nvidia.com/gpu.count"
REPLICAS_LABEL = "nvidia.com/gpu.replicas"
MIG_LABEL = "nvidia.com/mig.strategy"
# Outermost first. Topograph: https://docs.nvidia.com/topograph/v1.0.0/reference/node-labels-and-annotations;
# well-known: https://kubernetes.io/docs/reference/labels-annotations-taints/
KNOWN_LEVELS = (
    ("room", "block", "rack"),
    (
        "network.topology.nvidia.com/datacenter",
        "network.topology.nvidia.com/core",
        "network.topology.nvidia.com/spine",
        "network.topology.nvidia.com/block",
        "network.topology.nvidia.com/leaf",
    ),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.kubernetes.io/rack"),
)
_OWN_TAINTS = (PREFIX, "node.kubernetes.io/", "node-role.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_SUFFIX = re.compile(r"-(SHARED|MIG-.*)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gap:
    """Something of the cluster that the description has no word for.

    Attributes:
        subject: the object, as `Kind name`.
        what: what of it, and what was written instead.
    """

    subject: str
    what: str


@dataclass(frozen=True, slots=True)
class LiveHost:
    """One node as a host."""

    name: str
    address: str
    location: tuple[str, ...] = ()
    pool: str = ""
    gpus: int = 0
    is_control_plane: bool = False


@dataclass(slots=True)
class LiveNodes:
    """What the nodes say.

    Attributes:
        levels: of the places, outermost first.
        hosts: control planes and nodes with GPUs.
        pools: model and resource by the pool's name.
        pool_of_flavor: pool by ResourceFlavor, for flavors whose nodes have GPUs.
        gaps: what could not be described.
    """

    levels: tuple[str, ...] = ()
    hosts: list[LiveHost] = field(default_factory=list)
    pools: dict[str, tuple[GpuModel, str]] = field(default_factory=dict)
    pool_of_flavor: dict[str, str] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _GpuNode:
    name: str
    labels: Mapping[str, str]
    model: GpuModel
    resource: str
    gpus: int


def read_nodes(nodes: Sequence[Json], flavors: Sequence[Json], topologies: Sequence[Json]) -> LiveNodes:
    """Hosts, pools and levels.

    Args:
        nodes: every Node.
        flavors: every ResourceFlavor.
        topologies: every Topology of Kueue.
    """
    found = LiveNodes()
    keys = _level_keys(nodes, topologies, found)
    gpu_nodes = list(_gpu_nodes(nodes, found))
    pool_of = _pools(gpu_nodes, flavors, found)
    gpus_of = {node.name: node.gpus for node in gpu_nodes}
    plain: list[str] = []
    addresses: set[str] = set()
    for body in nodes:
        name, labels = name_of(body), _labels(body)
        is_control_plane = any(label in labels for label in CONTROL_PLANE_LABELS)
        pool = pool_of.get(name, "")
        if not pool and not is_control_plane:
            if not _gpu_resources(body):
                plain.append(name)
            continue
        fault = names.host_name_fault(name)
        if fault is not None:
            found.gaps.append(Gap(f"Node {name}", f"{fault}; it is left out"))
            continue
        location = _location(labels, keys) if pool else ()
        address = _address(body)
        if address in addresses:
            found.gaps.append(Gap(f"Node {name}", f"its address {address} is another node's too; its name was written"))
            address = name
        addresses.add(address)
        found.hosts.append(LiveHost(name, address, location, pool, gpus_of.get(name, 0), is_control_plane))
    if plain:
        what = "have no GPUs and run no control plane: a description has no word for such nodes"
        found.gaps.append(Gap(f"{len(plain)} Node{'' if len(plain) == 1 else 's'}", f"{names.listing(plain)} {what}"))
    _placed(found)
    _taints(nodes, pool_of, found)
    return found


# -- places ------------------------------------------------------------------------------------------------------------


def _level_keys(nodes: Sequence[Json], topologies: Sequence[Json], found: LiveNodes) -> list[str]:
    """Label keys of the levels, outermost first; their names go to `found.levels`."""
    named = sorted(topologies, key=lambda body: (name_of(body) != "myriad", -len(_topology_keys(body)), name_of(body)))
    keys = _topology_keys(named[0]) if named else []
    for other in named[1:]:
        found.gaps.append(
            Gap(f"Topology {name_of(other)}", f"a site has one topology; {name_of(named[0])} was taken for its levels")
        )
    if not keys:
        present = {key for body in nodes for key in _labels(body)}
        known = [[PREFIX + level for level in KNOWN_LEVELS[0]], *(list(levels) for levels in KNOWN_LEVELS[1:])]
        keys = next((some for levels in known if (some := [key for key in levels if key in present])), [])
    levels: list[str] = []
    for key in keys:
        level = _level_name(key, levels)
        levels.append(level)
        if PREFIX + level != key:
            found.gaps.append(
                Gap(f"label {key}", f'is level "{level}" of the description, whose label is {PREFIX}{level}')
            )
    found.levels = tuple(levels) or ("rack",)
    return keys


def _topology_keys(body: Json) -> list[str]:
    levels = (body.get("spec") or {}).get("levels") or []
    return [str(level["nodeLabel"]) for level in levels if level.get("nodeLabel") != HOSTNAME_LABEL]


def _level_name(key: str, taken: Sequence[str]) -> str:
    """`rack` of `myriad.dev/rack`, `block` of `cloud.provider.com/topology-block`."""
    last = re.sub(r"[^a-z0-9-]+", "-", key.rpartition("/")[2].lower()).removeprefix("topology-").strip("-")
    if not last or level_fault(last) is not None or last in taken:
        last = f"level{len(taken) + 1}"
    return last


def _location(labels: Mapping[str, str], keys: Sequence[str]) -> tuple[str, ...]:
    if not keys:
        return (UNKNOWN,)
    steps = []
    for key in keys:
        value = labels.get(key, "")
        # Myriad's own labels carry the whole path down to their level.
        step = value.rpartition(".")[2] if key.startswith(PREFIX) else value
        steps.append(re.sub(r"[^A-Za-z0-9_-]+", "-", step).strip("-_") or UNKNOWN)
    return tuple(steps)


def _placed(found: LiveNodes) -> None:
    """Name what has no place; a path that is too long for a label value is cut to nothing but `unknown`."""
    lost = [host.name for host in found.hosts if host.pool and UNKNOWN in host.location]
    if lost:
        found.gaps.append(
            Gap(
                f"{len(lost)} Node{'' if len(lost) == 1 else 's'}",
                f'{names.listing(lost)}: no label says where, so the place is "{UNKNOWN}"; write it in hosts.yml',
            )
        )
    for number, host in enumerate(found.hosts):
        if len("/".join(host.location)) > names.MAX_NAME:
            unknown = (UNKNOWN,) * len(host.location)
            found.hosts[number] = LiveHost(
                host.name, host.address, unknown, host.pool, host.gpus, host.is_control_plane
            )
            found.gaps.append(
                Gap(f"Node {host.name}", f"its place is longer than the {names.MAX_NAME} of a label value")
            )


# -- GPUs --------------------------------------------------------------------------------------------------------------


def _gpu_resources(body: Json) -> dict[str, int]:
    """Whole GPUs by resource: what the catalog's vendors register."""
    status = body.get("status") or {}
    amounts = {**(status.get("allocatable") or {}), **(status.get("capacity") or {})}
    known = {model.resource for model in CATALOG.values()}
    return {key: int(value) for key, value in amounts.items() if key in known and str(value).isdigit() and int(value)}


def model_of(labels: Mapping[str, str]) -> GpuModel | None:
    """The model that a node's labels name; None where they name none that the catalog knows."""
    own = CATALOG.get(labels.get(GPU_MODEL_LABEL, ""))
    if own is not None:
        return own
    return _BY_LABEL.get(_SUFFIX.sub("", labels.get(PRODUCT_LABEL, "")).lower())


_BY_LABEL = {label_value(product).lower(): model for model in CATALOG.values() for product in model.products}


def _gpu_nodes(nodes: Iterable[Json], found: LiveNodes) -> Iterable[_GpuNode]:
    shared: list[str] = []
    cut: list[str] = []
    nameless: dict[str, list[str]] = {}
    for body in nodes:
        name, labels, resources = name_of(body), _labels(body), _gpu_resources(body)
        expected = labels.get(GPU_EXPECTED_LABEL, "")
        if not resources and not (expected.isdigit() and int(expected)) and PRODUCT_LABEL not in labels:
            continue
        model = model_of(labels)
        if model is None:
            nameless.setdefault(_said(labels), []).append(name)
            continue
        resource = next(iter(resources), model.resource)
        gpus = next(
            (int(text) for text in (expected, labels.get(COUNT_LABEL, "")) if text.isdigit() and int(text)),
            resources.get(resource, 0),
        )
        if not 1 <= gpus <= MAX_GPUS_PER_NODE:
            found.gaps.append(Gap(f"Node {name}", f"has {gpus} GPUs; a description takes 1 to {MAX_GPUS_PER_NODE}"))
            continue
        if labels.get(REPLICAS_LABEL, "1") not in ("0", "1"):
            shared.append(name)
        if labels.get(MIG_LABEL, "none") != "none" or "-MIG-" in labels.get(PRODUCT_LABEL, ""):
            cut.append(name)
        yield _GpuNode(name, labels, model, resource, gpus)
    for said, some in sorted(nameless.items()):
        subject = f"{len(some)} Node{'' if len(some) == 1 else 's'} with GPUs"
        found.gaps.append(Gap(subject, f"{names.listing(some)}: {said}; without a model they are in no pool"))
    if shared:
        found.gaps.append(
            Gap(
                "GPUs that are shared",
                f"{names.listing(shared)}: described as whole; myriad_pools.NAME.sharing says it",
            )
        )
    if cut:
        found.gaps.append(
            Gap("GPUs that are cut by MIG", f"{names.listing(cut)}: described as whole; myriad_pools.NAME.mig says it")
        )


def _said(labels: Mapping[str, str]) -> str:
    product = labels.get(PRODUCT_LABEL)
    return f'the catalog does not know the product "{product}"' if product else f"no label {PRODUCT_LABEL} names them"


def _pools(gpu_nodes: Sequence[_GpuNode], flavors: Sequence[Json], found: LiveNodes) -> dict[str, str]:
    """Pool of each node: its own label's, its flavor's, or its model's; nodes of another model get one beside."""
    wanted = {node.name: node.labels.get(POOL_LABEL) or _flavor_of(node, flavors) for node in gpu_nodes}
    by_model = pool_names(sorted({node.model.name for node in gpu_nodes}))
    members: dict[str, list[_GpuNode]] = {}
    for node in gpu_nodes:
        pool = dns_name(wanted[node.name] or by_model[node.model.name])
        members.setdefault(pool, []).append(node)
    pool_of: dict[str, str] = {}
    for pool, nodes in sorted(members.items()):
        counts = Counter((node.model.name, node.resource) for node in nodes)
        for (model, resource), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            named = pool if pool not in found.pools else free_name(f"{pool}-{dns_name(model)}", found.pools)
            found.pools[named] = (CATALOG[model], resource)
            pool_of |= {node.name: named for node in nodes if (node.model.name, node.resource) == (model, resource)}
            if named != pool:
                found.gaps.append(
                    Gap(
                        f"pool {pool}",
                        f"has nodes of {len(counts)} kinds; {count} of {model} became pool {named}, without a quota",
                    )
                )
    for flavor in flavors:
        name, keys = name_of(flavor), _selector(flavor)
        pools = Counter(pool_of[node.name] for node in gpu_nodes if keys.items() <= node.labels.items())
        if pools and (keys or len(flavors) == 1):
            # A flavor that names its pool is that pool's, whatever else matches.
            named = dns_name(keys.get(POOL_LABEL) or name)
            found.pool_of_flavor[name] = named if named in pools else pools.most_common(1)[0][0]
    return pool_of


def _flavor_of(node: _GpuNode, flavors: Sequence[Json]) -> str:
    """The flavor whose labels say most about a node; empty for none. One without labels says nothing."""
    fitting = [f for f in flavors if _selector(f) and _selector(f).items() <= node.labels.items()]
    return min(fitting, key=lambda f: (-len(_selector(f)), name_of(f)))["metadata"]["name"] if fitting else ""


def _selector(flavor: Json) -> dict[str, str]:
    return dict((flavor.get("spec") or {}).get("nodeLabels") or {})


def dns_name(text: str) -> str:
    """`text` as a name of the description, short enough to stand beside another one."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[: names.MAX_NAME // 2].strip("-") or "pool"


def free_name(name: str, taken: Iterable[str]) -> str:
    """`name`, with a number where it is taken."""
    known = set(taken)
    return next(n for n in (name, *(f"{name}-{i}" for i in range(2, 1000))) if n not in known)


def _taints(nodes: Sequence[Json], pool_of: Mapping[str, str], found: LiveNodes) -> None:
    keys = Counter(
        str(taint.get("key"))
        for body in nodes
        if name_of(body) in pool_of
        for taint in (body.get("spec") or {}).get("taints") or []
        if not str(taint.get("key")).startswith(_OWN_TAINTS)
    )
    for key, count in sorted(keys.items()):
        found.gaps.append(
            Gap(f"taint {key}", f"stands on {count} GPU nodes; Myriad leaves it alone and plans around it")
        )


def _address(body: Json) -> str:
    addresses = (body.get("status") or {}).get("addresses") or []
    return next((str(a["address"]) for a in addresses if a.get("type") == "InternalIP"), name_of(body))


def _labels(body: Json) -> dict[str, str]:
    return dict(body["metadata"].get("labels") or {})


def name_of(body: Json) -> str:
    """The name of an object."""
    return str(body["metadata"]["name"])
