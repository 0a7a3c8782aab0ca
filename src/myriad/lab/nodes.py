"""Lab nodes: systemd containers that are reached over SSH exactly like bare machines.

The flags are what a kubelet, containerd and systemd need inside a container; the reasons stand beside them. Nothing of
the host is bound in: files go in by the engine's archive call before the first start, so the lab also
works where the engine does not see this file system.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, ImageNotFound, NotFound
from docker.types import EndpointConfig, IPAMConfig, IPAMPool

from myriad.errors import MyriadError
from myriad.lab.double.files import node_files
from myriad.lab.gpus import gpu_document
from myriad.lab.state import NODE_DIR, Detected, HostRecord, LabPaths, LabState, atomic_write, save_state
from myriad.lab.topology import LabNode

#: Every object the lab makes carries this label, with the lab's name as value: what lab-down removes.
LABEL = "dev.myriad.lab"
#: Repository of the node image in the engine; its tag is its content.
IMAGE = "myriad-lab-node"
_HOST_LABEL = "dev.myriad.lab.host"
_SPEC_LABEL = "dev.myriad.lab.spec"
#: How long systemd inside a container may take until it answers over ssh.
BOOT_TIMEOUT_S = 60.0
#: How often a command is run again in a node whose output the engine lost.
EXEC_ATTEMPTS = 5

#: A folder that every node of the lab sees: what a site's parallel file system is to its nodes.
SHARED_DIR = "/srv/shared"

#: Raised when nodes of an earlier version lack something that this version relies on.
_LAYOUT = 4

Say = Callable[[str], None]


def archive(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """A tar of absolute paths to (content, mode), with their folders, for the engine's archive call."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        folders: set[str] = set()
        for path, (content, mode) in sorted(files.items()):
            for folder in reversed(Path(path).parents):
                name = str(folder).strip("/")
                if name and name not in folders:
                    folders.add(name)
                    info = tarfile.TarInfo(name)
                    info.type = tarfile.DIRTYPE
                    info.mode = 0o700 if name.startswith("root") else 0o755
                    tar.addfile(info)
            info = tarfile.TarInfo(path.strip("/"))
            info.size, info.mode = len(content), mode
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def lab_files(node: LabNode, public_key: str, proxies: Mapping[str, str] | None = None) -> dict[str, tuple[bytes, int]]:
    """What goes into a fresh node before its first start: path to (content, mode).

    Args:
        node: the node.
        public_key: the lab's ssh key.
        proxies: this machine's http_proxy and https_proxy, for apt on the node.
    """
    own = Path(__file__).parent / "files"
    files = {
        "/usr/local/lib/myriad-lab/entry": ((own / "entry").read_bytes(), 0o755),
        "/usr/local/lib/myriad-lab/runc-lab": ((own / "runc-lab").read_bytes(), 0o755),
        "/root/.ssh/authorized_keys": (public_key.encode(), 0o600),
        "/etc/ssh/sshd_config.d/10-myriad-lab.conf": (
            b"PasswordAuthentication no\nUseDNS no\nMaxStartups 100:30:200\nMaxSessions 100\n",
            0o644,
        ),
        # The pods' resolver: a nameserver that is no loopback address, else CoreDNS finds a loop and stops.
        f"{NODE_DIR}/host": (node.name.encode() + b"\n", 0o644),
        "/etc/myriad-lab/resolv.conf": (pod_resolv_conf(_host_resolv_conf()).encode(), 0o644),
    }
    lines = [
        f'Acquire::{scheme}::Proxy "{proxies[key]}";\n'
        for scheme, key in (("http", "http_proxy"), ("https", "https_proxy"))
        if proxies and proxies.get(key)
    ]
    if lines:
        files["/etc/apt/apt.conf.d/90-myriad-lab-proxy"] = ("".join(lines).encode(), 0o644)
    files.update(node_files(gpu_document(node.name, node.model, node.gpus, nics=node.nics)))
    return files


def pod_resolv_conf(host: str) -> str:
    """The resolver file for pods: the host's nameservers without loopback ones, in which CoreDNS would find itself.

    Args:
        host: the host's resolver file. Without a usable server it names an address that is reserved for documentation,
            so that names outside the cluster fail at once instead of looping.
    """
    servers = [
        line.split()[1] for line in host.splitlines() if line.startswith("nameserver ") and len(line.split()) > 1
    ]
    usable = [server for server in servers if not server.startswith(("127.", "::1"))]
    return "".join(f"nameserver {server}\n" for server in usable[:3] or ["192.0.2.53"])


def _host_resolv_conf() -> str:
    # systemd-resolved shows programs a loopback address and keeps the real servers here.
    for path in (Path("/run/systemd/resolve/resolv.conf"), Path("/etc/resolv.conf")):
        if path.is_file():
            return path.read_text(errors="replace")
    return ""


def spec_hash(node: LabNode, detected: Detected, network: str) -> str:
    """Tells a container with today's settings from one that was made with others."""
    facts = [_LAYOUT, node.name, node.address, node.gpus, node.model, node.nics, network]
    facts += [detected.cap_sys_resource, detected.dev_kmsg]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def container_options(
    node: LabNode, detected: Detected, *, lab: str, image: str, network: str, is_sharing: bool = False
) -> dict[str, Any]:
    """The engine's arguments for one node (docker-py names). Pure, so that the flags are tested by value.

    Args:
        node: the node.
        detected: what the engine can do.
        lab: whose node it is.
        image: its root file system.
        network: the lab's network.
        is_sharing: it sees the lab's shared folder (`ensure_shared` has made the volume).
    """
    shared = [f"{shared_volume(lab)}:{SHARED_DIR}"] if is_sharing else []
    return {
        "image": image,
        "name": f"{lab}-{node.name}",
        "hostname": node.name,
        "entrypoint": ["/usr/local/lib/myriad-lab/entry"],
        "command": [],
        "environment": {"container": "docker"},
        "cap_add": ["ALL"],
        # An engine that lacks the capability itself refuses to hand it on.
        "cap_drop": [] if detected.cap_sys_resource else ["SYS_RESOURCE"],
        # systemd and runc mount, the kubelet writes sysctls: both profiles forbid that.
        "security_opt": ["seccomp=unconfined", "apparmor=unconfined"],
        # Lets privileged pods (kube-proxy) start inside the node.
        "device_cgroup_rules": ["a *:* rwm"],
        "devices": ["/dev/kmsg:/dev/kmsg:rwm"] if detected.dev_kmsg else [],
        "tmpfs": {"/run": "", "/run/lock": "", "/tmp": "exec"},  # noqa: S108 (a mount inside the node)
        # A hierarchy of its own for each node: kubelets that share one delete each other's pods.
        "cgroupns": "private",
        # overlayfs does not stack on the container's own overlay file system, and etcd wants a real one.
        "volumes": ["/var/lib/containerd", "/var/lib/kubelet", "/var/lib/etcd", *shared],
        "network": network,
        "networking_config": {network: EndpointConfig("1.41", ipv4_address=node.address, aliases=[node.name])},
        "labels": {LABEL: lab, _HOST_LABEL: node.name, _SPEC_LABEL: spec_hash(node, detected, network)},
        # systemd's own word for "power off".
        "stop_signal": "SIGRTMIN+3",
        "detach": True,
    }


def shared_volume(lab: str) -> str:
    """The name of the volume behind `SHARED_DIR`."""
    return f"{lab}-shared"


def ensure_shared(client: docker.DockerClient, lab: str) -> None:
    """The volume behind `SHARED_DIR`, labelled so that it goes with the lab."""
    try:
        client.volumes.get(shared_volume(lab))
    except NotFound:
        client.volumes.create(shared_volume(lab), labels={LABEL: lab})


def import_image(client: docker.DockerClient, rootfs: Path, *, digest: str) -> str:
    """Import a root file system as the node image, tagged by its content; a known one is found, not imported again.

    Args:
        client: the engine.
        rootfs: a tar.
        digest: its sha256, hex.

    Returns:
        The image reference `myriad-lab-node:<12 hex>`.
    """
    repository, tag = IMAGE, digest[:12]
    reference = f"{repository}:{tag}"
    try:
        client.images.get(reference)
    except ImageNotFound:
        label = [f"LABEL {LABEL}.image=1"]
        client.api.import_image_from_file(str(rootfs), repository=repository, tag=tag, changes=label)
    return reference


def ensure_network(client: docker.DockerClient, state: LabState) -> None:
    """The lab's own network with fixed addresses; an existing one of this lab is kept."""
    try:
        client.networks.get(state.network)
        return
    except NotFound:
        pool = IPAMPool(subnet=state.subnet, gateway=state.gateway)
        try:
            client.networks.create(
                state.network, driver="bridge", ipam=IPAMConfig(pool_configs=[pool]), labels={LABEL: state.name}
            )
        except APIError as error:
            raise MyriadError(
                f"the engine did not make the network {state.subnet}: {error.explanation}",
                where=state.network,
                hint="`make lab-down`, then `make lab` chooses a free network again.",
            ) from error


def ssh_key(paths: LabPaths) -> str:
    """The lab's own key pair, made once; returns the public half."""
    public = paths.ssh_key.with_suffix(".pub")
    if not (paths.ssh_key.exists() and public.exists()):
        paths.ssh_key.unlink(missing_ok=True)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "myriad-lab", "-f", str(paths.ssh_key)], check=True
        )
    return public.read_text()


def ensure_nodes(
    client: docker.DockerClient,
    state: LabState,
    paths: LabPaths,
    nodes: Iterable[LabNode],
    *,
    image: str,
    proxies: Mapping[str, str] | None = None,
    say: Say = lambda text: None,
) -> list[str]:
    """Make the missing nodes, start the stopped ones, keep the right ones; all answer over ssh afterwards.

    A container with other settings, or one that does not come up, is made anew after a word about it.

    Returns:
        The names of the nodes that were made in this call.

    Raises:
        MyriadError: when a node does not come up within BOOT_TIMEOUT_S.
    """
    wanted = list(nodes)
    public_key = ssh_key(paths)
    ensure_network(client, state)
    ensure_shared(client, state.name)
    _remove_foreign(client, state, {node.name for node in wanted}, say)
    for node in wanted:
        known = state.hosts.get(node.name)
        state.hosts[node.name] = HostRecord(
            address=node.address, gpus=node.gpus, container=known.container if known else "", spec=""
        )
    save_state(paths, state)

    def one(node: LabNode) -> tuple[str, str, bool]:
        return _ensure_node(client, state, node, image=image, files=lab_files(node, public_key, proxies), say=say)

    made = []
    with ThreadPoolExecutor(max_workers=8) as pool:
        for name, identity, fresh in pool.map(one, wanted):
            state.hosts[name].container = identity
            state.hosts[name].spec = spec_hash(next(n for n in wanted if n.name == name), state.detected, state.network)
            if fresh:
                made.append(name)
    state.node_image = image
    save_state(paths, state)
    write_known_hosts(client, state, paths)
    return made


def _remove_foreign(client: docker.DockerClient, state: LabState, names: set[str], say: Say) -> None:
    """Remove nodes of this lab that its inventory no longer lists."""
    for container in client.containers.list(all=True, filters={"label": f"{LABEL}={state.name}"}):
        host = container.labels.get(_HOST_LABEL, "")
        if host and host not in names:
            say(f"{host} is no longer in the inventory: its container is removed")
            container.remove(force=True, v=True)
            state.hosts.pop(host, None)


def _ensure_node(
    client: docker.DockerClient,
    state: LabState,
    node: LabNode,
    *,
    image: str,
    files: Mapping[str, tuple[bytes, int]],
    say: Say,
) -> tuple[str, str, bool]:
    options = container_options(
        node, state.detected, lab=state.name, image=image, network=state.network, is_sharing=True
    )
    try:
        container = client.containers.get(options["name"])
    except NotFound:
        container = None
    if container is not None and container.labels.get(_SPEC_LABEL) != options["labels"][_SPEC_LABEL]:
        say(f"{node.name} was made with other settings (address, GPUs or engine): it is made anew")
        container.remove(force=True, v=True)
        container = None
    if container is not None:
        if container.status != "running":
            say(f"{node.name} was stopped: it is started")
            container.start()
        if _answers(container, timeout_s=BOOT_TIMEOUT_S):
            return node.name, str(container.id), False
        say(f"{node.name} does not come up: its container is made anew")
        container.remove(force=True, v=True)
    container = _create(client, options, files)
    if not _answers(container, timeout_s=BOOT_TIMEOUT_S):
        tail = bytes(container.logs(tail=5)).decode(errors="replace").strip()
        raise MyriadError(
            f"systemd and ssh did not come up within {BOOT_TIMEOUT_S:.0f} s. Last lines: {tail or '(none)'}",
            where=node.name,
            hint=f"`docker logs {options['name']}` shows all; `make lab` tries again.",
        )
    return node.name, str(container.id), True


def _create(client: docker.DockerClient, options: Mapping[str, Any], files: Mapping[str, tuple[bytes, int]]) -> Any:
    """Create, fill and start a container; a half-made one is removed again."""
    container = client.containers.create(**options)
    try:
        container.put_archive("/", archive(files))
        container.start()
    except BaseException:
        container.remove(force=True, v=True)
        raise
    return container


def _answers(container: Any, *, timeout_s: float) -> bool:
    """Wait until sshd runs and the host keys are there."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        container.reload()
        if container.status not in ("running", "created"):
            return False
        code, _ = exec_text(container, f"test -e {NODE_DIR}/first-start && systemctl is-active -q ssh")
        if code == 0:
            return True
        time.sleep(0.2)
    return False


def exec_text(container: Any, script: str) -> tuple[int, str]:
    """Run a shell script in a node through the engine. Returns its exit code and what it printed."""
    code, output = container.exec_run(["sh", "-c", script])
    return int(code), bytes(output).decode(errors="replace")


def exec_whole(container: Any, script: str) -> tuple[int, str]:
    """Like `exec_text`, until all of the output has come: a loaded engine ends the stream early now and then."""
    end = "--- end ---"
    for attempt in range(EXEC_ATTEMPTS):
        code, output = exec_text(container, f"{{ {script}\n}} && echo '{end}'")
        if code != 0 or output.rstrip().endswith(end):
            break
        time.sleep(0.5 * (attempt + 1))
    else:
        raise MyriadError(
            f"the engine lost the output of a command {EXEC_ATTEMPTS} times",
            where=str(container.name),
            hint="it is overloaded; run the same command again.",
        )
    return code, output.rstrip().removesuffix(end)


def write_known_hosts(client: docker.DockerClient, state: LabState, paths: LabPaths) -> None:
    """Collect the nodes' host keys through the engine, which is a trusted path, so that ssh never asks or guesses."""

    def keys(item: tuple[str, HostRecord]) -> str:
        name, record = item
        container = client.containers.get(record.container)
        code, output = exec_whole(container, "cat /etc/ssh/ssh_host_*_key.pub")
        if code != 0:
            raise MyriadError("the node has no host keys", where=name, hint="`make lab-down`, then `make lab`.")
        lines = [" ".join(line.split()[:2]) for line in output.splitlines() if line.strip()]
        return "".join(f"{name},{record.address} {line}\n" for line in sorted(lines))

    with ThreadPoolExecutor(max_workers=8) as pool:
        atomic_write(paths.known_hosts, "".join(pool.map(keys, state.hosts.items())))


def remove_lab(client: docker.DockerClient, name: str) -> dict[str, list[str]]:
    """Remove every container, volume and network of one lab. Returns what was removed, by kind."""
    removed: dict[str, list[str]] = {"containers": [], "networks": [], "volumes": []}
    containers = client.containers.list(all=True, filters={"label": f"{LABEL}={name}"}, ignore_removed=True)

    def drop(container: Any) -> str:
        try:
            container.remove(force=True, v=True)
        except NotFound:
            return ""
        return str(container.name)

    with ThreadPoolExecutor(max_workers=8) as pool:
        removed["containers"] = [name for name in pool.map(drop, containers) if name]
    for kind, collection in (("networks", client.networks), ("volumes", client.volumes)):
        for item in collection.list(filters={"label": f"{LABEL}={name}"}):
            item.remove(**({"force": True} if kind == "volumes" else {}))
            removed[kind].append(str(item.name))
    return removed


def stop_lab(client: docker.DockerClient, name: str) -> None:
    """End every container of one lab, at once, and leave what they wrote."""

    def end(container: Any) -> None:
        with contextlib.suppress(NotFound, APIError):
            container.kill()

    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(end, client.containers.list(filters={"label": f"{LABEL}={name}"}, ignore_removed=True)))


def ssh_command(paths: LabPaths, address: str, *command: str) -> list[str]:
    """An ssh command line to a node, with the lab's key and known hosts only."""
    options = {
        "UserKnownHostsFile": str(paths.known_hosts),
        "GlobalKnownHostsFile": os.devnull,
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
        "ConnectTimeout": "10",
    }
    flags = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    return ["ssh", "-i", str(paths.ssh_key), *flags, f"root@{address}", *command]
