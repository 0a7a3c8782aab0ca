"""A gang job that proves a gang: every rank joins, they sum over all of them again and again, and each checks the
result.

Run by every pod of a gang; needs the standard library only. Rank 0 listens at MASTER_ADDR:MASTER_PORT, collects all
ranks, and tells each where the others are; then they form a ring and all-reduce a vector a step over TCP
(reduce-scatter and all-gather, as NCCL's ring does).

SIGTERM on any rank: all ranks learn of it in the same step, save the same state, and exit 143. The next start resumes
from the newest checkpoint that any rank has, so it does not matter which node kept it.

An elastic gang (PET_NNODES as MIN:MAX and no WORLD_SIZE, as torchrun has it) goes on without a rank that is lost or
asked to leave: the others keep their state, meet at rank 0 again, and form a smaller ring. A rank that comes back is
let in between two steps and gets the state from the others. Below MIN, and without rank 0, they wait for who is
missing. Nobody is started again but who was lost.

Environment:
    MASTER_ADDR, MASTER_PORT (29400)    where rank 0 is met
    RANK, WORLD_SIZE                    RANK may be left to JOB_COMPLETION_INDEX
    PET_NNODES                          how many ranks, N or MIN:MAX; read where WORLD_SIZE is not set
    NODE_NAME                           printed and collected, to show where the gang ran
    CHECKPOINT_DIR                      where to save; unset: nothing is saved
    GANG_STEPS (20), GANG_STEP_SECONDS (0.25), GANG_CHECKPOINT_EVERY (0: only when stopped), GANG_ELEMENTS (4096)
    GANG_JOIN_SECONDS (600), GANG_PEER_SECONDS (60)   how long to wait for all to join, and for a silent peer
    GANG_LAST_CALL_SECONDS (3)          an elastic gang that has its minimum waits so long for more

Exit codes: 0 all steps done, 1 failed, 2 wrong environment, 143 stopped by SIGTERM with the state saved.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from gang_wire import (
    GangError,
    GaveUpError,
    Stopped,
    StopRequest,
    accept,
    all_reduce,
    connect,
    listen,
    receive_message,
    say,
    send_message,
)

EXIT_STOPPED = 128 + signal.SIGTERM


class SettingsError(Exception):
    """A variable is missing or wrong. Exit code 2."""


@dataclass(frozen=True)
class Settings:
    """What the environment says. Times are in seconds.

    Attributes:
        world_size: ranks of the whole gang.
        least: ranks that it goes on with; fewer than `world_size` in an elastic one.
    """

    rank: int
    world_size: int
    least: int
    master: str
    port: int
    node: str
    steps: int
    step_seconds: float
    elements: int
    join_seconds: float
    peer_seconds: float
    last_call_seconds: float
    checkpoint_dir: Path | None
    checkpoint_every: int

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Settings:
        """Read and check the variables.

        Raises:
            SettingsError: one is missing, no number or out of range.
        """

        def number(name: str, default: str | None, least: float, kind: type[int] | type[float] = int) -> Any:
            text = env.get(name, default)
            if text is None:
                raise SettingsError(f"{name} is not set")
            try:
                value = kind(text)
            except ValueError:
                raise SettingsError(f"{name} is {text!r}, not a number") from None
            if value < least:
                raise SettingsError(f"{name} is {text}, the least is {least}")
            return value

        if "WORLD_SIZE" in env or "PET_NNODES" not in env:
            least = world_size = number("WORLD_SIZE", None, 1)
        else:
            least, world_size = _range(env["PET_NNODES"])
        rank = number("RANK", env.get("JOB_COMPLETION_INDEX"), 0)
        if rank >= world_size:
            name = "WORLD_SIZE" if "WORLD_SIZE" in env else "PET_NNODES"
            raise SettingsError(f"RANK is {rank}, but {name} is {world_size}: ranks are 0 to {world_size - 1}")
        master = env.get("MASTER_ADDR", "")
        if not master and world_size > 1:
            raise SettingsError("MASTER_ADDR is not set")
        folder = env.get("CHECKPOINT_DIR", "")
        return cls(
            rank=rank,
            world_size=world_size,
            least=least,
            master=master,
            port=number("MASTER_PORT", "29400", 1),
            node=env.get("NODE_NAME") or socket.gethostname(),
            steps=number("GANG_STEPS", "20", 1),
            step_seconds=number("GANG_STEP_SECONDS", "0.25", 0, float),
            elements=number("GANG_ELEMENTS", "4096", 1),
            join_seconds=number("GANG_JOIN_SECONDS", "600", 0, float),
            peer_seconds=number("GANG_PEER_SECONDS", "60", 0, float),
            last_call_seconds=number("GANG_LAST_CALL_SECONDS", "3", 0, float),
            checkpoint_dir=Path(folder) if folder else None,
            checkpoint_every=number("GANG_CHECKPOINT_EVERY", "0", 0),
        )

    @property
    def is_elastic(self) -> bool:
        """Whether it goes on without some of its ranks."""
        return self.least < self.world_size


def _range(text: str) -> tuple[int, int]:
    """`2:4` as (2, 4), `3` as (3, 3)."""
    low, _, high = text.partition(":")
    if not (low.isdigit() and (high or low).isdigit() and 1 <= int(low) <= int(high or low)):
        raise SettingsError(f"PET_NNODES is {text!r}, not a number of ranks or MIN:MAX")
    return int(low), int(high or low)


@dataclass
class State:
    """What training would call the model, the same on every rank.

    Attributes:
        step: steps that are done.
        totals: the sum of all their results.
        sizes: from which step on the gang had how many ranks, oldest first.
    """

    step: int
    totals: array[int]
    sizes: list[tuple[int, int]] = field(default_factory=list)

    def add(self, vector: array[int], ranks: int) -> None:
        """One more step, summed over so many ranks."""
        if not self.sizes or self.sizes[-1][1] != ranks:
            self.sizes.append((self.step, ranks))
        self.totals = array("q", map(int.__add__, self.totals, vector))
        self.step += 1

    def is_right(self) -> bool:
        """True if the totals are what so many steps of so many ranks give."""
        ends = [first for first, _ in self.sizes[1:]] + [self.step]
        runs = [(first, end, ranks) for (first, ranks), end in zip(self.sizes, ends, strict=False)]
        return self.totals == array(
            "q",
            (
                sum(sum_of_steps(end, index, ranks) - sum_of_steps(first, index, ranks) for first, end, ranks in runs)
                for index in range(len(self.totals))
            ),
        )

    def as_json(self) -> dict[str, Any]:
        """Plain types, for a message or a file."""
        return {"step": self.step, "totals": list(self.totals), "sizes": self.sizes}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> State:
        """The other way round."""
        sizes = [(int(first), int(ranks)) for first, ranks in value["sizes"]]
        return cls(int(value["step"]), array("q", value["totals"]), sizes)


def contribution(rank: int, step: int, index: int) -> int:
    """What a rank adds to element `index` in a step."""
    return 31 * step + rank + index % 7


def sum_of_ranks(step: int, index: int, world_size: int) -> int:
    """The sum of `contribution` over all ranks."""
    return world_size * (31 * step + index % 7) + world_size * (world_size - 1) // 2


def sum_of_steps(steps: int, index: int, world_size: int) -> int:
    """The sum of `sum_of_ranks` over the steps 0 to steps - 1."""
    return (
        world_size * (31 * steps * (steps - 1) // 2 + steps * (index % 7)) + steps * world_size * (world_size - 1) // 2
    )


@dataclass
class Gang:
    """The ring, once the ranks have met.

    Attributes:
        nodes: of its ranks, in the order of the ring.
        place: of this rank in it.
    """

    nodes: list[str]
    place: int
    state: State
    left: socket.socket | None = None
    right: socket.socket | None = None

    @property
    def size(self) -> int:
        """How many ranks are in it."""
        return len(self.nodes)

    def close(self) -> None:
        """Close the connections."""
        for one in (self.left, self.right):
            if one is not None:
                one.close()


# --- joining --------------------------------------------------------------------------------------


def join(settings: Settings, stop: StopRequest, known: State | None, door: socket.socket | None) -> Gang:
    """Meet the other ranks and connect the ring.

    Args:
        known: the state that this rank has saved, or holds.
        door: where rank 0 listens; None on the others.

    Raises:
        GangError: not enough came in time, or two pods claim one rank.
        Stopped: SIGTERM came first.
    """
    deadline = time.monotonic() + settings.join_seconds
    while True:
        try:
            return _meet(settings, stop, known, door, deadline)
        except (GangError, OSError) as error:
            # One that has just met the others may be lost before the ring is closed.
            if not settings.is_elastic or time.monotonic() > deadline:
                raise
            say(f"{error}: meeting again")
        stop.pause(0.2)


def _meet(
    settings: Settings, stop: StopRequest, known: State | None, door: socket.socket | None, deadline: float
) -> Gang:
    fresh = State(0, array("q", bytes(8 * settings.elements)))
    if settings.world_size == 1:
        return Gang([settings.node], 0, known or fresh)
    with listen(0) as ring:
        hello = {
            "rank": settings.rank,
            "world_size": settings.world_size,
            "port": ring.getsockname()[1],
            "node": settings.node,
            "saved": None if known is None else known.as_json(),
        }
        plan = gather(settings, stop, hello, deadline, door) if door else enrol(settings, stop, hello, deadline)
        peers = plan["peers"]
        place = [peer["rank"] for peer in peers].index(settings.rank)
        state = State.from_json(plan["saved"]) if plan["saved"] else fresh
        gang = Gang([peer["node"] for peer in peers], place, state)
        if gang.size == 1:
            return gang
        if settings.is_elastic:
            deadline = min(deadline, time.monotonic() + settings.peer_seconds)
        right, left = peers[(place + 1) % gang.size], peers[place - 1]
        try:
            # Rank 0 cannot know the address by which the others reach it: they know it as MASTER_ADDR.
            host = settings.master if right["rank"] == 0 else right["host"]
            gang.right = connect(host, right["port"], f"rank {right['rank']}", stop, deadline)
            send_message(gang.right, {"rank": settings.rank})
            gang.left = _accept_left(ring, left["rank"], stop, deadline)
        except BaseException:
            gang.close()
            raise
    for one in (gang.left, gang.right):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.setblocking(False)
    return gang


def gather(
    settings: Settings, stop: StopRequest, own: dict[str, Any], deadline: float, door: socket.socket
) -> dict[str, Any]:
    """Rank 0: wait for every rank (an elastic gang: for enough of them), choose the newest state, tell all.

    Returns:
        {"peers": [{"rank", "host", "port", "node"}] in the order of the ring, "saved": the newest state or None}.

    Raises:
        GangError: not enough came in time, or one went away again.
        Stopped: SIGTERM came first.
    """
    members: dict[int, tuple[socket.socket | None, dict[str, Any]]] = {0: (None, {**own, "host": settings.master})}
    last_call: float | None = None
    try:
        while len(members) < settings.world_size:
            missing = ", ".join(str(rank) for rank in range(settings.world_size) if rank not in members)
            if settings.is_elastic and len(members) >= settings.least and last_call is None:
                last_call = time.monotonic() + settings.last_call_seconds
            until = deadline if last_call is None else min(deadline, last_call)
            try:
                connection, host = accept(door, stop, until, f"rank {missing}")
            except GaveUpError:
                if last_call is None:
                    raise
                _drop_gone(members)
                if len(members) >= settings.least:
                    break
                last_call = None
                continue
            hello = _let_in(settings, connection, host)
            if hello is None:
                continue
            rank = int(hello["rank"])
            previous = members[rank][0] if rank in members else None
            if previous is not None:
                # The pod was started again before the gang was complete; its first connection is dead.
                previous.close()
            members[rank] = (connection, {**hello, "host": host})
            say(f"rank {rank} joined from {hello['node']}")
        peers = [members[rank][1] for rank in sorted(members)]
        saved = [peer["saved"] for peer in peers if peer["saved"]]
        plan = {
            "peers": [{key: peer[key] for key in ("rank", "host", "port", "node")} for peer in peers],
            "saved": max(saved, key=lambda one: int(one["step"]), default=None),
        }
        for rank, (member, _) in sorted(members.items()):
            if member is None:
                continue
            try:
                send_message(member, plan)
            except OSError as error:
                raise GangError(f"rank {rank} went away while joining: {error}") from error
        return plan
    finally:
        for member, _ in members.values():
            if member is not None:
                member.close()


def _let_in(settings: Settings, connection: socket.socket, host: str) -> dict[str, Any] | None:
    """What a rank says at the door; None for one that is none of the gang, which is sent away."""
    try:
        hello: dict[str, Any] = receive_message(connection)
        rank = int(hello["rank"])
        if hello["world_size"] != settings.world_size or not 0 < rank < settings.world_size:
            raise GangError(f"rank {rank} of {hello['world_size']} knocked at a gang of {settings.world_size}")
        return hello
    except (OSError, GangError, KeyError, TypeError, ValueError) as error:
        say(f"not let in: {host}: {error}")
        connection.close()
        return None


def _drop_gone(members: dict[int, tuple[socket.socket | None, dict[str, Any]]]) -> None:
    """Forget who has joined and is gone: members wait in silence, so what can be read is a connection's end."""
    for rank, (member, _) in list(members.items()):
        if member is not None and select.select([member], [], [], 0)[0]:
            say(f"rank {rank} went away while joining")
            member.close()
            del members[rank]


def enrol(settings: Settings, stop: StopRequest, hello: dict[str, Any], deadline: float) -> dict[str, Any]:
    """Other ranks: say hello to rank 0 and wait for the plan; if rank 0 is started again meanwhile, begin anew.

    Returns:
        as `gather` does.
    """
    while True:
        with connect(settings.master, settings.port, "rank 0", stop, deadline) as master:
            try:
                send_message(master, hello)
                while not select.select([master], [], [], 0.2)[0]:
                    if stop.asked:
                        raise Stopped
                    if time.monotonic() > deadline:
                        raise GangError("rank 0 answers, but the gang was not complete in time")
                plan: dict[str, Any] = receive_message(master)
                return plan
            except OSError as error:
                if time.monotonic() > deadline:
                    raise GangError(f"rank 0 went away: {error}") from error
                say(f"rank 0 went away ({error}), trying again")
        stop.pause(0.5)


def _accept_left(ring: socket.socket, wanted: int, stop: StopRequest, deadline: float) -> socket.socket:
    while True:
        connection, host = accept(ring, stop, deadline, f"the ring's rank {wanted}")
        try:
            if receive_message(connection)["rank"] == wanted:
                return connection
            say(f"not the ring's rank {wanted}: {host}")
        except (OSError, GangError, KeyError, TypeError) as error:
            say(f"not let in: {host}: {error}")
        connection.close()


# --- checkpoints ----------------------------------------------------------------------------------


def _checkpoint_path(settings: Settings) -> Path | None:
    return settings.checkpoint_dir / f"rank-{settings.rank}.json" if settings.checkpoint_dir else None


def save(settings: Settings, state: State) -> None:
    """Write the state so that a crash in the middle leaves the previous one whole."""
    path = _checkpoint_path(settings)
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    value = {"world_size": settings.world_size, **state.as_json()}
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def load(settings: Settings) -> State | None:
    """The saved state, if it is whole and of a gang like this one."""
    path = _checkpoint_path(settings)
    if path is None or not path.exists():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        state = State.from_json(value)
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        say(f"checkpoint {path} cannot be used: {error}")
        return None
    if value.get("world_size") != settings.world_size or len(state.totals) != settings.elements:
        say(f"checkpoint {path} is of another gang: starting anew")
        return None
    if not state.is_right():
        say(f"checkpoint {path} holds wrong sums: starting anew")
        return None
    return state


# --- the job --------------------------------------------------------------------------------------


class Outcome(Enum):
    """How training ended."""

    DONE = "all steps are done"
    STOPPED = "this rank was asked to stop, and the state is saved"
    AGAIN = "the ranks have to meet again"


def train(settings: Settings, stop: StopRequest, gang: Gang, door: socket.socket | None) -> Outcome:
    """Run the steps that are left.

    Raises:
        GangError: a sum is wrong, or a peer of a gang that is not elastic went away.
    """
    state = gang.state
    while state.step < settings.steps:
        begun = time.monotonic()
        step, leaving = state.step, stop.asked
        # The last elements count the ranks that were asked to stop, and whether somebody knocks at rank 0's door: so
        # all of them act on it after the same step.
        vector = array("q", (contribution(gang.place, step, index) for index in range(settings.elements)))
        vector.extend((int(leaving), int(settings.is_elastic and door is not None and _knocks(door))))
        try:
            if gang.left is not None and gang.right is not None:
                all_reduce(vector, gang.place, gang.size, gang.left, gang.right, settings.peer_seconds)
        except OSError as error:
            if settings.is_elastic:
                say(f"a neighbour in the ring went away in step {step + 1} ({error}): meeting the others again")
                return Outcome.AGAIN
            save(settings, state)
            raise GangError(f"a neighbour in the ring went away in step {step + 1}: {error}") from error
        knocks, stopping = vector.pop(), vector.pop()
        expected = array("q", (sum_of_ranks(step, index, gang.size) for index in range(settings.elements)))
        if vector != expected:
            wrong = next(index for index in range(settings.elements) if vector[index] != expected[index])
            raise GangError(f"step {step + 1}: element {wrong} is {vector[wrong]}, not {expected[wrong]}")
        state.add(vector, gang.size)
        took = 1000 * (time.monotonic() - begun)
        say(f"step {state.step}/{settings.steps}  sum ok over {gang.size} ranks  {took:.1f} ms")
        if state.step < settings.steps:
            if leaving or (stopping and not settings.is_elastic):
                save(settings, state)
                say(f"asked to stop ({stopping} of {gang.size} ranks): {_saved(settings, state)}")
                return Outcome.STOPPED
            if stopping or knocks:
                why = f"{stopping} of {gang.size} ranks leave" if stopping else "somebody knocks"
                say(f"{why}: meeting again after step {state.step}")
                return Outcome.AGAIN
        if settings.checkpoint_every and state.step % settings.checkpoint_every == 0:
            save(settings, state)
        stop.pause(settings.step_seconds)
    if not state.is_right():
        raise GangError("the totals over all steps are wrong, though each step was right")
    return Outcome.DONE


def _knocks(door: socket.socket) -> bool:
    return bool(select.select([door], [], [], 0)[0])


def _saved(settings: Settings, state: State) -> str:
    return f"saved step {state.step} in {settings.checkpoint_dir}" if settings.checkpoint_dir else "nothing saved"


def work(settings: Settings, stop: StopRequest, door: socket.socket | None) -> int:
    """Meet, train, and meet again as often as an elastic gang changes; returns the exit code.

    Raises:
        GangError, OSError: it cannot go on. What is known is saved.
    """
    state, held = load(settings), False
    while True:
        begun = time.monotonic()
        try:
            gang = join(settings, stop, state, door)
        except Stopped:
            if state is None or not held:
                say("asked to stop before the gang was complete: nothing to save")
            else:
                save(settings, state)
                say(f"asked to stop while others were waited for: {_saved(settings, state)}")
            return EXIT_STOPPED
        except (GangError, OSError):
            if state is not None and held:
                save(settings, state)
            raise
        state = gang.state
        say(f"gang complete after {time.monotonic() - begun:.1f} s: {' '.join(gang.nodes)}")
        if held:
            say(f"going on after step {state.step} with {gang.size} of {settings.world_size} ranks")
        elif state.step:
            say(f"resuming after step {state.step}")
        held = True
        try:
            outcome = train(settings, stop, gang, door)
        finally:
            gang.close()
        if outcome is Outcome.STOPPED:
            return EXIT_STOPPED
        if outcome is Outcome.DONE:
            path = _checkpoint_path(settings)
            if path is not None:
                path.unlink(missing_ok=True)
            say(f"all-reduce ok: {settings.steps} steps, {gang.size} ranks on {' '.join(gang.nodes)}")
            return 0


def run(env: Mapping[str, str]) -> int:
    """The whole job; returns the exit code."""
    stop = StopRequest()
    stop.install()
    try:
        settings = Settings.from_environment(env)
    except SettingsError as error:
        say(f"wrong environment: {error}")
        return 2
    say(f"rank {settings.rank} of {settings.world_size} on {settings.node}")
    try:
        if settings.rank or settings.world_size == 1:
            return work(settings, stop, None)
        with listen(settings.port) as door:
            return work(settings, stop, door)
    except (GangError, OSError) as error:
        say(f"failed: {error}")
        return EXIT_STOPPED if stop.asked else 1


if __name__ == "__main__":
    sys.exit(run(os.environ))
