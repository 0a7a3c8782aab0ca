"""Versions of packages: what a driver version is, and how dpkg orders two versions."""

from __future__ import annotations

import re
from functools import cmp_to_key

_UPSTREAM = re.compile(r"^(?:\d+:)?(\d+(?:\.\d+)+)")


def upstream(version: str) -> str:
    """The driver version in a package version; empty where there is none.

    >>> upstream("535.309.01-0+deb12u1"), upstream("1:580.126.20-1ubuntu1")
    ('535.309.01', '580.126.20')
    """
    match = _UPSTREAM.match(version.strip())
    return match[1] if match else ""


def branch(version: str) -> int:
    """The driver branch, the number before the first dot; 0 where there is none."""
    head = upstream(version).partition(".")[0] or version.strip().partition(".")[0]
    return int(head) if head.isdigit() else 0


def numbers(version: str) -> tuple[int, ...]:
    """The dotted numbers of a version, for comparing (`6.1.0-57-amd64` gives (6, 1, 0))."""
    match = re.match(r"\d+(?:\.\d+)*", version.strip())
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def older(one: str, other: str) -> bool:
    """Whether dotted version `one` is older than `other`; missing parts count as 0."""
    left, right = numbers(one), numbers(other)
    width = max(len(left), len(right))
    return left + (0,) * (width - len(left)) < right + (0,) * (width - len(right))


def compare(one: str, other: str) -> int:
    """Order of two package versions as dpkg has it: negative, 0 or positive.

    https://www.debian.org/doc/debian-policy/ch-controlfields.html#version
    """
    left, right = _split(one), _split(other)
    if left[0] != right[0]:
        return left[0] - right[0]
    return _compare_part(left[1], right[1]) or _compare_part(left[2], right[2])


version_key = cmp_to_key(compare)
"""Key for `sorted`: package versions from old to new."""


def _split(version: str) -> tuple[int, str, str]:
    epoch, colon, rest = version.strip().partition(":")
    if not colon or not epoch.isdigit():
        epoch, rest = "0", version.strip()
    main, _, revision = rest.rpartition("-")
    return (int(epoch), main or rest, revision if main else "")


def _weight(character: str) -> int:
    if character == "~":
        return -1
    return ord(character) if character.isalpha() else ord(character) + 256


_TOKEN = re.compile(r"(\D*)(\d*)")


def _compare_part(one: str, other: str) -> int:
    left, right = one, other
    while left or right:
        here, there = _TOKEN.match(left), _TOKEN.match(right)
        assert here is not None and there is not None  # noqa: S101 - the pattern matches the empty string too
        words = [_weight(character) for character in here[1]], [_weight(character) for character in there[1]]
        width = max(len(words[0]), len(words[1]))
        padded = [word + [0] * (width - len(word)) for word in words]
        if padded[0] != padded[1]:
            return -1 if padded[0] < padded[1] else 1
        difference = int(here[2] or 0) - int(there[2] or 0)
        if difference:
            return difference
        left, right = left[here.end() :], right[there.end() :]
    return 0
