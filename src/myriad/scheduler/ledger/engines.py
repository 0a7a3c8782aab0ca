"""Connections to the ledger's database: SQLite in a file, PostgreSQL over the network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from myriad.errors import InputError

_DRIVERS = ("postgresql", "postgres")
READS = "ledger_reads"
"""Execution option of connections that only read."""

_SHAPES = "sqlite:////path/ledger.db or postgresql://user:password@host/database"


def address(url: str) -> URL:
    """A ledger's URL read.

    Raises:
        InputError: it is of another kind. The message never holds the password.
    """
    try:
        parsed = make_url(url)
        backend = parsed.drivername.partition("+")[0]
        if backend in _DRIVERS:
            # One driver is installed, whatever the URL names.
            backend, parsed = "postgresql", parsed.set(drivername="postgresql+psycopg")
        parsed.get_dialect()
    except (ArgumentError, ValueError):
        backend = ""
    if backend not in ("sqlite", "postgresql"):
        raise InputError("the ledger's URL names no database that it can be kept in", hint=f"write {_SHAPES}")
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise InputError("the ledger's URL names no file: it would be gone with the process", hint=f"write {_SHAPES}")
    return parsed


def engine_of(url: URL) -> Engine:
    """An engine for a URL of `address`. Nothing is connected yet."""
    if url.get_backend_name() == "sqlite":
        return _sqlite(url)
    return create_engine(
        url,
        pool_pre_ping=True,
        pool_size=4,
        max_overflow=4,
        pool_timeout=10,
        # A server that is gone must be known as gone before anybody who waits for an answer gives up.
        connect_args={
            "connect_timeout": 5,
            "application_name": "myriad-ledger",
            "options": "-c statement_timeout=30000 -c lock_timeout=10000 -c idle_in_transaction_session_timeout=60000",
            "keepalives_idle": 15,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 20000,
        },
    )


def _sqlite(url: URL) -> Engine:
    folder = Path(str(url.database)).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the ledger's folder cannot be made: {error.strerror}", where=str(folder)) from error
    if not os.access(folder, os.W_OK):
        raise InputError("the ledger's folder cannot be written", where=str(folder))
    engine = create_engine(url, connect_args={"timeout": 30, "check_same_thread": False})

    # SQLAlchemy's recipe for SQLite: its driver begins no transaction before the first INSERT, too late for a lock.
    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=30000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        # A writer that began with a read could not become one while another writes.
        reads = connection.get_execution_options().get(READS, False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine
