"""The program with which control planes gate, invite and leave: its judgements, its kubeconfig, and what it says."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROGRAM = (
    Path(__file__).parents[3] / "roles/kubernetes_control_plane/templates/install/usr/local/lib/myriad/control-plane"
)


def load() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("control_plane_program", str(PROGRAM))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


program = load()


def member(number: int, name: str | None = None, **more: Any) -> dict[str, Any]:
    """A member as the gateway of etcd 3.6 lists it: 64-bit numbers are text."""
    found = {"ID": str(number), "peerURLs": [f"https://10.0.0.{number}:2380"], **more}
    return {**found, "name": f"cp{number}" if name is None else name}


def status(leader: int = 1, applied: int = 5000, index: int = 5000, **more: Any) -> dict[str, Any]:
    return {"leader": str(leader), "raftIndex": str(index), "raftAppliedIndex": str(applied), **more}


THREE = [member(1), member(2), member(3)]


def test_members_in_step_have_no_problem() -> None:
    assert program.judged(THREE, {"1": status(), "2": status(), "3": status(applied=4500)}) == []


@pytest.mark.parametrize(
    ("members", "statuses", "words"),
    [
        (THREE, {"1": status(), "2": status(), "3": "timed out"}, "etcd on cp3 does not answer: timed out"),
        ([*THREE[:2], member(3, "")], {"1": status(), "2": status()}, "10.0.0.3 was added and has not started"),
        (
            [*THREE[:2], member(3, isLearner=True)],
            {"1": status(), "2": status(), "3": status()},
            "cp3 still learns and has no vote",
        ),
        (THREE, {"1": status(), "2": status(), "3": status(leader=0)}, "etcd on cp3 sees no leader"),
        (THREE, {"1": status(), "2": status(), "3": status(leader=3)}, "members follow different leaders"),
        (THREE, {"1": status(), "2": status(), "3": status(applied=3000)}, "etcd on cp3 is 2000 entries behind"),
        (
            THREE,
            {"1": status(), "2": status(), "3": status(errors=["NOSPACE"])},
            "etcd on cp3 reports NOSPACE",
        ),
    ],
)
def test_what_is_wrong_is_said(members: list[dict[str, Any]], statuses: dict[str, Any], words: str) -> None:
    assert program.judged(members, statuses) == [words]


def test_one_of_three_may_leave_while_the_others_answer() -> None:
    assert program.may_leave(THREE, {"1": status(), "2": status(), "3": "dead"}, "cp3") is None


def test_nobody_leaves_where_the_others_had_no_majority() -> None:
    refused = program.may_leave(THREE, {"1": status(), "2": "dead", "3": "dead"}, "cp3")
    assert refused == "without cp3 there would be 2 members, of which 1 answer and 2 are needed"


def test_the_last_one_stays() -> None:
    assert "is the only member" in program.may_leave([member(1)], {"1": status()}, "cp1")


def test_a_member_that_learns_is_no_vote() -> None:
    """Of four one learns: the three voters may become two, which both have to answer."""
    four = [*THREE, member(4, isLearner=True)]
    statuses = {str(number): status() for number in range(1, 5)}
    assert program.may_leave(four, statuses, "cp3") is None
    assert "2 are needed" in program.may_leave(four, {**statuses, "2": "dead"}, "cp3")


@pytest.mark.parametrize(
    ("url", "address"),
    [("https://10.0.0.1:2380", "10.0.0.1"), ("https://[fd00::1]:2380", "fd00::1"), ("", "")],
)
def test_a_members_address_comes_from_its_peers_url(url: str, address: str) -> None:
    assert program.address_of({"peerURLs": [url]}) == address


ADMIN = """apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: Q0E=
    server: https://127.0.0.1:7443
  name: kubernetes
contexts:
- context:
    cluster: kubernetes
    user: kubernetes-admin
  name: kubernetes-admin@kubernetes
current-context: kubernetes-admin@kubernetes
kind: Config
users:
- name: kubernetes-admin
  user:
    client-certificate-data: Q0VSVA==
    client-key-data: S0VZ
"""


def test_the_kubeconfig_for_elsewhere_has_a_context_for_each_control_plane() -> None:
    text = program.remote_kubeconfig(ADMIN, {"cp1": "10.0.0.1", "cp2": "fd00::2"}, 6443)
    found = json.loads(text)
    assert found["current-context"] == "cp1"
    assert {entry["name"]: entry["cluster"]["server"] for entry in found["clusters"]} == {
        "cp1": "https://10.0.0.1:6443",
        "cp2": "https://[fd00::2]:6443",
    }
    assert {context["context"]["user"] for context in found["contexts"]} == {user["name"] for user in found["users"]}
    assert found["users"][0]["user"] == {"client-certificate-data": "Q0VSVA==", "client-key-data": "S0VZ"}


def test_a_kubeconfig_without_keys_is_refused() -> None:
    with pytest.raises(program.Refused, match="holds no client-key-data"):
        program.remote_kubeconfig(ADMIN.replace("client-key-data", "client-key"), {"cp1": "10.0.0.1"}, 6443)


def test_when_a_certificate_ends_is_read_and_authorities_are_told_apart(tmp_path: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "10", "-subj", "/CN=x",
         "-keyout", str(tmp_path / "k"), "-out", str(tmp_path / "c")],
        check=True, capture_output=True,
    )  # fmt: skip
    assert abs(program.ends_at((tmp_path / "c").read_text()) - time.time() - 10 * 86400) < 60
    assert program.is_authority("/etc/kubernetes/pki/front-proxy-ca.crt")
    assert not program.is_authority("/etc/kubernetes/pki/apiserver.crt")


def test_without_a_verb_it_says_what_it_can() -> None:
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "control-plane gate" in done.stderr


def test_without_its_configuration_it_says_what_to_do() -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), "gate"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "run the site on this host first" in done.stderr


def test_a_member_of_the_cluster_from_before_a_restore_is_a_stray() -> None:
    """A restore gives the cluster another id and lifts its revision by a thousand million."""
    assert program.is_stray(("1", 500), ("2", 10**9 + 400), "10.0.0.3") is True
    assert program.is_stray(("1", 500), ("1", 400), "10.0.0.3") is False
    assert program.is_stray(None, ("1", 400), "10.0.0.3") is False
    assert program.is_stray(("1", 500), None, "10.0.0.3") is False


def test_a_run_that_is_led_by_a_stray_stops() -> None:
    with pytest.raises(program.Refused, match="from before a restore"):
        program.is_stray(("2", 10**9 + 400), ("1", 500), "10.0.0.1")


def test_those_that_are_named_come_first_in_the_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    peers = {"cp1": "10.0.0.1", "cp2": "10.0.0.2", "cp3": "10.0.0.3"}
    monkeypatch.setattr(program, "config", lambda: {"peers": peers, "port": 6443})
    monkeypatch.setattr(program, "ADMIN", str(tmp_path / "admin.conf"))
    monkeypatch.setattr(program, "REMOTE_ADMIN", str(tmp_path / "remote.conf"))
    (tmp_path / "admin.conf").write_text(ADMIN)
    program.kubeconfig(["cp3"])
    found = json.loads((tmp_path / "remote.conf").read_text())
    assert found["current-context"] == "cp3"
    assert [context["name"] for context in found["contexts"]] == ["cp3", "cp1", "cp2"]
    assert (tmp_path / "remote.conf").stat().st_mode & 0o777 == 0o600


def test_a_host_that_has_joined_asks_for_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def run(*command: str, stdin: str | None = None) -> str:
        asked.append(command)
        return '{"public": "MIIB"}'

    monkeypatch.setattr(program, "run", run)
    monkeypatch.setattr(program, "JOINED", (str(tmp_path / "joined"),))
    assert program.introduce()["public"] == "MIIB"
    assert asked == [("/usr/local/lib/myriad/encryption-keys", "ask")]
    (tmp_path / "joined").touch()
    assert "public" not in program.introduce() and len(asked) == 1


class Pods:
    """A host whose kubeadm writes another manifest, and whose kubelet takes two looks to see it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
        self.calls: list[str] = []
        self.looks = 0
        self._folder, self._written = folder, written
        for name in program.COMPONENTS:
            (folder / f"{name}.yaml").write_text("before\n")
        monkeypatch.setattr(program, "MANIFESTS", str(folder))
        monkeypatch.setattr(program, "INIT", str(folder / "init.yaml"))
        monkeypatch.setattr(program, "KEYS", str(folder / "encryption.json"))
        monkeypatch.setattr(program, "gate", lambda: self.calls.append("gate"))
        monkeypatch.setattr(program.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(program, "run", self._run)
        (folder / "init.yaml").write_text(f"value: {program.KEYS}\n")

    def _run(self, *command: str, stdin: str | None = None) -> str:
        if command[0] == "sha256sum":
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout
        if command[0] == "crictl":
            self.looks += 1
            return "old\n" if self.looks < 3 or self._written == "before\n" else "new\n"
        self.calls.append(" ".join(command))
        if "control-plane" in command:
            (self._folder / "kube-apiserver.yaml").write_text(self._written)
        return ""


def test_what_kubeadm_runs_is_brought_to_the_sites_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = Pods(tmp_path, monkeypatch, "after\n")
    with pytest.raises(program.Refused, match="encryption-keys make"):
        program.manifests()
    assert pods.calls == [], "an API server that finds no key does not start"
    (tmp_path / "encryption.json").touch()
    assert program.manifests() == {"changed": True, "manifests": [str(tmp_path / "kube-apiserver.yaml")]}
    assert pods.looks == 3, "the one from before answers until the kubelet has seen the file"
    init = f"--config {tmp_path}/init.yaml"
    assert pods.calls == [
        "gate", f"kubeadm init phase upload-config kubeadm {init}", f"kubeadm init phase control-plane all {init}",
        "gate", "/usr/local/lib/myriad/kubeadm-once made",
    ]  # fmt: skip


def test_nothing_is_waited_for_where_it_is_so_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pods = Pods(tmp_path, monkeypatch, "before\n")
    (tmp_path / "encryption.json").touch()
    assert program.manifests() == {"changed": False, "manifests": []}
    assert pods.looks == 1


@pytest.mark.parametrize(
    ("said", "ready"),
    [(200, True), (401, True), (403, False), (500, False), ("[Errno 111] Connection refused", False)],
)
def test_an_api_server_that_has_not_read_who_may_what_is_not_ready(
    said: int | str, ready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers 403 to everybody then, the administrator too: a run that went on would be refused."""
    monkeypatch.setattr(program, "answer", lambda address, port: said)
    assert (program.serves("10.0.0.1", 6443) is None) is ready


@pytest.mark.parametrize("said", [200, 403, 500])
def test_a_host_starts_no_second_cluster_beside_one_that_just_starts(
    said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "config", lambda: {"name": "cp1", "port": 6443, "peers": {"cp2": "10.0.0.2"}})
    monkeypatch.setattr(program, "answer", lambda address, port: said)
    with pytest.raises(program.Refused, match="would start a second cluster"):
        program.alone()
    monkeypatch.setattr(program, "answer", lambda address, port: "timed out")
    program.alone()
