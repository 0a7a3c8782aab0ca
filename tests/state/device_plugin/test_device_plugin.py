"""Every GPU node's kubelet counts as many GPUs as are expected."""

from collections.abc import Callable
from typing import Any

testinfra_hosts = ["ansible://control_plane"]


def gpu_nodes(cluster: Any) -> list[dict[str, Any]]:
    return [node for node in cluster.get("nodes") if "myriad.dev/gpu-expected" in node["metadata"]["labels"]]


def test_it_runs_on_every_gpu_node(cluster: Any, eventually: Callable[..., None]) -> None:
    def check() -> None:
        status = cluster.get("daemonset", "myriad-device-plugin", "kube-system")["status"]
        assert status["desiredNumberScheduled"] == len(gpu_nodes(cluster)) > 0
        assert status.get("numberReady", 0) == status["desiredNumberScheduled"]

    eventually(check)


def test_the_kubelets_count_what_is_expected(cluster: Any, eventually: Callable[..., None]) -> None:
    daemon = cluster.get("daemonset", "myriad-device-plugin", "kube-system")
    resource = daemon["metadata"]["annotations"]["myriad.dev/resources"].split(",")[0]

    def check() -> None:
        nodes = {node["metadata"]["name"]: node for node in gpu_nodes(cluster)}
        expected = {name: node["metadata"]["labels"]["myriad.dev/gpu-expected"] for name, node in nodes.items()}
        counted = {name: node["status"]["allocatable"].get(resource) for name, node in nodes.items()}
        assert counted == expected

    eventually(check)


def test_its_image_is_named_by_digest(cluster: Any) -> None:
    pod = cluster.get("daemonset", "myriad-device-plugin", "kube-system")["spec"]["template"]["spec"]
    assert all("@sha256:" in container["image"] for container in pod["containers"])


def test_it_has_no_rights_that_it_does_not_need(cluster: Any) -> None:
    pod = cluster.get("daemonset", "myriad-device-plugin", "kube-system")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert all(container["securityContext"]["allowPrivilegeEscalation"] is False for container in pod["containers"])
