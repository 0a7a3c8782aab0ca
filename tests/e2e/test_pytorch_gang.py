"""The real pytorch image, built, pushed and prewarmed on two nodes: a torch.distributed gang starts without a pull."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from myriad.fleet.labels import warm_label
from myriad.images.oci import Layout
from myriad.images.registry import Registry

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.network]

CLONE = Path(__file__).resolve().parents[2]
MYRIAD = str(Path(sys.executable).with_name("myriad"))
REPOSITORY = "myriad/pytorch"
EXAMPLE = CLONE / "docs" / "examples" / "pytorch-gang.yml"
ZEROS = f"sha256:{'0' * 64}"
NODES = ("gpu1", "gpu2")
#: Free bytes: wheels, 5 GB; layers, 3 GB, and as much in the registry; on each node 3 GB compressed and 9 GB unpacked.
DISK = 36 << 30


@pytest.fixture(scope="module")
def digest(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The image in the site's registry. $MYRIAD_PYTORCH_LAYOUT names one that is built already."""
    given = os.environ.get("MYRIAD_PYTORCH_LAYOUT")
    folder = Path(given) if given else tmp_path_factory.mktemp("pytorch") / "out"
    free = shutil.disk_usage(folder.parent).free
    if free < DISK:
        pytest.skip(f"the image on two nodes takes {DISK >> 30} GiB of disk, {free >> 30} GiB are free")
    if not given:
        done = subprocess.run(
            [MYRIAD, "image", "build", "pytorch", "--out", str(folder)], cwd=CLONE, capture_output=True, text=True,
            timeout=1800, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    layout = Layout(folder)
    with Registry(f"http://{lab.hosts['cp1']['address']}:5000") as registry:
        registry.push_layout(layout, REPOSITORY, "e2e")
        found = registry.digest_of(REPOSITORY, "e2e")
    assert found is not None
    yield found
    if not given:
        # pytest would keep three of them.
        shutil.rmtree(folder)


def test_a_torch_gang_runs_on_prewarmed_nodes(lab: Any, playbook: Any, digest: str) -> None:
    variables = json.dumps(
        {
            "myriad_images": {"warm": [{"image": REPOSITORY, "digest": digest}], "prewarm": {"jitter_s": 0}},
            "image_prewarm_release_enabled": False,
        }
    )
    run = playbook("prewarm", "--limit", ",".join(NODES), "-e", variables, timeout=900)
    assert run.code == 0, run.output[-3000:]
    label = warm_label(digest)
    until = time.monotonic() + 90
    while True:
        nodes = json.loads(lab.kubectl("get", "nodes", "-o", "json"))["items"]
        warm = {node["metadata"]["name"] for node in nodes if node["metadata"]["labels"].get(label)}
        if warm == set(NODES):
            break
        assert time.monotonic() < until, f"warm nodes by their labels: {warm}"
        time.sleep(1)
    objects = EXAMPLE.read_text().replace(ZEROS, digest)
    assert digest in objects
    try:
        lab.kubectl("apply", "-f", "-", text=objects)
        lab.kubectl("-n", "vision", "wait", "--for=condition=complete", "job/pytorch-gang", "--timeout=240s")
        logs = lab.kubectl("-n", "vision", "logs", "-l", "batch.kubernetes.io/job-name=pytorch-gang", "--prefix=false")
        assert {line.partition(" on ")[0] for line in logs.splitlines() if "all-reduce ok" in line} == {
            "rank 0 of 2",
            "rank 1 of 2",
        }, logs
        pods = json.loads(
            lab.kubectl("-n", "vision", "get", "pods", "-l", "batch.kubernetes.io/job-name=pytorch-gang", "-o", "json")
        )["items"]
        assert {pod["spec"]["nodeName"] for pod in pods} == set(NODES)
        events = lab.kubectl("-n", "vision", "get", "events", "--field-selector", "reason=Pulled", "-o", "json")
        said = [
            event["message"] for event in json.loads(events)["items"]
            if event["involvedObject"]["name"].startswith("pytorch-gang-")
        ]  # fmt: skip
        assert said and all("already present on machine" in message for message in said), said
    finally:
        lab.kubectl("delete", "-f", "-", "--ignore-not-found", text=objects, check=False)
        _forget(lab, playbook, digest)


def _forget(lab: Any, playbook: Any, digest: str) -> None:
    """The nodes as they are described, and without 20 GB that nobody uses any more."""
    # The whole site, not only a prewarm: the nodes are as described afterwards.
    run = playbook("site", "--limit", ",".join(NODES), "-e", "site_full=true", timeout=300)
    assert run.code == 0, run.output[-3000:]
    for node in NODES:
        image = f"registry.myriad.internal/{REPOSITORY}@{digest}"
        done = subprocess.run(
            ["docker", "exec", lab.container(node), "crictl", "--timeout", "120s", "rmi", image],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
