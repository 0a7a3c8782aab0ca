"""Databases for the ledger's tests: SQLite in a folder, and a real PostgreSQL as a process of its own on loopback."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg


def programs() -> Path | None:
    """The folder of Debian's newest PostgreSQL server, or of one on PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3].split(".")[0]))
    if found:
        return found[-1].parent
    path = shutil.which("initdb")
    return Path(path).parent if path else None


def missing() -> str:
    """Why no PostgreSQL can be started here; empty where one can."""
    if programs() is None:
        return "PostgreSQL's server is not installed (apt-get install postgresql)"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return "PostgreSQL does not run as root, and there is no user postgres"
    return ""


class Server:
    """A PostgreSQL server in a temporary folder."""

    def __init__(self) -> None:
        # Not under pytest's folder: that is closed to the user that the server runs as.
        self._folder = Path(tempfile.mkdtemp(prefix="myriad-pg-"))
        self._data = self._folder / "data"
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = int(s.getsockname()[1])
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            shutil.chown(self._folder, "postgres")
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")

    def _command(self, program: str, *arguments: str) -> list[str]:
        path = programs()
        assert path is not None
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        return [*as_user, str(path / program), *arguments]

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(self._command(program, *arguments), capture_output=True, text=True, cwd="/", check=False)
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "fsync": "off"}
        arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command("postgres", "-D", str(self._data), *arguments), stdout=log, stderr=log, cwd="/"
            )
        end = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.dsn("postgres"), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < end, (self._folder / "log").read_text()
                time.sleep(0.1)

    def stop(self) -> None:
        """Stop at once, as a machine that is switched off."""
        if self._process is not None:
            self._process.send_signal(3)  # SIGQUIT: immediate shutdown
            self._process.wait(timeout=20)
            self._process = None

    def remove(self) -> None:
        """Stop, and leave nothing behind."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def dsn(self, database: str) -> str:
        """For psycopg."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={database}"

    def database(self) -> str:
        """A new empty database; its URL."""
        self._count += 1
        name = f"ledger{self._count}"
        with contextlib.closing(psycopg.connect(self.dsn("postgres"), autocommit=True)) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """A running server."""
    made = Server()
    try:
        made.start()
        yield made
    finally:
        made.remove()
