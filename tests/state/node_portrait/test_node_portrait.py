"""Every node says what it measured, and takes work once that is what was expected."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from myriad.fleet.portrait import LEASE_PREFIX, Portrait, facts, fresh

testinfra_hosts = ["ansible://control_plane"]


def gpu_nodes(cluster: Any) -> list[dict[str, Any]]:
    return [node for node in cluster.get("nodes") if "myriad.dev/gpu-expected" in node["metadata"]["labels"]]


def test_the_agent_runs_on_every_gpu_node(cluster: Any, eventually: Callable[..., None]) -> None:
    def check() -> None:
        status = cluster.get("daemonset", "myriad-agent", "myriad-system")["status"]
        assert status["desiredNumberScheduled"] == len(gpu_nodes(cluster)) > 0
        assert status.get("numberReady", 0) == status["desiredNumberScheduled"]

    eventually(check)


def test_every_gpu_node_has_a_portrait_with_sources_and_a_lease(cluster: Any, eventually: Callable[..., None]) -> None:
    def check() -> None:
        for node in gpu_nodes(cluster):
            name = node["metadata"]["name"]
            status = cluster.get("nodeportrait", name).get("status")
            lease = cluster.get("lease", LEASE_PREFIX + name, "myriad-system")
            assert fresh(status, lease, datetime.now(UTC)) == ""
            portrait = Portrait.model_validate(status)
            assert len(portrait.gpus) == int(node["metadata"]["labels"]["myriad.dev/gpu-expected"])
            assert all(gpu.uuid and gpu.model and gpu.memory_mib and gpu.pci_address for gpu in portrait.gpus)
            assert portrait.driver is not None and portrait.driver.loaded
            assert all(fact.source and fact.at for fact in facts(portrait))

    eventually(check)


def test_measured_labels_stand(cluster: Any, eventually: Callable[..., None]) -> None:
    def check() -> None:
        for node in gpu_nodes(cluster):
            labels = node["metadata"]["labels"]
            assert labels.get("myriad.dev/gpu-count") == labels["myriad.dev/gpu-expected"], node["metadata"]["name"]
            assert labels.get("myriad.dev/gpu-product") == labels["myriad.dev/gpu-model"], node["metadata"]["name"]
            assert labels.get("myriad.dev/gpu-driver"), node["metadata"]["name"]

    eventually(check)


def test_the_gate_opens_where_everything_agrees_and_only_there(cluster: Any, eventually: Callable[..., None]) -> None:
    def check() -> None:
        for node in gpu_nodes(cluster):
            verdict = json.loads(node["metadata"]["annotations"]["myriad.dev/gate"])
            closed = "myriad.dev/gpu-not-ready" in {taint["key"] for taint in node["spec"].get("taints", [])}
            assert closed != verdict["open"], node["metadata"]["name"]
            failing = [check["cause"] for check in verdict["checks"] if not check["ok"]]
            assert verdict["open"], f"{node['metadata']['name']}: {failing}"

    eventually(check)


def test_a_quiet_portrait_is_not_written_again(cluster: Any, eventually: Callable[..., None]) -> None:
    name = gpu_nodes(cluster)[0]["metadata"]["name"]
    seen: list[tuple[str, str]] = []

    def check() -> None:
        found = cluster.get("nodeportrait", name)["metadata"]["resourceVersion"]
        lease = cluster.get("lease", LEASE_PREFIX + name, "myriad-system")["spec"]["renewTime"]
        seen.append((found, lease))
        # The Lease was renewed and the portrait stayed.
        assert any(version == found and renewed != lease for version, renewed in seen)

    eventually(check)


def test_an_agent_may_write_to_its_own_node_only(cluster: Any) -> None:
    pod = next(
        pod
        for pod in cluster.get("pods", namespace="myriad-system")
        if pod["metadata"]["labels"].get("app.kubernetes.io/name") == "myriad-agent"
    )
    own = pod["spec"]["nodeName"]
    other = next(node["metadata"]["name"] for node in cluster.get("nodes") if node["metadata"]["name"] != own)
    script = (
        "from myriad.kube.client import ApiError, connect\n"
        "from myriad.kube.kinds import NODES\n"
        "api = connect()\n"
        f"for name in ({own!r}, {other!r}):\n"
        "    try:\n"
        "        api.patch(NODES, name, {})\n"
        "        print(name, 'allowed')\n"
        "    except ApiError as error:\n"
        "        print(name, error)\n"
    )
    said = cluster.kubectl(
        f"exec -i -n myriad-system {pod['metadata']['name']} -- python3 -", stdin=script
    ).splitlines()
    assert said[0] == f"{own} allowed"
    assert said[1].startswith(other) and "its own node" in said[1]
