"""The answer of a program on a host is its last line, and nothing else is taken for one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.myriad.gpu.plugins.modules.host_program import answer_of


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('{"changed": true}', {"changed": True}),
        ('said before\n{"a": 1}\n', {"a": 1}),
        ("", {}),
        ("no document", {}),
        ('{"a": 1}\nsaid after', {}),
        ("[1]", {}),
    ],
)
def test_the_last_line_is_the_answer(text: str, answer: dict[str, Any]) -> None:
    assert answer_of(text) == answer


def run(path: Path, *, check: bool = False, **arguments: Any) -> dict[str, Any]:
    """The module as Ansible runs it, with the program at `path`."""
    given = {"ANSIBLE_MODULE_ARGS": {"name": str(path), "_ansible_check_mode": check, **arguments}}
    done = subprocess.run(
        [sys.executable, "-m", "ansible_collections.myriad.gpu.plugins.modules.host_program"],
        input=json.dumps(given), capture_output=True, text=True, check=False,
    )  # fmt: skip
    return dict(json.loads(done.stdout or done.stderr))


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_text('#!/bin/sh\ntouch "$0.ran"\necho "{\\"changed\\": true, \\"asked\\": \\"$1\\"}"\nexit "${2:-0}"\n')
    path.chmod(0o755)
    return path


def test_a_program_says_whether_it_changed_something(program: Path) -> None:
    found = run(program, arguments=["take"])
    assert (found["changed"], found["answer"], found["rc"]) == (True, {"changed": True, "asked": "take"}, 0)


def test_another_exit_code_is_a_failure_unless_it_is_accepted(program: Path) -> None:
    assert run(program, arguments=["take", "3"])["failed"]
    assert "failed" not in run(program, arguments=["take", "3"], accept=[0, 3])


def test_in_check_mode_nothing_is_run(program: Path) -> None:
    assert run(program, check=True, arguments=["take"])["changed"] is False
    assert not program.with_name("program.ran").exists()


def test_a_program_that_is_missing_is_named_or_answers_nothing(tmp_path: Path) -> None:
    assert "run the site on it first" in run(tmp_path / "none")["msg"]
    assert run(tmp_path / "none", missing_ok=True)["answer"] == {}
