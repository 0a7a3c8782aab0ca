"""The registry and its front as programs on loopback: those of this machine's bundles, or built by the locked Go."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import myriad.registry_site
from myriad.errors import MyriadError
from myriad.stack.bundle import Bundle
from myriad.stack.gobuild import GoBuilder, find_toolchain
from myriad.stack.lock import load_lock
from myriad.stack.settings import read_settings
from myriad.stack.store import Store


def registry_program() -> Path:
    """The locked registry; a bundle of this machine holds it."""
    version = load_lock().component("registry").version
    for manifest in sorted((read_settings().cache / "bundles").glob("*/bundle.yml")):
        try:
            bundle = Bundle.load(manifest.parent)
        except MyriadError:  # of another version of Myriad
            continue
        if bundle.has_file("registry") and bundle.file("registry").version == version:
            path = bundle.file_path("registry")
            if path.is_file():
                return path
    pytest.skip("no bundle of this machine holds the registry: `make bundle` makes one")


def front_program() -> Path:
    """The front, built from its source where it has not been yet."""
    try:
        toolchain = find_toolchain(load_lock().go)
    except MyriadError as error:
        pytest.skip(f"no locked Go here: {error}")
    settings = read_settings()
    store = Store(settings.store_root)
    source = Path(myriad.registry_site.__file__).parent / "front"
    built = GoBuilder(toolchain=toolchain, store=store, settings=settings).build_local(
        source, artifact="registry-front"
    )
    return store.need(built.sha256)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that listens on a port, until the block ends."""
    environment = os.environ | {"OTEL_TRACES_EXPORTER": "none"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            until = time.monotonic() + 20
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    assert process.poll() is None and time.monotonic() < until, log.read_text()
                    time.sleep(0.05)
            yield process
        finally:
            process.terminate()
            process.wait(timeout=20)


def registry_config(folder: Path, port: int, *, tls: tuple[Path, Path] | None = None) -> Path:
    """A configuration as the role writes it."""
    lines = [
        "version: 0.1",
        "log: {level: error, accesslog: {disabled: true}}",
        f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}, delete: {{enabled: true}}}}",
        "http:",
        f"  addr: 127.0.0.1:{port}",
        "  relativeurls: true",
    ]
    if tls is not None:
        lines += ["  tls:", f"    certificate: {tls[0]}", f"    key: {tls[1]}", "    minimumtls: tls1.2"]
    path = folder / "config.yml"
    path.write_text("\n".join(lines) + "\n")
    return path
