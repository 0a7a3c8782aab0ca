"""Looks for the tests of a soak's rules."""

from __future__ import annotations

from typing import Any

from myriad.lab.soak.seen import Look, NodeSeen, PodSeen, WorkloadSeen

T0 = 1_800_000_000
JOB = "vision/soak-1-0"


def node(name: str = "gpu1", **more: Any) -> NodeSeen:
    """A node that takes work."""
    return NodeSeen(**({"name": name, "gpus": 8, "started": T0 - 1000.0, "boot": "b.1", "gate_since": "s1"} | more))


def pod(index: int = 0, *, job: str = JOB, on: str = "gpu1", gpus: int = 4, **more: Any) -> PodSeen:
    """A pod of a gang."""
    name = f"{job}-{index}"
    return PodSeen(**({"uid": name, "name": name, "job": job, "node": on, "gpus": gpus, "scheduled": T0} | more))


def workload(job: str = JOB, *, gpus: int = 8, **more: Any) -> WorkloadSeen:
    """A Workload."""
    return WorkloadSeen(**({"uid": f"w-{job}", "job": job, "gpus": gpus} | more))


def look(after_s: float, *pods: PodSeen, nodes: list[NodeSeen] | None = None, **more: Any) -> Look:
    """A look `after_s` seconds after T0, of which every answer came at once."""
    at = T0 + after_s
    known = {one.name: one for one in (nodes if nodes is not None else [node("gpu1"), node("gpu2"), node("gpu3")])}
    return Look(**({
        "at": at, "nodes_read": at, "ended": at, "nodes": known, "pods": tuple(pods), "leader": "ext-1", "renewed": at,
    } | more))  # fmt: skip
