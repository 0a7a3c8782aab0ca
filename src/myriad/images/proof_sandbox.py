"""What runs an image for its proof, without network: a container engine, or the kernel's namespaces without one.

The engine is the nearer to what a node does. Without one (a CI job in a container, a laptop without Docker) the image
is unpacked and started in namespaces of its own by `unshare`, for which no root is needed: no network, no processes
but its own, its own root. It is not a security boundary for images that one does not trust; it proves what is loaded.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from myriad.errors import MyriadError
from myriad.images.oci import Blob, BuiltImage, export_docker_archive, open_layer
from myriad.images.proof_tree import layer_path
from myriad.images.proof_types import Subject, megabytes

_LABEL = "myriad.dev/proof"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Done:
    """A program's end."""

    rc: int
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False


class Sandbox:
    """Runs commands of an image. `refused` says why nothing can be run; `gpus` whether it gives GPUs to the image."""

    name = "nothing"
    gpus = False

    def __init__(self, refused: str = "") -> None:
        self.refused = refused

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave nothing behind."""

    def run(self, command: Sequence[str], *, timeout_s: float) -> Done:
        """Run a command with the image's environment and user."""
        raise MyriadError("nothing can run the image", hint=f"{command[0]} within {timeout_s} s was asked for")


def sandbox_for(subject: Subject, gpu: bool) -> Sandbox:
    """The engine where one answers, else namespaces, else one that refuses and says why."""
    client = _engine()
    if client is not None:
        return Engine(subject, client, gpu=gpu)
    why = namespaces_refused()
    if why:
        return Sandbox(f"no container engine answers, and {why}; what is loaded was not asked")
    room = _free(Path(tempfile.gettempdir()))
    need = sum(subject.tree.tar_sizes)
    if room < need + (256 << 20):
        return Sandbox(
            f"no container engine answers, and unpacking takes {megabytes(need)}, {tempfile.gettempdir()} has "
            f"{megabytes(room)}; set TMPDIR to a larger disk"
        )
    return Namespaces(subject)


def _free(path: Path) -> int:
    return shutil.disk_usage(path).free


def _engine() -> Any:
    import docker

    try:
        client = docker.from_env(timeout=600)
        client.ping()
    except (docker.errors.DockerException, OSError):
        return None
    return client


class Engine(Sandbox):
    """A container engine: loads the image, runs it read-only without network and capabilities, and removes it again."""

    name = "the container engine"

    def __init__(self, subject: Subject, client: Any, *, gpu: bool) -> None:
        super().__init__()
        self._subject, self._client, self._gpu = subject, client, gpu
        self._image: Any = None
        self._ours = False
        self.gpus = gpu and "nvidia" in (client.info().get("Runtimes") or {})

    def __enter__(self) -> Self:
        import docker

        config = str(self._subject.image.manifest["config"]["digest"])
        try:
            self._image = self._client.images.get(config)
        except docker.errors.ImageNotFound:
            self._image = self._load()
            self._ours = True
        return self

    def _load(self) -> Any:
        image = self._subject.image
        blobs = {layer.digest: Blob(layer.path, layer.size, layer.media_type) for layer in image.layers}
        config = str(image.manifest["config"]["digest"])
        blobs[config] = Blob(image.layout.path(config), int(image.manifest["config"]["size"]), "")
        # A name of its own: the proof must not move a tag that somebody uses.
        built = BuiltImage(
            f"myriad-proof:{image.digest[7:19]}", image.digest, config, tuple(one.digest for one in image.layers), blobs
        )
        with tempfile.TemporaryDirectory(prefix="myriad-proof-") as scratch:
            archive = Path(scratch) / "image.tar"
            export_docker_archive(built, archive)
            with archive.open("rb") as file:
                return self._client.images.load(file)[0]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ours and self._image is not None:
            self._client.images.remove(f"myriad-proof:{self._subject.image.digest[7:19]}", force=True)
        self._client.close()

    def run(self, command: Sequence[str], *, timeout_s: float) -> Done:
        import docker
        import requests

        more: dict[str, Any] = {}
        if self.gpus:
            more["device_requests"] = [docker.types.DeviceRequest(count=-1, capabilities=[["compute", "utility"]])]
        container = self._client.containers.create(
            self._image,
            entrypoint=[command[0]],
            command=list(command[1:]),
            network_mode="none",
            read_only=True,
            tmpfs={"/tmp": "rw,exec,mode=1777"},  # noqa: S108 - inside the container
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            shm_size="1g" if self.gpus else None,
            labels={_LABEL: "1"},
            **more,
        )
        try:
            container.start()
            try:
                rc = int(container.wait(timeout=timeout_s)["StatusCode"])
                late = False
            except (requests.exceptions.ConnectionError, requests.exceptions.ReadTimeout):
                container.kill()
                rc, late = -1, True
            out = container.logs(stdout=True, stderr=False).decode(errors="replace")
            err = container.logs(stdout=False, stderr=True).decode(errors="replace")
            return Done(rc, out, err, late)
        except docker.errors.APIError as error:
            return Done(127, "", str(error.explanation or error))
        finally:
            container.remove(force=True)


def namespaces_refused() -> str:
    """Why `unshare` cannot be used here, as half a sentence; empty where it can."""
    if shutil.which("unshare") is None:
        return "unshare (util-linux) is not installed"
    done = subprocess.run(
        ["unshare", *_FLAGS, "true"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=30
    )
    if done.returncode != 0:
        return f"this kernel allows no user namespaces ({' '.join(done.stderr.split())[:120]})"
    return ""


_FLAGS = ("--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--ipc", "--uts")

# What the image finds around it: a few device files, /proc of its own namespace, an empty /tmp. A kernel or an outer
# container that refuses /proc leaves the folder empty, and only what is loaded cannot be told then.
_ENTER = r"""
root=$1; shift
mount --bind "$root" "$root"
for name in null zero full random urandom; do
  : > "$root/dev/$name" && mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir -p "$root/dev/shm" "$root/proc" "$root/tmp"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t tmpfs tmpfs "$root/tmp" && chmod 1777 "$root/tmp"
mount -t proc proc "$root/proc" 2>/dev/null || mount --rbind /proc "$root/proc"
cd "$root"
exec chroot "$root" "$@"
"""


class Namespaces(Sandbox):
    """The kernel's namespaces: the image is unpacked into a temporary folder."""

    name = "namespaces of its own"

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self._subject = subject
        self._root = Path()

    def __enter__(self) -> Self:
        self._root = Path(tempfile.mkdtemp(prefix="myriad-proof-"))
        try:
            unpack(self._subject, self._root)
        except BaseException:
            _remove(self._root)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _remove(self._root)

    def run(self, command: Sequence[str], *, timeout_s: float) -> Done:
        image = self._subject.image
        environment = {"PATH": _PATH, "HOME": "/", **image.env}
        pairs = [f"{name}={value}" for name, value in environment.items()]
        call = [
            "unshare",
            *_FLAGS,
            "sh",
            "-ec",
            _ENTER,
            "sh",
            str(self._root),
            *_env(self._subject),
            "-i",
            *pairs,
            *command,
        ]
        process = subprocess.Popen(
            call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            # The first process of a pid namespace takes all others with it.
            process.kill()
            out, err = process.communicate()
            return Done(-1, out, err, timed_out=True)
        return Done(process.returncode, out, err)


def _env(subject: Subject) -> list[str]:
    """The image's `env`, which sets the environment after the root is changed."""
    for path in ("usr/bin/env", "bin/env"):
        if subject.tree.real(path) is not None:
            return [f"/{path}"]
    raise MyriadError(
        "the image has no /usr/bin/env", hint="verify it with --no-run, or where a container engine answers"
    )


def unpack(subject: Subject, root: Path) -> None:
    """The image's files into a folder, as a container sees them; owners are whoever runs this."""
    tree = subject.tree
    for path in sorted(tree.files):
        if tree.files[path].kind == "directory":
            (root / path).mkdir(parents=True, exist_ok=True)
    links: list[tuple[str, str]] = []
    for number, layer in enumerate(subject.image.layers):
        with (
            open_layer(Blob(layer.path, layer.size, layer.media_type)) as stream,
            tarfile.open(fileobj=stream, mode="r|") as tar,
        ):
            for member in tar:
                path = layer_path(tree, member.name)
                file = tree.files.get(path)
                if file is None or file.layer != number:
                    continue
                target = root / path
                target.parent.mkdir(parents=True, exist_ok=True)
                if file.kind == "symlink":
                    target.symlink_to(file.target)
                elif file.kind == "hardlink":
                    links.append((path, file.target))
                elif file.kind == "file":
                    content = tar.extractfile(member)
                    if content is not None:
                        with target.open("wb") as out:
                            shutil.copyfileobj(content, out, 1 << 20)
                        target.chmod(stat.S_IMODE(file.mode) & 0o777 | 0o400)
    for path, target_path in links:
        (root / path).hardlink_to(root / target_path)
    for name in ("dev", "proc", "tmp", "sys"):
        (root / name).mkdir(exist_ok=True)


def _remove(root: Path) -> None:
    """A tree with folders that forbid it to be emptied."""
    for folder, names, _files in os.walk(root):
        for name in names:
            path = Path(folder) / name
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(root, ignore_errors=True)
