"""Nodes that are closed while their jobs are waited for."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from myriad.kube.client import ApiError
from myriad.kube.drain import Cordon
from myriad.upgrade.held import hold, let_go
from myriad.upgrade.plan import BY, HELD, JOB_RUNS

Json = dict[str, Any]


class Cluster:
    """Nodes, and how often the API server was asked."""

    def __init__(self, *names: str) -> None:
        self.nodes: dict[str, Json] = {
            name: {"metadata": {"name": name, "annotations": {}, "resourceVersion": "1"}, "spec": {}} for name in names
        }
        self.calls: list[str] = []

    def list(self, _resource: Any) -> tuple[list[Json], str]:
        self.calls.append("list")
        return copy.deepcopy(list(self.nodes.values())), "1"

    def get(self, _resource: Any, name: str) -> Json:
        self.calls.append(f"get {name}")
        if name not in self.nodes:
            raise ApiError(404, "NotFound", "gone", where=name)
        return copy.deepcopy(self.nodes[name])

    def patch(self, _resource: Any, name: str, body: Json, **_: Any) -> None:
        self.calls.append(f"patch {name}")
        node = self.nodes[name]
        for key, value in body["metadata"]["annotations"].items():
            node["metadata"]["annotations"].pop(key, None)
            if value is not None:
                node["metadata"]["annotations"][key] = value
        node["spec"].update(body.get("spec", {}))


@pytest.fixture
def cluster() -> Any:
    return Cluster(*(f"gpu{i}" for i in range(20)))


def test_nodes_are_closed_once_and_then_looked_at_together(cluster: Any) -> None:
    left = dict.fromkeys(cluster.nodes, f"{JOB_RUNS}vision/bert runs on it")
    assert hold(cluster, left) == list(left)
    found = Cordon.of(cluster.nodes["gpu3"])
    assert found is not None and found.by == BY and found.reason == f"{HELD}: {left['gpu3']}"
    cluster.calls.clear()
    # Every half minute while jobs are waited for.
    assert hold(cluster, left) == [] and cluster.calls == ["list"]
    assert let_go(cluster, left) == list(left) and not cluster.nodes["gpu3"]["spec"]["unschedulable"]


def test_what_is_gone_or_somebody_elses_is_left_alone(cluster: Any) -> None:
    cluster.nodes["gpu0"]["metadata"]["annotations"]["myriad.dev/cordon-owner"] = Cordon(
        "reboot", "", "x", False
    ).text()
    reason = f"{JOB_RUNS}vision/bert runs on it"
    assert hold(cluster, {"gpu0": reason, "away": reason, "gpu1": "the cluster has no such node"}) == []
    assert not [call for call in cluster.calls if call.startswith("patch")]
