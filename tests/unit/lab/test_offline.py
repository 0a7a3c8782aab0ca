"""The rules that close a lab, set by the real iptables in a network namespace of their own."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from myriad.errors import MyriadError
from myriad.lab import nodes
from myriad.lab.offline import CHAIN, network_script, network_script_undo, node_script, node_script_undo

SUBNET = "10.77.0.0/24"


def _namespaces() -> bool:
    if shutil.which("iptables") is None or shutil.which("unshare") is None:
        return False
    probe = ["unshare", "--user", "--map-root-user", "--net", "iptables", "-w", "5", "-S"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


needs_namespace = pytest.mark.skipif(not _namespaces(), reason="needs iptables and namespaces of one's own")


def _run(script: str) -> str:
    """A script in a fresh network namespace whose loopback is up."""
    command = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", f"ip link set lo up\n{script}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_namespace
def test_a_node_is_closed_once_however_often_it_is_asked_and_opened_again() -> None:
    before = _run("iptables -S")
    closed = _run(f"{node_script(SUBNET)}\n{node_script(SUBNET)}\niptables -S")
    assert closed.count(f"-A OUTPUT -j {CHAIN}") == 1 and closed.count(f"-A FORWARD -j {CHAIN}") == 1
    rules = [line for line in closed.splitlines() if line.startswith(f"-A {CHAIN}")]
    assert rules[-1].startswith(f"-A {CHAIN} -j REJECT") and f"-A {CHAIN} -d {SUBNET} -j RETURN" in rules
    assert _run(f"{node_script(SUBNET)}\n{node_script_undo()}\niptables -S") == before
    assert _run(f"{node_script_undo()}\niptables -S") == before


@needs_namespace
def test_what_is_outside_is_refused_and_counted() -> None:
    connect = (
        "python3 -c 'import socket; s = socket.socket(); s.settimeout(5); print(s.connect_ex((\"192.0.2.1\", 80)))'"
    )
    route = "ip route add 192.0.2.0/24 dev lo"  # without one the kernel refuses before the filter does
    count = f"iptables -L {CHAIN} -v -n -x | awk '/REJECT/ {{print $1}}'"
    error, packets = _run(f"{route}\n{node_script(SUBNET)}\n{connect}\n{count}").split()
    assert int(error) != 0 and int(packets) >= 1


@needs_namespace
def test_the_network_is_closed_and_opened_by_the_labs_name_alone() -> None:
    other = "iptables -A FORWARD -s 10.9.0.0/24 -m comment --comment myriad-abcdef0 -j REJECT"
    name = "myriad-abcdef"
    twice = f"{network_script(name, SUBNET)}\n{network_script(name, SUBNET)}\niptables -S FORWARD"
    closed = _run(f"{other}\n{twice}")
    assert sum(f"-s {SUBNET} ! -d {SUBNET}" in line for line in closed.splitlines()) == 1
    opened = _run(f"{other}\n{network_script(name, SUBNET)}\n{network_script_undo(name)}\niptables -S FORWARD")
    assert SUBNET not in opened and "10.9.0.0/24" in opened


class _Lossy:
    """A container whose engine ends the output's stream early, the first times."""

    name = "lossy"

    def __init__(self, losses: int) -> None:
        self.losses = losses

    def exec_run(self, command: list[str]) -> tuple[int, bytes]:
        done = subprocess.run(command, capture_output=True, check=False)
        if self.losses:
            self.losses -= 1
            return done.returncode, done.stdout[: len(done.stdout) // 3]
        return done.returncode, done.stdout


def test_output_that_the_engine_lost_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes.time, "sleep", lambda seconds: None)
    assert nodes.exec_whole(_Lossy(2), "printf 'one\\ntwo\\n'") == (0, "one\ntwo\n")
    assert nodes.exec_whole(_Lossy(0), "echo told; exit 3")[0] == 3
    with pytest.raises(MyriadError, match="lossy: the engine lost the output"):
        nodes.exec_whole(_Lossy(99), "echo something")
