"""Downloads against a real HTTP server: every way in which one can go wrong has an error of its own."""

from __future__ import annotations

import hashlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from myriad.stack.fetch import (
    ChecksumError,
    Fetcher,
    FetchError,
    NotReachableError,
    Reachability,
    SlowServerError,
    TruncatedError,
    VanishedError,
    Wanted,
)
from myriad.stack.settings import Mirrors, Settings
from myriad.stack.store import Store

from .conftest import FileServer, Served

BODY = bytes(range(256)) * 4096
DIGEST = hashlib.sha256(BODY).hexdigest()


def _wanted(server: FileServer, path: str = "/tool", sha256: str = DIGEST) -> Wanted:
    return Wanted(name="tool 1.0.0", url=server.url + path, sha256=sha256)


def test_a_file_lands_in_the_store_once(server: FileServer, fetcher: Fetcher) -> None:
    server.files["/tool"] = Served(BODY)
    path = fetcher.fetch(_wanted(server))
    assert path.read_bytes() == BODY
    assert fetcher.fetch(_wanted(server)) == path
    assert len(server.requests) == 1


def test_progress_tells_bytes_and_the_total(server: FileServer, fetcher: Fetcher) -> None:
    server.files["/tool"] = Served(BODY)
    seen: list[tuple[int, int | None]] = []
    fetcher.fetch(_wanted(server), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(BODY), len(BODY))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_wrong_checksum_is_never_used(server: FileServer, fetcher: Fetcher, store: Store) -> None:
    server.files["/tool"] = Served(b"something else")
    with pytest.raises(ChecksumError) as caught:
        fetcher.fetch(_wanted(server))
    found = hashlib.sha256(b"something else").hexdigest()
    assert found in str(caught.value) and DIGEST in str(caught.value) and "myriad lock pin" in str(caught.value)
    assert not store.has(found) and not store.has(DIGEST)
    server.files["/tool"] = Served(BODY, etag='"2"')
    assert fetcher.fetch(_wanted(server)).read_bytes() == BODY


def test_a_truncated_body_goes_on_where_it_stopped(server: FileServer, fetcher: Fetcher, waits: list[float]) -> None:
    server.files["/tool"] = Served(BODY, truncate=1)
    assert fetcher.fetch(_wanted(server)).read_bytes() == BODY
    assert [asked for _, _, asked in server.requests] == ["", f"bytes={len(BODY) // 2}-"]
    assert waits == [1.0]


def test_a_body_that_is_always_truncated_is_told(server: FileServer, fetcher: Fetcher) -> None:
    server.files["/tool"] = Served(BODY, truncate=99, ranges=False)
    with pytest.raises(TruncatedError, match=r"broke off|ended after"):
        fetcher.fetch(_wanted(server))
    assert len(server.requests) == 3


def test_a_slow_server_is_told_and_what_came_is_kept(server: FileServer, fetcher: Fetcher, settings: Settings) -> None:
    server.files["/tool"] = Served(BODY, stall=3)
    with pytest.raises(SlowServerError, match="sent nothing for"):
        fetcher.fetch(_wanted(server))
    kept = (settings.downloads / f"{DIGEST}.part").stat().st_size
    assert kept > len(BODY) // 2
    server.requests.clear()
    assert fetcher.fetch(_wanted(server)).read_bytes() == BODY
    assert server.requests == [("GET", "/tool", f"bytes={kept}-")]


def test_a_file_that_changed_meanwhile_is_fetched_anew(server: FileServer, fetcher: Fetcher) -> None:
    server.files["/tool"] = Served(b"o" * len(BODY), etag='"old"', truncate=99)
    with pytest.raises(TruncatedError):
        fetcher.fetch(_wanted(server))
    server.files["/tool"] = Served(BODY, etag='"new"')
    assert fetcher.fetch(_wanted(server)).read_bytes() == BODY


def test_without_a_validator_nothing_is_resumed(server: FileServer, fetcher: Fetcher) -> None:
    server.files["/tool"] = Served(BODY, etag="", truncate=1)
    assert fetcher.fetch(_wanted(server)).read_bytes() == BODY
    assert [asked for _, _, asked in server.requests] == ["", ""]


def test_a_weak_validator_vouches_for_no_range(server: FileServer, fetcher: Fetcher) -> None:
    server.files["/tool"] = Served(BODY, etag='W/"1"', truncate=1)
    assert fetcher.fetch(_wanted(server)).read_bytes() == BODY
    assert [asked for _, _, asked in server.requests] == ["", ""]


def test_a_whole_partial_file_is_taken_without_another_byte(
    server: FileServer, fetcher: Fetcher, settings: Settings
) -> None:
    server.files["/tool"] = Served(BODY, truncate=99)
    with pytest.raises(TruncatedError):
        fetcher.fetch(_wanted(server))
    (settings.downloads / f"{DIGEST}.part").write_bytes(BODY)
    server.files["/tool"] = Served(BODY)
    assert fetcher.fetch(_wanted(server)).read_bytes() == BODY
    assert server.requests[-1][2] == f"bytes={len(BODY)}-"


def test_a_vanished_version_is_never_replaced(server: FileServer, fetcher: Fetcher) -> None:
    server.files["/v1.0.1/tool"] = Served(BODY)
    with pytest.raises(VanishedError) as caught:
        fetcher.fetch(_wanted(server, "/v1.0.0/tool"))
    assert "404" in str(caught.value) and "never replaced" in str(caught.value)
    assert server.requests == [("GET", "/v1.0.0/tool", "")]


def test_a_passing_server_error_is_tried_again(server: FileServer, fetcher: Fetcher, waits: list[float]) -> None:
    server.files["/tool"] = Served(BODY, statuses=[503, 429])
    assert fetcher.fetch(_wanted(server)).read_bytes() == BODY
    assert waits == [1.0, 2.0]


def test_a_lasting_server_error_is_told_after_bounded_attempts(server: FileServer, fetcher: Fetcher) -> None:
    server.files["/tool"] = Served(BODY, statuses=[503] * 9)
    with pytest.raises(FetchError, match="the host answers 503"):
        fetcher.fetch(_wanted(server))
    assert len(server.requests) == 3


def test_a_refusal_is_not_tried_again(server: FileServer, fetcher: Fetcher) -> None:
    server.files["/tool"] = Served(BODY, statuses=[403])
    with pytest.raises(FetchError, match="the host answers 403"):
        fetcher.fetch(_wanted(server))
    assert len(server.requests) == 1


def test_a_host_that_does_not_answer(fetcher: Fetcher, free_port_url: str) -> None:
    with pytest.raises(NotReachableError, match="does not answer"):
        fetcher.fetch(Wanted(name="tool", url=f"{free_port_url}/tool", sha256=DIGEST))


def test_many_files_at_once(server: FileServer, fetcher: Fetcher) -> None:
    bodies = {f"/file{number}": bytes([number]) * 100_000 for number in range(12)}
    server.files = {path: Served(body) for path, body in bodies.items()}
    wanted = [
        Wanted(name=path, url=server.url + path, sha256=hashlib.sha256(body).hexdigest())
        for path, body in bodies.items()
    ]
    paths = fetcher.fetch_all(wanted)
    assert {name: path.read_bytes() for name, path in paths.items()} == bodies


def test_two_fetchers_of_one_file_download_it_once(server: FileServer, fetcher: Fetcher) -> None:
    server.files["/tool"] = Served(BODY)
    with ThreadPoolExecutor(max_workers=4) as pool:
        paths = list(pool.map(lambda _: fetcher.fetch(_wanted(server)), range(4)))
    assert len(set(paths)) == 1
    assert len(server.requests) == 1


def test_a_mirror_serves_a_release_host(server: FileServer, store: Store, settings: Settings) -> None:
    server.files["/gh/org/tool/v1"] = Served(BODY)
    mirrored = replace(settings, mirrors=Mirrors(releases={"github.com": f"{server.url}/gh"}))
    with Fetcher(store=store, settings=mirrored) as fetcher:
        path = fetcher.fetch(Wanted(name="tool", url="https://github.com/org/tool/v1", sha256=DIGEST))
    assert path.read_bytes() == BODY


def test_one_mirror_for_all_hosts_keeps_their_names_apart(server: FileServer, store: Store, settings: Settings) -> None:
    server.files["/all/dl.k8s.io/release/kubelet"] = Served(BODY)
    mirrored = replace(settings, mirrors=Mirrors(releases={"*": f"{server.url}/all/"}))
    with Fetcher(store=store, settings=mirrored) as fetcher:
        path = fetcher.fetch(Wanted(name="kubelet", url="https://dl.k8s.io/release/kubelet", sha256=DIGEST))
    assert path.read_bytes() == BODY


def test_a_proxy_is_asked_and_no_proxy_goes_past_it(server: FileServer, store: Store, settings: Settings) -> None:
    # The server plays the proxy: a proxied request line holds the whole URL.
    server.files["http://releases.invalid/tool"] = Served(BODY)
    proxied = replace(settings, mirrors=Mirrors(http_proxy=server.url, no_proxy="127.0.0.1,.internal"))
    with Fetcher(store=store, settings=proxied, wait=lambda seconds: None) as fetcher:
        fetcher.fetch(Wanted(name="tool", url="http://releases.invalid/tool", sha256=DIGEST))
        assert server.requests == [("GET", "http://releases.invalid/tool", "")]
        with pytest.raises(NotReachableError):  # past the proxy there is no such host
            fetcher.fetch(Wanted(name="other", url="http://releases.internal/x", sha256="0" * 64))
        server.files["/direct"] = Served(b"direct")
        fetcher.fetch(_wanted(server, "/direct", hashlib.sha256(b"direct").hexdigest()))
    assert server.requests[-1][1] == "/direct"


def test_reachability_is_asked_once_a_host(server: FileServer, settings: Settings, free_port_url: str) -> None:
    probe = Reachability(settings)
    for path in ("/one", "/two"):
        assert probe.reason_unreachable(server.url + path) is None
    assert server.requests == [("HEAD", "/", "")]
    assert "is not reachable" in (probe.reason_unreachable(f"{free_port_url}/x") or "")


def test_unpinned_fetch_tells_what_lock_pin_would_trust(server: FileServer, fetcher: Fetcher, store: Store) -> None:
    server.files["/tool"] = Served(BODY)
    assert fetcher.fetch_unpinned(f"{server.url}/tool") == (DIGEST, len(BODY))
    assert store.has(DIGEST)


def test_hosts_are_probed_at_once_and_a_silent_one_costs_no_more_than_the_timeout(
    server: FileServer, settings: Settings, free_port_url: str
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        quiet = f"http://127.0.0.1:{silent.getsockname()[1]}"
        probe = Reachability(settings)
        started = time.monotonic()
        probe.probe([f"{server.url}/x", f"{free_port_url}/y", f"{quiet}/z", f"{quiet}/again"])
        assert time.monotonic() - started < 5
        assert probe.reason_unreachable(f"{server.url}/x") is None
        assert "is not reachable" in (probe.reason_unreachable(f"{free_port_url}/y") or "")
        assert "does not answer within 0.5 s" in (probe.reason_unreachable(f"{quiet}/z") or "")
