"""A bundle that is not whole is told by name, and what was read before is not read again."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from myriad.cli import bundle as bundle_verbs
from myriad.errors import InputError, MyriadError
from myriad.stack import bundle_verify
from myriad.stack.bundle import Bundle
from myriad.stack.bundle_tar import write_tar
from myriad.stack.bundle_verify import lock_problems, quick_problems, verify_path
from myriad.stack.lock import load_lock
from tests.unit.stack.offline_bundle import PROGRAM, make_bundle


def _blob(bundle: Bundle, name: str) -> Path:
    return next(bundle.path(blob.sha256) for found, blob in bundle.blobs() if found == name)


def _replace(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def edited(bundle: Bundle, change: Callable[[Any], object]) -> None:
    """The bundle with its manifest changed by hand."""
    path = bundle.directory / "bundle.yml"
    value = yaml.safe_load(path.read_bytes())
    change(value)
    path.unlink()
    path.write_text(yaml.safe_dump(value))


def test_a_whole_bundle_has_no_problem_as_directory_and_as_tar(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    assert verify_path(bundle.directory)[1] == []
    write_tar(bundle, tmp_path / "b.tar")
    found, problems = verify_path(tmp_path / "b.tar")
    assert problems == [] and found.digest == bundle.digest


def test_what_is_missing_changed_or_extra_is_named_with_both_digests(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    _blob(bundle, "tool").unlink()
    layer = bundle.path(bundle.image("team/app").blobs[1].sha256)
    _replace(layer, b"LAYER of an image")
    wheel = _blob(bundle, "wheel thing-1.5-py3-none-any.whl")
    _replace(wheel, b"short")
    (bundle.directory / "notes.txt").write_text("mine")
    problems = {problem.name: problem for problem in verify_path(bundle.directory)[1]}
    assert {name: item.problem for name, item in problems.items()} == {
        "tool": "missing",
        "image team/app:v1": "changed",
        "wheel thing-1.5-py3-none-any.whl": "changed",
        "notes.txt": "extra",
    }
    assert problems["tool"].component == "toolbox 1.2"
    assert problems["tool"].path == f"sha256/{bundle.file('tool').sha256[:2]}/{bundle.file('tool').sha256}"
    changed = problems["image team/app:v1"]
    assert changed.expected == f"sha256:{layer.name}" and changed.found.startswith("sha256:") and changed.found != ""
    assert changed.found != changed.expected
    assert "5 bytes instead of" in problems["wheel thing-1.5-py3-none-any.whl"].detail
    assert all(item.action for item in problems.values())


@pytest.mark.parametrize("kind", ["directory", "dangling", "loop"])
def test_what_lies_there_and_is_no_file_is_missing(tmp_path: Path, kind: str) -> None:
    bundle = make_bundle(tmp_path)
    path = _blob(bundle, "tool")
    path.unlink()
    if kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(path if kind == "loop" else tmp_path / "nowhere")
    (problem,) = verify_path(bundle.directory)[1]
    assert (problem.problem, problem.name) == ("missing", "tool")


def test_a_link_to_the_right_content_is_right(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    path = _blob(bundle, "tool")
    path.unlink()
    (tmp_path / "elsewhere").write_bytes(PROGRAM)
    path.symlink_to(tmp_path / "elsewhere")
    assert verify_path(bundle.directory)[1] == []


def test_a_tar_that_lacks_a_file_or_ends_early(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    whole = tmp_path / "whole.tar"
    write_tar(bundle, whole)
    gone = bundle.file("tool").sha256
    with tarfile.open(whole) as source, tarfile.open(tmp_path / "less.tar", "w") as target:
        for member in source:
            if not member.name.endswith(gone):
                target.addfile(member, source.extractfile(member))
    (problem,) = verify_path(tmp_path / "less.tar")[1]
    assert (problem.problem, problem.name) == ("missing", "tool")
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    try:
        problems = verify_path(cut)[1]
    except InputError as error:
        assert "ends early, or is damaged" in str(error)
    else:
        assert {problem.problem for problem in problems} == {"missing"}
    (tmp_path / "no.tar").write_bytes(b"no tar at all")
    with pytest.raises(InputError, match="is no tar"):
        verify_path(tmp_path / "no.tar")


def test_the_same_bundle_is_the_same_tar_wherever_it_lies(tmp_path: Path) -> None:
    first, second = make_bundle(tmp_path / "a"), make_bundle(tmp_path / "b")
    old = os.umask(0o077)
    try:
        write_tar(first, tmp_path / "a.tar")
    finally:
        os.umask(old)
    for path in second.directory.rglob("*"):
        os.utime(path, (1, 1))
    write_tar(second, tmp_path / "b.tar")
    assert first.digest == second.digest
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert tar.getnames()[0] == "bundle.yml"
    with pytest.raises(MyriadError, match="lacks a file"):
        _blob(second, "tool").unlink()
        write_tar(second, tmp_path / "c.tar")
    assert sorted(path.name for path in tmp_path.glob("*.tar*")) == ["a.tar", "b.tar"]


def test_the_check_before_a_run_reads_only_what_it_has_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle(tmp_path)
    (bundle.directory / "notes.txt").write_text("mine")
    assert quick_problems(bundle.directory, tmp_path / "cache") == []
    read: list[str] = []
    real = bundle_verify.sha256_of
    monkeypatch.setattr(bundle_verify, "sha256_of", lambda path: read.append(path.name) or real(path))
    assert quick_problems(bundle.directory, tmp_path / "cache") == []
    assert read == []
    path = _blob(bundle, "tool")
    data = bytearray(PROGRAM)
    data[7] ^= 1
    _replace(path, bytes(data))
    (problem,) = quick_problems(bundle.directory, tmp_path / "cache")
    assert (problem.problem, problem.name, read) == ("changed", "tool", [path.name])
    # A file that is wrong stays wrong: what was read is remembered, and not taken for right.
    (again,) = quick_problems(bundle.directory, tmp_path / "cache")
    assert again == problem


def test_a_record_that_cannot_be_read_or_written_costs_only_time(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert quick_problems(bundle.directory, tmp_path / "cache") == []
    stamps = tmp_path / "other" / "verified"
    quick_problems(bundle.directory, tmp_path / "other")
    (record,) = stamps.iterdir()
    record.write_text('{"sha256/xx": 3, "nonsense": [1]')
    assert quick_problems(bundle.directory, tmp_path / "other") == []
    value = dict.fromkeys(json.loads(record.read_text()), "no list")
    record.write_text(json.dumps(value))
    assert quick_problems(bundle.directory, tmp_path / "other") == []


def test_what_the_lock_has_and_the_manifest_does_not(tmp_path: Path) -> None:
    lock = load_lock()
    bundle = make_bundle(tmp_path)
    named = {problem.name: problem for problem in lock_problems(bundle, lock)}
    assert named["kubelet"].problem == "unnamed" and named["kubelet"].component == "kubernetes"
    assert "image etcd" in named
    assert "kwok" not in named  # on request
    less = bundle.manifest.model_copy(update={"left_out": {"kubernetes": "why"}})
    assert "kubelet" not in {item.name for item in lock_problems(Bundle(bundle.directory, less), lock)}
    only = bundle.manifest.model_copy(update={"only": ["etcd"]})
    assert {item.component for item in lock_problems(Bundle(bundle.directory, only), lock)} == {"etcd"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no manifest of a bundle: it is empty"),
        ("[1, 2]", "no manifest of a bundle: it holds a list"),
        ("myriad: 2026-13-40\n", "is not YAML: month must be in"),
        ("schema: 2\n", "newer Myriad"),
        ("a: [", "is not YAML"),
        ("\x00", "is not YAML"),
        ("schema: 1\narch: [x]\n", "arch: Input should be"),
    ],
)
def test_a_manifest_that_is_none(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "bundle.yml").write_text(text)
    with pytest.raises(InputError, match=said):
        verify_path(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda value: value["files"][0].update(sha256="abcd"), 'tool has the digest "abcd", which is not 64'),
        (lambda value: value["files"][0].update(sha256="../../../etc/passwd"), "which is not 64 hexadecimal digits"),
        (lambda value: value["files"][0].update(size=-1), "files: tool has -1 bytes"),
        (lambda value: value["images"][0].update(digest="latest"), 'team/app:v1 has the digest "latest"'),
        (lambda value: value["files"].append(value["files"][0]), "files: tool stands there 2 times"),
    ],
)
def test_a_manifest_that_no_builder_writes(tmp_path: Path, change: Callable[[Any], object], said: str) -> None:
    bundle = make_bundle(tmp_path)
    edited(bundle, change)
    with pytest.raises(InputError) as caught:
        verify_path(bundle.directory)
    assert said in str(caught.value) and caught.value.where == str(bundle.directory / "bundle.yml")


@pytest.mark.parametrize("as_tar", [False, True])
def test_a_layer_that_the_image_names_and_the_bundle_does_not(tmp_path: Path, as_tar: bool) -> None:
    bundle = make_bundle(tmp_path)
    layer = bundle.image("team/app").blobs[1].sha256
    edited(bundle, lambda value: value["images"][0]["blobs"].pop())
    bundle.path(layer).unlink()
    path = bundle.directory
    if as_tar:
        path = tmp_path / "b.tar"
        write_tar(Bundle.load(bundle.directory), path)
    (problem,) = verify_path(path)[1]
    assert (problem.problem, problem.name, problem.expected) == ("missing", "image team/app:v1", f"sha256:{layer}")
    assert problem.detail.startswith("its manifest names sha256 ") and problem.action


def test_the_verb_groups_by_what_to_do_and_ends_with_2(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    app = typer.Typer()
    bundle_verbs.register(app)
    run = CliRunner().invoke
    fine = run(app, ["bundle", "verify", str(bundle.directory), "--any-lock"])
    assert fine.exit_code == 0 and "all as the manifest says" in fine.stdout
    _blob(bundle, "tool").unlink()
    (bundle.directory / "notes.txt").write_text("mine")
    with pytest.raises(MyriadError) as caught:
        run(app, ["bundle", "verify", str(bundle.directory), "--any-lock"], catch_exceptions=False)
    assert caught.value.exit_code == 2
    text = str(caught.value)
    assert "not whole: 1 missing, 1 extra" in text
    assert text.index("-> copy the bundle again") < text.index("extra      notes.txt") < text.index("-> remove it")
    with pytest.raises(InputError, match="is no bundle") as none:
        run(app, ["bundle", "verify", str(tmp_path), "--any-lock"], catch_exceptions=False)
    assert none.value.exit_code == 1
