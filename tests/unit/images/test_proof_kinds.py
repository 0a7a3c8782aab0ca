"""More ways in which an image is wrong: layouts that are not whole, byways of the loader and of versions, leftovers."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from myriad.cli import build_app
from myriad.errors import InputError, MyriadError
from myriad.images.definition import load_definition, runtime_folders
from myriad.images.diff import difference
from myriad.images.oci import open_layer
from myriad.images.proof import look, prove
from myriad.images.proof_layout import LayoutImage, open_image
from myriad.images.proof_loader import loading
from myriad.images.proof_pull import pull_layout
from myriad.images.proof_rules import RULES, load_rules
from myriad.images.refs import parse_ref
from tests.unit.images import proof_images as small
from tests.unit.images.test_proof_break import only, proven, wheels

TODAY = date(2026, 11, 30)
APP = build_app("image")
IMAGES = Path(__file__).parents[3] / "images"


# Layouts


def index_of(image: LayoutImage) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((image.root / "index.json").read_text())
    return value


def rewrite(image: LayoutImage, change: Callable[[dict[str, Any]], object]) -> None:
    """The layout with its index changed by hand."""
    value = index_of(image)
    change(value)
    (image.root / "index.json").write_text(json.dumps(value))


def remake(
    image: LayoutImage,
    manifest: Callable[[dict[str, Any]], object] = lambda value: None,
    config: Callable[[dict[str, Any]], object] = lambda value: None,
) -> None:
    """The image with another manifest and configuration, whose digests and sizes are right."""
    told, own = json.loads(json.dumps(image.manifest)), json.loads(json.dumps(image.config))
    config(own)
    raw = json.dumps(own).encode()
    told["config"] |= {"digest": image.layout.put(raw), "size": len(raw)}
    manifest(told)
    data = json.dumps(told).encode()
    rewrite(
        image,
        lambda value: value["manifests"][0].update(digest=image.layout.put(data), size=len(data)),
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda value: value.update(manifests=["x"]), "is no OCI image layout"),
        (lambda value: value.update(manifests=[]), "holds no image (it has: none)"),
        (lambda value: value["manifests"][0].update(size=1), "bytes, what names it says 1: a runtime refuses"),
        (lambda value: value["manifests"][0].update(digest="sha256:abcd"), "is not a digest of the form sha256:"),
    ],
)
def test_an_index_that_was_changed_by_hand(tmp_path: Path, change: Callable[[Any], object], words: str) -> None:
    image = small.layout(tmp_path, small.system())
    rewrite(image, change)
    with pytest.raises(MyriadError) as caught:
        open_image(image.root)
    assert words in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (lambda value: value.pop("layers"), "is no manifest of an image (KeyError: 'layers')"),
        (lambda value: value.update(layers=None), "is no manifest of an image (TypeError"),
        (lambda value: value.pop("config"), "is no manifest of an image (KeyError: 'config')"),
    ],
)
def test_a_manifest_of_something_else(tmp_path: Path, manifest: Callable[[Any], object], words: str) -> None:
    image = small.layout(tmp_path, small.system())
    remake(image, manifest)
    with pytest.raises(MyriadError) as caught:
        open_image(image.root)
    assert words in str(caught.value)


@pytest.mark.parametrize("change", [{"history": [1]}, {"rootfs": []}, {"rootfs": {"diff_ids": 5}}])
def test_a_configuration_of_something_else(tmp_path: Path, change: dict[str, Any]) -> None:
    image = small.layout(tmp_path, small.system())
    remake(image, config=lambda value: value.update(change))
    with pytest.raises(InputError, match=r"configuration (is not as the OCI format has it|0$)"):
        open_image(image.root)


def test_an_index_of_several_platforms_says_so(tmp_path: Path) -> None:
    image = small.layout(tmp_path, small.system())
    inner = json.dumps(index_of(image)).encode()
    row = {"mediaType": "application/vnd.oci.image.index.v1+json", "digest": image.layout.put(inner)}
    rewrite(image, lambda value: value.update(manifests=[{**row, "size": len(inner)}]))
    with pytest.raises(InputError, match="it has: an index of several platforms") as caught:
        open_image(image.root)
    assert "linux/amd64" in str(caught.value.hint)


def test_the_same_image_twice_in_the_index_is_one(tmp_path: Path) -> None:
    image = small.layout(tmp_path, small.system())
    rewrite(image, lambda value: value["manifests"].append(dict(value["manifests"][0])))
    assert open_image(image.root).digest == image.digest


def test_a_size_that_the_manifest_makes_up_does_not_save_the_budget(tmp_path: Path) -> None:
    image = small.layout(tmp_path, small.system())
    held = image.layers[0].size
    remake(image, lambda value: value["layers"][0].update(size=1))
    (told,) = prove(look(open_image(image.root)), today=TODAY).findings
    assert (told.rule, told.where) == ("integrity", "layer 1")
    assert told.what == f"it has {held:,} bytes, the manifest says 1"


@pytest.mark.parametrize("left", [0, 10, 200])
def test_a_cut_layer_says_how_much_of_it_is_there(tmp_path: Path, left: int) -> None:
    image = small.layout(tmp_path, small.system())
    path, whole = image.layers[0].path, image.layers[0].size
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:left])
    with pytest.raises(InputError, match=f"layer 1 .*; it has {left} bytes, the manifest says {whole:,}") as caught:
        look(open_image(image.root))
    assert "take the layout from its source again" in str(caught.value.hint)


def test_an_image_for_another_processor(tmp_path: Path) -> None:
    good = proven(tmp_path, small.system(), wheels())
    image, declared = good.subject.image, good.subject.declared
    remake(image, config=lambda value: value.update(architecture="arm64"))
    (told,) = only(prove(look(open_image(image.root), declared), today=TODAY), "config")
    assert told.what.startswith("the image says that it is for linux/arm64")


def damaged(tmp_path: Path, how: str) -> LayoutImage:
    """An image whose layer is missing, cut, or other bytes of the same length."""
    image = small.layout(tmp_path, small.system())
    path = image.layers[0].path
    data = path.read_bytes()
    path.unlink()
    if how != "missing":
        path.write_bytes(data[:-20] if how == "cut" else data[:-1] + bytes([data[-1] ^ 255]))
    return image


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("missing", "the image lacks a blob that it names"),
        ("cut", "bytes, what names it says"),
        ("changed", "the blob was changed: its sha256 is"),
    ],
)
def test_a_damaged_layout_is_not_exported(tmp_path: Path, how: str, words: str) -> None:
    image = damaged(tmp_path, how)
    out = tmp_path / "out.tar"
    done = CliRunner().invoke(APP, ["image", "export", str(image.root), "--out", str(out)])
    assert isinstance(done.exception, MyriadError) and done.exception.exit_code == 2
    assert words in done.exception.message and "copy it again" in str(done.exception.hint)
    assert [one.name for one in tmp_path.iterdir() if "out.tar" in one.name] == []


@pytest.mark.parametrize("how", ["missing", "cut", "changed"])
def test_a_damaged_layout_is_not_compared(tmp_path: Path, how: str) -> None:
    image = damaged(tmp_path / "a", how)
    other = small.layout(tmp_path / "b", {"a": b"one"})
    with pytest.raises(MyriadError) as caught:
        difference(image.layout.image(), other.layout.image())
    assert caught.value.where == str(image.layers[0].path) and "copy it again" in str(caught.value.hint)


def test_layers_of_docker_are_compared_as_well(tmp_path: Path) -> None:
    image = small.layout(tmp_path / "a", small.system())
    with open_layer(image.layout.image().blobs[image.layers[0].digest]) as stream:
        plain = stream.read()
    digest, row = image.layout.put(plain), "application/vnd.oci.image.layer.v1.tar"
    remake(
        image,
        lambda value: value["layers"][0].update(digest=digest, size=len(plain), mediaType=row),
        lambda value: value["rootfs"].update(diff_ids=[digest]),
    )
    other = small.layout(tmp_path / "b", small.system())
    found = difference(open_image(image.root).layout.image(), other.layout.image())
    assert found.files == [] and len(found.layers) == 1


def test_an_address_of_another_kind_is_wrong_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="begins with docker://, which is no registry's address"):
        pull_layout("docker://a.site/b:1", tmp_path / "layout")


@pytest.mark.parametrize(
    "text",
    [
        "../a",
        "a.site/b/../c",
        "a.site/b//c",
        "a.site/b..c",
        "a.site:port/b",
        "a.site/b:",
        "a.site/B",
        "-a.site/b",
        "a_b.c/d",
    ],
)
def test_what_is_no_name_of_an_image(text: str) -> None:
    with pytest.raises(InputError, match="is not the name of an image"):
        parse_ref(text)


@pytest.mark.parametrize(
    "text",
    ["a", "a/b:1", "localhost:5000/a", "[::1]:5000/a__b/c-d.e", f"a-b.site/c:v1@sha256:{'a' * 64}", "10.0.0.5/a---b"],
)
def test_names_of_images(text: str) -> None:
    assert parse_ref(text).repo


# The loader


@pytest.mark.parametrize(
    ("files", "env", "word"),
    [
        ({"opt/a/glibc-hwcaps/x86-64-v3/libnccl.so.2": b""}, {"LD_LIBRARY_PATH": "/opt/a"}, "LD_LIBRARY_PATH"),
        ({"usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v2/libnccl.so.2": b""}, {}, "the loader's own folders"),
        (
            {
                "opt/a/glibc-hwcaps/x86-64-v4/libnccl.so.2": b"",
                "opt/ext.so": small.library("ext.so", needed=("libnccl.so.2",), runpath="$ORIGIN/a"),
            },
            {},
            "RUNPATH of /opt/ext.so",
        ),
        (
            {
                "opt/a/libnccl.so.2": b"",
                "etc/ld.so.conf.d/a.conf": b"include /etc/more/*.conf\n",
                "etc/more/b.conf": b"/opt/a  # more\r\n",
            },
            {},
            "/etc/more/b.conf",
        ),
    ],
    ids=["hwcaps", "default hwcaps", "RUNPATH hwcaps", "nested include"],
)
def test_a_second_libnccl_on_the_loaders_byways(
    tmp_path: Path, files: dict[str, bytes], env: dict[str, str], word: str
) -> None:
    held = {path: data or small.nccl("2.27.3") for path, data in files.items()}
    found = proven(tmp_path, small.system(), wheels(held), env=env).findings
    (told,) = [one for one in found if one.rule == "one-copy"]
    assert told.what.startswith("libnccl can be loaded from 2 places: ") and f"by {word}" in told.what


@pytest.mark.parametrize("value", ["/opt/x::/opt/y", ":/opt/x", "/opt/x:", "."])
def test_nothing_between_two_colons_is_the_working_folder(tmp_path: Path, value: str) -> None:
    files = {**small.system(), "workspace/libnccl.so.2": small.nccl()}
    tree = look(small.layout(tmp_path, files)).tree
    (copy,) = loading(tree, {"LD_LIBRARY_PATH": value}, cwd="/workspace").copies["libnccl"]
    assert copy.reached == ["LD_LIBRARY_PATH"]
    (copy,) = loading(tree, {"LD_LIBRARY_PATH": value}, cwd="/elsewhere").copies["libnccl"]
    assert copy.reached == []
    assert loading(tree, {"LD_LIBRARY_PATH": ""}, cwd="/workspace").copies["libnccl"][0].reached == []


# Wheels of another build


def locked_with(name: str, version: str) -> str:
    return small.lock({**small.HASHES, name: small.file_hash(name)}, {**small.VERSIONS, name: version})


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("torchvision", "0.27.0+cpu", "is a build for CPUs: its operations on CUDA are missing"),
        ("torchvision", "0.27.0+rocm6.4", "is a build for rocm6.4"),
        ("flash-attn", "2.8.3+cu12torch2.12", "is for CUDA 12, "),
        ("flash-attn", "2.8.3+cu128torch2.8cxx11abitrue", "is for CUDA 12.8, "),
        ("vllm", "0.10.0+pt28cu128", "is for CUDA 12.8, "),
        ("torchaudio", "2.11.0+cu132", "is for CUDA 13.2, "),
        ("xformers", "0.0.27+cu121", "is for CUDA 12.1, "),
    ],
)
def test_a_wheel_of_another_build_however_its_version_says_so(
    tmp_path: Path, name: str, version: str, words: str
) -> None:
    other = small.wheel(name, version)
    found = only(proven(tmp_path, small.system(), wheels(other), locked=locked_with(name, version)), "cuda")
    assert any(one.where == f"{name} {version}" and words in one.what for one in found)


@pytest.mark.parametrize("version", ["2.8.3+cu130", "2.8.3+cu13torch2.12", "1.0+cpuinfo", "1.0+gitcu", "1.0"])
def test_versions_that_fit_are_no_finding(tmp_path: Path, version: str) -> None:
    report = proven(tmp_path, small.system(), wheels(small.wheel("ext", version)), locked=locked_with("ext", version))
    assert report.ok, report.findings


# Leftovers


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (".cache/pip/http/a", "pip's cache"),
        ("opt/pkg/a_1.0_amd64.deb", "Debian packages as downloaded"),
        ("root/.cargo/registry/cache/a", "cargo's cache"),
        ("root/go/pkg/mod/a", "Go's cache of modules"),
        ("root/.wget-hsts", "wget's list of hosts, which has times in it"),
        ("usr/lib/node_modules/.cache/a", "npm's cache"),
    ],
)
def test_caches_of_other_installers(tmp_path: Path, path: str, words: str) -> None:
    (told,) = only(proven(tmp_path, {**small.system(), path: b"x"}, wheels()), "leftovers")
    assert told.what.startswith(f"{words}: 1 file") and told.where == f"/{path}"


# Exceptions


def test_an_exception_can_name_every_check(tmp_path: Path) -> None:
    told = {one.rule for one in proven(tmp_path, small.system(), wheels()).outcomes}
    assert told <= set(RULES)
    ran = {"run", "smoke", "gpu", "loaded", "loaded-once", "loaded-archs"}
    assert set(RULES) - told == ran


@pytest.mark.parametrize("folder", runtime_folders(IMAGES), ids=lambda path: path.name)
def test_no_exception_is_for_a_file_that_is_left_out(folder: Path) -> None:
    """An exception that nothing needs would accept the next finding there unseen."""
    left_out = load_definition(folder).wheels
    base = yaml.safe_load((folder / "image.yml").read_text()).get("base")
    below = load_definition(IMAGES / base["name"]).wheels if isinstance(base, dict) and "name" in base else None
    excluded = {pattern for one in (left_out, below) if one is not None for pattern in one.exclude}
    for rule in load_rules(folder).exceptions:
        assert not [one for one in excluded if fnmatchcase(f"/site/{one}", rule.path)], rule.path
