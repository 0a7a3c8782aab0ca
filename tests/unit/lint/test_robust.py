"""Objects that are wrong in any way must give findings, never a traceback: every fixture, damaged at every place."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from myriad.cli.lint import with_configurations
from myriad.lint import findings, scene_of
from myriad.lint.documents import Document, read_text
from myriad.lint.report import lines_of

FIXTURES = Path(__file__).parents[2] / "fixtures" / "lint"
FILES = sorted(FIXTURES.glob("*/broken.yml"))
ODD: tuple[Any, ...] = (
    None,
    "",
    "x",
    "-1",
    0,
    -8,
    10**30,
    1.5,
    True,
    [],
    {},
    ["a", None, 3],
    {"a": {"b": []}},
    [[1]],
    "64k",
    "🦀",
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of everything in a value, itself left out."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def damaged(bodies: list[Any], chance: random.Random) -> list[Any]:
    """A copy with one place taken out or made odd."""
    copied = copy.deepcopy(bodies)
    path = chance.choice(list(places(copied)))
    holder: Any = copied
    for key in path[:-1]:
        holder = holder[key]
    if chance.random() < 0.3:
        del holder[path[-1]]
    else:
        holder[path[-1]] = copy.deepcopy(chance.choice(ODD))
    return copied


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_a_damaged_object_is_judged_and_never_a_traceback(file: Path) -> None:
    bodies = [d for d in yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader) if d]
    chance = random.Random(file.parent.name)  # noqa: S311 - damage that repeats, no secret
    for _ in range(8):
        documents = [Document(b) for b in damaged(bodies, chance) if isinstance(b, dict)]
        lines_of(findings(with_configurations(scene_of(documents))))


def test_lines_are_known_in_damaged_texts_too() -> None:
    text = "\n---\n".join(file.read_text() for file in FILES)
    documents = read_text(text, "all.yml")
    lines = text.splitlines()
    for finding in findings(with_configurations(scene_of(documents))):
        assert finding.line is not None and 1 <= finding.line <= len(lines), finding


@pytest.mark.parametrize("key", [None, 1, 1.5, True, ("a",)])
def test_a_key_that_is_no_text_is_read_as_one(key: object) -> None:
    def limits(gpus: object) -> dict[Any, Any]:
        return {"nvidia.com/gpu": gpus, key: 1}

    container = {"name": "c", "image": "a:1", "resources": {"limits": limits(8), "requests": limits(8)}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "a", "labels": {key: "x"}, "annotations": {key: 1}},
        "spec": {key: 1, "template": {"spec": {"nodeSelector": {key: "x"}, "containers": [container]}}},
    }
    queue = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "q"},
        "spec": {"capability": limits(4), key: 1},
    }
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": limits(8)}}
    flavor = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ResourceFlavor",
        "metadata": {"name": "f"},
        "spec": {"nodeLabels": {key: "x"}},
    }
    assert lines_of(findings(scene_of([Document(b) for b in (job, queue, node, flavor)])))
