"""What a soak says at its end: faults and how fast all was well again, rules and what broke them. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from myriad.lab.display import duration
from myriad.lab.soak.invariants import Violation
from myriad.lab.soak.plan import FROM_MINUTES, LEAST_TIMES, Plan
from myriad.lab.soak.recovery import Course

Json = dict[str, Any]


@dataclass(slots=True)
class Result:
    """All that a soak found.

    Attributes:
        plan: what was to happen.
        courses: what became of each fault.
        rules: name of a rule -> what it says.
        checks: name of a rule -> how often it was checked.
        violations: each once.
        looks, unanswered: looks at the cluster, and tries at which no API server answered.
        gangs: how many of them were submitted, ended well, and failed.
        charges: rows of the ledger of these gangs, and how many of them end by estimate.
        is_cut_short: it was stopped before its end.
    """

    plan: Plan
    courses: list[Course]
    rules: Mapping[str, str]
    checks: dict[str, int] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    looks: int = 0
    unanswered: int = 0
    gangs: dict[str, int] = field(default_factory=dict)
    charges: dict[str, int] = field(default_factory=dict)
    is_cut_short: bool = False

    def happened(self) -> dict[str, int]:
        """How often each kind really happened."""
        return {
            name: sum(course.fault.kind == name and course.injected is not None for course in self.courses)
            for name in self.plan.times()
        }

    def too_few(self) -> dict[str, str]:
        """Kinds that came less often than a soak of this length owes: `1 of 3`."""
        owed = LEAST_TIMES if self.plan.minutes >= FROM_MINUTES else 1
        planned, happened = self.plan.times(), self.happened()
        return {
            name: f"{happened[name]} of {min(owed, count)}"
            for name, count in planned.items()
            if happened[name] < min(owed, count)
        }

    @property
    def ok(self) -> bool:
        """Whether it shows what a soak is for: everything happened, and nothing was violated."""
        return not (self.violations or self.is_cut_short or self.too_few()) and self.looks > 0

    def as_json(self) -> Json:
        """For `--json`, and the last JSON line."""
        return {
            "ok": self.ok,
            "seed": self.plan.seed,
            "minutes": self.plan.minutes,
            "faults": {name: _figures(self, name) for name in self.plan.times()},
            "left_out": dict(self.plan.left_out),
            "too_few": self.too_few(),
            "rules": {
                name: {
                    "text": text,
                    "checked": self.checks.get(name, 0),
                    "violations": sum(one.rule == name for one in self.violations),
                }
                for name, text in self.rules.items()
            },
            "violations": [violation_json(one) for one in self.violations],
            "looks": self.looks,
            "unanswered": self.unanswered,
            "gangs": self.gangs,
            "ledger": self.charges,
            "cut_short": self.is_cut_short,
        }


def violation_json(one: Violation) -> Json:
    """A violation with the part of the look that shows it."""
    return {"rule": one.rule, "at": round(one.at, 1), "subject": one.subject, "text": one.text, "shown": one.shown}


def _figures(result: Result, name: str) -> Json:
    mine = [course for course in result.courses if course.fault.kind == name]
    times = [course.recovery_s for course in mine if course.recovery_s is not None]
    return {
        "planned": len(mine),
        "happened": sum(course.injected is not None for course in mine),
        "recovered": len(times),
        "recovery_s": [round(value, 1) for value in times],
        "skipped": [course.skipped for course in mine if course.skipped],
    }


def plan_lines(plan: Plan) -> list[str]:
    """The plan for people: `--dry-run`."""
    lines = [f"seed {plan.seed}, {plan.minutes} minutes, {len(plan.faults)} faults, {len(plan.gangs)} gangs"]
    lines += [
        f"  {_clock(fault.at_s)}  {fault.title:<34} "
        + (f"taken back after {duration(fault.hold_s)}" if fault.hold_s else "ends by itself")
        for fault in plan.faults
    ]
    lines.append(f"somebody else's taint and label stand on {plan.marked}")
    lines += [f"left out: {name} ({why})" for name, why in plan.left_out.items()]
    return lines


def result_lines(result: Result) -> list[str]:
    """The report for people."""
    rows = [("fault", "planned", "happened", "recovered", "median", "longest")]
    for name in result.plan.times():
        figures = _figures(result, name)
        times = figures["recovery_s"]
        rows.append(
            (
                name, str(figures["planned"]), str(figures["happened"]), str(figures["recovered"]),
                duration(statistics.median(times)) if times else "-", duration(max(times)) if times else "-",
            )
        )  # fmt: skip
    lines = _table(rows)
    lines += [f"{name:<12} left out: {why}" for name, why in result.plan.left_out.items()]
    lines += [
        f"{course.fault.kind:<12} {course.fault.title} did not happen: {course.skipped}"
        for course in result.courses
        if course.skipped
    ]
    lines.append("")
    checked = [("rule", "checked", "violations", "what must hold")]
    for name, text in result.rules.items():
        wrong = sum(one.rule == name for one in result.violations)
        checked.append((name, str(result.checks.get(name, 0)), str(wrong), text))
    lines += _table(checked)
    lines.append("")
    gangs, rows_ = result.gangs, result.charges
    lines.append(
        f"{gangs.get('submitted', 0)} gangs, {gangs.get('complete', 0)} ended well, {gangs.get('failed', 0)} failed; "
        f"{result.looks} looks, {result.unanswered} without an answer; "
        f"{rows_.get('rows', 0)} rows of the ledger, {rows_.get('estimated', 0)} by estimate"
    )
    for one in result.violations:
        lines.append(f"VIOLATED {one.rule}: {one.text}")
        lines.append(f"         {_shown(one.shown)}")
    lines += [f"TOO FEW  {name}: {text} times" for name, text in result.too_few().items()]
    if result.is_cut_short:
        lines.append("STOPPED  before its end: what it shows is not a whole soak")
    verdict = "held" if result.ok else "did not hold"
    lines.append(f"seed {result.plan.seed}: {verdict}")
    return lines


def _shown(shown: Json) -> str:
    return "; ".join(f"{key} {value}" for key, value in shown.items()) or "nothing more was seen"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:>3}:{int(seconds) % 60:02}"
