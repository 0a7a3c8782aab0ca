"""An engine that make lab starts by hand: recorded, in a session of its own, stopped by the lab-down that may."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from myriad.lab import engine, machine
from myriad.lab.preflight import probe_engine

pytestmark = pytest.mark.engine


@pytest.fixture
def second_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`dockerd` means one with a folder and a socket of its own, beside the machine's.

    It lives in a network namespace of its own: a second dockerd takes away the first one's docker0.
    """
    real = shutil.which("dockerd") or "/usr/sbin/dockerd"
    if os.geteuid() or not Path(real).exists():
        pytest.skip("starting a second dockerd needs root and the package docker.io")
    folder = Path(tempfile.mkdtemp(prefix="eng", dir="/tmp"))  # a short path: sockets have 107 bytes at most
    wrapper = folder / "dockerd"
    wrapper.write_text(
        f"#!/bin/sh\nexec unshare --net -- {real} --data-root {folder}/data --exec-root {folder}/exec"
        f" --pidfile {folder}/pid -H unix://{folder}/sock --bridge none --iptables=false --ip6tables=false\n"
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/sock")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(engine, "PID_FILE", folder / "pid")
    monkeypatch.setattr(engine, "_systemd", lambda: False)
    monkeypatch.setattr(machine, "RECORD", folder / "record.json")
    yield folder
    for sentence in engine.stop_engine("myriad-test"):
        print(sentence)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_stopped_engine_is_started_recorded_and_stopped_again(second_engine: Path) -> None:
    assert probe_engine(dict(os.environ)).kind == "stopped"
    said: list[str] = []
    client = engine.ensure_engine("myriad-test", second_engine / "logs" / "dockerd.log", said.append)
    try:
        assert said == ["Docker is installed but does not run; starting it (make lab-down stops it again)"]
        record = machine.read_record()["engine"]
        assert record["method"] == "hand"
        assert os.getsid(record["pid"]) != os.getsid(0), "Ctrl-C in a terminal must not reach it"
        again = engine.ensure_engine("myriad-test", second_engine / "logs" / "dockerd.log", said.append)
        again.close()
        assert len(said) == 1, "an engine that answers is left as it is"
    finally:
        client.close()
    assert engine.stop_engine("myriad-test") == ["the Docker engine that make lab started is stopped"]
    assert probe_engine(dict(os.environ)).kind == "stopped"
    assert machine.read_record() == {}
    assert engine.stop_engine("myriad-test") == []
