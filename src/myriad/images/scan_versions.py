"""Order of versions, as each ecosystem has it: Python's by PEP 440, Debian's by dpkg. Pure."""

from __future__ import annotations

import re
from itertools import zip_longest

from packaging.version import InvalidVersion, Version


def order(ecosystem: str, left: str, right: str) -> int:
    """-1, 0 or 1 for left older than, equal to or newer than right.

    Args:
        ecosystem: as OSV names it (`PyPI`, `Debian:12`, `Ubuntu:24.04`).

    Raises:
        ValueError: a version is none, or the ecosystem's order is not known.
    """
    family = ecosystem.partition(":")[0]
    if family == "PyPI":
        try:
            one, other = Version(left), Version(right)
        except InvalidVersion as error:
            raise ValueError(str(error)) from None
        # A local part (+cu130) is a build of the same release.
        one, other = Version(one.public), Version(other.public)
        return (one > other) - (one < other)
    if family in ("Debian", "Ubuntu"):
        return debian(left, right)
    raise ValueError(f"the order of versions of {ecosystem} is not known")


def debian(left: str, right: str) -> int:
    """dpkg's order (https://www.debian.org/doc/debian-policy/ch-controlfields.html#version)."""
    one, other = _split(left), _split(right)
    if one[0] != other[0]:
        return 1 if one[0] > other[0] else -1
    return _part(one[1], other[1]) or _part(one[2], other[2])


def _split(version: str) -> tuple[int, str, str]:
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, _, revision = rest.rpartition("-") if "-" in rest else (rest, "", "")
    if not epoch.isdigit() or not upstream:
        raise ValueError(f'"{version}" is no version of a Debian package')
    return int(epoch), upstream, revision


def _part(left: str, right: str) -> int:
    """Runs of other characters and of digits take turns, beginning with the former, which may be empty."""
    pattern = re.compile(r"(\D*)(\d*)")
    while left or right:
        one, other = pattern.match(left), pattern.match(right)
        assert one is not None and other is not None  # noqa: S101 - the pattern matches every text
        for a, b in zip_longest(one[1], other[1], fillvalue=""):
            weight = _weight(a) - _weight(b)
            if weight:
                return 1 if weight > 0 else -1
        number = int(one[2] or 0) - int(other[2] or 0)
        if number:
            return 1 if number > 0 else -1
        left, right = left[one.end() :], right[other.end() :]
    return 0


def _weight(character: str) -> int:
    """A tilde is before the end, the end before letters, letters before all others."""
    if character == "~":
        return -1
    if not character:
        return 0
    return ord(character) if character.isalpha() else ord(character) + 256
