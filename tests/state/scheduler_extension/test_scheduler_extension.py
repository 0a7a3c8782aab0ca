"""The scheduler extension runs, one replica leads, and the admission check that steers is active."""

from collections.abc import Callable
from typing import Any

testinfra_hosts = ["ansible://control_plane"]


def test_every_replica_runs(cluster: Any, eventually: Callable[..., None]) -> None:
    def check() -> None:
        found = cluster.get("deployment", "myriad-scheduler", "myriad-system")
        assert found["status"].get("readyReplicas", 0) == found["spec"]["replicas"] > 0

    eventually(check)


def test_one_replica_leads(cluster: Any, eventually: Callable[..., None]) -> None:
    def check() -> None:
        holder = cluster.get("lease", "myriad-scheduler", "myriad-system")["spec"].get("holderIdentity")
        assert holder
        pods = cluster.names("pods", namespace="myriad-system")
        assert any(holder.startswith(name) for name in pods), f"{holder} is none of {sorted(pods)}"

    eventually(check)


def test_it_says_that_it_is_ready(cluster: Any) -> None:
    path = "/api/v1/namespaces/myriad-system/services/myriad-scheduler:http/proxy"
    assert cluster.run(f"get --raw {path}/readyz").rc == 0
    answer = cluster.run(f"get --raw {path}/metrics")
    # kubectl cannot show the extension a token, so only an extension that asks nobody answers it.
    assert (
        "myriad_" in answer.stdout
        or "no token came with the request" in answer.stderr + answer.stdout
        or ("Unauthorized" in answer.stderr)
    )


def test_the_check_that_steers_is_active_on_every_queue(cluster: Any, eventually: Callable[..., None]) -> None:
    def check() -> None:
        conditions = cluster.get("admissionchecks.kueue.x-k8s.io", "myriad")["status"]["conditions"]
        assert {item["type"]: item["status"] for item in conditions}["Active"] == "True"
        for queue in cluster.get("clusterqueues.kueue.x-k8s.io"):
            checks = queue["spec"].get("admissionChecksStrategy", {}).get("admissionChecks", [])
            assert [item["name"] for item in checks] == ["myriad"], queue["metadata"]["name"]

    eventually(check)


def test_it_may_do_little(cluster: Any) -> None:
    """It steers and tells; it deletes nothing and reads no secret."""
    account = "system:serviceaccount:myriad-system:myriad-scheduler"
    for question in ("delete pods", "delete nodes", "get secrets", "create pods"):
        assert cluster.run(f"auth can-i {question} -A --as {account}").stdout.strip() == "no", question


def test_the_dead_man_looks(cluster: Any) -> None:
    """Every minute, and its last run ended well; one that was made just now has not run yet."""
    job = cluster.get("cronjob", "myriad-dead-man", "myriad-system")
    assert not job["spec"].get("suspend") and job["spec"]["concurrencyPolicy"] == "Forbid"
    said = job.get("status", {})
    if "lastScheduleTime" in said and not said.get("active"):
        assert said["lastSuccessfulTime"] >= said["lastScheduleTime"], said


def test_the_dead_man_may_look_and_detach_and_nothing_else(cluster: Any) -> None:
    account = "system:serviceaccount:myriad-system:myriad-dead-man"
    for question, answer in (
        ("patch clusterqueues.kueue.x-k8s.io", "yes"),
        ("get leases.coordination.k8s.io/myriad-scheduler -n myriad-system", "yes"),
        ("update leases.coordination.k8s.io/myriad-scheduler -n myriad-system", "no"),
        ("delete clusterqueues.kueue.x-k8s.io", "no"),
        ("list pods -A", "no"),
        ("get secrets -n myriad-system", "no"),
    ):
        assert cluster.run(f"auth can-i {question} --as {account}").stdout.strip() == answer, question
