"""What is wrong with a description: one problem each, all of them together, never the first only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written.

    Attributes:
        file: path as the user would type it (the inventory's path joined with the path inside it).
        line: first line of the value, counted from 1, where the reader knows it.
    """

    file: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, as a sentence.

    Attributes:
        rule: stable name of the rule, for programs (`location-depth`, `quota`, ...).
        message: what is wrong and what is allowed or to be changed. Reads on from the subject (host or key).
        severity: an error stops everything; a warning is printed and the run goes on.
        key: path of the key in the description (`myriad_teams.vision.quota.h100`) or the group (`group pool_h100`).
        hosts: the hosts that it is about. Equal problems of several hosts are folded into one.
        origin: where the value was written.
    """

    rule: str
    message: str
    severity: Severity = "error"
    key: str | None = None
    hosts: tuple[str, ...] = ()
    origin: Origin | None = None

    @property
    def subject(self) -> str:
        """The host range or the key: what stands in front of the message."""
        return host_ranges(self.hosts) if self.hosts else (self.key or "")

    def as_dict(self) -> dict[str, Any]:
        """The problem for `--json`: plain types only."""
        return {
            "severity": self.severity,
            "rule": self.rule,
            "file": self.origin.file if self.origin else None,
            "line": self.origin.line if self.origin else None,
            "key": self.key,
            "hosts": list(self.hosts),
            "message": self.message,
        }


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """Those that stop a run."""
    return [problem for problem in problems if problem.severity == "error"]


def warnings(problems: Iterable[Problem]) -> list[Problem]:
    """Those that are printed only."""
    return [problem for problem in problems if problem.severity == "warning"]


def fold(problems: Iterable[Problem]) -> list[Problem]:
    """Join problems that differ only in their hosts, and order them by file and line.

    A group variable that is wrong for a rack is one problem with eight hosts, not eight problems.
    """
    merged: dict[tuple[Any, ...], tuple[Problem, dict[str, None]]] = {}
    for problem in problems:
        file = problem.origin.file if problem.origin else None
        # Without hosts the line counts too; hosts of one file may stand on a line each.
        place = file if problem.hosts else problem.origin
        key = (problem.rule, problem.message, problem.severity, problem.key, place, bool(problem.hosts))
        _first, hosts = merged.setdefault(key, (problem, {}))
        hosts.update(dict.fromkeys(problem.hosts))
    folded = [replace(problem, hosts=tuple(hosts)) for problem, hosts in merged.values()]
    return sorted(folded, key=_order)


def _order(problem: Problem) -> tuple[Any, ...]:
    origin = problem.origin
    return (
        (origin.file.count("/"), origin.file) if origin else (0, ""),
        (origin.line or 0) if origin else 0,
        problem.key or "",
        natural(problem.hosts[0]) if problem.hosts else (),
        problem.message,
    )


_DIGITS = re.compile(r"(\d+)")


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts gpu9 before gpu10."""
    return tuple((0, int(part), part) if part.isdigit() else (1, 0, part) for part in _DIGITS.split(name) if part)


_LAST_NUMBER = re.compile(r"^(.*?)(\d+)(\D*)$")


def host_ranges(hosts: Sequence[str], *, limit: int = 4) -> str:
    """Host names for people: runs as `gpu0001..gpu0008`, at most `limit` parts, then the count of all.

    >>> host_ranges(["gpu1", "gpu2", "gpu3", "cp1"])
    'cp1, gpu1..gpu3 (4 hosts)'
    """
    names = sorted(dict.fromkeys(hosts), key=natural)
    runs: list[list[str]] = []
    previous: tuple[str, int, int, str] | None = None
    for name in names:
        match = _LAST_NUMBER.match(name)
        current = (match[1], int(match[2]), len(match[2]), match[3]) if match else None
        follows = (
            current is not None
            and previous is not None
            and current[0] == previous[0]
            and current[3] == previous[3]
            and current[1] == previous[1] + 1
        )
        if follows:
            runs[-1].append(name)
        else:
            runs.append([name])
        previous = current
    parts = [name for run in runs for name in ([f"{run[0]}..{run[-1]}"] if len(run) > 2 else run)]
    shown = ", ".join(parts[:limit])
    if len(parts) > limit:
        shown += ", ..."
    return f"{shown} ({len(names)} hosts)" if len(names) > 2 else shown
