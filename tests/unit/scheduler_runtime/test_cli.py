"""The verbs: sentences, tables, JSON and exit codes, against a cluster in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from myriad.cli import _cluster, decisions, queue, status, why
from myriad.errors import MyriadError
from myriad.kube.client import ApiError
from myriad.kube.kinds import JOBS, NAMESPACES, NODES, WORKLOADS


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    for verb in (why, queue, status, decisions):
        verb.register(made)
    return made


@pytest.fixture
def extension(world: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the extension answers by path; nothing = it does not answer."""
    answers: dict[str, Any] = {}

    def get_raw(path: str, *, params: Any = None, headers: Any = None) -> Any:
        if path.startswith(_cluster.SERVICE):
            assert headers == {"X-Myriad-Token": "made-for-the-page"}, "the extension is shown who asks"
        for end, answer in answers.items():
            if path.endswith(end):
                return answer
        raise ApiError(503, "ServiceUnavailable", "no endpoints available", where=path)

    answers["/version"] = {}
    world.api.get_raw = get_raw
    token = {"status": {"token": "made-for-the-page"}}
    world.api.create = lambda resource, *_, **__: token if resource.kind == "TokenRequest" else None
    monkeypatch.setattr(_cluster, "connect", lambda *_, **__: world.api)
    return answers


def call(app: typer.Typer, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    if isinstance(result.exception, MyriadError):
        return result.exception.exit_code, str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_why_searches_the_teams_and_works_without_the_extension(
    app: typer.Typer, extension: Any, world: Any, make: Any
) -> None:
    world.api.put(WORKLOADS, make.workload("first", pods=4, assigned={f"n{i}": 1 for i in range(4)}, admitted=True))
    world.api.put(WORKLOADS, make.workload("a"))
    code, text = call(app, "why", "a")
    assert code == 0 and "waits for quota: needs 16" in text and "the extension does not answer" in text
    extension["/v1/decisions"] = [{"time": "t", "event": "steered", "name": "a", "reason": "16 GPUs in hall1/b1/r1"}]
    code, text = call(app, "why", "vision/a")
    assert code == 0 and "steered at t: 16 GPUs in hall1/b1/r1" in text and "does not answer" not in text
    code, text = call(app, "why", "a", "--json")
    document = json.loads(text)
    assert document["state"] == "quota" and document["extension_answers"] is True


def test_why_says_what_is_wrong_with_the_name(app: typer.Typer, extension: Any, world: Any, make: Any) -> None:
    assert call(app, "why", "nope")[0] == 1
    assert "no team has a job nope; looked in vision" in call(app, "why", "nope")[1]
    assert "there is no job nope in namespace vision" in call(app, "why", "nope", "-n", "vision")[1]
    assert "give the namespace once" in call(app, "why", "x/nope", "-n", "vision")[1]
    world.api.put(NAMESPACES, {"metadata": {"name": "speech", "labels": {"myriad.dev/team": "speech"}}})
    world.api.put(WORKLOADS, make.workload("a"))
    twin = make.workload("a")
    twin["metadata"]["namespace"] = "speech"
    world.api.put(WORKLOADS, twin)
    assert "in 2 namespaces: speech, vision" in call(app, "why", "a")[1]


def test_why_finds_a_job_without_a_workload(app: typer.Typer, extension: Any, world: Any) -> None:
    job = {"metadata": {"name": "lost", "namespace": "vision", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}}
    world.api.put(JOBS, job)
    code, text = call(app, "why", "lost")
    assert code == 0 and "names no queue" in text


def test_queue_shows_order_and_reasons(app: typer.Typer, extension: Any, world: Any, make: Any) -> None:
    world.api.put(WORKLOADS, make.workload("first", pods=4, assigned={f"n{i}": 1 for i in range(4)}, admitted=True))
    world.api.put(WORKLOADS, make.workload("a"))
    code, text = call(app, "queue")
    assert code == 0 and "32 of 32 GPUs in use" in text and "vision/a" in text and "waits for quota" in text
    code, text = call(app, "queue", "vision", "--json")
    assert json.loads(text)[0]["waiting"][0]["job"] == "a"
    code, text = call(app, "queue", "nobody")
    assert code == 1 and "there are vision" in text


def test_status_ends_with_4_where_a_node_takes_no_work(app: typer.Typer, extension: Any, world: Any, make: Any) -> None:
    extension["/v1/status"] = {"extension": {"leader": "ext-1", "this_replica_leads": True, "cache_behind": []}}
    code, text = call(app, "status")
    assert code == 0 and "8 of 8 nodes take work" in text and "led by ext-1" in text and "brake" not in text
    extension["/v1/status"]["extension"]["brake"] = False
    assert "brake         the extension's brake is off (MYRIAD_SCHEDULER_BRAKE=false)" in call(app, "status")[1]
    body = make.node("n0")
    body["spec"] = {"unschedulable": True}
    world.api.put(NODES, body)
    code, text = call(app, "status")
    assert code == 4 and "cordoned (kubectl uncordon n0)" in text
    code, text = call(app, "status", "--json")
    assert code == 4 and json.loads(text)["nodes_taking_work"] == 7


def test_decisions_tells_an_extension_that_is_down_from_a_job_unknown(app: typer.Typer, extension: Any) -> None:
    code, text = call(app, "decisions", "a")
    assert code == 2 and "the extension does not answer" in text
    extension["/v1/decisions"] = []
    assert call(app, "decisions", "a")[0] == 1
    record = {
        "time": "t",
        "event": "assigned",
        "namespace": "vision",
        "name": "a",
        "assigned": {"n0": 1},
        "agree": True,
    }
    extension["/v1/decisions"] = [record]
    code, text = call(app, "decisions", "vision/a")
    assert code == 0 and "as planned" in text and "n0" in text
    assert json.loads(call(app, "decisions", "a", "--json")[1]) == [record]


def test_without_kueue_the_sentence_says_so(
    app: typer.Typer, extension: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = world.api.list

    def without(resource: Any, **more: Any) -> Any:
        if resource is WORKLOADS:
            raise ApiError(404, "NotFound", "the server could not find the requested resource", where="test")
        return real(resource, **more)

    world.api.base_url = "https://k8s.test"
    monkeypatch.setattr(world.api, "list", without)
    code, text = call(app, "queue")
    assert code == 2 and "Kueue is not installed" in text
