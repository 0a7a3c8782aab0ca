"""The ledger as the rest of the extension uses it: sums, balances and corrections over one database."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import tzinfo
from fractions import Fraction

from myriad.scheduler.ledger import budgets
from myriad.scheduler.ledger.budgets import Balance
from myriad.scheduler.ledger.periods import Period, zone
from myriad.scheduler.ledger.store import Charge, Store
from myriad.scheduler.policy import SitePolicy


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
