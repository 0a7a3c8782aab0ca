"""The shipped pytorch image, made twice: by this user and by another one, elsewhere, with another umask and time zone.

Each way compresses 4.6 GB, so it is for the night. Wheels come from the user's store, the base from the user's cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from myriad.images.build import BuildContext, base_layer
from myriad.images.definition import load_definition
from myriad.images.rootfs import BASE, _inputs
from myriad.images.runtime import build_runtime
from myriad.images.wheels_layers import fetch_wheels, locked_wheels
from myriad.stack.store import Store, link_or_copy

REPOSITORY = Path(__file__).parents[3]
OTHER = 12345

BUILD = """
import sys
from pathlib import Path
from myriad.images.context import BuildContext
from myriad.images.runtime import build_runtime
home = Path(sys.argv[1])
ctx = BuildContext(store=home / "store", cache_dir=home / "images", repository=Path(sys.argv[2]))
print(build_runtime(ctx, Path(sys.argv[2]) / "images/pytorch", "1").built.manifest_digest)
"""


@pytest.mark.network
@pytest.mark.slow
def test_pytorch_is_the_same_image_for_another_user_elsewhere(tmp_path: Path) -> None:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "myriad"
    ctx = BuildContext(store=root / "store", cache_dir=root / "images", repository=REPOSITORY)
    folder = REPOSITORY / "images/pytorch"
    first = build_runtime(ctx, folder, "1").built

    home, checkout = tmp_path / "cache", tmp_path / "a checkout"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{REPOSITORY}", str(checkout)], check=True)
    wheels = locked_wheels(ctx, folder, load_definition(folder))
    fetch_wheels(ctx, wheels)
    base = base_layer(ctx)
    for value in (*(wheel.sha256 for wheel in wheels), base.digest):
        link_or_copy(Store(ctx.store).path(value), Store(home / "store").path(value))
    record = ctx._record("base", _inputs(ctx, BASE))
    copied = home / "images" / "layers" / record.name
    copied.parent.mkdir(parents=True)
    copied.write_bytes(record.read_bytes())
    copied.chmod(0o644)
    command = [sys.executable, "-c", BUILD, str(home), str(checkout)]
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TZ": "Asia/Tokyo",
        "LC_ALL": "C",
        "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{packages}",
    }
    if os.getuid() == 0 and Path("/usr/bin/python3").exists():
        # The system's Python: the environment's own may lie where only root may read.
        for path in (tmp_path, *tmp_path.parents):
            if path.stat().st_uid == 0 and path != Path("/") and path.is_relative_to("/tmp"):
                path.chmod(path.stat().st_mode | 0o055)
        for path in (home, *home.rglob("*")):
            if path.is_dir():
                os.chown(path, OTHER, OTHER)
        for path in (checkout, *checkout.rglob("*")):
            os.chown(path, OTHER, OTHER, follow_symlinks=False)
        command = [
            "setpriv",
            "--reuid",
            str(OTHER),
            "--regid",
            str(OTHER),
            "--clear-groups",
            "/usr/bin/python3",
            *command[1:],
        ]
    result = subprocess.run(
        command, env=environment, umask=0o077, cwd=checkout, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == first.manifest_digest
