"""Two node images compared: which files, packages, programs and images differ, and which of it is explained. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from myriad.nodeimage.manifest import Entry, NodeManifest

_ASPECTS = ("kind", "sha256", "size", "mode", "owner", "target", "mtime", "attributes")


@dataclass(frozen=True)
class FileDifference:
    """One path that differs: what differs of it, and the reason where it may."""

    path: str
    what: str
    reason: str = ""


@dataclass(frozen=True)
class Difference:
    """What differs between two images.

    Attributes:
        files: paths, sorted.
        values: packages, programs, images and inputs as (kind, name, in A, in B); empty text for what is not there.
    """

    files: list[FileDifference] = field(default_factory=list)
    values: list[tuple[str, str, str, str]] = field(default_factory=list)

    @property
    def unexplained(self) -> list[FileDifference]:
        """Paths that differ without a reason."""
        return [one for one in self.files if not one.reason]

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "same": not self.files and not self.values,
            "unexplained": len(self.unexplained),
            "files": [asdict(one) for one in self.files],
            "values": [dict(zip(("kind", "name", "a", "b"), one, strict=True)) for one in self.values],
        }


def compare(a: NodeManifest, b: NodeManifest, explained: Mapping[str, str]) -> Difference:
    """Hold two manifests against each other.

    Args:
        explained: patterns of paths (`*` spans directories) that may differ in content, size or time, with the reason.
            What is only in one of the images, or differs in owner, mode or kind, is never explained away.
    """
    files = []
    for path in sorted(a.files.keys() | b.files.keys()):
        one, other = a.files.get(path), b.files.get(path)
        what = _what(one, other)
        if what:
            reason = ""
            if one is not None and other is not None and _content_only(one, other):
                reason = next((why for pattern, why in explained.items() if fnmatchcase(path, pattern)), "")
            files.append(FileDifference(path, what, reason))
    values = []
    for kind in ("inputs", "packages", "programs"):
        left, right = getattr(a, kind), getattr(b, kind)
        values += [
            (kind.removesuffix("s"), name, left.get(name, ""), right.get(name, ""))
            for name in sorted(left.keys() | right.keys())
            if left.get(name) != right.get(name)
        ]
    here, there = ({image.ref: image.digest for image in one.images} for one in (a, b))
    values += [
        ("image", ref, here.get(ref, ""), there.get(ref, ""))
        for ref in sorted(here.keys() | there.keys())
        if here.get(ref) != there.get(ref)
    ]
    return Difference(files, values)


def _what(one: Entry | None, other: Entry | None) -> str:
    if one is None or other is None:
        return "only in B" if one is None else "only in A"
    names = {"sha256": "content", "mtime": "time", "target": "target", "attributes": "extended attributes"}
    differs = [names.get(aspect, aspect) for aspect in _ASPECTS if getattr(one, aspect) != getattr(other, aspect)]
    return ", ".join(differs)


def _content_only(one: Entry, other: Entry) -> bool:
    return all(getattr(one, aspect) == getattr(other, aspect) for aspect in ("kind", "mode", "owner", "attributes"))
