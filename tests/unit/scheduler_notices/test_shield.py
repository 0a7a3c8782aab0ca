"""Shields: for whom, how long, and off again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from myriad.kube.client import ApiError
from myriad.kube.kinds import JOBS, WORKLOADS
from myriad.scheduler.notices.checkpoint import Checkpoint
from myriad.scheduler.shield import PRIORITY_LABEL, Shield, Shields, wanted


def test_a_young_job_is_shielded_until_it_has_run_long_enough(make: Any) -> None:
    def shield(age_s: float, min_run_s: float = 1800) -> Shield | None:
        return wanted(
            admitted_at=make.now - timedelta(seconds=age_s), checkpoint=Checkpoint(), now=make.now,
            min_run_s=min_run_s, checkpoint_max_age_s=3600,
        )  # fmt: skip

    assert shield(0) and shield(1799) and not shield(1800) and not shield(0, 0)
    assert wanted(
        admitted_at=None, checkpoint=Checkpoint(), now=make.now, min_run_s=1800, checkpoint_max_age_s=3600
    ) is None  # fmt: skip


@pytest.mark.parametrize(
    ("since_save_s", "interval_s", "is_shielded"),
    [
        (0, 1200, False),
        (1079, 1200, False),
        (1081, 1200, True),
        (1319, 1200, True),
        (1321, 1200, False),  # it did not save: what it promised is over
        (59, 60, False),  # so often that little is at risk
        (7199, 7200, False),  # so rarely that the policy does not count on it
    ],
)
def test_a_job_that_is_about_to_save_is_worth_waiting_for_and_no_longer(
    make: Any, since_save_s: float, interval_s: float, is_shielded: bool
) -> None:
    found = wanted(
        admitted_at=make.now - timedelta(hours=5),
        checkpoint=Checkpoint(make.now - timedelta(seconds=since_save_s), interval_s),
        now=make.now,
        min_run_s=1800,
        checkpoint_max_age_s=3600,
    )
    assert (found is not None) == is_shielded


class Guard:
    def __init__(self, world: Any) -> None:
        self.world = world
        self.shields = Shields(api=world.api, cache=world.cache, policy=lambda: world.policy, now=lambda: world.now)

    def step(self, after_s: float = 5.0) -> str:
        self.world.wait(after_s)
        self.shields.step()
        return str(self.world.api.objects["jobs"]["vision/clip"]["metadata"]["labels"][PRIORITY_LABEL])


def run(world: Any, make: Any, priority_class: str = "normal", **options: Any) -> None:
    world.put(WORKLOADS, make.workload("clip", priority_class=priority_class, **{"at": world.now, **options}))
    if "jobs" not in world.api.objects:
        labels = {PRIORITY_LABEL: priority_class}
        metadata = {"name": "clip", "namespace": "vision", "uid": "job-uid-clip", "labels": labels}
        world.api.put(JOBS, {"metadata": metadata})


def test_the_shield_goes_on_once_and_comes_off_in_time_also_after_a_restart(world: Any, make: Any) -> None:
    run(world, make)
    started = world.now
    guard = Guard(world)
    assert guard.step() == "normal-shielded"
    run(world, make, "normal-shielded", at=started)
    world.api.writes.clear()
    guard.step()
    assert not world.api.writes
    world.wait(1800)
    # Another replica, that knows nothing but the cluster.
    assert Guard(world).step() == "normal"
    assert "myriad.dev/shield" not in world.api.objects["jobs"]["vision/clip"]["metadata"]["annotations"]


@pytest.mark.parametrize("state", ["evicted", "waiting", "finished"])
def test_who_does_not_run_loses_it_at_once(world: Any, make: Any, state: str) -> None:
    """An evicted job must not stand in the queue with the priority of its shield."""
    conditions = {
        "evicted": make.preempted(),
        "waiting": {"Admitted": ("False", "", "")},
        "finished": {"Finished": ("True", "Succeeded", "")},
    }[state]
    run(world, make, "normal-shielded", conditions=conditions)
    assert Guard(world).step() == "normal"


def test_a_class_that_is_not_the_policys_and_a_job_without_one_are_left_alone(world: Any, make: Any) -> None:
    run(world, make, "their-own")
    assert Guard(world).step() == "their-own"
    run(world, make, "")
    Guard(world).step()
    assert not [w for w in world.api.writes if w[1] == "jobs"]


def test_a_job_that_was_made_again_meanwhile_is_another(world: Any, make: Any) -> None:
    run(world, make)
    Guard(world).step()
    (patch,) = [body for verb, kind, _, body in world.api.writes if (verb, kind) == ("patch", "jobs")]
    assert patch["metadata"]["uid"] == "job-uid-clip"


def test_a_refused_relabel_is_said_once_and_not_repeated(world: Any, make: Any) -> None:
    run(world, make)
    world.api.fail["jobs"] = [ApiError(422, "Invalid", "no", where="test")]
    guard = Guard(world)
    assert guard.step() == "normal" and guard.step() == "normal"
    assert not [w for w in world.api.writes if w[1] == "jobs"]
