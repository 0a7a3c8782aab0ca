"""Images on hosts with Docker or podman. Neither has pins: a container that was made and never started keeps its image.

`docker image prune --all` and `podman image prune --all` spare images that a container uses. The container is named
after the digest and labelled, so that a person sees what it is for.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import time

from ansible_collections.myriad.gpu.plugins.module_utils import warm_keep
from ansible_collections.myriad.gpu.plugins.module_utils.warm_containerd import (
    LOOK_S,
    PATHS,
    RuntimeFault,
    _end,
    run_program,
    wait_answer,
)
from ansible_collections.myriad.gpu.plugins.module_utils.warm_disk import Disk
from ansible_collections.myriad.gpu.plugins.module_utils.warm_progress import cause_of, last_words

# Static programs that end by themselves, one of which a host with an engine has.
PROBES = ("/usr/local/bin/crictl", "/usr/bin/catatonit", "/usr/libexec/podman/catatonit", "/usr/bin/docker-init",
          "/usr/libexec/docker/docker-init", "/usr/local/bin/docker-init")  # fmt: skip


class Engine:
    """Docker or podman.

    Args:
        name: `docker` or `podman`.
        options: global options, as `--root DIR`.
    """

    snapshotter = ""
    address = ""

    def __init__(self, name, options=()):
        self.name = name
        self._options = tuple(options)
        self._path = ":".join([*os.environ.get("PATH", "").split(":"), *PATHS])
        self._root = None
        self.silence = ""

    def _command(self, *arguments):
        program = shutil.which(self.name, path=self._path)
        if program is None:
            raise RuntimeFault("other", f"{self.name} is not installed on this host")
        return [program, *self._options, *arguments]

    def run(self, *arguments, timeout_s=60):
        return run_program(self._command(*arguments), self.name, timeout_s)

    def answers(self, within_s=0.0):
        return wait_answer(self, lambda: self.run("info", timeout_s=20), within_s)

    def version(self):
        with contextlib.suppress(RuntimeFault):
            return self.run("version", "--format", "{{.Client.Version}}").strip()
        return ""

    @property
    def root(self):
        if self._root is None:
            field = "{{.DockerRootDir}}" if self.name == "docker" else "{{.Store.GraphRoot}}"
            self._root = self.run("info", "--format", field).strip()
        return self._root

    def disks(self):
        """Fetched and unpacked bytes lie in one folder."""
        disk = Disk.at(self.root)
        return disk, disk

    def blobs(self, digests):
        """Compressed layers are not kept."""
        del digests
        return set()

    def partial(self):
        return {}

    def snapshots(self):
        """Layers are shared by their content, but neither engine lists them: what is there is not deducted."""
        return set()

    def images(self):
        """Images by reference with digest: (digest, whether a container keeps it)."""
        # By name: the label is for people.
        kept = set(self.run("ps", "--all", "--filter", f"name={warm_keep.KEEPER}", "--format", "{{.Names}}").split())
        ids = sorted(set(self.run("images", "--quiet", "--no-trunc").split()))
        found = {}
        for body in json.loads(self.run("image", "inspect", *ids)) if ids else ():
            for name in body.get("RepoDigests") or ():
                digest = name.rpartition("@")[2]
                found[name] = (digest, warm_keep.KEEPER + warm_keep.short(digest) in kept)
            # A tag's digest: that of its content.
            digests = [name.rpartition("@")[2] for name in body.get("RepoDigests") or ()]
            for name in body.get("RepoTags") or ():
                found[name] = (digests[0] if digests else "", False)
        return found

    def reported(self, reference):
        try:
            body = json.loads(self.run("image", "inspect", reference))[0]
        except RuntimeFault as fault:
            if re.search(r"no such|not known|not found|unable to find", str(fault), re.IGNORECASE):
                return None
            raise
        digests = [name.rpartition("@")[2] for name in body.get("RepoDigests") or ()]
        wanted = reference.rpartition("@")[2]
        try:
            self.run("container", "inspect", warm_keep.KEEPER + warm_keep.short(wanted))
            kept = True
        except RuntimeFault:
            kept = False
        return {"pinned": kept, "digests": digests, "id": body.get("Id", ""), "chain": ""}

    def pull(self, reference, endpoint, folder, layers, progress, parallel=0):
        """Pull by digest, watched by what the disk gains. The registry is that of the reference (see `reference`)."""
        del layers, parallel
        options = ["--tls-verify=false"] if self.name == "podman" and endpoint.startswith("http://") else []
        used = Disk.at(self.root).free
        log = os.path.join(folder, "pull.log")
        with open(log, "wb") as said:
            child = subprocess.Popen(
                self._command("pull", *options, reference), stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )
            try:
                stalled = ""
                while child.poll() is None and not stalled:
                    time.sleep(LOOK_S)
                    moved = max(used - Disk.at(self.root).free, _written(child.pid))
                    stalled = progress.see(time.monotonic(), moved)
            finally:
                _end(child)
        if stalled:
            raise RuntimeFault("stalled", stalled)
        if child.returncode:
            with open(log, encoding="utf-8", errors="replace") as stream:
                words = last_words(stream.read()) or f"{self.name} ended with {child.returncode}"
            raise RuntimeFault(cause_of(words), words)

    def reference(self, reference, endpoint):
        """The name under which a registry is asked: an engine has no other way to be told which one."""
        if not endpoint:
            return reference
        return re.sub(r"^https?://", "", endpoint.rstrip("/")) + "/" + reference.split("/", 1)[1]

    def tag(self, reference, other):
        self.run("tag", reference, other)

    def pin(self, reference):
        digest = reference.rpartition("@")[2]
        name = warm_keep.KEEPER + warm_keep.short(digest)
        with contextlib.suppress(RuntimeFault):
            self.run("container", "inspect", name)
            return
        self.run("create", "--name", name, "--label", warm_keep.LABEL, reference, "keep")

    def unpin(self, reference):
        with contextlib.suppress(RuntimeFault):
            self.run("rm", "--force", warm_keep.KEEPER + warm_keep.short(reference.rpartition("@")[2]))

    def try_start(self, reference, timeout_s=60):
        probe = next((path for path in PROBES if os.path.exists(path)), None)
        # The engine's own default limits may be above what this host lets anybody set.
        limits = ["--ulimit", "nofile=256:256", "--ulimit", "nproc=256:256"]
        mount = ["--volume", f"{probe}:/dev/myriad-probe:ro"] if probe else []
        entry = ["/dev/myriad-probe"] if probe else ["true"]
        try:
            self.run("run", "--rm", "--network", "none", *limits, *mount, "--entrypoint", entry[0], reference,
                     *(["--version"] if probe else []), timeout_s=timeout_s)  # fmt: skip
        except RuntimeFault as fault:
            raise RuntimeFault("start", f"no container starts from it: {fault}") from fault


def _written(pid):
    """Bytes that a process has written; 0 once it is gone."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as stream:
            return int(re.search(r"wchar: (\d+)", stream.read()).group(1))
    except (OSError, AttributeError):
        return 0
