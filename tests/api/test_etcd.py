"""The programs of control planes and of backups on real members of etcd: plain processes with kubeadm's keys."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from . import apiserver

ROLES = Path(__file__).parents[2] / "roles"
CONTROL_PLANE = ROLES / "kubernetes_control_plane/templates/install/usr/local/lib/myriad/control-plane"
BACKUP = ROLES / "etcd_backup/templates/install/usr/local/lib/myriad/etcd-backup"
NAMES = ("cp1", "cp2", "cp3")

pytestmark = [
    pytest.mark.skipif(
        any(apiserver.find(name) is None for name in ("etcd", "etcdctl", "etcdutl", "kubeadm")),
        reason="a bundle with etcd, etcdctl, etcdutl and kubeadm is needed: `make lab` makes one",
    ),
    pytest.mark.timeout(300),
]


def loaded(path: Path) -> ModuleType:
    loader = SourceFileLoader(path.name.replace("-", "_") + "_on_etcd", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.1.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Members:
    """Three members, each on a loopback address of its own, as on three machines."""

    work: Path
    client_port: int
    peer_port: int
    gateway: ModuleType
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> dict[str, str]:
        return {name: f"127.0.1.{number}" for number, name in enumerate(NAMES, 1)}

    def data(self, name: str) -> Path:
        return self.work / name / "etcd"

    def start(self, *names: str, initial: tuple[str, ...] = NAMES) -> None:
        pki, cluster = (
            self.work / "pki" / "etcd",
            ",".join(f"{n}=https://{self.address[n]}:{self.peer_port}" for n in initial),
        )
        for name in names:
            client = f"https://{self.address[name]}:{self.client_port}"
            peer = f"https://{self.address[name]}:{self.peer_port}"
            with (self.work / f"{name}.log").open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    [
                        str(apiserver.find("etcd")), "--name", name, "--data-dir", str(self.data(name)),
                        "--listen-client-urls", client, "--advertise-client-urls", client,
                        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster,
                        "--client-cert-auth", "--trusted-ca-file", str(pki / "ca.crt"),
                        "--cert-file", str(pki / "server.crt"), "--key-file", str(pki / "server.key"),
                        "--peer-client-cert-auth", "--peer-trusted-ca-file", str(pki / "ca.crt"),
                        "--peer-cert-file", str(pki / "peer.crt"), "--peer-key-file", str(pki / "peer.key"),
                        "--listen-metrics-urls", "", "--heartbeat-interval", "200", "--election-timeout", "2000",
                    ],
                    stdout=log, stderr=subprocess.STDOUT,
                )  # fmt: skip

    def kill(self, *names: str) -> None:
        for name in names:
            process = self.processes.pop(name)
            process.kill()
            process.wait()

    def stop(self, *names: str) -> None:
        for name in names:
            process = self.processes.pop(name)
            process.terminate()
            process.wait(timeout=20)

    def ask(self, path: str, body: dict[str, Any], *, name: str = "cp1", seconds: float = 60) -> dict[str, Any]:
        """A member's answer, as soon as there is one: until there is a leader, nobody answers."""
        end = time.monotonic() + seconds
        while True:
            try:
                return dict(self.gateway.etcd(self.address[name], path, body))
            except (OSError, self.gateway.Refused):
                if time.monotonic() > end:
                    raise
                time.sleep(0.3)

    def put(self, prefix: str, count: int) -> None:
        for number in range(count):
            self.ask("kv/put", {"key": coded(f"/registry/{prefix}/{number}"), "value": coded("x" * 200)})

    def keys(self, name: str = "cp1") -> set[str]:
        """All of them, as a majority knows them."""
        found = self.ask("kv/range", {"key": coded("/"), "range_end": coded("0"), "keys_only": True}, name=name)
        return {base64.b64decode(entry["key"]).decode() for entry in found.get("kvs", [])}


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    """Three that run and have a leader."""
    program = loaded(CONTROL_PLANE)
    found = Members(tmp_path, free_port(), free_port(), program)
    vars(program).update(PKI=str(tmp_path / "pki"), ETCD_PORT=found.client_port)
    addresses = list(found.address.values())
    config = {
        "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration", "kubernetesVersion": "v1.35.4",
        "certificatesDir": str(tmp_path / "pki"),
        "etcd": {"local": {"serverCertSANs": addresses, "peerCertSANs": addresses}},
    }  # fmt: skip
    (tmp_path / "kubeadm.yaml").write_text(yaml.safe_dump(config))
    for phase in ("ca", "front-proxy-ca", "sa", "etcd-ca", "etcd-server", "etcd-peer", "etcd-healthcheck-client"):
        command = [str(apiserver.find("kubeadm")), "init", "phase", "certs", phase]
        command += (
            ["--config", str(tmp_path / "kubeadm.yaml")] if phase != "sa" else ["--cert-dir", str(tmp_path / "pki")]
        )
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    found.start(*NAMES)
    try:
        found.keys()
        yield found
    finally:
        found.kill(*list(found.processes))


@pytest.fixture
def control(members: Members) -> ModuleType:
    """The program of control planes."""
    return members.gateway


def judged(control: ModuleType, address: str) -> list[str]:
    found = control.members(address, patience_s=20)
    return list(control.judged(found, control.statuses_of(found)))


def settled(control: ModuleType, address: str) -> list[str]:
    """What is wrong once there is time for an election."""
    until = time.monotonic() + 20
    while (problems := judged(control, address)) and time.monotonic() < until:
        time.sleep(0.2)
    return problems


def test_members_in_step_pass_the_gate_and_a_dead_one_is_named(members: Members, control: ModuleType) -> None:
    first = members.address["cp1"]
    assert settled(control, first) == []
    members.kill("cp3")
    until = time.monotonic() + 20
    while len(problems := judged(control, first)) != 1 and time.monotonic() < until:
        time.sleep(0.2)
    assert len(problems) == 1
    assert problems[0].startswith("etcd on cp3 does not answer")


def test_a_dead_member_is_taken_out_and_a_majority_never_is(members: Members, control: ModuleType) -> None:
    first = members.address["cp1"]
    members.put("before", 3)
    members.kill("cp3")
    found = control.members(first, patience_s=20)
    assert control.may_leave(found, control.statuses_of(found), "cp3") is None
    refused = control.may_leave(found, control.statuses_of(found), "cp2")
    assert "of which 1 answer and 2 are needed" in refused
    cp3 = next(member for member in found if member["name"] == "cp3")
    control.etcd(first, "cluster/member/remove", {"ID": cp3["ID"]}, timeout_s=15.0)
    assert [member["name"] for member in control.members(first)] in (["cp1", "cp2"], ["cp2", "cp1"])
    assert settled(control, first) == []
    assert len(members.keys()) == 3


def test_f4_an_added_member_that_has_not_started_keeps_the_gate_closed(members: Members, control: ModuleType) -> None:
    # etcd takes nobody in before its members have known each other for five seconds.
    members.ask("cluster/member/add", {"peerURLs": [f"https://127.0.1.4:{members.peer_port}"], "isLearner": True})
    assert judged(control, members.address["cp1"]) == ["127.0.1.4 was added and has not started"]


@pytest.fixture
def backup(members: Members, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program of backups, to be told which host it is on."""
    module = loaded(BACKUP)
    folder = members.work / "bin"
    folder.mkdir()
    for name in ("etcdctl", "etcdutl"):
        shutil.copy(str(apiserver.find(name)), folder / name)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(module, "PKI", str(members.work / "pki"))
    monkeypatch.setattr(module, "ENDPOINT", f"https://{members.address['cp1']}:{members.client_port}")
    monkeypatch.setattr(module, "PEER_PORT", members.peer_port)
    # There is no kubelet here whose containers could be asked for: a process that ended is what a stopped pod is.
    monkeypatch.setattr(module, "running", lambda component: [1] if members.processes else [])
    return module


def on(backup: ModuleType, members: Members, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the program is that of another host."""
    config = {
        "name": name, "cluster": "lab", "kubernetes": "1.35.4", "port": 6443,
        "folder": str(members.work / name / "backups"), "targets": [], "keep_newest": 3, "keep_days": 1,
        "ssh_key": "/none", "ssh_known_hosts": "/none",
    }  # fmt: skip
    path = members.work / f"{name}.json"
    path.write_text(json.dumps(config))
    monkeypatch.setattr(backup, "CONFIG", str(path))
    monkeypatch.setattr(backup, "DATA", str(members.data(name)))


def restored(
    backup: ModuleType, members: Members, archive: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ",".join(f"{name}={members.address[name]}" for name in names)
    for name in names:
        on(backup, members, name, monkeypatch)
        assert backup.restore(archive, wanted, "restore-1") == 0


def test_every_member_loses_its_data_and_the_archive_brings_it_back(
    members: Members, control: ModuleType, backup: ModuleType, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    members.put("kept", 20)
    on(backup, members, "cp1", monkeypatch)
    assert backup.take() == 0
    meta = json.loads(capsys.readouterr().out)
    members.put("lost", 7)
    members.kill(*NAMES)
    for name in NAMES:
        shutil.rmtree(members.data(name))
    restored(backup, members, meta["archive"], NAMES, monkeypatch)
    members.start(*NAMES)
    assert settled(control, members.address["cp1"]) == []
    for name in NAMES:
        assert members.keys(name) == {f"/registry/kept/{number}" for number in range(20)}
    status = members.ask("maintenance/status", {})
    assert int(status["header"]["revision"]) > meta["revision"] + 10**9 - 1, (
        "watchers would miss what changes from now on"
    )
    members.put("after", 2)
    assert len(members.keys("cp3")) == 22


def test_a_restore_that_was_cut_short_is_repeated_and_one_that_ended_is_not(
    members: Members, backup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    members.put("kept", 2)
    on(backup, members, "cp1", monkeypatch)
    backup.take()
    archive = json.loads(capsys.readouterr().out)["archive"]
    members.stop(*NAMES)
    restored(backup, members, archive, ("cp1",), monkeypatch)
    first = json.loads(capsys.readouterr().out)
    restored(backup, members, archive, ("cp1",), monkeypatch)
    again = json.loads(capsys.readouterr().out)
    assert (first["restored"], again["restored"]) == (True, False)
    assert [path.name[:7] for path in members.data("cp1").glob("before-*")] == ["before-"], "the old data stays"


def test_after_a_lost_majority_the_member_that_is_left_loses_nothing(
    members: Members, control: ModuleType, backup: ModuleType, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    members.put("kept", 5)
    # Asked of cp2, which answers when it has applied what a majority has: what only a leader has seen dies with it.
    assert len(members.keys("cp2")) == 5
    members.kill("cp1", "cp3")
    with pytest.raises((OSError, control.Refused)):
        control.members(members.address["cp2"])
    members.stop("cp2")
    on(backup, members, "cp2", monkeypatch)
    assert backup.survivor() == 0
    meta = json.loads(capsys.readouterr().out)
    assert meta["source"] == "member"
    restored(backup, members, meta["archive"], ("cp2",), monkeypatch)
    members.start("cp2", initial=("cp2",))
    assert members.keys("cp2") == {f"/registry/kept/{number}" for number in range(5)}
    assert [member["name"] for member in control.members(members.address["cp2"], patience_s=20)] == ["cp2"]
