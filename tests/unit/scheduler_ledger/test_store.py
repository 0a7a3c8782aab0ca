"""The ledger's rows, on each database: written once, never changed, summed exactly."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import databases
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows import admission, ending
from sqlalchemy import create_engine, text

from myriad.errors import InputError
from myriad.scheduler.ledger.engines import address
from myriad.scheduler.ledger.facts import Fact
from myriad.scheduler.ledger.journal import Journal, Writer
from myriad.scheduler.ledger.migrate import SchemaError
from myriad.scheduler.ledger.store import Correction, LedgerError, Quota, Store

ALL = {"since": 0, "until": 10**12}


def total(store: Store, *, now: int = 10**12) -> Fraction:
    return sum(store.spent(**ALL, now=now).values(), Fraction(0))


def test_the_same_facts_again_add_nothing(store: Store) -> None:
    facts: list[Fact] = [admission("a", 100), ending("a", 100, 160), admission("a", 200), ending("a", 200, 230)]
    first = store.write(facts)
    assert (first.admissions, first.endings) == (2, 2)
    for again in (facts, facts[2:], facts[:1], list(reversed(facts))):
        added = store.write(again)
        assert (added.admissions, added.endings) == (0, 0)
    assert total(store) == 8 * 90


def test_f27_what_was_closed_stays_whatever_is_said_later(store: Store) -> None:
    """A node that goes away must not undo a completion."""
    store.write([admission("a", 100), ending("a", 100, 160)])
    store.write([ending("a", 100, 500, "lost"), ending("a", None, 900, "evicted")])
    [charge] = store.charges(**ALL)
    assert (charge.ended_at, charge.outcome) == (160, "finished")


@pytest.mark.parametrize("table", ["admissions", "holdings", "endings", "corrections", "quotas"])
def test_e5_rows_cannot_be_changed_even_by_hand(store: Store, url: str, table: str) -> None:
    store.write([admission("a", 100), ending("a", 100, 160)])
    store.correct(Correction("c", 100, "vision", "h100", "", -3600, "ada", "a node was broken"))
    store.quota(Quota("vision-h100", 1, "vision", "h100", "research", 8, 1))
    column = {"holdings": "slices", "endings": "ended_at", "corrections": "gpu_seconds", "quotas": "nominal"}
    engine = create_engine(address(url))
    for statement in (f"UPDATE {table} SET {column.get(table, 'started_at')} = 1", f"DELETE FROM {table}"):  # noqa: S608 - names of our own tables
        with pytest.raises(Exception, match="never changed"), engine.begin() as connection:
            connection.execute(text(statement))
    engine.dispose()


def test_e5_a_correction_is_a_row_of_its_own_and_counts_once(store: Store) -> None:
    store.write([admission("a", 100), ending("a", 100, 7300)])
    correction = Correction("c-1", 150, "vision", "h100", "", -3600, "ada", "gpu0042 was broken")
    assert store.correct(correction) and not store.correct(correction)
    assert total(store) == 8 * 7200 - 3600
    [found] = store.corrections(**ALL)
    assert (found.who, found.why) == ("ada", "gpu0042 was broken")
    assert store.corrections(since=151, until=10**12) == []


def test_open_charges_run_until_now_and_never_backwards(store: Store) -> None:
    store.write([admission("a", 1000)])
    assert total(store, now=1060) == 8 * 60
    # Our clock is behind the API server's: nothing is charged rather than something negative.
    assert total(store, now=400) == 0
    assert [c.ended_at for c in store.charges(**ALL)] == [None]


def test_a_period_takes_its_part_of_a_charge(store: Store) -> None:
    store.write([admission("a", 900), ending("a", 900, 1100)])
    before = store.spent(since=0, until=1000, now=5000)
    after = store.spent(since=1000, until=2000, now=5000)
    assert list(before.values()) == [800] and list(after.values()) == [800]
    assert store.spent(since=1100, until=2000, now=5000) == {}


def test_admitted_again_many_times(store: Store) -> None:
    facts: list[Fact] = []
    for i in range(50):
        facts += [admission("a", 100 + i * 10), ending("a", 100 + i * 10, 107 + i * 10, "preempted")]
    store.write(facts)
    assert total(store) == 50 * 7 * 8 and len(store.charges(**ALL)) == 50 and store.open_charges() == []


def test_an_eviction_that_nobody_saw_is_estimated_and_says_so(store: Store) -> None:
    store.write([admission("a", 100)])
    store.seen(150)
    store.write([admission("a", 400, queued=0)])
    first, second = store.charges(**ALL)
    assert (first.ended_at, first.basis) == (150, "estimated") and second.ended_at is None
    store.write([admission("a", 900, queued=700)])
    assert [c.ended_at for c in store.charges(**ALL)] == [150, 700, None]


def test_an_end_of_the_second_in_which_it_began_anew_ends_only_the_old_one(store: Store) -> None:
    facts: list[Fact] = [admission("a", 100), ending("a", None, 200, "preempted"), admission("a", 200)]
    store.write(facts)
    store.write(facts)
    assert [c.ended_at for c in store.charges(**ALL)] == [200, None]


def test_a_resize_cuts_the_charge_in_two(store: Store) -> None:
    store.write([admission("a", 100, gpus=16)])
    cut = admission("a", 150, gpus=8, admitted=100)
    store.write([cut])
    # Another leader saw the same a second later.
    store.write([admission("a", 151, gpus=8, admitted=100)])
    store.write([ending("a", 100, 200)])
    assert [(c.started_at, c.ended_at, c.slices) for c in store.charges(**ALL)] == [(100, 150, 16), (150, 200, 8)]
    assert total(store) == 16 * 50 + 8 * 50


def test_slices_of_a_card_sum_up_exactly(store: Store) -> None:
    store.write([admission(f"a{i}", 0, gpus=1, per_gpu=7) for i in range(7)])
    store.write([ending(f"a{i}", 0, 3600) for i in range(7)])
    assert total(store) == 3600


def test_two_leaders_at_once_charge_once(open_store: Callable[[], Store]) -> None:
    facts: list[Fact] = []
    for i in range(100):
        facts += [admission(f"a{i}", 100 + i), ending(f"a{i}", 100 + i, 200 + i)]
    stores = [open_store() for _ in range(2)]
    stores[0].prepare()
    added = [0, 0]
    failed: list[BaseException] = []

    def lead(which: int) -> None:
        try:
            for fact in facts:
                added[which] += stores[which].write([fact]).admissions
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=lead, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sum(added) == 100
    assert total(stores[0]) == 100 * 100 * 8
    assert len(stores[1].charges(**ALL)) == 100 and stores[1].open_charges() == []


def test_two_that_start_at_once_make_the_schema_once(open_store: Callable[[], Store]) -> None:
    stores = [open_store() for _ in range(4)]
    found: list[object] = []

    def begin(one: Store) -> None:
        try:
            found.append(one.prepare())
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=begin, args=(one,)) for one in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["0001"] * 4


def test_a_newer_schema_is_refused_in_a_sentence(store: Store, open_store: Callable[[], Store], url: str) -> None:
    store.write([admission("a", 100)])
    engine = create_engine(address(url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE ledger_version SET version_num = '9999'"))
    engine.dispose()
    newer = open_store()
    with pytest.raises(SchemaError, match="schema is 9999, and this program knows none newer than 0001") as error:
        newer.write([admission("b", 100)])
    assert "nothing was changed" in str(error.value)


KILLED = """
import sys
from pathlib import Path
sys.path[:0] = [{here!r}]
from rows import admission, ending
from myriad.scheduler.ledger.journal import Journal, Writer
from myriad.scheduler.ledger.store import Store
import threading
store = Store({url!r})
writer = Writer(store, Journal(Path({journal!r})), stop=threading.Event())
writer.start()
for i in range(100):
    writer.put([admission(f"a{{i}}", 100 + i)])
    print(i, flush=True)
    writer.put([ending(f"a{{i}}", 100 + i, 200 + i)])
"""


@pytest.mark.parametrize("after", [37, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 99))])
def test_killed_in_the_middle_of_100_admissions(store: Store, url: str, tmp_path: Path, after: int) -> None:
    """kill -9 at any point: what was put is written by the next process, and nothing twice."""
    journal = tmp_path / "ledger-old.journal"
    script = KILLED.format(here=str(Path(__file__).parent), url=url, journal=str(journal))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ})
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == after:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    writer = Writer(store, Journal(tmp_path / "ledger-new.journal"), stop=threading.Event())
    assert writer.flush()
    uids = {c.uid for c in store.charges(**ALL)}
    assert {f"a{i}" for i in range(after + 1)} <= uids
    # The next leader reads all Workloads again, those too that were recorded.
    facts: list[Fact] = []
    for i in range(100):
        facts += [admission(f"a{i}", 100 + i), ending(f"a{i}", 100 + i, 200 + i)]
    writer.put(facts)
    assert writer.flush()
    assert total(store) == 100 * 100 * 8 and not journal.exists()
    writer.close()


def test_a_journal_cut_in_the_middle_of_a_line_is_read_up_to_it(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "ledger-x.journal"
    first = Journal(path)
    first.append([admission("a", 100), ending("a", 100, 200)])
    first.close()
    path.write_bytes(path.read_bytes()[:-20] + b"\n[]\nnull\n{}\n")
    writer = Writer(store, Journal(tmp_path / "ledger-y.journal"), stop=threading.Event())
    assert writer.flush()
    assert [(c.uid, c.ended_at) for c in store.charges(**ALL)] == [("a", None)]
    writer.close()


def test_one_file_is_written_by_one_process(tmp_path: Path) -> None:
    first = Journal(tmp_path / "ledger-x.journal")
    with pytest.raises(Exception, match="another process writes this journal"):
        Journal(tmp_path / "ledger-x.journal")
    first.close()


def test_a_journal_without_room_keeps_in_memory(store: Store, tmp_path: Path) -> None:
    writer = Writer(store, Journal(tmp_path / "ledger-x.journal", max_bytes=10), stop=threading.Event())
    writer.put([admission("a", 100)])
    assert writer.state().queued == 1 and writer.flush() and writer.state().queued == 0
    assert len(store.charges(**ALL)) == 1
    writer.close()


def test_a_row_that_the_database_refuses_does_not_keep_the_others_out(store: Store, tmp_path: Path) -> None:
    failed: list[str] = []
    writer = Writer(store, Journal(tmp_path / "l.journal"), stop=threading.Event(), failed=failed.append)
    impossible = admission("bad", 100, gpus=2**70)
    writer.put([admission("a", 100), impossible, admission("b", 100)])
    assert writer.flush()
    assert {c.uid for c in store.charges(**ALL)} == {"a", "b"} and failed
    writer.close()


def test_a_fault_that_nobody_foresaw_does_not_end_the_ledger(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes cannot be started again: nothing would be charged until somebody restarted the process."""
    writer = Writer(store, Journal(tmp_path / "l.journal"), stop=threading.Event())
    writer.put([admission("a", 100)])
    with monkeypatch.context() as broken:
        broken.setattr(Store, "write", lambda *_: 1 / 0)
        assert not writer.flush()
    assert writer.state().queued == 1 and "ZeroDivisionError" in writer.state().error
    assert writer.flush() and writer.state().error == ""
    assert {c.uid for c in store.charges(**ALL)} == {"a"}
    writer.close()


@given(
    runs=st.lists(
        st.tuples(
            st.integers(0, 4),
            st.integers(0, 5000),
            st.integers(0, 3000),
            st.integers(1, 64),
            st.sampled_from([1, 4, 7]),
        ),
        max_size=25,
    ),
    cuts=st.lists(st.integers(0, 9000), max_size=4),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_sum_of_rows_is_the_sum_of_intervals(
    tmp_path: Path, runs: list[tuple[int, int, int, int, int]], cuts: list[int]
) -> None:
    """Any runs, told in pieces, twice and by two tellers; cut into any periods."""
    store = Store(f"sqlite:///{tmp_path}/{time.monotonic_ns()}.db")
    expected = Fraction(0)
    facts: list[Fact] = []
    free: dict[int, int] = {}
    for who, gap, length, gpus, per_gpu in runs:
        start = free.get(who, 0) + gap + 1
        free[who] = start + length
        uid = f"w{who}"
        facts += [admission(uid, start, gpus=gpus, per_gpu=per_gpu), ending(uid, start, start + length)]
        expected += Fraction(gpus * length, per_gpu)
    half = len(facts) // 2
    for part in (facts[:half], facts, facts[half:]):
        store.write(part)
    edges = sorted({0, *cuts, 10**9})
    pieces = [sum(store.spent(since=a, until=b, now=10**9).values(), Fraction(0)) for a, b in itertools.pairwise(edges)]
    charges = store.charges(since=0, until=10**9)
    store.close()
    assert sum(pieces) == expected
    assert sum((c.gpu_seconds(0, 10**9, 10**9) for c in charges), Fraction(0)) == expected


@pytest.mark.parametrize(
    "url",
    ["", "mysql://x/y", "sqlite://", "sqlite:///:memory:", "no url", "http://h:port/"],
)
def test_urls_that_name_no_ledger(url: str) -> None:
    with pytest.raises(InputError, match="ledger's URL names no"):
        address(url)


def test_a_password_is_in_no_message() -> None:
    store = Store("postgresql://ada:s3cret@127.0.0.1:1/ledger")
    with pytest.raises(LedgerError) as error:
        store.write([admission("a", 1)])
    assert "s3cret" not in str(error.value) and "scheduling goes on" in str(error.value)
    store.close()


@pytest.mark.slow
@pytest.mark.skipif(bool(databases.missing()), reason=databases.missing() or "PostgreSQL is there")
def test_postgresql_stopped_for_a_while(tmp_path: Path) -> None:
    """Nothing that is put meanwhile is lost, putting never waits, and the order is kept."""
    with databases.server() as server:
        store = Store(server.database())
        stop = threading.Event()
        writer = Writer(store, Journal(tmp_path / "ledger-x.journal"), stop=stop)
        writer.start()
        writer.put([admission(f"a{i}", 100 + i) for i in range(50)])
        until(lambda: writer.state().queued == 0)
        server.stop()
        for i in range(50):
            began = time.monotonic()
            writer.put(
                [ending(f"a{i}", 100 + i, 200 + i), admission(f"b{i}", 300 + i), ending(f"b{i}", 300 + i, 310 + i)]
            )
            assert time.monotonic() - began < 5
        until(lambda: bool(writer.state().error))
        assert writer.state().queued == 150 and writer.state().since > 0
        server.start()
        until(lambda: writer.state().queued == 0 and not writer.state().error)
        assert total(store) == 50 * 100 * 8 + 50 * 10 * 8
        stop.set()
        writer.join(timeout=10)
        writer.close()
        store.close()


def until(check: Callable[[], bool]) -> None:
    end = time.monotonic() + 40
    while not check():
        assert time.monotonic() < end
        time.sleep(0.05)
