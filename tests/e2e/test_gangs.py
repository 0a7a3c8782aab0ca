"""Thirty random gangs with an intruder and a lost node: on the lab with its kubelets, and on fake nodes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
sys.path.insert(0, str(Path(__file__).parent))
import apiserver
from gangs import Size, random_sizes, thirty_gangs

from myriad.kube.client import Api, connect
from myriad.kube.kinds import NODES

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
PROXY = "/api/v1/namespaces/myriad-system/services/myriad-scheduler:http/proxy"
IMAGE = "registry.myriad.internal/myriad/gang-check:0.1.0"
GRACE_S = 10

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture
def seed() -> int:
    """$MYRIAD_SEED repeats a run."""
    value = int(os.environ.get("MYRIAD_SEED") or random.randrange(2**31))  # noqa: S311 - no secret
    print(f"MYRIAD_SEED={value}")
    return value


def sleeping_job(size: Size, seconds: int) -> Json:
    """A gang whose pods sleep; a lost node is no failure of the job."""
    job = apiserver.gang_job(size.name, pods=size.pods, gpus=size.gpus, namespace=size.namespace)
    job["spec"]["podFailurePolicy"] = {
        "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    }
    job["spec"]["backoffLimit"] = 100
    pod = job["spec"]["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = GRACE_S
    pod["automountServiceAccountToken"] = False
    requests = {"cpu": "20m", "memory": "24Mi", "nvidia.com/gpu": str(size.gpus)}
    pod["containers"][0] |= {
        "image": IMAGE,
        "command": ["python3", "-c", f"import time; time.sleep({seconds})"],
        "resources": {"requests": requests, "limits": {"nvidia.com/gpu": str(size.gpus)}},
    }
    # A node that is lost is given up soon, not after five minutes.
    pod["tolerations"] = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10}
        for key in ("unreachable", "not-ready")
    ]
    return job


def bare_pod(name: str, node: str, *, gpus: int, seconds: int) -> Json:
    """The intruder: a pod outside every queue, put on its node by hand."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "x",
                    "image": IMAGE,
                    "command": ["python3", "-c", f"import time; time.sleep({seconds})"],
                    "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
                }
            ],
        },
    }


def later(seconds: float, call: Callable[[], Any]) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer


def test_thirty_gangs_on_the_lab(lab: Any, seed: int) -> None:
    api = connect(ROOT / ".lab" / "kubeconfig")
    chance = random.Random(seed)  # noqa: S311 - a test that can be repeated
    sizes = random_sizes(seed, ["vision", "speech"])
    lost = lab.container("gpu3")
    timers = []

    def submit(all_sizes: list[Size]) -> None:
        jobs = [sleeping_job(size, chance.randint(3, 12)) for size in all_sizes]
        apply(lab, [bare_pod("intruder", "gpu1", gpus=3, seconds=45), *jobs])

    def disturb() -> None:
        subprocess.run(["docker", "kill", lost], check=True, capture_output=True)
        timers.append(later(60, lambda: subprocess.run(["docker", "start", lost], check=True, capture_output=True)))

    def records(size: Size) -> list[Json]:
        return list(api.get_raw(f"{PROXY}/v1/decisions", params={"job": f"{size.namespace}/{size.name}"}))

    try:
        thirty_gangs(api, sizes, submit=submit, disturb=disturb, records=records, grace_s=GRACE_S, timeout_s=1200)
    finally:
        for timer in timers:
            timer.join(timeout=120)
        subprocess.run(["docker", "start", lost], check=False, capture_output=True)
        for size in sizes:
            lab.kubectl("-n", size.namespace, "delete", "job", size.name, "--ignore-not-found", "--wait=false")
        lab.kubectl("-n", "default", "delete", "pod", "intruder", "--ignore-not-found", "--wait=false")
        api.close()


def apply(lab: Any, objects: list[Json]) -> None:
    import yaml

    lab.kubectl("apply", "--server-side", "-f", "-", text="---\n".join(yaml.safe_dump(o) for o in objects))


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[tuple[apiserver.ControlPlane, Api]]:
    """Three fake nodes in two racks and two teams, as in the lab, with one replica of the extension."""
    if apiserver.missing():
        pytest.skip(str(apiserver.AT_HAND.kwargs["reason"]))
    with apiserver.control_plane(tmp_path / "plane", run_s=6.0) as plane:
        system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "myriad-system"}}
        places = {"gpu1": "r1", "gpu2": "r1", "gpu3": "r2"}
        plane.apply(
            [
                system,
                *(apiserver.fake_node(name, ("hall1", "b1", rack)) for name, rack in places.items()),
                *apiserver.queue_objects(gpus=16, team="vision", cohort="research"),
                *apiserver.queue_objects(gpus=8, team="speech", cohort="research")[2:],
                apiserver.check_object(),
            ]
        )
        plane.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=60s")
        port = apiserver._free_port()
        environment = {
            "PYTHONPATH": str(ROOT / "src"),
            "KUBECONFIG": str(plane.kubeconfig),
            "POD_NAME": "ext",
            "MYRIAD_SCHEDULER_PORT": str(port),
            "MYRIAD_SCHEDULER_AUTH": "off",
            "MYRIAD_SCHEDULER_DECISIONS": str(tmp_path / "decisions.jsonl"),
        }
        plane.start("ext", [sys.executable, "-m", "myriad.scheduler"], environment)
        api = connect(plane.kubeconfig)
        yield plane, api
        api.close()


def test_thirty_gangs_on_fake_nodes(fake: tuple[apiserver.ControlPlane, Api], seed: int, tmp_path: Path) -> None:
    plane, api = fake
    sizes = random_sizes(seed, ["vision", "speech"])
    timers = []

    def submit(all_sizes: list[Size]) -> None:
        plane.apply([bare_pod("intruder", "gpu1", gpus=3, seconds=0), *(sleeping_job(s, 0) for s in all_sizes)])
        timers.append(later(25, lambda: plane.kubectl("delete", "pod", "-n", "default", "intruder", "--wait=false")))

    def disturb() -> None:
        """The node is gone, and with it its pods; it comes back later."""
        api.delete(NODES, "gpu3")
        node = apiserver.fake_node("gpu3", ("hall1", "b1", "r2"))
        timers.append(later(45, lambda: plane.apply([node])))

    def records(size: Size) -> list[Json]:
        from myriad.scheduler.decisions import read_records

        time.sleep(0.1)
        found = [r.as_dict() for r in read_records(tmp_path / "decisions.jsonl")]
        return [r for r in found if (r["namespace"], r["name"]) == (size.namespace, size.name)]

    try:
        thirty_gangs(api, sizes, submit=submit, disturb=disturb, records=records, grace_s=GRACE_S, timeout_s=420)
    finally:
        for timer in timers:
            timer.join(timeout=60)
