"""The registry's authority on the controller: made once, and what is wrong with a given one is a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml


def play(tmp_path: Path, **options: Any) -> str:
    given = {
        "folder": str(tmp_path / "secrets"),
        "host": "registry1",
        "names": ["10.0.0.10"],
        "users": ["vision"],
        **options,
    }
    tasks = [{"name": "trust", "myriad.gpu.registry_trust": given}]
    return yaml.safe_dump([{"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}])


def result(tmp_path: Path) -> dict[str, Any]:
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    (found,) = (event for event in events if event["event"] == "result")
    return dict(found)


def test_it_is_made_once(ansible: Callable[..., Any], tmp_path: Path) -> None:
    done = ansible(play(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert result(tmp_path)["changed"]
    again = ansible(play(tmp_path))
    assert again.returncode == 0 and not result(tmp_path)["changed"]


def test_an_authority_that_cannot_be_read_is_a_sentence_said_once(ansible: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    (tmp_path / "ca.key").write_text("nothing")
    given = {"ca_certificate": str(tmp_path / "ca.pem"), "ca_key": str(tmp_path / "ca.key")}
    done = ansible(play(tmp_path, **given))
    assert done.returncode == 2
    message = result(tmp_path)["message"]
    assert str(tmp_path / "ca.pem") in message and "Traceback" not in done.stdout + done.stderr
