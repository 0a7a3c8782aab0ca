"""A containerd of the bundle on a root and socket of its own, and a small registry that can be slow, break and count.

No engine, no cluster: root, mounts and the bundle's programs are enough. What is started is ended by its own number.
"""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import re
import signal
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.myriad.gpu.plugins.module_utils.warm_containerd import Containerd
from ansible_collections.myriad.gpu.plugins.module_utils.warm_image import Warming

from myriad.stack.bundle import Bundle
from myriad.stack.settings import cache_root

PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr", "crictl", "runc")
NAME = "registry.test.internal"
OCI = "application/vnd.oci.image"


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class SmallRegistry:
    """Serves made-up images by digest.

    Attributes:
        blobs: content by digest.
        bytes_per_s: how fast a blob leaves; 0 as fast as it can.
        stop_after: bytes of a blob after which nothing more comes, while the connection stays; 0 never.
        sent: bytes that left, by digest.
        ranges: where a blob was taken up again, by digest.
    """

    blobs: dict[str, bytes] = field(default_factory=dict)
    bytes_per_s: int = 0
    stop_after: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, list[int]] = field(default_factory=dict)
    url: str = ""

    def image(self, repo: str, sizes: list[int], *, sound: bool = True) -> dict[str, Any]:
        """Make an image of layers that do not compress, as the module takes it; not sound: it names other content."""
        layers, diffs, chain, described = [], [], "", []
        for number, size in enumerate(sizes):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as archive:
                for name, content in ((f"data/{number}", os.urandom(size)),):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
            data = buffer.getvalue()
            digest = sha256(data)
            self.blobs[digest] = data
            diffs.append(digest if sound else sha256(b"something else"))
            chain = digest if not chain else sha256(f"{chain} {digest}".encode())
            layers.append({"mediaType": f"{OCI}.layer.v1.tar", "digest": digest, "size": len(data)})
            described.append({"digest": digest, "chain": chain, "size": len(data), "unpacked": size})
        config = json.dumps(
            {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": diffs}}
        ).encode()
        self.blobs[sha256(config)] = config
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": f"{OCI}.manifest.v1+json",
                "config": {"mediaType": f"{OCI}.config.v1+json", "digest": sha256(config), "size": len(config)},
                "layers": layers,
            }
        ).encode()
        self.blobs[sha256(manifest)] = manifest
        return {"ref": f"{NAME}/{repo}", "digest": sha256(manifest), "tags": ["1"], "layers": described}


class _Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        registry: SmallRegistry = self.server.registry
        if self.path == "/v2/":
            # Engines ask this first.
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        match = re.fullmatch(r"/v2/\S+/(manifests|blobs)/(sha256:[0-9a-f]{64})(\?.*)?", self.path)
        data = registry.blobs.get(match.group(2)) if match else None
        if data is None or match is None:
            self.send_error(404)
            return
        digest = match.group(2)
        asked = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked.group(1)) if asked else 0
        self.send_response(206 if start else 200)
        if start:
            registry.ranges.setdefault(digest, []).append(start)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        kind = f"{OCI}.manifest.v1+json" if match.group(1) == "manifests" else "application/octet-stream"
        self.send_header("Content-Type", kind)
        self.send_header("Docker-Content-Digest", digest)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if body:
            self._send(registry, digest, data[start:])

    def _send(self, registry: SmallRegistry, digest: str, data: bytes) -> None:
        step = max(1, registry.bytes_per_s // 20) if registry.bytes_per_s else len(data)
        try:
            for at in range(0, len(data), step):
                if registry.stop_after and at >= registry.stop_after and len(data) > registry.stop_after:
                    self.server.open.wait()
                    return
                piece = data[at : at + step]
                self.wfile.write(piece)
                registry.sent[digest] = registry.sent.get(digest, 0) + len(piece)
                if registry.bytes_per_s:
                    time.sleep(0.05)
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *_arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    """The registry, on a free port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    server.daemon_threads = True
    found = SmallRegistry(url=f"http://127.0.0.1:{server.server_port}")
    extra: Any = server
    extra.registry, extra.open = found, threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield found
    extra.open.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime's programs, from the newest bundle of this machine."""
    if os.getuid():
        pytest.skip("containerd mounts layers: run as root")
    bundles = sorted((cache_root() / "bundles").glob("*/bundle.yml"), key=lambda path: path.stat().st_mtime)
    for path in reversed(bundles):
        bundle = Bundle.load(path.parent)
        entries = {entry.name: entry for entry in bundle.manifest.files if entry.name in PROGRAMS}
        if set(entries) == set(PROGRAMS) and all(bundle.path(entry.sha256).is_file() for entry in entries.values()):
            folder = tmp_path_factory.mktemp("programs")
            for name, entry in entries.items():
                target = folder / name
                target.write_bytes(bundle.path(entry.sha256).read_bytes())
                target.chmod(0o755)
            return folder
    pytest.skip("no bundle with containerd is on this machine: `make bundle` makes one")


class Daemon:
    """A containerd that is started again when it was killed, as its unit does."""

    def __init__(self, programs: Path, folder: Path, *, root: Path | None = None) -> None:
        self.programs, self.folder = programs, folder
        self.images = folder / "images"
        self.socket = folder / "containerd.sock"
        self.config = folder / "config.toml"
        self.config.write_text(
            f"version = 4\nroot = {str(root or folder / 'root')!r}\nstate = {str(folder / 'state')!r}\n"
            f"[plugins.'io.containerd.server.v1.grpc']\n  address = {str(self.socket)!r}\n"
            f"[plugins.'io.containerd.server.v1.ttrpc']\n  address = {str(self.socket) + '.ttrpc'!r}\n"
            "[plugins.'io.containerd.cri.v1.images']\n  snapshotter = 'overlayfs'\n"
            "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n"
            f"  BinaryName = {str(programs / 'runc')!r}\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        with (self.folder / "containerd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.programs / "containerd"), "--config", str(self.config), "--address", str(self.socket)],
                stdout=log, stderr=log, env=environment,
            )  # fmt: skip
        assert self.runtime().answers(20), (self.folder / "containerd.log").read_text()[-2000:]

    def runtime(self) -> Containerd:
        return Containerd(str(self.socket), str(self.config), str(self.programs))

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            point = line.split()[1]
            if point.startswith(str(self.folder)):
                subprocess.run(["umount", "--lazy", point], check=False)

    def warming(
        self, images: list[dict[str, Any]], url: str, *, kubelet: Any = None, check: bool = False, **more: Any
    ) -> Warming:
        """The module's work on this containerd."""
        params = {
            "images": images, "registry": url, "folder": str(self.images), "scratch": str(self.folder),
            "start_timeout_s": 20, "stall_s": 30, "least_rate": 10_000, "parallel": 0, "kubelet_version": "",
            "full": False, "release": False, "fetch": True, "state": "check" if check else "present",
        }  # fmt: skip
        return Warming(self.runtime(), {**params, **more}, check, kubelet)


@pytest.fixture(scope="session")
def one_daemon(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One containerd for all tests, each of which has images of its own."""
    found = Daemon(programs, tmp_path_factory.mktemp("containerd"))
    found.start()
    yield found
    found.stop()


@pytest.fixture
def daemon(one_daemon: Daemon, tmp_path: Path) -> Daemon:
    """It, with an empty record of warm images."""
    one_daemon.images = tmp_path / "images"
    return one_daemon
