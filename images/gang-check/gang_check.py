"""A gang job that proves a gang: every rank joins, they sum over all of them again and again, and each checks the
result.

Run by every pod of a gang; needs the standard library only. Rank 0 listens at MASTER_ADDR:MASTER_PORT, collects all
ranks, and tells each
where the others are; then they form a ring and all-reduce a vector a step over TCP (reduce-scatter and all-gather, as
NCCL's ring does).

SIGTERM on any rank: all ranks learn of it in the same step, save the same state, and exit 143. The next start resumes
from the newest
checkpoint that any rank has, so it does not matter which node kept it.

Environment:
    MASTER_ADDR, MASTER_PORT (29400)    where rank 0 is met
    RANK, WORLD_SIZE                    RANK may be left to JOB_COMPLETION_INDEX
    NODE_NAME                           printed and collected, to show where the gang ran
    CHECKPOINT_DIR                      where to save; unset: nothing is saved
    GANG_STEPS (20), GANG_STEP_SECONDS (0.25), GANG_CHECKPOINT_EVERY (0: only when stopped), GANG_ELEMENTS (4096)
    GANG_JOIN_SECONDS (600), GANG_PEER_SECONDS (60)   how long to wait for all to join, and for a silent peer

Exit codes: 0 all steps done, 1 failed, 2 wrong environment, 143 stopped by SIGTERM with the state saved.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HEADER = struct.Struct("!I")
_LARGEST_MESSAGE = 1 << 28
EXIT_STOPPED = 128 + signal.SIGTERM


class GangError(Exception):
    """The gang cannot go on. Exit code 1."""


class SettingsError(Exception):
    """A variable is missing or wrong. Exit code 2."""


class Stopped(Exception):
    """SIGTERM came before the gang was complete: there is nothing to save."""


@dataclass(frozen=True)
class Settings:
    """What the environment says. Times are in seconds."""

    rank: int
    world_size: int
    master: str
    port: int
    node: str
    steps: int
    step_seconds: float
    elements: int
    join_seconds: float
    peer_seconds: float
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

        world_size = number("WORLD_SIZE", None, 1)
        rank = number("RANK", env.get("JOB_COMPLETION_INDEX"), 0)
        if rank >= world_size:
            raise SettingsError(f"RANK is {rank}, but WORLD_SIZE is {world_size}: ranks are 0 to {world_size - 1}")
        master = env.get("MASTER_ADDR", "")
        if not master and world_size > 1:
            raise SettingsError("MASTER_ADDR is not set")
        folder = env.get("CHECKPOINT_DIR", "")
        return cls(
            rank=rank,
            world_size=world_size,
            master=master,
            port=number("MASTER_PORT", "29400", 1),
            node=env.get("NODE_NAME") or socket.gethostname(),
            steps=number("GANG_STEPS", "20", 1),
            step_seconds=number("GANG_STEP_SECONDS", "0.25", 0, float),
            elements=number("GANG_ELEMENTS", "4096", 1),
            join_seconds=number("GANG_JOIN_SECONDS", "600", 0, float),
            peer_seconds=number("GANG_PEER_SECONDS", "60", 0, float),
            checkpoint_dir=Path(folder) if folder else None,
            checkpoint_every=number("GANG_CHECKPOINT_EVERY", "0", 0),
        )


@dataclass
class State:
    """What training would call the model: after `step` steps, the sum of all steps' results. It is the same on every
    rank."""

    step: int
    totals: array[int]

    def matches(self, world_size: int) -> bool:
        """True if the totals are what `step` steps of `world_size` ranks give."""
        return self.totals == array(
            "q", (sum_of_steps(self.step, index, world_size) for index in range(len(self.totals)))
        )


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
    """The ring, once all ranks have met."""

    nodes: list[str]
    state: State
    left: socket.socket | None = None
    right: socket.socket | None = None
    sockets: list[socket.socket] = field(default_factory=list)

    def close(self) -> None:
        """Close the connections."""
        for one in self.sockets:
            one.close()


class StopRequest:
    """Set by SIGTERM, read between steps. A plain attribute: a lock taken in a signal handler could wait for itself."""

    def __init__(self) -> None:
        self.asked = False

    def install(self) -> None:
        """Answer SIGTERM from now on."""
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        self.asked = True

    def pause(self, seconds: float) -> None:
        """Sleep, but not through a stop."""
        end = time.monotonic() + seconds
        while not self.asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))


# --- messages -------------------------------------------------------------------------------------


def send_message(connection: socket.socket, value: Any) -> None:
    """One JSON value, after its length."""
    data = json.dumps(value).encode()
    connection.sendall(_HEADER.pack(len(data)) + data)


def receive_message(connection: socket.socket) -> Any:
    """The next JSON value.

    Raises:
        ConnectionError: the other side closed.
        GangError: what comes is no message: something else knocked at this port.
    """
    (length,) = _HEADER.unpack(_receive_exactly(connection, _HEADER.size))
    if length > _LARGEST_MESSAGE:
        raise GangError(f"a message of {length} bytes was announced: not a gang member")
    try:
        return json.loads(_receive_exactly(connection, length))
    except ValueError:
        raise GangError("what came is not a message of a gang member") from None


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("closed by the other side")
        data += part
    return bytes(data)


def exchange(right: socket.socket, data: bytes, left: socket.socket, size: int, timeout: float) -> bytes:
    """Send `data` to the right and receive `size` bytes from the left at once: if all sent first, full buffers would
    stop the ring.

    Raises:
        ConnectionError: a neighbour closed.
        TimeoutError: nothing moved for `timeout` seconds.
    """
    outgoing, incoming = memoryview(data), bytearray()
    while outgoing or len(incoming) < size:
        readable, writable, _ = select.select(
            [left] if len(incoming) < size else [], [right] if outgoing else [], [], timeout
        )
        if not readable and not writable:
            raise TimeoutError(f"a neighbour was silent for {timeout:g} s")
        if writable:
            outgoing = outgoing[right.send(outgoing) :]
        if readable:
            part = left.recv(size - len(incoming))
            if not part:
                raise ConnectionResetError("closed by the other side")
            incoming += part
    return bytes(incoming)


def all_reduce(vector: array[int], rank: int, world_size: int, gang: Gang, timeout: float) -> None:
    """Replace the vector by its sum over all ranks, by the ring: 2 (n - 1) exchanges of one n-th of it each."""
    if gang.left is None or gang.right is None:
        return
    bounds = [len(vector) * part // world_size for part in range(world_size + 1)]

    def chunk(number: int) -> slice:
        return slice(bounds[number % world_size], bounds[number % world_size + 1])

    for turn in range(2 * (world_size - 1)):
        reducing = turn < world_size - 1
        going, coming = chunk(rank - turn), chunk(rank - turn - 1)
        size = (coming.stop - coming.start) * vector.itemsize
        received = array("q")
        received.frombytes(exchange(gang.right, vector[going].tobytes(), gang.left, size, timeout))
        if reducing:
            vector[coming] = array("q", map(int.__add__, vector[coming], received))
        else:
            vector[coming] = received


# --- joining --------------------------------------------------------------------------------------


def join(settings: Settings, stop: StopRequest, saved: State | None) -> Gang:
    """Meet all ranks and connect the ring.

    Raises:
        GangError: not all came in time, or two pods claim one rank.
        Stopped: SIGTERM came first.
    """
    fresh = State(0, array("q", bytes(8 * settings.elements)))
    if settings.world_size == 1:
        return Gang([settings.node], saved or fresh)
    deadline = time.monotonic() + settings.join_seconds
    ring = _listen(0)
    hello = {
        "rank": settings.rank,
        "world_size": settings.world_size,
        "port": ring.getsockname()[1],
        "node": settings.node,
        "saved": None if saved is None else {"step": saved.step, "totals": list(saved.totals)},
    }
    with ring:
        if settings.rank == 0:
            plan = _gather(settings, stop, hello, deadline)
        else:
            plan = _enrol(settings, stop, hello, deadline)
        state = State(plan["saved"]["step"], array("q", plan["saved"]["totals"])) if plan["saved"] else fresh
        gang = Gang([peer["node"] for peer in plan["peers"]], state)
        right = (settings.rank + 1) % settings.world_size
        # Rank 0 cannot know the address by which the others reach it: they know it as MASTER_ADDR.
        host = settings.master if right == 0 else plan["peers"][right]["host"]
        gang.right = _connect(host, plan["peers"][right]["port"], f"rank {right}", stop, deadline)
        gang.sockets.append(gang.right)
        send_message(gang.right, {"rank": settings.rank})
        gang.left = _accept_left(ring, settings, stop, deadline)
        gang.sockets.append(gang.left)
    for one in gang.sockets:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.setblocking(False)
    return gang


def _listen(port: int) -> socket.socket:
    """A listener on all addresses, IPv6 too where the machine has it."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            say(f"no IPv6 here ({error}), listening on IPv4")
    return socket.create_server(("", port))


def _accept(listener: socket.socket, stop: StopRequest, deadline: float, waiting_for: str) -> tuple[socket.socket, str]:
    listener.settimeout(0.2)
    told = time.monotonic() + 5
    while True:
        if stop.asked:
            raise Stopped
        now = time.monotonic()
        if now > deadline:
            raise GangError(f"gave up waiting for {waiting_for}")
        if now > told:
            say(f"waiting for {waiting_for}")
            told = now + 5
        try:
            connection, address = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(10)
        return connection, str(address[0])


def _connect(host: str, port: int, name: str, stop: StopRequest, deadline: float) -> socket.socket:
    """Connect, again and again: the other pod, or its name in DNS, may come later than this one."""
    told = time.monotonic() + 5
    while True:
        if stop.asked:
            raise Stopped
        try:
            return socket.create_connection((host, port), timeout=10)
        except OSError as error:
            now = time.monotonic()
            if now > deadline:
                raise GangError(f"cannot reach {name} at {host}:{port}: {error}") from error
            if now > told:
                say(f"waiting for {name} at {host}:{port} ({error})")
                told = now + 5
        stop.pause(0.2)


def _gather(settings: Settings, stop: StopRequest, own: dict[str, Any], deadline: float) -> dict[str, Any]:
    """Rank 0: wait for every rank, choose the newest checkpoint, tell all."""
    members: dict[int, tuple[socket.socket | None, dict[str, Any]]] = {0: (None, {**own, "host": settings.master})}
    try:
        with _listen(settings.port) as listener:
            while len(members) < settings.world_size:
                missing = ", ".join(str(rank) for rank in range(settings.world_size) if rank not in members)
                connection, host = _accept(listener, stop, deadline, f"rank {missing}")
                try:
                    hello = receive_message(connection)
                    rank = int(hello["rank"])
                    if hello["world_size"] != settings.world_size or not 0 < rank < settings.world_size:
                        raise GangError(
                            f"rank {rank} of {hello['world_size']} knocked at a gang of {settings.world_size}"
                        )
                except (OSError, GangError, KeyError, TypeError, ValueError) as error:
                    say(f"not let in: {host}: {error}")
                    connection.close()
                    continue
                if rank in members:
                    # The pod was started again before the gang was complete; its first connection is dead.
                    previous = members[rank][0]
                    if previous is not None:
                        previous.close()
                members[rank] = (connection, {**hello, "host": host})
                say(f"rank {rank} joined from {hello['node']}")
        peers = [members[rank][1] for rank in range(settings.world_size)]
        saved = [peer["saved"] for peer in peers if peer["saved"]]
        plan = {
            "peers": [{key: peer[key] for key in ("host", "port", "node")} for peer in peers],
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


def _enrol(settings: Settings, stop: StopRequest, hello: dict[str, Any], deadline: float) -> dict[str, Any]:
    """Other ranks: say hello to rank 0 and wait for the plan; if rank 0 is started again meanwhile, begin anew."""
    while True:
        with _connect(settings.master, settings.port, "rank 0", stop, deadline) as master:
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


def _accept_left(ring: socket.socket, settings: Settings, stop: StopRequest, deadline: float) -> socket.socket:
    wanted = (settings.rank - 1) % settings.world_size
    while True:
        connection, host = _accept(ring, stop, deadline, f"the ring's rank {wanted}")
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
    value = {"world_size": settings.world_size, "step": state.step, "totals": list(state.totals)}
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
        state = State(int(value["step"]), array("q", value["totals"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        say(f"checkpoint {path} cannot be used: {error}")
        return None
    if value.get("world_size") != settings.world_size or len(state.totals) != settings.elements:
        say(f"checkpoint {path} is of another gang: starting anew")
        return None
    if not state.matches(settings.world_size):
        say(f"checkpoint {path} holds wrong sums: starting anew")
        return None
    return state


# --- the job --------------------------------------------------------------------------------------


def train(settings: Settings, stop: StopRequest, gang: Gang) -> bool:
    """Run the steps that are left. True if all are done, False if a rank was asked to stop and the state is saved.

    Raises:
        GangError: a sum is wrong, or a peer went away.
    """
    state = gang.state
    while state.step < settings.steps:
        begun = time.monotonic()
        step = state.step
        # The last element counts the ranks that were asked to stop: so all of them stop after the same step.
        vector = array("q", (contribution(settings.rank, step, index) for index in range(settings.elements)))
        vector.append(int(stop.asked))
        try:
            all_reduce(vector, settings.rank, settings.world_size, gang, settings.peer_seconds)
        except OSError as error:
            save(settings, state)
            raise GangError(f"a neighbour in the ring went away in step {step + 1}: {error}") from error
        stopping = vector.pop()
        expected = array("q", (sum_of_ranks(step, index, settings.world_size) for index in range(settings.elements)))
        if vector != expected:
            wrong = next(index for index in range(settings.elements) if vector[index] != expected[index])
            raise GangError(f"step {step + 1}: element {wrong} is {vector[wrong]}, not {expected[wrong]}")
        state.totals = array("q", map(int.__add__, state.totals, vector))
        state.step += 1
        took = 1000 * (time.monotonic() - begun)
        say(f"step {state.step}/{settings.steps}  sum ok over {settings.world_size} ranks  {took:.1f} ms")
        if stopping and state.step < settings.steps:
            save(settings, state)
            where = (
                f"saved step {state.step} in {settings.checkpoint_dir}" if settings.checkpoint_dir else "nothing saved"
            )
            say(f"asked to stop ({stopping} of {settings.world_size} ranks): {where}")
            return False
        if settings.checkpoint_every and state.step % settings.checkpoint_every == 0:
            save(settings, state)
        stop.pause(settings.step_seconds)
    if not state.matches(settings.world_size):
        raise GangError("the totals over all steps are wrong, though each step was right")
    return True


def say(text: str) -> None:
    """One line at once: the log of a pod that is killed must end with what it did last."""
    print(text, flush=True)


def run(env: Mapping[str, str]) -> int:
    """The whole job; returns the exit code."""
    stop = StopRequest()
    stop.install()
    try:
        settings = Settings.from_environment(env)
    except SettingsError as error:
        say(f"wrong environment: {error}")
        return 2
    begun = time.monotonic()
    say(f"rank {settings.rank} of {settings.world_size} on {settings.node}")
    try:
        gang = join(settings, stop, load(settings))
        say(f"gang complete after {time.monotonic() - begun:.1f} s: {' '.join(gang.nodes)}")
        if gang.state.step:
            say(f"resuming after step {gang.state.step}")
        try:
            done = train(settings, stop, gang)
        finally:
            gang.close()
    except Stopped:
        say("asked to stop before the gang was complete: nothing to save")
        return EXIT_STOPPED
    except (GangError, OSError) as error:
        say(f"failed: {error}")
        return EXIT_STOPPED if stop.asked else 1
    if not done:
        return EXIT_STOPPED
    path = _checkpoint_path(settings)
    if path is not None:
        path.unlink(missing_ok=True)
    say(f"all-reduce ok: {settings.steps} steps, {settings.world_size} ranks on {' '.join(gang.nodes)}")
    return 0


if __name__ == "__main__":
    sys.exit(run(os.environ))
