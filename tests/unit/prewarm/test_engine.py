"""An engine without pins: who keeps an image is the same container for the module and for the program on the node."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.myriad.gpu.plugins.module_utils import warm_keep
from ansible_collections.myriad.gpu.plugins.module_utils.warm_engine import Engine
from ansible_collections.myriad.gpu.plugins.module_utils.warm_image import Warming

DIGEST = "sha256:" + "a" * 64
REFERENCE = f"registry.myriad.internal/myriad/pytorch@{DIGEST}"
# Containers are files named after them, with their label inside; the one image is always there.
PROGRAM = """#!/bin/bash
cd "$(dirname "$0")/containers"
case "$1 $2" in
  "images --quiet") echo one;;
  "image inspect") echo '[{"RepoDigests": ["%s"], "RepoTags": []}]';;
  "container inspect") [ -e "$3" ];;
  "ps --all") for name in *; do
      [ -e "$name" ] || continue
      case "$4" in
        label=*) [ "label=$(cat "$name")" = "$4" ] && echo "$name";;
        name=*) [[ "$name" == *"${4#name=}"* ]] && echo "$name";;
      esac
    done; true;;
  "create --name") [ "$4" = --label ] && echo "$5" > "$3" || : > "$3";;
  "rm --force") rm -f "$3";;
  *) echo "unknown: $*" >&2; exit 1;;
esac
"""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    (tmp_path / "containers").mkdir()
    program = tmp_path / "docker"
    program.write_text(PROGRAM % REFERENCE)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(warm_keep, "PATH", str(tmp_path))
    return Engine("docker")


def test_a_keeper_that_the_node_made_again_is_the_modules_own(engine: Engine) -> None:
    """Else every run of prewarm would find the image without a pin, make none, and say that it changed something."""
    engine.pin(REFERENCE)
    assert engine.images()[REFERENCE] == (DIGEST, True)
    engine.unpin(REFERENCE)
    assert engine.images()[REFERENCE] == (DIGEST, False)
    state: dict[str, Any] = {"runtime": "docker", "images": {DIGEST: {"ref": REFERENCE, "warm": True}}}
    assert warm_keep.look(state, True) == [f"{REFERENCE} had no container that keeps it; it has one again"]
    assert engine.images()[REFERENCE] == (DIGEST, True)
    assert warm_keep.look(state, True) == []


class Pins:
    """A runtime as far as letting go of an image needs one."""

    name, address, snapshotter, silence = "containerd", "", "", ""

    def __init__(self) -> None:
        self.unpinned: list[str] = []

    def answers(self, _timeout_s: float) -> bool:
        return True

    def images(self) -> dict[str, dict[str, str]]:
        return {"registry/old": {}}

    def unpin(self, reference: str) -> None:
        self.unpinned.append(reference)


@pytest.mark.parametrize(("release", "surplus"), [(True, ["registry/old"]), (False, [])])
def test_a_look_tells_what_nobody_wants_any_more_and_a_run_lets_go_of_it(
    tmp_path: Path, release: bool, surplus: list[str]
) -> None:
    digest = "sha256:" + "0" * 64
    images = {digest: {"ref": "registry/old", "tags": []}}
    (tmp_path / "warm.json").write_text(json.dumps({"version": warm_keep.VERSION, "images": images}))
    params = {"images": [], "release": release, "folder": str(tmp_path), "state": "check", "start_timeout_s": 1}
    runtime = Pins()
    look = Warming(runtime, params, True, None)
    assert look.run() == [] and look.released == surplus and not runtime.unpinned
    run = Warming(runtime, {**params, "state": "present"}, False, None)
    run.run()
    assert run.released == runtime.unpinned == surplus
    again = Warming(runtime, params, True, None)
    again.run()
    assert again.released == [], "once is enough"
