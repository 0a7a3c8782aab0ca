"""`why`: the first cause with numbers, who holds it, what unblocks it, in the words a user reads."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from myriad.scheduler.explain import (
    AheadJob,
    Answer,
    Condition,
    Eta,
    Holder,
    JobFacts,
    QuotaView,
    by_end,
    duration,
    ordinal,
    why,
)
from myriad.scheduler.model import Refusal
from myriad.scheduler.placement import plan


def text_of(answer: Answer, heading: str) -> str:
    """The text under a heading, "" where it is not there."""
    return next((t for h, t in answer.lines if h == heading), "")


@pytest.fixture
def gang(make: SimpleNamespace) -> Any:
    return make.gang(make.podset(2, 8), name="gang-second")


def test_waiting_for_quota_with_numbers_and_place_in_the_queue(gang: Any) -> None:
    quota = QuotaView(
        "vision", "h100", 16, 16, position=1, queue_length=1, holders=(Holder("gang", "vision", 16, 8.0),)
    )
    answer = why(JobFacts(gang, waiting_s=9), quota=quota)
    assert answer.state == "quota"
    assert answer.first_cause == "waits for quota: needs 16 GPUs, vision has 16, 16 in use; 1st in the queue"
    assert answer.unblocks == ("job gang (vision, 16 GPUs, ends by its limit in about 8 s)",)
    assert answer.title == "gang-second (vision, 2 pods x 8 GPUs, waiting 9 s)"
    assert answer.numbers["left"] == 0
    assert text_of(answer, "looked at").endswith("nothing else blocks")


def test_the_answer_of_the_tour(make: SimpleNamespace) -> None:
    gang = make.gang(make.podset(8, 8), name="bert-large")
    refusal = Refusal(
        "not_now",
        "needs 64 H100 in one block; the largest free set is 40, in hall1/b3",
        {"gpu_name": "H100"},
        ("uncordon gpu0312, gpu0313",),
        ("hall1/b3: 5 whole nodes free, 2 cordoned by alice (gpu0312, gpu0313)",),
    )
    quota = QuotaView(
        "vision", "h100", 128, 32, position=3, queue_length=7,
        ahead=(AheadJob("llama-eval", "carol", 16, 2), AheadJob("clip", gpus=8, pods=1)),
    )  # fmt: skip
    answer = why(
        JobFacts(gang, waiting_s=14 * 60),
        quota=quota,
        placement=refusal,
        after=Holder("llama-sft", "speech", 32, 7800.0),
        eta=Eta(7800, 5400, 14400, "80 % of such estimates held last month"),
    )
    assert answer.text().splitlines() == [
        "bert-large (vision, 8 pods x 8 H100, waiting 14 min)",
        "  placement   needs 64 H100 in one block; the largest free set is 40, in hall1/b3",
        "              hall1/b3: 5 whole nodes free, 2 cordoned by alice (gpu0312, gpu0313)",
        "  unblocks    job llama-sft (speech, 32 H100, ends by its limit in about 2 h 10 min), "
        "or uncordon gpu0312, gpu0313",
        "  queue       3rd of 7 in vision; ahead: llama-eval (16 H100, carol), clip (8 H100); "
        "24 H100 in 3 pods ahead in all",
        "  ETA         2 h 10 min (1 h 30 min to 4 h; 80 % of such estimates held last month)",
        "  looked at   events, Workload, admission checks, quota, placement, nodes: nothing else blocks",
    ]
    assert json.loads(json.dumps(answer.as_dict()))["state"] == "placement"


def test_never_comes_before_quota(make: SimpleNamespace) -> None:
    gang = make.gang(make.podset(8, 16), name="gang-huge")
    answer = why(
        JobFacts(gang), quota=QuotaView("vision", "h100", 16, 16), placement=plan(make.cluster({"n1": "h/b/r"}), gang)
    )
    assert answer.state == "never"
    assert answer.first_cause == "no node of pool h100 has 16 GPUs (8 at most); split it into pods of 8 or fewer"
    assert "can never run" in answer.title


def test_d13_more_than_quota_and_borrowing_is_never(make: SimpleNamespace) -> None:
    gang = make.gang(make.podset(4, 8))
    quota = QuotaView("speech", "h100", 8, 0, borrow_limit=8, cohort_free=100)
    answer = why(JobFacts(gang), quota=quota)
    assert answer.state == "never"
    assert (
        answer.first_cause
        == "asks for 32 GPUs; speech has 8 and may borrow 8 in pool h100, so it can never be admitted"
    )
    assert answer.unblocks == ("ask for 16 GPUs or fewer, or raise the quota of speech in pool h100",)
    assert why(JobFacts(gang), quota=replace(quota, borrow_limit=None)).state != "never"
    elastic = make.gang(make.podset(4, 8, min_count=2))
    assert why(JobFacts(elastic), quota=quota).state != "never"


def test_borrowed_and_lent_are_told_apart(gang: Any) -> None:
    borrowed = QuotaView(
        "speech", "h100", 8, 16, borrowed=8, borrow_limit=16, cohort_free=4, position=2, queue_length=3
    )
    cause = why(JobFacts(gang), quota=borrowed).first_cause
    assert (
        cause == "waits for quota: needs 16 GPUs, speech has 8, 16 in use (8 of them borrowed); 4 to borrow now; "
        "2nd in the queue"
    )
    lent = QuotaView("vision", "h100", 16, 0, lent=16)
    answer = why(JobFacts(gang), quota=lent)
    assert "16 lent to others" in answer.first_cause
    assert answer.unblocks == ("Kueue reclaims what vision has lent (16 GPUs)",)


def test_left_counts_own_and_borrowable() -> None:
    quota = QuotaView("speech", "h100", 8, 4, borrow_limit=8, cohort_free=6)
    assert quota.left == 10
    assert replace(quota, used=12, borrowed=4).left == 4
    assert replace(quota, used=12, borrowed=4, borrow_limit=None).left == 6
    assert replace(quota, lent=4).left == 6
    assert replace(quota, used=30, borrowed=22).left == 0


def test_b5_a_stopping_job_is_named_first_among_the_holders() -> None:
    holders = [
        Holder("long", gpus=8),
        Holder("soon", gpus=8, ends_in_s=60),
        Holder("stopping", gpus=8, terminating=True),
    ]
    assert [h.name for h in by_end(holders)] == ["stopping", "soon", "long"]


def test_c4_a_cause_from_events_comes_before_the_gang(gang: Any, make: SimpleNamespace) -> None:
    facts = JobFacts(gang, problems=("PVC data not found",))
    answer = why(facts, quota=QuotaView("vision", "h100", 16, 16), placement=plan(make.cluster({"n1": "h/b/r"}), gang))
    assert answer.state == "never"  # one node can never hold two pods of 8: nothing else matters
    answer = why(facts, quota=QuotaView("vision", "h100", 16, 16))
    assert (answer.state, answer.first_cause) == ("external", "PVC data not found")
    assert not text_of(answer, "looked at").endswith("nothing else blocks")


def test_a3_what_a_report_means_stands_beside_it(gang: Any) -> None:
    said = 'container main: CreateContainerError (failed to get sandbox runtime: no runtime for "nvidia" is configured)'
    answer = why(JobFacts(gang, admitted=True, has_workload=True, nodes={"gpu7": 1}, problems=(said,)))
    assert answer.first_cause == said
    assert "containerd on that node does not know it" in text_of(answer, "means")
    assert answer.unblocks == ("containerd config dump | grep -A3 runtimes    # on gpu7",)
    unknown = why(JobFacts(gang, admitted=True, has_workload=True, problems=("PVC data not found",)))
    assert not text_of(unknown, "means")


def test_c14_not_yet_reached_is_not_refused(gang: Any) -> None:
    quota = QuotaView("vision", "h100", 64, 0, position=3, queue_length=3)
    answer = why(JobFacts(gang, evaluated=False, waiting_s=5), quota=quota)
    assert answer.state == "not_reached"
    assert answer.first_cause.startswith("not yet reached")
    assert "2 ahead of it" in answer.first_cause
    assert not text_of(answer, "alarm")
    evaluated = why(JobFacts(gang, waiting_s=5), quota=quota)
    assert (evaluated.state, evaluated.first_cause) == ("queue", "3rd of 3 in the queue of vision")


def test_c17_silence_is_itself_an_alarm(gang: Any) -> None:
    answer = why(JobFacts(gang, evaluated=False, waiting_s=3600), quota=QuotaView("vision", "h100", 64, 0))
    assert text_of(answer, "alarm") == "1 h without a word is itself a fault"
    assert "kueue-system" in answer.unblocks[0]
    assert why(JobFacts(gang, has_workload=False)).state == "not_reached"


def test_c3_a_stale_condition_is_not_repeated(gang: Any) -> None:
    conditions = (Condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue vision-h100"),)
    answer = why(JobFacts(gang, quota_reserved=True, conditions=conditions, pending_checks={"myriad": ""}))
    assert (answer.state, answer.first_cause) == ("check", "waits for the admission check myriad")
    running = why(
        JobFacts(gang, admitted=True, pods_ready=2, pods_expected=2, nodes={"n1": 1, "n2": 1}, conditions=conditions)
    )
    assert running.state == "running"
    assert text_of(running, "nodes") == "n1, n2"
    assert "waiting" not in running.title


def test_kueues_own_words_only_as_a_fallback(gang: Any) -> None:
    conditions = (
        Condition("QuotaReserved", "False", "Pending", "couldn't assign flavors:  insufficient\nunused quota"),
    )
    assert why(JobFacts(gang, conditions=conditions)).first_cause == (
        "Kueue says: couldn't assign flavors: insufficient unused quota"
    )
    known = why(JobFacts(gang, conditions=conditions), quota=QuotaView("vision", "h100", 16, 16))
    assert known.first_cause.startswith("waits for quota")


def test_c21_the_preemption_is_the_first_reason_shown(gang: Any) -> None:
    conditions = (
        Condition("Evicted", "True", "Preempted", "x"),
        Condition("Preempted", "True", "InCohortReclamation", "Preempted for speech/asr-prod."),
    )
    answer = why(JobFacts(gang, evicted=True, conditions=conditions), quota=QuotaView("vision", "h100", 16, 16))
    assert answer.lines[0] == ("preempted", "Preempted for speech/asr-prod.")
    assert answer.first_cause.startswith("preempted (Preempted for speech/asr-prod); now: waits for quota")


def test_a20_admitted_but_not_placeable(gang: Any) -> None:
    facts = JobFacts(
        gang,
        quota_reserved=True,
        admitted=True,
        admitted_s=40,
        pods_expected=2,
        unschedulable="0/3 nodes are available:  3 Insufficient cpu.",
    )
    answer = why(facts)
    assert answer.state == "starting"
    assert (
        answer.first_cause
        == "admitted 40 s ago, not placeable: the pod scheduler says: 0/3 nodes are available: 3 Insufficient cpu."
    )
    assert why(replace(facts, unschedulable="")).first_cause == "admitted 40 s ago, 0 of 2 pods ready"


def test_f30_the_gate_that_is_left_is_named(gang: Any) -> None:
    answer = why(JobFacts(gang, admitted=True, pods_expected=2, gates=("example.com/wait",)))
    assert answer.state == "gated"
    assert "example.com/wait" in answer.first_cause
    assert "example.com/wait" in answer.unblocks[0]


def test_a_held_queue_and_a_suspended_job(gang: Any) -> None:
    stopped = QuotaView("vision", "h100", 16, 0, stopped="the queue is on Hold until 1 December: GPU-hours used up")
    assert why(JobFacts(gang), quota=stopped).state == "held"
    answer = why(JobFacts(gang, suspended_by_user=True))
    assert (answer.state, answer.unblocks) == ("held", ("resume the job",))


def test_finished(gang: Any) -> None:
    assert "finished" in why(JobFacts(gang, finished=True, succeeded=True)).title
    assert why(JobFacts(gang, finished=True, succeeded=False)).first_cause == "failed"


def test_fits_now(gang: Any, make: SimpleNamespace) -> None:
    outcome = plan(make.cluster({"n1": "h/b/r", "n2": "h/b/r"}), gang)
    answer = why(JobFacts(gang), quota=QuotaView("vision", "h100", 16, 0, position=1), placement=outcome)
    assert answer.state == "fits"
    assert "h/b/r (same rack)" in answer.first_cause


def test_two_blocks_are_both_shown_quota_first(gang: Any) -> None:
    refusal = Refusal("not_now", "needs 16 H100; room for 8 is free now")
    answer = why(JobFacts(gang), quota=QuotaView("vision", "h100", 16, 16), placement=refusal)
    assert answer.state == "quota"
    assert [h for h, _ in answer.lines][:2] == ["quota", "placement"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "0 s"), (59.4, "59 s"), (59.9, "1 min"), (840, "14 min"), (3599, "1 h"), (7800, "2 h 10 min"),
        (273600, "3 d 4 h"), (-5, "0 s"),
    ],
)  # fmt: skip
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_ordinals() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th",
    ]  # fmt: skip


def test_with_its_quota_a_job_is_not_told_what_kueue_said_before(gang: Any) -> None:
    """Between the check's answer and the admission the condition Admitted still says that there is no reservation."""
    stale = Condition("Admitted", "False", "NoReservation", "The workload has no reservation and not all checks ready")
    answer = why(JobFacts(gang=gang, quota_reserved=True, evaluated=True, conditions=(stale,)))
    assert (answer.state, answer.first_cause) == (
        "fits",
        "it has its quota and no check is open: Kueue admits it next",
    )
