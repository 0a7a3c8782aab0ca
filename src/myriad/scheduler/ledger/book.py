"""The ledger as the rest of the extension uses it: sums, balances and corrections over one database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import tzinfo
from fractions import Fraction
from typing import Any

from myriad.scheduler.ledger import budgets
from myriad.scheduler.ledger.budgets import Balance
from myriad.scheduler.ledger.periods import Period, moment, period_named, period_of, zone
from myriad.scheduler.ledger.report import report
from myriad.scheduler.ledger.store import Charge, Store
from myriad.scheduler.policy import SitePolicy

Json = dict[str, Any]

PER: Mapping[str, Callable[[Charge], str]] = {
    "project": lambda charge: charge.project,
    "owner": lambda charge: charge.owner,
    "namespace": lambda charge: charge.namespace,
    "job": lambda charge: charge.job,
}
"""What a report can be broken down by."""
_GOOD_S = 30.0
_KEPT = 16


class Ledger:
    """Reads and sums. Safe to use from several threads; each call may raise LedgerError.

    Args:
        url: `sqlite:////path/ledger.db` or `postgresql://user:password@host/database`.
        policy: the site's rules, asked at each call.
        timezone: in which periods begin, an IANA name.
        clock: seconds since the epoch.

    Raises:
        InputError: of the URL or the time zone.
    """

    def __init__(
        self,
        url: str,
        *,
        policy: Callable[[], SitePolicy] = SitePolicy,
        timezone: str = "UTC",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.tz: tzinfo = zone(timezone)
        self.timezone = timezone
        self.policy = policy
        self.clock = clock
        self.store = Store(url, clock=clock)
        self._lock = threading.Lock()
        self._reports: dict[tuple[str, str], tuple[float, Json]] = {}

    def now(self) -> int:
        """Our own time in whole seconds: until where open charges are counted."""
        return int(self.clock())

    def usage(
        self, *, team: str = "", pool: str = "", since: int = 0, until: int | None = None, project: str = ""
    ) -> list[Charge]:
        """Charges that touch [since, until), in order of their start."""
        return self.store.charges(
            since=since, until=self.now() + 1 if until is None else until, team=team, pool=pool, project=project
        )

    def balance(self, team: str, pool: str, now: float | None = None, *, project: str = "") -> Balance | None:
        """A budget in its current period; None where the description has none."""
        at = self.now() if now is None else int(now)
        for line in budgets.lines(self.policy()):
            if (line.team, line.pool, line.project) == (team, pool, project):
                period = budgets.period_now(line, at, self.tz)
                spent = self.store.spent(since=period.start, until=period.end, now=at, team=team, pool=pool)
                return budgets.balance(line, spent, period)
        return None

    def balances(self, now: float | None = None) -> list[Balance]:
        """Every budget in its current period. One query for each kind of period that is in use."""
        at = self.now() if now is None else int(now)
        spent: dict[Period, dict[tuple[str, str, str], Fraction]] = {}
        found = []
        for line in budgets.lines(self.policy()):
            period = budgets.period_now(line, at, self.tz)
            if period not in spent:
                spent[period] = self.store.spent(since=period.start, until=period.end, now=at)
            found.append(budgets.balance(line, spent[period], period))
        return found

    def report(self, name: str = "", by: str = "") -> Json:
        """What every team used of a period; see `report.report`. The same one for half a minute.

        Args:
            name: of the period as `Period.name` writes it; the current month without one.
            by: a key of `PER`, or empty.

        Raises:
            InputError: it names no period.
        """
        now = self.now()
        period = period_named(name, self.tz) if name else period_of("month", now, self.tz)
        key = period.name, by
        with self._lock:
            # One at a time: a month of a large site is some hundred thousand rows.
            made, known = self._reports.get(key, (float("-inf"), {}))
            if now - made < _GOOD_S:
                return known
            found = self._report(period, by, now)
            if len(self._reports) >= _KEPT:
                self._reports.clear()
            self._reports[key] = now, found
            return found

    def _report(self, period: Period, by: str, now: int) -> Json:
        corrections = self.store.corrections(since=period.start, until=period.end)
        found = report(
            self.store.charges(since=period.start, until=period.end),
            self.store.quotas(until=period.end),
            corrections,
            period=period,
            now=now,
            per=PER.get(by),
        )
        return {
            **found,
            "by": by,
            "start": moment(period.start, self.tz),
            "end": moment(period.end, self.tz),
            "until": moment(found["until"], self.tz),
            "corrections": [
                {
                    "at": moment(c.at, self.tz),
                    "team": c.team,
                    "pool": c.pool,
                    "project": c.project,
                    "hours": round(c.gpu_seconds / 3600, 4),
                    "who": c.who,
                    "why": c.why,
                }
                for c in corrections
            ],
        }
