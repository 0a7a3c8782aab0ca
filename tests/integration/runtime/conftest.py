"""Two nodes of the lab's kind with the real containerd of the bundle, and the roles run on them without a cluster.

`gpu1` is a GPU node on which the roles of the runtime are run again and again; `gpu2` is bare, for runtimes that are
there already. Nothing comes from a network but the bundle's files, which a small server hands out by digest as the
site's own does.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from myriad.bench.bringup import fresh_state
from myriad.lab import nodes
from myriad.lab.display import Display
from myriad.lab.preflight import lab_name
from myriad.lab.state import LabPaths, LabState
from myriad.lab.topology import read_nodes
from myriad.lab.up import Bringup
from myriad.stack.bundle import Bundle
from myriad.stack.settings import read_settings

CLONE = Path(__file__).resolve().parents[3]
FOLDER = ".lab-runtime"
SHELL_IMAGE = "test.internal/shell:1"


class _Blobs(http.server.BaseHTTPRequestHandler):
    """`GET /v2/artifacts/blobs/sha256:HEX`, from the bundle."""

    def __init__(self, bundle: Bundle, *arguments: Any) -> None:
        self.bundle = bundle
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Answer with the file, or with 404."""
        match = re.fullmatch(r"/v2/artifacts/blobs/sha256:([0-9a-f]{64})", self.path)
        path = self.bundle.path(match.group(1)) if match else None
        if path is None or not path.is_file():
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(path.stat().st_size))
        self.end_headers()
        with path.open("rb") as stream:
            shutil.copyfileobj(stream, self.wfile)

    def log_message(self, format: str, *_arguments: Any) -> None:
        """Say nothing."""


@dataclass
class Play:
    """A finished run of ansible-playbook."""

    code: int
    text: str
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def changed(self) -> int:
        match = re.search(r"changed=(\d+)", self.text)
        assert match, self.text[-3000:]
        return int(match.group(1))

    @property
    def message(self) -> str:
        """What the failed task said, as one line of words."""
        found = re.search(r"\[ERROR\]: Task failed: (.*?)(?:\nOrigin:|\nPLAY RECAP)", self.text, re.DOTALL)
        assert found, self.text[-3000:]
        return " ".join(found.group(1).split())


@dataclass
class Node:
    """One node: commands on it, and roles run over ssh."""

    name: str
    container: Any
    nodes: Nodes

    def sh(self, command: str, *, check: bool = True) -> str:
        """Run a shell command on the node."""
        done = self.container.exec_run(["sh", "-c", command], demux=True)
        out, err = ((part or b"").decode(errors="replace") for part in done.output)
        if check and done.exit_code:
            raise AssertionError(f"{self.name}: {command}\n{out}{err}")
        return out

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Put a file on the node."""
        assert self.container.put_archive("/", nodes.archive({path: (text.encode(), mode)}))

    def play(self, *roles: str, check: bool = False, **variables: Any) -> Play:
        """Run roles of the collection on this node."""
        return self.nodes.play(self.name, list(roles), check=check, variables=variables)

    def reset(self) -> Play:
        """Remove what the roles recorded, as playbooks/reset.yml does."""
        task = {"name": "Reset", "myriad.gpu.node_state": {"state": "absent"}}
        return self.nodes.play(self.name, [], check=False, variables={}, tasks=[task])

    def converge(self, *roles: str, **variables: Any) -> Play:
        """The same; it must succeed."""
        done = self.play(*roles, **variables)
        assert done.code == 0, done.text[-4000:]
        return done

    def unchanged(self, *roles: str, **variables: Any) -> None:
        """The same; nothing may change."""
        done = self.converge(*roles, **variables)
        assert done.changed == 0, done.text[-4000:]

    # The runtime, as the tests look at it.

    def started_at(self, unit: str = "containerd.service") -> str:
        """When systemd last saw a unit become active, and its process."""
        return self.sh(f"systemctl show -p ActiveEnterTimestampMonotonic,MainPID {unit}")

    def dump(self) -> str:
        """What containerd makes of its files."""
        return self.sh("/usr/local/bin/containerd config dump")

    def import_image(self, data: bytes) -> None:
        """Put an image into the runtime."""
        self.container.put_archive("/root", _tar({"image.tar": data}))
        self.sh("/usr/local/bin/ctr -n k8s.io images import /root/image.tar && rm /root/image.tar")

    def gpu_pod(self, uid: str, device: str = "nvidia.com/gpu=0") -> str:
        """Start a pod with one container that has a GPU by CDI; returns the container's id."""
        sandbox = {
            "metadata": {"name": uid, "namespace": "vision", "uid": uid, "attempt": 1},
            "log_directory": "/tmp",
            "linux": {"security_context": {"namespace_options": {"network": 2}}},
        }
        mounts = [{"host_path": path, "container_path": path, "readonly": True} for path in ("/usr",)]
        container = {
            "metadata": {"name": "main"},
            "image": {"image": SHELL_IMAGE},
            "command": ["/bin/sleep", "infinity"],
            "mounts": mounts,
            "CDI_devices": [{"name": device}],
            "log_path": "log",
        }
        self.write("/root/pod.json", json.dumps(sandbox))
        self.write("/root/container.json", json.dumps(container))
        return self.sh("/usr/local/bin/crictl run --no-pull /root/container.json /root/pod.json").split()[-1]

    def in_container(self, identity: str, command: str) -> str:
        """Run a command in a container."""
        return self.sh(f"/usr/local/bin/crictl exec {identity} /bin/sh -c '{command}'")

    def holds_gpus(self, *uids: str, cdi: bool = True) -> None:
        """Let the kubelet have noted that pods hold GPUs: its checkpoint, with the device plugin's answer.

        There is no kubelet on these nodes; the format is Kubernetes 1.35's, pkg/kubelet/cm/devicemanager/checkpoint.
        """
        name = b"nvidia.com/gpu=0"
        # ContainerAllocateResponse with one cdi_devices (field 5), or with one variable in envs (field 1).
        by_cdi = bytes([0x2A, len(name) + 2, 0x0A, len(name)]) + name
        variable = bytes([0x0A, 4]) + b"NAME" + bytes([0x12, 1]) + b"0"
        by_name = bytes([0x0A, len(variable)]) + variable
        entry = {"ContainerName": "main", "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"0": ["GPU-0"]}}
        answer = base64.b64encode(by_cdi if cdi else by_name).decode()
        entries = [{**entry, "PodUID": uid, "AllocResp": answer} for uid in uids]
        text = json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 0})
        self.write("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", text)

    def remove_pods(self) -> None:
        """Remove every pod of the node."""
        self.sh("/usr/local/bin/crictl pods -q | xargs -r /usr/local/bin/crictl rmp -f", check=False)


@dataclass
class Nodes:
    """The nodes and what their plays need."""

    folder: Path
    state: LabState
    paths: LabPaths
    bundle: Bundle
    server: str
    scratch: Path

    def variables(self) -> dict[str, Any]:
        """What stands in group_vars of a lab."""
        bundle = self.bundle.as_ansible_vars()
        privileged = self.state.detected.cap_sys_resource
        return {
            "container_runtime_artifacts": bundle["myriad_artifacts"],
            "container_runtime_source": self.server,
            "container_runtime_version": bundle["myriad_stack_versions"]["containerd"],
            "container_runtime_pause_image": pause_ref(self.bundle),
            "container_runtime_registry_endpoints": [self.server],
            "container_runtime_registry_ca": "",
            "container_runtime_images": [],
            "container_runtime_proxy": {},
            "container_runtime_cgroup_driver": "cgroupfs",
            "container_runtime_runc_binary": "/usr/local/bin/runc"
            if privileged
            else "/usr/local/lib/myriad-lab/runc-lab",
            "container_runtime_restrict_oom_score_adj": not privileged,
            "gpu_toolkit_packages": [],
            "gpu_toolkit_cdi_sources": ["/var/lib/myriad-lab/proc/driver/nvidia/version"],
            "gpu_toolkit_cgroup_driver": "cgroupfs",
        }

    def play(
        self,
        host: str,
        roles: list[str],
        *,
        check: bool,
        variables: dict[str, Any],
        tasks: Sequence[dict[str, Any]] = (),
    ) -> Play:
        """One playbook with these roles and tasks on one host."""
        ssh = self.paths.dir / "ssh" / "id_ed25519"
        connection = {
            "ansible_host": self.state.hosts[host].address,
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(ssh),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={self.paths.dir / 'known_hosts'} -o IdentitiesOnly=yes",
        }
        inventory = {"all": {"hosts": {host: connection}, "vars": {**self.variables(), **variables}}}
        (self.scratch / "hosts.yml").write_text(yaml.safe_dump(inventory))
        play = {
            "hosts": host,
            "gather_facts": False,
            "roles": [f"myriad.gpu.{role}" for role in roles],
            "tasks": list(tasks),
        }
        (self.scratch / "play.yml").write_text(yaml.safe_dump([play]))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MYRIAD_")}
        environment.update(
            ANSIBLE_CONFIG=str(CLONE / "ansible.cfg"),
            ANSIBLE_STDOUT_CALLBACK="ansible.builtin.default",
            ANSIBLE_NOCOLOR="1",
            ANSIBLE_LOCAL_TEMP=str(self.scratch / "tmp"),
        )
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(self.scratch / "hosts.yml")]
        done = subprocess.run(
            [*command, str(self.scratch / "play.yml"), "--diff", *(["--check"] if check else [])],
            cwd=CLONE, env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        return Play(done.returncode, done.stdout + done.stderr)


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def pause_ref(bundle: Bundle) -> str:
    """The sandbox image under the name that the site gives it."""
    image = next(entry for entry in bundle.manifest.images if entry.repo == "pause")
    return f"registry.myriad.internal/{image.ref}"


def layout(blobs: dict[str, bytes], manifest: str, size: int, ref: str) -> bytes:
    """An OCI archive with one image under a name."""
    media = "application/vnd.oci.image.manifest.v1+json"
    named = {"io.containerd.image.name": ref, "org.opencontainers.image.ref.name": ref}
    index = {
        "schemaVersion": 2,
        "manifests": [{"mediaType": media, "digest": f"sha256:{manifest}", "size": size, "annotations": named}],
    }
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode()}
    return _tar({**files, **{f"blobs/sha256/{digest}": data for digest, data in blobs.items()}})


def pause_image(bundle: Bundle) -> bytes:
    """The bundle's sandbox image as an archive."""
    image = next(entry for entry in bundle.manifest.images if entry.repo == "pause")
    digest = image.digest.removeprefix("sha256:")
    names = [digest, *(blob.sha256 for blob in image.blobs)]
    return layout({name: bundle.path(name).read_bytes() for name in names}, digest, image.size, pause_ref(bundle))


def shell_image() -> bytes:
    """An image of links into /usr, which the container gets from its node: a shell in two kilobytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("bin", "sbin", "lib", "lib64"):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(info)
    layer = buffer.getvalue()
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/usr/bin:/usr/sbin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    config_digest = hashlib.sha256(config).hexdigest()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": f"sha256:{config_digest}",
                "size": len(config),
            },
            "layers": [
                {
                    "mediaType": "application/vnd.oci.image.layer.v1.tar",
                    "digest": f"sha256:{digest}",
                    "size": len(layer),
                }
            ],
        }
    ).encode()
    name = hashlib.sha256(manifest).hexdigest()
    return layout({name: manifest, config_digest: config, digest: layer}, name, len(manifest), SHELL_IMAGE)


@pytest.fixture(scope="session")
def runtime_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Both nodes, removed at the end."""
    scratch = tmp_path_factory.mktemp("runtime")
    inventory = scratch / "inventory"
    (inventory / "group_vars" / "all").mkdir(parents=True)
    hosts = {"gpu1": {}, "gpu2": {}}
    (inventory / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": {"pool_h100": {"hosts": hosts}}}}))
    pools = {"h100": {"model": "H100-SXM5-80GB", "gpus_per_node": 2}}
    (inventory / "group_vars" / "all" / "cluster.yml").write_text(yaml.safe_dump({"myriad_pools": pools}))
    display = Display(Console(stderr=True, highlight=False, soft_wrap=True))
    paths = LabPaths(CLONE, folder=FOLDER)
    base = LabState(name=lab_name(str(CLONE)))
    client, image, bundle = Bringup(CLONE, display, paths=paths).ready(base, read_settings())
    name = f"{base.name}-runtime"
    nodes.remove_lab(client, name)
    state = fresh_state(paths, name, base)
    server = None
    try:
        nodes.ensure_nodes(client, state, paths, read_nodes(inventory, state.subnet), image=image)
        handler = functools.partial(_Blobs, bundle)
        server = http.server.ThreadingHTTPServer((state.gateway, 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://{state.gateway}:{server.server_address[1]}"
        yield Nodes(paths.dir, state, paths, bundle, url, scratch)
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()
        nodes.remove_lab(client, name)
        client.close()
        shutil.rmtree(paths.dir, ignore_errors=True)


def _node(found: Nodes, name: str) -> Node:
    import docker

    client = docker.from_env()
    return Node(name, client.containers.get(f"{found.state.name}-{name}"), found)


@pytest.fixture(scope="session")
def bare_node(runtime_nodes: Nodes) -> Iterator[Node]:
    """A node that no role has touched; each test cleans up behind itself."""
    node = _node(runtime_nodes, "gpu2")
    yield node
    node.container.client.close()


@pytest.fixture(scope="session")
def gpu_node(runtime_nodes: Nodes) -> Iterator[Node]:
    """A GPU node after `container_runtime` and `gpu_toolkit`, with images for pods."""
    node = _node(runtime_nodes, "gpu1")
    node.converge("container_runtime", "gpu_toolkit")
    node.import_image(pause_image(runtime_nodes.bundle))
    node.import_image(shell_image())
    yield node
    node.container.client.close()


@pytest.fixture
def tidy(gpu_node: Any) -> Iterator[Any]:
    """The node, for tests after which no file of a role has changed."""
    yield gpu_node
    gpu_node.remove_pods()
    gpu_node.sh("rm -f /etc/containerd/conf.d/99-* /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
