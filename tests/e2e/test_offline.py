"""site.yml on bare nodes from a bundle alone, with every way out blocked; and a bundle that lacks one file."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import docker
import httpx
import pytest

from myriad.lab import engine, offline
from myriad.lab.nodes import ssh_command
from myriad.lab.state import LabPaths, LabState, load_state
from myriad.stack.build import build_bundle
from myriad.stack.bundle import Bundle
from myriad.stack.lock import load_lock
from myriad.stack.settings import read_settings

from .bare import bare_nodes
from .conftest import CLONE, PlaybookRun

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(2400)]

#: In the lock and in no lab node's image: it has to come from somewhere.
PACKAGE = "lldpd"
#: Asked from a node; what listens there does not matter, only who says no.
OUTSIDE = "deb.debian.org"


@dataclass
class Bare:
    """Bare nodes and the bundle for them."""

    paths: LabPaths
    state: LabState
    client: docker.DockerClient
    bundle: Bundle

    def ssh(self, host: str, command: str) -> str:
        argv = ssh_command(self.paths, self.state.hosts[host].address, command)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{host}: {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def connects(self, host: str, address: str, port: int) -> str:
        """`connected`, or the error of a connection attempt from a node."""
        program = f"import socket; s = socket.socket(); s.settimeout(8); print(s.connect_ex(({address!r}, {port})))"
        code = int(self.ssh(host, f'python3 -c "{program}"').strip())
        return "connected" if code == 0 else f"error {code}"

    def arguments(self, *more: str) -> list[str]:
        packages = ["conntrack", "ethtool", "iptables", "kmod", "libseccomp2", "socat", PACKAGE]
        extra = {"site_bundle": str(self.bundle.directory), "node_base_packages": packages}
        return ["-e", json.dumps(extra), *more]


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    settings = read_settings()
    directory = settings.cache / "bundles" / "e2e-offline"
    return build_bundle(load_lock(CLONE / "stack.lock.yml"), directory, settings, offline=offline.wish())


@pytest.fixture
def bare(bundle: Bundle) -> Iterator[Bare]:
    with bare_nodes(CLONE, "offline") as paths:
        state = load_state(paths)
        assert state is not None
        made = Bare(paths, state, engine.connect(), bundle)
        try:
            yield made
        finally:
            offline.unblock_network(made.client, state.network)


def _outside() -> tuple[str, int]:
    """An address outside that this machine reaches itself, so that a refusal of a node is the block's doing."""
    try:
        address = socket.gethostbyname(OUTSIDE)
        socket.create_connection((address, 80), timeout=8).close()
    except OSError:
        return "192.0.2.1", 80
    return address, 80


def test_t24_the_lab_comes_up_from_a_bundle_with_every_way_out_blocked(bare: Bare, playbook: PlaybookRun) -> None:
    lab = {"MYRIAD_LAB_STATE": str(bare.paths.state)}
    address, port = _outside()
    print(f"before the block, {address}:{port} from gpu1: {bare.connects('gpu1', address, port)}")
    # Each block by itself: first the nodes' own, with the network still open.
    offline.block_nodes(bare.client, bare.state)
    for host in bare.state.hosts:
        answer = bare.connects(host, address, port)
        refused = offline.refused(bare.client, bare.state, host)
        print(f"its own block alone, from {host}: {answer}, {refused} packets refused")
        assert answer != "connected" and refused >= 1
    offline.block_network(bare.client, bare.state)

    with offline.served(bare.bundle, bare.state.gateway) as served:
        run = playbook("site", *bare.arguments(*served.arguments), **lab)
        assert run.code == 0, run.output[-4000:]
        clients = {client for client, _, status, path in served.requests if path.endswith(".deb") and status == 200}
        assert clients == {record.address for record in bare.state.hosts.values()}
    for host in bare.state.hosts:
        installed = bare.ssh(host, f"dpkg-query -W -f '${{Version}}' {PACKAGE}")
        locked = next(entry.version for entry in bare.bundle.manifest.packages if entry.name == PACKAGE)
        assert installed == locked
        # apt itself knows no other place, and has lists of no other.
        sites = set(bare.ssh(host, "apt-get indextargets --format '$(SITE)'").split())
        assert sites == {f"{served.url}/apt"}
        lists = bare.ssh(host, "ls /var/lib/apt/lists").split()
        assert not [name for name in lists if "debian.org" in name]
    print(
        f"{len(served.requests)} requests to the bundle; refused packets: "
        + ", ".join(f"{host} {offline.refused(bare.client, bare.state, host)}" for host in bare.state.hosts)
    )

    # The network's block alone is enough: a node whose own rules are gone still gets nowhere.
    bare.ssh("gpu1", offline.node_script_undo())
    assert bare.connects("gpu1", address, port) != "connected"
    # And it is the block that does it, where this machine reaches the outside at all.
    offline.unblock_network(bare.client, bare.state.network)
    print(f"after the block, {address}:{port} from gpu1: {bare.connects('gpu1', address, port)}")


def test_t24_h2_a_bundle_that_lacks_one_file_is_named_before_a_host_is_touched(
    bare: Bare, playbook: PlaybookRun, tmp_path: Path
) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(bare.bundle.directory, copy)
    bare.bundle = Bundle.load(copy)
    gone = bare.bundle.file_path("kubelet")
    gone.unlink()
    look = "find /etc /usr /opt -newer /proc/1 -type f | sort"
    before = {host: bare.ssh(host, look) for host in bare.state.hosts}
    run = playbook("site", *bare.arguments(), MYRIAD_LAB_STATE=str(bare.paths.state))
    assert run.code != 0
    assert "missing    kubelet (kubernetes" in run.output and gone.name in run.output
    assert {row["host"] for row in run.results()} <= {"localhost"}, "a host was asked something"
    assert {host: bare.ssh(host, look) for host in bare.state.hosts} == before


def test_the_registry_over_tls_with_teams_of_its_own(bare: Bare, playbook: PlaybookRun) -> None:
    """By the site's own authority, made in the run; a team's image is pulled with the team's credentials alone."""
    lab = {"MYRIAD_LAB_STATE": str(bare.paths.state)}
    more = ["-e", json.dumps({"site_registry_tls": True, "site_registry_credentials": True})]
    started = time.monotonic()
    run = playbook("site", *more, **lab)
    assert run.code == 0, run.output[-4000:]
    print(f"site over TLS, with users: {time.monotonic() - started:.0f} s")
    secrets = bare.paths.kubeconfig.parent / "secrets"
    url = f"https://{bare.state.hosts['cp1'].address}:5000"
    authority = (secrets / "registry-ca.crt").read_text()
    password = (secrets / "registry-users" / "vision").read_text().strip()
    context = ssl.create_default_context(cadata=authority)
    with httpx.Client(base_url=url, verify=context, trust_env=False) as http:
        assert http.get("/v2/pause/tags/list").status_code == 200
        assert http.get("/v2/_catalog").status_code == 401
        http.auth = ("vision", password)
        digest = push_image(http, "teams/vision/train")
        assert http.post("/v2/pause/blobs/uploads/").status_code == 403
    name = f"registry.myriad.internal/teams/vision/train@{digest}"
    denied = bare.ssh("gpu1", f"crictl pull {name} 2>&1; true")
    assert "401" in denied or "authorization failed" in denied, denied
    bare.ssh("gpu1", f"crictl pull --creds vision:{password} {name}")
    asked = "serviceaccount default -o jsonpath={.imagePullSecrets[0].name}"
    found = bare.ssh("cp1", f"kubectl --kubeconfig /etc/kubernetes/admin.conf -n vision get {asked}")
    assert found == "myriad-registry"
    assert password not in run.output
    again = playbook("site", "-e", "site_full=true", *more, **lab)
    assert again.code == 0, again.output[-3000:]
    assert again.changed_tasks() == set()


def push_image(http: httpx.Client, repo: str) -> str:
    """A small image, as a team's CI pushes it. Returns its digest."""
    layer = gzip.compress(b"\0" * 1024, mtime=0)
    diff = f"sha256:{hashlib.sha256(bytes(1024)).hexdigest()}"
    config = json.dumps(
        {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [diff]}}
    ).encode()
    parts = []
    for blob in (config, layer):
        digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        begun = http.post(f"/v2/{repo}/blobs/uploads/")
        assert begun.status_code == 202, begun.text
        target = httpx.URL(begun.headers["Location"]).copy_add_param("digest", digest)
        assert http.put(target, content=blob).status_code == 201
        parts.append({"digest": digest, "size": len(blob)})
    oci = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": parts[0] | {"mediaType": f"{oci}.config.v1+json"},
        "layers": [parts[1] | {"mediaType": f"{oci}.layer.v1.tar+gzip"}],
    }
    put = http.put(
        f"/v2/{repo}/manifests/v1", content=json.dumps(manifest), headers={"Content-Type": manifest["mediaType"]}
    )
    assert put.status_code == 201, put.text
    return str(put.headers["Docker-Content-Digest"])
