"""The locked environment of a fresh clone behind a mirror of the Python index: uv.lock stays as it is."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.network, pytest.mark.slow]

CLONE = Path(__file__).resolve().parents[3]


class _Mirror(http.server.BaseHTTPRequestHandler):
    """Serves the public index under another address, and remembers what was asked for."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        request = urllib.request.Request(f"https://pypi.org{self.path}", headers={"Accept": self.headers["Accept"]})
        with urllib.request.urlopen(request, timeout=60) as answer:
            body = answer.read()
            self.send_response(200)
            self.send_header("Content-Type", answer.headers["Content-Type"])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(_Mirror, "asked", [], raising=False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Mirror)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_fresh_clone_behind_a_mirror_gets_what_the_lock_names(mirror: str, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(CLONE), str(clone)], check=True)
    lock = (clone / "uv.lock").read_bytes()
    script = [sys.executable, str(clone / "src" / "myriad" / "lab" / "environment.py")]
    cold = subprocess.run(
        script, env={**os.environ, "MYRIAD_MIRROR_PYTHON": mirror}, capture_output=True, text=True, check=False
    )
    assert cold.returncode == 0, cold.stderr
    assert "locked packages" in cold.stdout
    assert any(path.startswith("/simple/") for path in _Mirror.asked)
    assert (clone / "uv.lock").read_bytes() == lock
    verb = subprocess.run([clone / ".venv" / "bin" / "myriad", "--help"], capture_output=True, text=True, check=False)
    assert verb.returncode == 0, verb.stderr

    _Mirror.asked.clear()
    again = subprocess.run([*script, "--quiet"], capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout) == (0, ""), "without the mirror it is still the same environment"
    assert _Mirror.asked == []
