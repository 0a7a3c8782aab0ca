"""Records: append-only, shared, bounded."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from myriad.errors import MyriadError
from myriad.kube.client import ApiError
from myriad.scheduler.notices.book import CONFIG_MAPS, Book


def test_a_fact_is_written_once_whoever_writes_it(world: Any) -> None:
    first, second = Book(world.api), Book(world.api)
    assert first.append("a", "eviction", {"n": 1})
    # The other replica has not read anything yet, and finds out by the conflict.
    assert not second.append("a", "eviction", {"n": 2})
    assert second.append("b", "eviction", {"n": 3}) and not first.append("b", "eviction", {"n": 4})
    fresh = Book(world.api)
    fresh.load()
    assert [r.facts for r in fresh] == [{"eviction": {"n": 1}}, {"eviction": {"n": 3}}]


def test_many_at_once_are_one_write_and_only_new_ones_are_named(world: Any) -> None:
    book = Book(world.api)
    book.append("a", "eviction", {})
    world.api.writes.clear()
    assert book.append_all([(i, "eviction", {}) for i in "abc"]) == [("b", "eviction"), ("c", "eviction")]
    assert len(world.api.writes) == 1
    assert book.append_all([("a", "eviction", {})]) == [] and len(world.api.writes) == 1


def test_the_bounds_hold_and_the_newest_stay(world: Any) -> None:
    book = Book(world.api, segment_bytes=500, keep=3)
    for i in range(100):
        book.append(f"r{i:03d}", "eviction", {"at": f"{i:03d}", "text": "x" * 80})
    maps = world.api.objects["configmaps"].values()
    assert len(maps) == 3 and all(sum(len(v) for v in m["data"].values()) <= 500 for m in maps)
    kept = [r.id for r in book]
    assert kept == sorted(kept) and kept[-1] == "r099" and len(kept) < 16
    again = Book(world.api)
    again.load()
    assert [r.id for r in again] == kept


def test_a_write_that_failed_is_known_to_nobody(world: Any) -> None:
    book = Book(world.api)
    world.api.fail["configmaps"] = [ApiError(403, "Forbidden", "no", where="test")]
    with pytest.raises(MyriadError):
        book.append("a", "eviction", {})
    assert not book.has("a") and book.append("a", "eviction", {})


def test_a_segment_that_somebody_removed_is_no_end(world: Any) -> None:
    book = Book(world.api)
    book.append("a", "eviction", {})
    world.api.objects["configmaps"].clear()
    assert book.append("b", "eviction", {}) and [r.id for r in book] == ["b"]


def test_what_cannot_be_read_is_passed_over(world: Any) -> None:
    labels = {"myriad.dev/records": "evictions"}
    for name in ("myriad-evictions-000001", "myriad-evictions-x"):
        body = {
            "metadata": {"name": name, "namespace": "myriad-system", "labels": labels},
            "data": {"a_eviction": "{", "b_eviction": "[]", "c_eviction": "{}"},
        }
        world.api.put(CONFIG_MAPS, body)
    book = Book(world.api)
    book.load()
    assert [r.id for r in book] == ["c"] and book.append("d", "eviction", {})


def test_threads_do_not_lose_each_others_facts(world: Any) -> None:
    book = Book(world.api)
    threads = [
        threading.Thread(target=lambda n=n: [book.append(f"{n}-{i}", "eviction", {}) for i in range(20)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    again = Book(world.api)
    again.load()
    assert len(list(again)) == 80
