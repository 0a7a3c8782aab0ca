"""`myriad queue`, `quota` and `fit`: what they print, and with fewer rights."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from myriad.cli import _cluster, fit, queue, quota
from myriad.errors import MyriadError
from myriad.kube.client import ApiError
from myriad.kube.kinds import NAMESPACES, WORKLOADS, Resource


@pytest.fixture
def app(world: Any, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    made = typer.Typer()
    for verb in (queue, quota, fit):
        verb.register(made)

    def get_raw(path: str, **_: Any) -> Any:
        raise ApiError(404, "NotFound", "the server could not find it", where=path)

    world.api.get_raw = get_raw
    # Nobody answers for the extension here, so nobody has to be told who asks.
    monkeypatch.setattr(_cluster, "extension_headers", lambda *_: None)
    monkeypatch.setattr(_cluster, "connect", lambda *_, **__: world.api)
    monkeypatch.setattr(queue, "own_namespace", lambda *_: "vision")
    return made


def call(app: typer.Typer, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "220"})
    if isinstance(result.exception, MyriadError):
        return result.exception.exit_code, str(result.exception)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def busy(world: Any, make: Any) -> None:
    nodes = {f"n{i}": 1 for i in range(4)}
    limit = {"maximumExecutionTimeSeconds": 10**9}
    world.api.put(WORKLOADS, make.workload("first", pods=4, assigned=nodes, admitted=True, **limit))
    refused = {"QuotaReserved": ("False", "16 more needed")}
    world.api.put(WORKLOADS, make.workload("second", conditions=refused))


def only_own_namespace(world: Any, monkeypatch: pytest.MonkeyPatch, *, places: bool) -> None:
    """The rights of a team's member: nothing of the cluster, everything of the namespace."""
    whole = world.api.list

    def listing(resource: Resource, *, namespace: str | None = None, **more: Any) -> Any:
        if namespace is None or not resource.namespaced or resource is NAMESPACES:
            raise ApiError(403, "Forbidden", "no", where=resource.plural)
        return whole(resource, namespace=namespace, **more)

    monkeypatch.setattr(world.api, "list", listing)
    if places:
        items = [{"metadata": {"name": "job-second", "namespace": "vision"}, "positionInClusterQueue": 6}]
        world.api.get_raw = lambda path, **_: {"items": items} if "/localqueues/h100/" in path else {}


def test_queue_shows_time_and_what_it_rests_on(app: typer.Typer, world: Any, make: Any) -> None:
    busy(world, make)
    code, text = call(app, "queue", "vision")
    assert code == 0 and "starts in" in text and "vision/second" in text
    assert "estimates are not judged yet; 1 running jobs, 1 with a time limit" in text
    code, text = call(app, "queue", "--json")
    (row,) = json.loads(text)[0]["waiting"]
    assert row["evaluation"]["kind"] == "refused" and row["ahead"]["jobs"] == 0 and row["eta"] is not None


def test_queue_of_a_plain_user_says_what_is_not_seen(
    app: typer.Typer, world: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(world, make)
    only_own_namespace(world, monkeypatch, places=False)
    code, text = call(app, "queue")
    assert code == 0 and "vision/second" in text and "visibility API does not answer them" in text
    only_own_namespace(world, monkeypatch, places=True)
    code, text = call(app, "queue", "--json")
    assert code == 0 and json.loads(text)[0]["waiting"][0]["position"] == 7


def test_quota_prints_a_table_and_the_pool(app: typer.Typer, world: Any, make: Any) -> None:
    busy(world, make)
    code, text = call(app, "quota")
    assert code == 0 and "pool h100: 64 GPUs on 8 nodes, 64 allocatable" in text
    assert next(line.split() for line in text.splitlines() if line.startswith("vision")) == [
        "vision", "h100", "32", "32", "0", "0", "0", "16",
    ]  # fmt: skip
    code, text = call(app, "quota", "visoin")
    assert code == 1 and "there are vision" in text


def test_fit_exit_codes_tell_now_later_and_never(app: typer.Typer, world: Any, make: Any) -> None:
    busy(world, make)
    assert call(app, "fit", "--nodes", "4", "--gpus", "8")[0] == 0
    code, text = call(app, "fit", "--nodes", "6", "--gpus", "8", "--team", "vision")
    assert code == 4 and "can never hold 48 GPUs" in text and "if vision/first (32 GPUs) left" in text
    assert call(app, "fit", "--nodes", "1", "--gpus", "16")[0] == 1
    code, text = call(app, "fit")
    assert code == 0 and "32 of 64 GPUs free, 0 of them stranded" in text and "4 whole nodes, 32 GPUs" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--nodes", "4"), "--nodes and --gpus go together"),
        (("--team", "vision"), "--team needs a gang"),
        (("--pool", "b200"), 'no pool is called "b200"'),
    ],
)
def test_fit_refuses_half_a_question(app: typer.Typer, world: Any, arguments: tuple[str, ...], words: str) -> None:
    code, text = call(app, "fit", *arguments)
    assert code == 1 and words in text


def test_fit_without_rights_on_nodes_says_so(
    app: typer.Typer, world: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_own_namespace(world, monkeypatch, places=False)
    code, text = call(app, "fit")
    assert code == 1 and "may not read all nodes and pods" in text
