"""The ledger as lines of JSON, whatever database keeps it, and back into an empty one.

One line for each row, tables in the order of their references; the first line names the form, the last counts the rows,
so that half a file is told from a whole one. A dump is one moment of the database: it is read in one transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, func, insert, select, text

from myriad.errors import InputError
from myriad.scheduler.ledger.engines import READS, address, engine_of
from myriad.scheduler.ledger.migrate import migrate
from myriad.scheduler.ledger.schema import Base

FORM = "myriad-ledger-1"
_CHUNK = 500


def dump(url: str) -> Iterator[str]:
    """The lines of a dump.

    Args:
        url: the ledger's database; only read.
    """
    count = 0
    with _opened(url) as engine, engine.connect().execution_options(**{READS: True}) as connection:
        if connection.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            yield json.dumps({"form": FORM})
            for table in Base.metadata.sorted_tables:
                rows = connection.execution_options(yield_per=_CHUNK).execute(select(table))
                for row in rows.mappings():
                    count += 1
                    yield json.dumps({"table": table.name, "row": dict(row)})
            yield json.dumps({"rows": count})


def load(url: str, lines: Iterable[str]) -> int:
    """Fill an empty ledger; all of it or nothing. Returns the number of rows.

    Args:
        url: a database that no ledger has written to; its tables are made.
        lines: of a dump.

    Raises:
        InputError: the lines are no whole dump, or the database is not empty.
    """
    tables = {table.name: table for table in Base.metadata.sorted_tables}
    with _opened(url) as engine:
        migrate(engine, where=address(url).render_as_string(hide_password=True))
        with engine.begin() as connection:
            for table in tables.values():
                if connection.execute(select(func.count()).select_from(table)).scalar_one():
                    raise InputError(
                        f"the ledger's table {table.name} holds rows already",
                        hint="a dump is loaded into an empty database only, so that nothing is charged twice",
                    )
            count = _insert(connection, tables, lines)
            if connection.dialect.name == "postgresql":
                _follow(connection, tables)
    return count


@contextmanager
def _opened(url: str) -> Iterator[Engine]:
    engine = engine_of(address(url))
    try:
        yield engine
    finally:
        engine.dispose()


def _insert(connection: Any, tables: dict[str, Any], lines: Iterable[str]) -> int:
    count, name = 0, ""
    total: int | None = None
    pending: list[dict[str, Any]] = []

    def flush() -> None:
        if pending:
            connection.execute(insert(tables[name]), pending)
            pending.clear()

    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            if number == 1:
                if entry.get("form") != FORM:
                    raise InputError(f"this is no dump of a ledger: its first line does not say {FORM}")
                continue
            if "rows" in entry:
                total = int(entry["rows"])
                continue
            table, row = entry["table"], entry["row"]
            if table not in tables:
                raise KeyError(table)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise InputError(f"line {number} of the dump cannot be read: {error}") from error
        if table != name or len(pending) >= _CHUNK:
            flush()
            name = table
        pending.append(row)
        count += 1
    flush()
    if total != count:
        raise InputError(
            f"the dump is not whole: {count} rows, and its last line says {'nothing' if total is None else total}",
            hint="nothing was written; take another dump",
        )
    return count


def _follow(connection: Any, tables: dict[str, Any]) -> None:
    """Rows brought their numbers along; what the database counts by itself goes on after them."""
    for table in tables.values():
        for column in table.primary_key.columns:
            # Names come from the schema, never from the dump.
            sequence = connection.execute(
                text("SELECT pg_get_serial_sequence(:t, :c)"), {"t": table.name, "c": column.name}
            ).scalar()
            if sequence:
                highest = connection.execute(select(func.max(column))).scalar()
                connection.execute(
                    text("SELECT setval(:s, :v, :called)"),
                    {"s": sequence, "v": highest or 1, "called": highest is not None},
                )
