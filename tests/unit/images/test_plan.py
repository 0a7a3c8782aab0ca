"""The order of layers: what changes least lies lowest."""

from __future__ import annotations

from typing import Any

import pytest

from myriad.images.definition import ImageDefinition
from myriad.images.plan import Change, plan_layers, python_path

PARTS: dict[str, Any] = {
    "wheels": {"group": "extension"},
    "source": {"modules": ["myriad.scheduler"]},
    "files": [{"from": "a.py", "to": "/opt/a.py"}],
}


def definition(*parts: str) -> ImageDefinition:
    common = {"repo": "x", "title": "x", "entrypoint": ["x"], "budget_mb": 1}
    return ImageDefinition.model_validate({**common, **{part: PARTS[part] for part in parts}})


@pytest.mark.parametrize(
    ("parts", "changes"),
    [
        ((), [Change.SYSTEM]),
        (("files", "source", "wheels"), [Change.SYSTEM, Change.WHEELS, Change.SOURCE, Change.FILES]),
        (("source",), [Change.SYSTEM, Change.SOURCE]),
    ],
)
def test_layers_are_ordered_by_change(parts: tuple[str, ...], changes: list[Change]) -> None:
    assert [layer.change for layer in plan_layers(definition(*parts))] == changes


def test_own_code_is_found_before_wheels() -> None:
    assert python_path(plan_layers(definition("wheels", "source"))) == "/opt/myriad/src:/opt/myriad/site"
    assert python_path(plan_layers(definition("files"))) == ""
