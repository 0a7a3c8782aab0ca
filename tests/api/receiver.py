"""A webhook to send notices to, and how late this machine is meanwhile."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]


class Receiver:
    """A webhook: keeps what comes, when it came, and answers what it is told to.

    Args:
        host: the address of this machine on which it listens.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.got: list[tuple[float, dict[str, str], bytes]] = []
        self.answer = 204
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((time.time(), dict(self.headers), body))
                self.send_response(receiver.answer)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer((host, 0), Handler)
        self.url = f"http://{host}:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of(self, job: str) -> list[Json]:
        found = [json.loads(body) for _, _, body in self.got]
        return [b for b in found if b.get("eviction", {}).get("victim", {}).get("job") == job]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Lag:
    """How late the machine lets a thread be that sleeps 20 ms: the worst so far."""

    def __init__(self) -> None:
        self.worst = 0.0
        self._stop = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            self._stop.wait(0.02)
            self.worst = max(self.worst, time.monotonic() - began - 0.02)

    def close(self) -> None:
        self._stop.set()
