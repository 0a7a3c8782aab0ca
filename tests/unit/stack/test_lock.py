"""stack.lock.yml: its form, its pins, differences, and the recording of checksums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from myriad.errors import InputError
from myriad.stack.build import lock_digest
from myriad.stack.lock import OPEN, Lock, default_lock_path, load_lock, parse_lock
from myriad.stack.lockdiff import diff_locks
from myriad.stack.pin import Pinned, record_pins, replace_scalar

_HEX = "ab" * 32


def _lock(**components: Any) -> dict[str, Any]:
    return {"schema": 1, "go": "1.26.6", "components": components}


def _tool(**changes: Any) -> dict[str, Any]:
    release = {"tool": {"url": "https://example.org/v{version}/tool-{arch}", "sha256": {"amd64": OPEN}}}
    return {"version": "1.0.0", "artifacts": {"tool": "binary"}, "sources": {"release": release}} | changes


def _parse(value: dict[str, Any]) -> Lock:
    return parse_lock(yaml.safe_dump(value), where="test.yml")


def test_the_lock_of_the_repository_is_valid_and_holds_what_a_cluster_needs() -> None:
    lock = load_lock()
    artifacts = {name for component in lock.components.values() for name in component.artifacts}
    assert {"kubelet", "kubeadm", "kubectl", "kube-apiserver", "etcd", "containerd", "runc", "registry"} <= artifacts
    assert {"bridge", "host-local", "loopback", "portmap", "crictl", "coredns", "pause", "helm"} <= artifacts
    images = {repo for component in lock.components.values() for repo in component.images}
    assert {"kube-proxy", "coredns", "pause", "etcd", "kueue"} <= images


def test_published_checksums_are_filled_and_the_others_open() -> None:
    lock = load_lock()
    releases = {key: lock.components["kubernetes"].sources.release[key].sha256 for key in ("kubelet", "kube-proxy")}
    assert releases["kubelet"]["amd64"] == "983a6ba5a49823dcdd745c674e5e2416377dd27d6ad1b42d2befa0fb961a19f6"
    assert releases["kube-proxy"]["amd64"] == OPEN


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (_lock(tool=_tool(version=None)), "components.tool.version"),
        (_lock(tool=_tool(artifacts={"tool": "binary", "other": "binary"})), "no source gives the artifact 'other'"),
        (_lock(tool=_tool(artifacts={})), "sources.release gives 'tool', which artifacts does not list"),
        (
            _lock(tool=_tool(images={"tool": {"binary": "nothing", "target": "/x"}})),
            "images.tool holds 'nothing', which artifacts does not list",
        ),
        (_lock(tool=_tool(), again=_tool()), "tool is given by both again and tool"),
        (_lock(tool=_tool(colour="red")), "components.tool.colour"),
        ({"schema": 2, "go": "1", "components": {}}, "schema"),
        (
            _lock(tool=_tool(sources={"release": {"tool": {"url": "https://x", "sha256": {"amd64": "12"}}}})),
            "a pin is 64 lower-case hex digits of sha256, or `open`",
        ),
        (
            _lock(
                tool=_tool(sources={"modules": [{"path": "p", "version": "v1", "h1": "x", "packages": {"tool": "."}}]})
            ),
            "a module hash is h1: and 44 characters of base64",
        ),
    ],
)
def test_a_wrong_lock_is_told_as_a_sentence(value: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        _parse(value)
    assert message in str(caught.value)
    assert str(caught.value).startswith("test.yml: ")


def test_all_mistakes_are_told_together() -> None:
    with pytest.raises(InputError) as caught:
        _parse(_lock(one=_tool(version=None), two=_tool(colour="red")))
    assert "components.one.version" in str(caught.value) and "components.two.colour" in str(caught.value)


def test_an_unknown_component_is_named_with_those_that_exist() -> None:
    with pytest.raises(InputError, match="no component 'volcanoo'"):
        load_lock().component("volcanoo")


def test_a_lock_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no lock"):
        load_lock(tmp_path / "none.yml")


def test_the_lock_is_found_from_a_folder_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stack.lock.yml").write_text(yaml.safe_dump(_lock(tool=_tool())))
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert default_lock_path() == tmp_path / "stack.lock.yml"


def test_the_digest_of_a_lock_ignores_comments_and_layout() -> None:
    text = yaml.safe_dump(_lock(tool=_tool()))
    assert lock_digest(parse_lock(text, where="a")) == lock_digest(parse_lock("# comment\n\n" + text, where="b"))
    other = yaml.safe_dump(_lock(tool=_tool(version="1.0.1")))
    assert lock_digest(parse_lock(text, where="a")) != lock_digest(parse_lock(other, where="b"))


def test_diff_tells_versions_pins_and_components() -> None:
    pinned = {"release": {"tool": {"url": "https://example.org/v{version}/tool-{arch}", "sha256": {"amd64": _HEX}}}}
    other = _tool(artifacts={"new": "binary"}, sources={"local": {"folder": "x", "artifact": "new"}})
    old = _parse(_lock(tool=_tool(), gone=_tool(artifacts={}, sources={})))
    new = _parse(_lock(tool=_tool(version="1.1.0", sources=pinned), added=other))
    assert [str(change) for change in diff_locks(old, new)] == [
        "added: added, 1.0.0",
        "gone: removed, was 1.0.0",
        "tool: 1.0.0 -> 1.1.0",
        "tool: sources.release.tool.sha256.amd64 open -> abababababab...",
    ]


def test_diff_of_equal_locks_is_empty_and_of_another_go_is_not() -> None:
    lock = _parse(_lock(tool=_tool()))
    assert diff_locks(lock, lock) == []
    newer = _parse(_lock(tool=_tool()) | {"go": "1.26.7"})
    assert [str(change) for change in diff_locks(lock, newer)] == ["go: 1.26.6 -> 1.26.7"]


_TEXT = """\
# a comment that stays
schema: 1
go: 1.26.6
components:
  tool:  # why this tool
    version: 1.0.0
    artifacts: {tool: binary}
    sources:
      release:
        tool:
          url: https://example.org/tool
          sha256: {amd64: open, arm64: open}  # to be pinned
"""


def _pinned(arch: str) -> Pinned:
    path = ("components", "tool", "sources", "release", "tool", "sha256", arch)
    return Pinned(component="tool", field="tool", arch=arch, url="https://x", size=1, sha256=_HEX, path=path)


def test_recording_a_pin_changes_one_scalar_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "lock.yml"
    path.write_text(_TEXT)
    record_pins(path, [_pinned("amd64")])
    assert path.read_text() == _TEXT.replace("amd64: open", f"amd64: {_HEX}")
    assert load_lock(path).components["tool"].sources.release["tool"].sha256 == {"amd64": _HEX, "arm64": OPEN}


def test_two_pins_of_one_line(tmp_path: Path) -> None:
    path = tmp_path / "lock.yml"
    path.write_text(_TEXT)
    record_pins(path, [_pinned("amd64"), _pinned("arm64")])
    assert set(load_lock(path).components["tool"].sources.release["tool"].sha256.values()) == {_HEX}


def test_a_pin_that_is_not_open_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "lock.yml"
    text = _TEXT.replace("amd64: open", "amd64: " + "cd" * 32)
    path.write_text(text)
    with pytest.raises(InputError, match="is not `open`"):
        record_pins(path, [_pinned("amd64")])
    assert path.read_text() == text


def test_a_place_that_does_not_exist() -> None:
    with pytest.raises(InputError, match=r"components\.other\.version is not `open`"):
        replace_scalar(_TEXT, ("components", "other", "version"), old="open", new="x", where="lock")
