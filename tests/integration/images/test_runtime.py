"""Images from locked wheels, in different surroundings; on top of each other, of a registry's image, and derived.

The wheels are small ones of the package index; the Debian base comes from the user's cache.
"""

from __future__ import annotations

import json
import os
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from typer.testing import CliRunner

from myriad.cli import build_app
from myriad.errors import InputError, MyriadError
from myriad.images.build import BuildContext, base_layer
from myriad.images.context import BuildEvent
from myriad.images.diff import difference
from myriad.images.external import pull_base
from myriad.images.layer import file_from_bytes
from myriad.images.oci import (
    BuiltImage,
    ImageConfig,
    Layer,
    Layout,
    export_layout,
    open_layer,
    read_layer_paths,
    write_image,
    write_layer,
)
from myriad.images.proof_layout import open_image
from myriad.images.proof_packages import read_packages
from myriad.images.proof_tree import read_tree
from myriad.images.registry import Registry
from myriad.images.runtime import build_runtime

from .conftest import Served

REPOSITORY = Path(__file__).parents[3]
SITE = "usr/local/lib/python3.11/dist-packages"

pytestmark = [pytest.mark.network]


def user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "myriad"


@pytest.fixture
def events() -> list[BuildEvent]:
    return []


@pytest.fixture
def ctx(events: list[BuildEvent]) -> BuildContext:
    return BuildContext(
        store=user_cache() / "store",
        cache_dir=user_cache() / "images",
        repository=REPOSITORY,
        on_event=events.append,
    )


class _KeepsBase(BuildContext):
    """All but the base anew: installing Debian twice is the business of test_images.py."""

    base: ClassVar[Layer]

    def cached_layer(self, step: str, inputs: Any, build: Callable[[], Layer]) -> Layer:
        return self.base if step == "base" else super().cached_layer(step, inputs, build)


def keeping_base(ctx: BuildContext, **changes: Any) -> BuildContext:
    _KeepsBase.base = base_layer(ctx)
    return _KeepsBase(**{**vars(ctx), **changes})


def write(folder: Path, requirements: str = "", **fields: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    value: dict[str, Any] = {
        "repo": f"team/{folder.name}",
        "title": folder.name,
        "entrypoint": ["python3"],
        "budget_mb": 80,
    }
    if requirements:
        value["wheels"] = {"requirements": "requirements.in", "lock": "requirements.lock"}
        (folder / "requirements.in").write_text(requirements)
    (folder / "image.yml").write_text(yaml.safe_dump({**value, **fields}))
    return folder


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(build_app("image"), ["image", *words], catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        error = result.exception
        assert isinstance(error, MyriadError), error
        assert error.exit_code == code, str(error)
        return str(error)
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """`mini`, locked: six packages without dependencies on the platform, and a file of its own."""
    folder = write(
        tmp_path / "images" / "mini",
        "idna==3.6\nsix==1.16.0\nmarkupsafe==3.0.2\n",
        files=[{"from": "app.py", "to": "/opt/app.py"}],
        pins={"idna": "3.6", "python": "3.11"},
    )
    (folder / "app.py").write_text("print('one')\n")
    told = run("lock", "mini", "--images", str(tmp_path / "images"))
    assert "3 wheels" in told
    return tmp_path / "images"


@contextmanager
def surroundings(*, umask: int, zone: str) -> Iterator[None]:
    saved, previous = os.environ.get("TZ"), os.umask(umask)
    os.environ["TZ"] = zone
    time.tzset()
    try:
        yield
    finally:
        os.umask(previous)
        os.environ.pop("TZ")
        if saved is not None:
            os.environ["TZ"] = saved
        time.tzset()


def test_an_image_is_the_same_on_two_paths_with_other_times_and_umask(
    ctx: BuildContext, images: Path, tmp_path: Path
) -> None:
    first = build_runtime(ctx, images / "mini", "1").built
    other = tmp_path / "elsewhere"
    (images / "mini").rename(other)
    os.utime(other / "app.py", (1, 1))
    with surroundings(umask=0o077, zone="Asia/Tokyo"):
        again = build_runtime(keeping_base(ctx, cache_dir=tmp_path / "cache2"), other, "1").built
    assert again.layer_digests[:2] == first.layer_digests[:2]
    # The file's layer and the reference bear the folder's name.
    other.rename(images / "mini")
    with surroundings(umask=0o022, zone="America/Lima"):
        third = build_runtime(keeping_base(ctx, cache_dir=tmp_path / "cache3"), images / "mini", "1").built
    assert third.manifest_digest == first.manifest_digest


def test_layers_made_anew_have_the_same_digests(ctx: BuildContext, images: Path, events: list[BuildEvent]) -> None:
    build_runtime(ctx, images / "mini", "1")
    events.clear()
    build_runtime(keeping_base(ctx, fresh=True), images / "mini", "1")
    assert [event.state for event in events if event.step == "3 wheels"] == ["started", "finished"]
    assert [event for event in events if event.state == "differs"] == []


def test_one_wheel_or_one_line_changes_one_layer(ctx: BuildContext, images: Path, events: list[BuildEvent]) -> None:
    first = build_runtime(ctx, images / "mini", "1").built
    (images / "mini" / "app.py").write_text("print('two')\n")
    begun = time.monotonic()
    second = build_runtime(ctx, images / "mini", "1").built
    took = time.monotonic() - begun
    assert [one == other for one, other in zip(first.layer_digests, second.layer_digests, strict=True)] == [
        True,
        True,
        True,
        False,
    ]
    assert took < 60, "a warm build reads caches"
    (images / "mini" / "requirements.in").write_text("idna==3.6\nsix==1.17.0\nmarkupsafe==3.0.2\n")
    assert "was changed after this lock was made" in run("build", "mini", "--images", str(images), code=1)
    assert "six" in run("lock", "mini", "--images", str(images))
    third = build_runtime(ctx, images / "mini", "1").built
    assert [one == other for one, other in zip(second.layer_digests, third.layer_digests, strict=True)] == [
        True,
        False,
        True,
        True,
    ]
    found = difference(second, third)
    assert [(one.what, one.before, one.after) for one in found.packages] == [("python six", "1.16.0", "1.17.0")]
    assert [one.what for one in found.layers] == ["3 wheels"]
    assert f"{SITE}/six.py" in {one.what for one in found.files}
    assert not any("idna" in one.what for one in found.files)


def test_scripts_bytecode_and_records_are_those_of_an_installation(ctx: BuildContext, tmp_path: Path) -> None:
    folder = write(tmp_path / "images" / "tool", "pygments==2.19.1\n")
    run("lock", "tool", "--images", str(tmp_path / "images"))
    image = build_runtime(ctx, folder, "1").built
    export_layout([image], tmp_path / "out")
    tree = read_tree(open_image(tmp_path / "out"))
    script = tree.files["usr/local/bin/pygmentize"]
    assert script.mode == 0o755
    assert _text(image, "usr/local/bin/pygmentize").startswith("#!/usr/bin/python3\n")
    assert f"{SITE}/pygments/__pycache__/cmdline.cpython-311.pyc" in tree.files
    compiled = [path for path in tree.files if path.startswith(SITE) and path.endswith(".pyc")]
    # PEP 552: unchecked, by hash; a time would stand where the flags say 0.
    assert {tree.files[path].head[4:8] for path in compiled} == {b"\x01\0\0\0"}
    package = read_packages(tree).named("pygments")[0]
    recorded = {line.path: line for line in package.recorded or ()}
    assert recorded["usr/local/bin/pygmentize"].sha256 == script.sha256
    for path, line in recorded.items():
        assert not line.sha256 or tree.files[path].sha256 == line.sha256, path
    assert json.loads(_text(image, f"{SITE}/pygments-2.19.1.dist-info/provenance_url.json"))["url"].endswith(".whl")


def _text(image: BuiltImage, path: str) -> str:
    for digest in image.layer_digests:
        with open_layer(image.blobs[digest]) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                file = tar.extractfile(member) if member.name == path else None
                if file is not None:
                    return file.read().decode()
    raise AssertionError(path)


def test_what_is_not_hashed_or_not_pinned_is_refused(images: Path, ctx: BuildContext) -> None:
    lock = images / "mini" / "requirements.lock"
    whole = lock.read_text()
    lock.write_text("idna==3.6\nsix\n")
    told = run("build", "mini", "--images", str(images), code=1)
    assert "idna==3.6 has no --hash" in told and "'six' has no exact version" in told
    lock.write_text(whole.replace(whole.split("sha256:")[2][:64], "0" * 64))
    assert "no index has a file of" in run("build", "mini", "--images", str(images), code=2)
    lock.write_text(whole)
    value = yaml.safe_load((images / "mini" / "image.yml").read_text())
    value["pins"] = {"idna": "3.7", "torch": "2.12.1"}
    (images / "mini" / "image.yml").write_text(yaml.safe_dump(value))
    told = run("build", "mini", "--images", str(images), code=1)
    assert "pins.idna" in told and "is 3.7, but the lock has idna 3.6" in told
    assert "is 2.12.1, but nothing in the image installs it" in told


def test_an_image_on_an_own_base_shares_its_layers_and_hides_what_it_replaces(
    ctx: BuildContext, images: Path, tmp_path: Path
) -> None:
    (tmp_path / "r.txt").write_text("idna>=3.10\nsix\n")
    told = run(
        "derive", "mine", "--from", "mini", "--requirements", str(tmp_path / "r.txt"), "--images", str(images),
        "--out", str(tmp_path / "out"), "--no-run", "--json",
    )  # fmt: skip
    value = json.loads(told[told.index("{") :])
    assert value["replaced"] == {"idna": "3.6"}
    assert set(value["packages"]) == {"idna"}, "six is in the base already"
    assert len(value["layers"]) == 1
    base = build_runtime(ctx, images / "mini", "0.1.0").built
    image = Layout(tmp_path / "out").image()
    assert image.layer_digests[: len(base.layer_digests)] == base.layer_digests
    tree = read_tree(open_image(tmp_path / "out"))
    assert [one.version for one in read_packages(tree).named("idna")] == [value["packages"]["idna"]]
    # The folder gives the same image again.
    assert build_runtime(ctx, images / "mine", "0.1.0").built.manifest_digest == value["digest"]


def test_derive_pushes_and_prints_the_digest(serve: Callable[..., Served], images: Path, tmp_path: Path) -> None:
    served = serve()
    assert f"{served.host}/team/mini@sha256:" in run(
        "push", "mini", "--images", str(images), "--to", f"{served.url}/team/mini:1"
    )
    (tmp_path / "r.txt").write_text("idna>=3.10\n")
    os.environ["MYRIAD_MIRROR_REGISTRIES"] = f"site.registry={served.url}"
    try:
        told = run(
            "derive", "mine", "--from", "site.registry/team/mini:1", "--requirements", str(tmp_path / "r.txt"),
            "--images", str(images), "--to", f"{served.url}/vision/mine:2", "--no-run",
        )  # fmt: skip
    finally:
        del os.environ["MYRIAD_MIRROR_REGISTRIES"]
    reference = told.strip().splitlines()[-1]
    assert reference.startswith(f"{served.host}/vision/mine@sha256:")
    definition = yaml.safe_load((images / "mine" / "image.yml").read_text())
    assert definition["base"]["image"].startswith("site.registry/team/mini:1@sha256:")
    with Registry(served.url) as registry:
        digest = reference.partition("@")[2]
        assert registry.digest_of("vision/mine", "2") == digest
        base = [layer["digest"] for layer in registry.manifest("team/mini", "1").value["layers"]]
        layers = [layer["digest"] for layer in registry.manifest("vision/mine", digest).value["layers"]]
        assert layers[: len(base)] == base and len(layers) == len(base) + 1


def test_an_external_base_is_taken_by_digest(
    ctx: BuildContext, serve: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    layer = write_layer(ctx.blobs, [file_from_bytes("/etc/base", b"base")], compression="gzip", comment="x")
    image = write_image(
        ctx.blobs, ref="base:1", layers=[layer], config=ImageConfig(entrypoint=["/x"], env={"A": "1", "PATH": "/x"})
    )
    export_layout([image], tmp_path / "base")
    with Registry(served.url) as registry:
        registry.push_layout(tmp_path / "base", "vendor/base", "1")
    monkeypatch.setenv("MYRIAD_MIRROR_REGISTRIES", f"vendor.example={served.url}")
    folder = write(
        tmp_path / "images" / "top", base={"image": "vendor.example/vendor/base:1"}, files=[{"from": "a", "to": "/a"}]
    )
    (folder / "a").write_text("a")
    told = run("build", "top", "--images", str(tmp_path / "images"), code=1)
    assert '"vendor.example/vendor/base:1" can name other bits tomorrow' in told
    run("lock", "top", "--images", str(tmp_path / "images"))
    assert f"vendor.example/vendor/base:1@{image.manifest_digest}" in (folder / "image.yml").read_text()
    built = build_runtime(ctx, folder, "1").built
    assert built.layer_digests[0] == layer.digest
    # gpu-check needs a Python, of which this base has none that image.yml knows of.
    assert [read_layer_paths(built.blobs[digest])[-1] for digest in built.layer_digests] == ["etc/base", "a"]
    config = json.loads(built.blobs[built.config_digest].path.read_bytes())["config"]
    assert {"A=1", "PATH=/x"} <= set(config["Env"])
    assert config["Labels"]["org.opencontainers.image.base.digest"] == image.manifest_digest
    with pytest.raises(InputError, match="is a tag, which can name other bits tomorrow"):
        pull_base(ctx, "vendor.example/vendor/base:1")


def test_the_same_image_exports_to_the_same_file(images: Path, tmp_path: Path) -> None:
    for kind in ("docker", "oci"):
        for number in (1, 2):
            run(
                "export",
                "mini",
                "--images",
                str(images),
                "--out",
                str(tmp_path / f"{kind}{number}.tar"),
                "--format",
                kind,
            )
        assert (tmp_path / f"{kind}1.tar").read_bytes() == (tmp_path / f"{kind}2.tar").read_bytes()
