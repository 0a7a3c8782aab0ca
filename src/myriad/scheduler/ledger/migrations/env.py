"""What Alembic runs: the connection comes from `myriad.scheduler.ledger.migrate`, in whose transaction all happens."""

from alembic import context

from myriad.scheduler.ledger.schema import Base

# Alembic gives its context to this file while it runs it; whoever imports it as a module finds none: nothing happens.
if (config := getattr(context, "config", None)) is not None:
    context.configure(
        connection=config.attributes["connection"],
        target_metadata=Base.metadata,
        version_table="ledger_version",
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()
