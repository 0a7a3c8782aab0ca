"""What a request may cost: its size, its time, and how many there are at once. A slow, huge or malformed request is
ended; health is answered all the while."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger("myriad.web")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

HEADERS_MAX_BYTES = 32 * 1024
HEADERS_MOST = 100
PATH_MAX = 1024
QUERY_MAX = 2048
LOGIN_MAX_BYTES = 16 * 1024
REQUEST_S = 10.0
"""A request must have come whole within this time."""
RESPONSE_S = 60.0
"""An answer must have been taken within this time; streams of events have no end."""
STALL_S = 30.0
"""A client that takes nothing of its answer for so long is cut off."""
KEEP_ALIVE_S = 15
CONNECTIONS = 1024
CONNECTIONS_OF_ONE = 640
"""Of one address; a proxy or the API server bring many people from one."""

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), interest-cohort=()",
}


class GuardedProtocol(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, with a time limit for the request itself (uvicorn has none: a client that opens a
    connection and says nothing would keep it for ever) and a limit of connections from one address."""

    peers: ClassVar[Counter[str]] = Counter()
    request_s = REQUEST_S
    stall_s = STALL_S
    most_of_one = CONNECTIONS_OF_ONE

    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._peer = self.client[0] if self.client else ""
        self.peers[self._peer] += 1
        if self.peers[self._peer] > self.most_of_one:
            transport.abort()  # type: ignore[attr-defined]
            return
        self._watch_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._unwatch()
        if self._stalled is not None:
            self._stalled.cancel()
        self.peers[self._peer] -= 1
        if self.peers[self._peer] <= 0:
            del self.peers[self._peer]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        super().data_received(data)
        # Headers or a body that have begun and not ended: the clock runs on, it is not set back by single bytes.
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.transport.is_closing():
            if self._deadline is None:
                self._watch_request()
        else:
            self._unwatch()

    def pause_writing(self) -> None:
        """The client does not take what it asked for."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.stall_s, self._too_slow)

    def resume_writing(self) -> None:
        """The client takes it again."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _watch_request(self) -> None:
        self._deadline = self.loop.call_later(self.request_s, self._too_slow)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.abort()


class Limits:
    """ASGI middleware: refuses what is too large before anything is done with it, and adds the security headers.

    Args:
        app: the application.
        streams: paths whose answers have no end.
        response_s: an answer must have been made and taken within this time.
    """

    def __init__(self, app: App, *, streams: frozenset[str] = frozenset(), response_s: float = RESPONSE_S) -> None:
        self._app = app
        self._streams = streams
        self._response_s = response_s

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            # The extension speaks no WebSocket; uvicorn is told so, this is for other servers.
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        started = False

        async def headed(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                known = {name.lower() for name, _ in message["headers"]}
                extra = [(k.lower().encode(), v.encode()) for k, v in SECURITY_HEADERS.items()]
                message["headers"] = [*message["headers"], *(h for h in extra if h[0] not in known)]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await _refuse(headed, *refusal)
            return
        if scope["path"] in self._streams:
            await self._app(scope, receive, headed)
            return
        try:
            async with asyncio.timeout(self._response_s):
                await self._app(scope, receive, headed)
        except TimeoutError:
            log.warning("%s was not answered or not taken within %.0f s", scope["path"][:100], self._response_s)
            if not started:
                await _refuse(headed, 503, f"no answer within {self._response_s:.0f} s; ask again later")

    def _refusal(self, scope: MutableMapping[str, Any]) -> tuple[int, str] | None:
        headers = scope["headers"]
        if len(headers) > HEADERS_MOST or sum(len(name) + len(value) for name, value in headers) > HEADERS_MAX_BYTES:
            return 431, f"a request may have {HEADERS_MOST} headers with {HEADERS_MAX_BYTES} bytes together"
        if len(scope.get("raw_path") or b"") > PATH_MAX or len(scope["query_string"]) > QUERY_MAX:
            return 414, f"the path may have {PATH_MAX} bytes and the query {QUERY_MAX}"
        lengths = [value for name, value in headers if name.lower() == b"content-length"]
        chunked = any(name.lower() == b"transfer-encoding" for name, _ in headers)
        if scope["method"] == "POST":
            if chunked or len(lengths) != 1:
                return 411, "a form comes with its Content-Length"
            if len(lengths[0]) > 9 or int(lengths[0] or b"0") > LOGIN_MAX_BYTES:
                return 413, f"a form may have {LOGIN_MAX_BYTES} bytes"
        elif chunked or any(value.strip(b"0 ") for value in lengths):
            return 413, "a request that reads has no body"
        return None


async def _refuse(send: Send, status: int, text: str) -> None:
    body = json.dumps({"error": text}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        # What may still come of the request's body is not waited for.
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
