"""packer's lines become events, events stages, and what does not end in time is stopped with all its children."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from myriad.errors import InputError, MyriadError
from myriad.nodeimage import packer, tools
from myriad.nodeimage.definition import Deadlines
from myriad.nodeimage.packer import Packer, PackerEvent, PackerResult, parse_line, stage_of

QUICK = Deadlines(start=2, ssh=2, provision=2, shutdown=2, finish=2)


def test_a_line_is_a_time_a_target_a_kind_and_data() -> None:
    event = parse_line("1764465120,qemu.node,ui,say,==> qemu.node: Waiting for SSH to become available...\n")
    assert event == PackerEvent(
        1764465120, "qemu.node", "ui", ("say", "==> qemu.node: Waiting for SSH to become available...")
    )
    assert event.text.startswith("==> qemu.node")


def test_commas_and_line_ends_come_back() -> None:
    event = parse_line(r"1764465120,,ui,error,a%!(PACKER_COMMA) b\nc\r")
    assert event is not None
    assert event.data == ("error", "a, b\nc\r")
    assert event.is_error


@pytest.mark.parametrize("line", ["", "\n", "panic: runtime error", "abc,def,ghi", "1764465120,x", "1764465120,,,"])
def test_what_is_no_event_is_none(line: str) -> None:
    assert parse_line(line) is None


def test_stages_follow_what_packer_says_and_never_go_back() -> None:
    def after(text: str, now: packer.Stage) -> packer.Stage:
        return stage_of(PackerEvent(0, "qemu.node", "ui", ("say", text)), now)

    assert after("Starting VM, booting disk image", "start") == "start"
    assert after("Waiting for SSH to become available...", "start") == "ssh"
    assert after("Connected to SSH!", "ssh") == "provision"
    assert after("Gracefully halting virtual machine...", "provision") == "shutdown"
    assert after("Converting hard drive...", "shutdown") == "finish"
    assert after("Connected to SSH!", "shutdown") == "shutdown"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program named packer, first on PATH; a test writes what it does."""
    path = tmp_path / "bin" / "packer"
    path.parent.mkdir()
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    return path


def becomes(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_events_arrive_while_it_runs(program: Path) -> None:
    becomes(program, 'echo "1,qemu.node,ui,say,Connected to SSH!"; sleep 0.5; echo "2,qemu.node,ui,say,done"; exit 0')
    seen: list[tuple[str, str, float]] = []
    started = time.monotonic()
    run = Packer(on_event=lambda stage, event: seen.append((stage, event.text, time.monotonic() - started)))
    result: PackerResult = run.build("x.pkr.hcl")
    assert [(stage, text) for stage, text, _ in seen] == [("provision", "Connected to SSH!"), ("provision", "done")]
    assert seen[1][2] - seen[0][2] > 0.4
    assert (result.code, result.stage, result.late) == (0, "provision", False)


def test_arguments_are_those_of_packer_py_and_the_environment_is_ours(program: Path, tmp_path: Path) -> None:
    becomes(program, f'echo "$@" > {tmp_path}/args; echo "$PACKER_LOG $CHECKPOINT_DISABLE" >> {tmp_path}/args')
    Packer(log=tmp_path / "log").build("t.pkr.hcl", only="qemu.node", force=True)
    assert (tmp_path / "args").read_text() == "build -machine-readable -only=qemu.node -force t.pkr.hcl\n1 1\n"


def test_a_stage_that_does_not_end_stops_packer_and_its_children(program: Path, tmp_path: Path) -> None:
    waiting = 'echo "1,qemu.node,ui,say,Waiting for SSH to become available..."'
    becomes(program, f"{waiting}\nsleep 300 & echo $! > {tmp_path}/child\nwait")
    started = time.monotonic()
    with pytest.raises(MyriadError, match=r"qemu.node: hangs in stage ssh \(2 s\): no ssh answered") as caught:
        packer.build(
            tmp_path / "t.pkr.hcl",
            target="qemu.node",
            deadlines=QUICK,
            on_event=lambda stage, event: None,
            log=tmp_path / "packer.log",
        )
    assert caught.value.hint
    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    assert not child.exists() or child.read_text().split()[2] == "Z", "the background child ignores SIGINT"
    assert time.monotonic() - started < 60


def test_an_error_without_a_count_is_an_error(program: Path, tmp_path: Path) -> None:
    becomes(program, "echo '1,,ui,error,Error: Unknown source type qemo'; exit 1")
    with pytest.raises(MyriadError, match=r"failed in stage start \(\d s\): packer failed: Error: Unknown source"):
        packer.build(
            tmp_path / "t.pkr.hcl",
            target="qemu.node",
            deadlines=QUICK,
            on_event=lambda stage, event: None,
            log=tmp_path / "l",
        )


def test_the_machine_s_console_is_evidence(program: Path, tmp_path: Path) -> None:
    becomes(program, 'echo "1,qemu.node,ui,say,Waiting for SSH to become available..."; sleep 300')
    console = tmp_path / "console.log"
    console.write_bytes(b"\x1b[0;32m  OK\x1b[0m\r\nKernel panic - not syncing: VFS: Unable to mount root fs\r\n")
    with pytest.raises(MyriadError, match="does not find the root file system") as caught:
        packer.build(
            tmp_path / "t.pkr.hcl",
            target="qemu.node",
            deadlines=QUICK,
            on_event=lambda stage, event: None,
            log=tmp_path / "l",
            console=console,
        )
    assert caught.value.where == str(console)


def test_a_machine_without_packer_gets_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_SYSTEM_PATH", ())
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match=r"mke2fs, packer are not on this machine") as caught:
        tools.need(["mke2fs", "packer"])
    assert caught.value.hint == "apt-get install --no-install-recommends e2fsprogs packer"


def test_artifacts_are_collected_by_target() -> None:
    result = PackerResult()
    packer._take(result, PackerEvent(1, "qemu.node", "artifact", ("0", "file", "0", "/out/node.qcow2")))
    assert result.artifacts == {"qemu.node": ["/out/node.qcow2"]}
