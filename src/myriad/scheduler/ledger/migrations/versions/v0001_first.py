"""Admissions, holdings, endings, corrections and quotas, none of which can be changed; and how far the ledger saw."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_INSERT_ONLY = ("admissions", "holdings", "endings", "corrections", "quotas")


def upgrade() -> None:
    """Make the tables and what keeps them as they were written."""
    op.create_table(
        "admissions",
        sa.Column("id", _BIG, primary_key=True),
        sa.Column("workload_uid", sa.String(64), nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("admitted_at", sa.BigInteger, nullable=False),
        sa.Column("queued_at", sa.BigInteger, nullable=False),
        *(_name(column) for column in ("namespace", "workload", "job")),
        sa.Column("job_kind", sa.String(63), nullable=False),
        sa.Column("job_uid", sa.String(64), nullable=False),
        *(_name(column) for column in ("team", "project", "owner", "cluster_queue", "local_queue")),
        sa.Column("priority", sa.BigInteger, nullable=False),
        _name("priority_class"),
        sa.Column("limit_s", sa.BigInteger),
        sa.Column("recorded_at", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("workload_uid", "started_at", name="admissions_once"),
    )
    op.create_index("admissions_by_team", "admissions", ["team", "started_at"])
    op.create_index("admissions_by_workload", "admissions", ["namespace", "workload"])
    op.create_table(
        "holdings",
        sa.Column("id", _BIG, primary_key=True),
        sa.Column("admission_id", _BIG, sa.ForeignKey("admissions.id"), nullable=False),
        *(_name(column) for column in ("pool", "flavor", "resource")),
        *(sa.Column(column, sa.BigInteger, nullable=False) for column in ("slices", "per_gpu", "borrowed")),
        sa.UniqueConstraint("admission_id", "flavor", "resource", name="holdings_once"),
    )
    op.create_index("ix_holdings_pool", "holdings", ["pool"])
    op.create_table(
        "endings",
        sa.Column("admission_id", _BIG, sa.ForeignKey("admissions.id"), primary_key=True, autoincrement=False),
        sa.Column("ended_at", sa.BigInteger, nullable=False),
        sa.Column("outcome", sa.String(63), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("basis", sa.String(15), nullable=False),
        sa.Column("checkpoint_at", sa.BigInteger),
        sa.Column("recorded_at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_endings_ended_at", "endings", ["ended_at"])
    op.create_table(
        "corrections",
        sa.Column("uid", sa.String(64), primary_key=True),
        sa.Column("at", sa.BigInteger, nullable=False),
        *(_name(column) for column in ("team", "pool", "project")),
        sa.Column("gpu_seconds", sa.BigInteger, nullable=False),
        _name("who"),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("recorded_at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_corrections_at", "corrections", ["at"])
    op.create_table(
        "quotas",
        sa.Column("id", _BIG, primary_key=True),
        _name("cluster_queue"),
        sa.Column("since", sa.BigInteger, nullable=False),
        *(_name(column) for column in ("team", "pool", "cohort")),
        *(sa.Column(column, sa.BigInteger, nullable=False) for column in ("nominal", "per_gpu")),
        sa.UniqueConstraint("cluster_queue", "since", name="quotas_once"),
    )
    op.create_table(
        "open_admissions",
        sa.Column("admission_id", _BIG, sa.ForeignKey("admissions.id"), primary_key=True, autoincrement=False),
        sa.Column("workload_uid", sa.String(64), nullable=False),
    )
    op.create_index("ix_open_admissions_workload_uid", "open_admissions", ["workload_uid"])
    op.create_table(
        "seen", sa.Column("id", sa.Integer, primary_key=True), sa.Column("at", sa.BigInteger, nullable=False)
    )
    keep = _keep_on_postgresql if op.get_bind().dialect.name == "postgresql" else _keep_on_sqlite
    keep()


def _name(column: str) -> sa.Column[str]:
    return sa.Column(column, sa.String(253), nullable=False)


def _keep_on_sqlite() -> None:
    for table in _INSERT_ONLY:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} BEGIN "
                f"SELECT RAISE(ABORT, 'rows of the ledger are never changed: write a correction'); END"
            )


def _keep_on_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION ledger_keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'rows of the ledger are never changed: write a correction'; END $$"
    )
    for table in _INSERT_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_keep BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION ledger_keep()"
        )
