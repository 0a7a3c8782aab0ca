"""The stream: what changed and no more, resumed where it broke off, slow clients dropped and told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from myriad.scheduler.web import stream
from myriad.scheduler.web.auth import EVERYTHING, Denied, Scope
from myriad.scheduler.web.stream import Channel, Client, Hub, TooManyStreams, difference

ALL = frozenset(stream.SECTIONS)
JOBS = frozenset({"jobs"})


def parsed(data: bytes) -> tuple[str, Any, str]:
    """Name, data and id of an event."""
    fields = dict(line.split(": ", 1) for line in data.decode().strip().splitlines() if ": " in line)
    return fields.get("event", ""), json.loads(fields.get("data", "null")), fields.get("id", "")


class World:
    """Rows that change, and a version that wakes the hub."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {"vision/a": {"position": 1}}
        self.version = 0
        self.looks = 0
        self.changed = threading.Condition()

    def change(self, **rows: Any) -> None:
        with self.changed:
            self.rows = {**self.rows, **{k.replace("_", "/"): v for k, v in rows.items()}}
            self.rows = {k: v for k, v in self.rows.items() if v is not None}
            self.version += 1
            self.changed.notify_all()

    def documents(self, _: Scope) -> dict[str, Any]:
        self.looks += 1
        return {"jobs": dict(self.rows), "totals": {"n": len(self.rows)}}

    def wait(self, seen: int, timeout_s: float) -> int:
        with self.changed:
            self.changed.wait_for(lambda: self.version != seen, timeout=min(timeout_s, 0.2))
            return self.version


async def same() -> Scope:
    return EVERYTHING


def run(test: Callable[[World, Hub], Awaitable[None]]) -> World:
    world = World()
    hub = Hub(world.documents, world.wait, interval_s=0.01)
    asyncio.run(asyncio.wait_for(test(world, hub), 20))
    return world


async def next_named(events: Any, name: str) -> tuple[Any, str]:
    async for data in events:
        found = parsed(data)
        if found[0] == name:
            return found[1], found[2]
    raise AssertionError(f"no {name} came")


def test_only_what_changed_is_sent() -> None:
    before = {"a": {"x": 1}, "b": {"x": 2}, "c": {"x": 3}}
    assert difference(before, {"a": {"x": 1}, "b": {"x": 5}, "d": {"x": 4}}) == ({"b": {"x": 5}, "d": {"x": 4}}, ["c"])

    async def test(world: World, hub: Hub) -> None:
        events = await hub.follow(EVERYTHING, JOBS, "", same)
        first, _ = await next_named(events, "jobs")
        assert first == {"full": True, "set": {"vision/a": {"position": 1}}, "gone": []}
        world.change(vision_b={"position": 2}, vision_a=None)
        change, _ = await next_named(events, "jobs")
        assert change == {"set": {"vision/b": {"position": 2}}, "gone": ["vision/a"]}
        await events.aclose()

    run(test)


def test_who_comes_back_gets_what_was_missed_and_who_was_away_too_long_the_whole() -> None:
    async def test(world: World, hub: Hub) -> None:
        events = await hub.follow(EVERYTHING, JOBS, "", same)
        _, last = await next_named(events, "jobs")
        other = await hub.follow(EVERYTHING, JOBS, "", same)
        await next_named(other, "jobs")
        await events.aclose()
        for n in (2, 3):
            world.change(vision_b={"position": n})
            await next_named(other, "jobs")
        again = await hub.follow(EVERYTHING, JOBS, last, same)
        positions = [(await next_named(again, "jobs"))[0]["set"]["vision/b"]["position"] for _ in range(2)]
        assert positions == [2, 3], "in order, nothing twice"
        for strange in ("nonsense", "abc-1", last.replace("-0", "-99"), "x" * 60, last.split("-")[0] + "-"):
            fresh = await hub.follow(EVERYTHING, JOBS, strange, same)
            assert (await next_named(fresh, "jobs"))[0]["full"] is True, strange
            await fresh.aclose()
        await again.aclose()
        await other.aclose()

    run(test)


def test_a_slow_client_is_dropped_and_told_and_costs_the_others_nothing() -> None:
    channel = Channel(EVERYTHING)
    slow, quick = Client(ALL), Client(ALL)
    channel.clients |= {slow, quick}
    channel.publish({"jobs": {}})
    got = 0
    for n in range(stream.QUEUED + 10):
        channel.publish({"jobs": {"a": {"n": n}}})
        while not quick.waiting.empty():
            quick.waiting.get_nowait()
            got += 1
    assert got == stream.QUEUED + 10 and not quick.over
    assert slow.over == "slow" and slow.waiting.qsize() == 1
    assert parsed(slow.waiting.get_nowait()) == ("dropped", {"why": "slow"}, "")

    async def test(world: World, hub: Hub) -> None:
        events = await hub.follow(EVERYTHING, JOBS, "", same)
        await next_named(events, "jobs")
        (client,) = next(iter(hub._channels.values())).clients
        client.end("slow")
        told, _ = await next_named(events, "dropped")
        assert told == {"why": "slow"}
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        assert hub.clients == 0 and hub.dropped == 1

    run(test)


def test_the_cluster_is_looked_at_once_for_all_who_see_the_same() -> None:
    async def test(world: World, hub: Hub) -> None:
        followers = [await hub.follow(EVERYTHING, JOBS, "", same) for _ in range(50)]
        for events in followers:
            await next_named(events, "jobs")
        looks = world.looks
        world.change(vision_z={"position": 9})
        for events in followers:
            await next_named(events, "jobs")
        assert world.looks - looks <= 2
        for events in followers:
            await events.aclose()

    run(test)


def test_a_right_that_was_taken_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BEAT_S", 0.02)
    monkeypatch.setattr(stream, "RECHECK_S", 0.05)

    async def gone() -> Scope:
        raise Denied(401, "the token has run out")

    async def test(world: World, hub: Hub) -> None:
        events = await hub.follow(EVERYTHING, JOBS, "", gone)
        assert (await next_named(events, "dropped"))[0] == {"why": "rights"}
        with pytest.raises(StopAsyncIteration):
            await anext(events)

    run(test)


def test_the_heart_beats_and_the_number_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BEAT_S", 0.02)
    monkeypatch.setattr(stream, "CLIENTS", 1)

    async def test(world: World, hub: Hub) -> None:
        events = await hub.follow(EVERYTHING, JOBS, "", same)
        await next_named(events, "jobs")
        assert b": beat\n\n" in [await anext(events), await anext(events)]
        with pytest.raises(TooManyStreams, match="follow already"):
            await hub.follow(EVERYTHING, JOBS, "", same)
        await events.aclose()
        assert hub.clients == 0

    run(test)


def test_whoever_goes_before_the_first_event_takes_no_place() -> None:
    async def test(world: World, hub: Hub) -> None:
        for _ in range(stream.CLIENTS + 1):
            events = await hub.follow(EVERYTHING, JOBS, "", same)
            # As a server does whose client hung up while the headers were on their way.
            await events.aclose()
        assert hub.clients == 0

    run(test)


def test_a_look_that_fails_ends_nobodys_stream() -> None:
    async def test(world: World, hub: Hub) -> None:
        events = await hub.follow(EVERYTHING, JOBS, "", same)
        await next_named(events, "jobs")
        good = world.documents
        hub._documents = lambda _: 1 / 0  # type: ignore[assignment,return-value]
        world.change(vision_x={"position": 4})
        await asyncio.sleep(0.3)
        hub._documents = good
        world.change(vision_y={"position": 5})
        change, _ = await next_named(events, "jobs")
        assert set(change["set"]) == {"vision/x", "vision/y"}
        await events.aclose()

    run(test)
