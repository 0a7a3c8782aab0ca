"""How many gigabytes a second each node sends and receives, measured between all pairs; names no one, counts only.

Run by one pod on each node of a rack. The pods meet as a gang does (gang_check.py); then they play a tournament: in
each round every node has one partner, both send to each other for a few seconds, and each counts what came in. No node
is in two pairs at once, so a slow one slows only its own pairs and is seen from all sides.

The result is one JSON object on one line, printed and written to the termination message, where whoever started the job
finds it in the pod's status:

    {"node": "gpu1", "rails": {"eth0": {"gpu2": 1.24, "gpu3": 1.19}}}        gigabytes (10^9) received in a second

Environment, besides that of gang_check.py (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, NODE_NAME, GANG_JOIN_SECONDS):
    LINK_SECONDS (2)      how long each pair sends
    LINK_ROUNDS (0: all)  at most so many partners for each node
    LINK_RAILS            JSON {rail: {node: address}}: measured over these addresses one after the other; without it
                          over the pods' own network, as the rail "pods"
    LINK_RESULT           where the result goes too (/dev/termination-log)

Exit codes as gang_check.py's.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from gang_check import EXIT_STOPPED, Settings, SettingsError, enrol, gather
from gang_wire import GangError, Stopped, StopRequest, accept, listen, receive_message, say, send_message

CHUNK = bytes(1 << 20)
OWN_NETWORK = "pods"


def pairings(count: int, limit: int = 0) -> list[list[int]]:
    """Rounds of a tournament by the circle method: in each round the partner of every rank, -1 for a rest.

    Args:
        count: players.
        limit: at most so many rounds; 0 for all, which lets everybody meet everybody.
    """
    players = list(range(count)) + ([-1] if count % 2 else [])
    half = len(players) // 2
    rounds = []
    for _ in range(len(players) - 1):
        partner = [-1] * count
        for one, other in zip(players[:half], reversed(players[half:]), strict=True):
            if -1 not in (one, other):
                partner[one], partner[other] = other, one
        rounds.append(partner)
        players = [players[0], players[-1], *players[1:-1]]
    return rounds[:limit] if limit else rounds


class Meter:
    """Counts what comes in on one connection while it sends."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self.connection = connection
        self.seconds = seconds
        self.fault: OSError | None = None

    def run(self) -> float:
        """Gigabytes a second received.

        Raises:
            OSError: the partner went away.
        """
        sender = threading.Thread(target=self._send, daemon=True)
        buffer = bytearray(1 << 20)
        received, began, last = 0, 0.0, 0.0
        sender.start()
        while True:
            count = self.connection.recv_into(buffer)
            now = time.monotonic()
            if not count:
                break
            # Time runs from the first bytes: waiting for a partner that comes late is no part of its speed.
            began = began or now
            last = now
            received += count
        sender.join()
        if self.fault is not None:
            raise self.fault
        return received / 1e9 / (last - began) if last > began else 0.0

    def _send(self) -> None:
        try:
            until = time.monotonic() + self.seconds
            while time.monotonic() < until:
                self.connection.sendall(CHUNK)
            self.connection.shutdown(socket.SHUT_WR)
        except OSError as error:
            self.fault = error


def number(env: Mapping[str, str], name: str, default: str) -> float:
    """A variable that is 0 or more.

    Raises:
        SettingsError: it is not.
    """
    text = env.get(name) or default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value < 0:
        raise SettingsError(f"{name} is {text!r}, not a number of 0 or more")
    return value


def meet(settings: Settings, stop: StopRequest, port: int, deadline: float) -> list[dict[str, Any]]:
    """All members with node, host and port, by rank."""
    hello = {
        "rank": settings.rank, "world_size": settings.world_size, "port": port, "node": settings.node, "saved": None,
    }  # fmt: skip
    if settings.rank:
        plan = enrol(settings, stop, hello, deadline)
    else:
        with listen(settings.port) as door:
            plan = gather(settings, stop, hello, deadline, door)
    peers: list[dict[str, Any]] = plan["peers"]
    # Rank 0 cannot know the address by which the others reach it: they know it as MASTER_ADDR.
    peers[0]["host"] = settings.master
    return peers


def play(
    settings: Settings,
    stop: StopRequest,
    listener: socket.socket,
    peers: list[dict[str, Any]],
    addresses: Mapping[str, str] | None,
    *,
    rail: str,
    rounds: list[list[int]],
    seconds: float,
) -> dict[str, float]:
    """One tournament over one rail: partner's node to gigabytes a second received from it.

    Raises:
        GangError: a partner cannot be reached or went away.
    """
    found: dict[str, float] = {}
    waiting: dict[tuple[int, str, int], socket.socket] = {}
    for turn, partners in enumerate(rounds):
        partner = partners[settings.rank]
        if partner < 0:
            continue
        node = peers[partner]["node"]
        deadline = time.monotonic() + settings.peer_seconds + seconds * 2
        try:
            if settings.rank < partner:
                host = addresses[node] if addresses else peers[partner]["host"]
                source = (addresses[settings.node], 0) if addresses else None
                connection = _connect(node, (host, peers[partner]["port"]), source, stop, deadline)
                send_message(connection, {"rank": settings.rank, "rail": rail, "turn": turn})
            else:
                connection = _await(listener, (partner, rail, turn), waiting, stop, deadline, node)
            with connection:
                connection.settimeout(settings.peer_seconds + seconds)
                found[node] = round(Meter(connection, seconds).run(), 4)
        except OSError as error:
            raise GangError(f"{node} went away on rail {rail}: {error}") from error
        say(f"{rail} {node} {found[node]:.3f} GB/s")
    return found


def _connect(
    node: str, address: tuple[str, int], source: tuple[str, int] | None, stop: StopRequest, deadline: float
) -> socket.socket:
    while True:
        if stop.asked:
            raise Stopped
        try:
            return socket.create_connection(address, timeout=10, source_address=source)
        except OSError as error:
            if time.monotonic() > deadline:
                raise GangError(f"cannot reach {node} at {address[0]}:{address[1]}: {error}") from error
        stop.pause(0.2)


def _await(
    listener: socket.socket,
    wanted: tuple[int, str, int],
    waiting: dict[tuple[int, str, int], socket.socket],
    stop: StopRequest,
    deadline: float,
    node: str,
) -> socket.socket:
    """The partner's connection. One that knocks for a later round is kept until its turn."""
    while wanted not in waiting:
        connection, _ = accept(listener, stop, deadline, node)
        try:
            hello = receive_message(connection)
            waiting[int(hello["rank"]), str(hello["rail"]), int(hello["turn"])] = connection
        except (OSError, GangError, KeyError, TypeError, ValueError) as error:
            say(f"not let in: {error}")
            connection.close()
    return waiting.pop(wanted)


def measure(env: Mapping[str, str], stop: StopRequest) -> dict[str, Any]:
    """Meet, play on every rail, give the result."""
    settings = Settings.from_environment(env)
    seconds = number(env, "LINK_SECONDS", "2")
    limit = int(number(env, "LINK_ROUNDS", "0"))
    rails: dict[str, dict[str, str] | None] = {OWN_NETWORK: None}
    if env.get("LINK_RAILS"):
        rails = dict(json.loads(env["LINK_RAILS"])) or rails
    deadline = time.monotonic() + settings.join_seconds
    with listen(0) as listener:
        peers = meet(settings, stop, listener.getsockname()[1], deadline)
        say(f"{settings.world_size} nodes met: {' '.join(peer['node'] for peer in peers)}")
        rounds = pairings(settings.world_size, limit)
        return {
            "node": settings.node,
            "rails": {
                rail: play(settings, stop, listener, peers, addresses, rail=rail, rounds=rounds, seconds=seconds)
                for rail, addresses in rails.items()
            },
        }


def run(env: Mapping[str, str]) -> int:
    """The whole job; returns the exit code."""
    stop = StopRequest()
    stop.install()
    try:
        result = measure(env, stop)
    except (SettingsError, ValueError) as error:
        say(f"wrong environment: {error}")
        return 2
    except Stopped:
        say("asked to stop: nothing measured")
        return EXIT_STOPPED
    except (GangError, OSError) as error:
        say(f"failed: {error}")
        return 1
    line = json.dumps(result, separators=(",", ":"))
    say(line)
    path = env.get("LINK_RESULT", "/dev/termination-log")
    try:
        with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123 (a device or a mounted file)
            file.write(line)
    except OSError as error:
        say(f"the result stands only here: {path} cannot be written ({error.strerror})")
    return 0


if __name__ == "__main__":
    sys.exit(run(os.environ))
