"""`myriad job new` on the command line: what it takes from an inventory, and what it says where something lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from myriad.cli import build_app
from myriad.errors import InputError

ROOT = Path(__file__).resolve().parents[3]
LAB = ["--inventory", str(ROOT / "inventories" / "lab")]
IMAGE = f"registry.myriad.internal/vision/train@sha256:{'5e' * 32}"


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)


def new(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, and standard error or the error's text."""
    done = CliRunner().invoke(build_app("job"), ["job", "new", *arguments])
    if isinstance(done.exception, InputError):
        return done.exception.exit_code, done.stdout, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def test_pool_namespace_and_level_come_from_the_inventory() -> None:
    code, text, _ = new("batch", "--name", "bert", "--team", "vision", "--nodes", "2", "--image", IMAGE, *LAB)
    assert code == 0
    body: dict[str, Any] = list(yaml.safe_load_all(text))[-1]
    assert body["metadata"]["namespace"] == "vision"
    assert body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "h100"
    assert "myriad.dev/rack" in json.dumps(body["spec"]["template"]["metadata"])


def test_without_name_image_and_hours_it_is_a_template_and_says_what_to_put_in() -> None:
    code, text, said = new("pytorch", "--nodes", "8", "--gpus", "8", "--team", "vision", "--pool", "h100", "--offline")
    body = yaml.safe_load(text)
    assert code == 0 and body["kind"] == "PyTorchJob" and body["metadata"]["name"] == "pytorch-8x8"
    assert "names no image" in said and "no time limit" in said and "--checkpoint-claim" in said


def test_json_holds_the_objects_and_what_to_know() -> None:
    code, text, _ = new(
        "batch", "--name", "a", "--team", "vision", "--elastic", "1:3", "--image", IMAGE, "--json", *LAB
    )
    document = json.loads(text)
    assert code == 0 and [o["kind"] for o in document["objects"]] == ["Service", "Job"] and document["says"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tensorflow", "--team", "vision"), "there is no form 'tensorflow'"),
        (("batch", "--team", "visoin", *LAB), "there is no team visoin"),
        (("batch", "--team", "vision", "--pool", "a100", *LAB), "has no queue for pool a100"),
        (("batch", "--team", "vision", "--namespace", "speech", *LAB), "namespace speech is not one of team vision"),
        (("batch", "--team", "vision", "--priority", "asap", *LAB), "there is no priority asap"),
        (("batch", "--team", "vision", "--gpus", "16", *LAB), "no node of pool h100 has 16 GPUs (8 at most)"),
        (("batch", "--team", "vision", "--offline"), "the pool is not said"),
        (("batch", "--offline"), "nobody is named whose job it is"),
        (("batch", *LAB), "give --team: speech, vision"),
        (("pytorch", "--team", "vision", "--elastic", "4:8", *LAB), "a PyTorchJob cannot be elastic here"),
        (("batch", "--team", "vision", "--elastic", "4-8", *LAB), "is no range"),
        (("batch", "--team", "vision", "--hours", "soon", *LAB), "is no time"),
        (("batch", "--team", "vision", "--env", "A", *LAB), "has no value"),
        (("batch", "--team", "vision", "--command", "python 'x", *LAB), "cannot be split into words"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_rendered(arguments: tuple[str, ...], said: str) -> None:
    code, text, error = new(*arguments)
    assert code == 1 and text == "" and said in error
