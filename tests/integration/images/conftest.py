"""A real registry on loopback: the program that the site's registry role runs, from this machine's store."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from myriad.stack.bundle import Bundle
from myriad.stack.settings import cache_root

#: bcrypt of "secret", made once: the standard library makes none.
_HTPASSWD = "ci:$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n"


@dataclass(frozen=True)
class Served:
    """A running registry. `user` and `password` are empty without credentials, `ca` None without TLS."""

    url: str
    user: str = ""
    password: str = ""
    ca: Path | None = None

    @property
    def host(self) -> str:
        return self.url.partition("://")[2]


def _program() -> Path | None:
    """The registry's program in some bundle of this machine, the newest first."""
    root = cache_root()
    for path in sorted(root.glob("bundles/*/bundle.yml"), key=lambda one: -one.stat().st_mtime):
        for entry in Bundle.load(path.parent).manifest.files:
            if entry.name == "registry" and entry.kind == "binary":
                blob = Bundle.load(path.parent).path(entry.sha256)
                if blob.is_file():
                    return blob
    return None


@pytest.fixture(scope="session")
def registry_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = _program()
    if found is None:
        pytest.skip("no bundle on this machine holds the registry's program; `myriad bundle build` makes one")
    program = tmp_path_factory.mktemp("bin") / "registry"
    shutil.copyfile(found, program)
    program.chmod(0o755)
    return program


@pytest.fixture
def serve(registry_program: Path, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts registries: `serve()`, `serve(tls=True, credentials=True)`."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*, tls: bool = False, credentials: bool = False) -> Served:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        home = tmp_path / f"registry-{port}"
        home.mkdir()
        lines = [
            "version: 0.1",
            "log: {level: error, accesslog: {disabled: true}}",
            f"storage: {{filesystem: {{rootdirectory: {home}/data}}, delete: {{enabled: true}}}}",
            "http:",
            f"  addr: 127.0.0.1:{port}",
        ]
        ca = None
        if tls:
            ca = home / "ca.crt"
            command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=registry"
            names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(home / "key.pem"), "-out", str(ca)]
            subprocess.run([*command.split(), *names], check=True, capture_output=True)
            lines.append(f"  tls: {{certificate: {ca}, key: {home}/key.pem}}")
        if credentials:
            (home / "htpasswd").write_text(_HTPASSWD)
            lines.append(f"auth: {{htpasswd: {{realm: site, path: {home}/htpasswd}}}}")
        (home / "config.yml").write_text("\n".join(lines) + "\n")
        log = (home / "log").open("wb")
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "OTEL_TRACES_EXPORTER": "none"}
        running.append(
            subprocess.Popen(
                [str(registry_program), "serve", str(home / "config.yml")], stdout=log, stderr=log, env=environment
            )
        )
        log.close()
        url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        for _ in range(200):
            try:
                httpx.get(f"{url}/v2/", verify=False, trust_env=False)  # noqa: S501 - whether it answers at all
                break
            except httpx.TransportError:
                if running[-1].poll() is not None:
                    raise AssertionError((home / "log").read_text()) from None
                time.sleep(0.05)
        else:
            raise AssertionError(f"the registry does not answer: {(home / 'log').read_text()}")
        return Served(url, "ci" if credentials else "", "secret" if credentials else "", ca)

    yield start
    for process in running:
        process.terminate()
        process.wait()
