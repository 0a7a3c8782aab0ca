"""Small clusters for the planner's tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from myriad.scheduler.model import Gang, NodeInfo, PodSet, PodUse, TopologyRequest
from myriad.scheduler.snapshot import Snapshot

GPU = "nvidia.com/gpu"


def make_node(name: str, location: str = "hall1/b1/r1", *, gpus: int = 8, **more: Any) -> NodeInfo:
    """A node with 8 GPUs, 64 CPUs, 512 GiB; ``location`` with slashes."""
    values: dict[str, Any] = {
        "labels": {"myriad.dev/gpu-model": "H100-SXM5-80GB"},
        "location": tuple(location.split("/")) if location else (),
        "pool": "h100",
        "allocatable": {"cpu_milli": 64_000, "memory_bytes": 512 << 30, "pods": 110, GPU: gpus},
    }
    return NodeInfo(name=name, **{**values, **more})


def make_use(uid: str, node: str, gpus: int = 0, *, terminating: bool = False, **requests: int) -> PodUse:
    """A pod that runs."""
    return PodUse(uid=uid, node=node, requests={GPU: gpus, **requests}, terminating=terminating)


def make_podset(count: int, gpus: int, *, name: str = "main", topology: str = "", **more: Any) -> PodSet:
    """A podset; ``topology`` as ``required rack``."""
    mode, _, level = topology.partition(" ")
    requests: Mapping[str, int] = more.pop("requests", {"cpu_milli": 1000, **({GPU: gpus} if gpus else {})})
    return PodSet(name, count, requests, topology=TopologyRequest(mode or "unconstrained", level), **more)  # type: ignore[arg-type]


def make_gang(*podsets: PodSet, **more: Any) -> Gang:
    """A gang of team vision in pool h100."""
    return Gang(
        **{
            "name": "bert",
            "namespace": "vision",
            "team": "vision",
            "uid": "u1",
            "pool": "h100",
            "podsets": podsets,
            **more,
        }
    )


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """Builders: node, use, podset, gang, cluster."""

    def cluster(shape: Mapping[str, str], use: Mapping[str, int] | None = None, **more: Any) -> Snapshot:
        """``shape``: node -> location; ``use``: node -> GPUs in use."""
        nodes = [make_node(n, at, **more) for n, at in shape.items()]
        return Snapshot.build(nodes, [make_use(f"pod-{n}", n, g) for n, g in (use or {}).items()])

    builders: dict[str, Callable[..., Any]] = {
        "node": make_node,
        "use": make_use,
        "podset": make_podset,
        "gang": make_gang,
        "cluster": cluster,
    }
    return SimpleNamespace(**builders, GPU=GPU)
