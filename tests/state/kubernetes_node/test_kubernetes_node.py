"""kubelet, kubeadm and kubectl of one version, and the node in its cluster as it was described."""

import json
from typing import Any

import pytest
from testinfra.host import Host

testinfra_hosts = ["ansible://gpu_nodes"]


def node(host: Host) -> dict[str, Any]:
    """The node's own object, read with the node's own right to read it."""
    name = host.check_output("hostname")
    kubectl = "/usr/local/bin/kubectl --kubeconfig /etc/kubernetes/kubelet.conf"
    text = host.check_output(f"{kubectl} get node %s -o json", name)
    answer: dict[str, Any] = json.loads(text)
    return answer


def test_the_kubelet_runs_and_starts_at_boot(host: Host) -> None:
    service = host.service("kubelet")
    assert service.is_running
    assert service.is_enabled


def test_the_kubelet_says_that_it_is_well(host: Host) -> None:
    assert host.check_output("curl -fsS http://127.0.0.1:10248/healthz") == "ok"


def test_the_programs_are_one_version(host: Host) -> None:
    kubelet = host.check_output("/usr/local/bin/kubelet --version").split()[-1]
    assert host.check_output("/usr/local/bin/kubeadm version -o short") == kubelet
    kubectl = json.loads(host.check_output("/usr/local/bin/kubectl version --client -o json"))
    assert kubectl["clientVersion"]["gitVersion"] == kubelet


def test_the_node_is_ready(host: Host) -> None:
    conditions = {item["type"]: item["status"] for item in node(host)["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert conditions["DiskPressure"] == "False"


def test_the_runtime_is_ours(host: Host) -> None:
    assert node(host)["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://2.")


def test_labels_carry_the_whole_path_of_the_place(host: Host, variables: dict[str, Any]) -> None:
    labels = node(host)["metadata"]["labels"]
    levels = variables["myriad_cluster"]["topology_levels"]
    place = variables["myriad_location"].split("/")
    for number, level in enumerate(levels, 1):
        assert labels[f"myriad.dev/{level}"] == ".".join(place[:number])


def test_labels_name_the_pool_and_what_is_expected(host: Host, variables: dict[str, Any]) -> None:
    labels = node(host)["metadata"]["labels"]
    pool = next(name for name in variables["group_names"] if name.startswith("pool_")).removeprefix("pool_")
    described = variables["myriad_pools"][pool]
    assert labels["myriad.dev/pool"] == pool
    assert labels["myriad.dev/gpu-model"] == described["model"]
    assert labels["myriad.dev/gpu-expected"] == str(variables.get("myriad_gpus", described["gpus_per_node"]))


def test_a_node_that_was_not_proven_takes_no_work(host: Host) -> None:
    """The gate's taint stands, or the gate was opened: then as many GPUs are allocatable as are expected."""
    found = node(host)
    taints = {taint["key"] for taint in found["spec"].get("taints", [])}
    if "myriad.dev/gpu-not-ready" not in taints:
        expected = found["metadata"]["labels"]["myriad.dev/gpu-expected"]
        assert found["status"]["allocatable"].get("nvidia.com/gpu") == expected


@pytest.mark.parametrize("path", ["/run/myriad-kubeadm-join.yaml", "/etc/kubernetes/bootstrap-kubelet.conf"])
def test_no_token_is_left_on_the_node(host: Host, path: str) -> None:
    assert not host.file(path).exists


@pytest.mark.parametrize("path", ["/pods", "/metrics", "/configz", "/logs/", "/runningpods/"])
def test_the_kubelet_answers_nobody_without_a_name(host: Host, path: str) -> None:
    answer = "curl -ksS -o /dev/null -w '%{http_code}' https://127.0.0.1:10250"
    assert host.check_output(answer + path) == "401"


def test_the_kubelet_has_no_port_that_asks_for_no_name(host: Host) -> None:
    # 7: nothing listens.
    assert host.run("curl -sS --max-time 5 http://127.0.0.1:10255/pods").rc == 7


def test_the_kubelet_was_told_so(host: Host) -> None:
    """kubeadm's configuration says the same of its own accord; the drop-in says it whatever that says."""
    text = host.file("/etc/kubernetes/kubelet.conf.d/50-myriad.conf").content_string
    assert "readOnlyPort: 0\n" in text and "rotateCertificates: true\n" in text and "mode: Webhook\n" in text


def test_what_the_kubelet_knows_is_for_root_alone(host: Host) -> None:
    for path in ("/etc/kubernetes/kubelet.conf", "/var/lib/kubelet/config.yaml"):
        found = host.file(path)
        assert (found.user, found.mode & 0o133) == ("root", 0), path
    assert host.file("/etc/kubernetes/kubelet.conf").mode == 0o600
