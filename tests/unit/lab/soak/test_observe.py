"""One look from end to end: the real client, a registry on loopback, a kubelet's account, the extension's books."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from myriad.errors import MyriadError
from myriad.kube.client import Api, ClusterUnreachableError
from myriad.lab.soak.observe import CHECKPOINT, Observer
from myriad.lab.soak.seen import Charge
from myriad.lab.state import LabPaths

Json = dict[str, Any]

OWNER = {"kind": "Job", "name": "gang", "uid": "j", "apiVersion": "batch/v1", "controller": True}
POD = {
    "metadata": {"name": "gang-0", "namespace": "vision", "uid": "p0", "ownerReferences": [OWNER]},
    "spec": {"nodeName": "gpu1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "4"}}}]},
    "status": {"phase": "Running"},
}
QUEUE = {
    "metadata": {"name": "vision-h100", "labels": {"myriad.dev/pool": "h100"}},
    "spec": {
        "resourceGroups": [{"flavors": [{"name": "h100"}]}],
        "admissionChecksStrategy": {"admissionChecks": [{"name": "myriad"}]},
    },
}
LEASE = {
    "metadata": {"name": "myriad-scheduler"},
    "spec": {"holderIdentity": "ext-1", "renewTime": "2026-11-30T12:00:05Z"},
}
DEPLOYMENT = {"metadata": {"name": "myriad-scheduler"}, "spec": {"replicas": 2}, "status": {"readyReplicas": 2}}


class Cluster:
    """Answers by path."""

    def __init__(self) -> None:
        self.is_away = False
        self.queues = [QUEUE, {"metadata": {"name": "of-others"}, "spec": {}}]
        self.deployment: Json = DEPLOYMENT
        self.check: Json = {"metadata": {"name": "myriad"}}
        self.asked: list[str] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        if self.is_away:
            raise httpx.ConnectError("refused", request=request)
        path = request.url.path
        self.asked.append(path)
        lists: dict[str, list[Json]] = {
            "nodes": [{"metadata": {"name": "gpu1"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}],
            "pods": [POD], "workloads": [], "clusterqueues": self.queues,
        }  # fmt: skip
        last = path.rpartition("/")[2]
        if "/proxy/v1/decisions" in path:
            assert dict(request.url.params) == {"job": "vision/gang", "since": "2026-11-30T12:00:00Z"}
            return httpx.Response(200, content=json.dumps(
                [{"event": "planned", "assigned": {}}, {"event": "assigned", "assigned": {"gpu1": 1, "gpu2": 1}}]
            ))  # fmt: skip
        if last in lists:
            return httpx.Response(200, json={"items": lists[last], "metadata": {}})
        if "/admissionchecks/" in path:
            return httpx.Response(200, json=self.check)
        return httpx.Response(200, json=LEASE if "/leases/" in path else self.deployment)


class Machines:
    """The nodes' engine."""

    def started(self) -> dict[str, float]:
        return {"gpu1": 5.0, "cp1": 1.0}

    def read(self, node: str, path: str) -> str:
        assert path == CHECKPOINT
        if node != "gpu1":
            return ""
        entry = {"PodUID": "p0", "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"0": ["GPU-0"]}}
        return json.dumps({"Data": {"PodDeviceEntries": [entry]}})


@pytest.fixture
def registry() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/v2/" else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def observer(cluster: Cluster, registry: str, folder: Path) -> Observer:
    api = Api("http://api", transport=httpx.MockTransport(cluster.answer))
    return Observer(api, Machines(), {"gpu1": 8, "gpu2": 8}, registry=registry, paths=LabPaths(folder))  # type: ignore[arg-type]


def test_a_look_has_everything_and_asks_for_each_kind_once(cluster: Cluster, registry: str, tmp_path: Path) -> None:
    before = time.time()
    look = observer(cluster, registry, tmp_path).look(with_devices=True)
    assert before <= look.at <= look.nodes_read <= look.ended <= time.time()
    assert look.nodes["gpu1"].gpus == 8 and look.nodes["gpu1"].started == 5.0
    assert [(pod.job, pod.node, pod.gpus) for pod in look.pods] == [("vision/gang", "gpu1", 4)]
    assert (look.leader, look.renewed, look.is_extension_ready) == ("ext-1", 1796040005.0, True)
    assert look.unsteered == () and look.has_registry
    assert look.devices == {"gpu1": {"GPU-0": {"p0"}}}, "a node that does not run has none"
    assert len(cluster.asked) == len(set(cluster.asked)) == 7 and cluster.asked[0].endswith("/nodes")


def test_what_is_missing_is_seen(cluster: Cluster, registry: str, tmp_path: Path) -> None:
    cluster.queues = [{**QUEUE, "spec": {**QUEUE["spec"], "admissionChecksStrategy": {}}}]
    cluster.deployment = {**DEPLOYMENT, "status": {"readyReplicas": 1}}
    at_rest = observer(cluster, "http://127.0.0.1:9", tmp_path).look(with_devices=False)
    assert at_rest.unsteered == (), "a queue asks where a gang waits"
    cluster.check = {"metadata": {"name": "myriad", "annotations": {"myriad.dev/detached-at": "2026-11-30T12:00:00Z"}}}
    look = observer(cluster, "http://127.0.0.1:9", tmp_path).look(with_devices=False)
    assert look.unsteered == ("vision-h100",) and not look.is_extension_ready and not look.has_registry
    assert look.devices == {}


def test_no_answer_is_no_look(cluster: Cluster, registry: str, tmp_path: Path) -> None:
    cluster.is_away = True
    with pytest.raises(ClusterUnreachableError):
        observer(cluster, registry, tmp_path).look(with_devices=True)


def test_the_books_are_read_where_the_leader_keeps_them(cluster: Cluster, registry: str, tmp_path: Path) -> None:
    kubectl = tmp_path / ".lab" / "bin" / "kubectl"
    kubectl.parent.mkdir(parents=True)
    kubectl.write_text(
        '#!/bin/sh\necho "$*" > $KUBECACHEDIR.asked\necho \'[["w", 10, null, 8.0, null], ["v", 5, 9, 2, "event"]]\'\n'
    )
    kubectl.chmod(0o755)
    eyes = observer(cluster, registry, tmp_path)
    assert eyes.charges() == [Charge("w", 10, None, 8.0, ""), Charge("v", 5, 9, 2.0, "event")]
    assert "-n myriad-system exec ext-1 -- python3 -c" in (tmp_path / ".lab" / "kube-cache.asked").read_text()
    kubectl.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(MyriadError, match="ledger cannot be read"):
        eyes.charges()
    assert eyes.assigned("vision/gang", since="2026-11-30T12:00:00Z") == {"gpu1", "gpu2"}
