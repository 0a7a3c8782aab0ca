"""The ranks of a rendered gang find each other by their environment: the lab's own gang job, run as processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from myriad.jobs.render import render
from myriad.jobs.request import Request

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "images" / "gang-check" / "gang_check.py"


@pytest.mark.parametrize("minimum", [None, 1])
def test_a_gang_joins_and_ends_with_the_environment_that_is_rendered(tmp_path: Path, minimum: int | None) -> None:
    gang = Request(
        minimum=minimum,
        form="batch",
        name="gang",
        namespace="vision",
        queue="h100",
        nodes=2,
        gpus=8,
        hours=Fraction(1),
        image=f"registry.myriad.internal/myriad/gang-check@sha256:{'5e' * 32}",
        env=(
            ("GANG_STEPS", "2"),
            ("GANG_STEP_SECONDS", "0"),
            ("GANG_JOIN_SECONDS", "20"),
            ("GANG_LAST_CALL_SECONDS", "15"),
        ),
    )
    job = render(gang).objects[-1]
    rendered = {e["name"]: e.get("value", "") for e in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert rendered["MASTER_ADDR"] == "gang-0.gang"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = []
    for rank in range(job["spec"]["completions"]):
        folder = tmp_path / str(rank)
        folder.mkdir()
        # What the cluster gives a pod: its index, the address behind rank 0's name, and the volume at /checkpoint.
        given = {"RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "CHECKPOINT_DIR": str(folder)}
        environment = {**os.environ, **rendered, **given, "NODE_NAME": f"n{rank}"}
        ranks.append(
            subprocess.Popen(
                [sys.executable, str(PROGRAM)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        )
    for rank in ranks:
        output, _ = rank.communicate(timeout=30)
        assert rank.returncode == 0 and b"2 ranks on n0 n1" in output, output.decode()
