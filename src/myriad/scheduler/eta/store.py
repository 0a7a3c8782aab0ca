"""Runs, estimates and what became of them, kept in the ledger's database in a table of their own.

A fact is written once, under a key of its own; a second writer of the same fact changes nothing. What is older than two
months is dropped: it is advice for estimates, not an account.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Column, Engine, Float, MetaData, String, Table, Text, delete, select
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from myriad.errors import MyriadError
from myriad.scheduler.eta.calibration import Judged
from myriad.scheduler.eta.model import DAY_S, Eta, Kind, Run
from myriad.scheduler.ledger.engines import address, engine_of

KEEP_S = 60 * DAY_S
_CHUNK = 500

_TABLE = Table(
    "eta_facts",
    MetaData(),
    Column("key", String(160), primary_key=True),
    Column("kind", String(16), nullable=False, index=True),
    Column("at", Float, nullable=False, index=True),
    Column("body", Text, nullable=False),
)


@dataclass(frozen=True, slots=True)
class Fact:
    """A row: a run, an open estimate, or a judged one."""

    key: str
    kind: str
    at: float
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class OpenEstimate:
    """An estimate whose job has not started."""

    uid: str
    at: float
    raw: Eta
    told: Eta

    @property
    def key(self) -> str:
        """Its key: one estimate a second of one Workload."""
        return f"{self.uid}@{round(self.at)}"

    def judge(self, started_at: float) -> Judged:
        """Judged by when the job started."""
        r, t = self.raw, self.told
        waited = max(0.0, started_at - self.at)
        return Judged(self.at, r.low_s, r.mid_s, r.high_s, t.low_s, t.mid_s, t.high_s, waited)


def fact_of(value: Run | OpenEstimate | tuple[OpenEstimate, Judged | None]) -> Fact:
    """The row of a run, of an open estimate, or of the end of one (None: it never started)."""
    if isinstance(value, Run):
        return Fact(f"run:{value.uid}", "run", value.submitted_at, asdict(value))
    if isinstance(value, OpenEstimate):
        return Fact(f"open:{value.key}", "open", value.at, asdict(value))
    estimate, judged = value
    return Fact(f"judged:{estimate.key}", "judged", estimate.at, asdict(judged) if judged else {})


class Store:
    """The table. Raises MyriadError where the database does not answer; nothing is connected before it is needed.

    Args:
        url: the ledger's.
    """

    def __init__(self, url: str) -> None:
        self._url = address(url)
        self._engine: Engine = engine_of(self._url)
        self._made = False
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def write(self, facts: Sequence[Fact]) -> None:
        """Add what is new, all or nothing."""
        insert = sqlite_insert if self._engine.dialect.name == "sqlite" else postgresql_insert
        rows = [{"key": f.key, "kind": f.kind, "at": f.at, "body": json.dumps(f.body)} for f in facts]
        with self._told():
            self._make()
            with self._engine.begin() as connection:
                for start in range(0, len(rows), _CHUNK):
                    part = rows[start : start + _CHUNK]
                    connection.execute(insert(_TABLE).values(part).on_conflict_do_nothing(index_elements=["key"]))

    def forget_before(self, at: float) -> None:
        """Drop older facts."""
        with self._told():
            self._make()
            with self._engine.begin() as connection:
                connection.execute(delete(_TABLE).where(_TABLE.c.at < at))

    def load(self, since: float) -> tuple[list[Run], list[OpenEstimate], list[Judged]]:
        """Runs, estimates that are still open, and judged ones, from a time on."""
        runs, open_, judged, ended = [], [], [], set()
        for fact in self._read(since):
            body = fact.body
            try:
                if fact.kind == "run":
                    runs.append(Run(**(body | {"kind": Kind(**body["kind"])})))
                elif fact.kind == "open":
                    open_.append(OpenEstimate(body["uid"], body["at"], Eta(**body["raw"]), Eta(**body["told"])))
                else:
                    ended.add(fact.key.removeprefix("judged:"))
                    if body:
                        judged.append(Judged(**body))
            except (KeyError, TypeError):
                continue  # of another version: advice that cannot be read is no advice
        return runs, [o for o in open_ if o.key not in ended], judged

    def _read(self, since: float) -> list[Fact]:
        with self._told():
            self._make()
            with self._engine.connect() as connection:
                query = select(_TABLE.c.key, _TABLE.c.kind, _TABLE.c.at, _TABLE.c.body).where(_TABLE.c.at >= since)
                rows = connection.execute(query.order_by(_TABLE.c.at)).all()
        return [Fact(key, kind, at, json.loads(body)) for key, kind, at, body in rows]

    def _make(self) -> None:
        with self._lock:
            if not self._made:
                _TABLE.metadata.create_all(self._engine, checkfirst=True)
                self._made = True

    def _told(self) -> _Told:
        return _Told(self._url.render_as_string(hide_password=True))


class _Told:
    """Turns the database's errors into one that says where and what to do."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, DBAPIError | PoolTimeout):
            cause = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
            raise MyriadError(
                f"the history of estimates cannot be read or written: {cause}",
                where=self._where,
                hint="estimates go on with what is in memory; look at the database",
            ) from error
