"""A verdict: checks with expected, found, cause and next step, and what they were judged by. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
Value = int | str | None

OWN_CAUSE = frozenset(
    {"expected", "pci", "module", "ecc", "row-remap", "xid", "topology", "host-cuda", "registry", "images"}
)
"""Checks whose failure never follows from an earlier one: each names a fault of its own."""

HEALTH = frozenset({"answers", "lost", "ecc", "row-remap", "xid", "fabric"})
"""Checks that look at a GPU's health: where they fail after the gate was open, the node is unhealthy, not unready."""

SETTLING = frozenset({"capacity", "allocatable"})
"""Checks that fail for seconds while a device plugin or kubelet restarts: the kubelet hands out no GPU meanwhile."""


_IMAGES_MOST = 50
"""https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/, nodeStatusMaxImages."""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison.

    Attributes:
        check: its name.
        expected, found: for a table; None where there is nothing to show.
        ok: whether they agree.
        cause: what is wrong, as a sentence without a full stop; empty when ok.
        next: what to do, a command where there is one; empty when ok.
        follows: the earlier check that this one's failure follows from; empty where it stands for itself.
    """

    check: str
    expected: Value
    found: Value
    ok: bool
    cause: str = ""
    next: str = ""
    follows: str = ""


@dataclass(frozen=True, slots=True)
class Kubelet:
    """What the kubelet reports on the Node: extended resources by name, and the images that it lists.

    Attributes:
        capacity, allocatable: amounts by resource.
        images: names of images, with tag and with digest.
        images_cut: whether it may know of more: a kubelet lists no more than 50 unless it is told to.
    """

    capacity: Mapping[str, int] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    images_cut: bool = False

    @classmethod
    def of(cls, node: Json) -> Kubelet:
        """From a Node object."""
        status = node.get("status") or {}
        images = status.get("images") or []
        return cls(
            _extended(status.get("capacity")),
            _extended(status.get("allocatable")),
            tuple(str(name) for image in images for name in image.get("names") or []),
            len(images) >= _IMAGES_MOST,
        )


def _extended(amounts: Mapping[str, Any] | None) -> dict[str, int]:
    return {name: int(text) for name, text in (amounts or {}).items() if "/" in name and str(text).isdigit()}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is neither in the portrait nor on the Node.

    Attributes:
        registry_fault: why the registry cannot be reached; empty where it can; None where it was not asked.
        probing: whether GPUs are tried from a container on this node at all.
        baseline: Xids that were seen and dealt with before, `UUID/code` to count.
        policy: whether registry and warm images are asked for: they are before the gate opens, not afterwards.
    """

    registry_fault: str | None = None
    probing: bool = True
    baseline: Mapping[str, int] = field(default_factory=dict)
    policy: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """All checks of one node."""

    checks: tuple[Check, ...]

    @property
    def open(self) -> bool:
        """All agree."""
        return all(check.ok for check in self.checks)

    @property
    def first(self) -> Check | None:
        """The first that does not."""
        return next((check for check in self.checks if not check.ok), None)

    @property
    def cause(self) -> str:
        """What is wrong; empty where nothing is."""
        return self.first.cause if self.first else ""

    @property
    def next(self) -> str:
        """What to do about it."""
        return self.first.next if self.first else ""

    @property
    def failing(self) -> tuple[str, ...]:
        """Names of checks that fail for themselves."""
        return tuple(check.check for check in self.checks if not check.ok and not check.follows)

    def without(self, *names: str) -> Verdict:
        """The verdict as if these checks were not asked."""
        return Verdict(tuple(check for check in self.checks if check.check not in names))
