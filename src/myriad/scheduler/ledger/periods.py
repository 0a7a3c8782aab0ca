"""Calendar periods in the site's time zone: the day, week, month, quarter or year that a moment belongs to. Pure.

A period is half open, [start, end), in whole seconds since the epoch. A day on which the clocks change has 23 or 25
hours; midnight that a change skips or repeats is the first moment of that date.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from myriad.errors import InputError

KINDS = ("day", "week", "month", "quarter", "year")
_LAST_YEAR = 9000


@dataclass(frozen=True, slots=True)
class Period:
    """One calendar period.

    Attributes:
        name: `2026-11-30`, `2026-W49`, `2026-11`, `2026-Q4` or `2026`.
        start, end: seconds since the epoch; the end is the next period's start.
    """

    name: str
    start: int
    end: int


def zone(name: str) -> tzinfo:
    """A time zone by its IANA name. Raises InputError for one that this machine does not know."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InputError(
            f'"{name}" is not a time zone that this machine knows',
            hint="write an IANA name such as Europe/Berlin or UTC; the data come with the package tzdata",
        ) from error


def period_of(kind: str, at: float, tz: tzinfo) -> Period:
    """The period of a kind that holds a moment (seconds since the epoch)."""
    day = datetime.fromtimestamp(at, tz).date()
    first, after, name = _span(kind, day)
    return Period(name, _midnight(first, tz), _midnight(after, tz))


def period_named(name: str, tz: tzinfo) -> Period:
    """The period of a name as `Period.name` writes it.

    Raises:
        InputError: it is no such name.
    """
    day = _day_of(name)
    if day is None:
        raise InputError(
            f'"{name}" names no period', hint="write 2026-11 for a month, or 2026, 2026-Q4, 2026-W49, 2026-11-30"
        )
    kind, first = day
    _, after, written = _span(kind, first)
    return Period(written, _midnight(first, tz), _midnight(after, tz))


def moment(at: float, tz: tzinfo) -> str:
    """A moment as people and programs read it: local time with its offset."""
    return datetime.fromtimestamp(at, tz).isoformat(timespec="seconds")


def _span(kind: str, day: date) -> tuple[date, date, str]:
    if kind == "day":
        return day, day + timedelta(days=1), day.isoformat()
    if kind == "week":
        monday = day - timedelta(days=day.weekday())
        year, week, _ = day.isocalendar()
        return monday, monday + timedelta(days=7), f"{year}-W{week:02}"
    if kind == "month":
        first = day.replace(day=1)
        return first, _months_on(first, 1), f"{day.year}-{day.month:02}"
    if kind == "quarter":
        first = date(day.year, (day.month - 1) // 3 * 3 + 1, 1)
        return first, _months_on(first, 3), f"{day.year}-Q{(day.month - 1) // 3 + 1}"
    if kind == "year":
        return date(day.year, 1, 1), date(day.year + 1, 1, 1), str(day.year)
    raise InputError(f'"{kind}" is no period', hint=f"one of: {', '.join(KINDS)}")


def _months_on(first: date, months: int) -> date:
    index = first.year * 12 + first.month - 1 + months
    return date(index // 12, index % 12 + 1, 1)


def _day_of(name: str) -> tuple[str, date] | None:
    """Kind and first day of a period's name."""
    year, _, rest = name.partition("-")
    if len(year) != 4 or not (year.isdecimal() and year.isascii()) or not 1970 <= int(year) <= _LAST_YEAR:
        return None
    try:
        if not rest:
            return ("year", date(int(year), 1, 1)) if name == year else None
        if rest[0] == "Q":
            return ("quarter", date(int(year), int(rest[1:]) * 3 - 2, 1)) if rest in ("Q1", "Q2", "Q3", "Q4") else None
        if rest[0] == "W":
            return "week", date.fromisocalendar(int(year), int(rest[1:]), 1)
        if len(rest) == 2:
            return "month", date(int(year), int(rest), 1)
        return "day", date.fromisoformat(name)
    except (ValueError, OverflowError):
        return None


def _midnight(day: date, tz: tzinfo) -> int:
    """The first moment of a date: not before it has begun, also where the clocks skip or repeat midnight."""
    naive = datetime(day.year, day.month, day.day)
    earliest = min(int(naive.replace(tzinfo=tz, fold=fold).astimezone(UTC).timestamp()) for fold in (0, 1))
    # Where midnight is skipped, fold 1 gives a moment of the day before.
    while datetime.fromtimestamp(earliest, tz).date() < day:
        earliest += 900
    return earliest
