"""What the harness writes into a cluster, by the real client against an API server of a few lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from myriad.kube.client import Api, ApiError, ClusterUnreachableError
from myriad.lab.jobs import EXAMPLES, read_example
from myriad.lab.soak import load
from myriad.lab.soak.invariants import Planted
from myriad.lab.soak.plan import Gang

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[4]
GANG = Gang("soak-7-0", "speech", 0.0, 3, 5, 20)
THEIRS = {"key": "theirs", "value": "x", "effect": "NoSchedule"}


class Server:
    """Nodes and jobs; merge patches, resourceVersions and errors that were asked for."""

    def __init__(self) -> None:
        self.nodes: dict[str, Json] = {
            name: {
                "metadata": {"name": name, "resourceVersion": "1", "labels": {"a": "b"}},
                "spec": {"taints": [THEIRS]},
            }
            for name in ("gpu1", "gpu2")
        }
        self.jobs: dict[str, Json] = {}
        self.errors: list[int] = []
        self.conflicts = 0
        self.calls = 0

    def api(self) -> Api:
        return Api("http://api", transport=httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.calls += 1
        if self.errors:
            status = self.errors.pop(0)
            return httpx.Response(status, json={"reason": "Planned", "message": "as planned"})
        parts = request.url.path.strip("/").split("/")
        if "jobs" in parts:
            return self._job(request, parts)
        if "pods" in parts:
            return httpx.Response(200, json={"items": [], "metadata": {}})
        if parts[-1] == "nodes":
            return httpx.Response(200, json={"items": list(self.nodes.values()), "metadata": {}})
        return self._node(request, parts[-1])

    def _job(self, request: httpx.Request, parts: list[str]) -> httpx.Response:
        if request.method == "POST":
            job = json.loads(request.content)
            name = job["metadata"]["name"]
            if name in self.jobs:
                return httpx.Response(409, json={"reason": "AlreadyExists", "message": "it is there"})
            self.jobs[name] = job
            return httpx.Response(201, json=job)
        if request.method == "DELETE":
            self.jobs.pop(parts[-1], None)
            return httpx.Response(200, json={})
        assert request.url.params["labelSelector"] == load.JOB_LABEL
        return httpx.Response(200, json={"items": list(self.jobs.values()), "metadata": {}})

    def _node(self, request: httpx.Request, name: str) -> httpx.Response:
        node = self.nodes[name]
        if request.method == "GET":
            return httpx.Response(200, json=node)
        assert request.headers["Content-Type"] == "application/merge-patch+json"
        body = json.loads(request.content)
        version = body.get("metadata", {}).pop("resourceVersion", None)
        if version is not None and (version != node["metadata"]["resourceVersion"] or self.conflicts):
            self.conflicts -= 1
            return httpx.Response(409, json={"reason": "Conflict", "message": "somebody was faster"})
        _merge(node, body)
        node["metadata"]["resourceVersion"] = str(int(node["metadata"]["resourceVersion"]) + 1)
        return httpx.Response(200, json=node)


def _merge(target: Json, patch: Json) -> None:
    """RFC 7386."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load.time, "sleep", lambda seconds: None)


def test_a_gang_is_the_project_s_own_example_with_its_size_and_its_length() -> None:
    example = read_example(ROOT / EXAMPLES[0]).job
    before = json.dumps(example)
    job = load.job_of(GANG, example)
    assert json.dumps(example) == before, "the example is not changed"
    assert (job["metadata"]["name"], job["metadata"]["namespace"]) == ("soak-7-0", "speech")
    assert (
        job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "h100" and load.JOB_LABEL in job["metadata"]["labels"]
    )
    assert job["spec"]["parallelism"] == job["spec"]["completions"] == 3 and job["spec"]["suspend"] is True
    pod = job["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == load.GRACE_S and len(pod["tolerations"]) == 2
    (container,) = pod["containers"]
    assert container["image"].startswith("registry.myriad.internal/myriad/gang-check:")
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 5 and "time.sleep(20)" in container["command"][-1]


def test_a_gang_is_submitted_once_however_often_the_server_is_away() -> None:
    server = Server()
    server.errors = [500, 503, 403, 404]
    gangs = load.Gangs(server.api(), read_example(ROOT / EXAMPLES[0]).job)
    gangs.submit(GANG)
    gangs.submit(GANG)
    assert list(server.jobs) == ["soak-7-0"]
    server.jobs["soak-7-0"]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert gangs.ends() == {"speech/soak-7-0": "Complete"}
    server.errors = [500]
    gangs.remove()
    assert server.jobs == {}


def test_what_is_wrong_in_itself_is_not_tried_again_and_the_rest_not_for_ever() -> None:
    server = Server()
    server.errors = [422] * 9
    with pytest.raises(ApiError):
        load.persistently(lambda: server.api().get_raw("/version"))
    assert server.calls == 1

    def away() -> None:
        raise ClusterUnreachableError("no answer")

    with pytest.raises(ClusterUnreachableError):
        load.persistently(away, timeout_s=0.0)
    with pytest.raises(ClusterUnreachableError):
        load.persistently(away, is_over=lambda: True)


def test_marks_are_set_beside_those_of_others_and_taken_back_alone() -> None:
    server, planted = Server(), list[Planted]()
    before = json.loads(json.dumps(server.nodes["gpu1"]))
    foreign = load.Foreign(server.api(), planted)
    server.conflicts = 2
    foreign.mark("gpu1")
    assert server.nodes["gpu1"]["spec"]["taints"] == [THEIRS, load.TAINT]
    assert server.nodes["gpu1"]["metadata"]["labels"] == {"a": "b", load.FOREIGN: "keep"}
    assert [(one.what, one.value, one.until) for one in planted] == [
        ("taint", "example.com/soak=keep:PreferNoSchedule", None), ("label", "example.com/soak=keep", None),
    ]  # fmt: skip
    foreign.sweep()
    assert all(one.until is not None for one in planted)
    after = server.nodes["gpu1"]
    assert after["spec"] == before["spec"] and after["metadata"]["labels"] == {"a": "b"}
    assert server.nodes["gpu2"]["metadata"]["resourceVersion"] == "1", "what has no mark is not touched"


def test_a_cordon_is_taken_back_by_its_soak_and_by_the_next_one_and_no_other_is() -> None:
    server, planted = Server(), list[Planted]()
    foreign = load.Foreign(server.api(), planted)
    foreign.cordon("gpu1")
    assert server.nodes["gpu1"]["spec"]["unschedulable"] is True and planted[0].until is None
    foreign.uncordon("gpu1")
    assert "unschedulable" not in server.nodes["gpu1"]["spec"] and planted[0].until is not None
    assert load.FOREIGN not in server.nodes["gpu1"]["metadata"]["annotations"]
    foreign.cordon("gpu1")
    server.nodes["gpu2"]["spec"]["unschedulable"] = True
    load.Foreign(server.api(), []).sweep()
    assert "unschedulable" not in server.nodes["gpu1"]["spec"], "that of a soak that was killed"
    assert server.nodes["gpu2"]["spec"]["unschedulable"] is True, "somebody else's"
