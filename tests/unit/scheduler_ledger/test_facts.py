"""What a Workload says about GPU-hours."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from workloads import T0, at, workload

from myriad.scheduler.ledger.facts import Admission, Ending, Places, from_json, read, removed, seconds, share, to_json

PLACES = Places(
    team_of=lambda namespace: namespace if namespace == "vision" else "",
    queue_of=lambda queue: ("speech", "h100") if queue == "speech-h100" else ("", ""),
)


def test_a_job_that_waits_costs_nothing() -> None:
    assert read(workload(), PLACES) == []
    assert read(workload(left=5), PLACES)[0].started_at is None


def test_admitted_until_finished_by_the_conditions_own_times() -> None:
    admission, ending = read(workload(created=0, admitted=10, finished=(70, "Succeeded")), PLACES)
    assert isinstance(admission, Admission) and isinstance(ending, Ending)
    assert (admission.started_at, admission.queued_at) == (T0 + 10, T0)
    assert (admission.team, admission.job, admission.job_kind) == ("vision", "bert", "Job")
    assert [(h.pool, h.slices, h.per_gpu) for h in admission.holdings] == [("h100", 16, 1)]
    assert (ending.started_at, ending.ended_at, ending.outcome, ending.basis) == (
        T0 + 10,
        T0 + 70,
        "finished",
        "condition",
    )


def test_the_grace_after_an_eviction_is_not_charged() -> None:
    body = workload(admitted=10, evicted=(40, "Preempted"), finished=(300, "Succeeded"))
    ending = read(body, PLACES)[-1]
    assert isinstance(ending, Ending) and (ending.ended_at, ending.outcome) == (T0 + 40, "preempted")


def test_an_eviction_from_before_the_admission_is_another_ones() -> None:
    assert len(read(workload(admitted=50, evicted=(40, "Preempted")), PLACES)) == 1


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("Preempted", "preempted"),
        ("PodsReadyTimeout", "evicted"),
        ("DeactivatedDueToMaximumExecutionTimeExceeded", "time_limit"),
        ("Deactivated", "deactivated"),
        ("NodeFailures", "evicted"),
    ],
)
def test_outcomes_of_an_eviction(reason: str, outcome: str) -> None:
    ending = read(workload(left=45, evicted=(40, reason)), PLACES)[0]
    assert isinstance(ending, Ending) and ending.outcome == outcome and ending.started_at is None


def test_a_team_by_its_queue_where_the_namespace_has_none() -> None:
    admission = read(workload(admitted=1, namespace="elsewhere", queue="speech-h100"), PLACES)[0]
    assert isinstance(admission, Admission) and admission.team == "speech"


def test_project_and_owner_from_the_pod_template() -> None:
    labels = {"myriad.dev/project": "llama", "myriad.dev/owner": "ada\x00\x1b[2J"}
    admission = read(workload(admitted=1, labels=labels), PLACES)[0]
    assert isinstance(admission, Admission) and (admission.project, admission.owner) == ("llama", "ada[2J")


def test_e2_each_flavor_and_each_slice_is_counted_as_what_it_is() -> None:
    usage = {"nvidia.com/mig-1g.10gb": 7, "nvidia.com/mig-3g.40gb": 2}
    admission = read(workload(admitted=1, usage=usage), PLACES)[0]
    assert isinstance(admission, Admission)
    assert sum(Fraction(h.slices, h.per_gpu) for h in admission.holdings) == Fraction(13, 7)


@pytest.mark.parametrize(
    ("resource", "model", "expected"),
    [
        ("nvidia.com/gpu", "", (1, 1)),
        ("nvidia.com/mig-1g.10gb", "", (1, 7)),
        ("nvidia.com/mig-1g.10gb.me", "", (1, 7)),
        ("nvidia.com/mig-7g.80gb", "", (7, 7)),
        ("nvidia.com/mig-2g.12gb", "", (2, 4)),
        ("nvidia.com/mig-1c.3g.40gb", "", (3, 7)),
        ("nvidia.com/mig-all", "no such model", (1, 1)),
    ],
)
def test_shares_of_a_card(resource: str, model: str, expected: tuple[int, int]) -> None:
    assert share(resource, model) == expected


def test_a_job_without_gpus_costs_no_gpu_hours() -> None:
    assert read(workload(admitted=1, usage={}), PLACES) == []


def test_a_deleted_workload_ends_when_it_was_deleted() -> None:
    ending = removed(workload(admitted=10, deleted=33), PLACES)[-1]
    assert isinstance(ending, Ending) and (ending.ended_at, ending.basis) == (T0 + 33, "deleted")
    assert [type(f) for f in removed(workload(admitted=10), PLACES)] == [Admission], "nothing says when"


@pytest.mark.parametrize("text", [None, "", "yesterday", 5, "2026-11-30T12:00:00", {"a": 1}])
def test_what_is_no_time_is_none(text: object) -> None:
    assert seconds(text) is None


def test_broken_conditions_are_no_fact() -> None:
    body = workload(admitted=10)
    body["status"]["conditions"][1]["lastTransitionTime"] = "soon"
    assert read(body, PLACES) == []


def test_fractions_of_seconds_and_offsets_are_read() -> None:
    assert seconds("2026-11-30T12:00:00.999999Z") == seconds("2026-11-30T13:00:00+01:00")
    assert seconds(at(0)) == T0


def test_facts_survive_the_journal() -> None:
    for fact in read(workload(admitted=10, finished=(70, "Succeeded"), limit_s=60), PLACES):
        assert from_json(json.loads(json.dumps(to_json(fact)))) == fact
