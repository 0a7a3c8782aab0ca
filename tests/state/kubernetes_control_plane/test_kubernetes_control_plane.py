"""A control plane that answers, with everything of it running, in the version of its own programs."""

import json
from collections.abc import Callable
from typing import Any

from testinfra.host import Host

testinfra_hosts = ["ansible://control_plane"]


def test_the_api_is_ready_and_so_is_its_database(cluster: Any) -> None:
    answer = cluster.kubectl("get --raw '/readyz?verbose'")
    assert "[+]etcd ok" in answer
    assert "readyz check passed" in answer


def test_it_serves_the_version_of_its_programs(host: Host, cluster: Any) -> None:
    served = json.loads(cluster.kubectl("version -o json"))["serverVersion"]["gitVersion"]
    assert host.check_output("/usr/local/bin/kubeadm version -o short") == served


def test_every_system_pod_runs(cluster: Any, eventually: Callable[..., None]) -> None:
    def check() -> None:
        pods = cluster.get("pods", namespace="kube-system")
        apps = {pod["metadata"]["labels"].get("component") or pod["metadata"]["labels"].get("k8s-app") for pod in pods}
        assert {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-dns", "kube-proxy"} <= apps
        parts = [pod for pod in pods if pod["metadata"]["labels"].get("app.kubernetes.io/part-of") != "myriad"]
        phases = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in parts}
        assert {name: phase for name, phase in phases.items() if phase != "Running"} == {}

    eventually(check)


def test_images_come_from_the_site_only(cluster: Any) -> None:
    images = {
        container["image"]
        for pod in cluster.get("pods", namespace="kube-system")
        for container in pod["spec"]["containers"]
    }
    assert {image for image in images if not image.startswith("registry.myriad.internal/")} == set()


def test_the_control_plane_takes_no_jobs(host: Host, cluster: Any) -> None:
    found = cluster.get("node", host.check_output("hostname"))
    assert "node-role.kubernetes.io/control-plane" in {taint["key"] for taint in found["spec"].get("taints", [])}


def test_keys_are_for_root_alone(host: Host) -> None:
    for path in ("/etc/kubernetes/admin.conf", "/etc/kubernetes/pki/ca.key", "/etc/kubernetes/pki/etcd/ca.key"):
        assert host.file(path).mode == 0o600
        assert host.file(path).user == "root"
