"""Which source gives what: decided before anything is touched."""

from __future__ import annotations

from typing import Any

import pytest

from myriad.errors import InputError
from myriad.stack.lock import OPEN, Lock
from myriad.stack.sources import Plan, SourceMode, plan_sources, selected

_HEX = "ab" * 32
_H1 = "h1:" + "A" * 43 + "="


def _component(*, pin: str | None = _HEX, module: bool = True, **more: Any) -> dict[str, Any]:
    sources: dict[str, Any] = {}
    if pin is not None:
        sources["release"] = {"tool": {"url": "https://example.org/v{version}/tool-{arch}", "sha256": {"amd64": pin}}}
    if module:
        sources["modules"] = [{"path": "example.org/tool", "version": "v1", "h1": _H1, "packages": {"tool": "."}}]
    return {"version": "1.0.0", "artifacts": {"tool": "binary"}, "sources": sources} | more


def _plan(component: dict[str, Any], mode: SourceMode, *, reachable: bool, arch: str = "amd64") -> Plan:
    lock = Lock.model_validate({"schema": 1, "go": "1.26.6", "components": {"tool": component}})

    def unreachable(url: str) -> str | None:
        return None if reachable else "example.org is not reachable"

    return plan_sources(lock, lock.components, mode=mode, arch=arch, unreachable=unreachable)


@pytest.mark.parametrize(
    ("pin", "module", "mode", "reachable", "how"),
    [
        (_HEX, True, "auto", True, "release"),
        (_HEX, True, "auto", False, "module"),
        (OPEN, True, "auto", True, "module"),
        (None, True, "auto", True, "module"),
        (_HEX, True, "release", True, "release"),
        (_HEX, True, "modules", True, "module"),
        (_HEX, False, "auto", True, "release"),
    ],
)
def test_the_source_of_an_artifact(pin: str | None, module: bool, mode: SourceMode, reachable: bool, how: str) -> None:
    plan = _plan(_component(pin=pin, module=module), mode, reachable=reachable)
    assert [choice.how for choice in plan.choices] == [how]
    assert not plan.refused and not plan.left_out


@pytest.mark.parametrize(
    ("pin", "mode", "reachable", "words"),
    [
        (_HEX, "release", False, "no release host answers: example.org is not reachable"),
        (OPEN, "release", True, "https://example.org/v1.0.0/tool-amd64 is reachable, but not pinned"),
        (OPEN, "auto", True, "record its checksum with `myriad lock pin tool`"),
        (_HEX, "modules", True, "--source modules uses no release"),
    ],
)
def test_not_reachable_and_not_pinned_are_told_apart(pin: str, mode: SourceMode, reachable: bool, words: str) -> None:
    plan = _plan(_component(pin=pin, module=False), mode, reachable=reachable)
    assert plan.choices == []
    assert words in plan.refused["tool"]


def test_release_mode_does_not_fall_back_to_modules() -> None:
    plan = _plan(_component(), "release", reachable=False)
    assert list(plan.refused) == ["tool"]


def test_an_optional_component_is_left_out_with_its_reason() -> None:
    plan = _plan(_component(module=False, optional=True), "auto", reachable=False)
    assert plan.refused == {}
    assert plan.left_out == {
        "tool": "left out: in no bundle, and no release host answers: example.org is not reachable"
    }


def test_an_optional_component_whose_image_is_not_pinned_is_left_out() -> None:
    images = {"vc": {"ref": "docker.io/org/vc:v{version}", "sha256": {"amd64": OPEN}}}
    plan = _plan(_component(optional=True, upstream_images=images), "auto", reachable=True)
    assert "docker.io/org/vc:v1.0.0 is reachable, but not pinned" in plan.left_out["tool"]


def test_an_image_replaces_a_binary_only_where_releases_alone_are_asked_for() -> None:
    images = {"tool": {"ref": "registry.example/tool:v{version}", "sha256": {"amd64": _HEX}, "replaces": "tool"}}
    component = _component(pin=None, upstream_images=images)
    released = _plan(component, "release", reachable=True)
    assert (released.choices, released.images, released.refused) == ([], [("tool", "tool")], {})
    usual = _plan(component, "auto", reachable=True)
    assert ([choice.how for choice in usual.choices], usual.images) == (["module"], [])
    away = _plan(component, "release", reachable=False)
    assert away.refused == {"tool": "in no bundle, and no registry answers: example.org is not reachable"}


def test_another_architecture_without_a_release() -> None:
    plan = _plan(_component(module=False), "auto", reachable=True, arch="arm64")
    assert plan.refused == {"tool": "the lock names no release of it for arm64"}


def test_auto_keeps_the_module_as_what_to_fall_back_to() -> None:
    (choice,) = _plan(_component(), "auto", reachable=True).choices
    assert choice.fallback is not None and choice.fallback.how == "module"


def test_own_source_is_built_in_every_mode() -> None:
    component = {
        "version": "1",
        "artifacts": {"tool": "binary"},
        "sources": {"local": {"folder": "stack/pause", "artifact": "tool"}},
    }
    for mode in ("auto", "release", "modules"):
        (choice,) = _plan(component, mode, reachable=False).choices
        assert choice.how == "local"


def test_components_on_request_come_only_when_asked_for() -> None:
    asked = _component(artifacts={}, sources={}, on_request=True)
    usual = _component()
    lock = Lock.model_validate({"schema": 1, "go": "1", "components": {"asked": asked, "usual": usual}})
    assert list(selected(lock, only=None, also=set())) == ["usual"]
    assert list(selected(lock, only=None, also={"asked"})) == ["asked", "usual"]
    assert list(selected(lock, only={"asked"}, also=set())) == ["asked"]
    with pytest.raises(InputError, match="no component 'nothing'"):
        selected(lock, only={"nothing"}, also=set())
