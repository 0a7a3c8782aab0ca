"""Every node says what it measured, and takes work once that is what was expected."""

from collections.abc import Callable
from typing import Any

testinfra_hosts = ["ansible://control_plane"]


def gpu_nodes(cluster: Any) -> list[dict[str, Any]]:
    return [node for node in cluster.get("nodes") if "myriad.dev/gpu-expected" in node["metadata"]["labels"]]


def test_the_agent_runs_on_every_gpu_node(cluster: Any, eventually: Callable[..., None]) -> None:
    def check() -> None:
        status = cluster.get("daemonset", "myriad-agent", "myriad-system")["status"]
        assert status["desiredNumberScheduled"] == len(gpu_nodes(cluster)) > 0
        assert status.get("numberReady", 0) == status["desiredNumberScheduled"]

    eventually(check)


def test_measured_labels_stand(cluster: Any, eventually: Callable[..., None]) -> None:
    def check() -> None:
        for node in gpu_nodes(cluster):
            labels = node["metadata"]["labels"]
            assert labels.get("myriad.dev/gpu-count") == labels["myriad.dev/gpu-expected"], node["metadata"]["name"]
            assert labels.get("myriad.dev/gpu-driver"), node["metadata"]["name"]

    eventually(check)


def test_the_gate_opens_where_everything_agrees_and_only_there(cluster: Any, eventually: Callable[..., None]) -> None:
    def check() -> None:
        for node in gpu_nodes(cluster):
            expected = node["metadata"]["labels"]["myriad.dev/gpu-expected"]
            agrees = node["status"]["allocatable"].get("nvidia.com/gpu") == expected
            closed = "myriad.dev/gpu-not-ready" in {taint["key"] for taint in node["spec"].get("taints", [])}
            assert closed != agrees, node["metadata"]["name"]

    eventually(check)
