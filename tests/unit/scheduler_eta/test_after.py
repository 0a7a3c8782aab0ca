"""A pool right after evictions: who waits where, and who holds what."""

from __future__ import annotations

from myriad.scheduler.eta.after import Departure, after
from myriad.scheduler.eta.estimate import History, estimate
from myriad.scheduler.eta.model import Kind, NodeState, PoolState, QueueState, RunningJob, WaitingJob

QUEUES = (
    QueueState("vision", 16, cohort="research", reclaims="Any"),
    QueueState("speech", 8, cohort="research", reclaims="Any"),
)


def ran(uid: str, queue: str, *nodes: str, limit_s: float | None = 3600.0) -> RunningJob:
    gpus = 8 * len(nodes)
    return RunningJob(uid, queue, Kind(queue, uid, gpus), gpus, 60.0, limit_s, dict.fromkeys(nodes, 8))


def waits(uid: str, queue: str, pods: int, limit_s: float | None = 7200.0) -> WaitingJob:
    return WaitingJob(uid, queue, Kind(queue, uid, 8 * pods), pods, 8, limit_s)


def pool(*waiting: WaitingJob, running: tuple[RunningJob, ...]) -> PoolState:
    nodes = tuple(NodeState(f"g{i}", 8, 0) for i in range(3))
    return PoolState(queues=QUEUES, nodes=nodes, running=running, waiting=waiting, grace_s=300.0)


FULL = (ran("holder", "vision", "g2", limit_s=1800.0), ran("victim", "vision", "g0", "g1"))


def test_the_preemptor_stands_where_the_victim_stood_and_the_rest_is_free() -> None:
    owner = waits("owner", "speech", 1)
    state = after(pool(owner, running=FULL), [Departure(waits("victim", "vision", 2), 0, owner)])
    held = {r.uid: dict(r.nodes) for r in state.running}
    assert held == {"holder": {"g2": 8}, "owner": {"g0": 8}}
    assert {n.name: n.free for n in state.nodes} == {"g0": 0, "g1": 8, "g2": 0}
    assert [w.uid for w in state.waiting] == ["victim"]


def test_a_preemptor_that_holds_its_own_already_is_counted_once() -> None:
    owner = ran("owner", "speech", "g0")
    state = after(
        pool(running=(*FULL, owner)), [Departure(waits("victim", "vision", 2), 0, waits("owner", "speech", 1))]
    )
    assert sorted(r.uid for r in state.running) == ["holder", "owner"]
    assert {n.name: n.free for n in state.nodes} == {"g0": 0, "g1": 8, "g2": 0}


def test_two_victims_of_one_preemptor_make_room_together() -> None:
    running = (ran("a", "vision", "g0"), ran("b", "vision", "g1"))
    owner = waits("owner", "speech", 2)
    gone = [Departure(waits("a", "vision", 1), 0, owner), Departure(waits("b", "vision", 1), 0, owner)]
    state = after(pool(owner, running=running), gone)
    assert [dict(r.nodes) for r in state.running] == [{"g0": 8, "g1": 8}]


def test_a_victim_takes_its_place_between_those_who_wait_and_stands_there_once() -> None:
    first, last, other = waits("first", "vision", 1), waits("last", "vision", 1), waits("other", "speech", 1)
    victim = Departure(waits("victim", "vision", 2), 1)
    state = after(pool(first, other, last, running=FULL), [victim])
    assert [w.uid for w in state.waiting] == ["first", "other", "victim", "last"]
    assert after(state, [victim]).waiting == state.waiting


def test_the_estimate_waits_for_somebody_to_end_and_not_for_the_victims_own_gpus() -> None:
    """16 GPUs of its own nominal 16: while another job of the queue runs on 8, it cannot come back."""
    owner = waits("owner", "speech", 1)
    state = after(pool(owner, running=FULL), [Departure(waits("victim", "vision", 2), 0, owner)])
    found = estimate(state, History(), now=1_800_000_000.0, futures=20)["victim"]
    assert found.mid_s is not None and 0.0 < found.mid_s <= 1800.0, "the holder's limit ends within half an hour"
