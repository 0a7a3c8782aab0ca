"""GPU-hour budgets: which there are, how much of each is left, and what that means for a queue or a job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo
from fractions import Fraction

from myriad.scheduler.ledger.limits import hours_words
from myriad.scheduler.ledger.periods import Period, moment, period_of
from myriad.scheduler.policy import Budget, SitePolicy

WARN_AT = Fraction(8, 10)
Spent = Mapping[tuple[str, str, str], Fraction]
"""GPU-seconds by (team, pool, project)."""


@dataclass(frozen=True, slots=True)
class Line:
    """One budget of the description; `project` is empty for the whole team's."""

    team: str
    pool: str
    project: str
    hours: int
    kind: str
    leave: bool
    """Used up, running jobs are asked to leave; else they go on."""


@dataclass(frozen=True, slots=True)
class Balance:
    """A budget in its current period. Hours are exact fractions; `left_h` may be below zero, as running jobs go on."""

    line: Line
    period: Period
    used_h: Fraction

    @property
    def budget_h(self) -> int:
        """Hours of the period."""
        return self.line.hours

    @property
    def left_h(self) -> Fraction:
        """Hours left."""
        return self.line.hours - self.used_h

    @property
    def period_end(self) -> int:
        """When the next period begins, seconds since the epoch."""
        return self.period.end

    @property
    def used_up(self) -> bool:
        """Whether nothing is left."""
        return self.left_h <= 0

    @property
    def short(self) -> bool:
        """Whether four fifths are used and something is left."""
        return not self.used_up and self.used_h >= WARN_AT * self.line.hours


def lines(policy: SitePolicy) -> list[Line]:
    """Every budget of the site, of teams and of their projects."""
    found = []
    for team, rules in sorted(policy.teams.items()):
        of: list[tuple[str, Mapping[str, Budget]]] = [("", rules.gpu_hours)]
        of += sorted(rules.projects.items())
        for project, budgets in of:
            for pool, budget in sorted(budgets.items()):
                leave = budget.used_up == "leave"
                found.append(Line(team, pool, project, budget.budget, budget.period, leave))
    return found


def balance(line: Line, spent: Spent, period: Period) -> Balance:
    """A budget against what was spent in its period. A team's own counts all of its projects."""
    used = sum(
        (
            gpu_seconds
            for (team, pool, project), gpu_seconds in spent.items()
            if team == line.team and pool == line.pool and line.project in ("", project)
        ),
        Fraction(0),
    )
    return Balance(line, period, used / 3600)


def period_now(line: Line, now: float, tz: tzinfo) -> Period:
    """The period of a budget that `now` is in."""
    return period_of(line.kind, now, tz)


def of_whom(line: Line) -> str:
    """`vision`, or `project bert of vision`."""
    return f"project {line.project} of {line.team}" if line.project else line.team


def hours(amount: Fraction | float) -> str:
    """GPU-hours as people read them: `96`, `4,210`, `0.5`, `-3`."""
    value = float(amount)
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def used_up_sentence(b: Balance, tz: tzinfo) -> str:
    """Why a queue is held, and until when. It stays the same while it is: it is written only once."""
    return (
        f"{of_whom(b.line)} has used up its {b.line.hours:,} GPU-hours of {b.period.name} in pool {b.line.pool}; "
        f"new jobs start again on {moment(b.period.end, tz)}"
    )


def short_sentence(b: Balance) -> str:
    """The warning before."""
    return (
        f"{of_whom(b.line)} has used {hours(b.used_h)} of {b.line.hours:,} GPU-hours of {b.period.name} in pool "
        f"{b.line.pool}: {hours(b.left_h)} left"
    )


def overrun_sentence(gpus: Fraction | int, limit_s: int | None, b: Balance) -> str:
    """What a job may cost against what is left; empty where it fits, or where it has no limit to reckon with."""
    if limit_s is None or b.used_up:
        return ""
    needs = gpus * Fraction(limit_s, 3600)
    if needs <= b.left_h:
        return ""
    size = f"{hours(needs)} GPU-hours ({hours(Fraction(gpus))} GPUs for {hours_words(limit_s)})"
    left = f"the {hours(b.left_h)} that {of_whom(b.line)} has left in pool {b.line.pool} until {b.period.name} ends"
    return f"this job of up to {size} does not fit into {left}"
