"""Which versions go together: pure checks of a mapping of versions against a table of rules with their sources.

The table is stack/compat.yml; `myriad.stack.lock.load_rules` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

_BOUND = re.compile(r"(>=|<=|==|>|<)\s*(\d+(?:\.\d+)*)")
_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)")

Version = tuple[int, ...]


def parse_version(text: str) -> Version:
    """The leading dotted numbers of a version, all of them: `v1.1.5+ds1-1` is (1, 1, 5). Raises ValueError."""
    match = _NUMBERS.match(text)
    if match is None:
        raise ValueError(f"{text!r} does not begin with a version number")
    return tuple(int(part) for part in match[1].split("."))


def compare(left: Version, right: Version) -> int:
    """-1, 0 or 1; missing parts count as 0, so 1.35 equals 1.35.0."""
    for one, other in zip_longest(left, right, fillvalue=0):
        if one != other:
            return -1 if one < other else 1
    return 0


def _range(text: str) -> str:
    for part in text.split(","):
        if not _BOUND.fullmatch(part.strip()):
            raise ValueError(f"{text!r} is no version range; write for example >=1.29,<1.36")
    return text


Range = Annotated[str, AfterValidator(_range)]


def _bounds(text: str) -> list[tuple[str, Version, str]]:
    """The operator, the version and its spelling (a driver is 580.65.06, not 580.65.6) of each bound of a range."""
    found = [_BOUND.fullmatch(part.strip()) for part in text.split(",")]
    return [(match[1], parse_version(match[2]), match[2]) for match in found if match is not None]


def satisfies(version: Version, text: str) -> bool:
    """Is the version inside a range such as `>=1.29,<1.36`?"""
    for operator, bound, _ in _bounds(text):
        order = compare(version, bound)
        inside = {">=": order >= 0, ">": order > 0, "<=": order <= 0, "<": order < 0, "==": order == 0}[operator]
        if not inside:
            return False
    return True


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Row(_Strict):
    """For versions of `a` in `when`: the ranges of `b` that go with them, and those that somebody ran."""

    when: Range
    allow: list[Range] = Field(min_length=1)
    tested: list[Range] = Field(default_factory=list)


class Skew(_Strict):
    """How many minors b may be behind (`older`) and ahead (`newer`) of a."""

    older: int = Field(ge=0)
    newer: int = Field(ge=0)


class Rule(_Strict):
    """One rule between two components, with the page that states it."""

    id: str
    a: str
    b: str
    source: str
    rows: list[Row] = Field(default_factory=list)
    skew: Skew | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Rule:
        if bool(self.rows) == (self.skew is not None):
            raise ValueError(f"rule {self.id} needs either rows or skew")
        return self


class Rules(_Strict):
    """The whole table."""

    rules: list[Rule]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A rule that is violated (`error`), left what was tested, or says nothing about a version (`warning`).

    Attributes:
        nearest: what would satisfy the rule, nearest first, as `component version` phrases.
    """

    level: Literal["error", "warning"]
    rule: str
    a: str
    a_version: str
    b: str
    b_version: str
    text: str
    source: str
    nearest: tuple[str, ...] = ()

    def __str__(self) -> str:
        nearest = f"; nearest that go together: {', or '.join(self.nearest)}" if self.nearest else ""
        return f"{self.text} (rule {self.rule}, {self.source}){nearest}"


def check(versions: Mapping[str, str], rules: Sequence[Rule]) -> list[Finding]:
    """All findings, errors first. A rule about a component that has no version here says nothing.

    Args:
        versions: component or program -> version, such as {"kubernetes": "1.35.4", "kubelet": "1.34.4"}.
        rules: the table.
    """
    findings = []
    for rule in rules:
        if rule.a in versions and rule.b in versions:
            found = _skew(rule, versions) if rule.skew is not None else _rows(rule, versions)
            if found is not None:
                findings.append(found)
    return sorted(findings, key=lambda finding: finding.level != "error")


def _finding(
    rule: Rule, versions: Mapping[str, str], level: Literal["error", "warning"], text: str, nearest: Sequence[str] = ()
) -> Finding:
    return Finding(
        level=level,
        rule=rule.id,
        a=rule.a,
        a_version=versions[rule.a],
        b=rule.b,
        b_version=versions[rule.b],
        text=text,
        source=rule.source,
        nearest=tuple(nearest),
    )


def _rows(rule: Rule, versions: Mapping[str, str]) -> Finding | None:
    a, b = parse_version(versions[rule.a]), parse_version(versions[rule.b])
    both = f"{rule.a} {versions[rule.a]} and {rule.b} {versions[rule.b]}"
    row = next((row for row in rule.rows if satisfies(a, row.when)), None)
    if row is None:
        text = f"nothing is known about {both}: the table has no row for {rule.a} {versions[rule.a]}"
        return _finding(rule, versions, "warning", text)
    if not any(satisfies(b, text) for text in row.allow):
        nearest = [f"{rule.b} {text}" for text in _nearest(b, row.allow)]
        others = [other.when for other in rule.rows if any(satisfies(b, text) for text in other.allow)]
        nearest += [f"{rule.a} {text}" for text in _nearest(a, others)[:1]]
        text = f"{both} do not go together: {rule.a} {row.when} needs {rule.b} {' or '.join(row.allow)}"
        return _finding(rule, versions, "error", text, nearest)
    if row.tested and not any(satisfies(b, text) for text in row.tested):
        text = f"{both} are allowed, but tested is {rule.b} {' or '.join(row.tested)}"
        return _finding(rule, versions, "warning", text, [f"{rule.b} {near}" for near in _nearest(b, row.tested)])
    return None


def _skew(rule: Rule, versions: Mapping[str, str]) -> Finding | None:
    if rule.skew is None:
        return None
    a, b = parse_version(versions[rule.a]), parse_version(versions[rule.b])
    both = f"{rule.a} {versions[rule.a]} and {rule.b} {versions[rule.b]}"
    behind = (a[1] if len(a) > 1 else 0) - (b[1] if len(b) > 1 else 0)
    if a[0] == b[0] and -rule.skew.newer <= behind <= rule.skew.older:
        return None
    oldest = f"{a[0]}.{max(a[1] - rule.skew.older, 0)}"
    newest = f"{a[0]}.{a[1] + rule.skew.newer}"
    span = f"{rule.b} {oldest} to {newest}" if oldest != newest else f"{rule.b} {newest}"
    limits = f"at most {rule.skew.older} minor versions older"
    limits += f" and {rule.skew.newer} newer" if rule.skew.newer else " and never newer"
    text = f"{both} do not go together: {rule.b} may be {limits} than {rule.a}"
    return _finding(rule, versions, "error", text, [span])


def _nearest(version: Version, ranges: Sequence[str]) -> list[str]:
    """The edges of the ranges that are nearest to a version that is outside all of them: one above, one below."""
    above: tuple[Version, str] | None = None
    below: tuple[Version, str] | None = None
    for text in ranges:
        for operator, bound, spelled in _bounds(text):
            order = compare(bound, version)
            if operator in (">=", "==", ">") and order > 0 and (above is None or compare(bound, above[0]) < 0):
                above = (bound, spelled if operator != ">" else f"after {spelled}")
            if operator in ("<", "<=", "==") and order <= 0 and (below is None or compare(bound, below[0]) > 0):
                below = (bound, spelled if operator != "<" else f"before {spelled}")
    return [edge[1] for edge in (above, below) if edge is not None]
