"""Verbs that run a playbook, on a wrong description and where the run ends early: what they say, and their code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from myriad.cli.upgrade import _told
from myriad.runs import result_of

CLONE = Path(__file__).parents[3]
HOSTS = (CLONE / "inventories" / "small" / "hosts.yml").read_text()


def myriad(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in the clone, as a shell starts it."""
    return subprocess.run(
        [sys.executable, "-c", "from myriad.cli import main; main()", *arguments],
        cwd=CLONE, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "hosts", "said"),
    [
        (["upgrade", "plan"], "all: [\n", "line 2 is not valid YAML"),
        (["drift"], HOSTS, 'myriad_pools.h100.engine is "slurm"; allowed: kueue or volcano'),
    ],
)
def test_a_wrong_description_is_wrong_input_for_every_verb(
    tmp_path: Path, verb: Sequence[str], hosts: str, said: str
) -> None:
    (tmp_path / "hosts.yml").write_text(hosts)
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text(
        "myriad_cluster: {name: site, topology_levels: [rack]}\n"
        "myriad_pools: {h100: {model: H100-SXM5-80GB, engine: slurm}}\n"
    )
    done = myriad(*verb, "-i", str(tmp_path), "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["exit_code"], document["where"]) == (1, 1, str(tmp_path))
    assert said in document["error"]
    assert document["next"].startswith(f"`myriad validate -i {tmp_path}` shows")


OLD_GROUPS = """\
all:
  vars: {ansible_connection: local}
  children:
    kube-master: {hosts: {cp1: {}}}
    kube-node: {hosts: {gpu1: {}}}
    gpu_node: {children: {pool_h100: {hosts: {gpu2: {myriad_location: r1}}}}}
"""


def test_t21_f3_old_and_misspelled_groups_are_an_error_before_any_host_is_looked_at(tmp_path: Path) -> None:
    """Ansible skips a play whose group is not there and ends well."""
    (tmp_path / "hosts.yml").write_text(OLD_GROUPS)
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text(
        "myriad_cluster: {name: site, topology_levels: [rack]}\nmyriad_pools: {h100: {model: H100-SXM5-80GB}}\n"
    )
    done = myriad("site", "-i", str(tmp_path), "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["exit_code"]) == (1, 1)
    assert "group control_plane does not exist; list the machines of the control plane in it" in document["error"]
    assert 'group gpu_node is not a group that Myriad knows; did you mean "gpu_nodes"?' in document["error"]
    looked_at = [line for line in done.stderr.splitlines() if line.startswith(("cp1 ", "gpu1 ", "gpu2 "))]
    assert looked_at == [], "the recap has a line for each host that a task ran on"
    assert any(line.startswith("localhost ") for line in done.stderr.splitlines()), "there was a run, and a recap"


def events(*rows: dict[str, Any], is_finished: bool = True) -> list[dict[str, Any]]:
    last = [{"event": "stats", "hosts": {}, "time": 9.0}] if is_finished else []
    return [{"event": "start", "time": 1.0}, *({"event": "result", "time": 2.0, **row} for row in rows), *last]


def test_a_plan_is_never_nothing() -> None:
    away = events({"host": "gpu2", "task": "look", "status": "unreachable", "message": "timed out\nport 22"})
    assert _told(result_of(away), "") == "not reached: gpu2: timed out port 22"
    failed = events({"host": "gpu1", "task": "look", "status": "failed", "message": "no record"})
    assert _told(result_of(failed), "upgrade of 1 nodes") == "upgrade of 1 nodes\ngpu1: look: no record"
    assert _told(result_of(events(is_finished=False)), "").startswith("no plan was made: ")
