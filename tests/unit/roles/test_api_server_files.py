"""What guards the API server and the kubelets, as ansible renders it: kubeadm knows every file, and each is mounted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .rendering import ROOT, rendered

OWN = "configure/etc/kubernetes/api-server"
GIVEN = {
    "kubernetes_control_plane_version": "1.35.4",
    "kubernetes_control_plane_etcd_tag": "3.6.6-0",
    "kubernetes_control_plane_coredns_tag": "v1.13.1",
}


def told(tmp_path: Path, **given: Any) -> dict[str, Any]:
    """kubeadm's ClusterConfiguration, the audit policy and the authentication, parsed."""
    said = rendered(
        tmp_path,
        role="kubernetes_control_plane",
        inventory="lab-ha",
        templates={
            "init": "configure/etc/kubernetes/myriad-init.yaml.j2",
            "audit": f"{OWN}/audit-policy.yaml.j2",
            "authentication": f"{OWN}/authentication.yaml.j2",
        },
        given={**GIVEN, **given},
    )
    documents = {document["kind"]: document for document in yaml.safe_load_all(said["init"])}
    return {
        "cluster": documents["ClusterConfiguration"],
        **{name: yaml.safe_load(said[name]) for name in ("audit", "authentication")},
    }


def arguments(component: dict[str, Any]) -> dict[str, str]:
    names = [argument["name"] for argument in component["extraArgs"]]
    assert len(names) == len(set(names))
    return {argument["name"]: argument["value"] for argument in component["extraArgs"]}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return told(tmp_path_factory.mktemp("said"))


def test_every_file_that_the_api_server_is_told_of_is_mounted(said: dict[str, Any]) -> None:
    server = said["cluster"]["apiServer"]
    mounted = {volume["hostPath"]: volume for volume in server["extraVolumes"]}
    assert all(volume["hostPath"] == volume["mountPath"] for volume in mounted.values())
    # kubeadm mounts this one itself, read-only.
    places = [*mounted, "/etc/kubernetes/pki"]
    paths = {name: value for name, value in arguments(server).items() if value.startswith("/")}
    assert set(paths) == {"audit-policy-file", "audit-log-path", "authentication-config", "encryption-provider-config"}
    for name, path in paths.items():
        assert any(path.startswith(f"{place}/") for place in places), name
    written = [place for place, volume in mounted.items() if not volume["readOnly"]]
    assert written == ["/var/log/kubernetes"] and paths["audit-log-path"].startswith("/var/log/kubernetes/")


def test_the_audit_log_turns_over_and_stays_a_month(said: dict[str, Any]) -> None:
    found = arguments(said["cluster"]["apiServer"])
    assert {name: int(found[f"audit-log-{name}"]) for name in ("maxage", "maxbackup", "maxsize")} == {
        "maxage": 30, "maxbackup": 10, "maxsize": 100,
    }  # fmt: skip


def test_nobody_without_a_name_gets_further_than_probes_and_the_way_to_join(said: dict[str, Any]) -> None:
    assert said["authentication"]["anonymous"] == {
        "enabled": True,
        "conditions": [
            {"path": "/livez"}, {"path": "/readyz"}, {"path": "/healthz"},
            {"path": "/api/v1/namespaces/kube-public/configmaps/cluster-info"},
        ],
    }  # fmt: skip
    # Beside that file the API server refuses it.
    assert "anonymous-auth" not in arguments(said["cluster"]["apiServer"])


def level(policy: dict[str, Any], user: str, groups: list[str], verb: str, group: str, resource: str) -> str:
    """The level of the first rule that fits, as the API server finds it."""
    for rule in policy["rules"]:
        wanted = rule.get("resources")
        if rule.get("verbs") and verb not in rule["verbs"]:
            continue
        if rule.get("users") and user not in rule["users"]:
            continue
        if rule.get("userGroups") and not set(groups) & set(rule["userGroups"]):
            continue
        if rule.get("nonResourceURLs"):
            continue
        if wanted and not any(
            entry["group"] == group and (not entry.get("resources") or resource in entry["resources"])
            for entry in wanted
        ):
            continue
        return str(rule["level"])
    raise AssertionError("no rule fits")


KUBE_SYSTEM = ["system:serviceaccounts", "system:serviceaccounts:kube-system"]


@pytest.mark.parametrize(
    ("user", "groups", "verb", "group", "resource", "wanted"),
    [
        # What a Secret or a token holds is in no line, whoever reads or writes it, and that it was read is in one.
        ("alice", [], "create", "", "secrets", "Metadata"),
        ("kubelet", ["system:nodes"], "get", "", "secrets", "Metadata"),
        ("system:kube-controller-manager", [], "list", "", "secrets", "Metadata"),
        ("account", KUBE_SYSTEM, "get", "", "secrets", "Metadata"),
        ("alice", [], "create", "", "serviceaccounts/token", "Metadata"),
        ("alice", [], "create", "authentication.k8s.io", "tokenreviews", "Metadata"),
        # Who may do what, and who has how much, with what was written.
        ("alice", [], "patch", "rbac.authorization.k8s.io", "clusterroles", "Request"),
        ("alice", [], "update", "kueue.x-k8s.io", "clusterqueues", "Request"),
        ("alice", [], "delete", "batch", "jobs", "Metadata"),
        ("alice", [], "create", "", "pods/exec", "Metadata"),
        ("alice", [], "list", "", "pods", "Metadata"),
        # What thousands of nodes do all day.
        ("kubelet", ["system:nodes"], "patch", "", "nodes/status", "None"),
        ("kubelet", ["system:nodes"], "update", "coordination.k8s.io", "leases", "None"),
        ("kubelet", ["system:nodes"], "list", "", "pods", "None"),
        ("kubelet", ["system:nodes"], "create", "", "pods", "Metadata"),
        ("account", ["system:serviceaccounts:kueue-system"], "patch", "kueue.x-k8s.io", "workloads/status", "None"),
        ("account", ["system:serviceaccounts:kueue-system"], "update", "kueue.x-k8s.io", "workloads", "Metadata"),
        ("account", ["system:serviceaccounts:vision"], "list", "", "pods", "Metadata"),
    ],
)  # fmt: skip
def test_what_the_audit_log_keeps(
    said: dict[str, Any], user: str, groups: list[str], verb: str, group: str, resource: str, wanted: str
) -> None:
    assert level(said["audit"], user, groups, verb, group, resource) == wanted


def test_no_rule_logs_the_answer(said: dict[str, Any]) -> None:
    """An answer to a list of anything may be as large as the cluster."""
    assert "RequestResponse" not in {rule["level"] for rule in said["audit"]["rules"]}
    assert said["audit"]["rules"][-1] == {"level": "Metadata"}


def test_a_site_lays_its_own_over_it(tmp_path: Path) -> None:
    issuer = {"issuer": {"url": "https://login.example", "audiences": ["kubernetes"]}}
    rule = {"level": "RequestResponse", "namespaces": ["watched"]}
    found = told(
        tmp_path,
        kubernetes_control_plane_authentication={"jwt": [issuer]},
        kubernetes_control_plane_audit_rules=[rule],
        kubernetes_control_plane_encryption_enabled=False,
        kubernetes_control_plane_api_server_args={"audit-log-maxage": "365", "v": "4"},
    )
    assert found["authentication"]["jwt"] == [issuer] and len(found["authentication"]["anonymous"]["conditions"]) == 4
    assert found["audit"]["rules"][0] == rule and len(found["audit"]["rules"]) > 5
    server = arguments(found["cluster"]["apiServer"])
    assert (server["audit-log-maxage"], server["v"]) == ("365", "4")
    assert not [name for name in server if "encryption" in name]


def test_no_component_shows_its_profile(said: dict[str, Any]) -> None:
    for component in ("apiServer", "controllerManager", "scheduler"):
        assert arguments(said["cluster"][component])["profiling"] == "false"
    assert arguments(said["cluster"]["controllerManager"])["kube-api-qps"] == "200"


def test_a_kubelet_answers_nobody_whom_the_api_server_does_not_know(tmp_path: Path) -> None:
    said = rendered(
        tmp_path,
        role="kubernetes_node",
        inventory="lab-ha",
        templates={"kubelet": "configure/etc/kubernetes/kubelet.conf.d/50-myriad.conf.j2"},
        host="gpu_nodes[0]",
    )
    found = yaml.safe_load(said["kubelet"])
    assert found["authentication"] == {"anonymous": {"enabled": False}, "webhook": {"enabled": True}}
    assert found["authorization"] == {"mode": "Webhook"}
    assert (found["readOnlyPort"], found["rotateCertificates"]) == (0, True)


def test_what_was_lent_stands_where_kubeadm_once_finds_it_and_kubeadm_does_not(tmp_path: Path) -> None:
    invitation = {"answer": {"token": "t", "hash": "h", "key": "k", "sealed": ["AAA=", "BBB="]}}
    said = rendered(
        tmp_path,
        role="kubernetes_control_plane",
        inventory="lab-ha",
        templates={"join": "kubeadm-join.yaml.j2"},
        given={**GIVEN, "__kubernetes_control_plane_invitation": invitation},
    )["join"]
    lines = said.splitlines()
    assert [line for line in lines if line.startswith("# sealed-key: ")] == ["# sealed-key: AAA=", "# sealed-key: BBB="]
    assert "controlPlane:" in lines
    assert yaml.safe_load(said)["controlPlane"]["certificateKey"] == "k"


def test_arguments_that_the_api_server_refuses_beside_the_file_are_refused_before_it_starts(tmp_path: Path) -> None:
    """It would not start, and a site that had them would find out at its next upgrade."""
    look = {"name": "myriad.gpu.kubernetes_control_plane", "tasks_from": "preflight"}
    play = {
        "name": "preflight",
        "hosts": "control_plane[0]",
        "connection": "local",
        "gather_facts": False,
        "vars_files": [str(ROOT / "playbooks/vars/stack.yml")],
        "tasks": [{"name": "the role's look", "ansible.builtin.include_role": look}],
    }
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))

    def run(arguments: dict[str, str]) -> subprocess.CompletedProcess[str]:
        kubeconfig = {"kubernetes_control_plane_kubeconfig": str(tmp_path / "kubeconfig")}
        given = json.dumps({"kubernetes_control_plane_api_server_args": arguments, **kubeconfig})
        program = Path(sys.executable).with_name("ansible-playbook")
        command = [str(program), str(tmp_path / "play.yml"), "-i", str(ROOT / "inventories/lab-ha"), "-e", given]
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
        return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)

    done = run({"oidc-issuer-url": "https://login.example", "v": "4"})
    assert done.returncode != 0
    said = " ".join((done.stdout + done.stderr).split())
    assert "kubernetes_control_plane_api_server_args has oidc-issuer-url" in said
    assert "kubernetes_control_plane_authentication" in said
    accepted = run({"audit-log-maxage": "365"})
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
