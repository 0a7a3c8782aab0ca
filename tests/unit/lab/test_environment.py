"""The environment's bootstrap: what is pinned, where it comes from, and that links never lead an installer astray."""

from __future__ import annotations

import hashlib
import http.server
import io
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from myriad.lab import environment
from myriad.lab.environment import (
    SetupError,
    find_link,
    find_uv,
    fingerprint,
    link_collection,
    locked_uv,
    mirror,
    unlink_collection,
    uv_environment,
)

CLONE = Path(__file__).resolve().parents[3]


def test_uv_is_pinned_by_the_lock_with_hashes() -> None:
    version, wheels = locked_uv((CLONE / "uv.lock").read_text())
    assert version.count(".") == 2
    assert any("manylinux" in name and "x86_64" in name for name, _ in wheels)
    assert all(len(digest) == 64 for _, digest in wheels)
    with pytest.raises(SetupError, match="pins no uv"):
        locked_uv('[[package]]\nname = "other"\nversion = "1"\n')


def test_mirrors_come_from_one_variable_or_the_file_of_all_mirrors(tmp_path: Path) -> None:
    assert mirror({"HOME": str(tmp_path)}) == ""
    named = {"MYRIAD_MIRROR_PYTHON": "http://a/simple", "PIP_INDEX_URL": "http://b/simple", "HOME": str(tmp_path)}
    assert mirror(named) == "http://a/simple"
    assert mirror({"PIP_INDEX_URL": "http://b/simple"}) == "http://b/simple"
    file = tmp_path / ".config" / "myriad" / "mirrors.yml"
    file.parent.mkdir(parents=True)
    file.write_text("go: http://go.example\npython: 'http://c/simple'  # ours\n")
    assert mirror({"HOME": str(tmp_path)}) == "http://c/simple"
    assert mirror({"HOME": "/nowhere", "MYRIAD_MIRRORS_FILE": str(file)}) == "http://c/simple"


def test_a_mirror_neither_reaches_uv_nor_makes_the_environment_old(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text("lock")
    (tmp_path / "pyproject.toml").write_text("project")
    before = fingerprint(tmp_path, "/usr/bin/python3")
    clean = uv_environment({"UV_INDEX_URL": "http://m", "MYRIAD_MIRROR_PYTHON": "http://m", "PATH": "/bin"}, tmp_path)
    assert not [name for name in clean if "INDEX" in name or "MIRROR" in name]
    assert fingerprint(tmp_path, "/usr/bin/python3") == before
    (tmp_path / "uv.lock").write_text("another lock")
    assert fingerprint(tmp_path, "/usr/bin/python3") != before


@pytest.mark.parametrize(
    "page",
    [
        '{"files": [{"filename": "uv-1-a.whl", "url": "https://files.example/uv-1-a.whl"}]}',
        '<a href="../../files/uv-0.whl#sha256=0">uv-0.whl</a><a href="https://files.example/uv-1-a.whl#sha256=1">x</a>',
    ],
)
def test_links_of_a_simple_index(page: str) -> None:
    wanted = {"uv-1-a.whl": "1"}
    assert find_link(page, "https://i/simple/uv/", wanted) == ("uv-1-a.whl", "https://files.example/uv-1-a.whl")
    relative = '<a href="../../files/uv-1-a.whl#sha256=0">uv</a>'
    assert find_link(relative, "https://i/simple/uv/", wanted)[1] == "https://i/files/uv-1-a.whl"
    with pytest.raises(SetupError, match="lists no"):
        find_link("<html></html>", "https://i/simple/uv/", wanted)


class _Index(http.server.BaseHTTPRequestHandler):
    """A package index with one wheel."""

    wheel = b""

    def do_GET(self) -> None:
        body = b'<a href="/files/uv-9.9.9-py3-none-manylinux_x86_64.whl">uv</a>'
        if self.path.startswith("/files/"):
            body = self.wheel
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""


@pytest.fixture
def index() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Index)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    thread.join()
    server.server_close()


def _lock(folder: Path, digest: str) -> None:
    wheel = "uv-9.9.9-py3-none-manylinux_x86_64.whl"
    (folder / "uv.lock").write_text(
        '[[package]]\nname = "uv"\nversion = "9.9.9"\nwheels = [\n'
        f'    {{ url = "https://files.example/{wheel}", hash = "sha256:{digest}", size = 1 }},\n]\n'
    )


def test_uv_comes_from_a_mirror_without_venv_and_by_hash(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_venv(*_: object) -> None:
        raise OSError("No module named venv")

    monkeypatch.setattr(environment, "_uv_by_pip", no_venv)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel:
        wheel.writestr("uv-9.9.9.data/scripts/uv", "#!/bin/sh\necho uv\n")
    monkeypatch.setattr(_Index, "wheel", buffer.getvalue())
    environ = {"MYRIAD_MIRROR_PYTHON": index}

    _lock(tmp_path, hashlib.sha256(b"something else").hexdigest())
    with pytest.raises(SetupError, match="not the file that"):
        find_uv(tmp_path, "/usr/bin/python3", tmp_path / "cache", environ)

    _lock(tmp_path, hashlib.sha256(buffer.getvalue()).hexdigest())
    uv = find_uv(tmp_path, "/usr/bin/python3", tmp_path / "cache", environ)
    assert uv.stat().st_mode & 0o111
    assert find_uv(tmp_path, "/usr/bin/python3", tmp_path / "cache", {}) == uv, "the second time it is there"


def test_links_replace_copies_and_leave_the_list_of_installed_files(tmp_path: Path) -> None:
    for name in ("meta", "playbooks", "plugins", "roles"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.yml").write_text(name)
    (tmp_path / "galaxy.yml").write_text("name: gpu\n")
    packages = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages"
    copy = packages / "ansible_collections" / "myriad" / "gpu" / "roles"
    copy.mkdir(parents=True)
    (copy / "own.yml").write_text("an old copy")
    record = packages / "myriad-0.1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("ansible_collections/myriad/gpu/roles/own.yml,sha256=x,1\nmyriad.pth,sha256=y,1\n")

    link_collection(tmp_path)
    assert copy.is_symlink()
    assert (copy / "own.yml").read_text() == "roles"
    assert record.read_text() == "myriad.pth,sha256=y,1\n"
    link_collection(tmp_path)
    unlink_collection(tmp_path)
    assert not copy.exists()
    assert (tmp_path / "roles" / "own.yml").read_text() == "roles", "the clone's own files stay"
