"""A small cluster in memory: objects, and an API that keeps the rules the real one enforces on Workloads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from myriad.kube.client import ApiError
from myriad.kube.kinds import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    COHORTS,
    LEASES,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_FLAVORS,
    TOPOLOGIES,
    WORKLOADS,
    Resource,
)
from myriad.scheduler.cache import Cache, key_of
from myriad.scheduler.decisions import DecisionLog
from myriad.scheduler.events import EventSink
from myriad.scheduler.metrics import Metrics
from myriad.scheduler.records import RecordBook
from myriad.scheduler.settings import Settings
from myriad.scheduler.steering import Steering

Json = dict[str, Any]
CHECK = "myriad"
KUEUE = "kueue.x-k8s.io/v1beta2"


class FakeApi:
    """Objects by kind. Writes are checked as the API server and Kueue's webhook check them."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Json]] = {}
        self.events: list[tuple[str, str, str]] = []
        self.writes: list[tuple[str, str, Any]] = []
        self.before_write: Callable[[], None] | None = None
        self._version = 100

    def close(self) -> None:
        """A verb closes what it opened; there is no connection here."""

    def put(self, resource: Resource, obj: Json) -> Json:
        self._version += 1
        obj = copy.deepcopy(obj)
        obj["metadata"]["resourceVersion"] = str(self._version)
        self.objects.setdefault(resource.plural, {})[key_of(obj)] = obj
        return copy.deepcopy(obj)

    def drop(self, resource: Resource, key: str) -> None:
        del self.objects[resource.plural][key]

    def _find(self, resource: Resource, name: str, namespace: str | None) -> Json:
        key = f"{namespace}/{name}" if namespace else name
        found = self.objects.get(resource.plural, {}).get(key)
        if found is None:
            raise ApiError(404, "NotFound", f"{key} not found", where=resource.plural)
        return found

    def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Json:
        return copy.deepcopy(self._find(resource, name, namespace))

    def find(self, resource: Resource, name: str, *, namespace: str | None = None) -> Json | None:
        try:
            return self.get(resource, name, namespace=namespace)
        except ApiError:
            return None

    def list(self, resource: Resource, *, namespace: str | None = None, **_: Any) -> tuple[list[Json], str]:
        items = [
            copy.deepcopy(o)
            for o in self.objects.get(resource.plural, {}).values()
            if namespace is None or o["metadata"].get("namespace") == namespace
        ]
        return items, str(self._version)

    def create(self, resource: Resource, body: Json, *, namespace: str | None = None) -> Json:
        if key_of(body) in self.objects.get(resource.plural, {}):
            raise ApiError(409, "AlreadyExists", "it exists", where=resource.plural)
        return self.put(resource, body)

    def replace(self, resource: Resource, name: str, body: Json, *, namespace: str | None = None) -> Json:
        self._same_version(self._find(resource, name, namespace), body)
        return self.put(resource, body)

    def patch(
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        kind: str = "merge",
        namespace: str | None = None,
        subresource: str | None = None,
        **_: Any,
    ) -> Json:
        if self.before_write is not None:
            hook, self.before_write = self.before_write, None
            hook()
        current = self._find(resource, name, namespace)
        self._same_version(current, body)
        new = copy.deepcopy(current)
        if resource is WORKLOADS and subresource == "status":
            assert kind == "apply" and list(body["status"]) == ["admissionChecks"], "only our field, by apply"
            (entry,) = body["status"]["admissionChecks"]
            assert entry["name"] == CHECK, "only our own entry"
            self._webhook(current, entry)
            entries = new["status"]["admissionChecks"]
            new["status"]["admissionChecks"] = [entry if e["name"] == CHECK else e for e in entries]
        elif resource is WORKLOADS:
            annotations = new["metadata"].setdefault("annotations", {})
            for key, value in body["metadata"]["annotations"].items():
                annotations.pop(key, None) if value is None else annotations.__setitem__(key, value)
        elif resource is CLUSTER_QUEUES:
            assert kind == "apply" and set(body["spec"]) <= {"admissionChecksStrategy"}, "one field of a ClusterQueue"
            new["spec"].pop("admissionChecksStrategy", None)
            new["spec"].update(body["spec"])
        elif resource is ADMISSION_CHECKS and subresource is None:
            assert set(body["metadata"]) == {"annotations"}, "the mark of the dead-man alone"
            for key, value in body["metadata"]["annotations"].items():
                assert value is None
                new["metadata"]["annotations"].pop(key, None)
        elif resource is ADMISSION_CHECKS:
            assert subresource == "status"
            new["status"] = body["status"]
        else:
            raise AssertionError(f"nobody may write {resource.plural}")
        self.writes.append((resource.plural, name, body))
        return self.put(resource, new)

    @staticmethod
    def _same_version(current: Json, body: Any) -> None:
        wanted = body["metadata"].get("resourceVersion") if isinstance(body, dict) else None
        if wanted is not None and wanted != current["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified", where="test")

    @staticmethod
    def _webhook(current: Json, entry: Json) -> None:
        old = next(e for e in current["status"]["admissionChecks"] if e["name"] == CHECK)
        if old["state"] == entry["state"] == "Ready" and old.get("podSetUpdates", []) != entry["podSetUpdates"]:
            raise ApiError(422, "Invalid", "podSetUpdates: field is immutable", where="test")

    def create_event(self, about: Json, *, reason: str, message: str, type_: str = "Normal", **_: Any) -> None:
        self.events.append((f"{about['kind']}/{about['metadata']['name']}", reason, message))


def node(name: str, path: tuple[str, ...] = ("hall1", "b1", "r1"), *, gpus: int = 8, **metadata: Any) -> Json:
    levels = ("room", "block", "rack")
    labels = {f"myriad.dev/{level}": ".".join(path[: i + 1]) for i, level in enumerate(levels[: len(path)])}
    labels |= {"myriad.dev/pool": "h100", "kubernetes.io/hostname": name, "myriad.dev/gpu-expected": str(gpus)}
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, **metadata},
        "spec": {},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def cluster_queue(name: str = "vision-h100", *, gpus: int = 32, cohort: str = "", team: str = "vision") -> Json:
    return {
        "apiVersion": KUEUE,
        "kind": "ClusterQueue",
        "metadata": {"name": name, "labels": {"myriad.dev/pool": "h100", "myriad.dev/team": team}},
        "spec": {
            **({"cohortName": cohort} if cohort else {}),
            "namespaceSelector": {},
            "resourceGroups": [
                {
                    "coveredResources": ["nvidia.com/gpu"],
                    "flavors": [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": str(gpus)}]}],
                }
            ],
        },
        "status": {},
    }


def workload(
    name: str,
    *,
    pods: int = 2,
    gpus: int = 8,
    state: str | None = "Pending",
    updates: list[Json] | None = None,
    assigned: dict[str, int] | None = None,
    admitted: bool = False,
    priority: int = 0,
    created: str = "2026-01-01T00:00:00Z",
    conditions: dict[str, tuple[str, str]] | None = None,
    pod_spec: Json | None = None,
    **spec: Any,
) -> Json:
    """A Workload of a Job of the same name. `assigned` = quota reserved on these nodes."""
    found = dict(conditions or {})
    admission = {}
    if assigned is not None:
        found["QuotaReserved"] = ("True", "Quota reserved")
        admission = {
            "clusterQueue": "vision-h100",
            "podSetAssignments": [
                {
                    "name": "main",
                    "count": pods,
                    "resourceUsage": {"nvidia.com/gpu": str(pods * gpus)},
                    "topologyAssignment": {
                        "levels": ["kubernetes.io/hostname"],
                        "slices": [
                            {
                                "domainCount": len(assigned),
                                "valuesPerLevel": [{"individual": {"roots": list(assigned)}}],
                                "podCounts": {"individual": list(assigned.values())},
                            }
                        ],
                    },
                }
            ],
        }
    if admitted:
        found["Admitted"] = ("True", "")
    requests = {"cpu": "1", "nvidia.com/gpu": str(gpus)}
    entry = {"name": CHECK, "state": state, "message": "", "lastTransitionTime": created}
    if updates is not None:
        entry["podSetUpdates"] = updates
    return {
        "apiVersion": KUEUE,
        "kind": "Workload",
        "metadata": {
            "name": f"job-{name}",
            "namespace": "vision",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "creationTimestamp": created,
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"job-uid-{name}", "controller": True}
            ],
        },
        "spec": {
            "queueName": "h100",
            "priority": priority,
            "podSets": [
                {
                    "name": "main",
                    "count": pods,
                    "template": {"spec": {"containers": [{"resources": {"requests": requests}}], **(pod_spec or {})}},
                }
            ],
            **spec,
        },
        "status": {
            "admissionChecks": [entry] if state else [],
            "conditions": [
                {"type": k, "status": s, "message": m, "reason": k, "lastTransitionTime": created}
                for k, (s, m) in found.items()
            ],
            **({"admission": admission} if admission else {}),
        },
    }


def pod(
    name: str,
    *,
    node_name: str = "",
    gpus: int = 8,
    of: str = "",
    phase: str = "Running",
    uid: str = "",
    **metadata: Any,
) -> Json:
    """A pod; `of` = the job whose Workload TAS placed it for."""
    extra: Json = {}
    if of:
        extra = {"annotations": {"kueue.x-k8s.io/workload": f"job-{of}"}, "labels": {"kueue.x-k8s.io/podset": "main"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "vision", "uid": uid or f"pod-{name}", **extra, **metadata},
        "spec": {
            **({"nodeName": node_name} if node_name else {}),
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}],
        },
        "status": {"phase": phase},
    }


class World:
    """A cluster in memory with a cache that follows it and one replica's steering."""

    def __init__(self, book: RecordBook, attach: str = "always") -> None:
        self.now = 1000.0
        self.api = FakeApi()
        self.book = book
        self.cache = Cache(check_name=CHECK, clock=lambda: self.now)
        self.metrics = Metrics()
        self.steering = Steering(
            api=self.api,  # type: ignore[arg-type]
            cache=self.cache,
            settings=Settings(identity="test", attach=attach),
            decisions=book,
            events=EventSink(self.api, interval_s=60, clock=lambda: self.now),  # type: ignore[arg-type]
            metrics=self.metrics,
            clock=lambda: self.now,
        )
        levels = ["myriad.dev/room", "myriad.dev/block", "myriad.dev/rack", "kubernetes.io/hostname"]
        self.put(TOPOLOGIES, {"metadata": {"name": "myriad"}, "spec": {"levels": [{"nodeLabel": x} for x in levels]}})
        self.put(RESOURCE_FLAVORS, {"metadata": {"name": "h100"}, "spec": {}})
        self.put(NAMESPACES, {"metadata": {"name": "vision", "labels": {"myriad.dev/team": "vision"}}})
        self.put(CLUSTER_QUEUES, cluster_queue())
        self.put(
            LOCAL_QUEUES,
            {"metadata": {"name": "h100", "namespace": "vision"}, "spec": {"clusterQueue": "vision-h100"}},
        )
        active = {"conditions": [{"type": "Active", "status": "True"}]}
        check = {"metadata": {"name": CHECK}, "spec": {"controllerName": "myriad.dev/scheduler"}, "status": active}
        self.put(ADMISSION_CHECKS, check)
        for i in range(8):
            self.put(NODES, node(f"n{i}", ("hall1", "b1", f"r{i // 4}")))

    def put(self, resource: Resource, obj: Json) -> Json:
        stored = self.api.put(resource, obj)
        self.cache.upsert(resource.plural, copy.deepcopy(stored))
        return stored

    def drop(self, resource: Resource, key: str) -> None:
        self.cache.remove(resource.plural, self.api.objects[resource.plural][key])
        self.api.drop(resource, key)

    def sync(self) -> None:
        """What a watch would have brought."""
        for resource in (NODES, PODS, WORKLOADS, CLUSTER_QUEUES, LOCAL_QUEUES, COHORTS, ADMISSION_CHECKS, LEASES):
            self.cache.replace(resource.plural, self.api.list(resource)[0])

    def run(self, times: int = 1) -> None:
        """Passes, each on what the one before has written."""
        for _ in range(times):
            self.steering.run_pass()
            self.sync()

    def entry(self, job: str) -> Json:
        body = self.api.get(WORKLOADS, f"job-{job}", namespace="vision")
        return next(e for e in body["status"]["admissionChecks"] if e["name"] == CHECK)

    def records(self, event: str) -> list[Any]:
        return [r for r in self.book.newest(1000) if r.event == event]


@pytest.fixture
def world(tmp_path: Any) -> Iterator[World]:
    """Two racks of four nodes, a queue of 32 GPUs with the check attached."""
    log = DecisionLog(tmp_path / "decisions.jsonl", fsync="never")
    made = World(RecordBook(log))
    made.run()
    made.api.writes.clear()
    yield made
    log.close()


@pytest.fixture
def on_demand(tmp_path: Any) -> Iterator[World]:
    """The same as it is by default: the queue asks the check while a gang waits in it."""
    log = DecisionLog(tmp_path / "decisions.jsonl", fsync="never")
    made = World(RecordBook(log), attach="waiting")
    made.run()
    assert not made.api.writes
    yield made
    log.close()


@pytest.fixture
def make() -> Any:
    """Builders of objects."""

    class Make:
        node = staticmethod(node)
        workload = staticmethod(workload)
        pod = staticmethod(pod)
        cluster_queue = staticmethod(cluster_queue)

    return Make
