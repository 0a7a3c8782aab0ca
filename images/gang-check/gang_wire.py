"""What the members of a gang say to each other: messages, the ring, doors and knocks. Standard library only."""

from __future__ import annotations

import json
import select
import signal
import socket
import struct
import time
from array import array
from typing import Any

_HEADER = struct.Struct("!I")
_LARGEST_MESSAGE = 1 << 28


class GangError(Exception):
    """The gang cannot go on. Exit code 1."""


class GaveUpError(GangError):
    """Nobody came in time."""


class Stopped(Exception):
    """SIGTERM came while others were waited for."""


def say(text: str) -> None:
    """One line at once: the log of a pod that is killed must end with what it did last."""
    print(text, flush=True)


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


def all_reduce(
    vector: array[int], rank: int, world_size: int, left: socket.socket, right: socket.socket, timeout: float
) -> None:
    """Replace the vector by its sum over all ranks, by the ring: 2 (n - 1) exchanges of one n-th of it each.

    Raises:
        OSError: a neighbour went away, or was silent for `timeout` seconds.
    """
    bounds = [len(vector) * part // world_size for part in range(world_size + 1)]

    def chunk(number: int) -> slice:
        return slice(bounds[number % world_size], bounds[number % world_size + 1])

    for turn in range(2 * (world_size - 1)):
        reducing = turn < world_size - 1
        going, coming = chunk(rank - turn), chunk(rank - turn - 1)
        size = (coming.stop - coming.start) * vector.itemsize
        received = array("q")
        received.frombytes(exchange(right, vector[going].tobytes(), left, size, timeout))
        if reducing:
            vector[coming] = array("q", map(int.__add__, vector[coming], received))
        else:
            vector[coming] = received


def listen(port: int) -> socket.socket:
    """A listener on all addresses, IPv6 too where the machine has it."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            say(f"no IPv6 here ({error}), listening on IPv4")
    return socket.create_server(("", port))


def accept(listener: socket.socket, stop: StopRequest, deadline: float, waiting_for: str) -> tuple[socket.socket, str]:
    """The next connection and where it comes from.

    Raises:
        GaveUpError: nobody came until the deadline (monotonic seconds).
        Stopped: SIGTERM came first.
    """
    listener.settimeout(0.2)
    told = time.monotonic() + 5
    while True:
        if stop.asked:
            raise Stopped
        now = time.monotonic()
        if now > deadline:
            raise GaveUpError(f"gave up waiting for {waiting_for}")
        if now > told:
            say(f"waiting for {waiting_for}")
            told = now + 5
        try:
            connection, address = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(10)
        return connection, str(address[0])


def connect(host: str, port: int, name: str, stop: StopRequest, deadline: float) -> socket.socket:
    """Connect, again and again: the other pod, or its name in DNS, may come later than this one.

    Raises:
        GangError: it is not reached until the deadline (monotonic seconds).
        Stopped: SIGTERM came first.
    """
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
