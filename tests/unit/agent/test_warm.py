"""Labels of warm images: proven here, and not gone since."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from myriad.agent import warm
from myriad.agent.verdict import Kubelet
from myriad.fleet.labels import warm_label

TORCH = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
NOW = datetime(2026, 11, 30, 2, 0, tzinfo=UTC)


def test_the_label_is_short_and_says_which_image() -> None:
    assert warm_label(TORCH) == f"warm.myriad.dev/{'a' * 16}"


def test_proven_and_listed_is_warm() -> None:
    kubelet = Kubelet(images=(f"r.internal/torch@{TORCH}", "r.internal/torch:1"))
    assert warm.warm_labels({TORCH: {"warm": True, "ref": f"r.internal/x/torch@{TORCH}"}}, kubelet, NOW) == {
        warm_label(TORCH): "torch"
    }


def test_what_was_marked_as_gone_or_is_listed_no_more_loses_its_label() -> None:
    kubelet = Kubelet(images=(f"r.internal/torch@{TORCH}",))
    assert warm.warm_labels({TORCH: {"warm": False}}, kubelet, NOW) == {}
    assert warm.warm_labels({OTHER: {"warm": True}}, kubelet, NOW) == {}


def test_a_list_that_is_cut_proves_nothing_gone() -> None:
    assert warm.warm_labels({OTHER: {"warm": True}}, Kubelet(images_cut=True), NOW) == {warm_label(OTHER): "unnamed"}


def test_what_was_proven_just_now_need_not_be_listed_yet() -> None:
    image = {"warm": True, "ref": f"r.internal/torch@{TORCH}", "proven_at": "2026-11-30T01:59:30Z"}
    assert warm.warm_labels({TORCH: image}, Kubelet(), NOW) == {warm_label(TORCH): "torch"}
    assert warm.warm_labels({TORCH: image}, Kubelet(), NOW + timedelta(minutes=2)) == {}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"images": []}', '{"images": {"x": 1}}'])
def test_a_record_that_cannot_be_read_labels_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / warm.STATE
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert warm.warm_labels(warm.read(tmp_path), Kubelet(images_cut=True), NOW) == {}


def test_the_record_is_found_below_the_root_of_the_node(tmp_path: Path) -> None:
    assert warm.read(tmp_path) == {}
    path = tmp_path / warm.STATE
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"version": 1, "images": {TORCH: {"warm": True}}}))
    assert warm.read(tmp_path) == {TORCH: {"warm": True}}
