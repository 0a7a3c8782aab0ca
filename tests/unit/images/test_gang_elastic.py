"""An elastic gang as its pods run it: real processes on the loopback that lose each other and meet again."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "images" / "gang-check" / "gang_check.py"
STOPPED = 128 + signal.SIGTERM
STEPS = 60


class Member:
    """One process of the gang; what it says is kept, and can be waited for."""

    def __init__(self, rank: int, port: int, sizes: str, **env: str) -> None:
        self.lines: list[str] = []
        self._said = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            env={
                "PATH": os.environ["PATH"], "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PET_NNODES": sizes,
                "RANK": str(rank), "NODE_NAME": f"node{rank}", "GANG_JOIN_SECONDS": "40", "GANG_PEER_SECONDS": "20",
                "GANG_LAST_CALL_SECONDS": "1", "GANG_STEPS": str(STEPS), "GANG_STEP_SECONDS": "0.1",
                "GANG_ELEMENTS": "100", **env,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._said:
                self.lines.append(line)
                self._said.notify_all()

    def says(self, text: str, timeout_s: float = 40.0) -> None:
        """Wait until it has said so."""
        with self._said:
            found = self._said.wait_for(lambda: any(text in line for line in self.lines), timeout_s)
        assert found, f"{text!r} never came: {''.join(self.lines)}"

    def ends(self) -> int:
        """Its exit code."""
        code = self.process.wait(timeout=60)
        self._reader.join(timeout=10)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(timeout=10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def sizes(self) -> list[int]:
        """With how many ranks it summed, each change once."""
        found = [int(ranks) for ranks in re.findall(r"sum ok over (\d+) ranks", self.output)]
        return [size for at, size in enumerate(found) if at == 0 or found[at - 1] != size]


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def members() -> Iterator[list[Member]]:
    made: list[Member] = []
    yield made
    for one in made:
        one.close()


def gang(members: list[Member], port: int, count: int, sizes: str, **env: str) -> list[Member]:
    members += [Member(rank, port, sizes, **env) for rank in range(count)]
    return members


def test_a_worker_is_lost_and_comes_back_and_nobody_else_starts_again(members: list[Member], port: int) -> None:
    zero, one, two = gang(members, port, 3, "2:3")
    one.says("step 3/")
    one.process.kill()
    for other in (zero, two):
        other.says("with 2 of 3 ranks")
    zero.says("sum ok over 2 ranks")
    again = Member(1, port, "2:3")
    members.append(again)
    assert [zero.ends(), two.ends(), again.ends()] == [0, 0, 0], zero.output + two.output + again.output
    assert zero.sizes() == two.sizes() == [3, 2, 3]
    assert again.sizes() == [3] and "resuming after step" in again.output, "it has its state from the others"
    # Each step was summed once by those who stayed, and the sums over all sizes were right at the end.
    done = [int(step) for step in re.findall(rf"step (\d+)/{STEPS} ", zero.output)]
    assert done == list(range(1, STEPS + 1))
    assert f"all-reduce ok: {STEPS} steps, 3 ranks on node0 node1 node2" in zero.output


def test_who_is_asked_to_leave_leaves_alone(members: list[Member], port: int, tmp_path: Path) -> None:
    zero, one, two = gang(members, port, 3, "2:3", CHECKPOINT_DIR=str(tmp_path))
    two.says("step 3/")
    two.process.send_signal(signal.SIGTERM)
    assert two.ends() == STOPPED and "asked to stop (1 of 3 ranks): saved step" in two.output
    assert [zero.ends(), one.ends()] == [0, 0], zero.output + one.output
    assert zero.sizes() == one.sizes() == [3, 2]


def test_when_all_are_asked_all_leave_and_the_next_gang_resumes(
    members: list[Member], port: int, tmp_path: Path
) -> None:
    for member in gang(members, port, 3, "2:3", CHECKPOINT_DIR=str(tmp_path)):
        member.says("step 3/")
    for member in members:
        member.process.send_signal(signal.SIGTERM)
    assert [member.ends() for member in members] == [STOPPED] * 3
    steps = [json.loads((tmp_path / f"rank-{rank}.json").read_text())["step"] for rank in range(3)]
    after = [Member(rank, port, "2:3", CHECKPOINT_DIR=str(tmp_path)) for rank in range(3)]
    members += after
    assert [member.ends() for member in after] == [0] * 3, after[0].output
    assert f"resuming after step {max(steps)}" in after[1].output, "the newest of what they saved"


def test_below_its_minimum_it_waits_with_its_state(members: list[Member], port: int, tmp_path: Path) -> None:
    zero, one = gang(members, port, 2, "2:3", CHECKPOINT_DIR=str(tmp_path))
    one.says("step 3/")
    one.process.kill()
    zero.says("waiting for rank 1, 2")
    zero.process.send_signal(signal.SIGTERM)
    assert zero.ends() == STOPPED
    assert "asked to stop while others were waited for: saved step" in zero.output
    assert json.loads((tmp_path / "rank-0.json").read_text())["step"] >= 3


def test_the_others_wait_for_rank_0_and_give_it_their_state(members: list[Member], port: int) -> None:
    zero, one, two = gang(members, port, 3, "2:3")
    zero.says("step 3/")
    zero.process.kill()
    one.says("waiting for rank 0", 20)
    again = Member(0, port, "2:3")
    members.append(again)
    assert [again.ends(), one.ends(), two.ends()] == [0, 0, 0], again.output + one.output
    assert one.sizes() == [3]
    assert int(re.findall(r"resuming after step (\d+)", again.output)[0]) >= 3
