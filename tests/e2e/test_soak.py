"""A short soak on the lab, for the night; `make soak MINUTES=30` is the long one, by hand."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import CLONE, Lab

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(3000)]

MINUTES = 5


def soak(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("myriad"))
    return subprocess.run(
        [program, "lab", "soak", *arguments], cwd=CLONE, capture_output=True, text=True, timeout=2900, check=False
    )


@pytest.fixture(scope="module")
def story(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One soak; $MYRIAD_SEED repeats it."""
    seed = int(os.environ.get("MYRIAD_SEED") or random.randrange(10**6))  # noqa: S311 - no secret
    out = tmp_path_factory.mktemp("soak") / "soak.jsonl"
    done = soak("--minutes", str(MINUTES), "--seed", str(seed), "--out", str(out), "--json")
    print(f"MYRIAD_SEED={seed}")
    print(done.stderr)
    return {"code": done.returncode, "said": done.stderr, "report": json.loads(done.stdout or "{}"), "out": out}


def test_what_must_hold_holds_while_things_break(story: dict[str, Any]) -> None:
    report = story["report"]
    assert story["code"] == 0, story["said"]
    assert report["ok"] and report["violations"] == [] and report["too_few"] == {}
    assert sum(kind["happened"] for kind in report["faults"].values()) >= 4
    assert all(kind["recovered"] == kind["happened"] for kind in report["faults"].values())
    assert set(report["left_out"]) == {"clock", "postgresql"}
    assert all(rule["checked"] > 0 for rule in report["rules"].values()), report["rules"]
    assert report["gangs"]["complete"] == report["gangs"]["submitted"] > 5 and report["ledger"]["rows"] > 5


def test_the_report_is_its_own_replay(story: dict[str, Any]) -> None:
    again = soak("--replay", str(story["out"]), "--dry-run", "--json")
    assert again.returncode == 0, again.stderr
    plan = json.loads(again.stdout)["plan"]
    first = soak("--seed", str(plan["seed"]), "--minutes", str(MINUTES), "--dry-run", "--json")
    assert json.loads(first.stdout)["plan"] == plan


def test_nothing_of_it_is_left(lab: Lab, story: dict[str, Any]) -> None:
    for host in lab.hosts:
        assert "MYRIAD-SOAK" not in lab.ssh(host, "iptables -w 10 -t mangle -S; cat /proc/mounts")
    nodes = json.loads(lab.kubectl("get", "nodes", "-o", "json"))["items"]
    for node in nodes:
        assert not node["spec"].get("unschedulable"), node["metadata"]["name"]
        assert "example.com/soak" not in json.dumps(node["metadata"] | {"taints": node["spec"].get("taints")})
    assert lab.kubectl("get", "jobs", "-A", "-l", "dev.myriad.lab/soak", "-o", "name").strip() == ""
