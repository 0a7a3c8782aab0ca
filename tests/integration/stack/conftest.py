"""A real HTTP server that misbehaves on request, and settings that keep everything in a temporary folder."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from myriad.stack.fetch import Fetcher
from myriad.stack.settings import Mirrors, Settings, Timeouts
from myriad.stack.store import Store


@dataclass
class Served:
    """One file of the server.

    Attributes:
        body: its content.
        etag: its validator; "" for none.
        ranges: it honours Range.
        truncate: how often the body is cut in half before it is sent whole.
        stall: how often the server stops after half of the body.
        statuses: statuses to answer first, one a request.
    """

    body: bytes
    etag: str = '"1"'
    ranges: bool = True
    truncate: int = 0
    stall: int = 0
    statuses: list[int] = field(default_factory=list)


class FileServer:
    """Serves `files` by path, and remembers each request as (method, path, Range header)."""

    def __init__(self) -> None:
        self.files: dict[str, Served] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.stop_stalling = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner.answer(self)

            def do_HEAD(self) -> None:
                owner.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.stop_stalling.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers.get("Range", "")
        self.requests.append((handler.command, handler.path, asked))
        served = self.files.get(handler.path)
        status = 404 if served is None else 200
        if served is not None and served.statuses:
            status = served.statuses.pop(0)
        if served is None or status != 200:
            handler.send_response(status)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        start = 0
        if asked and served.ranges and handler.headers.get("If-Range") in (None, served.etag):
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(served.body):
                handler.send_response(416)
                handler.send_header("Content-Length", "0")
                handler.end_headers()
                return
            handler.send_response(206)
        else:
            handler.send_response(200)
        body = served.body[start:]
        handler.send_header("Content-Length", str(len(body)))
        if served.etag:
            handler.send_header("ETag", served.etag)
        handler.end_headers()
        if handler.command == "HEAD":
            return
        if served.truncate or served.stall:
            handler.wfile.write(body[: len(body) // 2])
            handler.wfile.flush()
            if served.stall:
                served.stall -= 1
                self.stop_stalling.wait(10)
            else:
                served.truncate -= 1
            handler.close_connection = True
            return
        handler.wfile.write(body)


@pytest.fixture
def server() -> Iterator[FileServer]:
    """A server with no files yet."""
    running = FileServer()
    yield running
    running.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Short timeouts, two retries, a cache of its own, no proxies."""
    timeouts = Timeouts(probe_s=0.5, connect_s=1.0, read_s=0.4)
    return Settings(cache=tmp_path / "cache", mirrors=Mirrors(), timeouts=timeouts, retries=2)


@pytest.fixture
def store(settings: Settings) -> Store:
    """The store of the settings."""
    return Store(settings.store_root)


@pytest.fixture
def waits() -> list[float]:
    """Seconds that the fetcher waited between attempts (it does not really wait)."""
    return []


@pytest.fixture
def fetcher(store: Store, settings: Settings, waits: list[float]) -> Iterator[Fetcher]:
    """A fetcher that does not sleep."""
    with Fetcher(store=store, settings=settings, wait=waits.append) as made:
        yield made


@pytest.fixture
def free_port_url() -> str:
    """A URL at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
