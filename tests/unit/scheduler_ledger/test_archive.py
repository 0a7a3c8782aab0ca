"""The ledger as a file and back: the same rows, all or nothing, from one kind of database into another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from myriad.errors import InputError
from myriad.scheduler.ledger.archive import dump, load
from myriad.scheduler.ledger.facts import Fact
from myriad.scheduler.ledger.store import Store

from . import rows


@pytest.fixture
def filled(store: Store) -> Store:
    """A ledger with admissions, endings and a correction."""
    facts: list[Fact] = [rows.admission(f"w{number}", 1000 + number) for number in range(3)]
    store.write([*facts, rows.ending("w0", 1000, 5000)])
    return store


def test_what_is_dumped_is_what_is_loaded(filled: Store, url: str, tmp_path: Path) -> None:
    lines = list(dump(url))
    other = f"sqlite:///{tmp_path}/other.db"
    assert load(other, lines) == len(lines) - 2
    assert list(dump(other)) == lines


def test_a_loaded_ledger_is_written_on(filled: Store, url: str, tmp_path: Path) -> None:
    """Numbers that the database counts by itself go on after those that came."""
    other = f"sqlite:///{tmp_path}/other.db"
    load(other, list(dump(url)))
    again = Store(other)
    try:
        again.write([rows.admission("new", 6000), rows.ending("w1", 1001, 7000)])
    finally:
        again.close()
    found = [json.loads(line) for line in dump(other)]
    assert len([row for row in found if row.get("table") == "admissions"]) == 4
    assert len([row for row in found if row.get("table") == "endings"]) == 2


def test_nothing_is_loaded_over_rows(filled: Store, url: str) -> None:
    with pytest.raises(InputError, match="holds rows already"):
        load(url, list(dump(url)))


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_half_a_dump_is_refused_and_nothing_of_it_stays(filled: Store, url: str, tmp_path: Path, cut: int) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    with pytest.raises(InputError, match="not whole"):
        load(other, list(dump(url))[:-cut])
    assert len(list(dump(other))) == 2


@pytest.mark.parametrize(
    "lines",
    [["nothing"], ['{"form": "another"}'], ['{"form": "myriad-ledger-1"}', '{"table": "users", "row": {}}'], ["[]"]],
)
def test_what_is_no_dump_is_named(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(InputError, match="dump"):
        load(f"sqlite:///{tmp_path}/other.db", lines)
