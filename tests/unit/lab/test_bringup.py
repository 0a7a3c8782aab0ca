"""What is shown, read and judged around the phases of make lab."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from docker.errors import DockerException
from rich.console import Console

from myriad.agent.gate import Check
from myriad.agent.report import GATE_ANNOTATION, Record
from myriad.errors import MyriadError
from myriad.fleet.labels import GATE_TAINT
from myriad.lab import down, engine, machine, up
from myriad.lab.display import Display, duration, row
from myriad.lab.events import Progress, Tail
from myriad.lab.jobs import EXAMPLES, places, read_example, reason, size
from myriad.lab.preflight import Verdict
from myriad.lab.shellenv import env_text, write_env
from myriad.lab.site import command
from myriad.lab.state import LabPaths, clone_root
from myriad.lab.testing import Plan, run_tests, split, was_up
from myriad.lab.topology import LabNode
from myriad.lab.up import guarded, next_steps, page_address
from myriad.lab.verdict import node_verdicts, table
from myriad.stack.bundle import Bundle, Manifest

CLONE = Path(__file__).resolve().parents[3]
GPU1 = LabNode("gpu1", "10.77.0.11", 8, "H100-SXM5-80GB", "hall1/b1/r1")


def display() -> tuple[Display, io.StringIO]:
    out = io.StringIO()
    return Display(Console(file=out, force_terminal=False, width=300, soft_wrap=True)), out


def test_a_phase_is_one_line_with_its_time() -> None:
    shown, out = display()
    with shown.phase("engine") as phase:
        phase.result = "Docker 26.1.4"
    assert out.getvalue().startswith("engine           Docker 26.1.4 ")
    assert out.getvalue().rstrip().endswith(" s")


def test_phases_as_json_say_which_one_was_cut_short() -> None:
    shown, _ = display()
    with shown.phase("engine") as phase:
        phase.result = "Docker 26.1.4"
    with pytest.raises(ZeroDivisionError), shown.phase("nodes"):
        shown.say("gpu1 was stopped: it is started")
        _ = 1 / 0
    first, second = shown.as_json()
    assert (first["phase"], first["ended"], first["result"]) == ("engine", True, "Docker 26.1.4")
    assert (second["phase"], second["ended"], second["notes"]) == ("nodes", False, ["gpu1 was stopped: it is started"])


def test_what_is_said_in_a_phase_comes_before_its_line() -> None:
    shown, out = display()
    with shown.phase("engine") as phase:
        shown.say("installing docker.io")
        phase.result = "Docker 26.1.4"
    lines = out.getvalue().splitlines()
    assert lines[0] == "engine           installing docker.io"
    assert lines[1].startswith(" " * 17 + "Docker 26.1.4")


def test_a_phase_that_fails_has_no_line_and_is_the_one_named_by_ctrl_c() -> None:
    shown, out = display()

    def action() -> int:
        with shown.phase("nodes"):
            raise KeyboardInterrupt
        return 0

    assert guarded(shown, action) == 130
    assert out.getvalue() == "\nstopped in phase nodes; nothing is broken, the next `make lab` goes on from here\n"


def test_an_engines_refusal_is_a_sentence_with_its_phase() -> None:
    shown, _ = display()

    def action() -> int:
        with shown.phase("nodes"):
            raise DockerException("no space left on device")
        return 0

    with pytest.raises(MyriadError, match="phase nodes: the Docker engine refused: no space left on device"):
        guarded(shown, action)


def test_the_tests_of_a_lab_end_with_pytests_closing_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_small.py").write_text("def test_good():\n    pass\n\ndef test_bad():\n    assert False\n")
    [(code, closing)] = run_tests(tmp_path, ["-p", "no:cacheprovider", "test_small.py"])
    assert code == 1
    assert "1 failed, 1 passed in " in closing
    assert closing in capfd.readouterr().out
    assert not was_up(tmp_path)


def test_tests_that_run_beside_others_are_shown_after_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, passes in (("first", True), ("second", False)):
        (tmp_path / f"test_{name}.py").write_text(f"def test_{name}():\n    assert {passes}\n")
    quiet = ["-p", "no:cacheprovider"]
    results = run_tests(tmp_path, [*quiet, "test_first.py"], [*quiet, "test_second.py"])
    assert [code for code, _ in results] == [0, 1]
    assert ["passed" in closing for _, closing in results] == [True, False]
    said = capfd.readouterr().out
    assert said.index("1 passed") < said.index("test_second.py:2: AssertionError") < said.index("1 failed")


def test_a_terminal_gets_a_moving_line_that_leaves_nothing_behind() -> None:
    out = io.StringIO()
    shown = Display(Console(file=out, force_terminal=True, width=120))
    with shown.phase("bundle") as phase:
        shown.detail("kube-apiserver")
        phase.result = "25 files"
    assert "25 files" in out.getvalue().splitlines()[-1]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (0.4, "0.4 s"), (3.6, "4 s"), (99, "99 s"), (700, "11 m 40 s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_rows_align() -> None:
    assert row("next", "type this") == "next             type this"
    assert row("site", "x", 3).endswith("3 s")


# Events


def test_events_are_read_while_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = Tail(path)
    assert list(tail.read()) == []
    path.write_text('{"event": "play", "name": "host"}\n{"event": "ta')
    assert [event["event"] for event in tail.read()] == ["play"]
    with path.open("a") as file:
        file.write('sk", "name": "Sysctls", "role": "node_base"}\n')
    assert [event["event"] for event in tail.read()] == ["task"]
    assert list(tail.read()) == []


def test_progress_knows_where_a_run_is_and_what_became_of_hosts() -> None:
    progress = Progress()
    for event in (
        {"event": "play", "name": "host"},
        {"event": "task", "name": "Sysctls", "role": "node_base"},
        {"event": "result", "host": "gpu1", "task": "Sysctls", "status": "changed", "changed": True},
        {"event": "result", "host": "gpu2", "task": "Sysctls", "status": "skipped"},
        {"event": "result", "host": "gpu3", "task": "Sysctls", "status": "unreachable", "message": "timed out"},
        {"event": "result", "host": "cp1", "task": "Sysctls", "status": "failed", "message": "no", "ignored": True},
    ):
        progress.add(event)
    assert progress.where == "node_base: Sysctls"
    assert progress.changed == {"gpu1": 1}
    assert progress.unreachable == {"gpu3": "Sysctls: timed out"}
    assert progress.failed == {}
    assert progress.tasks == {"gpu1": 1, "gpu3": 1, "cp1": 1}
    progress.add({"event": "stats", "tasks": {"gpu1": 42}, "plays": [{"name": "host", "seconds": 3.2}]})
    assert (progress.tasks, progress.plays) == ({"gpu1": 42}, {"host": 3.2})


def test_the_command_is_what_a_person_would_type() -> None:
    assert command(["--limit", "gpu3"]) == [
        "ansible-playbook", "playbooks/site.yml", "-i", "inventories/lab", "--limit", "gpu3",
    ]  # fmt: skip


# Verdict


ECC = Record(checks=(Check("ecc", 0, 1, False, "GPU 5: 2 uncorrected memory errors", "kubectl drain gpu1"),))
HELD = Record(open=True, held="the brake is on: 1 of 3 nodes")


def node_object(
    name: str, *, gpus: int = 8, ready: bool = True, taint: bool = False, gate: Record | None = None, **spec: Any
) -> dict[str, Any]:
    condition = {"type": "Ready", "status": str(ready), "message": "container runtime is down"}
    images = [{"names": ["registry.example/myriad/gang-check:0.1.0", "registry.example/myriad/gang-check@sha256:0"]}]
    if taint:
        spec["taints"] = [{"key": GATE_TAINT, "effect": "NoSchedule"}]
    return {
        "metadata": {"name": name, "annotations": {GATE_ANNOTATION: gate.text()} if gate else {}},
        "spec": spec,
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}, "conditions": [condition], "images": images},
    }


def test_a_node_that_takes_work_is_a_plain_line() -> None:
    rows = node_verdicts([LabNode("cp1", "10.77.0.10"), GPU1], [node_object("gpu1")], ["gang-check"])
    assert table(rows) == [
        "node  rack         GPUs expected/allocatable  gate  warm images",
        "gpu1  hall1/b1/r1  8 / 8                      open  gang-check",
    ]
    assert rows[0].as_json()["takes_work"] is True


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"gpus": 7}, "8 GPUs expected, 7 allocatable"),
        ({"ready": False}, "the kubelet is not ready: container runtime is down"),
        ({"taint": True}, "its gate is closed: the node agent has not judged it yet"),
        ({"taint": True, "gate": ECC}, "GPU 5: 2 uncorrected memory errors"),
        (
            {"taint": True, "gate": ECC, "gpus": 7},
            "GPU 5: 2 uncorrected memory errors (8 GPUs expected, 7 allocatable)",
        ),
        ({"gate": HELD}, "the brake is on: 1 of 3 nodes"),
        ({"unschedulable": True}, "it is cordoned"),
    ],
)
def test_a_node_that_takes_none_says_why_and_what_next(changes: dict[str, Any], cause: str) -> None:
    rows = node_verdicts([GPU1], [node_object("gpu1", **changes)], [])
    assert rows[0].cause == cause
    assert not rows[0].takes_work
    assert f"{cause}; next: " in table(rows)[2]


def test_a_node_that_is_not_there() -> None:
    rows = node_verdicts([GPU1], [], [])
    assert rows[0].cause == "it has not joined the cluster"
    assert "--limit gpu1" in rows[0].next


# Jobs


def test_the_three_examples() -> None:
    first, second, huge = (read_example(CLONE / path) for path in EXAMPLES)
    assert [size(example.job) for example in (first, second, huge)] == ["2 x 8 GPUs", "2 x 8 GPUs", "8 x 16 GPUs"]
    assert len({example.name for example in (first, second, huge)}) == 3
    assert {example.namespace for example in (first, second, huge)} == {"vision"}
    assert all(item["kind"] == "Service" for example in (first, second, huge) for item in example.others)


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        (["gpu2", "gpu1"], "gpu1 gpu2 (same rack)"),
        (["gpu1", "gpu3"], "gpu1 gpu3 (same block)"),
        (["gpu1", "far"], "far gpu1 (several rooms)"),
        (["gpu1", "gpu1"], "gpu1"),
        ([], ""),
    ],
)
def test_places(nodes: list[str], text: str) -> None:
    where = {"gpu1": "hall1/b1/r1", "gpu2": "hall1/b1/r1", "gpu3": "hall1/b1/r2", "far": "hall2/b1/r1"}
    assert places([{"spec": {"nodeName": node}} for node in nodes] + [{"spec": {}}], where) == text


def test_the_reason_is_the_first_cause_of_the_answer() -> None:
    answer = {"first_cause": "waits for quota: vision has 16, 16 in use; 1st in the queue.", "lines": []}
    assert reason(answer) == "vision has 16, 16 in use; 1st in the queue"
    assert reason({}) == ""


# The shell


@pytest.mark.parametrize("shell", ["sh", "dash", "bash", "zsh"])
def test_the_env_file_works_in_every_shell_from_anywhere(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    clone = tmp_path / "a clone's folder"
    paths = LabPaths(clone)
    program = tmp_path / "kubectl-blob"
    program.write_text('#!/bin/sh\necho kubectl "$KUBECONFIG"\n')
    write_env(paths, {"kubectl": program})
    script = '. "$1"; . "$1"; kubectl; echo "$PATH"; echo "$MYRIAD_INVENTORY"'
    done = subprocess.run(
        [shell, "-c", script, shell, str(paths.env)], capture_output=True, text=True, cwd="/", check=True,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )  # fmt: skip
    said, path, inventory = done.stdout.splitlines()
    assert done.stderr == ""
    assert said == f"kubectl {paths.kubeconfig}"
    assert path.split(":").count(str(paths.bin)) == 1, "sourcing it twice changes nothing"
    assert inventory == str(clone / "inventories" / "lab")


def test_the_env_file_names_no_other_kubeconfig() -> None:
    text = env_text(LabPaths(CLONE))
    assert ".kube" not in text
    assert "HOME" not in text


def test_next_steps_are_commands_with_comments() -> None:
    commands = [line[17:].split("#")[0].strip() for line in next_steps()]
    assert commands[0] == ". .lab/env"
    assert commands[-1] == "make lab-down"


def test_a_clone_is_found_from_below(tmp_path: Path) -> None:
    assert clone_root(CLONE / "tests" / "unit") == CLONE
    with pytest.raises(MyriadError, match="no Myriad clone here"):
        clone_root(tmp_path)


# The machine


def test_only_settings_that_are_too_low_are_raised() -> None:
    wanted = {"a": 100, "b": 100, "c": 100}
    assert machine.settings_to_raise({"a": 99, "b": 100}, wanted) == {"a": 100}


def test_settings_are_put_back_unless_somebody_changed_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(machine, "SETTINGS", {"low": 1024, "high": 10, "locked": 5})
    monkeypatch.setattr(machine, "_sysctl_path", lambda name: tmp_path / name)

    def as_root(command: list[str], *, input_text: str | None = None, check: bool = True) -> str:
        if command[-1].endswith("locked"):
            raise machine.MyriadError("read-only")
        if command[0] == "tee":
            Path(command[1]).write_text(input_text or "")
        else:
            subprocess.run(command, check=True)
        return ""

    monkeypatch.setattr(machine, "as_root", as_root)
    for name, value in (("low", 128), ("high", 99), ("locked", 1)):
        (tmp_path / name).write_text(f"{value}\n")
    said: list[str] = []
    machine.raise_settings(said.append)
    assert (tmp_path / "low").read_text() == "1024\n"
    assert said == [
        "low raised from 128 to 1024 (make lab-down puts it back)",
        "locked is 1 and may not be raised here: enough for this lab, low for many nodes",
    ]
    machine.raise_settings(said.append)
    assert machine.read_record()["settings"] == {"low": {"before": 128, "set": 1024}}
    assert machine.restore_settings() == ["low back to 128"]
    assert (tmp_path / "low").read_text() == "128\n"
    assert not (tmp_path / "record.json").exists()

    machine.raise_settings(said.append)
    (tmp_path / "low").write_text("2048\n")
    assert machine.restore_settings() == ["low is 2048, changed by somebody else since: left alone"]
    assert (tmp_path / "low").read_text() == "2048\n"


def test_a_process_is_known_by_its_start() -> None:
    assert engine.process_start(os.getpid()) == engine.process_start(os.getpid()) != ""
    assert engine.process_start(2**22 + 1) == ""


def test_an_engine_that_nobody_started_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "RECORD", tmp_path / "record.json")
    assert engine.stop_engine("myriad-abc") == []
    record = {"engine": {"lab": "l", "method": "hand", "pid": 2**22 + 1, "started": "1", "log": "/x"}}
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert engine.stop_engine("myriad-abc") == ["the engine that make lab started has ended already"]
    assert machine.read_record() == {}


def test_read_only_trees_are_removed_and_counts_are_words(tmp_path: Path) -> None:
    folder = tmp_path / "mod" / "pkg"
    folder.mkdir(parents=True)
    (folder / "file.go").write_text("x")
    folder.chmod(0o555)
    (tmp_path / "mod").chmod(0o555)
    down.remove_tree(tmp_path / "mod")
    assert not (tmp_path / "mod").exists()
    assert [down.counted(1, "containers"), down.counted(2, "containers"), down.counted(1, "entries")] == [
        "1 container",
        "2 containers",
        "1 entry",
    ]


def test_the_page_is_where_the_lab_shows_it(tmp_path: Path) -> None:
    folder = tmp_path / "group_vars" / "all"
    folder.mkdir(parents=True)
    wanted = [LabNode(name="cp1", address="10.77.0.10")]
    (folder / "lab.yml").write_text("scheduler_extension_node_port: 30088\n")
    assert page_address(tmp_path, wanted) == "http://10.77.0.10:30088"
    (folder / "lab.yml").write_text("kueue_replicas: 1\n")
    assert page_address(tmp_path, wanted) == ""


def test_tests_are_sorted_by_what_they_need() -> None:
    assert split(["-m", "not slow", "tests/integration", "tests/api", "tests/e2e", "-x"]) == Plan(
        options=["-m", "not slow", "-x"], engine=["tests/integration"], api=["tests/api"], lab=["tests/e2e"]
    )
    upgrade = "tests/e2e/test_upgrade.py"
    assert split(["-s", upgrade]) == Plan(options=["-s"], engine=[upgrade], api=[], lab=[])
    assert split(["-k", "gang", "tests/e2e"]) == Plan(options=["-k", "gang"], engine=[], api=[], lab=["tests/e2e"])


def test_a_subnet_that_was_taken_while_the_bundle_was_built_is_chosen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([Verdict((), "10.77.0.0/24", ""), Verdict((), "10.80.0.0/24", "")])
    monkeypatch.setattr(up, "judge", lambda _facts: next(found))
    monkeypatch.setattr(up, "gather", lambda _env, network: network)
    empty = Manifest(schema=1, myriad="0", arch="amd64", lock_sha256="", versions={}, files=[], images=[])
    monkeypatch.setattr(up.Bringup, "ready", lambda *_: (None, "image", Bundle(tmp_path, empty)))
    made: list[str] = []
    monkeypatch.setattr(up.nodes, "ensure_nodes", lambda _client, state, *_, **__: made.append(state.gateway) or [])
    shown, out = display()
    state, wanted = up.Bringup(CLONE, shown, paths=LabPaths(tmp_path)).nodes_up(after_make=True)
    assert made == ["10.80.0.1"]
    assert state.subnet == "10.80.0.0/24" and wanted[0].address == "10.80.0.10"
    assert "10.77.0.0/24 was taken meanwhile; the nodes stand in 10.80.0.0/24" in out.getvalue()


def test_ctrl_c_leaves_a_program_the_time_to_end_by_itself(tmp_path: Path) -> None:
    slow_to_end = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n    time.sleep(1)\n    pathlib.Path('whole').touch()\n    sys.exit(130)\n"
        "signal.signal(signal.SIGINT, end)\npathlib.Path('ready').touch()\ntime.sleep(60)\n"
    )
    caller = (
        "import signal, sys\nfrom pathlib import Path\nfrom myriad.lab.testing import _call\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"_call([sys.executable, '-c', {slow_to_end!r}], Path('.'))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", caller], cwd=tmp_path, start_new_session=True, stderr=subprocess.DEVNULL
    )
    while not (tmp_path / "ready").exists():
        time.sleep(0.05)
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=30) != 0
    assert (tmp_path / "whole").exists()
