"""A control plane that answers, with everything of it running, in the version of its own programs."""

import base64
import json
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from testinfra.host import Host

testinfra_hosts = ["ansible://control_plane"]

#: Volcano and the training operator come with the rights that their projects publish (docs/security.md).
OTHERS = ("kube-system", "volcano-system", "kubeflow")


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


def test_files_of_the_control_plane_have_the_modes_that_docs_security_tells(host: Host) -> None:
    """CIS 1.1.1-1.1.8, 1.1.13-1.1.21."""
    manifests = [
        f"manifests/{name}.yaml" for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
    ]
    for path in (*manifests, "admin.conf", "scheduler.conf", "controller-manager.conf"):
        found = host.file(f"/etc/kubernetes/{path}")
        assert (found.mode, found.user, found.group) == (0o600, "root", "root"), path
    for wrong in (
        "-name '*.key' ! -perm 600",
        "-name '*.json' ! -perm 600",
        "-name '*.crt' -perm /133",
        "! -user root",
    ):
        assert host.check_output(f"find /etc/kubernetes/pki {wrong}") == "", wrong


def answered(host: Host, path: str) -> str:
    """Status of the API server to one who has no name."""
    command = "curl -ksS -o /dev/null -w '%{http_code}' https://127.0.0.1:6443"
    return str(host.check_output(command + path))


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/api/v1/namespaces/kube-public/configmaps/cluster-info"])
def test_a_probe_and_who_joins_need_no_name(host: Host, path: str) -> None:
    assert answered(host, path) == "200"


@pytest.mark.parametrize(
    "path", ["/", "/api", "/apis", "/version", "/metrics", "/api/v1/namespaces/kube-public/configmaps"]
)
def test_nobody_gets_further_without_a_name(host: Host, path: str) -> None:
    assert answered(host, path) == "401"


@pytest.fixture
def planted(cluster: Any) -> Iterator[tuple[str, str]]:
    """Name and content of a Secret that is there for one test."""
    name, content = f"myriad-state-{secrets.token_hex(4)}", secrets.token_hex(16)
    cluster.kubectl(f"-n default create secret generic {name} --from-literal=content={content}")
    yield name, content
    cluster.kubectl(f"-n default delete secret {name}")


def test_secrets_lie_encrypted_and_under_the_key_that_writes(host: Host, planted: tuple[str, str]) -> None:
    assert planted
    found = json.loads(host.check_output("/usr/local/lib/myriad/encryption-keys status"))
    assert set(found["secrets"]) == {found["keys"][0]}, "run `encryption-keys rewrite` on this host (docs/security.md)"
    assert found["secrets"][found["keys"][0]] > 0


def test_who_wrote_a_secret_is_logged_and_not_what_it_holds(
    host: Host, planted: tuple[str, str], eventually: Callable[..., None]
) -> None:
    name, content = planted
    log = "/var/log/kubernetes/audit/audit.log"

    def check() -> None:
        text = host.run("grep -hF %s " + log, name).stdout
        events = [json.loads(line) for line in text.splitlines()]
        written = [
            event for event in events if event["verb"] == "create" and event["objectRef"]["resource"] == "secrets"
        ]
        assert [event["level"] for event in written] == ["Metadata"]
        assert written[0]["user"]["username"] == "kubernetes-admin"

    eventually(check, 20.0)
    for text in (content, base64.b64encode(content.encode()).decode()):
        assert host.run("grep -qF %s " + log, text).rc == 1
    assert host.file(log).mode == 0o600


def test_what_guards_the_api_server_is_for_root_alone(host: Host) -> None:
    files = (
        "pki/encryption.json",
        "api-server/audit-policy.yaml",
        "api-server/authentication.yaml",
        "myriad-init.yaml",
    )
    for path in files:
        found = host.file(f"/etc/kubernetes/{path}")
        assert (found.mode, found.user) == (0o600, "root"), path


def test_the_api_server_was_started_with_it(host: Host, cluster: Any) -> None:
    pod = cluster.get("pod", f"kube-apiserver-{host.check_output('hostname')}", "kube-system")
    (container,) = pod["spec"]["containers"]
    given = dict(word.removeprefix("--").split("=", 1) for word in container["command"][1:])
    assert given["authorization-mode"] == "Node,RBAC"
    assert "NodeRestriction" in given["enable-admission-plugins"]
    assert given["profiling"] == "false"
    assert {"audit-policy-file", "audit-log-path", "authentication-config", "encryption-provider-config"} <= set(given)
    assert given.get("anonymous-auth") is None


def test_no_token_with_which_a_node_joins_outlives_its_run(cluster: Any) -> None:
    for secret in cluster.get("secrets", namespace="kube-system"):
        assert secret["metadata"]["name"] != "kubeadm-certs", "keys that were lent are still there"
        if secret["type"] == "bootstrap.kubernetes.io/token":
            ends = base64.b64decode(secret["data"]["expiration"]).decode()
            assert datetime.fromisoformat(ends.replace("Z", "+00:00")).timestamp() < time.time() + 25 * 60


def test_no_account_outside_the_system_may_do_everything(cluster: Any) -> None:
    rules = {role["metadata"]["name"]: role.get("rules") or [] for role in cluster.get("clusterroles")}
    free = {
        name
        for name, found in rules.items()
        if any("*" in [*rule.get("verbs", []), *rule.get("resources", [])] for rule in found)
    }
    assert "cluster-admin" in free
    bound = {
        f"{subject['namespace']}/{subject['name']}: {binding['roleRef']['name']}"
        for binding in [*cluster.get("clusterrolebindings"), *cluster.get("rolebindings")]
        for subject in binding.get("subjects") or []
        if subject["kind"] == "ServiceAccount" and subject.get("namespace") not in OTHERS
        if binding["roleRef"]["kind"] == "ClusterRole" and binding["roleRef"]["name"] in free
    }
    assert bound == set()
