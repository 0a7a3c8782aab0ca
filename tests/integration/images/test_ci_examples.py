"""The CI examples: their commands, as they stand there, on a bare checkout and with an empty push target."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from myriad.images.registry import Registry

from .conftest import Served

REPOSITORY = Path(__file__).parents[3]
EXAMPLES = REPOSITORY / "docs/examples/ci"
#: What prepares a hosted machine: this one has its tools, and a test installs nothing on it.
MACHINE = ("apt-get", "sudo")


def github() -> tuple[list[str], dict[str, str]]:
    """The commands of the workflow and its variables."""
    value = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text())
    steps = [step["run"] for step in value["jobs"]["image"]["steps"] if "run" in step]
    return steps, dict(value["env"])


def gitlab() -> tuple[list[str], dict[str, str]]:
    """The scripts of the job and its variables."""
    value = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text())
    job = value["image"]
    return [*job["before_script"], *job["script"]], dict(value["variables"])


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("example", [github, gitlab])
def test_an_example_builds_proves_and_pushes(
    example: Callable[[], tuple[list[str], dict[str, str]]], serve: Callable[..., Served], tmp_path: Path
) -> None:
    served = serve(credentials=True)
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{REPOSITORY}", str(checkout)], check=True)
    commands, variables = example()
    environment: dict[str, Any] = {
        # What the services set, the secrets of the two files, and a registry that is there.
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        **{
            key: value for key, value in os.environ.items() if key.startswith(("UV_", "PIP_", "SSL_", "MYRIAD_MIRROR_"))
        },
        **{key: value for key, value in variables.items() if key != "XDG_CACHE_HOME"},
        "REGISTRY": f"{served.url}/team",
        "MYRIAD_REGISTRY_USER": served.user,
        "MYRIAD_REGISTRY_PASSWORD": served.password,
        "CI_COMMIT_BRANCH": "main",
        "CI_DEFAULT_BRANCH": "main",
        "CI_COMMIT_SHORT_SHA": "0123abcd",
    }
    for command in commands:
        if command.startswith(MACHINE):
            continue
        result = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", command],
            cwd=checkout,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    events = [json.loads(line) for line in (checkout / "build.jsonl").read_text().splitlines()]
    built = events[-1]
    assert built["event"] == "built"
    with Registry(served.url, credentials=(served.user, served.password)) as registry:
        assert registry.manifest(f"team/{variables['IMAGE']}", built["digest"]).digest == built["digest"]


def test_both_examples_do_the_same() -> None:
    def verbs(commands: list[str]) -> list[str]:
        words = [command.split() for command in commands]
        return [line[line.index("image") + 1] for line in words if ".venv/bin/myriad" in line and "image" in line]

    assert verbs(github()[0]) == verbs(gitlab()[0]) == ["plan", "build", "verify", "push"]
