"""What Alembic runs: the connection comes from `myriad.scheduler.ledger.migrate`, in whose transaction all happens."""

from alembic import context

from myriad.scheduler.ledger.schema import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table="ledger_version",
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
