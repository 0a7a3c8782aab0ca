"""Images warm on the lab's nodes: in waves, kept, refused without room, taken up after a killed containerd."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from myriad.fleet.labels import warm_label

pytestmark = [pytest.mark.lab, pytest.mark.engine]

CLONE = Path(__file__).resolve().parents[2]
MYRIAD = str(Path(sys.executable).with_name("myriad"))
GPU_NODES = ("gpu1", "gpu2", "gpu3")
OCI = "application/vnd.oci.image"
KUBELET = "/etc/kubernetes/kubelet.conf.d/50-myriad.conf"


def myriad(*arguments: str, timeout: int = 300) -> subprocess.CompletedProcess[str]:
    """Run a verb in this clone."""
    return subprocess.run([MYRIAD, *arguments], cwd=CLONE, capture_output=True, text=True, timeout=timeout, check=False)


def status_of(lab: Any, host: str, reference: str) -> dict[str, Any] | None:
    """What CRI says of an image on a node; None where it has none of that name."""
    text = lab.ssh(host, f"crictl inspecti -o json {reference} 2>/dev/null", check=False)
    return dict(json.loads(text)["status"]) if text.strip() else None


def forget(lab: Any, host: str, repository: str) -> None:
    """Take an image off a node, with its pin, its names and the record that it was warm."""
    lab.ssh(
        host,
        # Without a match `crictl images -q NAME` gives all images.
        f"for id in $(crictl images | awk '$1 == \"registry.myriad.internal/{repository}\" {{print $3}}'); do "
        "crictl rmi $id; done",
        check=False,
    )
    until = time.monotonic() + 20
    while repository in lab.ssh(host, "crictl images"):
        assert time.monotonic() < until, f"{repository} stays on {host}"
        time.sleep(0.5)


def warm_hosts(lab: Any, digest: str) -> set[str]:
    """Nodes that carry the label of a warm image."""
    label = warm_label(digest)
    nodes = json.loads(lab.kubectl("get", "nodes", "-o", "json"))["items"]
    return {node["metadata"]["name"] for node in nodes if label in node["metadata"]["labels"]}


def eventually(what: Callable[[], Any], wanted: Any, within_s: float) -> None:
    """Wait until something is as wanted."""
    until = time.monotonic() + within_s
    while (found := what()) != wanted:
        assert time.monotonic() < until, f"{found!r} instead of {wanted!r} after {within_s} s"
        time.sleep(0.5)


@pytest.fixture(scope="module")
def gang_check(lab: Any) -> str:
    """Digest of gang-check as the site has it."""
    status = status_of(lab, "gpu1", "registry.myriad.internal/myriad/gang-check:0.1.0")
    assert status is not None, "the site keeps gang-check warm"
    return str(status["repoDigests"][0]).rpartition("@")[2]


def test_a_wave_warms_one_node_and_the_next_the_others(lab: Any, gang_check: str) -> None:
    reference = f"registry.myriad.internal/myriad/gang-check@{gang_check}"
    for host in GPU_NODES:
        forget(lab, host, "myriad/gang-check")
    done = myriad("prewarm", "run", "gang-check", "-i", "inventories/lab", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert [(wave["wave"], wave["nodes"], wave["pulled"]) for wave in found["waves"]] == [(1, 1, 1), (2, 2, 2)]
    assert {node["node"]: node["outcome"] for node in found["nodes"]} == dict.fromkeys(GPU_NODES, "pulled")
    for host in GPU_NODES:
        status = status_of(lab, host, reference)
        assert status is not None and status["pinned"] is True
        assert lab.ssh(host, "/usr/local/lib/myriad/images check") == ""
    # The kubelet tells of its images every ten seconds, the agent looks every five.
    eventually(lambda: warm_hosts(lab, gang_check), set(GPU_NODES), 60)


@pytest.mark.slow
def test_status_finds_what_was_unpinned_by_hand_and_a_run_pins_it_again(lab: Any, gang_check: str) -> None:
    reference = f"registry.myriad.internal/myriad/gang-check@{gang_check}"
    assert myriad("prewarm", "status", "-i", "inventories/lab").returncode == 0
    lab.ssh("gpu2", f"ctr -n k8s.io images label {reference} io.cri-containerd.pinned=")
    eventually(lambda: (status_of(lab, "gpu2", reference) or {}).get("pinned", False), False, 10)
    told = myriad("prewarm", "status", "-i", "inventories/lab")
    assert told.returncode == 4, told.stdout + told.stderr
    assert [line for line in told.stdout.splitlines() if "not pinned" in line and line.startswith("gpu2")]
    done = myriad("prewarm", "run", "-i", "inventories/lab", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = {node["node"]: node["outcome"] for node in json.loads(done.stdout)["nodes"]}
    assert outcomes == {"gpu1": "warm", "gpu2": "pinned", "gpu3": "warm"}
    assert (status_of(lab, "gpu2", reference) or {})["pinned"] is True


@pytest.mark.slow
def test_between_runs_the_node_pins_it_again_when_containerd_starts(lab: Any, gang_check: str) -> None:
    reference = f"registry.myriad.internal/myriad/gang-check@{gang_check}"
    lab.ssh("gpu3", f"ctr -n k8s.io images label {reference} io.cri-containerd.pinned=")
    lab.ssh("gpu3", "systemctl restart containerd")
    eventually(lambda: (status_of(lab, "gpu3", reference) or {}).get("pinned", False), True, 60)


@pytest.mark.slow
def test_labels_come_back_with_a_node_that_was_deleted(lab: Any, gang_check: str) -> None:
    eventually(lambda: warm_hosts(lab, gang_check), set(GPU_NODES), 60)
    lab.kubectl("delete", "node", "gpu3", "--wait=false")
    lab.ssh("gpu3", "systemctl restart kubelet")
    eventually(lambda: "gpu3" in lab.kubectl("get", "nodes", "-o", "name"), True, 60)
    eventually(lambda: warm_hosts(lab, gang_check), set(GPU_NODES), 90)


# An image that only the registry has


@dataclass
class Pushed:
    """A made-up image in the site's registry."""

    digest: str
    layer: str
    size: int

    @property
    def reference(self) -> str:
        """As nodes name it."""
        return f"registry.myriad.internal/tests/large@{self.digest}"

    def variables(self) -> str:
        """Extra variables of a run about it."""
        return json.dumps(
            {
                "myriad_images": {
                    "warm": [{"image": "tests/large", "digest": self.digest}],
                    "prewarm": {"jitter_s": 0},
                },
                "image_prewarm_release_enabled": False,
            }
        )


def _sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def push(lab: Any, *, size: int, sound: bool = True) -> Pushed:
    """Put an image that does not compress into the site's registry, by its API.

    Args:
        lab: the lab.
        size: bytes of its only layer.
        sound: False names another content than the layer has, which shows when it is unpacked.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        content = os.urandom(size)
        member = tarfile.TarInfo("data")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    layer = buffer.getvalue()
    diff = _sha256(layer) if sound else _sha256(b"something else")
    config = json.dumps(
        {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [diff]}}
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": {"mediaType": f"{OCI}.config.v1+json", "digest": _sha256(config), "size": len(config)},
            "layers": [{"mediaType": f"{OCI}.layer.v1.tar", "digest": _sha256(layer), "size": len(layer)}],
        }
    ).encode()
    base = f"http://{lab.hosts['cp1']['address']}:5000"
    with httpx.Client(timeout=120, trust_env=False) as http:
        for blob in (layer, config):
            begun = http.post(f"{base}/v2/tests/large/blobs/uploads/")
            target = httpx.URL(base).join(begun.headers["Location"]).copy_add_param("digest", _sha256(blob))
            assert http.put(target, content=blob).status_code == 201
        put = http.put(
            f"{base}/v2/tests/large/manifests/e2e", content=manifest,
            headers={"Content-Type": f"{OCI}.manifest.v1+json"},
        )  # fmt: skip
        assert put.status_code == 201, put.text
    return Pushed(_sha256(manifest), _sha256(layer), len(layer))


@pytest.fixture
def large(lab: Any) -> Iterator[Pushed]:
    """An image of 160 MB, off all nodes afterwards."""
    yield push(lab, size=160_000_000)
    for host in GPU_NODES:
        forget(lab, host, "tests/large")


@pytest.mark.slow
def test_an_image_that_cannot_be_unpacked_spoils_one_node_and_touches_no_other(lab: Any, playbook: Any) -> None:
    broken = push(lab, size=1_000_000, sound=False)
    journal = CLONE / ".lab" / "logs" / "prewarm-e2e.jsonl"
    journal.unlink(missing_ok=True)
    run = playbook("prewarm", "-e", broken.variables(), "-e", f"image_prewarm_journal={journal}")
    assert run.code == 2, run.output[-3000:]
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert lines[0]["plan"]["sizes"] == [1, 2]
    tried = [line for line in lines if "host" in line]
    assert [(line["host"], line["outcome"]) for line in tried] == [(lines[0]["plan"]["order"][0], "failed")]
    assert "not what the digest names" in tried[0]["sentence"], tried[0]["sentence"]
    untouched = set(GPU_NODES) - {tried[0]["host"]}
    blobs = "/var/lib/containerd/io.containerd.content.v1.content/blobs/sha256"
    for host in untouched:
        assert lab.ssh(host, f"ls {blobs} | grep -c {broken.layer[7:]}", check=False).strip() == "0"


@pytest.mark.slow
def test_an_image_without_the_sites_signature_reaches_no_node(lab: Any, playbook: Any, tmp_path: Path) -> None:
    key = tmp_path / "site.pub"
    key.write_bytes(
        ec.generate_private_key(ec.SECP256R1())
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    unsigned = push(lab, size=1_000_000)
    variables = json.loads(unsigned.variables())
    variables["myriad_images"]["signing_key"] = str(key)
    run = playbook("prewarm", "-e", json.dumps(variables))
    assert run.code == 2, run.output[-3000:]
    assert "is not signed" in run.output
    for host in GPU_NODES:
        assert status_of(lab, host, unsigned.reference) is None


@pytest.mark.slow
def test_a_containerd_killed_in_mid_pull_is_taken_up_again(lab: Any, playbook: Any, large: Pushed) -> None:
    watch = (
        "for n in $(seq 3000); do for f in /var/lib/containerd/io.containerd.content.v1.content/ingest/*/data; do "
        '[ "$(stat -c %s "$f" 2>/dev/null || echo 0)" -gt 20000000 ] && '
        "systemctl kill --kill-whom=main -s KILL containerd && echo killed && exit 0; done; sleep 0.02; done; "
        "echo never"
    )
    said: list[str] = []
    killer = threading.Thread(target=lambda: said.append(lab.ssh("gpu2", watch, timeout=180)))
    killer.start()
    journal = CLONE / ".lab" / "logs" / "prewarm-e2e.jsonl"
    journal.unlink(missing_ok=True)
    run = playbook("prewarm", "--limit", "gpu2", "-e", large.variables(), "-e", f"image_prewarm_journal={journal}")
    killer.join()
    assert said == ["killed\n"]
    assert run.code == 0, run.output[-3000:]
    (line,) = [
        json.loads(text) for text in journal.read_text().splitlines() if '"host"' in text and '"plan"' not in text
    ]
    (image,) = line["images"]
    assert (image["outcome"], image["resumed"]) == ("pulled", 1), line
    assert "taken up again after the runtime came back" in image["sentence"]
    status = status_of(lab, "gpu2", large.reference)
    assert status is not None and status["pinned"] is True


@pytest.mark.slow
def test_a_disk_without_room_is_refused_before_any_byte_with_the_numbers(
    lab: Any, playbook: Any, large: Pushed
) -> None:
    free = int(lab.ssh("gpu3", "df --output=avail -B1 /var/lib/containerd | tail -1"))
    kept = free - large.size
    lab.ssh("gpu3", f"cp -p {KUBELET} /root/kubelet.before")
    try:
        # The running kubelet read its file at its start: what it keeps free is told to the admission alone.
        lab.ssh("gpu3", f"sed -i 's/imagefs.available: .*/imagefs.available: \"{kept}\"/' {KUBELET}")
        journal = CLONE / ".lab" / "logs" / "prewarm-e2e.jsonl"
        journal.unlink(missing_ok=True)
        run = playbook("prewarm", "--limit", "gpu3", "-e", large.variables(), "-e", f"image_prewarm_journal={journal}")
        plan = json.loads(journal.read_text().splitlines()[0])["plan"]
        assert plan["order"] == [] and list(plan["refused"]) == ["gpu3"]
        sentence = plan["refused"]["gpu3"]
        assert "is refused before any byte" in sentence and "160 MB to fetch" in sentence
        assert f"evictionHard imagefs.available {kept}" in sentence and "too few" in sentence
        assert "refused" in run.output
        assert status_of(lab, "gpu3", large.reference) is None
        blobs = "/var/lib/containerd/io.containerd.content.v1.content/blobs/sha256"
        assert lab.ssh("gpu3", f"ls {blobs} | grep -c {large.layer[7:]}", check=False).strip() == "0"
    finally:
        lab.ssh("gpu3", f"mv /root/kubelet.before {KUBELET}")
