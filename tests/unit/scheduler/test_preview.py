"""What a change of quotas would do: victims and waiters by name and number, as Kueue would choose them."""

from __future__ import annotations

import random
from typing import Any

from myriad.fleet import Checked, check, objects_for_cluster_policy
from myriad.fleet.source import inventory_from_groups
from myriad.scheduler.preview import Job, Quota, one_pass, preview, quotas_of, sentences


def quotas(*given: Quota) -> dict[str, Quota]:
    return {quota.queue: quota for quota in given}


def shared(queue: str, nominal: int, **more: Any) -> Quota:
    return Quota(queue, nominal, **{"lend": nominal, "root": "research"} | more)


TWO = quotas(shared("vision", 16), shared("speech", 8))


def test_an_owner_takes_back_from_who_borrows_the_low_and_the_young_first() -> None:
    running = [
        Job("v/own", "vision", 16, 100, "2026-01-01"),
        Job("v/low-old", "vision", 4, 50, "2026-01-01"),
        Job("v/low-young", "vision", 4, 50, "2026-01-02"),
    ]
    asked = Job("s/asr", "speech", 4, 0, "2026-01-03")
    found = one_pass(TWO, running, [asked])
    assert found.victims == [(running[2], asked)] and found.starts == [asked] and found.waits == []


def test_nobody_is_preempted_for_a_job_that_would_borrow() -> None:
    running = [Job("v/a", "vision", 16, 0), Job("v/b", "vision", 8, 0)]
    found = one_pass(TWO, running, [Job("s/big", "speech", 12, 1000)])
    assert found.victims == [] and found.waits[0][1] == "asks for 12 GPUs, 0 are free to queue speech"


def test_a_job_that_never_fits_is_said_to_never_start() -> None:
    (told,) = one_pass(TWO, [], [Job("s/huge", "speech", 25)]).waits
    assert told[1] == "asks for 25 GPUs, and queue speech can get 24 at most: it never starts"
    limited = quotas(shared("vision", 16), shared("speech", 8, borrow=4))
    (told,) = one_pass(limited, [], [Job("s/huge", "speech", 13)]).waits
    assert "can get 12 at most" in told[1]


def test_what_is_kept_in_reserve_is_lent_to_nobody() -> None:
    kept = quotas(shared("web", 8, lend=2), shared("chat", 4))
    assert one_pass(kept, [], [Job("c/x", "chat", 6)]).starts
    assert one_pass(kept, [], [Job("c/x", "chat", 7)]).waits
    assert one_pass(kept, [Job("w/x", "web", 6)], [Job("c/x", "chat", 6)]).starts, "the owner uses its reserve first"


def test_in_its_own_queue_a_job_preempts_lower_priorities_where_that_is_on() -> None:
    running = [Job("v/low", "alone", 8, 10)]
    urgent = Job("v/urgent", "alone", 8, 100)
    assert one_pass(quotas(Quota("alone", 8)), running, [urgent]).victims == [(running[0], urgent)]
    assert one_pass(quotas(Quota("alone", 8, within=False)), running, [urgent]).victims == []


def test_nobody_leaves_without_need() -> None:
    running = [Job("v/own", "vision", 16, 100), Job("v/small", "vision", 2, 10), Job("v/large", "vision", 6, 20)]
    found = one_pass(TWO, running, [Job("s/asr", "speech", 6)])
    assert [victim.job for victim, _ in found.victims] == ["v/large"], "the small one stays: the large one suffices"


def test_a_smaller_quota_names_whom_it_preempts_and_who_waits() -> None:
    running = [Job("v/a", "vision", 8, 50), Job("v/b", "vision", 8, 40)]
    waiting = [Job("s/a", "speech", 16, 10)]
    after = quotas(shared("vision", 8), shared("speech", 16))
    report = preview(TWO, after, running, waiting)
    assert report["preempted"] == [
        {"job": "v/b", "queue": "vision", "gpus": 8, "priority": 40, "for": "s/a", "for_queue": "speech"}
    ]
    assert report["start"] == ["s/a"] and report["wait"] == []
    assert sentences(report) == [
        "speech: quota 8 -> 16 GPUs, lend 8 -> 16; 0 in use",
        "vision: quota 16 -> 8 GPUs, lend 16 -> 8; 16 in use, 8 above the quota",
        "v/b (8 GPUs of vision) would be preempted for s/a of speech",
        "s/a would start",
    ]
    back = preview(after, TWO, running, waiting)
    assert back["wait"][0]["reason"] == "asks for 16 GPUs, 8 are free to queue speech"
    assert back["spared"] == ["v/b"]


def test_a_queue_that_goes_and_a_job_that_outgrew_its_queue_are_named() -> None:
    running = [Job("v/a", "vision", 16), Job("s/a", "speech", 8)]
    report = preview(TWO, quotas(Quota("vision", 8)), running, [])
    assert report["orphaned"] == ["s/a"] and report["not_again"] == ["v/a"]
    assert "speech: is taken away; 8 GPUs of it are in use" in sentences(report)
    assert sentences(preview(TWO, TWO, running, [])) == ["no queue changes, so nothing changes for any job"]


def test_quotas_are_read_from_rendered_objects_with_their_tree() -> None:
    variables = {
        "myriad_pools": {"h100": {"model": "H100-SXM5-80GB"}},
        "myriad_cohorts": {"site": {}, "research": {"parent": "site"}},
        "myriad_teams": {
            "vision": {
                "namespaces": ["vision"],
                "quota": {"h100": 16},
                "cohort": "research",
                "borrow": {"h100": 8},
                "lend": {"h100": 4},
            },
            "alone": {"namespaces": ["alone"], "quota": {"h100": 8}},
        },
    }
    groups = {"control_plane": ["cp1"], "gpu_nodes": ["gpu1"], "pool_h100": ["gpu1"]}
    checked: Checked = check(inventory_from_groups(variables, groups, locations={"gpu1": "hall1/b1/r1"}))
    objects = objects_for_cluster_policy(checked.fleet)

    def by_kind(kind: str) -> list[Any]:
        return [o for o in objects if o["kind"] == kind]

    assert quotas_of(by_kind("ClusterQueue"), by_kind("Cohort")) == {
        "vision-h100": Quota("vision-h100", 16, borrow=8, lend=4, root="site"),
        "alone-h100": Quota("alone-h100", 8, borrow=None, lend=8, root=""),
    }


def test_no_pass_hands_out_more_than_there_is_or_takes_from_an_owner() -> None:
    for seed in range(200):
        chance = random.Random(seed)  # noqa: S311 - a test that can be repeated
        books = quotas(*(shared(f"q{i}", chance.randint(0, 32)) for i in range(5)))
        total = sum(quota.nominal for quota in books.values())
        running: list[Job] = []
        for i in range(20):
            job = Job(f"r{i}", f"q{chance.randrange(5)}", chance.randint(1, 12), chance.randint(0, 3), str(i))
            if one_pass(books, running, [job]).starts and sum(j.gpus for j in running) + job.gpus <= total:
                running.append(job)
        waiting = [
            Job(f"w{i}", f"q{chance.randrange(5)}", chance.randint(1, 40), chance.randint(0, 3), str(i))
            for i in range(20)
        ]
        found = one_pass(books, running, waiting)
        gone = {victim.job for victim, _ in found.victims}
        left = [job for job in [*running, *found.starts] if job.job not in gone]
        assert sum(job.gpus for job in left) <= total
        for victim, asker in found.victims:
            before = sum(j.gpus for j in [*running, *waiting] if j.queue == victim.queue)
            assert victim.queue == asker.queue or before > books[victim.queue].nominal
        assert len(found.starts) + len(found.waits) == len(waiting)


def test_two_jobs_of_one_name_are_two() -> None:
    running = [Job("v/a", "vision", 12, 10, uid="v/job-a"), Job("v/a", "vision", 12, 20, uid="v/pytorchjob-a")]
    report = preview(TWO, TWO, running, [Job("s/x", "speech", 8)])
    assert report["preempted"] == [], "it would be so without a change too"
    found = one_pass(TWO, running, [Job("s/x", "speech", 8)])
    assert [victim.uid for victim, _ in found.victims] == ["v/job-a"]
