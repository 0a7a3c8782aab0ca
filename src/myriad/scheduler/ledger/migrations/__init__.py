"""Alembic's scripts: they travel inside the package and run when the ledger is opened."""
