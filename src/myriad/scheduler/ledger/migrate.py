"""Brings the database's schema to this program's, once, under a lock; refuses a schema that is newer."""

from __future__ import annotations

from importlib.resources import as_file, files

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from myriad.errors import MyriadError

_LOCK = 0x6D79726C65646765
"""PostgreSQL's advisory lock of the migration: "myrledge"."""


class SchemaError(MyriadError):
    """The database is of another version than this program."""


def migrate(engine: Engine, *, where: str) -> str:
    """Bring the schema up; the revision that it has now.

    Args:
        engine: the database.
        where: how it is named in messages, without a password.

    Raises:
        SchemaError: the database was made by a newer program.
    """
    with as_file(files("myriad.scheduler.ledger.migrations")) as folder:
        config = Config()
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        script = ScriptDirectory.from_config(config)
        head = script.get_current_head() or ""
        with engine.begin() as connection:
            _lock(connection)
            context = MigrationContext.configure(connection, opts={"version_table": "ledger_version"})
            now = context.get_current_revision()
            known = {revision.revision for revision in script.walk_revisions()}
            if now is not None and now not in known:
                raise SchemaError(
                    f"the ledger's schema is {now}, and this program knows none newer than {head}",
                    where=where,
                    hint="run the version of Myriad that wrote it or a newer one; nothing was changed",
                )
            if now != head:
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        return head


def _lock(connection: Connection) -> None:
    """Two replicas start at once: the second waits and finds everything done. On SQLite the transaction has begun with
    BEGIN IMMEDIATE (see `engines`), which is such a lock."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
