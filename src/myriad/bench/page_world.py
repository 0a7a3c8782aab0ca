"""A made-up cluster for the page: its size is real, its names and jobs are drawn from a seed. For measurements, tests
of the page in a browser, and its screenshots."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from myriad.kube.kinds import (
    CLUSTER_QUEUES,
    COHORTS,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_FLAVORS,
    TOPOLOGIES,
    WORKLOADS,
)
from myriad.scheduler.cache import Cache

Json = dict[str, Any]

KUEUE = "kueue.x-k8s.io/v1beta2"
CHECK = "myriad"
TEAMS = ("vision", "speech", "robotics", "protein", "climate", "search", "finance", "health", "maps", "games")
NODES_A_RACK = 8
RACKS_A_BLOCK = 8
BLOCKS_A_ROOM = 5


def node(i: int, *, state: str = "ok") -> Json:
    """A node of eight GPUs in its place."""
    rack, block = i // NODES_A_RACK, i // (NODES_A_RACK * RACKS_A_BLOCK)
    room = block // BLOCKS_A_ROOM
    path = [f"hall{room + 1}", f"b{block % BLOCKS_A_ROOM + 1}", f"r{rack % RACKS_A_BLOCK + 1}"]
    name = f"gpu{i + 1:04d}"
    labels = {f"myriad.dev/{level}": ".".join(path[: k + 1]) for k, level in enumerate(("room", "block", "rack"))}
    labels |= {"myriad.dev/pool": "h100", "kubernetes.io/hostname": name, "myriad.dev/gpu-expected": "8"}
    taints = {
        "gate_closed": [{"key": "myriad.dev/gpu-not-ready", "effect": "NoSchedule"}],
        "unhealthy": [{"key": "myriad.dev/gpu-unhealthy", "effect": "NoSchedule"}],
        "reserved": [{"key": "myriad.dev/reserved", "value": "big", "effect": "NoSchedule"}],
    }.get(state, [])
    gpus = "7" if state == "unhealthy" else "8"
    amounts = {"cpu": "192", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": gpus}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints, **({"unschedulable": True} if state == "cordoned" else {})},
        "status": {
            "allocatable": amounts,
            "capacity": amounts,
            "conditions": [{"type": "Ready", "status": "False" if state == "not_ready" else "True"}],
        },
    }


def cluster_queue(team: str, gpus: int) -> Json:
    """The queue of a team in the pool."""
    quota = {"name": "nvidia.com/gpu", "nominalQuota": str(gpus), "borrowingLimit": str(gpus)}
    return {
        "apiVersion": KUEUE,
        "kind": "ClusterQueue",
        "metadata": {"name": f"{team}-h100", "labels": {"myriad.dev/pool": "h100", "myriad.dev/team": team}},
        "spec": {
            "cohortName": "training",
            "namespaceSelector": {"matchLabels": {"myriad.dev/team": team}},
            "admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}]},
            "resourceGroups": [
                {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "h100", "resources": [quota]}]}
            ],
        },
        "status": {"conditions": [{"type": "Active", "status": "True"}]},
    }


def workload(team: str, name: str, pods: int, gpus: int, *, created: datetime, nodes: dict[str, int] | None) -> Json:
    """A Workload that waits, or that stands on nodes."""
    time = created.strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions: list[Json] = [
        {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "", "lastTransitionTime": time}
    ]
    admission: Json = {}
    if nodes is not None:
        conditions = [
            {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": time}
            for kind in ("QuotaReserved", "Admitted", "PodsReady")
        ]
        slices = [
            {
                "domainCount": len(nodes),
                "valuesPerLevel": [{"individual": {"roots": list(nodes)}}],
                "podCounts": {"individual": list(nodes.values())},
            }
        ]
        admission = {
            "admission": {
                "clusterQueue": f"{team}-h100",
                "podSetAssignments": [
                    {
                        "name": "main",
                        "count": pods,
                        "resourceUsage": {"nvidia.com/gpu": str(pods * gpus)},
                        "topologyAssignment": {"levels": ["kubernetes.io/hostname"], "slices": slices},
                    }
                ],
            }
        }
    container = {"name": "main", "resources": {"requests": {"cpu": "8", "nvidia.com/gpu": str(gpus)}}}
    return {
        "apiVersion": KUEUE,
        "kind": "Workload",
        "metadata": {
            "name": f"job-{name}",
            "namespace": team,
            "uid": f"uid-{team}-{name}",
            "resourceVersion": "1",
            "creationTimestamp": time,
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"job-{team}-{name}", "controller": True}
            ],
        },
        "spec": {
            "queueName": "h100",
            "priority": 0,
            "podSets": [{"name": "main", "count": pods, "template": {"spec": {"containers": [container]}}}],
        },
        "status": {
            "admissionChecks": [
                {
                    "name": CHECK,
                    "state": "Pending" if nodes is None else "Ready",
                    "message": "",
                    "lastTransitionTime": time,
                }
            ],
            "conditions": conditions,
            **admission,
        },
    }


def pod(team: str, job: str, i: int, on: str, gpus: int, *, terminating: bool = False) -> Json:
    """A pod of a job on a node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job}-{i}",
            "namespace": team,
            "uid": f"pod-{team}-{job}-{i}",
            "annotations": {"kueue.x-k8s.io/workload": f"job-{job}"},
            "labels": {"kueue.x-k8s.io/podset": "main"},
            "ownerReferences": [{"kind": "Job", "name": job, "controller": True}],
            **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if terminating else {}),
        },
        "spec": {
            "nodeName": on,
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}],
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def fill(cache: Cache, *, nodes: int = 1250, waiting: int = 300, teams: int = len(TEAMS), seed: int = 1) -> None:
    """Fill a cache: 85 % of the GPUs in use, one node in forty in another state, jobs of 8 to 1,600 GPUs waiting."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    names = TEAMS[:teams]
    levels = ["myriad.dev/room", "myriad.dev/block", "myriad.dev/rack", "kubernetes.io/hostname"]
    topology = {"metadata": {"name": "myriad"}, "spec": {"levels": [{"nodeLabel": x} for x in levels]}}
    cache.replace(TOPOLOGIES.plural, [topology])
    cache.replace(RESOURCE_FLAVORS.plural, [{"metadata": {"name": "h100"}, "spec": {}}])
    cache.replace(COHORTS.plural, [{"metadata": {"name": "training"}, "spec": {}}])
    spaces = [{"metadata": {"name": t, "labels": {"myriad.dev/team": t}}} for t in names]
    cache.replace(NAMESPACES.plural, spaces)
    cache.replace(CLUSTER_QUEUES.plural, [cluster_queue(t, nodes * 8 // len(names)) for t in names])
    queues = [{"metadata": {"name": "h100", "namespace": t}, "spec": {"clusterQueue": f"{t}-h100"}} for t in names]
    cache.replace(LOCAL_QUEUES.plural, queues)
    odd = ("cordoned", "gate_closed", "unhealthy", "not_ready", "reserved")
    states = [draw.choice(odd) if draw.random() < 0.025 else "ok" for _ in range(nodes)]
    made = [node(i, state=state) for i, state in enumerate(states)]
    cache.replace(NODES.plural, made)
    now = datetime.now(UTC).replace(microsecond=0)
    workloads, pods = [], []
    i = 0
    while i < nodes * 0.87:
        team = draw.choice(names)
        size = min(draw.choice((1, 1, 1, 2, 4, 8, 16, 32)), nodes - i)
        gpus = draw.choice((2, 4, 8)) if size == 1 else 8
        job = f"{draw.choice(('train', 'tune', 'eval', 'pretrain'))}-{i}"
        where = [made[k]["metadata"]["name"] for k in range(i, i + size) if states[k] in ("ok", "reserved", "cordoned")]
        i += size
        if not where:
            continue
        created = now - timedelta(minutes=draw.randrange(5, 3000))
        workloads.append(workload(team, job, len(where), gpus, created=created, nodes=dict.fromkeys(where, 1)))
        stopping = draw.random() < 0.02
        pods += [pod(team, job, k, on, gpus, terminating=stopping) for k, on in enumerate(where)]
    for k in range(waiting):
        created = now - timedelta(minutes=draw.randrange(1, 600))
        size = draw.choice((1, 1, 2, 4, 8, 16, 64, 200))
        name = f"{draw.choice(('train', 'tune', 'sweep', 'pretrain'))}-w{k}"
        workloads.append(workload(draw.choice(names), name, size, 8, created=created, nodes=None))
    cache.replace(PODS.plural, pods)
    cache.replace(WORKLOADS.plural, workloads)
