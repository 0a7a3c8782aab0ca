"""What the scheduling bench draws and judges by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from myriad.bench.scheduling.jobs import draw
from myriad.bench.scheduling.judge import Stay, free_after, interval, percentile, site_of, tiers_used
from myriad.bench.scheduling.observe import Observed
from myriad.bench.scheduling.oracle import Asked, Ledger, first_reason, judge
from myriad.kube.client import Api

ARGUMENTS = {"nodes": 1250, "jobs": 400, "load": 0.5, "pending": 20, "probes": 5, "probe_rate": 4.0}


def test_a_seed_draws_the_same_jobs_again_and_another_one_others() -> None:
    one, again, other = draw(**ARGUMENTS, seed=1), draw(**ARGUMENTS, seed=1), draw(**ARGUMENTS, seed=2)  # type: ignore[arg-type]
    assert one == again and one != other


def test_those_that_stay_take_their_share_and_every_job_comes_once() -> None:
    drawn = draw(**ARGUMENTS, seed=3)  # type: ignore[arg-type]
    jobs = (*drawn.burst, *drawn.churn, *drawn.pending, *drawn.probes)
    assert len({j.key for j in jobs}) == len(jobs)
    assert sum(j.all_gpus for j in drawn.burst) == pytest.approx(3000, rel=0.02)
    staying = [j for j in (*drawn.burst, *drawn.churn) if j.run_s is None]
    assert sum(j.all_gpus for j in staying) == pytest.approx(5500, rel=0.02)
    assert {j.key for j in staying} == drawn.residents
    assert [j.submit_s for j in drawn.churn] == sorted(j.submit_s for j in drawn.churn)
    # What comes and goes asks for half of the cluster at any time.
    asked = sum(j.all_gpus * (j.run_s or 0.0) for j in drawn.churn) / drawn.churn[-1].submit_s
    assert asked == pytest.approx(5000, rel=0.2)


def test_percentiles_and_intervals() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([float(k) for k in range(1, 101)], 0.99) == 99.0
    assert interval([]) is None and interval([2.0]) == {"mean": 2.0, "n": 1}
    # By hand: mean 3, deviation sqrt(2.5), t = 2.776 for 4 degrees of freedom.
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found is not None and found["high"] - found["mean"] == pytest.approx(2.776 * 2.5**0.5 / 5**0.5, abs=1e-3)


def test_a_site_has_racks_blocks_and_rooms() -> None:
    site = site_of(1250)
    assert (
        len(set(site.paths)) == 157 and len({p[:2] for p in site.paths}) == 10 and len({p[0] for p in site.paths}) == 2
    )
    assert site.tier(["g00000", "g00000"]) == 0 and site.tier(["g00000", "g00007"]) == 1
    assert site.tier(["g00000", "g00008"]) == 2 and site.tier(["g00000", "g00128"]) == 3
    assert site.tier(["g00000", "g00640"]) == 4


def test_a_gang_is_judged_by_what_was_free_when_it_came() -> None:
    site = site_of(32)
    stays = [
        Stay("a", 1.0, None, {f"g{k:05d}": 1 for k in range(6)}, 8),  # six of the first rack
        Stay("b", 2.0, 5.0, {f"g{k:05d}": 1 for k in (6, 7, 8, 9)}, 8),  # two racks, though three others are empty
        Stay("c", 3.0, None, {f"g{k:05d}": 1 for k in range(10, 20)}, 8),  # no rack holds ten
        Stay("d", 6.0, None, {"g00006": 1, "g00008": 1}, 8),  # b has gone: a place in one rack was there
    ]
    found = {t.key: (t.used, t.optimum) for t in tiers_used(site, stays)}
    assert found == {"a": (1, 1), "b": (2, 1), "c": (2, 2), "d": (2, 1)}
    free = free_after(site, stays, frozenset({"a", "c"}))
    assert site.blocks(free) == {"rack": 8, "block": 16, "room": 16, "cluster": 16}


@given(st.lists(st.integers(0, 8), min_size=24, max_size=24), st.integers(1, 12), st.sampled_from([1, 2, 4, 8]))
def test_the_narrowest_tier_is_the_one_found_by_trying_all(free: list[int], pods: int, gpus: int) -> None:
    site = site_of(24)

    def fits(nodes: list[int]) -> bool:
        return sum(free[i] // gpus for i in nodes) >= pods

    racks = [list(range(r * 8, r * 8 + 8)) for r in range(3)]
    wanted = None
    for rank, domains in enumerate(([[i] for i in range(24)], racks, [list(range(24))])):
        if any(fits(d) for d in domains):
            wanted = rank
            break
    assert site.narrowest(np.array(free), pods, gpus) == wanted


LEDGER = Ledger({"vision": 100}, {"vision": [(0.0, 0), (10.0, 90), (20.0, 95)]})
WAITS = "waits for quota: needs {} H100, vision has {}, {} in use; 3rd in the queue"


@pytest.mark.parametrize(
    ("sentence", "verdict"),
    [
        (WAITS.format(16, 100, 95), "right"),
        (WAITS.format(16, 100, 90), "right"),  # as it was when the job came
        (WAITS.format(16, 100, 50), "wrong"),  # was never so
        (WAITS.format(8, 100, 95), "wrong"),  # another job's size
        (WAITS.format(16, 90, 95), "wrong"),
        ("insufficient unused quota for nvidia.com/gpu in flavor h100, 11 more needed", "right"),
        ("insufficient unused quota for nvidia.com/gpu in flavor h100, 12 more needed", "wrong"),
        ("not yet reached: Kueue has not looked at it since it came or changed", "not yet reached"),
        ("it waits", "no numbers"),
    ],
)
def test_a_reason_is_right_where_its_numbers_were_true(sentence: str, verdict: str) -> None:
    assert judge(sentence, 21.0, Asked(16, "vision", 15.0), LEDGER) == verdict


def test_a_job_that_can_never_fit_is_told_so() -> None:
    asked = Asked(128, "vision", 15.0)
    never = "asks for {} GPUs; vision has {} in pool h100, so it can never be admitted"
    assert judge(never.format(128, 100), 21.0, asked, LEDGER) == "right"
    assert judge(never.format(64, 100), 21.0, asked, LEDGER) == "wrong"
    small = Asked(64, "vision", 15.0)
    assert judge(never.format(64, 100), 21.0, small, LEDGER) == "wrong", "it fits an empty queue"


def test_what_says_that_nobody_looked_does_not_count_as_a_reason() -> None:
    asked = Asked(16, "vision", 20.5)
    said = [(20.6, "not yet reached: nobody looked"), (21.5, WAITS.format(16, 100, 95))]
    assert first_reason(said, asked, LEDGER) == (21.5, "right", said[1][1])
    assert first_reason(said[:1], asked, LEDGER) is None


def test_the_watcher_counts_what_queues_hold_and_when_all_pods_ran() -> None:
    clock = iter(float(k) for k in range(100))
    observed = Observed(Api("http://localhost"), {"vision/a": 2}, clock=lambda: next(clock))
    observed.submitted("vision/a")
    workload = {
        "metadata": {
            "name": "job-a", "namespace": "vision", "uid": "1", "resourceVersion": "1",
            "ownerReferences": [{"kind": "Job", "apiVersion": "batch/v1", "name": "a", "uid": "2", "controller": True}],
        },
        "spec": {"queueName": "h100", "podSets": []},
        "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "message": "insufficient"}]},
    }  # fmt: skip
    observed.workload(workload, False)
    holding = {
        **workload,
        "status": {
            "admission": {
                "clusterQueue": "vision-h100",
                "podSetAssignments": [{"name": "main", "resourceUsage": {"nvidia.com/gpu": "16"}}],
            },
            "conditions": [{"type": "QuotaReserved", "status": "True"}, {"type": "Admitted", "status": "True"}],
        },
    }
    observed.workload(holding, False)
    for uid in ("x", "y"):
        labels = {"batch.kubernetes.io/job-name": "a"}
        metadata = {"name": uid, "namespace": "vision", "uid": uid, "labels": labels}
        observed.pod({"metadata": metadata, "spec": {"nodeName": "n" + uid}, "status": {"phase": "Running"}}, False)
    observed.workload(holding, True)
    seen = observed.jobs["vision/a"]
    assert (seen.submitted, seen.workload, seen.reserved, seen.admitted, seen.running) == (0.0, 1.0, 2.0, 2.0, 4.0)
    assert seen.kueue == [(1.0, "insufficient")] and seen.bound == {"x": "nx", "y": "ny"}
    assert observed.used == {"vision-h100": [(0.0, 0), (2.0, 16), (5.0, 0)]}
