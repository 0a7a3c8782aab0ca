"""The ways there and back: the real iptables and mount in namespaces; only the lab's containers are touched."""

from __future__ import annotations

import shutil
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, NotFound

from myriad.errors import InputError, MyriadError
from myriad.lab.nodes import LABEL
from myriad.lab.soak.inject import (
    FULL,
    LEFT_OUT,
    MARK,
    Injector,
    Nodes,
    cut_script,
    empty_script,
    fill_script,
    heal_script,
    kill_containers_script,
)
from myriad.lab.soak.plan import KINDS, Fault
from myriad.lab.state import HostRecord, LabState

UNSHARE = ["unshare", "--user", "--map-root-user"]


def works(*command: str) -> bool:
    if shutil.which(command[-1]) is None or shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, *command], capture_output=True, check=False).returncode == 0


needs_filters = pytest.mark.skipif(
    shutil.which("iptables") is None or not works("--net", "true"), reason="needs iptables and namespaces of one's own"
)
needs_mounts = pytest.mark.skipif(not works("--mount", "true"), reason="needs mount namespaces of one's own")


def run(*command: str, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*UNSHARE, *command, "sh", "-c", script], capture_output=True, text=True, check=False, timeout=60
    )


# The network

PAIR = """
set -e
ip link set lo up
mkdir -p /run/netns
ip netns add peer
ip link add here type veth peer name there netns peer
ip addr add 10.9.0.1/24 dev here; ip link set here up
ip -n peer addr add 10.9.0.2/24 dev there; ip -n peer addr add 10.244.7.5/24 dev there; ip -n peer link set there up
ip route add 10.244.7.0/24 via 10.9.0.2
try() { ip netns exec peer python3 -c "
import socket
s = socket.socket(); s.settimeout(0.7); s.bind(('$1', 0))
try: print('$2', s.connect_ex(('10.9.0.1', 8000)))
except OSError as error: print('$2', type(error).__name__)
"; }
python3 -m http.server -b 10.9.0.1 8000 >/dev/null 2>&1 &
server=$!
sleep 1
"""


@needs_filters
def test_a_cut_is_made_once_and_taken_back_however_often() -> None:
    shown = "iptables -t mangle -S"
    before = run("--net", script=shown)
    if before.returncode != 0:
        pytest.skip("this machine has no table mangle for namespaces of one's own")
    cut = cut_script(("10.77.0.12", "10.244.2.0/24"))
    twice = run("--net", script=f"{cut}\n{cut}\n{shown}")
    assert twice.returncode == 0, twice.stderr
    assert twice.stdout.count(f"-A PREROUTING -j {MARK}") == 1
    rules = [line for line in twice.stdout.splitlines() if line.startswith(f"-A {MARK}")]
    assert rules == [f"-A {MARK} -s 10.77.0.12/32 -j DROP", f"-A {MARK} -s 10.244.2.0/24 -j DROP"]
    healed = run("--net", script=f"{cut}\n{heal_script()}\n{heal_script()}\n{shown}")
    assert healed.returncode == 0 and healed.stdout == before.stdout
    foreign = "iptables -t mangle -A PREROUTING -s 192.0.2.1 -j DROP"
    kept = run("--net", script=f"{foreign}\n{cut}\n{heal_script()}\n{shown}")
    assert "-A PREROUTING -s 192.0.2.1/32 -j DROP" in kept.stdout


@needs_filters
def test_a_cut_that_cannot_be_taken_back_is_not_called_healed() -> None:
    """iptables ends with 4 where another holds its lock for too long."""
    cut = cut_script(("10.77.0.12",))
    if run("--net", script=cut).returncode != 0:
        pytest.skip("this machine has no table mangle for namespaces of one's own")
    busy = run("--net", script=f"{cut}\niptables() {{ return 4; }}\n{heal_script()}")
    assert busy.returncode == 1 and "still cut off" in busy.stderr


@needs_filters
def test_a_node_hears_neither_its_peer_nor_its_peer_s_pods_until_it_is_healed() -> None:
    script = f"""{PAIR}
try 10.9.0.2 node-before; try 10.244.7.5 pod-before
( {cut_script(("10.9.0.2", "10.244.7.0/24"))} )
try 10.9.0.2 node-cut; try 10.244.7.5 pod-cut
( {heal_script()} )
try 10.9.0.2 node-after; try 10.244.7.5 pod-after
kill $server
"""
    done = run("--net", "--mount", script=f"mount -t tmpfs none /run 2>/dev/null || true\n{script}")
    if "before" not in done.stdout:
        pytest.skip(f"this machine gives no network namespaces inside of one's own: {done.stderr.strip()[-200:]}")
    said = dict(line.split() for line in done.stdout.splitlines())
    assert {said[name] for name in ("node-before", "pod-before", "node-after", "pod-after")} == {"0"}, said
    assert "0" not in {said["node-cut"], said["pod-cut"]}, said


# The disk


@needs_mounts
def test_a_full_disk_takes_neither_a_byte_nor_a_folder_and_is_as_before_when_it_is_emptied() -> None:
    script = f"""
mount -t tmpfs below {FULL} && echo kept > {FULL}/syslog && exec 3>>{FULL}/syslog
( {fill_script()} ) && ( {fill_script()} ) || echo "failed to fill"
grep -c '^{MARK} {FULL} ' /proc/mounts
mkdir {FULL}/pods 2>&1 | grep -o 'No space left on device'
echo x 2>/dev/null > {FULL}/new || echo "no file"
echo "still written" >&3
{empty_script()}
{empty_script()}
grep -c '^{MARK} ' /proc/mounts
cat {FULL}/syslog
mkdir {FULL}/pods && echo "room again"
"""
    done = run("--mount", script=script)
    assert done.stdout.splitlines() == [
        "1", "No space left on device", "no file", "0", "kept", "still written", "room again",
    ], done.stdout + done.stderr  # fmt: skip


def test_a_kill_of_containers_fails_with_a_word_where_none_runs() -> None:
    script = kill_containers_script("--name '^kube-apiserver$'")
    none = subprocess.run(["sh", "-c", f"crictl() {{ :; }}\n{script}"], capture_output=True, text=True, check=False)
    assert none.returncode == 1 and none.stderr == "no container runs: --name '^kube-apiserver$'\n"
    told = 'crictl() { if [ "$1" = ps ]; then echo id1; else echo "$@"; fi; }'
    some = subprocess.run(["sh", "-c", f"{told}\n{script}"], capture_output=True, text=True, check=True)
    assert some.stdout == "stop -t 0 id1\n"


# Only the lab's own containers


class Container:
    """A container of an engine that keeps what it was asked."""

    def __init__(self, name: str, lab: str, *, status: str = "running", code: int = 0, said: bytes = b"") -> None:
        self.name, self.status, self.code, self.said = name, status, code, said
        self.labels = {LABEL: lab}
        self.attrs = {"State": {"StartedAt": "2026-11-30T12:00:05.5Z"}}
        self.asked: list[str] = []

    def exec_run(self, command: list[str]) -> tuple[int, bytes]:
        if self.status != "running":
            raise APIError("is not running")
        self.asked.append(command[-1])
        return self.code, self.said

    def kill(self) -> None:
        self.asked.append("kill")
        self.status = "exited"

    def start(self) -> None:
        self.asked.append("start")
        self.status = "running"


class Engine:
    """The part of an engine's client that is used."""

    def __init__(self, *containers: Container) -> None:
        self.known = {one.name: one for one in containers}
        self.containers = SimpleNamespace(get=self.get)

    def get(self, name: str) -> Container:
        if name not in self.known:
            raise NotFound("no such container")
        return self.known[name]


STATE = LabState(
    name="lab", hosts={n: HostRecord(address=f"10.77.0.{i}") for i, n in enumerate(("cp1", "gpu1", "gpu2"), 10)}
)
NETWORKS = {"cp1": ("10.77.0.10",), "gpu1": ("10.77.0.11", "10.244.1.0/24"), "gpu2": ("10.77.0.12", "10.244.2.0/24")}


def lab(**more: Any) -> tuple[Engine, Nodes]:
    engine = Engine(*(Container(f"lab-{node}", "lab", **more) for node in STATE.hosts))
    return engine, Nodes(engine, STATE)  # type: ignore[arg-type]


def test_a_container_of_somebody_else_is_left_alone() -> None:
    engine = Engine(Container("lab-gpu1", "another"))
    nodes = Nodes(engine, STATE)  # type: ignore[arg-type]
    for act in (nodes.kill, nodes.start, lambda node: nodes.run(node, "true")):
        with pytest.raises(MyriadError, match="not of this lab"):
            act("gpu1")
    assert engine.known["lab-gpu1"].asked == []
    with pytest.raises(MyriadError, match="is gone"):
        nodes.kill("gpu2")
    with pytest.raises(InputError, match='no node "other"'):
        nodes.kill("other")


def test_every_kind_has_a_way_there_and_back_or_a_reason() -> None:
    engine, nodes = lab(said=b"ok")
    api = SimpleNamespace(
        get=lambda resource, name, namespace: {"spec": {"holderIdentity": "ext-1", "nodeName": "gpu2"}}
    )
    injector = Injector(nodes, api, NETWORKS)  # type: ignore[arg-type]
    for name, kind in KINDS.items():
        fault = Fault(1, name, 0, 0, "gpu1" if kind.lane == "nodes" else "cp1", "gpu2" if name == "network" else "")
        if name in LEFT_OUT:
            with pytest.raises(MyriadError, match="not possible here"):
                injector.inject(fault)
            continue
        injector.inject(fault)
        injector.undo(fault)
        injector.undo(fault)
    asked = {name: container.asked for name, container in engine.known.items()}
    assert asked["lab-gpu1"][:2] == ["kill", "start"] and engine.known["lab-gpu1"].status == "running"
    assert cut_script(NETWORKS["gpu2"]) in asked["lab-gpu1"] and cut_script(NETWORKS["gpu1"]) in asked["lab-gpu2"]
    for node in ("lab-gpu1", "lab-gpu2"):
        assert asked[node].count(heal_script()) == 2
    assert any("io.kubernetes.pod.name=ext-1" in script for script in asked["lab-gpu2"])
    assert any("kube-apiserver" in script for script in asked["lab-cp1"])
    assert "systemctl start myriad-registry.service" in asked["lab-cp1"]


def test_what_fails_on_a_node_is_a_sentence_with_its_name() -> None:
    _, nodes = lab(code=1, said=b"no such unit")
    with pytest.raises(MyriadError, match="exit 1: no such unit") as found:
        nodes.run("gpu1", "false")
    assert found.value.where == "gpu1"
    _, stopped = lab(status="exited")
    with pytest.raises(MyriadError, match="does not run a command"):
        stopped.run("gpu1", "true")
    assert stopped.read("gpu1", "/etc/hostname") == ""


def test_a_sweep_starts_what_is_down_and_says_what_it_could_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("myriad.lab.soak.inject.SWEEP_S", 0.0)
    engine, nodes = lab()
    engine.known["lab-gpu1"].status = "exited"
    engine.known["lab-gpu2"].code = 1
    left = Injector(nodes, None, NETWORKS).sweep()  # type: ignore[arg-type]
    assert engine.known["lab-gpu1"].asked[0] == "start" and heal_script() in engine.known["lab-gpu1"].asked[1]
    assert left == ["gpu2: exit 1: no word"]


def test_the_start_of_each_node_is_the_engine_s_word() -> None:
    engine, nodes = lab()
    del engine.known["lab-gpu2"]
    assert nodes.started() == {"cp1": 1796040005.5, "gpu1": 1796040005.5, "gpu2": 0.0}
