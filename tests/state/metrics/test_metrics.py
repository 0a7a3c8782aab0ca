"""A Prometheus finds what it may scrape, no more, and gets Myriad's rules."""

from typing import Any

import yaml

testinfra_hosts = ["ansible://control_plane"]

SYSTEM = "myriad-metrics"
ACCOUNT = f"--as system:serviceaccount:{SYSTEM}:prometheus"


def test_configuration_and_rules_are_there(cluster: Any) -> None:
    data = cluster.get("configmap", "myriad-prometheus", SYSTEM)["data"]
    jobs = {item["job_name"] for item in yaml.safe_load(data["prometheus.yml"])["scrape_configs"]}
    assert {"myriad-scheduler", "kueue", "pods", "services"} <= jobs
    alerts = [rule["alert"] for group in yaml.safe_load(data["myriad-rules.yml"])["groups"] for rule in group["rules"]]
    assert "MyriadNobodySteers" in alerts


def test_the_account_lists_pods_of_the_platform(cluster: Any) -> None:
    assert cluster.kubectl(f"auth can-i list pods -n kube-system {ACCOUNT}").strip() == "yes"
    assert cluster.kubectl(f"auth can-i get /metrics {ACCOUNT}").strip() == "yes"


def test_and_none_of_anybody_else(cluster: Any) -> None:
    for question in ("list pods -n default", "list secrets -n kube-system", "list pods -A"):
        assert cluster.run(f"auth can-i {question} {ACCOUNT}").stdout.strip() == "no", question


def test_what_was_asked_for_runs(cluster: Any) -> None:
    """A site with a Prometheus of its own has none here; one without has it ready."""
    for item in cluster.get("deployment", namespace=SYSTEM):
        assert item["status"].get("readyReplicas", 0) == item["spec"]["replicas"], item["metadata"]["name"]
