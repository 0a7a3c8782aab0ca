"""Which registry a node pulls from: the nearest one, and the others after it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Registry:
    """One registry of the site.

    Attributes:
        url: address with scheme.
        location: its place, outermost first; a registry of a whole block ends there. Empty: it stands nowhere special.
    """

    url: str
    location: tuple[str, ...] = ()


def nearest(node: str, location: Sequence[str], registries: Sequence[Registry]) -> tuple[Registry, ...]:
    """The registries in the order in which a node tries them: the longest common way from the outside first.

    Of equally near ones each node begins with another, always the same: a rack spreads over two registries of a block.
    """

    def key(registry: Registry) -> tuple[int, str]:
        shared = 0
        for here, there in zip(location, registry.location, strict=False):
            if here != there:
                break
            shared += 1
        return -shared, hashlib.sha256(f"{node} {registry.url}".encode()).hexdigest()

    return tuple(sorted(registries, key=key))
