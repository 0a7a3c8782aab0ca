"""The notice's words."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from myriad.scheduler.notices.facts import Eviction, Party
from myriad.scheduler.notices.text import event_message, notice, planned

CLIP = Eviction(
    id="x",
    at="2026-11-30T14:59:30Z",
    reason="Preempted",
    policy="InCohortReclamation",
    victim=Party("vision", "clip-ft", "vision", gpus=16, priority=500, priority_class="normal"),
    preemptor=Party("speech", "asr-prod", "speech", gpus=8, priority=1000, priority_class="urgent"),
    pods=2,
    started_at="2026-11-30T12:00:00Z",
    sigterm_at="2026-11-30T14:59:30Z",
    kill_at="2026-11-30T15:04:30Z",
    grace_s=300,
    exact=True,
    last_checkpoint="2026-11-30T14:57:38Z",
    at_risk_s=112,
    position=2,
    eta_s=2400,
    borrowed=16,
    reclaimed=8,
    gpu_name="H100",
)


def test_d24_the_notice_reads_as_in_the_tour() -> None:
    assert notice(CLIP, details="https://myriad/x").splitlines() == [
        "Your job clip-ft (vision) is stopping, and will be killed at 15:04:30 UTC, to make room for speech/asr-prod "
        "(priority urgent, reclaiming its own quota: 8 of the 16 H100 that vision borrowed).",
        "It has 300 s to save (SIGTERM was sent at 14:59:30 UTC). Last checkpoint 14:57, so about 2 min of 16 GPUs "
        "(0.5 GPU-hours) are at risk if it does not save. It goes back to the queue (2nd, about 40 min)."
        "     details: https://myriad/x",
    ]


def test_the_other_policies_say_what_decided() -> None:
    def words(policy: str) -> str:
        return notice(replace(CLIP, policy=policy)).splitlines()[0]

    assert "(priority urgent, which goes before normal in the same queue)" in words("InClusterQueue")
    assert "fair sharing: vision holds more than its share, speech less" in words("InCohortFairSharing")
    assert "both borrow in the same cohort" in words("InCohortReclaimWhileBorrowing")
    assert words("SomethingNewer").endswith("speech/asr-prod (priority urgent).")


def test_what_is_not_known_is_not_made_up() -> None:
    gone = notice(replace(CLIP, preemptor=Party(queue="speech-h100"), borrowed=0, last_checkpoint="", position=None))
    assert (
        "a job of queue speech-h100 that is gone already (reclaiming its own quota, which vision had borrowed)" in gone
    )
    assert "It has reported no checkpoint, so about 2 min of 16 GPUs" in gone
    nobody = notice(replace(CLIP, preemptor=None, policy=""))
    assert "to make room for a job that is gone already." in nobody


def test_a_kill_time_that_is_only_expected_says_so() -> None:
    text = notice(replace(CLIP, exact=False))
    assert "killed at about 15:04:30 UTC" in text and "SIGTERM is being sent now" in text


def test_a_job_without_running_pods_lost_nothing() -> None:
    text = notice(replace(CLIP, pods=0, started_at=""))
    assert text.startswith("Your job clip-ft (vision) has lost its place to make room for") and "at risk" not in text


def test_pods_without_grace_are_told_as_they_are() -> None:
    assert "It has no time to save" in notice(replace(CLIP, grace_s=0))


def test_a_kill_on_the_next_day_bears_its_date() -> None:
    text = notice(replace(CLIP, at="2026-11-30T23:59:30Z", kill_at="2026-12-01T00:04:30Z"))
    assert "killed at 2026-12-01 00:04:30 UTC" in text


def test_evictions_that_make_room_for_nobody_say_why() -> None:
    limit = replace(
        CLIP, reason="DeactivatedDueToMaximumExecutionTimeExceeded", policy="", preemptor=None, position=None
    )
    text = notice(limit)
    assert "because it has run for as long as its limit allows" in text and "does not go back to the queue" in text
    assert "because its ClusterQueue was stopped" in notice(replace(CLIP, reason="ClusterQueueStopped", policy=""))
    assert "(SomethingNew)" in notice(replace(CLIP, reason="SomethingNew", policy=""))


def test_d22_how_often_is_said() -> None:
    assert "This is the 3rd time." in notice(replace(CLIP, count=3))
    assert "time." not in notice(CLIP)


def test_an_event_is_never_too_long() -> None:
    wide = replace(CLIP, victim=replace(CLIP.victim, job="\u00fc" * 900))
    message = event_message(wide)
    assert len(message.encode()) <= 1024 and message.endswith("...") and "\n" not in message


def test_d17_what_is_planned_is_told_with_its_time_and_what_to_do() -> None:
    now = datetime(2026, 11, 30, 15, 0, tzinfo=UTC)
    text = planned(
        CLIP.victim,
        by="drain of gpu12",
        because_of="its fan is replaced",
        at=now + timedelta(minutes=15),
        grace_s=300,
        now=now,
        at_risk_gpu_h=4.0,
    )
    assert "will be asked to leave at 15:15:00 UTC (in 15 min): drain of gpu12, because its fan is replaced." in text
    assert "4.0 GPU-hours" in text and "kubectl annotate job clip-ft -n vision" in text
