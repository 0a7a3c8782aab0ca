"""The ledger's database: facts go in, sums come out.

Everything that is written is written once: a row that is there already is left as it is, whoever wrote it. So a
restart, a failover and two leaders that overlap cannot charge anything twice.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, Engine, Select, case, delete, func, literal_column, select
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, TimeoutError

from myriad.errors import MyriadError
from myriad.scheduler.ledger.engines import READS, address, engine_of
from myriad.scheduler.ledger.facts import Admission, Ending, Fact, Holding
from myriad.scheduler.ledger.migrate import migrate
from myriad.scheduler.ledger.schema import (
    AdmissionRow,
    Base,
    CorrectionRow,
    EndingRow,
    HoldingRow,
    OpenRow,
    QuotaRow,
    SeenRow,
)

A, H, E = AdmissionRow.__table__.c, HoldingRow.__table__.c, EndingRow.__table__.c
O, C, Q = OpenRow.__table__.c, CorrectionRow.__table__.c, QuotaRow.__table__.c  # noqa: E741 - a table, as its peers
_CHUNK = 200


class LedgerError(MyriadError):
    """The ledger's database cannot be read or written now.

    Attributes:
        refused: it answers, and does not take these rows: trying again changes nothing.
    """

    refused = False


@dataclass(frozen=True, slots=True)
class Charge:
    """One holding of one admission, as it is in the ledger.

    Attributes:
        started_at, ended_at: seconds since the epoch; ended_at is None while it is open.
        slices, per_gpu: GPUs = slices / per_gpu.
        outcome, basis: of the ending; empty while it is open.
    """

    uid: str
    started_at: int
    admitted_at: int
    queued_at: int
    ended_at: int | None
    namespace: str
    workload: str
    job: str
    job_kind: str
    team: str
    project: str
    owner: str
    cluster_queue: str
    priority: int
    priority_class: str
    pool: str
    flavor: str
    resource: str
    slices: int
    per_gpu: int
    borrowed: int
    outcome: str
    reason: str
    basis: str
    checkpoint_at: int | None

    @property
    def gpus(self) -> Fraction:
        """Cards."""
        return Fraction(self.slices, self.per_gpu)

    def gpu_seconds(self, since: int, until: int, now: int) -> Fraction:
        """What it costs of [since, until); an open one runs until `now`."""
        end = min(until, now if self.ended_at is None else self.ended_at)
        return max(0, end - max(since, self.started_at)) * self.gpus


@dataclass(frozen=True, slots=True)
class Correction:
    """GPU-seconds debited (or, negative, credited) at a moment. `uid` makes it one, however often it is sent."""

    uid: str
    at: int
    team: str
    pool: str
    project: str
    gpu_seconds: int
    who: str
    why: str


@dataclass(frozen=True, slots=True)
class Quota:
    """What a ClusterQueue owns from a moment on, in slices of which `per_gpu` make a card."""

    cluster_queue: str
    since: int
    team: str
    pool: str
    cohort: str
    nominal: int
    per_gpu: int


@dataclass(frozen=True, slots=True)
class Tail:
    """What was added to a ledger since a moment.

    Attributes:
        seen: until when the cluster was followed; None for a new ledger.
        following: the moment from which to ask next; what was added in that second may come again.
        more: whether more is there already.
    """

    facts: Sequence[Fact]
    quotas: Sequence[Quota]
    corrections: Sequence[Correction]
    seen: int | None
    following: int
    more: bool


@dataclass(frozen=True, slots=True)
class Open:
    """A charge that has no ending yet."""

    uid: str
    started_at: int
    admitted_at: int
    namespace: str
    workload: str
    job: str
    job_uid: str
    holdings: tuple[tuple[str, str, int], ...]
    """flavor, resource, slices."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a write added; the rest was there."""

    admissions: int = 0
    endings: int = 0


class Store:
    """One database. Safe to use from several threads; nothing is connected before it is needed.

    Args:
        url: see `engines.address`.
        clock: our own time; used only for when a row was recorded and for estimates.

    Raises:
        InputError: the URL names no database that the ledger can be kept in.
    """

    def __init__(self, url: str, *, clock: Callable[[], float] = time.time) -> None:
        self._url = address(url)
        self._engine: Engine = engine_of(self._url)
        self._reader = self._engine.execution_options(**{READS: True})
        self._clock = clock
        self._prepared = False
        self._preparing = threading.Lock()

    @property
    def where(self) -> str:
        """The database as it is named in messages; never with a password."""
        return self._url.render_as_string(hide_password=True)

    @property
    def own_file(self) -> bool:
        """Whether it is a file that other machines do not write."""
        return self._url.get_backend_name() == "sqlite"

    def prepare(self) -> str:
        """Bring the schema up, once. Raises SchemaError for a newer one, LedgerError where nothing answers."""
        with self._translated():
            return migrate(self._engine, where=self.where)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    # Writing

    def write(self, facts: Sequence[Fact]) -> Written:
        """Add what is new in one transaction. Raises LedgerError; nothing was added then."""
        admissions = endings = 0
        with self._writing() as connection:
            for fact in facts:
                if isinstance(fact, Admission):
                    new, ended = self._admit(connection, fact)
                    admissions += new
                    endings += ended
                else:
                    endings += self._end(connection, fact)
        return Written(admissions, endings)

    def seen(self, at: int) -> None:
        """The cluster was followed until this moment; it never goes back."""
        with self._writing() as connection:
            _insert(connection, SeenRow, {"id": 1, "at": at})
            table = SeenRow.__table__
            connection.execute(table.update().where(table.c.id == 1, table.c.at < at).values(at=at))  # type: ignore[attr-defined]

    def correct(self, correction: Correction) -> bool:
        """Add a correction; False where it is there already."""
        with self._writing() as connection:
            row = {name: getattr(correction, name) for name in Correction.__dataclass_fields__}
            return bool(_insert(connection, CorrectionRow, {**row, "recorded_at": int(self._clock())}))

    def quota(self, quota: Quota) -> bool:
        """Note what a ClusterQueue owns from now on; False where that is known."""
        with self._writing() as connection:
            last = connection.execute(
                select(Q.cohort, Q.nominal, Q.per_gpu)
                .where(Q.cluster_queue == quota.cluster_queue)
                .order_by(Q.since.desc())
                .limit(1)
            ).first()
            if last is not None and tuple(last) == (quota.cohort, quota.nominal, quota.per_gpu):
                return False
            row = {name: getattr(quota, name) for name in Quota.__dataclass_fields__}
            return bool(_insert(connection, QuotaRow, row))

    def _admit(self, connection: Connection, fact: Admission) -> tuple[int, int]:
        """Added admissions and endings (of charges that this one ends: a resize, or an eviction that nobody saw)."""
        now = int(self._clock())
        mine = [row for row in self._open_of(connection, fact.uid) if row.started_at < fact.started_at]
        resize = fact.started_at != fact.admitted_at
        if resize:
            if not any(row.admitted_at == fact.admitted_at for row in mine):
                return 0, 0
            have = self._amounts(connection, [mine[-1].id])
            if have[mine[-1].id] == _amounts_of(fact):
                return 0, 0
        row = {name: getattr(fact, name) for name in Admission.__dataclass_fields__ if name not in ("uid", "holdings")}
        _insert(connection, AdmissionRow, {**row, "workload_uid": fact.uid, "recorded_at": now})
        # Not by RETURNING: the row may be another writer's, and then its holdings are there too.
        found = connection.execute(
            select(A.id, H.id)
            .select_from(AdmissionRow.__table__.outerjoin(HoldingRow.__table__, H.admission_id == A.id))
            .where(A.workload_uid == fact.uid, A.started_at == fact.started_at)
        ).first()
        if found is None or found[1] is not None:
            return 0, 0
        key = int(found[0])
        for holding in fact.holdings:
            values = {name: getattr(holding, name) for name in type(holding).__dataclass_fields__}
            _insert(connection, HoldingRow, {"admission_id": key, **values})
        ended = 0
        for older in mine:
            ended += self._close(connection, older.id, self._overtaken(connection, older.started_at, fact), now)
        _insert(connection, OpenRow, {"admission_id": key, "workload_uid": fact.uid})
        return 1, ended

    def _overtaken(self, connection: Connection, started_at: int, by: Admission) -> Ending:
        """How a charge ended that was still open when the same Workload began its next."""
        if by.started_at != by.admitted_at:
            return Ending(by.uid, started_at, by.started_at, "resized", "", "condition")
        # Kueue puts it back in the queue when it has left: that time is known where the condition changed then.
        if started_at < by.queued_at <= by.started_at:
            return Ending(by.uid, started_at, by.queued_at, "evicted", "found in the queue again", "estimated")
        seen = self._seen(connection) or by.started_at
        at = min(by.started_at, max(started_at, seen))
        return Ending(by.uid, started_at, at, "evicted", "admitted again; its eviction was not seen", "estimated")

    def _end(self, connection: Connection, fact: Ending) -> int:
        now = int(self._clock())
        if fact.started_at is None:
            # Not one of the same second: what evicted its predecessor is read again after it was admitted anew.
            keys = [row.id for row in self._open_of(connection, fact.uid) if row.started_at < fact.ended_at]
        else:
            # The last segment of that admission: a resize may have cut it.
            keys = [
                int(row.id)
                for row in connection.execute(
                    select(A.id)
                    .where(A.workload_uid == fact.uid, A.admitted_at == fact.started_at, A.started_at <= fact.ended_at)
                    .order_by(A.started_at.desc())
                    .limit(1)
                )
            ]
        return sum(self._close(connection, key, fact, now) for key in keys)

    def _close(self, connection: Connection, key: int, fact: Ending, now: int) -> int:
        added = _insert(
            connection,
            EndingRow,
            {
                "admission_id": key,
                "ended_at": fact.ended_at,
                "outcome": fact.outcome,
                "reason": fact.reason,
                "basis": fact.basis,
                "checkpoint_at": fact.checkpoint_at,
                "recorded_at": now,
            },
        )
        connection.execute(delete(OpenRow).where(O.admission_id == key))
        return added

    def _open_of(self, connection: Connection, uid: str) -> list[Any]:
        return list(
            connection.execute(
                select(A.id, A.started_at, A.admitted_at)
                .select_from(OpenRow.__table__.join(AdmissionRow.__table__, A.id == O.admission_id))
                .where(O.workload_uid == uid)
                .order_by(A.started_at)
            )
        )

    def _amounts(self, connection: Connection, keys: Sequence[int]) -> dict[int, tuple[tuple[str, str, int], ...]]:
        found: dict[int, list[tuple[str, str, int]]] = {key: [] for key in keys}
        for start in range(0, len(keys), _CHUNK):
            part = keys[start : start + _CHUNK]
            rows = connection.execute(
                select(H.admission_id, H.flavor, H.resource, H.slices).where(H.admission_id.in_(part))
            )
            for key, flavor, resource, slices in rows:
                found[int(key)].append((flavor, resource, int(slices)))
        return {key: tuple(sorted(amounts)) for key, amounts in found.items()}

    def _seen(self, connection: Connection) -> int | None:
        found = connection.execute(select(SeenRow.__table__.c.at)).scalar()
        return None if found is None else int(found)

    # Reading

    def open_charges(self) -> list[Open]:
        """Charges without an ending."""
        with self._reading() as connection:
            rows = list(
                connection.execute(
                    select(
                        A.id, A.workload_uid, A.started_at, A.admitted_at, A.namespace, A.workload, A.job, A.job_uid
                    ).select_from(OpenRow.__table__.join(AdmissionRow.__table__, A.id == O.admission_id))
                )
            )
            amounts = self._amounts(connection, [int(row.id) for row in rows])
        return [Open(*row[1:], holdings=amounts[int(row.id)]) for row in rows]

    def last_seen(self) -> int | None:
        """Until when the cluster was followed; None for a new ledger."""
        with self._reading() as connection:
            return self._seen(connection)

    def charges(
        self, *, since: int, until: int, team: str = "", pool: str = "", project: str = "", owner: str = ""
    ) -> list[Charge]:
        """Charges that touch [since, until), in order of their start; open ones among them."""
        columns = (
            A.workload_uid, A.started_at, A.admitted_at, A.queued_at, E.ended_at, A.namespace, A.workload, A.job,
            A.job_kind, A.team, A.project, A.owner, A.cluster_queue, A.priority, A.priority_class, H.pool, H.flavor,
            H.resource, H.slices, H.per_gpu, H.borrowed, func.coalesce(E.outcome, ""), func.coalesce(E.reason, ""),
            func.coalesce(E.basis, ""), E.checkpoint_at,
        )  # fmt: skip
        found: list[Charge] = []
        with self._reading() as connection:
            for query in _touching(select(*columns), since, until):
                query = _only(query, team=team, pool=pool, project=project, owner=owner)
                found += [Charge(*row) for row in connection.execute(query)]
        return sorted(found, key=lambda c: (c.started_at, c.uid, c.flavor, c.resource))

    def spent(
        self, *, since: int, until: int, now: int, team: str = "", pool: str = "", project: str = ""
    ) -> dict[tuple[str, str, str], Fraction]:
        """GPU-seconds of [since, until) by (team, pool, project) with corrections; open charges run until `now`."""
        sums: dict[tuple[str, str, str], Fraction] = {}
        end = func.coalesce(E.ended_at, now)
        last = case((end > until, until), else_=end)
        first = case((A.started_at < since, since), else_=A.started_at)
        length = case((last > first, last - first), else_=0)
        with self._reading() as connection:
            base = select(A.team, H.pool, A.project, H.per_gpu, func.sum(H.slices * length)).group_by(
                A.team, H.pool, A.project, H.per_gpu
            )
            for query in _touching(base, since, until):
                query = _only(query, team=team, pool=pool, project=project)
                for of_team, of_pool, of_project, per_gpu, slice_seconds in connection.execute(query):
                    key = of_team, of_pool, of_project
                    sums[key] = sums.get(key, Fraction(0)) + Fraction(int(slice_seconds), int(per_gpu))
        for correction in self.corrections(since=since, until=until, team=team, pool=pool, project=project):
            key = correction.team, correction.pool, correction.project
            sums[key] = sums.get(key, Fraction(0)) + correction.gpu_seconds
        return sums

    def corrections(
        self, *, since: int, until: int, team: str = "", pool: str = "", project: str = ""
    ) -> list[Correction]:
        """Corrections whose moment lies in [since, until), oldest first."""
        query = select(C.uid, C.at, C.team, C.pool, C.project, C.gpu_seconds, C.who, C.why).where(
            C.at >= since, C.at < until
        )
        for column, value in ((C.team, team), (C.pool, pool), (C.project, project)):
            query = query.where(column == value) if value else query
        with self._reading() as connection:
            return [Correction(*row) for row in connection.execute(query.order_by(C.at, C.recorded_at, C.uid))]

    def quotas(self, *, until: int) -> list[Quota]:
        """What ClusterQueues owned, each from its moment on, oldest first."""
        with self._reading() as connection:
            rows = connection.execute(
                select(Q.cluster_queue, Q.since, Q.team, Q.pool, Q.cohort, Q.nominal, Q.per_gpu)
                .where(Q.since < until)
                .order_by(Q.since, Q.id)
            )
            return [Quota(*row) for row in rows]

    def tail(self, after: int, *, most: int = 5000) -> Tail:
        """What was added since a moment of this database's own clock, in the order in which it was added.

        Written into another ledger (`write`, `quota`, `correct`, `seen`), it makes that one hold the same.
        """
        ends = EndingRow.__table__.join(AdmissionRow.__table__, A.id == E.admission_id)
        with self._reading() as connection:
            edges = [
                connection.execute(select(at).where(at >= after).order_by(at).offset(most).limit(1)).scalar()
                for at in (A.recorded_at, E.recorded_at)
            ]
            # Whole seconds, so that none is cut in two.
            until = max(after + 1, min(int(e) for e in edges if e is not None)) if any(edges) else None
            columns = [c for c in A if c.name not in ("workload_uid",)]
            new = select(A.workload_uid.label("uid"), *columns).where(A.recorded_at >= after)
            old = select(A.workload_uid, A.admitted_at, *(c for c in E if c.name != "admission_id")).select_from(ends)
            old = old.where(E.recorded_at >= after)
            if until is not None:
                new, old = new.where(A.recorded_at < until), old.where(E.recorded_at < until)
            begun: list[dict[str, Any]] = [row._asdict() for row in connection.execute(new)]
            held = self._holdings(connection, [row["id"] for row in begun])
            found: list[tuple[int, int, int, Fact]] = []
            last = after
            for row in begun:
                key, at = row.pop("id"), row.pop("recorded_at")
                last = max(last, at)
                found.append((at, row["started_at"], 1, Admission(**row, holdings=held[key])))
            for end in connection.execute(old):
                last = max(last, end.recorded_at)
                if end.outcome == "resized" and not end.reason:
                    # The admission that follows it says so.
                    continue
                fact = Ending(
                    end.workload_uid, end.admitted_at, end.ended_at, end.outcome, end.reason, end.basis,
                    end.checkpoint_at,
                )  # fmt: skip
                found.append((end.recorded_at, end.ended_at, 0, fact))
            asked = select(C.uid, C.at, C.team, C.pool, C.project, C.gpu_seconds, C.who, C.why)
            corrected = [Correction(*row) for row in connection.execute(asked.where(C.recorded_at >= after))]
            seen = self._seen(connection)
        quotas = [q for q in self.quotas(until=2**62) if q.since >= after - 60]
        found.sort(key=lambda f: f[:3])
        return Tail(
            facts=[fact for *_, fact in found],
            quotas=quotas,
            corrections=corrected,
            seen=seen,
            following=last if until is None else until,
            more=until is not None,
        )

    def _holdings(self, connection: Connection, keys: Sequence[int]) -> dict[int, tuple[Holding, ...]]:
        found: dict[int, list[Holding]] = {key: [] for key in keys}
        for start in range(0, len(keys), _CHUNK):
            part = keys[start : start + _CHUNK]
            columns = (H.admission_id, H.pool, H.flavor, H.resource, H.slices, H.per_gpu, H.borrowed)
            for key, *values in connection.execute(select(*columns).where(H.admission_id.in_(part))):
                found[int(key)].append(Holding(*values))
        return {key: tuple(holdings) for key, holdings in found.items()}

    def counts(self) -> dict[str, int]:
        """Rows by table."""
        with self._reading() as connection:
            return {
                name: int(connection.execute(select(func.count()).select_from(table)).scalar_one())
                for name, table in Base.metadata.tables.items()
            }

    # Connections

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        self._prepare_once()
        with self._translated(), self._engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Connection]:
        self._prepare_once()
        with self._translated(), self._reader.connect() as connection:
            yield connection

    def _prepare_once(self) -> None:
        if not self._prepared:
            with self._preparing:
                if not self._prepared:
                    self.prepare()
                    self._prepared = True

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, TimeoutError, OverflowError) as error:
            cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
            text = " ".join(str(cause).split()) or type(cause).__name__
            failed = LedgerError(
                f"the ledger's database does not answer as it should: {text[:300]}",
                where=self.where,
                hint="scheduling goes on, rows wait on disk and are written when it answers again",
            )
            failed.refused = isinstance(error, DataError | IntegrityError | OverflowError)
            raise failed from error


def _amounts_of(fact: Admission) -> tuple[tuple[str, str, int], ...]:
    return tuple(sorted((h.flavor, h.resource, h.slices) for h in fact.holdings))


def _insert(connection: Connection, table: type[Base], row: dict[str, Any]) -> int:
    """Insert a row unless it is there; 1 where it was inserted."""
    make = postgresql_insert if connection.dialect.name == "postgresql" else sqlite_insert
    # A row comes back only where it was inserted; the count of rows is not known to every driver.
    insert: Any = make(table).values(**row).on_conflict_do_nothing().returning(literal_column("1"))
    return 0 if connection.execute(insert).first() is None else 1


def _touching(query: Select[Any], since: int, until: int) -> tuple[Select[Any], Select[Any]]:
    """The query over closed charges that touch [since, until), and over open ones: two, so that each has its index."""
    held = AdmissionRow.__table__.join(HoldingRow.__table__, H.admission_id == A.id)
    closed = held.join(EndingRow.__table__, E.admission_id == A.id)
    still = held.join(OpenRow.__table__, O.admission_id == A.id).outerjoin(EndingRow.__table__, E.admission_id == A.id)
    return (
        query.select_from(closed).where(A.started_at < until, E.ended_at > since),
        query.select_from(still).where(A.started_at < until, E.admission_id.is_(None)),
    )


def _only(query: Select[Any], *, team: str, pool: str, project: str, owner: str = "") -> Select[Any]:
    for column, value in ((A.team, team), (H.pool, pool), (A.project, project), (A.owner, owner)):
        if value:
            query = query.where(column == value)
    return query
