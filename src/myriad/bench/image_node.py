"""A node to pull images on, without a lab: containerd of a bundle in a network namespace whose link is capped."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from myriad.errors import MyriadError
from myriad.stack.bundle import Bundle
from myriad.stack.settings import cache_root

#: The kubelet's side of containerd: nobody asks for pods here.
_LEFT_OUT = ("io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
_PROGRAMS = ("containerd", "ctr", "registry")


def programs(folder: Path) -> dict[str, Path]:
    """containerd, ctr and the registry from the newest bundle of this machine, as executables in a folder.

    Raises:
        MyriadError: no bundle has them.
    """
    for path in sorted(cache_root().glob("bundles/*/bundle.yml"), key=lambda one: -one.stat().st_mtime):
        bundle = Bundle.load(path.parent)
        found = {entry.name: bundle.path(entry.sha256) for entry in bundle.manifest.files if entry.name in _PROGRAMS}
        if len(found) == len(_PROGRAMS) and all(one.is_file() for one in found.values()):
            folder.mkdir(parents=True, exist_ok=True)
            for name, blob in found.items():
                shutil.copyfile(blob, folder / name)
                (folder / name).chmod(0o755)
            return {name: folder / name for name in found}
    raise MyriadError("no bundle of this machine holds containerd and the registry", hint="make bundle")


class Node:
    """A network namespace with a link of its own to this machine, and containerd in it, new for every pull.

    Args:
        folder: for its state; removed at the end.
        link_gbit: what the link carries towards the node.
        downloads: layers that are fetched at once.
        unpacks: layers that are unpacked at once.
    """

    def __init__(self, folder: Path, *, link_gbit: float = 1.0, downloads: int = 6, unpacks: int = 4) -> None:
        self.folder = folder
        self._name = f"myriad-bench-{os.getpid()}"
        self._link = f"mb{os.getpid() % 10**8}"
        self._gbit, self._downloads, self._unpacks = link_gbit, downloads, unpacks
        net = os.getpid() % 250
        self.host_address, self._address = f"169.254.{net}.1", f"169.254.{net}.2"
        self.programs: dict[str, Path] = {}

    def __enter__(self) -> Node:
        self.programs = programs(self.folder / "bin")
        try:
            _run("ip", "netns", "add", self._name)
            _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._name)
            _run("ip", "address", "add", f"{self.host_address}/30", "dev", self._link)
            _run("ip", "link", "set", self._link, "up")
            inside = ("ip", "-n", self._name)
            _run(*inside, "address", "add", f"{self._address}/30", "dev", "eth0")
            _run(*inside, "link", "set", "eth0", "up")
            _run(*inside, "link", "set", "lo", "up")
            rate = f"{int(self._gbit * 1000)}mbit"
            _run(
                "tc", "qdisc", "add", "dev", self._link, "root", "tbf", "rate", rate, "burst", "1mb", "latency", "50ms"
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *details: object) -> None:
        for command in (["ip", "link", "del", self._link], ["ip", "netns", "del", self._name]):
            subprocess.run(command, capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def pull(self, reference: str) -> float:
        """Seconds until the image is pulled and unpacked, from an empty content store and dropped page caches.

        Raises:
            MyriadError: containerd does not start, or the pull fails.
        """
        home = self.folder / "containerd"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        address = home / "c.sock"
        config = home / "config.toml"
        config.write_text(
            "version = 3\n"
            f'root = "{home}/root"\nstate = "{home}/state"\n'
            f"disabled_plugins = {json.dumps(_LEFT_OUT)}\n"
            f'[grpc]\naddress = "{address}"\n'
            '[plugins."io.containerd.transfer.v1.local"]\n'
            f"max_concurrent_downloads = {self._downloads}\nmax_concurrent_unpacks = {self._unpacks}\n",
            encoding="utf-8",
        )
        log = (home / "log").open("wb")
        process = subprocess.Popen(
            ["ip", "netns", "exec", self._name, str(self.programs["containerd"]), "--config", str(config)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            self._wait(process, address, home / "log")
            os.sync()
            with suppress(OSError):
                Path("/proc/sys/vm/drop_caches").write_text("3\n", encoding="utf-8")
            command = [
                str(self.programs["ctr"]),
                "--address",
                str(address),
                "images",
                "pull",
                "--plain-http",
                reference,
            ]
            begun = time.monotonic()
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            seconds = time.monotonic() - begun
            if result.returncode:
                raise MyriadError(
                    f"the pull failed: {(result.stdout + result.stderr).strip()[-800:]}", where=str(home / "log")
                )
            return seconds
        finally:
            process.terminate()
            process.wait()
            log.close()
            shutil.rmtree(home, ignore_errors=True)

    def _wait(self, process: subprocess.Popen[bytes], address: Path, log: Path) -> None:
        for _ in range(600):
            if process.poll() is not None:
                raise MyriadError(f"containerd does not start: {log.read_text(errors='replace')[-800:]}")
            with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(address))
                return
            time.sleep(0.05)
        raise MyriadError(f"containerd does not answer: {log.read_text(errors='replace')[-800:]}")


@contextmanager
def serving(address: str, folder: Path) -> Iterator[str]:
    """The registry on an address of this machine; its URL."""
    folder.mkdir(parents=True)
    program = programs(folder / "bin")["registry"]
    with socket.socket() as probe:
        probe.bind((address, 0))
        port = probe.getsockname()[1]
    (folder / "config.yml").write_text(
        "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/data}}}}\nhttp:\n  addr: {address}:{port}\n",
        encoding="utf-8",
    )
    environment = {"PATH": os.environ.get("PATH", ""), "OTEL_TRACES_EXPORTER": "none"}
    process = subprocess.Popen(
        [str(program), "serve", str(folder / "config.yml")],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://{address}:{port}"
    try:
        for _ in range(200):
            with suppress(httpx.TransportError):
                httpx.get(f"{url}/v2/", trust_env=False)
                break
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise MyriadError(f"`{' '.join(command)}` failed: {result.stderr.strip()}", hint="it needs root, ip and tc")
