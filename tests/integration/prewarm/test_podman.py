"""Images on a host with podman: pulled by digest, kept by a container that never starts, proven."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.myriad.gpu.plugins.module_utils import warm_keep
from ansible_collections.myriad.gpu.plugins.module_utils.warm_engine import Engine
from ansible_collections.myriad.gpu.plugins.module_utils.warm_image import Warming

from .conftest import SmallRegistry

pytestmark = pytest.mark.slow

MB = 1_000_000


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """A podman with a store of its own."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed on this machine")
    # podman takes no longer path than 50 characters here.
    # crun refuses cgroups of both versions at a time, which some machines have.
    runc = shutil.which("runc", path="/usr/sbin:/usr/bin:/usr/local/bin")
    runtime = ("--runtime", runc) if runc else ()
    run = Path(tempfile.mkdtemp(prefix="podman-"))
    options = (
        "--root", str(tmp_path / "root"), "--runroot", str(run), "--storage-driver", "overlay",
        "--cgroup-manager", "cgroupfs", "--events-backend", "none", *runtime,
    )  # fmt: skip
    found = Engine("podman", options)
    yield found
    found.run("rm", "--all", "--force")
    found.run("rmi", "--all", "--force")
    shutil.rmtree(run, ignore_errors=True)


def warmed(engine: Engine, tmp_path: Path, url: str, images: list[dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
    params = {
        "images": images, "registry": url, "folder": str(tmp_path / "images"), "scratch": str(tmp_path),
        "start_timeout_s": 5, "stall_s": 30, "least_rate": 10_000, "parallel": 0, "kubelet_version": "",
        "full": False, "release": False, "fetch": True, "state": "present", **more,
    }  # fmt: skip
    return list(Warming(engine, params, False, None).run())


def test_an_image_is_kept_through_a_prune_and_stays_warm(
    engine: Engine, registry: SmallRegistry, tmp_path: Path
) -> None:
    image = registry.image("team/model", [MB, 2 * MB])
    (first,) = warmed(engine, tmp_path, registry.url, [image])
    assert first["outcome"] == "pulled", first["sentence"]
    assert first["pinned"] is True
    engine.run("image", "prune", "--all", "--force")
    sent = dict(registry.sent)
    (again,) = warmed(engine, tmp_path, registry.url, [image])
    assert (again["outcome"], registry.sent) == ("warm", sent)
    keeper = warm_keep.KEEPER + warm_keep.short(image["digest"])
    engine.run("rm", "--force", keeper)
    (back,) = warmed(engine, tmp_path, registry.url, [image])
    assert back["outcome"] == "pinned"
    assert keeper in engine.run("ps", "--all", "--format", "{{.Names}}").split()
    other = registry.image("team/other", [MB])
    warmed(engine, tmp_path, registry.url, [other], release=True)
    assert keeper not in engine.run("ps", "--all", "--format", "{{.Names}}").split()


def test_what_a_registry_does_not_have_is_told_as_that(engine: Engine, registry: SmallRegistry, tmp_path: Path) -> None:
    image = {**registry.image("team/model", [MB]), "digest": f"sha256:{'0' * 64}"}
    (missing,) = warmed(engine, tmp_path, registry.url, [image])
    assert (missing["outcome"], missing["cause"]) == ("failed", "missing"), missing["sentence"]
