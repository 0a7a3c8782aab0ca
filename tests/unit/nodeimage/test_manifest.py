"""A tree is read into a manifest, and two manifests are held against each other."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from myriad.errors import InputError
from myriad.nodeimage.contents import build_manifest, modinfo
from myriad.nodeimage.difference import compare
from myriad.nodeimage.manifest import Entry, NodeManifest, Stored, load, save

MODULE = "lib/modules/6.1.0-57-amd64/updates/dkms/nvidia-current.ko"
MODINFO = b"\x7fELF..\0license=NVIDIA\0version=535.309.01\0vermagic=6.1.0-57-amd64 SMP preempt mod_unload\0rest"
BLOB = "a" * 64


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    contents: dict[str, bytes] = {
        "etc/hosts": b"127.0.0.1 localhost\n",
        "usr/local/bin/runc": b"program",
        MODULE: MODINFO,
        f"var/lib/containerd/io.containerd.content.v1.content/blobs/sha256/{BLOB}": b"layer",
        "var/lib/dpkg/status": b"Package: curl\nStatus: install ok installed\nVersion: 7.88\n\n",
    }
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (root / "etc/resolv.conf").symlink_to("../run/stub")
    os.link(root / "etc/hosts", root / "etc/hosts.same")
    os.mkfifo(root / "run-fifo")
    return root


def manifest_of(root: Path, **changes: Any) -> NodeManifest:
    values: dict[str, Any] = {
        "name": "node-test",
        "kernel": "6.1.0-57-amd64",
        "epoch": 1,
        "inputs": {"bundle": "b"},
        "images": [Stored(ref="pause:3.10.1", digest=f"sha256:{BLOB}")],
        "left_out": {},
        "disk": {},
    }
    return build_manifest(root, **{**values, **changes})


def test_a_manifest_names_files_packages_programs_modules_and_blobs(tree: Path) -> None:
    manifest = manifest_of(tree)
    assert manifest.packages == {"curl": "7.88"}
    assert manifest.programs == {"/usr/local/bin/runc": hashlib.sha256(b"program").hexdigest()}
    assert manifest.blobs == [f"sha256:{BLOB}"]
    (module,) = manifest.modules
    assert (module.version, module.vermagic) == ("535.309.01", "6.1.0-57-amd64")
    assert manifest.files["/etc/hosts"].sha256 == hashlib.sha256(b"127.0.0.1 localhost\n").hexdigest()
    assert manifest.files["/etc/hosts.same"].sha256 == manifest.files["/etc/hosts"].sha256
    assert manifest.files["/etc/resolv.conf"].target == "../run/stub"
    assert manifest.files["/run-fifo"].kind == "fifo"
    assert manifest.files["/etc"].kind == "directory"


def test_what_is_saved_is_what_is_loaded_one_line_a_file(tree: Path, tmp_path: Path) -> None:
    manifest = manifest_of(tree)
    save(manifest, tmp_path / "manifest.json")
    assert load(tmp_path) == manifest
    assert load(tmp_path / "manifest.json") == manifest
    assert sum('"/etc/hosts"' in line for line in (tmp_path / "manifest.json").read_text().splitlines()) == 1


def test_two_readings_of_one_tree_are_the_same_text(tree: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(manifest_of(tree), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_folder_without_a_manifest_and_a_file_that_is_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no manifest of a node image"):
        load(tmp_path)
    (tmp_path / "manifest.json").write_text('{"name": 3}')
    with pytest.raises(InputError, match=r"is no manifest of a node image: name"):
        load(tmp_path)
    (tmp_path / "manifest.json").write_text("no json")
    with pytest.raises(InputError, match="is no manifest of a node image"):
        load(tmp_path)


def test_a_module_without_a_field_says_nothing() -> None:
    assert modinfo(MODINFO, "version") == "535.309.01"
    assert modinfo(MODINFO, "signer") == ""


def with_files(manifest: NodeManifest, **changes: Entry | None) -> NodeManifest:
    files = {**manifest.files, **{f"/{name}": entry for name, entry in changes.items() if entry is not None}}
    return manifest.model_copy(
        update={"files": {path: one for path, one in files.items() if changes.get(path[1:], one)}}
    )


def file(content: bytes, **changes: Any) -> Entry:
    values = {"kind": "file", "mode": "0644", "owner": "0:0", "size": len(content), **changes}
    return Entry(sha256=hashlib.sha256(content).hexdigest(), **values)


def link(target: str) -> Entry:
    return Entry(kind="symlink", mode="0777", owner="0:0", target=target)


def test_equal_images_do_not_differ(tree: Path) -> None:
    found = compare(manifest_of(tree), manifest_of(tree), {})
    assert (found.files, found.values) == ([], [])
    assert found.as_dict()["same"] is True


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        (file(b"a"), file(b"b"), "content"),
        (file(b"a"), file(b"ab"), "content, size"),
        (file(b"a"), file(b"a", mode="0755"), "mode"),
        (file(b"a"), file(b"a", owner="1:1"), "owner"),
        (file(b"a"), file(b"a", mtime=9), "time"),
        (file(b"a"), file(b"a", attributes={"user.x": "00"}), "extended attributes"),
        (file(b"a"), None, "only in A"),
        (None, file(b"a"), "only in B"),
        (link("x"), link("y"), "target"),
    ],
)
def test_every_aspect_of_a_file_is_compared(tree: Path, one: Entry | None, other: Entry | None, what: str) -> None:
    base = manifest_of(tree)
    found = compare(with_files(base, changed=one), with_files(base, changed=other), {})
    assert [(file.path, file.what) for file in found.files] == [("/changed", what)]
    assert found.unexplained == found.files


def test_content_may_be_explained_by_a_pattern(tree: Path) -> None:
    base = manifest_of(tree)
    a, b = with_files(base, db=file(b"a"), other=file(b"a")), with_files(base, db=file(b"b"), other=file(b"b"))
    found = compare(a, b, {"/d*": "it holds the times of its own making"})
    assert [one.path for one in found.unexplained] == ["/other"]
    assert found.files[0].reason == "it holds the times of its own making"


@pytest.mark.parametrize("other", [file(b"a", mode="4755"), file(b"a", owner="7:7"), None])
def test_a_mode_an_owner_or_a_missing_file_is_never_explained_away(tree: Path, other: Entry | None) -> None:
    base = manifest_of(tree)
    found = compare(with_files(base, db=file(b"a")), with_files(base, db=other), {"/*": "everything may differ here"})
    assert [one.path for one in found.unexplained] == ["/db"]


def test_packages_programs_images_and_inputs_are_compared(tree: Path) -> None:
    a = manifest_of(tree)
    b = a.model_copy(
        update={
            "packages": {"curl": "7.89", "jq": "1"},
            "inputs": {"bundle": "c"},
            "images": [],
            "programs": {},
        }
    )
    assert [(kind, name) for kind, name, _, _ in compare(a, b, {}).values] == [
        ("input", "bundle"),
        ("package", "curl"),
        ("package", "jq"),
        ("program", "/usr/local/bin/runc"),
        ("image", "pause:3.10.1"),
    ]
