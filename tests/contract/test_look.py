"""What a run records as its inputs and what a drift compares with them are the same things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
INPUTS = ("bundle", "inputs", "ignore_vars", "parts")


def look(playbook: str, module: str) -> dict[str, Any]:
    """The arguments of the task that compares, and its own variables that count as inputs."""
    for play in yaml.safe_load((PLAYBOOKS / playbook).read_text()):
        for task in play.get("tasks") or []:
            arguments = task.get(f"myriad.gpu.{module}") or {}
            if arguments.get("state", "check") == "check" and arguments:
                # Variables of the task and of its play are in the digest, but for those whose names begin with __.
                own = {
                    name
                    for name in {**play.get("vars", {}), **task.get("vars", {})}
                    if not name.startswith(("__", "ansible_"))
                }
                return {"vars": own, "files": play.get("vars_files"), **{name: arguments.get(name) for name in INPUTS}}
    raise AssertionError(f"{playbook} has no task {module}")


@pytest.mark.parametrize("module", ["node_state", "cluster_state"])
def test_a_drift_compares_what_a_run_records(module: str) -> None:
    assert look("drift.yml", module) == look("site.yml", module)
