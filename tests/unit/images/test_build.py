"""Images from programs and from definitions: the same digests wherever they are built, layers shared, budgets kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from myriad.errors import InputError, MyriadError
from myriad.images import build, runtime
from myriad.images.build import component_image, debian_packages, python_image
from myriad.images.context import BuildContext, BuildEvent
from myriad.images.layer import file_from_bytes
from myriad.images.oci import BuiltImage, read_layer_paths, write_layer

REPOSITORY = Path(__file__).parents[3]


def config_of(image: BuiltImage) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(image.blobs[image.config_digest].path.read_bytes())["config"]
    return value


def etcd(ctx: BuildContext, binary: Path, **options: Any) -> BuiltImage:
    return component_image(
        ctx, repo="etcd", tag="3.6.14", binary=binary, install_as="/usr/local/bin/etcd", entrypoint=["etcd"], **options
    )


def test_a_component_is_the_same_image_in_another_place(
    ctx: BuildContext, tmp_path: Path, program: Callable[..., Path]
) -> None:
    first = etcd(ctx, program("binary", "one"))
    elsewhere = replace(ctx, store=tmp_path / "store2", cache_dir=tmp_path / "cache2")
    second = etcd(elsewhere, program("binary", "two"))
    assert first.manifest_digest == second.manifest_digest
    assert first.ref == "etcd:3.6.14"
    assert read_layer_paths(first.blobs[first.layer_digests[-1]])[-1] == "usr/local/bin/etcd"
    assert config_of(first)["Entrypoint"] == ["etcd"]


def test_another_program_changes_one_layer_only(ctx: BuildContext, program: Callable[..., Path]) -> None:
    first, second = etcd(ctx, program("1", "one")), etcd(ctx, program("2", "two"))
    assert first.layer_digests[0] == second.layer_digests[0]
    assert first.layer_digests[1] != second.layer_digests[1]


def test_the_hash_of_a_large_program_is_remembered_until_it_changes(
    ctx: BuildContext, events: list[BuildEvent], program: Callable[..., Path]
) -> None:
    binary = program("1" * (2 << 20))
    first = etcd(ctx, binary)
    assert etcd(ctx, binary).manifest_digest == first.manifest_digest
    assert [event.state for event in events if event.step == "etcd"] == ["started", "finished", "cached"]
    binary.write_text("2" * (2 << 20))
    assert etcd(ctx, binary).manifest_digest != first.manifest_digest


def test_users_are_numbers_for_pods_that_must_not_be_root(ctx: BuildContext, program: Callable[..., Path]) -> None:
    assert config_of(etcd(ctx, program("x"), user="65532:65532"))["User"] == "65532:65532"


def test_a_missing_program_is_named(ctx: BuildContext, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the program of image etcd:3\.6\.14 is missing"):
        etcd(ctx, tmp_path / "none")


@pytest.fixture
def small_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """A base without mmdebstrap: what images put on top does not depend on it."""

    def base(ctx: BuildContext) -> Any:
        return write_layer(ctx.blobs, [file_from_bytes("/etc/os-release", b"ID=debian\n")], comment="base")

    monkeypatch.setattr(build, "base_layer", base)
    monkeypatch.setattr(runtime, "build_base_layer", base)


def folder_with(root: Path, **fields: object) -> Path:
    root.mkdir()
    (root / "hello.py").write_text("print('hello')\n")
    value = {
        "repo": "myriad/hello",
        "title": "hello",
        "files": [{"from": "hello.py", "to": "/opt/hello.py"}],
        "entrypoint": ["python3", "/opt/hello.py"],
        "budget_mb": 1,
        **fields,
    }
    (root / "image.yml").write_text(json.dumps(value))
    return root


@pytest.mark.usefixtures("small_base")
def test_an_image_of_files_stands_on_the_base(ctx: BuildContext, tmp_path: Path) -> None:
    image = python_image(ctx, folder_with(tmp_path / "hello", env={"A": "1"}), "0.1.0")
    assert image.ref == "myriad/hello:0.1.0"
    assert [read_layer_paths(image.blobs[digest])[-1] for digest in image.layer_digests] == [
        "etc/os-release",
        "usr/local/bin/gpu-check",
        "opt/hello.py",
    ]
    config = config_of(image)
    assert config["User"] == "65532:65532"
    assert "A=1" in config["Env"]
    assert config["Labels"]["org.opencontainers.image.version"] == "0.1.0"


@pytest.mark.usefixtures("small_base")
def test_the_base_is_shared_with_components(ctx: BuildContext, tmp_path: Path, program: Callable[..., Path]) -> None:
    python = python_image(ctx, folder_with(tmp_path / "hello"), "1")
    assert etcd(ctx, program("x"), base=True).layer_digests[0] == python.layer_digests[0]


@pytest.mark.usefixtures("small_base")
def test_one_byte_over_the_budget_is_refused_with_the_sizes(
    ctx: BuildContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_with(tmp_path / "hello")
    image = python_image(ctx, folder, "1")
    monkeypatch.setattr(BuiltImage, "size", 10**6)
    assert python_image(ctx, folder, "1").manifest_digest == image.manifest_digest
    monkeypatch.setattr(BuiltImage, "size", 10**6 + 1)
    with pytest.raises(MyriadError, match=r"1,000,001 bytes, 1 over its budget_mb \(base .*files of hello"):
        python_image(ctx, folder, "1")


@pytest.mark.usefixtures("small_base")
def test_a_file_that_is_not_there_is_named(ctx: BuildContext, tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "hello", files=[{"from": "gone.py", "to": "/opt/gone.py"}])
    with pytest.raises(InputError, match=r'is "gone.py", which does not exist'):
        python_image(ctx, folder, "1")


def test_the_packages_of_an_image_are_those_of_its_base(
    ctx: BuildContext, monkeypatch: pytest.MonkeyPatch, program: Callable[..., Path]
) -> None:
    status = file_from_bytes("/var/lib/dpkg/status", b"Package: libc6\nVersion: 2.36\n\nPackage: kmod\nVersion: 30\n")
    monkeypatch.setattr(build, "base_layer", lambda ctx: write_layer(ctx.blobs, [status], comment="base"))
    assert debian_packages(etcd(ctx, program("x"), base=True)) == {"kmod": "30", "libc6": "2.36"}
    assert debian_packages(etcd(ctx, program("x"))) == {}
