"""Fixtures of the ledger's tests: each database that it can be kept in, and Workloads as Kueue writes them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import databases

from myriad.scheduler.ledger.store import Store


@pytest.fixture(scope="session")
def postgresql() -> Iterator[databases.Server]:
    """One server for all tests of a run."""
    if databases.missing():
        pytest.skip(databases.missing())
    with databases.server() as running:
        yield running


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    server: databases.Server = request.getfixturevalue("postgresql")
    return server.database()


@pytest.fixture
def open_store(url: str) -> Iterator[Callable[[], Store]]:
    """Opens that database, each time as another program would."""
    opened: list[Store] = []

    def make() -> Store:
        opened.append(Store(url))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def store(open_store: Callable[[], Store]) -> Store:
    """That database."""
    return open_store()
