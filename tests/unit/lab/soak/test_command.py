"""`myriad lab soak` as far as it touches nothing: the plan of a seed, of a file, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from myriad.cli import build_app
from myriad.errors import InputError
from myriad.lab.soak.command import planned

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone without a lab: whichever is up in this one does not matter."""
    shutil.copytree(ROOT / "inventories" / "lab", tmp_path / "clone" / "inventories" / "lab")
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "clone")
    return tmp_path / "clone"


def soak(clone: Path, *arguments: str) -> str:
    done = CliRunner().invoke(build_app("lab"), ["lab", "soak", "--clone", str(clone), *arguments])
    assert done.exit_code == 0, f"{done.output}\n{done.exception}"
    return done.stdout


def test_a_dry_run_prints_the_plan_of_the_lab_s_own_nodes_and_what_is_left_out(clone: Path) -> None:
    said = soak(clone, "--minutes", "30", "--seed", "7", "--dry-run")
    assert said == soak(clone, "--minutes", "30", "--seed", "7", "--dry-run")
    assert said.startswith("seed 7, 30 minutes, ") and "left out: clock (" in said and "left out: postgresql (" in said
    plan = json.loads(soak(clone, "--minutes", "30", "--seed", "7", "--dry-run", "--json"))["plan"]
    times = [fault["kind"] for fault in plan["faults"]]
    assert {kind: times.count(kind) >= 3 for kind in times} == dict.fromkeys(
        ("node", "containerd", "network", "disk", "api", "leader", "registry"), True
    )


def test_a_seed_is_drawn_where_none_is_named(clone: Path) -> None:
    seeds = {planned(clone, minutes=2, seed=None, replay=None, only=[]).seed for _ in range(4)}
    assert len(seeds) > 1


def test_a_file_is_replayed_and_one_fault_can_be_had_alone(clone: Path, tmp_path: Path) -> None:
    plan = planned(clone, minutes=9, seed=3, replay=None, only=["node"])
    assert {fault.kind for fault in plan.faults} == {"node"}
    file = tmp_path / "soak.jsonl"
    file.write_text("\n".join([*plan.lines(), '{"injected": 1}']))
    assert planned(clone, minutes=1, seed=8, replay=file, only=[]) == plan


def test_a_plan_for_another_lab_or_none_is_refused(clone: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        planned(clone, minutes=1, seed=8, replay=tmp_path / "none", only=[])
    file = tmp_path / "soak.jsonl"
    file.write_text("\n".join(planned(clone, minutes=9, seed=3, replay=None, only=[]).lines()).replace("gpu3", "gpu9"))
    with pytest.raises(InputError, match="a lab with gpu9"):
        planned(clone, minutes=1, seed=8, replay=file, only=[])
