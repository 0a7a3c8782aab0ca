"""What `myriad preemptions` answers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner

from myriad.cli import _cluster, build_app
from myriad.errors import InputError, MyriadError
from myriad.kube.client import ApiError
from myriad.kube.kinds import WORKLOADS
from myriad.scheduler.notices.book import Book
from myriad.scheduler.notices.facts import Eviction, Party
from myriad.scheduler.notices.report import chosen, read_all, report, since_when

NOW = datetime(2026, 11, 30, 15, 0, tzinfo=UTC)


def eviction(job: str, at: str, namespace: str = "vision", preemptor: str = "asr") -> Eviction:
    return Eviction(
        f"u-{job}.{at}", at, "Preempted", Party(namespace, job, namespace, uid=f"u-{job}", gpus=8),
        policy="InCohortReclamation", preemptor=Party("speech", preemptor, "speech", uid=f"u-{preemptor}"),
        at_risk_s=900,
    )  # fmt: skip


def test_times_in_the_forms_that_people_type() -> None:
    assert since_when("", NOW) is None
    assert since_when("24h", NOW) == datetime(2026, 11, 29, 15, 0, tzinfo=UTC)
    assert since_when("7d", NOW) == datetime(2026, 11, 23, 15, 0, tzinfo=UTC)
    assert since_when("2026-11-30", NOW) == datetime(2026, 11, 30, tzinfo=UTC)
    assert since_when("2026-11-30T14:00:00Z", NOW) == datetime(2026, 11, 30, 14, 0, tzinfo=UTC)
    for text in ("yesterday", "2026-13-40", "-3h", "0"):
        with pytest.raises(InputError):
            since_when(text, NOW)


def test_a_job_is_found_as_victim_and_as_preemptor() -> None:
    known = [eviction("clip", "2026-11-30T10:00:00Z"), eviction("bert", "2026-11-30T14:00:00Z", "nlp")]
    assert [e.victim.job for e in chosen(known, job="clip")] == ["clip"]
    assert len(chosen(known, job="asr", namespace="speech")) == 2 and not chosen(known, job="asr", namespace="nlp")
    assert [e.victim.job for e in chosen(known, namespace="nlp")] == ["bert"]
    assert [e.victim.job for e in chosen(known, since=since_when("2h", NOW))] == ["bert"]


def test_what_is_no_record_is_passed_over() -> None:
    assert read_all([{}, {"id": "x"}, eviction("clip", "2026-11-30T10:00:00Z").as_dict()])[0].victim.job == "clip"


def test_the_report_adds_up() -> None:
    known = [eviction("clip", f"2026-11-30T14:{m}:00Z") for m in ("35", "45", "55")]
    body = report(known, now=NOW)
    assert body["pairs"][0]["times"] == 3 and body["at_risk_gpu_h"] == 6.0 and len(body["loops"]) == 1
    json.dumps(body)


class Reached:
    """A cluster whose extension does not answer, seen with some rights."""

    def __init__(self, api: Any, *, may_read_records: bool) -> None:
        self.api = api
        self.may = may_read_records
        self.base_url = "https://test"

    def get_raw(self, path: str, **_: Any) -> Any:
        if "proxy" in path:
            raise MyriadError("no endpoints")
        return {}

    def list(self, resource: Any, **options: Any) -> Any:
        if resource.plural == "configmaps" and not self.may:
            raise ApiError(403, "Forbidden", "no", where="test")
        return self.api.list(resource, **{k: v for k, v in options.items() if v is not None})


def run(monkeypatch: pytest.MonkeyPatch, reached: Reached, *arguments: str) -> Any:
    monkeypatch.setattr(_cluster, "reach", lambda kubeconfig: reached)
    monkeypatch.setattr(_cluster, "extension_headers", lambda api: None)
    monkeypatch.setattr(_cluster, "ask_extension", lambda *_, **__: None)
    return CliRunner().invoke(build_app("preemptions"), ["preemptions", *arguments])


def test_the_verb_reads_the_records_where_the_extension_is_down(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    e = eviction("clip", "2026-11-30T10:00:00Z")
    Book(world.api).append(e.id, "eviction", e.as_dict())
    reached = Reached(world.api, may_read_records=True)
    answer = run(monkeypatch, reached, "vision/clip")
    assert answer.exit_code == 0 and "speech/asr" in answer.output and "InCohortReclamation" in answer.output
    document = json.loads(run(monkeypatch, reached, "--json").output)
    assert document["source"] == "records" and document["evictions"][0]["victim"]["job"] == "clip"
    unknown = run(monkeypatch, reached, "nobody")
    assert isinstance(unknown.exception, InputError)


def test_a_plain_user_sees_what_the_workloads_say(world: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put(WORKLOADS, make.workload("clip", conditions=make.preempted()))
    world.put(WORKLOADS, make.workload("calm"))
    reached = Reached(world.api, may_read_records=False)
    answer = run(monkeypatch, reached, "-n", "vision")
    assert answer.exit_code == 0 and "vision/clip" in answer.output and "what the Workloads still say" in answer.output
    assert "calm was not evicted" in run(monkeypatch, reached, "calm", "-n", "vision").output
