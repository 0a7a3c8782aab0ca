"""Rules and findings: what a rule is called, why it exists, and what it found. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from myriad.lint.scene import KeyPath, Scene, Thing

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
Check = Callable[[Scene], Iterable["Raw"]]


@dataclass(frozen=True, slots=True)
class Raw:
    """What a rule yields.

    Attributes:
        thing: the object.
        path: the key in it that is wrong, or that should hold what is missing.
        message: what will happen, as a sentence that reads on from the object's name.
        change: what to change.
        severity: where this one finding is milder or worse than its rule.
        line: where it is not the line of `path`.
    """

    thing: Thing
    path: KeyPath
    message: str
    change: str
    severity: Severity | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding with its rule and place."""

    rule: str
    severity: Severity
    object: str
    key: str
    file: str
    line: int | None
    message: str
    change: str

    @property
    def where(self) -> str:
        """`file:line`, or the object's name where it comes from no file."""
        if not self.file:
            return self.object
        return f"{self.file}:{self.line}" if self.line is not None else self.file

    def as_dict(self) -> dict[str, Any]:
        """For `--json`: plain types only."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "object": self.object,
            "key": self.key,
            "file": self.file or None,
            "line": self.line,
            "message": self.message,
            "change": self.change,
        }


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        id: stable name.
        severity: of its findings.
        title: what it finds, in a few words.
        why: what happens otherwise.
        sources: threads and documents that it comes from.
        looks_at: kinds that it judges.
        check: finds.
    """

    id: str
    severity: Severity
    title: str
    why: str
    sources: tuple[str, ...]
    looks_at: str
    check: Check


RULES: dict[str, Rule] = {}


def rule(
    id: str, severity: Severity, title: str, *, looks_at: str, sources: Iterable[str] = ()
) -> Callable[[Check], Check]:
    """Register a rule; its function's docstring says why it exists."""

    def register(check: Check) -> Check:
        why = " ".join((check.__doc__ or "").split())
        if id in RULES:
            raise ValueError(f"two rules are called {id}")
        RULES[id] = Rule(id, severity, title, why, tuple(sources), looks_at, check)
        return check

    return register


def findings(scene: Scene, *, only: Iterable[str] | None = None) -> list[Finding]:
    """Everything that the rules find about the objects that are judged, by file and line, then by object.

    Args:
        scene: the objects.
        only: rules to ask; all without it.
    """
    wanted = set(only) if only is not None else None
    found = [
        finding for each in RULES.values() if wanted is None or each.id in wanted for finding in _of_rule(each, scene)
    ]
    return sorted(dict.fromkeys(found), key=_order)


def _of_rule(each: Rule, scene: Scene) -> Iterator[Finding]:
    for raw in each.check(scene):
        if not raw.thing.given:
            continue
        document = raw.thing.document
        yield Finding(
            rule=each.id,
            severity=raw.severity or each.severity,
            object=raw.thing.title,
            key=dotted(raw.path),
            file=document.file,
            line=raw.line if raw.line is not None else document.line(raw.path),
            message=raw.message,
            change=raw.change,
        )


def dotted(path: KeyPath) -> str:
    """`spec.containers[0].image`."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        elif any(mark in str(part) for mark in "./"):
            out += f'["{part}"]'
        else:
            out += f".{part}" if out else part
    return out


def _order(finding: Finding) -> tuple[Any, ...]:
    return (
        finding.file,
        finding.line or 0,
        "" if finding.file else finding.object,
        SEVERITIES.index(finding.severity),
        finding.rule,
        finding.message,
    )
