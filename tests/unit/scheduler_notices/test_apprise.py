"""Mail and chat through the real apprise, to a server of the test."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from myriad.scheduler.notices.courier import Note, Passing, Refused, notify
from myriad.scheduler.notices.targets import Address

# apprise imports a module of the standard library that Python 3.13 has no more; it does without it there.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

NOTE = Note("n1", "clip-ft (vision) was preempted", "the text", {}, 0.0)


def test_apprise_delivers_title_and_text() -> None:
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        notify(Address("chat", "apprise", f"json://127.0.0.1:{server.server_port}/x"), NOTE)
    finally:
        server.shutdown()
        server.server_close()
    assert got[0]["title"] == NOTE.title and got[0]["message"] == NOTE.text


def test_an_address_that_apprise_does_not_know_and_one_that_is_dead() -> None:
    with pytest.raises(Refused, match="does not know"):
        notify(Address("chat", "apprise", "nonsense:hunter2"), NOTE)
    with pytest.raises(Passing):
        notify(Address("chat", "apprise", "json://127.0.0.1:9/x"), NOTE)
