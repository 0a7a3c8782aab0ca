"""Volcano runs with a leader and a spare, serves its webhooks, reads its own configuration and binds a gang."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

testinfra_hosts = ["ansible://control_plane"]

SYSTEM = "volcano-system"
QUEUE = """\
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: state-test}
spec: {weight: WEIGHT}
"""


@pytest.fixture(autouse=True)
def installed(cluster: Any) -> None:
    """Where the bundle held no Volcano there is nothing to look at."""
    if SYSTEM not in cluster.names("namespace"):
        pytest.skip("the bundle holds no Volcano (its release page did not answer), so it is not installed")


def test_every_program_runs_on_all_its_replicas(cluster: Any, eventually: Callable[..., None]) -> None:
    def check() -> None:
        found = {item["metadata"]["name"]: item for item in cluster.get("deployment", namespace=SYSTEM)}
        assert {"volcano-admission", "volcano-controllers", "volcano-scheduler"} <= set(found)
        for name, item in found.items():
            assert item["status"].get("readyReplicas", 0) == item["spec"]["replicas"] > 1, name

    eventually(check)


def test_one_scheduler_and_one_controller_lead(cluster: Any, eventually: Callable[..., None]) -> None:
    def check() -> None:
        leases = cluster.get("lease", namespace=SYSTEM)
        held = [item["metadata"]["name"] for item in leases if item["spec"].get("holderIdentity")]
        assert len(held) >= 2, held

    eventually(check)


def test_no_job_of_its_own_made_the_certificate(cluster: Any) -> None:
    assert cluster.get("job", namespace=SYSTEM) == []
    secret = cluster.get("secret", "volcano-admission-secret", SYSTEM)
    assert {"ca.crt", "tls.crt", "tls.key"} <= set(secret["data"])


def test_the_webhook_accepts_what_is_right(cluster: Any) -> None:
    assert "created" in cluster.kubectl("create --dry-run=server -f -", stdin=QUEUE.replace("WEIGHT", "1"))


def test_and_refuses_what_is_wrong(cluster: Any) -> None:
    done = cluster.run("create --dry-run=server -f -", stdin=QUEUE.replace("WEIGHT", "-1"))
    assert done.rc != 0
    assert "weight" in done.stderr


def test_its_scheduler_never_evicts(cluster: Any) -> None:
    text = cluster.get("configmap", "volcano-scheduler-configmap", SYSTEM)["data"]["volcano-scheduler.conf"]
    actions = {name.strip() for name in yaml.safe_load(text)["actions"].split(",")}
    assert "allocate" in actions
    assert not actions & {"preempt", "reclaim", "shuffle", "gangpreempt", "gangreclaim"}
