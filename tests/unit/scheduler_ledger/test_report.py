"""Sums of a period: by hand where a person can do them, and against second-by-second counting where none can."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myriad.scheduler.ledger.periods import Period
from myriad.scheduler.ledger.report import merged, report, shares
from myriad.scheduler.ledger.store import Charge, Correction, Quota

H = 3600
DAY = Period("2026-11-30", 0, 24 * H)


def charge(
    uid: str,
    start: int,
    end: int | None,
    *,
    gpus: int = 8,
    team: str = "vision",
    queued: int | None = None,
    outcome: str = "finished",
    checkpoint: int | None = None,
    per_gpu: int = 1,
    basis: str = "condition",
    project: str = "",
    admitted: int | None = None,
) -> Charge:
    return Charge(
        uid=uid, started_at=start, admitted_at=start if admitted is None else admitted,
        queued_at=start if queued is None else queued, ended_at=end, namespace=team, workload=f"job-{uid}", job=uid,
        job_kind="Job", team=team, project=project, owner="", cluster_queue=f"{team}-h100", priority=0,
        priority_class="", pool="h100", flavor="h100", resource="nvidia.com/gpu", slices=gpus, per_gpu=per_gpu,
        borrowed=0, outcome="" if end is None else outcome, reason="", basis="" if end is None else basis,
        checkpoint_at=checkpoint,
    )  # fmt: skip


def quota(team: str, nominal: int, since: int = 0, cohort: str = "research", per_gpu: int = 1) -> Quota:
    return Quota(f"{team}-h100", since, team, "h100", cohort, nominal, per_gpu)


def row(found: dict[str, object], team: str = "vision") -> dict[str, float]:
    rows: list[dict[str, float]] = found["rows"]  # type: ignore[assignment]
    (one,) = [r for r in rows if r["team"] == team]
    return one


def test_used_waited_and_what_a_preemption_costs() -> None:
    charges = [
        charge("a", 1 * H, 3 * H, queued=0),
        # Preempted after an hour, half of which it had saved; its next run ends well.
        charge("b", 4 * H, 5 * H, outcome="preempted", checkpoint=4 * H + H // 2),
        charge("b", 6 * H, 7 * H, queued=5 * H),
        # No checkpoint at all.
        charge("c", 8 * H, 9 * H, outcome="failed"),
    ]
    one = row(report(charges, [], [], period=DAY, now=24 * H))
    assert one["used_h"] == 8 * 5 and one["waited_h"] == 16
    assert one["recomputed_h"] == 4 and one["lost_h"] == 8 and one["effective_h"] == 28
    assert (one["jobs"], one["runs"], one["preempted"]) == (3, 4, 1)
    assert one["wait_median_s"] == H // 2


def test_a_period_takes_its_part_and_an_open_charge_runs_until_now() -> None:
    yesterday = charge("a", -5 * H, 2 * H, outcome="preempted", checkpoint=-1 * H, queued=-7 * H)
    found = report([yesterday, charge("b", 20 * H, None)], [], [], period=DAY, now=22 * H)
    one = row(found)
    assert one["used_h"] == 8 * (2 + 2) and found["until"] == 22 * H
    assert one["recomputed_h"] == 16, "what was lost of yesterday's hours is yesterday's"
    assert one["waited_h"] == 0 and one["runs"] == 1, "it waited and began in another period"


def test_corrections_stand_beside_what_was_used() -> None:
    credit = Correction("u", H, "vision", "h100", "", -2 * H, "ann", "node was broken")
    one = row(report([charge("a", 0, H)], [], [credit], period=DAY, now=24 * H))
    assert (one["used_h"], one["corrected_h"], one["charged_h"]) == (8, -2, 6)


def test_an_end_that_nobody_saw_is_told_apart() -> None:
    one = row(report([charge("a", 0, H, basis="estimated", outcome="lost")], [], [], period=DAY, now=24 * H))
    assert one["estimated_h"] == one["used_h"] == 8


def test_borrowed_and_lent_follow_from_all_charges_and_the_quotas_of_each_moment() -> None:
    quotas = [quota("vision", 16), quota("speech", 8), quota("robotics", 8), quota("vision", 24, since=3 * H)]
    # vision uses 24 of 16 from 1 to 5; from 3 on it owns 24.
    charges = [charge("a", H, 5 * H, gpus=24), charge("s", H, 2 * H, gpus=8, team="speech")]
    found = shares(charges, quotas, since=0, until=10 * H)
    vision, speech, robotics = (found[f"{t}-h100"] for t in ("vision", "speech", "robotics"))
    assert vision.owned == (16 * 3 + 24 * 7) * H and vision.borrowed == 8 * 2 * H and vision.lent == 0
    # From 1 to 2 robotics alone has something to lend; from 2 to 3 both, in halves.
    assert robotics.lent == (8 + 4) * H and speech.lent == 4 * H
    assert speech.unused == 8 * 9 * H - 4 * H
    assert vision.unused == (16 + 24 * 5) * H


def test_pools_of_other_cohorts_lend_nothing() -> None:
    quotas = [quota("vision", 8, cohort=""), quota("speech", 8, cohort="")]
    found = shares([charge("a", 0, H, gpus=16)], quotas, since=0, until=H)
    assert found["vision-h100"].borrowed == 8 * H and found["speech-h100"].lent == 0


def test_details_are_by_namespace_and_add_up() -> None:
    charges = [charge("a", 0, H, project="bert"), charge("b", 0, H, project="clip"), charge("c", H, 2 * H)]
    found = report(charges, [], [], period=DAY, now=24 * H, per=lambda c: c.project)
    assert {d["name"]: d["used_h"] for d in found["details"]} == {"bert": 8, "clip": 8, "": 8}
    (total,) = merged(found["details"], ("team", "pool"))
    assert total["used_h"] == row(found)["used_h"] and total["jobs"] == 3


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(-5, 30), st.integers(0, 20), st.integers(1, 9), st.sampled_from([1, 7])
        ),
        max_size=8,
    ),
    owned=st.lists(st.tuples(st.integers(0, 2), st.integers(-3, 25), st.integers(0, 12)), max_size=6),
)
def test_shares_equal_counting_each_second(
    jobs: list[tuple[int, int, int, int, int]], owned: list[tuple[int, int, int]]
) -> None:
    teams = ("vision", "speech", "robotics")
    charges = [
        charge(f"j{i}", start, start + length, gpus=amount, team=teams[t], per_gpu=per_gpu)
        for i, (t, start, length, amount, per_gpu) in enumerate(jobs)
    ]
    owned = [(t, -10, 4) for t in range(3)] + sorted(owned, key=lambda o: o[1])
    quotas = [quota(teams[t], amount, since=since) for t, since, amount in owned]
    since, until = 0, 24
    found = shares(charges, quotas, since=since, until=until)
    expected = {name: [Fraction(0)] * 4 for name in teams}
    for second in range(since, until):
        own = {t: [a for i, s, a in owned if teams[i] == t and s <= second][-1] for t in teams}
        use = {t: Fraction(0) for t in teams}
        for c in charges:
            if c.started_at <= second < (c.ended_at or 0):
                use[c.team] += c.gpus
        idle = {t: max(Fraction(0), own[t] - use[t]) for t in teams}
        total, can = sum(max(Fraction(0), use[t] - own[t]) for t in teams), sum(idle.values())
        for t in teams:
            lent = idle[t] * min(total, can) / can if can else Fraction(0)
            for i, amount in enumerate((own[t], max(Fraction(0), use[t] - own[t]), lent, idle[t] - lent)):
                expected[t][i] += amount
    for t in teams:
        got = found[f"{t}-h100"]
        assert (got.owned, got.borrowed, got.lent, got.unused) == pytest.approx([float(x) for x in expected[t]])
