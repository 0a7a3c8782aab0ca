"""The HTTP side and the record book."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from myriad.kube.kinds import PODS, WORKLOADS
from myriad.scheduler.decisions import DecisionLog
from myriad.scheduler.model import DecisionRecord
from myriad.scheduler.records import Copier, RecordBook, every
from myriad.scheduler.server import Parts, build_app
from myriad.scheduler.web.auth import AuthSettings, Gatekeeper


class State:
    def __init__(self) -> None:
        self.missing: list[str] = []
        self.faults: list[str] = []


class Http:
    """Asks the application without a network."""

    __test__ = False

    def __init__(self, app: Starlette) -> None:
        self._app = app

    def get(self, path: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://ext.test") as asking:
                return await asking.get(path)

        return asyncio.run(ask())


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def http(world: Any, state: State) -> Http:
    parts = Parts(
        api=world.api,
        cache=world.cache,
        decisions=world.book,
        metrics=world.metrics,
        gate=Gatekeeper(world.api, AuthSettings(mode="off"), namespaces=list),
        not_ready=lambda: state.missing,
        faults=lambda: state.faults,
        leader=lambda: ("ext-1", True),
    )
    return Http(build_app(parts))


def record(n: int, name: str = "a") -> DecisionRecord:
    return DecisionRecord(time=f"2026-01-01T00:00:{n:02d}Z", event="planned", uid="u", namespace="vision", name=name)


def test_readiness_and_health_say_what_is_missing(http: Http, state: State) -> None:
    assert http.get("/readyz").status_code == http.get("/healthz").status_code == 200
    state.missing, state.faults = ["workloads"], ["no pass has ended for 120 s"]
    assert http.get("/readyz").status_code == 503 and "workloads" in http.get("/readyz").text
    assert http.get("/healthz").status_code == 503
    assert "myriad_scheduler_cache_in_step 0.0" in http.get("/metrics").text


def test_status_queue_and_why(http: Http, world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("first", pods=4, assigned={f"n{i}": 1 for i in range(4)}, admitted=True))
    world.put(WORKLOADS, make.workload("a"))
    status = http.get("/v1/status").json()
    assert status["nodes_taking_work"] == 8 and status["gpus_used"] == 32 and status["jobs_waiting"] == 1
    assert status["extension"] == {
        "leader": "ext-1",
        "this_replica_leads": True,
        "shadow": False,
        "brake": True,
        "cache_behind": [],
        "ledger": {},
    }
    (queue,) = http.get("/v1/queue?team=vision").json()
    assert queue["waiting"][0]["reason"].startswith("waits for quota: needs 16")
    assert queue["running"][0]["job"] == "first" and queue["steered"] is True
    assert http.get("/v1/queue?team=nobody").json() == []
    answer = http.get("/v1/why/vision/a").json()
    assert answer["state"] == "quota" and "text" in answer
    missing = http.get("/v1/why/vision/nope")
    assert missing.status_code == 404 and "no job nope" in missing.json()["error"]


def test_decisions_by_job(http: Http, world: Any) -> None:
    world.book.append(record(1))
    world.book.append(record(2, "b"))
    assert [r["name"] for r in http.get("/v1/decisions?job=vision/a").json()] == ["a"]
    assert len(http.get("/v1/decisions?limit=1").json()) == 1
    assert http.get("/v1/decisions?job=/b").json()[0]["name"] == "b"
    assert http.get("/v1/decisions?limit=x").status_code == 400


def test_the_page_shows_what_waits_and_no_inline_script(http: Http, world: Any, make: Any) -> None:
    world.put(WORKLOADS, make.workload("<b>x</b>"))
    world.book.append(record(1))
    page = http.get("/")
    assert "&lt;b&gt;x&lt;/b&gt;" in page.text and "<b>x" not in page.text
    assert "<script>" not in page.text and "style=" not in page.text and " onclick" not in page.text
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert "Quotas" in page.text and "hall1/b1/r0" in http.get("/map").text


def test_an_empty_cluster_has_a_page_too(http: Http, world: Any) -> None:
    for kind in ("nodes", "clusterqueues", "workloads"):
        world.cache.replace(kind, [])
    assert "There is no GPU node" in http.get("/map").text and "Nothing waits" in http.get("/").text


def test_the_book_keeps_each_record_once_and_survives_a_restart(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "d.jsonl", fsync="never")
    book = RecordBook(log, kept=3)
    assert book.append(record(1)) and not book.append(record(1))
    for n in (2, 3, 4):
        book.append(record(n))
    assert [r.time[-3:-1] for r in book.newest(9)] == ["02", "03", "04"]
    log.close()
    again = DecisionLog(tmp_path / "d.jsonl", fsync="never")
    reopened = RecordBook(again, kept=10)
    assert len(reopened.newest(9)) == 4 and not reopened.append(record(2))
    again.close()


def test_the_tail_starts_anew_for_another_process(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "d.jsonl", fsync="never")
    book = RecordBook(log)
    for n in range(5):
        book.append(record(n))
    first = book.tail("", 0)
    assert len(first["records"]) == 5
    assert book.tail(first["epoch"], first["next"])["records"] == []
    book.append(record(9))
    assert [r["time"][-3:-1] for r in book.tail(first["epoch"], first["next"])["records"]] == ["09"]
    assert len(book.tail("another", 4)["records"]) == 6
    log.close()


def test_a_follower_copies_the_leaders_records(http: Http, world: Any, tmp_path: Path) -> None:
    world.api.put(PODS, {"metadata": {"name": "ext-1", "namespace": "ns"}, "status": {"podIP": "10.0.0.9"}})
    log = DecisionLog(tmp_path / "copy.jsonl", fsync="never")
    mine = RecordBook(log)
    calls: list[httpx.URL] = []

    def leader(request: httpx.Request) -> httpx.Response:
        calls.append(request.url)
        answer = http.get(request.url.raw_path.decode())
        return httpx.Response(answer.status_code, content=answer.content)

    copier = Copier(world.api, mine, namespace="ns", port=8088, transport=httpx.MockTransport(leader))
    world.book.append(record(1))
    world.book.append(record(2))
    assert copier.copy("ext-1") == 2 and copier.copy("ext-1") == 0
    assert calls[0].host == "10.0.0.9"
    world.book.append(record(3))
    assert copier.copy("ext-1") == 1
    assert len(log.read(namespace="vision")) == 3
    assert copier.copy("gone") == 0, "a leader whose pod is gone is asked later"
    log.close()


def test_every_is_true_once_an_interval() -> None:
    now = [0.0]
    due = every(2.0, lambda: now[0])
    assert due() and not due()
    now[0] = 2.0
    assert due() and not due()
