"""A running cluster as a description: read in a handful of list calls, told with what it has no word for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from myriad.fleet import names
from myriad.fleet.model import DEFAULT_PRIORITIES, pool_group
from myriad.kube.client import Api
from myriad.kube.kinds import (
    CLUSTER_QUEUES,
    COHORTS,
    LOCAL_QUEUES,
    NODES,
    PRIORITY_CLASSES,
    RESOURCE_FLAVORS,
    TOPOLOGIES,
    WORKLOAD_PRIORITY_CLASSES,
    Resource,
)
from myriad.kube.listing import listed
from myriad.onboard.describe import Description, cluster_file, flow, pool_fields, site_file, teams_file
from myriad.onboard.live_nodes import Gap, LiveNodes, read_nodes
from myriad.onboard.live_queues import LiveQueues, read_queues

Json = dict[str, Any]

READ: tuple[Resource, ...] = (
    NODES,
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    COHORTS,
    RESOURCE_FLAVORS,
    TOPOLOGIES,
    WORKLOAD_PRIORITY_CLASSES,
    PRIORITY_CLASSES,
)
_OLDER = ("v1beta1", "v1alpha1")
"""Versions in which older releases of Kueue serve their kinds (v1beta2 since 0.15)."""
CONTROL_PLANE_ENTRY = "control-plane"


@dataclass(frozen=True, slots=True)
class Live:
    """What was read.

    Attributes:
        objects: by kind's plural.
        unread: kinds that the credentials may not list, or that nobody serves.
        address: host of the API server.
    """

    objects: Mapping[str, Sequence[Json]]
    unread: tuple[str, ...] = ()
    address: str = ""


@dataclass(frozen=True, slots=True)
class Adopted:
    """The description with what is known of it.

    Attributes:
        description: the files.
        gaps: what the description has no word for.
        hosts, gpus, teams: how many.
    """

    description: Description
    gaps: tuple[Gap, ...] = ()
    hosts: int = 0
    gpus: int = 0
    pools: Mapping[str, int] = field(default_factory=dict)
    teams: tuple[str, ...] = ()


def read_live(api: Api) -> Live:
    """List every kind once. Reads only."""
    with ThreadPoolExecutor(max_workers=len(READ)) as pool:
        answers = dict(zip(READ, pool.map(lambda kind: _listed(api, kind), READ), strict=True))
    return Live(
        {kind.plural: items or [] for kind, items in answers.items()},
        tuple(kind.plural for kind, items in answers.items() if items is None),
        urlsplit(api.base_url).hostname or "",
    )


def _listed(api: Api, kind: Resource) -> list[Json] | None:
    found = listed(api, kind)
    for version in _OLDER if kind.group == CLUSTER_QUEUES.group and found is None else ():
        found = listed(api, replace(kind, version=version))
        if found is not None:
            break
    return found


def adopt(live: Live, *, name: str, kubeconfig: str) -> Adopted:
    """Describe a cluster. Pure.

    Args:
        live: what was read of it.
        name: the cluster's.
        kubeconfig: the file with which it is reached from here on.
    """
    of = live.objects
    nodes = read_nodes(of[NODES.plural], of[RESOURCE_FLAVORS.plural], of[TOPOLOGIES.plural])
    most = _most(nodes)
    queues = read_queues(
        of[CLUSTER_QUEUES.plural],
        of[LOCAL_QUEUES.plural],
        of[COHORTS.plural],
        of[WORKLOAD_PRIORITY_CLASSES.plural],
        # A pool none of whose nodes could be described is none.
        pools={pool: known for pool, known in nodes.pools.items() if pool in most},
        pool_of_flavor={flavor: pool for flavor, pool in nodes.pool_of_flavor.items() if pool in most},
    )
    gaps = [
        Gap(f"kind {plural}", "could not be listed: not installed, or hidden from these credentials")
        for plural in live.unread
    ]
    gaps += [*nodes.gaps, *queues.gaps, *_flavor_gaps(of[RESOURCE_FLAVORS.plural])]
    if any(_labels(queue).get("app.kubernetes.io/managed-by") == "myriad" for queue in of[CLUSTER_QUEUES.plural]):
        gaps.append(
            Gap("Myriad's own policy", "budgets, notices, images and rules of a site are not read back from it")
        )
    gaps += _class_gaps(of[PRIORITY_CLASSES.plural], queues)
    hosts_text, more = _hosts_file(nodes, live.address)
    gaps += more
    pools = {
        pool: pool_fields(model, most[pool], resource=resource, **queues.per_gpu.get(pool, {}))
        | ({"use": "inference"} if pool in queues.inference else {})
        for pool, (model, resource) in nodes.pools.items()
        if pool in most
    }
    for fields in pools.values():
        # The usual resource is the default.
        if fields["resource"] == "nvidia.com/gpu":
            del fields["resource"]
    used = {team.cohort for team in queues.teams.values()} | {c.get("parent") for c in queues.cohorts.values()}
    gaps += [Gap(f"Cohort {cohort}", "no team is in it") for cohort in sorted(queues.cohorts) if cohort not in used]
    files = {
        "hosts.yml": hosts_text,
        "group_vars/all/cluster.yml": cluster_file(
            name, nodes.levels, pools, queues.cohorts, priorities=queues.priorities or DEFAULT_PRIORITIES
        ),
        "group_vars/all/teams.yml": teams_file(_teams(queues)),
        "group_vars/all/site.yml": site_file(name, "", kubeconfig=kubeconfig),
    }
    capacity = {pool: sum(host.gpus for host in nodes.hosts if host.pool == pool) for pool in pools}
    return Adopted(
        Description(files), tuple(gaps), len(nodes.hosts), sum(capacity.values()), capacity, tuple(sorted(queues.teams))
    )


def _most(nodes: LiveNodes) -> dict[str, int]:
    """GPUs of the largest node of each pool that has one."""
    most: dict[str, int] = {}
    for host in nodes.hosts:
        if host.pool:
            most[host.pool] = max(most.get(host.pool, 0), host.gpus)
    return most


def _hosts_file(nodes: LiveNodes, address: str) -> tuple[str, list[Gap]]:
    """hosts.yml: one line a host, pools as groups."""
    gaps: list[Gap] = []
    control_plane = [(host.name, host.address) for host in nodes.hosts if host.is_control_plane]
    itself = [(host.name, host.address) for host in nodes.hosts if address in (host.name, host.address)]
    if not control_plane and itself:
        control_plane = itself[:1]
        gaps.append(
            Gap(f"Node {itself[0][0]}", "does not carry the label of a control plane; the API answers at its address")
        )
    elif not control_plane:
        # A description has a control plane; this one is somebody else's, known by its address alone.
        control_plane = [(CONTROL_PLANE_ENTRY, address)]
        gaps.append(
            Gap(
                "control plane",
                f"no Node carries its label: it is run elsewhere, and stands in hosts.yml as {CONTROL_PLANE_ENTRY} "
                f"({address}). No play of hosts can be run on it",
            )
        )
    lines = [
        "# Where things stand; nothing else. Written by `myriad adopt` from a cluster that Myriad did not build.",
        "# `myriad policy diff` compares the two. A site run would set these hosts up: do not begin with it.",
        "all:",
        "  children:",
        "    control_plane:",
        "      hosts:",
        *(f"        {name}: {flow({'ansible_host': where})}" for name, where in control_plane),
        "    gpu_nodes:",
        "      children:",
    ]
    most = _most(nodes)
    for pool in most:
        lines += [f"        {pool_group(pool)}:", "          hosts:"]
        for host in nodes.hosts:
            if host.pool == pool:
                own: dict[str, Any] = {"ansible_host": host.address, "myriad_location": "/".join(host.location)}
                own |= {"myriad_gpus": host.gpus} if host.gpus < most[pool] else {}
                lines.append(f"            {host.name}: {flow(own)}")
    return "\n".join(lines) + "\n", gaps


def _teams(queues: LiveQueues) -> dict[str, dict[str, Any]]:
    teams = {}
    for name, team in sorted(queues.teams.items()):
        fields: dict[str, Any] = {"namespaces": team.namespaces, "quota": team.quota}
        if team.weight != 1:
            fields["weight"] = int(team.weight) if team.weight.denominator == 1 else float(team.weight)
        fields |= {"cohort": team.cohort} if team.cohort else {}
        fields |= {key: value for key, value in (("borrow", team.borrow), ("lend", team.lend)) if value}
        teams[name] = fields
    return teams


def _flavor_gaps(flavors: Sequence[Json]) -> list[Gap]:
    found = []
    for body in flavors:
        spec, subject = body.get("spec") or {}, f"ResourceFlavor {body['metadata']['name']}"
        for key in ("nodeTaints", "tolerations"):
            if spec.get(key):
                found.append(Gap(subject, f"its {key} ({names.listing(str(t.get('key')) for t in spec[key])})"))
        if not spec.get("topologyName"):
            found.append(Gap(subject, "it names no topology; the description places by one (engine: kueue)"))
    return found


def _labels(body: Json) -> dict[str, str]:
    return dict(body["metadata"].get("labels") or {})


def _class_gaps(classes: Sequence[Json], queues: LiveQueues) -> list[Gap]:
    """PriorityClasses of pods that order jobs where Kueue has no classes of its own, or beside them."""
    users = [
        f"{body['metadata']['name']} {body.get('value')}"
        for body in classes
        if not str(body["metadata"]["name"]).startswith("system-") and body["metadata"]["name"] not in queues.priorities
    ]
    if not users:
        return []
    return [
        Gap("PriorityClasses of pods", f"{names.listing(sorted(users))}: the description's order is that of the queue")
    ]
