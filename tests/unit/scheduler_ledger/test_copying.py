"""A follower's copy: the same sums as the leader's, page by page, however often it comes."""

from __future__ import annotations

import json
from pathlib import Path

from rows import admission, ending

from myriad.scheduler.ledger.copying import as_json, take
from myriad.scheduler.ledger.store import Correction, Quota, Store


def same(one: Store, other: Store) -> bool:
    charges = [store.charges(since=0, until=10_000) for store in (one, other)]
    quotas = [store.quotas(until=10_000) for store in (one, other)]
    rest = [store.corrections(since=0, until=10_000) for store in (one, other)]
    return charges[0] == charges[1] and quotas[0] == quotas[1] and rest[0] == rest[1]


def test_a_copy_holds_the_same_after_every_page(tmp_path: Path) -> None:
    now = [100.0]
    leader = Store(f"sqlite:///{tmp_path}/leader.db", clock=lambda: now[0])
    follower = Store(f"sqlite:///{tmp_path}/follower.db", clock=lambda: now[0])
    after, pages = 0, 0

    def copy() -> None:
        nonlocal after, pages
        while True:
            document = json.loads(json.dumps(as_json(leader.tail(after, most=3))))
            take(follower, document)
            after, pages = document["next"], pages + 1
            if not document["more"]:
                break

    leader.write([admission(f"a{i}", 100 + i) for i in range(4)])
    leader.quota(Quota("vision-h100", 100, "vision", "h100", "research", 16, 1))
    copy()
    assert same(leader, follower) and len(follower.open_charges()) == 4
    now[0] = 150.0
    # A resize, an end, an eviction that nobody saw, and one that began and ended between two looks.
    leader.write([admission("a0", 140, gpus=4, admitted=100), ending("a1", 101, 145, "preempted")])
    leader.write([admission("a2", 150, queued=147), admission("b", 120), ending("b", 120, 130)])
    leader.correct(Correction("c1", 120, "vision", "h100", "", -60, "ann", "a reason"))
    leader.seen(149)
    copy()
    assert same(leader, follower)
    assert follower.last_seen() == 149 and pages > 3
    for second in range(151, 156):
        now[0] = float(second)
        leader.write([admission(f"d{second}", second), ending("a3", 103, second)])
        copy()
    before = follower.counts()
    after = 0
    copy()
    assert same(leader, follower) and follower.counts() == before, "the whole once more adds nothing"
    leader.close()
    follower.close()


def test_a_follower_that_takes_over_is_copied_back(tmp_path: Path) -> None:
    one, two = (Store(f"sqlite:///{tmp_path}/{name}.db") for name in ("one", "two"))
    one.write([admission("a", 100)])
    take(two, as_json(one.tail(0)))
    two.write([ending("a", 100, 160), admission("b", 170)])
    take(one, as_json(two.tail(0)))
    assert same(one, two) and [c.ended_at for c in one.charges(since=0, until=1000)] == [160, None]
    one.close()
    two.close()
