"""What is said of a job before it is created: fits and where, waits and for what, refused and why."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from myriad.cli._job_view import add_others, balance_in
from myriad.jobs.judge import Balance, Verdict, judge
from myriad.jobs.render import render
from myriad.jobs.request import Form, Request
from myriad.kube.kinds import (
    CLUSTER_QUEUES,
    CONFIG_MAPS,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    TOPOLOGIES,
    WORKLOADS,
    Resource,
)
from myriad.lint import scene_of
from myriad.lint.documents import Document
from myriad.lint.works import works
from myriad.scheduler.cache import Cache
from myriad.scheduler.inquiry import PLACEMENT, QUOTA

Json = dict[str, Any]
NOW = datetime(2026, 11, 30, 5, 0, tzinfo=UTC)
IMAGE = f"registry.myriad.internal/vision/train@sha256:{'5e' * 32}"


def node(name: str, rack: str, gpus: int) -> Json:
    labels = {
        "kubernetes.io/hostname": name,
        "myriad.dev/room": "hall1",
        "myriad.dev/block": "hall1.b1",
        "myriad.dev/rack": f"hall1.b1.{rack}",
        "myriad.dev/pool": "h100",
        "myriad.dev/gpu-model": "H100-SXM5-80GB",
        "myriad.dev/gpu-expected": str(gpus),
    }
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(gpus)}
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {"allocatable": amounts, "conditions": ready},
    }


class Site:
    """A cluster of two racks of two nodes, and one queue of GPUs."""

    def __init__(self, quota: int = 32, *, borrow: int | None = None) -> None:
        self.cache = Cache(check_name="myriad")
        levels = [{"nodeLabel": f"myriad.dev/{level}"} for level in ("room", "block", "rack")]
        self.put(
            TOPOLOGIES,
            {"metadata": {"name": "myriad"}, "spec": {"levels": [*levels, {"nodeLabel": "kubernetes.io/hostname"}]}},
        )
        self.put(NAMESPACES, {"metadata": {"name": "vision", "labels": {"myriad.dev/team": "vision"}}})
        gpu: Json = {"name": "nvidia.com/gpu", "nominalQuota": quota}
        if borrow is not None:
            gpu["borrowingLimit"] = borrow
        spec: Json = {"resourceGroups": [{"flavors": [{"name": "h100", "resources": [gpu]}]}]}
        if borrow is not None:
            spec["cohortName"] = "research"
        labels = {"myriad.dev/team": "vision", "myriad.dev/pool": "h100"}
        self.put(CLUSTER_QUEUES, {"metadata": {"name": "vision-h100", "labels": labels}, "spec": spec})
        self.put(
            LOCAL_QUEUES, {"metadata": {"name": "h100", "namespace": "vision"}, "spec": {"clusterQueue": "vision-h100"}}
        )
        for i in range(4):
            self.put(NODES, node(f"n{i}", f"r{i // 2}", 8))

    def put(self, kind: Resource, body: Json) -> None:
        self.cache.upsert(kind.plural, body)

    def policy(self, **parts: Any) -> None:
        data = {"policy.json": json.dumps(parts)}
        self.put(CONFIG_MAPS, {"metadata": {"name": "myriad-policy", "namespace": "myriad-system"}, "data": data})

    def workload(self, name: str, *, gpus: int, nodes: tuple[str, ...] = (), priority: int = 0) -> None:
        """A gang of 8 GPUs a pod that runs on nodes, or waits where there are none."""
        resources = {"requests": {"nvidia.com/gpu": "8"}}
        template = {"spec": {"containers": [{"name": "c", "resources": resources}]}}
        status: Json = {}
        if nodes:
            counts = {"individual": [1] * len(nodes)}
            values = [{"individual": {"roots": list(nodes)}}]
            topology = {
                "levels": ["kubernetes.io/hostname"],
                "slices": [{"domainCount": len(nodes), "podCounts": counts, "valuesPerLevel": values}],
            }
            assigned = {
                "name": "main",
                "count": len(nodes),
                "resourceUsage": {"nvidia.com/gpu": str(gpus)},
                "topologyAssignment": topology,
            }
            since = (NOW - timedelta(hours=1)).isoformat()
            status = {
                "admission": {"clusterQueue": "vision-h100", "podSetAssignments": [assigned]},
                "conditions": [
                    {"type": t, "status": "True", "lastTransitionTime": since} for t in ("QuotaReserved", "Admitted")
                ],
            }
        self.put(
            WORKLOADS,
            {
                "metadata": {
                    "name": f"job-{name}",
                    "namespace": "vision",
                    "uid": name,
                    "creationTimestamp": "2026-11-30T04:00:00Z",
                },
                "spec": {
                    "queueName": "h100",
                    "priority": priority,
                    "podSets": [{"name": "main", "count": gpus // 8, "template": template}],
                },
                "status": status,
            },
        )

    def says(
        self, form: Form = "batch", *, balance: Balance | None = None, missing: tuple[str, ...] = (), **changes: Any
    ) -> Verdict:
        plain = Request(
            form=form, name="bert", namespace="vision", queue="h100", nodes=2, gpus=8, image=IMAGE, hours=Fraction(6)
        )
        objects = render(dataclasses.replace(plain, **changes)).objects
        (work,) = works(scene_of([Document(o) for o in objects]))
        return judge(self.cache, work, balance=balance, missing=missing, now=NOW)


def test_it_fits_and_where_and_what_it_costs() -> None:
    said = Site().says(balance=Balance(Decimal(4210), "month"))
    assert said.state == "fits"
    assert said.sentence == "fits now. 2 x 8 H100 in hall1/b1/r0 (same rack), 96 GPU-hours of 4,210 left this month."


def test_both_forms_and_shapes_get_the_same_answer() -> None:
    site = Site()
    assert site.says("pytorch").sentence == site.says("batch").sentence
    assert site.says(nodes=4).sentence.startswith("fits now. 4 x 8 H100 in hall1/b1 (same block)")
    assert site.says(nodes=1).sentence.startswith("fits now. 1 x 8 H100 in hall1/b1/r0/n0 (one node)")


def test_it_waits_for_quota_with_the_numbers() -> None:
    site = Site(quota=16)
    site.workload("a", gpus=16, nodes=("n0", "n1"))
    said = site.says()
    assert said.state == "waits"
    assert said.sentence == "waits for quota: needs 16 H100, vision has 16, 16 in use, 96 GPU-hours at most."
    site.workload("b", gpus=16)
    assert "2nd in the queue" in site.says().sentence


def test_it_waits_behind_those_of_the_same_priority_only() -> None:
    site = Site()
    site.policy(priorities={"urgent": 1000, "normal": 500})
    site.workload("b", gpus=16, priority=500)
    assert "1 of the same or a higher priority ahead; 2nd in the queue" in site.says(priority="normal").sentence
    assert site.says(priority="urgent").state == "fits"


def test_b15_it_waits_for_nodes_though_the_sum_would_do() -> None:
    site = Site(quota=64)
    for name in ("n4", "n5"):
        site.put(NODES, node(name, "r1", 4))
    site.workload("a", gpus=24, nodes=("n0", "n1", "n2"))
    said = site.says()
    assert said.state == "waits" and "for quota" not in said.sentence
    assert site.says(nodes=1).state == "fits"


def test_a5_what_no_node_can_hold_is_refused() -> None:
    said = Site().says(gpus=16)
    assert said.state == "refused" and "no node of pool h100 has 16 GPUs (8 at most)" in said.sentence


def test_d13_more_than_the_quota_ever_gives_is_refused_and_an_elastic_job_by_its_minimum() -> None:
    site = Site(quota=16)
    assert site.says(nodes=3).sentence.startswith("needs 24 H100, and vision has 16 and borrows nothing")
    assert site.says(nodes=3, minimum=2).state == "fits"
    assert (
        Site(quota=16, borrow=8).says(nodes=4).sentence.startswith("needs 32 H100, and vision has 16 and may borrow 8")
    )


def test_e1_a_budget_that_is_used_up_holds_it_and_one_that_is_short_warns() -> None:
    used = Site().says(balance=Balance(Decimal(0), "month", "2026-12-01"))
    assert used.state == "waits" and "used up: it is held until 2026-12-01" in used.sentence
    short = Site().says(balance=Balance(Decimal(40), "month"))
    assert short.state == "fits" and any("only 40 are left" in note for note in short.notes)


@pytest.mark.parametrize(
    ("rules", "hours", "state", "said"),
    [
        ({"max_hours": 4}, 6, "refused", "above the 4 h that pool h100 allows"),
        ({"max_hours": 6}, 6, "fits", ""),
        ({"unlimited": "refuse"}, None, "refused", "takes no job without a time limit"),
        (
            {"unlimited": "default", "default_hours": 24},
            None,
            "fits",
            "will be ended after 24 h, the default of pool h100",
        ),
        ({"max_hours": 48}, None, "fits", "will be ended after 48 h: pool h100 allows no more"),
        ({"max_hours": 48}, None, "fits", "768 GPU-hours at most"),
        ({"unlimited": "allow"}, None, "fits", "no time limit"),
    ],
)
def test_a_time_limit_by_the_rules_of_the_pool(rules: Json, hours: int | None, state: str, said: str) -> None:
    site = Site()
    site.policy(pools={"h100": rules})
    verdict = site.says(hours=None if hours is None else Fraction(hours))
    assert verdict.state == state
    assert said in " ".join((verdict.sentence, *verdict.notes))


def test_d15_a_checkpoint_interval_above_the_policy_warns() -> None:
    site = Site()
    site.policy(preemption={"checkpoint_max_age_s": 900})
    assert any("wants a checkpoint within 15 min" in note for note in site.says(checkpoint_interval="2h").notes)
    assert not any("checkpoint" in note for note in site.says(checkpoint_interval="10m").notes)


def test_a_stopped_queue_is_said() -> None:
    site = Site()
    queue = {
        "metadata": {"name": "h100", "namespace": "vision"},
        "spec": {"clusterQueue": "vision-h100", "stopPolicy": "Hold"},
    }
    site.put(LOCAL_QUEUES, queue)
    said = site.says()
    assert said.state == "waits" and "is stopped (Hold)" in said.sentence


def test_what_these_credentials_may_not_read_is_said() -> None:
    site = Site()
    assert site.says(missing=("nodes",)).sentence.startswith("its quota is free. 2 x 8")
    site.cache.replace("clusterqueues", [])
    said = site.says(missing=("clusterqueues", "nodes"))
    assert said.state == "unknown" and "may not read clusterqueues" in said.sentence
    assert site.says().state == "refused"


def test_a_plain_user_hears_the_quota_by_the_queues_status() -> None:
    """Such a user sees no other team's Workloads and pods; Kueue writes what is given out into the queue itself."""
    site = Site(quota=24)
    hidden = (QUOTA, PLACEMENT)
    assert site.says(missing=hidden).sentence.startswith("its quota is free. 2 x 8 H100")
    queue = site.cache.object(CLUSTER_QUEUES, "vision-h100")
    assert queue is not None
    given = [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "total": "16"}, {"name": "cpu", "total": "8"}]}]
    site.put(CLUSTER_QUEUES, {**queue, "status": {"flavorsReservation": given}})
    said = site.says(missing=hidden)
    assert said.state == "waits" and "vision has 24, 16 in use" in said.sentence
    assert site.says(missing=hidden, gpus=16).state == "refused", "what no node can hold is known from the nodes alone"


def test_gpus_that_others_use_are_told_by_the_extension() -> None:
    site = Site()
    add_others(site.cache, {f"n{i}": {"used": 8} for i in range(3)} | {"gone": {"used": 8}, "n3": {"used": 0}})
    assert site.says(nodes=1).sentence.startswith("fits now. 1 x 8 H100 in hall1/b1/r1/n3 (one node)")
    assert site.says(nodes=2).state == "waits"


@pytest.mark.parametrize("end", ["2026-12-01T00:00:00Z", 1796083200])
def test_the_extensions_answer_is_read_for_the_pool_of_the_job(end: object) -> None:
    rows = [
        {"pool": "a100", "left_h": 1, "period": "month", "period_end": end},
        {"pool": "h100", "project": "bert", "left_h": 2, "period": "month", "period_end": end},
        {"pool": "h100", "project": "", "left_h": 4210.5, "period": "month", "period_end": end},
    ]
    assert balance_in(rows, "h100") == balance_in({"budgets": rows}, "h100")
    assert balance_in(rows, "h100") == Balance(Decimal("4210.5"), "month", "2026-12-01")
    for odd in (None, {}, [], [None], [{"pool": "h100", "left_h": "much"}]):
        assert balance_in(odd, "h100") is None
