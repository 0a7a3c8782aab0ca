"""What many evictions say together."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from myriad.scheduler.notices.facts import Eviction, Party
from myriad.scheduler.notices.patterns import Vain, inverted, loops, pairs

NOW = datetime(2026, 11, 30, 15, 0, tzinfo=UTC)
CLIP = Party("vision", "clip", "vision", uid="u-clip", gpus=8, priority=500)
ASR = Party("speech", "asr", "speech", uid="u-asr", gpus=8, priority=1000)
LLM = Party("speech", "llm", "speech", uid="u-llm", gpus=8, priority=1000)


def eviction(
    minutes_ago: float, victim: Party = CLIP, preemptor: Party | None = ASR, policy: str = "InCohortReclamation"
) -> Eviction:
    at = f"{NOW - timedelta(minutes=minutes_ago):%Y-%m-%dT%H:%M:%SZ}"
    reason = "Preempted" if policy else "PodsReadyTimeout"
    return Eviction(
        id=f"{victim.uid}.{minutes_ago}", at=at, reason=reason, policy=policy, victim=victim, preemptor=preemptor,
        at_risk_s=1800,
    )  # fmt: skip


def test_d22_counts_by_pair() -> None:
    found = pairs([eviction(9), eviction(5), eviction(1, preemptor=LLM), eviction(1, policy="")])
    assert [(p.victim, p.preemptor, p.times, p.gpu_h) for p in found] == [
        ("vision/clip", "speech/asr", 2, 8.0),
        ("vision/clip", "speech/llm", 1, 4.0),
    ]


def test_three_times_in_thirty_minutes_is_a_loop_and_is_named_with_what_to_do() -> None:
    (loop,) = loops([eviction(28), eviction(14), eviction(1)], NOW)
    assert loop.sentence().startswith("speech/asr preempted vision/clip: 3 times in 27 min.")
    assert "lendingLimit" in loop.sentence()
    assert loops([eviction(14), eviction(1)], NOW) == []
    # Spread over more than the window, or over long ago: none.
    assert loops([eviction(45), eviction(20), eviction(1)], NOW) == []
    assert loops([eviction(59), eviction(55), eviction(50)], NOW) == []


def test_a_loop_keeps_its_name_while_it_goes_on() -> None:
    first = loops([eviction(20), eviction(10), eviction(5)], NOW)[0]
    later = loops([eviction(20), eviction(10), eviction(5), eviction(1)], NOW)[0]
    assert first.id == later.id and later.times == 4
    assert all(c.isalnum() or c in ".-" for c in first.id)
    # For hours, and whoever comes back as another object of the same name.
    runs = [eviction(m, preemptor=replace(ASR, uid=f"u-asr-{m}")) for m in range(200, 0, -10)]
    names = {loops(runs[:n], NOW - timedelta(minutes=200 - 10 * n))[0].id for n in range(3, len(runs) + 1)}
    assert len(names) == 1
    # One that ended and begins again is another.
    assert loops([*runs[:6], *runs[-3:]], NOW)[0].id not in names
    both = [eviction(20), eviction(10, ASR, CLIP), eviction(5), eviction(1, ASR, CLIP)]
    assert loops(both[:3], NOW)[0].id == loops(both, NOW)[0].id


def test_two_jobs_that_preempt_each_other_are_one_loop() -> None:
    (loop,) = loops([eviction(20), eviction(10, ASR, CLIP), eviction(1)], NOW)
    assert loop.mutual and "preempt each other" in loop.sentence()


def test_a_job_that_several_throw_out_in_turn_is_told_too() -> None:
    (loop,) = loops([eviction(20), eviction(10, preemptor=LLM), eviction(1)], NOW)
    assert loop.preemptor == "" and loop.sentence().startswith("several jobs preempted vision/clip: 3 times")


def test_d13_an_impossible_workload_that_evicts_is_found_and_said() -> None:
    (loop,) = loops([eviction(20), eviction(10), eviction(1)], NOW, impossible=["speech/asr"])
    assert "speech/asr can never run as it is, and still makes room for itself." in loop.sentence()
    assert "myriad why speech/asr" in Vain(eviction(1), 400, "impossible").sentence()


def test_d10_d11_an_eviction_whose_preemptor_did_not_start_is_said() -> None:
    assert "has not started 7 min after vision/clip was evicted" in Vain(eviction(1), 400, "waits").sentence()
    assert "lost its place for nothing" in Vain(eviction(1), 10, "gone").sentence()


def test_d5_a_victim_that_goes_before_its_preemptor_is_an_inversion() -> None:
    assert inverted(eviction(1, ASR, CLIP, "InClusterQueue"))
    assert not inverted(eviction(1, CLIP, ASR, "InClusterQueue"))
    # Between queues the quota decides, whatever the priorities.
    assert not inverted(eviction(1, ASR, CLIP))
    assert not inverted(replace(eviction(1, policy="InClusterQueue"), preemptor=None))


def test_thousands_of_records_are_no_matter() -> None:
    many = [
        eviction(i % 30, replace(CLIP, job=f"j{i}", uid=f"u{i}"), replace(ASR, job=f"p{i}", uid=f"q{i}"))
        for i in range(3000)
    ]
    assert loops(sorted(many, key=lambda e: e.at), NOW) == []
