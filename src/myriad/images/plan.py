"""Which layers an image is made of, and in which order. Pure: nothing is read or built.

Layers are ordered by how often they change, lowest the least, because a changed layer changes every image above it,
and a
node that has the lower ones pulls only what is new.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from myriad.images.definition import ImageDefinition


class Change(IntEnum):
    """How often a layer changes, the least first."""

    SYSTEM = 0  # with Debian's point releases and security fixes
    WHEELS = 1  # with uv.lock
    SOURCE = 2  # with every commit to the modules that it holds
    FILES = 3  # with the image's own folder


@dataclass(frozen=True)
class PlannedLayer:
    """One layer to be. `search_path` is the folder in it that Python imports from, empty for none."""

    change: Change
    holds: str
    search_path: str = ""


#: Where wheels and Myriad's own code stand in an image, relative to its root.
SITE = "opt/myriad/site"
SOURCE = "opt/myriad/src"


def plan_layers(definition: ImageDefinition) -> tuple[PlannedLayer, ...]:
    """The layers of an image, lowest first."""
    planned = [PlannedLayer(Change.SYSTEM, definition.base)]
    if definition.wheels is not None:
        planned.append(PlannedLayer(Change.WHEELS, definition.wheels.group, search_path=f"/{SITE}"))
    if definition.source is not None:
        planned.append(PlannedLayer(Change.SOURCE, ", ".join(definition.source.modules), search_path=f"/{SOURCE}"))
    if definition.files:
        planned.append(PlannedLayer(Change.FILES, ", ".join(file.target for file in definition.files)))
    return tuple(planned)


def python_path(layers: tuple[PlannedLayer, ...]) -> str:
    """PYTHONPATH for these layers: what changes more often is found first, so own code wins over a wheel of the same
    name."""
    return ":".join(layer.search_path for layer in reversed(layers) if layer.search_path)
