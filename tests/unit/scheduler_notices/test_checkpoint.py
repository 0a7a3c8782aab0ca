"""Checkpoints as people and training code write them, and what a kill would cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from myriad.scheduler.notices.checkpoint import (
    CHECKPOINT_INTERVAL,
    LAST_CHECKPOINT,
    Checkpoint,
    Unreadable,
    at_risk_s,
    parse_interval,
    parse_time,
    read,
    victim_cost,
    warning,
)

NOW = datetime(2026, 11, 30, 15, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("600", 600),
        ("600s", 600),
        ("15m", 900),
        ("15 min", 900),
        ("1h30m", 5400),
        ("PT15M", 900),
        ("P1D", 86400),
        ("0.5h", 1800),
        ("1500ms", 1.5),
    ],
)
def test_intervals_in_the_forms_that_people_use(text: str, seconds: float) -> None:
    assert parse_interval(text) == seconds


@pytest.mark.parametrize("text", ["", "ten", "0", "-5", "15 parsecs", "1e400", "nan", "inf", "m", "9999d", "5m-3s"])
def test_an_interval_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        parse_interval(text)


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-30T14:58:00Z",
        "2026-11-30T14:58:00.000z",
        "2026-11-30T15:58:00+01:00",
        "2026-11-30 14:58:00",
        "1796050680",
        " 1796050680.0 ",
    ],
)
def test_times_in_the_forms_that_code_writes(text: str) -> None:
    assert parse_time(text, NOW) == NOW - timedelta(minutes=2)


@pytest.mark.parametrize("text", ["yesterday", "14:58", "1e30", "nan", "2026-13-01T00:00:00Z", "2026-12-01T00:00:00Z"])
def test_a_time_that_is_none_or_far_ahead_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        parse_time(text, NOW)


def test_a_clock_that_is_a_little_ahead_counts_as_now() -> None:
    assert parse_time("2026-11-30T15:00:40Z", NOW) == NOW


def test_the_newest_time_of_job_and_pods_counts_and_faults_are_said_once() -> None:
    found = read(
        [
            {CHECKPOINT_INTERVAL: "soon", LAST_CHECKPOINT: "2026-11-30T14:00:00Z"},
            None,
            {CHECKPOINT_INTERVAL: "15m", LAST_CHECKPOINT: "2026-11-30T14:58:00Z"},
            {CHECKPOINT_INTERVAL: "soon"},
        ],
        NOW,
    )
    assert found.last == NOW - timedelta(minutes=2) and found.interval_s == 900
    assert len(found.faults) == 1 and found.faults[0].startswith(f'{CHECKPOINT_INTERVAL} "soon" is no duration')


def test_d15_what_a_victim_costs_is_gpu_seconds_since_its_last_checkpoint() -> None:
    started = NOW - timedelta(hours=5)
    fresh = victim_cost(64, Checkpoint(last=NOW - timedelta(seconds=30)), started, NOW)
    old = victim_cost(8, Checkpoint(last=NOW - timedelta(hours=1)), started, NOW)
    never = victim_cost(8, Checkpoint(), started, NOW)
    assert (fresh, old, never) == (64 * 30, 8 * 3600, 8 * 5 * 3600)
    assert sorted([old, never, fresh])[0] == fresh


def test_a_checkpoint_from_before_this_run_is_where_it_resumed() -> None:
    assert at_risk_s(Checkpoint(last=NOW - timedelta(hours=9)), NOW - timedelta(minutes=10), NOW) == 600
    assert at_risk_s(Checkpoint(), None, NOW) == 0


def test_a_promise_that_is_missing_unreadable_or_too_rare_is_warned_of() -> None:
    assert warning(Checkpoint(interval_s=1800), 3600) == ""
    assert CHECKPOINT_INTERVAL in warning(Checkpoint(), 3600)
    assert "every 2 h" in warning(Checkpoint(interval_s=7200), 3600) and "1 min" not in warning(Checkpoint(), 7200)
    assert "no duration" in warning(read([{CHECKPOINT_INTERVAL: "soon"}], NOW), 3600)
