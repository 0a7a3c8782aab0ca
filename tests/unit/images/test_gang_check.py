"""The gang check as its pods run it: real processes that meet on the loopback."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from myriad.images.python import project_version

REPOSITORY = Path(__file__).parents[3]
PROGRAM = REPOSITORY / "images" / "gang-check" / "gang_check.py"


@pytest.fixture(scope="module")
def gang_check() -> Iterator[ModuleType]:
    sys.path.insert(0, str(PROGRAM.parent))  # it imports its neighbour
    spec = importlib.util.spec_from_file_location("gang_check", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gang_check"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(PROGRAM.parent))


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number: int = listener.getsockname()[1]
        return number


class Pods:
    """The processes of one gang."""

    def __init__(self, port: int, world_size: int, **env: str) -> None:
        self.common = {
            "PATH": os.environ["PATH"],
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(world_size),
            "GANG_JOIN_SECONDS": "30",
            "GANG_PEER_SECONDS": "30",
            "GANG_STEP_SECONDS": "0",
            **env,
        }
        self.processes: dict[int, subprocess.Popen[str]] = {}

    def start(self, rank: int, **env: str) -> subprocess.Popen[str]:
        own = {"RANK": str(rank), "NODE_NAME": f"node{rank}"}
        self.processes[rank] = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            env={**self.common, **own, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self.processes[rank]

    def finish(self) -> dict[int, tuple[int, str]]:
        """Exit code and output by rank."""
        result = {}
        for rank, process in self.processes.items():
            output, _ = process.communicate(timeout=40)
            result[rank] = (process.returncode, output)
        return result

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def gangs() -> Iterator[list[Pods]]:
    made: list[Pods] = []
    yield made
    for one in made:
        one.stop()


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """The lines of a process up to the one that holds the text."""
    assert process.stdout is not None
    lines = []
    timer = threading.Timer(30, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            lines.append(line)
            if text in line:
                return lines
    finally:
        timer.cancel()
    raise AssertionError(f"{text!r} never came: {''.join(lines)}")


@pytest.mark.parametrize(("world_size", "elements"), [(1, 16), (2, 1), (3, 1000)])
def test_a_gang_sums_and_ends(gangs: list[Pods], port: int, world_size: int, elements: int) -> None:
    pods = Pods(port, world_size, GANG_STEPS="4", GANG_ELEMENTS=str(elements))
    gangs.append(pods)
    for rank in range(world_size):
        pods.start(rank)
    nodes = " ".join(f"node{rank}" for rank in range(world_size))
    for code, output in pods.finish().values():
        assert code == 0, output
        assert output.count("sum ok") == 4
        assert f"all-reduce ok: 4 steps, {world_size} ranks on {nodes}" in output


def test_the_master_may_come_last_and_the_rank_from_the_job(gangs: list[Pods], port: int) -> None:
    pods = Pods(port, 2, GANG_STEPS="1")
    gangs.append(pods)
    late = pods.start(1)
    read_until(late, "rank 1 of 2")
    master = subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        env={**pods.common, "JOB_COMPLETION_INDEX": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    pods.processes[0] = master
    assert [code for code, _ in pods.finish().values()] == [0, 0]


def test_sigterm_on_one_rank_saves_all_and_the_next_gang_resumes(
    gangs: list[Pods], port: int, tmp_path: Path, gang_check: ModuleType
) -> None:
    folders = [tmp_path / str(rank) for rank in range(3)]
    pods = Pods(port, 3, GANG_STEPS="400", GANG_STEP_SECONDS="0.05")
    gangs.append(pods)
    for rank in range(3):
        pods.start(rank, CHECKPOINT_DIR=str(folders[rank]))
    read_until(pods.processes[1], "step 3/")
    pods.processes[1].send_signal(signal.SIGTERM)
    ended = pods.finish()
    assert [code for code, _ in ended.values()] == [gang_check.EXIT_STOPPED] * 3, ended
    saved = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank, folder in enumerate(folders)]
    assert saved[0] == saved[1] == saved[2]
    step = saved[0]["step"]
    assert 3 <= step < 400
    assert "asked to stop (1 of 3 ranks): saved step" in ended[0][1]

    # Rank 1 starts on a node that has no checkpoint: it gets the state from the others.
    again = Pods(port, 3, GANG_STEPS=str(step + 2))
    gangs.append(again)
    for rank in range(3):
        again.start(rank, CHECKPOINT_DIR=str(tmp_path / "empty" if rank == 1 else folders[rank]))
    for code, output in again.finish().values():
        assert code == 0, output
        assert f"resuming after step {step}" in output
        assert output.count("sum ok") == 2
    assert not (folders[0] / "rank-0.json").exists(), "a finished job starts anew next time"


def test_sigterm_before_the_gang_is_complete_ends_at_once(gangs: list[Pods], port: int, gang_check: ModuleType) -> None:
    pods = Pods(port, 2)
    gangs.append(pods)
    master = pods.start(0)
    read_until(master, "rank 0 of 2")
    master.send_signal(signal.SIGTERM)
    ((code, output),) = pods.finish().values()
    assert code == gang_check.EXIT_STOPPED
    assert "before the gang was complete" in output


def test_a_peer_that_dies_is_named_and_the_state_kept(gangs: list[Pods], port: int, tmp_path: Path) -> None:
    pods = Pods(port, 2, GANG_STEPS="400", GANG_STEP_SECONDS="0.05", CHECKPOINT_DIR=str(tmp_path))
    gangs.append(pods)
    pods.start(0)
    pods.start(1)
    read_until(pods.processes[0], "step 2/")
    pods.processes[1].kill()
    code, output = pods.finish()[0]
    assert code == 1
    assert "a neighbour in the ring went away in step" in output
    assert json.loads((tmp_path / "rank-0.json").read_text())["step"] >= 2


def test_a_stranger_at_the_door_does_not_stop_the_gang(gangs: list[Pods], port: int) -> None:
    pods = Pods(port, 2, GANG_STEPS="1")
    gangs.append(pods)
    read_until(pods.start(0), "rank 0 of 2")
    for _ in range(100):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            break
        except ConnectionRefusedError:
            threading.Event().wait(0.05)
    pods.start(1)
    ended = pods.finish()
    assert [code for code, _ in ended.values()] == [0, 0], ended
    assert "not let in" in ended[0][1]


def test_who_never_comes_is_named(gangs: list[Pods], port: int) -> None:
    pods = Pods(port, 3, GANG_JOIN_SECONDS="0.5")
    gangs.append(pods)
    pods.start(0)
    pods.start(2)
    code, output = pods.finish()[0]
    assert code == 1
    assert "gave up waiting for rank 1" in output


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "x"}, "RANK is 2, but WORLD_SIZE is 2: ranks are 0 to 1"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR is not set"),
        ({"WORLD_SIZE": "two", "RANK": "0"}, "WORLD_SIZE is 'two', not a number"),
        ({"WORLD_SIZE": "0", "RANK": "0"}, "WORLD_SIZE is 0, the least is 1"),
        ({"PET_NNODES": "3:2", "RANK": "0"}, "PET_NNODES is '3:2', not a number of ranks or MIN:MAX"),
        ({"PET_NNODES": "0:2", "RANK": "0"}, "PET_NNODES is '0:2', not a number of ranks or MIN:MAX"),
        ({"PET_NNODES": "2:3", "RANK": "3"}, "RANK is 3, but PET_NNODES is 3: ranks are 0 to 2"),
    ],
)
def test_a_wrong_environment_is_a_sentence(env: dict[str, str], sentence: str, gang_check: ModuleType) -> None:
    with pytest.raises(gang_check.SettingsError) as caught:
        gang_check.Settings.from_environment(env)
    assert str(caught.value) == sentence


def settings_for(gang_check: ModuleType, folder: Path, **fields: str) -> Any:
    env = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "x", "CHECKPOINT_DIR": str(folder), "GANG_ELEMENTS": "3"}
    return gang_check.Settings.from_environment({**env, **fields})


def test_a_checkpoint_is_used_only_if_it_is_right(
    gang_check: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for(gang_check, tmp_path)
    totals = array("q", (gang_check.sum_of_steps(5, index, 2) for index in range(3)))
    gang_check.save(settings, gang_check.State(5, totals, [(0, 2)]))
    assert gang_check.load(settings) == gang_check.State(5, totals, [(0, 2)])
    assert gang_check.load(settings_for(gang_check, tmp_path, WORLD_SIZE="3")) is None
    path = tmp_path / "rank-0.json"
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "step": 6}))
    assert gang_check.load(settings) is None
    path.write_text('{"step"')
    assert gang_check.load(settings) is None
    told = capsys.readouterr().out
    for sentence in ("of another gang", "wrong sums", "cannot be used"):
        assert sentence in told


def test_the_sums_by_formula_are_the_sums(gang_check: ModuleType) -> None:
    for index in range(9):
        by_hand = sum(gang_check.contribution(rank, step, index) for rank in range(3) for step in range(5))
        assert gang_check.sum_of_steps(5, index, 3) == by_hand


@pytest.mark.parametrize(("name", "pods", "gpus"), [("gang", 2, 8), ("gang-second", 2, 8), ("gang-huge", 8, 16)])
def test_the_example_manifests_agree_with_themselves(name: str, pods: int, gpus: int) -> None:
    documents = list(yaml.safe_load_all((REPOSITORY / "docs" / "examples" / f"{name}.yml").read_text()))
    service, job = (next(one for one in documents if one["kind"] == kind) for kind in ("Service", "Job"))
    template = job["spec"]["template"]["spec"]
    (container,) = template["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert job["metadata"]["name"] == service["metadata"]["name"] == template["subdomain"] == name
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(env["WORLD_SIZE"]) == pods
    assert env["MASTER_ADDR"] == f"{name}-0.{name}"
    assert int(env["MASTER_PORT"]) == service["spec"]["ports"][0]["port"]
    resources = container["resources"]
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"] == gpus
    assert container["image"].endswith(f"/myriad/gang-check:{project_version(REPOSITORY)}")
    assert container["name"] == job["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]["containerName"]
