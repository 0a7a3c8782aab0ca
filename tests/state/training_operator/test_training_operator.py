"""The training operator runs with a leader, serves its webhooks, and pulls nothing from outside the site."""

from collections.abc import Callable
from typing import Any

import pytest

testinfra_hosts = ["ansible://control_plane"]

SYSTEM = "kubeflow"
JOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: state-test, namespace: default}
spec:
  runPolicy: {suspend: true}
  pytorchReplicaSpecs:
    Worker: {replicas: 2, template: {spec: {containers: [{name: NAME, image: x}]}}}
"""


@pytest.fixture(autouse=True)
def installed(cluster: Any) -> None:
    """Where the bundle held no training operator there is nothing to look at."""
    if SYSTEM not in cluster.names("namespace"):
        pytest.skip("the bundle holds no training operator (it is built with --with training-operator)")


def test_it_runs(cluster: Any, eventually: Callable[..., None]) -> None:
    def check() -> None:
        found = cluster.get("deployment", "training-operator", SYSTEM)
        assert found["status"].get("readyReplicas", 0) == found["spec"]["replicas"] > 1

    eventually(check)


def test_one_replica_leads(cluster: Any, eventually: Callable[..., None]) -> None:
    def check() -> None:
        leases = cluster.get("lease", namespace=SYSTEM)
        assert [item["metadata"]["name"] for item in leases if item["spec"].get("holderIdentity")]

    eventually(check)


def test_the_webhook_accepts_what_is_right(cluster: Any) -> None:
    assert "created" in cluster.kubectl("create --dry-run=server -f -", stdin=JOB.replace("NAME", "pytorch"))


def test_and_refuses_what_is_wrong(cluster: Any) -> None:
    done = cluster.run("create --dry-run=server -f -", stdin=JOB.replace("NAME", "other"))
    assert done.rc != 0
    assert "pytorch" in done.stderr


def test_workers_wait_in_an_image_by_digest(cluster: Any) -> None:
    container = cluster.get("deployment", "training-operator", SYSTEM)["spec"]["template"]["spec"]["containers"][0]
    image = next(text for text in container["args"] if text.startswith("--pytorch-init-container-image="))
    assert "@sha256:" in image
    assert "@sha256:" in container["image"]
