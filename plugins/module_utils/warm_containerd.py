"""Images in a containerd that serves Kubernetes: what it has, pulls that are watched, pins, a proof by starting one.

Pulled with `ctr` into the namespace k8s.io: of the ways into the store that CRI reads, it is the one that can name the
registry and put the pin on the image in the moment in which it appears. What counts afterwards is what CRI says.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import time

from ansible_collections.myriad.gpu.plugins.module_utils import warm_hosts
from ansible_collections.myriad.gpu.plugins.module_utils.warm_disk import Disk
from ansible_collections.myriad.gpu.plugins.module_utils.warm_progress import cause_of, last_words

NAMESPACE = "k8s.io"
PIN = "io.cri-containerd.pinned"
PINNED = "pinned"
PATHS = ("/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin")
LOOK_S = 0.5
PROBE = "/myriad-probe"


class RuntimeFault(Exception):
    """The runtime does not do it; `cause` is a key of warm_progress.WORDS, `stalled` or `start`."""

    def __init__(self, cause, text):
        super().__init__(text)
        self.cause = cause


def run_program(command, name, timeout_s, env=None, cause=None):
    """What a program of a runtime prints. Raises RuntimeFault where it is silent or fails."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False, env=env
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeFault("runtime", f"{name} gave no answer within {timeout_s} s") from error
    if done.returncode:
        words = last_words(done.stderr or done.stdout) or f"exit code {done.returncode}"
        raise RuntimeFault(cause or cause_of(words), words)
    return done.stdout


def wait_answer(runtime, ask, within_s):
    """Whether a runtime answers; asked again, because its unit starts it again. Why it did not is its `silence`."""
    until = time.monotonic() + within_s
    while True:
        try:
            ask()
        except RuntimeFault as fault:
            runtime.silence = str(fault)
        else:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(LOOK_S)


class Containerd:
    """One containerd.

    Args:
        socket: where it listens.
        config: its configuration file.
        binaries: folder with its programs; empty looks for them where the roles put them.
    """

    name = "containerd"

    def __init__(self, address="/run/containerd/containerd.sock", config="/etc/containerd/config.toml", binaries=""):
        self.address = address
        self.config = config
        self._folders = ([binaries] if binaries else []) + [*os.environ.get("PATH", "").split(":"), *PATHS]
        self._dump = None
        # Why it did not answer when it was last asked.
        self.silence = ""

    # Programs

    def program(self, name):
        """Path of a program. Raises RuntimeFault where it is not installed."""
        found = shutil.which(name, path=":".join(self._folders))
        if found is None:
            raise RuntimeFault("other", f"{name} is not installed on this node; the role container_runtime brings it")
        return found

    def _run(self, command, timeout_s=60, cause=None):
        env = {**os.environ, "PATH": ":".join(self._folders)}
        return run_program(command, command[0], timeout_s, env, cause)

    def ctr(self, *arguments, timeout_s=60):
        return self._run(
            [self.program("ctr"), "--address", self.address, "--namespace", NAMESPACE, *arguments], timeout_s
        )

    def crictl(self, *arguments, timeout_s=60):
        endpoint = f"unix://{self.address}"
        return self._run(
            [self.program("crictl"), "--runtime-endpoint", endpoint, "--image-endpoint", endpoint, *arguments],
            timeout_s,
        )

    def answers(self, within_s=0.0):
        """Whether it answers; waited for, because its unit starts it again."""
        return wait_answer(self, lambda: self.ctr("version", timeout_s=10), within_s)

    def version(self):
        """Its version as it prints it; empty where it does not answer."""
        with contextlib.suppress(RuntimeFault):
            text = self.ctr("version")
            match = re.search(r"Server:\s+Version:\s+(\S+)", text)
            return match.group(1) if match else ""
        return ""

    # Its configuration

    def setting(self, pattern, default):
        """The first group of a pattern in its configuration as it reads it itself, drop-ins and defaults included."""
        if self._dump is None:
            try:
                self._dump = self._run([self.program("containerd"), "--config", self.config, "config", "dump"])
            except RuntimeFault:
                self._dump = ""
        match = re.search(pattern, self._dump, re.DOTALL | re.MULTILINE)
        return match.group(1) if match and match.group(1) else default

    @property
    def root(self):
        return self.setting(r"^root = ['\"]([^'\"]+)", "/var/lib/containerd")

    @property
    def snapshotter(self):
        return self.setting(
            r"\[plugins\.['\"]io\.containerd\.(?:cri\.v1\.images|grpc\.v1\.cri)['\"](?:\.containerd)?\]"
            r"[^\[]*?snapshotter = ['\"]([^'\"]+)",
            "overlayfs",
        )

    @property
    def config_path(self):
        return self.setting(r"\.registry\][^\[]*?config_path = ['\"]([^'\"]+)", "/etc/containerd/certs.d")

    @property
    def runc(self):
        return self.setting(r"runtimes\.runc\.options\][^\[]*?BinaryName = ['\"]([^'\"]+)", "")

    # What it has

    def disks(self):
        """File systems of the content store and of the snapshotter."""
        root = self.root
        return (
            Disk.at(os.path.join(root, "io.containerd.content.v1.content")),
            Disk.at(os.path.join(root, f"io.containerd.snapshotter.v1.{self.snapshotter}")),
        )

    def _blob(self, digest):
        return os.path.join(self.root, "io.containerd.content.v1.content", "blobs", *digest.split(":", 1))

    def blobs(self, digests):
        """Those of the digests that are in the content store."""
        return {digest for digest in digests if os.path.exists(self._blob(digest))}

    def partial(self):
        """Bytes of blobs that are on their way, or that a pull which broke off left, by digest."""
        folder = os.path.join(self.root, "io.containerd.content.v1.content", "ingest")
        found = {}
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            # It is moved to its place, or given up, at any moment.
            with contextlib.suppress(OSError):
                with open(os.path.join(folder, name, "ref"), encoding="utf-8", errors="replace") as stream:
                    digest = re.search(r"sha256:[0-9a-f]{64}", stream.read())
                if digest:
                    found[digest.group(0)] = os.path.getsize(os.path.join(folder, name, "data"))
        return found

    def snapshots(self):
        """Chains of layers that are unpacked."""
        lines = self.ctr("snapshots", "--snapshotter", self.snapshotter, "list").splitlines()[1:]
        return {line.split()[0] for line in lines if line.strip() and line.split()[-1] == "Committed"}

    def images(self):
        """Images by reference: (digest, whether the label of the pin is on it)."""
        found = {}
        for line in self.ctr("images", "list").splitlines()[1:]:
            columns = line.split()
            if len(columns) > 2:
                found[columns[0]] = (columns[2], f"{PIN}={PINNED}" in columns[-1].split(","))
        return found

    def reported(self, reference):
        """What CRI says of an image: `pinned`, `digests`, `id`. None where it has none of that name."""
        try:
            body = json.loads(self.crictl("inspecti", "--output", "json", reference))
        except RuntimeFault as fault:
            if fault.cause == "missing" or "no such image" in str(fault):
                return None
            raise
        status = body.get("status") or {}
        return {
            "pinned": bool(status.get("pinned")),
            "digests": [name.rpartition("@")[2] for name in status.get("repoDigests") or ()],
            "id": status.get("id", ""),
            "chain": (body.get("info") or {}).get("chainID", ""),
        }

    # What it is told

    def fetched(self, layers):
        """Bytes of these layers that are in the content store, those that are on their way too."""
        partial = self.partial()
        there = self.blobs([layer["digest"] for layer in layers])
        return sum(layer["size"] if layer["digest"] in there else partial.get(layer["digest"], 0) for layer in layers)

    def written(self):
        """Bytes that the daemon has written since it started; 0 where that cannot be read."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(2)
                connection.connect(self.address)
                raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid = struct.unpack("3i", raw)[0]
            with open(f"/proc/{pid}/io", encoding="ascii") as stream:
                return int(re.search(r"wchar: (\d+)", stream.read()).group(1))
        except (OSError, AttributeError):
            return 0

    def pull(self, reference, endpoint, folder, layers, progress, parallel=0):
        """Pull one image by digest from one registry, watched. Blobs that are there are not fetched again.

        Raises:
            RuntimeFault: with its cause; what was fetched stays.
        """
        registry = reference.split("/", 1)[0]
        command = [self.program("ctr"), "--address", self.address, "--namespace", NAMESPACE, "images", "pull",
                   "--snapshotter", self.snapshotter, "--label", f"{PIN}={PINNED}"]  # fmt: skip
        if endpoint:
            text = warm_hosts.narrowed(warm_hosts.read(self.config_path, registry), endpoint)
            command += ["--hosts-dir", warm_hosts.write(folder, registry, text)]
        else:
            command += ["--hosts-dir", self.config_path]
        if parallel:
            command += ["--max-concurrent-downloads", str(parallel)]
        fetched, written = self.fetched(layers), self.written()
        log = os.path.join(folder, "pull.log")
        with open(log, "wb") as said:
            child = subprocess.Popen([*command, reference], stdin=subprocess.DEVNULL, stdout=said, stderr=said)
            try:
                stalled = ""
                while child.poll() is None and not stalled:
                    time.sleep(LOOK_S)
                    # Unpacking has no counter of its own, but what the daemon writes grows with it.
                    moved = max(self.fetched(layers) - fetched, self.written() - written)
                    stalled = progress.see(time.monotonic(), moved)
            finally:
                _end(child)
        if stalled:
            raise RuntimeFault("stalled", stalled)
        if child.returncode:
            with open(log, encoding="utf-8", errors="replace") as stream:
                words = last_words(stream.read()) or f"ctr ended with {child.returncode}"
            raise RuntimeFault(cause_of(words), words)

    def reference(self, reference, endpoint):
        """The name of an image, wherever it comes from: the registry behind the name is told apart (see `pull`)."""
        del endpoint
        return reference

    def tag(self, reference, other):
        """Give an image another name as well, under which pods ask for it."""
        self.ctr("images", "tag", "--force", reference, other)

    def pin(self, reference):
        """Put the label of the pin on an image."""
        self.ctr("images", "label", reference, f"{PIN}={PINNED}")

    def unpin(self, reference):
        """Take it off."""
        self.ctr("images", "label", reference, f"{PIN}=")

    def try_start(self, reference, timeout_s=60):
        """Start a container from the image's snapshot and let it end.

        It runs a static program of the node that is mounted into it: an image need not hold any that ends by itself.

        Raises:
            RuntimeFault: it does not start.
        """
        probe = self.program("crictl")
        name = f"myriad-warm-{os.getpid()}-{int(time.time() * 1000)}"
        command = ["run", "--rm", "--snapshotter", self.snapshotter, "--read-only",
                   "--mount", f"type=bind,src={probe},dst=/dev{PROBE},options=bind:ro"]  # fmt: skip
        if self.runc:
            command += ["--runc-binary", self.runc]
        try:
            said = self.ctr(*command, reference, name, f"/dev{PROBE}", "--version", timeout_s=timeout_s)
        except RuntimeFault as fault:
            for arguments in (("tasks", "delete", "--force", name), ("containers", "delete", name)):
                with contextlib.suppress(RuntimeFault):
                    self.ctr(*arguments)
            raise RuntimeFault(
                "runtime" if fault.cause == "runtime" else "start", f"no container starts from it: {fault}"
            ) from fault
        if "version" not in said:
            raise RuntimeFault("start", f"the container that was started from it said {said[-100:]!r}")


def _end(child):
    """End a pull's client; containerd itself goes on or gives up by itself."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
