"""The burn-in's Job on a real API server with scheduler and Kueue: one pod on each node of a rack that is not open yet.

Needs the programs of `apiserver.py`, no lab.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import apiserver
import pytest

from myriad.burnin import run as running
from myriad.burnin.job import LABEL, NAMESPACE, Settings
from myriad.kube.client import connect
from myriad.kube.kinds import JOBS, NODES, PODS, SERVICES, WORKLOADS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    apiserver.AT_HAND,
]
GATE = {"key": "myriad.dev/gpu-not-ready", "effect": "NoSchedule"}


def test_closed_nodes_get_one_pod_each_beside_kueue(tmp_path: Path) -> None:
    with (
        apiserver.control_plane(tmp_path / "plane", run_s=2.0) as plane,
        closing(connect(plane.kubeconfig, in_cluster=False)) as api,
    ):
        plane.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
        names = ["gpu1", "gpu2", "gpu3"]
        plane.apply([apiserver.fake_node(name, ("hall1", "b1", "r1")) for name in names])
        for name in names:
            api.patch(NODES, name, {"spec": {"taints": [GATE]}})
        stood: dict[str, str] = {}
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.2):
                for pod in api.list(PODS, namespace=NAMESPACE, labels=LABEL)[0]:
                    if pod["spec"].get("nodeName"):
                        stood[pod["metadata"]["name"]] = pod["spec"]["nodeName"]

        looking = threading.Thread(target=watch, daemon=True)
        looking.start()
        said: list[str] = []
        try:
            deadline = time.monotonic() + 60
            while running.absent(api, names):
                assert time.monotonic() < deadline, running.absent(api, names)
                time.sleep(0.5)
            # The fake kubelets let pods end well and say nothing: what is shown is where the pods stand.
            assert running.measure(api, names[:2], Settings(image="registry.invalid/gang-check:1"), said.append) == []
        finally:
            ended.set()
            looking.join(timeout=10)
        assert sorted(stood.values()) == ["gpu1", "gpu2"], stood
        assert said and said[-1].endswith("of 2 pods run")
        workloads: list[Any] = api.list(WORKLOADS, namespace=NAMESPACE)[0]
        assert workloads == [], "Kueue manages the burn-in"
        assert api.list(JOBS, namespace=NAMESPACE)[0] == [] and api.list(SERVICES, namespace=NAMESPACE)[0] == []
