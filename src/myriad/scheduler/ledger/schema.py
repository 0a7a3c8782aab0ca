"""The tables of the ledger. Rows are inserted and never changed: what was charged cannot be rewritten.

A charge is an `AdmissionRow` (one for each time that a Workload was admitted), its `HoldingRow`s (GPUs by pool and
flavor) and, once it is over, one `EndingRow`. A mistake is put right by a `CorrectionRow`. Triggers refuse UPDATE and
DELETE in both databases (migrations).

Times are whole seconds since the epoch, as the conditions of a Workload have them; amounts are integers (slices of a
card, `per_gpu` slices make one), so that sums are exact.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

_BIG = BigInteger().with_variant(Integer, "sqlite")
"""SQLite gives rowids to INTEGER PRIMARY KEY alone."""


class Base(DeclarativeBase):
    """Of all tables."""


class AdmissionRow(Base):
    """A Workload began to be charged. `started_at` is the admission's time, or that of a resize of the same admission
    (`admitted_at` then tells the admission's)."""

    __tablename__ = "admissions"
    __table_args__ = (
        UniqueConstraint("workload_uid", "started_at", name="admissions_once"),
        Index("admissions_by_team", "team", "started_at"),
        Index("admissions_by_workload", "namespace", "workload"),
    )

    id: Mapped[int] = mapped_column(_BIG, primary_key=True)
    workload_uid: Mapped[str] = mapped_column(String(64))
    started_at: Mapped[int] = mapped_column(BigInteger)
    admitted_at: Mapped[int] = mapped_column(BigInteger)
    queued_at: Mapped[int] = mapped_column(BigInteger)
    namespace: Mapped[str] = mapped_column(String(253))
    workload: Mapped[str] = mapped_column(String(253))
    job: Mapped[str] = mapped_column(String(253))
    job_kind: Mapped[str] = mapped_column(String(63))
    job_uid: Mapped[str] = mapped_column(String(64))
    team: Mapped[str] = mapped_column(String(253))
    project: Mapped[str] = mapped_column(String(253))
    owner: Mapped[str] = mapped_column(String(253))
    cluster_queue: Mapped[str] = mapped_column(String(253))
    local_queue: Mapped[str] = mapped_column(String(253))
    priority: Mapped[int] = mapped_column(BigInteger)
    priority_class: Mapped[str] = mapped_column(String(253))
    limit_s: Mapped[int | None] = mapped_column(BigInteger)
    recorded_at: Mapped[int] = mapped_column(BigInteger)


class HoldingRow(Base):
    """GPUs that an admission holds: `slices` of which `per_gpu` make a card, `borrowed` of them beyond the team's own
    quota when it was admitted."""

    __tablename__ = "holdings"
    __table_args__ = (UniqueConstraint("admission_id", "flavor", "resource", name="holdings_once"),)

    id: Mapped[int] = mapped_column(_BIG, primary_key=True)
    admission_id: Mapped[int] = mapped_column(ForeignKey("admissions.id"))
    pool: Mapped[str] = mapped_column(String(253), index=True)
    flavor: Mapped[str] = mapped_column(String(253))
    resource: Mapped[str] = mapped_column(String(253))
    slices: Mapped[int] = mapped_column(BigInteger)
    per_gpu: Mapped[int] = mapped_column(BigInteger)
    borrowed: Mapped[int] = mapped_column(BigInteger)


class EndingRow(Base):
    """An admission is over. `basis` says how its time is known: `condition`, `deleted`, `event` or `estimated`."""

    __tablename__ = "endings"

    admission_id: Mapped[int] = mapped_column(ForeignKey("admissions.id"), primary_key=True, autoincrement=False)
    ended_at: Mapped[int] = mapped_column(BigInteger, index=True)
    outcome: Mapped[str] = mapped_column(String(63))
    reason: Mapped[str] = mapped_column(Text)
    basis: Mapped[str] = mapped_column(String(15))
    checkpoint_at: Mapped[int | None] = mapped_column(BigInteger)
    recorded_at: Mapped[int] = mapped_column(BigInteger)


class CorrectionRow(Base):
    """GPU-seconds credited (negative) or debited to a team at a moment, with who and why."""

    __tablename__ = "corrections"

    uid: Mapped[str] = mapped_column(String(64), primary_key=True)
    at: Mapped[int] = mapped_column(BigInteger, index=True)
    team: Mapped[str] = mapped_column(String(253))
    pool: Mapped[str] = mapped_column(String(253))
    project: Mapped[str] = mapped_column(String(253))
    gpu_seconds: Mapped[int] = mapped_column(BigInteger)
    who: Mapped[str] = mapped_column(String(253))
    why: Mapped[str] = mapped_column(Text)
    recorded_at: Mapped[int] = mapped_column(BigInteger)


class QuotaRow(Base):
    """GPUs that a ClusterQueue owns from a moment on; what was borrowed and lent at any time follows from them."""

    __tablename__ = "quotas"
    __table_args__ = (UniqueConstraint("cluster_queue", "since", name="quotas_once"),)

    id: Mapped[int] = mapped_column(_BIG, primary_key=True)
    cluster_queue: Mapped[str] = mapped_column(String(253))
    since: Mapped[int] = mapped_column(BigInteger)
    team: Mapped[str] = mapped_column(String(253))
    pool: Mapped[str] = mapped_column(String(253))
    cohort: Mapped[str] = mapped_column(String(253))
    nominal: Mapped[int] = mapped_column(BigInteger)
    per_gpu: Mapped[int] = mapped_column(BigInteger)


class OpenRow(Base):
    """Admissions without an ending: an index, so that years of closed ones cost nothing. Kept with them in one step."""

    __tablename__ = "open_admissions"

    admission_id: Mapped[int] = mapped_column(ForeignKey("admissions.id"), primary_key=True, autoincrement=False)
    workload_uid: Mapped[str] = mapped_column(String(64), index=True)


class SeenRow(Base):
    """The last moment at which the ledger followed the cluster; one row, changed in place."""

    __tablename__ = "seen"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    at: Mapped[int] = mapped_column(BigInteger)


INSERT_ONLY = ("admissions", "holdings", "endings", "corrections", "quotas")
"""Tables whose rows nobody can change."""
