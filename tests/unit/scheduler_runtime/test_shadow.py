"""Shadow mode: what would be done is recorded as if it were done, and nothing in the cluster is written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from myriad.errors import InputError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import (
    CLUSTER_QUEUES,
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    LOCAL_QUEUES,
    NODES,
    PODS,
    RESOURCE_FLAVORS,
    TOPOLOGIES,
    WORKLOADS,
)
from myriad.scheduler.__main__ import Extension
from myriad.scheduler.cache import Cache
from myriad.scheduler.events import EventSink
from myriad.scheduler.ledger.holds import HELD_BY, POLICY
from myriad.scheduler.observers import observers_of
from myriad.scheduler.protect import Protection, operations
from myriad.scheduler.settings import Settings
from myriad.scheduler.shadow import ShadowApi, Withdrawing
from myriad.scheduler.steering import Steering
from myriad.scheduler.surroundings import Surroundings

RACK = "myriad.dev/rack"


@pytest.fixture
def shadow(world: Any) -> Any:
    """The same world, whose extension runs in shadow; no Workload or queue carries its check."""
    queue = world.api.get(CLUSTER_QUEUES, "vision-h100")
    queue["spec"].pop("admissionChecksStrategy", None)
    world.put(CLUSTER_QUEUES, queue)
    world.steering = Steering(
        api=world.api,
        cache=world.cache,
        settings=Settings(identity="test", shadow=True),
        decisions=world.book,
        events=EventSink(world.api, interval_s=60, clock=lambda: world.now),
        metrics=world.metrics,
        clock=lambda: world.now,
    )
    world.api.writes.clear()
    world.api.events.clear()
    return world


def nothing_was_written(world: Any) -> bool:
    return not world.api.writes and not world.api.events


def test_a_waiting_gang_gets_a_record_of_its_plan_and_nothing_else(shadow: Any, make: Any) -> None:
    shadow.put(WORKLOADS, make.workload("a", state=None))
    shadow.run(3)
    (record,) = shadow.records("planned")
    assert record.nodes == {"n0": 1, "n1": 1} and record.inputs.startswith("sha256:")
    assert record.extra["shadow"] is True
    assert record.extra["updates"] == [{"name": "main", "nodeSelector": {RACK: "hall1.b1.r0"}}]
    assert nothing_was_written(shadow)


def test_it_plans_as_it_would_steer(world: Any, make: Any, tmp_path: Path) -> None:
    """Switched on and in shadow, the same gangs on the same cluster are given the same places."""
    for i in range(3):
        world.put(WORKLOADS, make.workload(f"j{i}", pods=3, created=f"2026-01-01T00:00:0{i}Z"))
    world.run(3)
    steered = {r.name: r.extra["updates"] for r in world.records("steered")}
    for i in range(3):
        world.drop(WORKLOADS, f"vision/job-j{i}")
    world.steering = Steering(
        api=world.api, cache=world.cache, settings=Settings(identity="test", shadow=True), decisions=world.book,
        events=EventSink(world.api, interval_s=60), metrics=world.metrics,
    )  # fmt: skip
    for i in range(3):
        made = make.workload(f"j{i}", pods=3, state=None, created=f"2026-01-01T00:00:0{i}Z")
        world.put(WORKLOADS, made)
    world.run(3)
    assert steered and {r.name: r.extra["updates"] for r in world.records("planned")} == steered


def test_two_gangs_are_not_planned_onto_the_same_nodes(shadow: Any, make: Any) -> None:
    for i in range(3):
        made = make.workload(f"j{i}", pods=4, state=None, created=f"2026-01-01T00:00:0{i}Z")
        shadow.put(WORKLOADS, made)
    shadow.run(2)
    chosen = [frozenset(r.nodes) for r in shadow.records("planned")]
    assert len(chosen) == 2 and not chosen[0] & chosen[1]


def test_what_kueue_does_is_compared_with_the_plan(shadow: Any, make: Any) -> None:
    shadow.put(WORKLOADS, make.workload("a", state=None))
    shadow.run()
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    placed = make.workload("a", state=None, assigned={"n0": 1, "n7": 1})
    for condition in placed["status"]["conditions"]:
        condition["lastTransitionTime"] = now
    shadow.put(WORKLOADS, placed)
    shadow.run(2)
    (record,) = shadow.records("assigned")
    assert record.agree is False and record.extra["planned_tier"] == "rack" and record.assigned_tier == "block"
    assert shadow.metrics.differences._value.get() == 1
    assert nothing_was_written(shadow)


def test_a_gang_that_has_run_for_long_is_compared_with_nothing(shadow: Any, make: Any) -> None:
    shadow.put(WORKLOADS, make.workload("old", state=None, assigned={"n0": 1, "n7": 1}, admitted=True))
    shadow.run()
    (record,) = shadow.records("assigned")
    assert record.agree is None


def test_a_gang_that_was_evicted_is_planned_anew(shadow: Any, make: Any) -> None:
    shadow.put(WORKLOADS, make.workload("a", state=None))
    shadow.run()
    shadow.put(WORKLOADS, make.workload("a", state=None, assigned={"n0": 1, "n1": 1}))
    shadow.run()
    for i in range(4):
        shadow.put(PODS, make.pod(f"p{i}", node_name=f"n{i}"))
    shadow.put(WORKLOADS, make.workload("a", state=None))
    shadow.run(2)
    assert [sorted(r.nodes) for r in shadow.records("planned")][-1] == ["n4", "n5"]


def test_a_gang_that_never_fits_is_recorded_and_not_told(shadow: Any, make: Any) -> None:
    shadow.put(WORKLOADS, make.workload("huge", pods=1, gpus=16, state=None))
    shadow.run(3)
    (record,) = shadow.records("refused")
    assert "16" in record.reason
    assert nothing_was_written(shadow)


def test_a_cluster_that_others_built_is_planned_by_its_own_labels(shadow: Any, make: Any) -> None:
    """Neither pools nor levels of Myriad: another Topology, and a queue with one flavor. n0 to n3 are of its model."""
    rack = "cloud.example.com/rack"
    shadow.drop(TOPOLOGIES, "myriad")
    levels = [{"nodeLabel": rack}, {"nodeLabel": "kubernetes.io/hostname"}]
    shadow.put(TOPOLOGIES, {"metadata": {"name": "default"}, "spec": {"levels": levels}})
    for i in range(8):
        other = make.node(f"n{i}")
        product = "H100" if i < 4 else "A100"
        labels = {"kubernetes.io/hostname": f"n{i}", rack: f"r{i % 2}", "nvidia.com/gpu.product": product}
        other["metadata"]["labels"] = labels
        shadow.put(NODES, other)
    queue = make.cluster_queue()
    queue["metadata"]["labels"] = {}
    shadow.put(CLUSTER_QUEUES, queue)
    flavor = {"metadata": {"name": "h100"}, "spec": {"nodeLabels": {"nvidia.com/gpu.product": "H100"}}}
    shadow.put(RESOURCE_FLAVORS, flavor)
    for name, pods in (("a", 2), ("wide", 5)):
        shadow.put(WORKLOADS, make.workload(name, pods=pods, state=None))
    shadow.run(3)
    # One record: the label's own value is what leads there, so the plan is kept.
    (record,) = shadow.records("planned")
    assert record.name == "a" and set(record.nodes) in ({"n0", "n2"}, {"n1", "n3"})
    where = "r0" if "n0" in record.nodes else "r1"
    assert record.extra["updates"] == [{"name": "main", "nodeSelector": {rack: where}}]
    (refused,) = shadow.records("refused")
    assert refused.name == "wide", "four nodes are of the flavor's model"
    assert nothing_was_written(shadow)


def requests_of(transport_status: int = 200) -> tuple[Api, list[tuple[str, str]]]:
    seen: list[tuple[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, request.url.path))
        return httpx.Response(transport_status, json={"metadata": {"name": "x"}, "items": []})

    return Api("http://cluster", transport=httpx.MockTransport(answer)), seen


def test_its_client_lets_no_write_pass_but_records_of_its_own() -> None:
    """The transport records what would have reached the network."""
    inner, seen = requests_of()
    guarded = ShadowApi(inner, namespace="myriad-system")
    refused = [
        lambda: guarded.patch(NODES, "gpu1", {"spec": {"taints": []}}),
        lambda: guarded.patch(CLUSTER_QUEUES, "vision-h100", {"spec": {}}, kind="apply"),
        lambda: guarded.patch(WORKLOADS, "job-a", {}, namespace="vision", subresource="status"),
        lambda: guarded.create(CONFIG_MAPS, {}, namespace="vision"),
        lambda: guarded.create(EVENTS, {}, namespace="vision"),
        lambda: guarded.replace(LEASES, "x", {}, namespace="myriad-system"),
        lambda: guarded.delete(PODS, "a", namespace="vision"),
        lambda: guarded.evict("a", namespace="vision"),
    ]
    for call in refused:
        with pytest.raises(ApiError, match="shadow"):
            call()
    assert seen == []
    guarded.list(NODES)
    guarded.create(CONFIG_MAPS, {}, namespace="myriad-system")
    guarded.patch(CONFIG_MAPS, "myriad-evictions-000001", {}, namespace="myriad-system")
    assert [method for method, _ in seen] == ["GET", "POST", "PATCH"]


def test_nothing_that_acts_is_among_its_observers(world: Any) -> None:
    settings = Settings(identity="test")
    events = EventSink(world.api, interval_s=60)

    def names(of: Settings) -> set[str]:
        parts = Surroundings(world.api, world.cache, of, world.book, events, type(world.metrics)())
        return {observer.name for observer in observers_of(parts)}

    on, shadow = names(settings), names(replace(settings, shadow=True))
    assert "protecting" in on and "protecting" not in shadow
    assert shadow < on


@pytest.fixture
def extension(tmp_path: Path) -> Iterator[tuple[Extension, list[tuple[str, str]]]]:
    api, seen = requests_of()
    settings = Settings(identity="test", shadow=True, decisions=tmp_path / "decisions.jsonl")
    made = Extension(api, settings)
    yield made, seen
    made.stop.set()
    made.accounting.writer.close()
    made.accounting.ledger.store.close()
    made._log.close()
    api.close()


def test_the_whole_extension_writes_through_the_guard(extension: Any) -> None:
    made, seen = extension
    with pytest.raises(ApiError, match="shadow"):
        made.steering._api.patch(NODES, "gpu1", {})
    names = {type(worker).__name__ for worker in made._workers} | {
        observer.name for worker in made._workers for observer in getattr(worker, "_observers", [])
    }
    assert "withdrawing" in names and not names & {"protecting", "shields", "notices"}
    assert isinstance(made.stop, threading.Event) and seen == []


class Recording:
    """Takes patches; a watch would bring the result."""

    def __init__(self) -> None:
        self.patches: list[tuple[str, str, Any]] = []

    def patch(self, resource: Any, name: str, body: Any, **_: Any) -> dict[str, Any]:
        self.patches.append((resource.plural, name, body))
        return {}


def test_what_was_set_before_is_taken_back(make: Any) -> None:
    cache = Cache(check_name="myriad")
    queue = make.cluster_queue()
    queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": "myriad"}]}
    foreign = make.cluster_queue("foreign")
    foreign["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": "prov"}]}
    protection = Protection("uid-a", "vision/job-a", "vision/a", ("n0",), since=0.0, until=1.0, expires=2.0)
    kept = make.node("n0")
    kept["metadata"]["resourceVersion"] = "1"
    for change in operations(kept, protection):
        if change["path"] == "/metadata/annotations":
            kept["metadata"]["annotations"] = change["value"]
        elif change["path"] == "/spec/taints":
            kept["spec"]["taints"] = change["value"]
    kept["spec"]["taints"].append({"key": "of-somebody-else", "effect": "NoSchedule"})
    marks = {HELD_BY: "budget", POLICY: "Hold"}
    held = {
        "metadata": {"name": "h100", "namespace": "vision", "annotations": marks, "resourceVersion": "1"},
        "spec": {"clusterQueue": "vision-h100", "stopPolicy": "Hold"},
    }
    stopped = {
        "metadata": {"name": "other", "namespace": "vision", "resourceVersion": "1"},
        "spec": {"clusterQueue": "vision-h100", "stopPolicy": "Hold"},
    }
    for resource, objects in (
        (CLUSTER_QUEUES, [queue, foreign]), (NODES, [kept, make.node("n1")]), (LOCAL_QUEUES, [held, stopped]),
    ):  # fmt: skip
        cache.replace(resource.plural, objects)
    api = Recording()
    Withdrawing(api=api, cache=cache, check="myriad").step()  # type: ignore[arg-type]
    by_name = {(plural, name): body for plural, name, body in api.patches}
    assert set(by_name) == {("clusterqueues", "vision-h100"), ("nodes", "n0"), ("localqueues", "h100")}
    assert by_name["clusterqueues", "vision-h100"]["spec"] == {}
    taints = next(c["value"] for c in by_name["nodes", "n0"] if c["path"] == "/spec/taints")
    assert [t["key"] for t in taints] == ["of-somebody-else"]
    assert by_name["localqueues", "h100"]["spec"] == {"stopPolicy": None}


def test_the_setting_is_a_plain_true_or_false() -> None:
    assert Settings.from_env({"MYRIAD_SCHEDULER_SHADOW": "true"}).shadow is True
    assert Settings.from_env({"MYRIAD_SCHEDULER_SHADOW": "False"}).shadow is False
    assert Settings.from_env({}).shadow is False
    with pytest.raises(InputError, match="MYRIAD_SCHEDULER_SHADOW"):
        Settings.from_env({"MYRIAD_SCHEDULER_SHADOW": "maybe"})
