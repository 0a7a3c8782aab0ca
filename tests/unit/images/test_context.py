"""A layer is built once for the same inputs, and again when its blob or its record is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from myriad.errors import InputError
from myriad.images.context import BuildContext, BuildEvent, find_repository
from myriad.images.layer import file_from_bytes
from myriad.images.oci import Layer, write_layer

REPOSITORY = Path(__file__).parents[3]


class Builder:
    def __init__(self, ctx: BuildContext) -> None:
        self.ctx, self.calls = ctx, 0

    def __call__(self) -> Layer:
        self.calls += 1
        return write_layer(self.ctx.blobs, [file_from_bytes("/a", b"a")])


def test_unchanged_inputs_are_not_built_again(ctx: BuildContext, events: list[BuildEvent]) -> None:
    build = Builder(ctx)
    layers = [ctx.cached_layer("step", {"a": 1}, build) for _ in range(2)]
    assert layers[0] == layers[1]
    assert build.calls == 1
    assert [event.state for event in events] == ["started", "finished", "cached"]


def test_changed_inputs_are(ctx: BuildContext) -> None:
    build = Builder(ctx)
    ctx.cached_layer("step", {"a": 1}, build)
    ctx.cached_layer("step", {"a": 2}, build)
    assert build.calls == 2


def test_a_blob_that_is_gone_or_cut_short_is_built_again(ctx: BuildContext) -> None:
    build = Builder(ctx)
    layer = ctx.cached_layer("step", {}, build)
    ctx.blobs.path(layer.digest).write_bytes(b"short")
    assert ctx.cached_layer("step", {}, build) == layer
    assert ctx.blobs.has(layer.digest, size=layer.size)
    assert build.calls == 2


def test_a_record_that_was_cut_short_is_as_none(ctx: BuildContext) -> None:
    build = Builder(ctx)
    ctx.cached_layer("step", {}, build)
    (record,) = (ctx.cache_dir / "layers").iterdir()
    record.write_text('{"digest": "sha')
    ctx.cached_layer("step", {}, build)
    assert build.calls == 2


def test_a_missing_program_says_how_to_get_it(ctx: BuildContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match="no-such-program is neither on PATH") as caught:
        ctx.program("no-such-program", hint="apt-get install it")
    assert caught.value.hint == "apt-get install it"


def test_the_checkout_is_found_and_its_absence_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_repository() == REPOSITORY
    monkeypatch.setattr("myriad.images.context.__file__", str(tmp_path / "site-packages" / "context.py"))
    with pytest.raises(InputError, match="needs a checkout"):
        find_repository()
