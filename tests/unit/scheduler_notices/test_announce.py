"""Planned evictions are told before, with a deadline that an owner may shorten."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from myriad.errors import MyriadError
from myriad.kube.kinds import JOBS
from myriad.scheduler.notices.announce import MAY_LEAVE, PLANNED, Plan, announce, planned_of, withdraw

DRAIN = Plan("drain of gpu12", "its fan is replaced", 900)


class Cluster:
    def __init__(self, world: Any) -> None:
        self.world, self.api, self.told = world, world.api, []  # type: ignore[var-annotated]
        self.api.create_event = lambda about, *, reason, message, type_: self.told.append((reason, message))
        metadata = {"name": "clip", "namespace": "vision", "uid": "u1", "annotations": {}}
        self.api.put(JOBS, {"metadata": metadata, "status": {"startTime": "2026-11-30T13:59:31Z"}})

    def job(self) -> Any:
        return self.api.get(JOBS, "clip", namespace="vision")

    def announce(self, plan: Plan = DRAIN, after_s: float = 0) -> Any:
        self.world.wait(after_s)
        return announce(self.api, JOBS, self.job(), plan, team="vision", gpus=8, now=self.world.now)


@pytest.fixture
def cluster(world: Any) -> Cluster:
    return Cluster(world)


def test_d17_a_planned_eviction_is_visible_before_it_happens(cluster: Cluster) -> None:
    told = cluster.announce()
    assert told.new and not told.due and told.at == cluster.world.now + timedelta(seconds=900)
    ((reason, message),) = cluster.told
    assert reason == "MyriadWillEvict" and "drain of gpu12, because its fan is replaced" in message
    assert "8.0 GPU-hours" in message
    assert planned_of(cluster.job()) == ("drain of gpu12", told.at.replace(microsecond=0))


def test_d16_the_deadline_stands_and_an_owner_may_let_it_go_sooner(cluster: Cluster) -> None:
    first = cluster.announce()
    again = cluster.announce(after_s=60)
    assert not again.new and again.at == first.at and not again.due and len(cluster.told) == 1
    cluster.api.patch(JOBS, "clip", {"metadata": {"annotations": {MAY_LEAVE: "now"}}}, namespace="vision")
    assert cluster.announce(after_s=1).due and cluster.announce().acknowledged


def test_the_planner_may_go_on_at_the_deadline(cluster: Cluster) -> None:
    cluster.announce()
    assert not cluster.announce(after_s=899).due and cluster.announce(after_s=1).due


def test_two_planners_the_first_deadline_counts(cluster: Cluster) -> None:
    first = cluster.announce()
    late = cluster.announce(Plan("protection of hall1/b3", "a gang waits", 3600))
    assert not late.new and late.at == first.at
    soon = cluster.announce(Plan("protection of hall1/b3", "a gang waits", 60))
    assert soon.new and soon.at < first.at


def test_a_plan_that_is_dropped_is_taken_back_by_who_made_it(cluster: Cluster) -> None:
    cluster.announce()
    assert not withdraw(cluster.api, JOBS, cluster.job(), "somebody else")
    assert withdraw(cluster.api, JOBS, cluster.job(), DRAIN.by) and planned_of(cluster.job()) is None
    assert PLANNED not in cluster.job()["metadata"]["annotations"]


def test_a_job_that_changed_meanwhile_is_not_told_by_guess(cluster: Cluster) -> None:
    old = cluster.job()
    cluster.api.patch(JOBS, "clip", {"metadata": {"labels": {"a": "b"}}}, namespace="vision")
    with pytest.raises(MyriadError, match="changed while"):
        announce(cluster.api, JOBS, old, DRAIN, now=cluster.world.now)
    assert not cluster.told
