"""Requests that are malformed, huge, slow or strange do no harm: each is refused, and health is answered meanwhile."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from myriad.bench.page_serve import Served, serve
from myriad.bench.page_world import fill
from myriad.scheduler.web.limits import GuardedProtocol


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Nobody has to log in, so that requests reach as far as they can."""
    with serve(tmp_path_factory.mktemp("limits")) as found:
        fill(found.cache, nodes=8, teams=2, waiting=2)
        yield found


def raw(served: Served, data: bytes, *, timeout_s: float = 5.0) -> bytes:
    """What comes back for bytes as they are, until the server closes or is silent."""
    host, port = served.url.removeprefix("http://").split(":")
    found = b""
    with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
        connection.sendall(data)
        try:
            while piece := connection.recv(65536):
                found += piece
                if b"\r\n\r\n" in found and b"connection: close" not in found.lower():
                    break
        except (TimeoutError, ConnectionResetError):
            pass
    return found


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ")[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def is_well(served: Served) -> bool:
    return status_of(raw(served, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")) == 200


@pytest.mark.parametrize(
    ("request_", "statuses"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", {400, 0}),
        (b"GET\r\n\r\n", {400}),
        (b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", {400, 200}),
        (b"GET /" + b"a" * 2000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", {414}),
        (b"GET /v1/queue?team=" + b"a" * 3000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", {414}),
        # 0: the server closed while the rest was still coming, and its answer went with the reset.
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", {400, 431, 0}),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 20_000 + b"\r\n", {400, 431, 0}),
        (b"GET /v1/queue HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", {413}),
        (b"GET /v1/queue HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {413}),
        (b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", {413}),
        (b"POST /login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", {411}),
        (b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nab", {400}),
        (b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n\xff\xfe\xfd", {400}),
        (b"POST /v1/queue HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", {405}),
        (b"DELETE /v1/queue HTTP/1.1\r\nHost: x\r\n\r\n", {405}),
        (b"GET /v1/why/%ff%fe/%c3%28 HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
        (b"GET /v1/why/\xff\xfe/x HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
        (b"GET /v1/why/../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", {404, 400}),
        (b"GET /v1/why/..%2f..%2fetc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", {404, 400}),
        (b"GET /v1/why/vision/%2e%2e HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
        (b"GET /v1/why/vision/a%00b HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
        (b"GET /static/../server.py HTTP/1.1\r\nHost: x\r\n\r\n", {404}),
        (b"GET /static/..%2f..%2fserver.py HTTP/1.1\r\nHost: x\r\n\r\n", {404}),
        (b"GET /v1/queue?team=a&team=b HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
        (b"GET /v1/queue?unknown=1 HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
        (b"GET /v1/queue?team=%F0%9F%92%A9 HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
        (b"GET /v1/decisions?limit=-1 HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
        (b"GET /v1/decisions?limit=99999999999999999999 HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
        (b"GET /v1/decisions?since=yesterday HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
        (b"GET /v1/decisions?limit=%D9%A3 HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
        (b"GET /v1/stream?sections=secrets HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
        (b"GET /v1/queue HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
         b"Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n", {200}),
    ],
)  # fmt: skip
def test_a_bad_request_is_refused_and_the_server_stays_well(
    request_: bytes, statuses: set[int], open_server: Served
) -> None:
    answer = raw(open_server, request_, timeout_s=2.0)
    assert status_of(answer) in statuses, answer[:300]
    assert b"Traceback" not in answer and b".py" not in answer.replace(b"server.py", b"")
    assert is_well(open_server)


def test_a_refusal_says_what_is_wrong(open_server: Served) -> None:
    told = httpx.get(open_server.url + "/v1/decisions?limit=0").json()["error"]
    assert "limit" in told and "1 to 1000" in told
    assert "there are: team" in httpx.get(open_server.url + "/v1/queue?x=1").json()["error"]


def test_a_client_that_says_nothing_or_too_slowly_is_cut_off(
    open_server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardedProtocol, "request_s", 0.3)
    host, port = open_server.url.removeprefix("http://").split(":")
    slow = [socket.create_connection((host, int(port)), timeout=5) for _ in range(30)]
    try:
        slow[0].sendall(b"GET /healthz HTTP/1.1\r\nHost:")
        slow[1].sendall(b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\ntoken=")
        # One byte now and then does not set the clock back.
        for _ in range(4):
            time.sleep(0.1)
            try:
                slow[0].sendall(b" ")
            except OSError:
                break
        assert is_well(open_server)
        for connection in slow:
            try:
                while connection.recv(4096):
                    pass
            except ConnectionResetError:
                pass
    finally:
        for connection in slow:
            connection.close()
    assert is_well(open_server)


def test_one_address_cannot_take_all_connections(open_server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GuardedProtocol, "most_of_one", len(GuardedProtocol.peers) + 5)
    host, port = open_server.url.removeprefix("http://").split(":")
    held = [socket.create_connection((host, int(port)), timeout=2) for _ in range(12)]
    try:
        time.sleep(0.1)
        cut = 0
        for connection in held:
            connection.settimeout(0.05)
            try:
                cut += connection.recv(1) == b""
            except ConnectionResetError:
                cut += 1
            except TimeoutError:
                pass
        assert cut >= 5
    finally:
        for connection in held:
            connection.close()
    time.sleep(0.1)
    assert is_well(open_server)


def test_more_requests_than_are_served_are_told_to_come_back(
    open_server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("myriad.scheduler.server.WAITING", 0)
    answer = httpx.get(open_server.url + "/v1/queue")
    assert answer.status_code == 503 and answer.headers["Retry-After"] and "ask again" in answer.json()["hint"]
    assert is_well(open_server)


def test_every_answer_carries_the_headers_of_a_careful_page(open_server: Served) -> None:
    for path in ("/", "/map", "/v1/queue", "/static/app.js", "/nothing", "/login", "/healthz"):
        headers = httpx.get(open_server.url + path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers


def test_names_of_jobs_cannot_become_markup(tmp_path: Path, open_server: Served) -> None:
    from myriad.scheduler import page

    nasty = '"><img src=x onerror=alert(1)>'
    frame = page.Frame(user=nasty)
    why: dict[str, Any] = {"first_cause": nasty, "lines": [{"about": nasty, "text": nasty}], "unblocks": [nasty]}
    data = {
        "namespace": nasty, "job": nasty, "queue": nasty, "size": nasty, "priority": 1, "nodes": {nasty: 1},
        "why": {**why, "looked_at": [nasty]}, "timeline": [{"time": nasty, "what": nasty, "detail": nasty}],
        "decisions": [{"time": nasty, "event": nasty, "namespace": nasty, "name": nasty, "reason": nasty}],
        "preemptions": [{"id": nasty, "at": nasty, "reason": nasty, "victim": {"namespace": nasty, "job": nasty},
                         "preemptor": {"namespace": nasty, "job": nasty}, "kill_at": nasty, "last_checkpoint": nasty}],
    }  # fmt: skip
    text = page.render("job", data, frame)
    assert "<img" not in text and "&lt;img" in text
    row = {"pool": nasty, "path": [nasty], "place": nasty, "state": "ok", "reason": nasty, "gpus": 8, "used": 1,
           "terminating": 0, "missing": 0, "jobs": {f"{nasty}/x": 1}}  # fmt: skip
    assert "<img" not in page.map_figure({nasty: row}, nasty)
    assert "</script><b>" not in page.map_figure({"</script><b>": row}, "x")
