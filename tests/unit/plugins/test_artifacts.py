"""The module artifacts against an HTTP server, and its action plugin."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

USER, GROUP = str(os.getuid()), str(os.getgid())


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Registry:
    """Blobs by digest; ranges; faults that can be switched on."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.cut_after: int | None = None
        self.cuts_left = 0
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_words: object) -> None:
                return

            def do_GET(self) -> None:
                digest = self.path.rsplit(":", 1)[-1]
                asked = self.headers.get("Range")
                registry.requests.append((self.path, asked))
                data = registry.blobs.get(digest)
                if data is None:
                    self.send_error(404)
                    return
                start = int(asked[len("bytes=") : -1]) if asked else 0
                if start >= len(data) and start:
                    self.send_error(416)
                    return
                self.send_response(206 if asked else 200)
                self.send_header("Content-Length", str(len(data) - start))
                self.end_headers()
                if registry.cuts_left > 0 and registry.cut_after is not None:
                    registry.cuts_left -= 1
                    self.wfile.write(data[start : start + registry.cut_after])
                    self.close_connection = True
                    return
                self.wfile.write(data[start:])

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def add(self, data: bytes) -> str:
        self.blobs[sha(data)] = data
        return sha(data)


@pytest.fixture
def registry():
    found = Registry()
    found.thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    found.thread.join()


@pytest.fixture
def fetch(plugin, registry, tmp_path, monkeypatch):
    """Run the module's work for items of (name, digest)."""
    module = plugin("modules.artifacts")
    monkeypatch.setattr(module, "WAIT_S", 0.01)

    def run(items, *, check=False, mode="0755", **params):
        listed = [
            {
                "name": name,
                "sha256": digest,
                "path": str(tmp_path / "bin" / name),
                "mode": mode,
                "owner": USER,
                "group": GROUP,
            }
            for name, digest in items
        ]
        values = {key: option.get("default") for key, option in module.ARGUMENTS.items()}
        values.update(
            role="demo", run_id="r1", state_dir=str(tmp_path / "state"), source=registry.url, items=listed, timeout_s=5
        )
        work = module.Artifacts({**values, **params}, check)
        work.run()
        return work

    run.Failure = module.Failure
    return run


def test_fetches_verifies_and_is_idempotent_without_asking_again(fetch, registry, tmp_path):
    items = [("a", registry.add(b"a" * 100_000)), ("b", registry.add(b"b"))]
    first = fetch(items)
    assert sorted(first.changed_paths) == [str(tmp_path / "bin" / "a"), str(tmp_path / "bin" / "b")]
    assert (tmp_path / "bin" / "a").read_bytes() == b"a" * 100_000
    assert (tmp_path / "bin" / "a").stat().st_mode & 0o7777 == 0o755
    assert first.downloaded_bytes == 100_001
    registry.requests.clear()
    second = fetch(items)
    assert (second.changed_paths, second.diff, registry.requests) == ([], [], [])
    assert sorted(path.name for path in (tmp_path / "bin").iterdir()) == ["a", "b"]


def test_prediction_equals_the_run_and_needs_no_registry(fetch, registry, tmp_path):
    items = [("a", registry.add(b"a")), ("b", registry.add(b"b"))]
    predicted = fetch(items, check=True)
    assert registry.requests == []
    assert not (tmp_path / "bin").exists()
    done = fetch(items)
    assert predicted.changed_paths == done.changed_paths
    assert predicted.diff == done.diff


def test_what_is_right_is_known_without_reading_it_and_full_reads_it(fetch, registry, tmp_path):
    items = [("a", registry.add(b"aaaa"))]
    fetch(items)
    path = tmp_path / "bin" / "a"
    info = path.stat()
    path.write_bytes(b"bbbb")
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert fetch(items).changed_paths == []
    assert fetch(items, full=True).changed_paths == [str(path)]
    assert path.read_bytes() == b"aaaa"


def test_a_file_changed_by_hand_is_replaced_and_a_mode_set_right(fetch, registry, tmp_path):
    items = [("a", registry.add(b"aaaa"))]
    fetch(items)
    path = tmp_path / "bin" / "a"
    path.chmod(0o644)
    work = fetch(items)
    assert (work.changed_paths, work.downloaded_bytes) == ([str(path)], 0)
    assert path.stat().st_mode & 0o7777 == 0o755
    path.write_bytes(b"by hand")
    assert fetch(items).downloaded_bytes == 4


def test_a_broken_transfer_is_resumed_where_it_broke(fetch, registry, tmp_path):
    data = os.urandom(200_000)
    registry.cut_after, registry.cuts_left = 50_000, 2
    work = fetch([("a", registry.add(data))])
    assert (tmp_path / "bin" / "a").read_bytes() == data
    assert work.downloaded_bytes == len(data)
    assert [asked for _path, asked in registry.requests] == [None, "bytes=50000-", "bytes=100000-"]


def test_the_next_run_resumes_what_a_killed_one_left(fetch, registry, tmp_path):
    data = os.urandom(200_000)
    digest = registry.add(data)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / f".a.myriad-{digest[:16]}.tmp").write_bytes(data[:150_000])
    (tmp_path / "bin" / ".a.myriad-0000000000000000.tmp").write_bytes(b"of an older version")
    work = fetch([("a", digest)])
    assert work.downloaded_bytes == 50_000
    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["a"]


def test_a_damaged_partial_file_is_thrown_away_and_fetched_again(fetch, registry, tmp_path):
    data = os.urandom(1000)
    digest = registry.add(data)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / f".a.myriad-{digest[:16]}.tmp").write_bytes(b"x" * 500)
    fetch([("a", digest)])
    assert (tmp_path / "bin" / "a").read_bytes() == data


def test_a_partial_file_that_is_longer_than_the_blob_is_fetched_again(fetch, registry, tmp_path):
    digest = registry.add(b"short")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / f".a.myriad-{digest[:16]}.tmp").write_bytes(b"x" * 500)
    fetch([("a", digest)])
    assert (tmp_path / "bin" / "a").read_bytes() == b"short"


def test_not_found_unreachable_and_changed_are_told_apart_and_all_together(fetch, registry, tmp_path):
    missing = sha(b"nowhere")
    wrong = sha(b"expected")
    registry.blobs[wrong] = b"something else"
    with pytest.raises(fetch.Failure) as caught:
        fetch([("lost", missing), ("swapped", wrong), ("fine", registry.add(b"x"))])
    text = str(caught.value)
    assert f"lost: not found at {registry.url}/v2/artifacts/blobs/sha256:{missing}" in text
    assert f"swapped: content changed: expected sha256 {wrong}, got {sha(b'something else')}" in text
    assert sorted(path.name for path in (tmp_path / "bin").iterdir()) == ["fine"]
    with pytest.raises(fetch.Failure, match=r"lost: unreachable: .*refused"):
        fetch([("lost", missing)], source="http://127.0.0.1:9")


def test_a_program_that_runs_is_replaced_without_disturbing_it(fetch, registry, tmp_path):
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "a"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    process = subprocess.Popen([str(program), "30"])
    try:
        time.sleep(0.05)
        fetch([("a", registry.add(b"#!/bin/sh\n"))])
        assert program.read_bytes() == b"#!/bin/sh\n"
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_digest_that_is_none_is_refused(fetch):
    with pytest.raises(fetch.Failure, match="is not a sha256"):
        fetch([("a", "latest")])


def test_a_proxy_of_the_environment_is_not_asked(fetch, registry, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    assert fetch([("a", registry.add(b"x"))]).downloaded_bytes == 1
    with pytest.raises(fetch.Failure, match="unreachable"):
        fetch([("b", registry.add(b"y"))], use_proxy=True)


def test_what_is_about_to_land_is_recorded_first(fetch, registry, tmp_path):
    with pytest.raises(fetch.Failure):
        fetch([("lost", sha(b"nowhere"))])
    state = json.loads((tmp_path / "state" / "demo.json").read_text())
    assert [entry["name"] for entry in state["artifacts"]] == ["lost"]


def test_directories_that_it_makes_are_recorded_and_can_be_entered_whatever_the_umask(fetch, registry, tmp_path):
    before = os.umask(0o077)
    try:
        fetch([("a", registry.add(b"x"))])
    finally:
        os.umask(before)
    assert (tmp_path / "bin").stat().st_mode & 0o7777 == 0o755
    for run_id in ("r1", "r2"):
        fetch([("a", registry.add(b"x"))], run_id=run_id)
        state = json.loads((tmp_path / "state" / "demo.json").read_text())
        assert [(entry["path"], entry["made"], entry["run"]) for entry in state["directories"]] == [
            (str(tmp_path / "bin"), True, run_id)
        ]


def test_the_module_runs_as_a_process_of_its_own(collections, registry, tmp_path):
    """As ansible runs it on a node: arguments as JSON, one JSON document as the answer."""
    digest = registry.add(b"x")
    item = {"name": "a", "sha256": digest, "path": str(tmp_path / "bin" / "a"), "owner": USER, "group": GROUP}
    arguments = {"role": "demo", "source": registry.url, "items": [item], "state_dir": str(tmp_path / "state")}
    (tmp_path / "arguments.json").write_text(json.dumps({"ANSIBLE_MODULE_ARGS": arguments}))
    module = collections / "ansible_collections" / "myriad" / "gpu" / "plugins" / "modules" / "artifacts.py"
    done = subprocess.run(
        [sys.executable, str(module), str(tmp_path / "arguments.json")],
        env={**os.environ, "PYTHONPATH": str(collections)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert answer["changed"] is True
    assert answer["changed_paths"] == [str(tmp_path / "bin" / "a")]


STORE_PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  tasks:
    - name: Programs from the controller
      myriad.gpu.artifacts:
        role: demo
        state_dir: {tmp}/state
        store: {tmp}/store
        items:
          - {{name: a, sha256: {digest}, path: {tmp}/bin/a, owner: "{user}", group: "{group}"}}
"""


def test_a_store_on_the_controller_sends_what_is_missing(ansible, tmp_path):
    digest = sha(b"program")
    blob = tmp_path / "store" / "sha256" / digest[:2] / digest
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"program")
    play = STORE_PLAY.format(tmp=tmp_path, digest=digest, user=USER, group=GROUP)
    assert "changed 1" in ansible(play).stdout
    assert (tmp_path / "bin" / "a").read_bytes() == b"program"
    blob.unlink()
    assert "changed 0" in ansible(play).stdout
    (tmp_path / "bin" / "a").unlink()
    done = ansible(play)
    assert done.returncode == 2
    assert f"does not hold a (sha256 {digest})" in done.stdout
