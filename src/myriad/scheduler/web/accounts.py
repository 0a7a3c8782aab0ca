"""The ledger's side of the API: GPU-hours that are left, and what was used of a period.

A team's numbers are for whoever may see one of its namespaces; what is broken down by project, owner or job, only for
namespaces that the caller may see. Of other teams the sum is said.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from myriad.kube.kinds import CLUSTER_QUEUES, LOCAL_QUEUES
from myriad.scheduler.cache import Cache, key_of
from myriad.scheduler.ledger import budgets
from myriad.scheduler.ledger.book import PER, Ledger
from myriad.scheduler.ledger.budgets import Balance
from myriad.scheduler.ledger.copying import PATH, as_json
from myriad.scheduler.ledger.holds import hold_of
from myriad.scheduler.ledger.periods import moment
from myriad.scheduler.ledger.report import merged
from myriad.scheduler.ledger.store import LedgerError
from myriad.scheduler.model import POOL_LABEL
from myriad.scheduler.objects import TEAM_LABEL
from myriad.scheduler.quota_view import Balance as Hours
from myriad.scheduler.web.answers import AFTER, ROWS, TEAM, answer, fields
from myriad.scheduler.web.auth import Scope
from myriad.scheduler.web.endpoint import Ask, Endpoint, Param, Rule
from myriad.scheduler.web.scope import ScopedCache

Json = dict[str, Any]

PERIOD = Param(
    "period", "a day, week, month, quarter or year", r"\d{4}(-(\d{2}(-\d{2})?|Q[1-4]|W\d{2}))?", 10,
    default="", example="2026-11",
)  # fmt: skip
BY = Param("by", "what to break it down by", "|".join(re.escape(n) for n in PER), 16, default="", example="project")


_GOOD_S = 5.0
"""Balances are summed at most this often: whoever asks in between gets the last ones, unless budgets have changed."""
_SILENT_S = 30.0
"""The live page asks a ledger that did not answer again after this long: what else it shows must not wait for it."""


class Accounts:
    """What callers are told of the ledger. Safe to use from several threads.

    Args:
        ledger: sums and balances; None where this process keeps none.
        state: how far the ledger is behind.
    """

    def __init__(self, ledger: Ledger | None, state: Callable[[], Json] = dict) -> None:
        self._ledger = ledger
        self._state = state
        self._lock = threading.Lock()
        self._summed_at = float("-inf")
        self._balances: list[Balance] = []
        self._summed_by: object = None
        self._silent_at = float("-inf")

    def state(self) -> Json:
        """How far the ledger is behind; empty where there is none."""
        return self._state() if self._ledger is not None else {}

    def hours(self) -> dict[tuple[str, str], Hours]:
        """GPU-hours of teams by (team, pool), for quota reports; none where the ledger does not answer."""
        if self._ledger is None:
            return {}
        try:
            balances = self._all(self._ledger)
        except LedgerError:
            return {}
        return {
            (b.line.team, b.line.pool): Hours(
                float(b.budget_h), float(b.used_h), float(b.left_h), self._day(b.period_end)
            )
            for b in balances
            if not b.line.project
        }

    def budgets(self, cache: Cache, team: str = "") -> Json:
        """Every budget of teams that the caller may see: {"budgets", "others", "ledger"}."""
        found = self._asked(self._all)
        held = _held(cache)
        mine = [b for b in found if _shown(cache, b.line.team)]
        return {
            "budgets": [self._row(b, held) for b in mine if not team or b.line.team == team],
            "others": len(found) - len(mine),
            "ledger": {k: v for k, v in self.state().items() if k != "database"},
        }

    def report(self, cache: Cache, scope: Scope, *, period: str = "", team: str = "", by: str = "") -> Json:
        """What the teams that the caller may see used of a period, and the sum of the others."""
        whole = self._asked(lambda ledger: ledger.report(period, by))

        def wanted(rows: Iterable[Json]) -> list[Json]:
            return [r for r in rows if _shown(cache, r["team"]) and (not team or r["team"] == team)]

        others = [row for row in whole["rows"] if not _shown(cache, row["team"])]
        details = [d for d in wanted(whole["details"]) if scope.sees(d["namespace"])]
        return {
            **whole,
            "rows": wanted(whole["rows"]),
            "details": merged(details, ("team", "pool", "name")),
            "corrections": wanted(whole["corrections"]),
            "others": {"teams": len({r["team"] for r in others}), "used_h": round(sum(r["used_h"] for r in others), 4)},
        }

    def tail(self, after: int) -> Json:
        """What was added to the ledger since a moment, for another replica's copy."""
        document: Json = self._asked(lambda ledger: as_json(ledger.store.tail(after)))
        return document

    def shown(self, cache: Cache) -> Json:
        """For the page, which is shown without a ledger too: `budgets`, or {"error"}."""
        if self._ledger is None:
            return {"budgets": [], "others": 0}
        try:
            return self.budgets(cache)
        except HTTPException as error:
            return {"budgets": [], "others": 0, "error": error.detail}

    def rows(self, cache: Cache) -> dict[str, Json]:
        """For the live page: budgets of teams that the caller may see, by team, project and pool, in tenths of an hour.

        Where the ledger does not answer, what was known last.
        """
        if self._ledger is None:
            return {}
        balances = self._balances
        if time.monotonic() - self._silent_at >= _SILENT_S:
            try:
                balances = self._all(self._ledger)
            except LedgerError:
                self._silent_at = time.monotonic()
        held = _held(cache)
        rows = [self._row(b, held) for b in balances if _shown(cache, b.line.team)]
        # Every GPU-second moves them; a tenth is what the page shows, and what is worth an event.
        return {
            f"{r['team']}/{r['project']}/{r['pool']}": {
                **r, "used_h": round(r["used_h"], 1), "left_h": round(r["left_h"], 1)
            }
            for r in rows
        }  # fmt: skip

    def _all(self, ledger: Ledger) -> list[Balance]:
        with self._lock:
            policy = ledger.policy()
            if policy is not self._summed_by or time.monotonic() - self._summed_at >= _GOOD_S:
                self._balances = ledger.balances()
                self._summed_at, self._summed_by = time.monotonic(), policy
            return self._balances

    def _asked(self, ask: Callable[[Ledger], Any]) -> Any:
        if self._ledger is None:
            raise HTTPException(503, "this replica keeps no ledger")
        try:
            return ask(self._ledger)
        except LedgerError as error:
            raise HTTPException(503, error.message) from error

    def _day(self, at: float) -> str:
        tz = self._ledger.tz if self._ledger else None
        return datetime.fromtimestamp(at, tz).date().isoformat()

    def _row(self, balance: Balance, held: Mapping[tuple[str, str], list[str]]) -> Json:
        line, ledger = balance.line, self._ledger
        assert ledger is not None  # noqa: S101 - a balance came from it
        state = "used_up" if balance.used_up else "short" if balance.short else "ok"
        sentence = {
            "used_up": lambda: budgets.used_up_sentence(balance, ledger.tz),
            "short": lambda: budgets.short_sentence(balance),
        }.get(state, str)()
        return {
            "team": line.team,
            "project": line.project,
            "pool": line.pool,
            "period": line.kind,
            "period_name": balance.period.name,
            "period_end": moment(balance.period_end, ledger.tz),
            "budget_h": line.hours,
            "used_h": round(float(balance.used_h), 4),
            "left_h": round(float(balance.left_h), 4),
            "state": state,
            "sentence": sentence,
            "running_jobs": "leave" if line.leave else "finish",
            "held": held.get((line.team, line.pool), []) if not line.project else [],
        }


def _shown(cache: Cache, team: str) -> bool:
    return not isinstance(cache, ScopedCache) or team in cache.teams


def _held(cache: Cache) -> dict[tuple[str, str], list[str]]:
    """LocalQueues that the ledger holds, by the team and pool of their ClusterQueue."""
    places = {
        queue["metadata"]["name"]: (labels.get(TEAM_LABEL, ""), labels.get(POOL_LABEL, ""))
        for queue in cache.listing(CLUSTER_QUEUES)
        for labels in [queue["metadata"].get("labels") or {}]
    }
    found: dict[tuple[str, str], list[str]] = {}
    for queue in cache.listing(LOCAL_QUEUES):
        hold = hold_of(queue)
        if hold is not None and hold.by == "budget":
            place = places.get(str(queue["spec"].get("clusterQueue") or ""), ("", ""))
            found.setdefault(place, []).append(key_of(queue))
    return found


def endpoints(accounts: Accounts) -> list[Endpoint]:
    """The routes of the ledger."""

    def budget(ask: Ask) -> Response:
        return answer(accounts.budgets(ask.cache, ask.text("team")))

    def report(ask: Ask) -> Response:
        asked = {"period": ask.text("period"), "team": ask.text("team"), "by": ask.text("by")}
        return answer(accounts.report(ask.cache, ask.scope, **asked))

    def tail(ask: Ask) -> Response:
        return answer(accounts.tail(ask.number("after")))

    return [
        Endpoint(
            path=PATH,
            rule=Rule.CLUSTER,
            answer=tail,
            about="Rows added to the ledger since a moment; replicas copy from one another by it.",
            params=(AFTER,),
            returns=fields("facts", "quotas", "corrections", "next", "more", facts=ROWS),
        ),
        Endpoint(
            path="/v1/budgets",
            rule=Rule.REDUCED,
            answer=budget,
            about="GPU-hours of every budget: used, left, until when, and which queues are held for it.",
            params=(TEAM,),
            returns=fields("budgets", "others", "ledger", budgets=ROWS),
        ),
        Endpoint(
            path="/v1/report",
            rule=Rule.REDUCED,
            answer=report,
            about="GPU-hours of a period by team and pool: used, borrowed, lent, waited, recomputed, lost, effective.",
            params=(TEAM, PERIOD, BY),
            returns=fields("period", "rows", "details", "corrections", "others", rows=ROWS, details=ROWS),
        ),
    ]
