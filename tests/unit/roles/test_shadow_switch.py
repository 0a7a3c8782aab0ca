"""The role's switch for shadow becomes the extension's setting, and nothing else of what is applied differs by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from myriad.scheduler.settings import Settings

from .rendering import rendered


def objects(work: Path, *, shadow: bool) -> list[dict[str, Any]]:
    work.mkdir()
    said = rendered(
        work,
        role="scheduler_extension",
        inventory="small",
        templates={"objects": "objects.yaml.j2"},
        given={
            "scheduler_extension_image": f"registry.example.com/extension@sha256:{'a' * 64}",
            "scheduler_extension_shadow_enabled": shadow,
        },
    )
    return [body for body in yaml.safe_load_all(said["objects"]) if body]


def environment(bodies: list[dict[str, Any]]) -> dict[str, str]:
    (deployment,) = [body for body in bodies if body["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


def test_the_switch_is_the_settings(tmp_path: Path) -> None:
    on, off = objects(tmp_path / "on", shadow=True), objects(tmp_path / "off", shadow=False)
    assert Settings.from_env(environment(on)).shadow is True
    assert Settings.from_env(environment(off)).shadow is False
    for bodies in (on, off):
        for body in bodies:
            if body["kind"] == "Deployment":
                (container,) = body["spec"]["template"]["spec"]["containers"]
                container["env"] = [e for e in container["env"] if e["name"] != "MYRIAD_SCHEDULER_SHADOW"]
    # Rights stay: what was set before has to be taken back, and switching on is a restart.
    assert on == off
