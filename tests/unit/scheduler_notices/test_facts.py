"""Evictions as Kueue words them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from myriad.scheduler.notices.facts import Eviction, Party, cause_of, classify, record_id, stop_of


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("InClusterQueue", "prioritization in the ClusterQueue"),
        ("InCohortReclamation", "reclamation within the cohort"),
        ("InCohortFairSharing", "Fair Sharing within the cohort"),
        ("InCohortReclaimWhileBorrowing", "reclamation within the cohort while borrowing"),
    ],
)
def test_kueues_words_are_read(make: Any, policy: str, why: str) -> None:
    cause = cause_of(make.workload("clip", conditions=make.preempted(policy, why)))
    assert cause is not None and cause.is_preemption and not cause.past
    assert (cause.policy, cause.preemptor_uid, cause.preemptor_job_uid) == (policy, "uid-asr-prod", "job-uid-asr-prod")
    assert (cause.preemptor_queue, cause.victim_queue) == ("speech-h100", "vision-h100")
    # After the job was admitted again only the words are left.
    message = "Previously: " + make.message.format(why=why)
    later = {"Evicted": ("False", "QuotaReserved", message), "Preempted": ("False", "QuotaReserved", message)}
    past = cause_of(make.workload("clip", conditions=later))
    assert past is not None and past.past and past.policy == policy and past.reason == "Preempted"


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Preempted to accommodate a workload (UID: UNKNOWN, JobUID: UNKNOWN) due to UNKNOWN; preemptor path: UNKNOWN",
        "Preempted to accommodate a workload (UID: u-1, JobUID: UNKNOWN)",
        "Preempted to accommodate a higher priority Workload",
        "\u2603" * 400,
    ],
)
def test_words_of_another_version_are_no_error(make: Any, message: str) -> None:
    conditions = {"Evicted": ("True", "Preempted", message), "Preempted": ("True", "InCohort", message)}
    cause = cause_of(make.workload("clip", conditions=conditions))
    assert cause is not None and cause.is_preemption and cause.preemptor_uid in ("", "u-1")


def test_what_was_never_evicted_has_no_cause(make: Any) -> None:
    assert cause_of(make.workload("clip")) is None
    assert cause_of({"metadata": {"name": "x"}, "spec": {}}) is None
    assert cause_of(make.workload("clip", conditions={"Evicted": ("False", "QuotaReserved", "")})) is None


def test_an_old_preemption_does_not_colour_another_eviction(make: Any) -> None:
    conditions = {**make.preempted(), "Evicted": ("True", "PodsReadyTimeout", "Exceeded the PodsReady timeout")}
    cause = cause_of(make.workload("clip", conditions=conditions))
    assert cause is not None and not cause.is_preemption and cause.reason == "PodsReadyTimeout"


def test_the_name_of_an_eviction_is_a_key_of_a_config_map(make: Any) -> None:
    body = make.workload("clip", conditions=make.preempted())
    cause = cause_of(body)
    assert cause is not None and record_id(body, cause) == "uid-clip.20261130T145931Z"


def test_the_kill_time_is_that_of_the_pods(make: Any) -> None:
    evicted = make.now
    told = [make.pod("a", "clip", grace_s=300, deleted_at=evicted + timedelta(seconds=1))]
    not_told = [make.pod("b", "clip", grace_s=600)]
    stop = stop_of(told, evicted)
    assert stop.exact and stop.sigterm_at == evicted + timedelta(seconds=1)
    assert stop.kill_at == evicted + timedelta(seconds=301)
    assert not stop_of(told + not_told, evicted).exact
    expected = stop_of(not_told, evicted)
    assert not expected.exact and expected.kill_at == evicted + timedelta(seconds=600)
    assert stop_of([make.pod("c", "clip", phase="Succeeded")], evicted).pods == 0


def test_an_eviction_survives_its_way_through_json() -> None:
    e = Eviction(
        "id", "2026-11-30T14:59:30Z", "Preempted", Party("vision", "clip", gpus=8), preemptor=Party("s", "a"),
        nodes=("g1",), at_risk_s=90.0, targets=("oncall",), eta_s=3.0,
    )  # fmt: skip
    body = e.as_dict()
    assert Eviction.from_dict({**body, "of_a_newer_version": 1}) == e and body["at_risk_gpu_h"] == 0.2


def test_d19_an_eviction_is_told_by_the_workload_not_by_its_pods(make: Any) -> None:
    body = make.workload("clip", conditions=make.preempted())
    assert classify(body, [make.pod("a", "clip", phase="Failed", exit_code=137)]).kind == "preempted"
    timeout = {"Evicted": ("True", "PodsReadyTimeout", "")}
    assert classify(make.workload("clip", conditions=timeout)).kind == "evicted"
    assert classify(make.workload("clip", conditions={"Finished": ("True", "Failed", "x")})).kind == "failed"
    assert classify(make.workload("clip")).kind == "running"


def test_d20_a_pod_that_failed_while_it_was_evicted_fails_no_job(make: Any) -> None:
    failed = [make.pod("a", "clip", phase="Failed", exit_code=143, deleted_at=make.now)]
    assert classify(make.workload("clip", conditions=make.preempted()), failed).kind == "preempted"


def test_d21_evicted_and_exit_0_is_no_success(make: Any) -> None:
    zero = [make.pod("a", "clip", phase="Succeeded", exit_code=0, deleted_at=make.now)]
    outcome = classify(make.workload("clip", conditions=make.preempted()), zero)
    assert outcome.kind == "preempted" and outcome.exit_zero == ("a",)
    assert "exited 0 after SIGTERM" in outcome.sentence and "143" in outcome.sentence
    # A pod that had ended before anybody told it to is work done.
    done = [make.pod("a", "clip", phase="Succeeded", exit_code=0)]
    assert classify(make.workload("clip", conditions=make.preempted()), done).exit_zero == ()
