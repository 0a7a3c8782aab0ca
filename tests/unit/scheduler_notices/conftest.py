"""A cluster in memory with an evicted gang, and an API that keeps ConfigMaps, Events, Secrets and Jobs."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from myriad.kube.client import ApiError
from myriad.kube.kinds import CLUSTER_QUEUES, LOCAL_QUEUES, NAMESPACES, PODS, WORKLOADS, Resource
from myriad.scheduler.cache import Cache, key_of
from myriad.scheduler.policy import SitePolicy

Json = dict[str, Any]

NOW = datetime(2026, 11, 30, 14, 59, 31, tzinfo=UTC)
MESSAGE = (
    "Preempted to accommodate a workload (UID: uid-asr-prod, JobUID: job-uid-asr-prod) due to {why}; "
    "preemptor path: /research/speech-h100; preemptee path: /research/vision-h100"
)


def stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


class FakeApi:
    """Objects by kind with resourceVersions; `fail` raises before the next write of a kind."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Json]] = {}
        self.writes: list[tuple[str, str, str, Any]] = []
        self.fail: dict[str, list[Exception]] = {}
        self._version = 0

    def put(self, resource: Resource, obj: Json) -> Json:
        self._version += 1
        stored = copy.deepcopy(obj)
        stored["metadata"]["resourceVersion"] = str(self._version)
        self.objects.setdefault(resource.plural, {})[key_of(stored)] = stored
        return copy.deepcopy(stored)

    def find(self, resource: Resource, name: str, *, namespace: str | None = None) -> Json | None:
        found = self.objects.get(resource.plural, {}).get(f"{namespace}/{name}" if namespace else name)
        return copy.deepcopy(found)

    def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Json:
        found = self.find(resource, name, namespace=namespace)
        if found is None:
            raise ApiError(404, "NotFound", name, where=resource.plural)
        return found

    def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str = "",
        **_: Any,
    ) -> tuple[list[Json], str]:
        node = fields.removeprefix("spec.nodeName=")
        items = [
            copy.deepcopy(o)
            for o in self.objects.get(resource.plural, {}).values()
            if (namespace is None or o["metadata"].get("namespace") == namespace)
            and (not node or (o.get("spec") or {}).get("nodeName") == node)
            and (not labels or dict([labels.split("=")]).items() <= (o["metadata"].get("labels") or {}).items())
        ]
        return items, str(self._version)

    def _write(self, verb: str, resource: Resource, name: str, body: Any) -> None:
        if self.fail.get(resource.plural):
            raise self.fail[resource.plural].pop(0)
        self.writes.append((verb, resource.plural, name, body))

    def create(self, resource: Resource, body: Json, *, namespace: str | None = None) -> Json:
        self._write("create", resource, body["metadata"]["name"], body)
        if key_of(body) in self.objects.get(resource.plural, {}):
            raise ApiError(409, "AlreadyExists", "it exists", where=resource.plural)
        return self.put(resource, body)

    def patch(
        self, resource: Resource, name: str, body: Json, *, kind: str = "merge", namespace: str | None = None, **_: Any
    ) -> Json:
        self._write("patch", resource, name, body)
        found = self.get(resource, name, namespace=namespace)
        version = body["metadata"].get("resourceVersion")
        if version is not None and version != found["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified", where=resource.plural)
        return self.put(resource, _merge(found, body))

    def delete(self, resource: Resource, name: str, *, namespace: str | None = None) -> None:
        self._write("delete", resource, name, None)
        self.objects.get(resource.plural, {}).pop(f"{namespace}/{name}" if namespace else name, None)


def _merge(into: Json, body: Json) -> Json:
    merged = dict(into)
    for key, value in body.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key) or {}, value) if isinstance(value, dict) else value
    return merged


def workload(
    job: str,
    *,
    namespace: str = "vision",
    pods: int = 2,
    gpus: int = 8,
    priority: int = 500,
    priority_class: str = "normal",
    conditions: dict[str, tuple[str, str, str]] | None = None,
    at: datetime = NOW,
    created: str = "2026-11-30T10:00:00Z",
    annotations: Json | None = None,
    **status: Any,
) -> Json:
    """A Workload; `conditions`: type -> (status, reason, message)."""
    times = status.pop("times", {})
    held = {"Admitted": ("True", "Admitted", ""), **(conditions or {})}
    admission = {
        "clusterQueue": f"{namespace}-h100",
        "podSetAssignments": [{"name": "main", "count": pods, "resourceUsage": {"nvidia.com/gpu": str(pods * gpus)}}],
    }
    if held["Admitted"][0] == "True":
        held.setdefault("QuotaReserved", ("True", "QuotaReserved", ""))
        status.setdefault("admission", admission)
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": f"job-{job}",
            "namespace": namespace,
            "uid": f"uid-{job}",
            "creationTimestamp": created,
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"job-uid-{job}", "controller": True}
            ],
        },
        "spec": {
            "queueName": "h100",
            "priority": priority,
            "priorityClassRef": {"kind": "WorkloadPriorityClass", "name": priority_class},
            "podSets": [
                {
                    "name": "main",
                    "count": pods,
                    "template": {
                        "metadata": {"annotations": annotations or {}},
                        "spec": {"containers": [{"resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}]},
                    },
                }
            ],
        },
        "status": {
            "conditions": [
                {"type": k, "status": s, "reason": r, "message": m, "lastTransitionTime": stamp(times.get(k, at))}
                for k, (s, r, m) in held.items()
            ],
            **status,
        },
    }


def preempted(
    policy: str = "InCohortReclamation", why: str = "reclamation within the cohort"
) -> dict[str, tuple[str, str, str]]:
    message = MESSAGE.format(why=why)
    return {"Evicted": ("True", "Preempted", message), "Preempted": ("True", policy, message)}


def pod(
    name: str,
    job: str,
    *,
    namespace: str = "vision",
    node: str = "g1",
    grace_s: int = 300,
    deleted_at: datetime | None = None,
    phase: str = "Running",
    exit_code: int | None = None,
    **metadata: Any,
) -> Json:
    """A GPU pod of a job; `deleted_at`: when it was told to end."""
    if deleted_at is not None:
        metadata |= {
            "deletionTimestamp": stamp(deleted_at + timedelta(seconds=grace_s)),
            "deletionGracePeriodSeconds": grace_s,
        }
    statuses = [] if exit_code is None else [{"state": {"terminated": {"exitCode": exit_code}}}]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"job-uid-{job}", "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"pod-{name}",
            "ownerReferences": [owner] if job else [],
            **metadata,
        },
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": grace_s,
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
        },
        "status": {"phase": phase, "startTime": "2026-11-30T12:00:00Z", "containerStatuses": statuses},
    }


def cluster_queue(team: str, gpus: int) -> Json:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": f"{team}-h100", "labels": {"myriad.dev/pool": "h100", "myriad.dev/team": team}},
        "spec": {
            "cohortName": "research",
            "resourceGroups": [
                {
                    "coveredResources": ["nvidia.com/gpu"],
                    "flavors": [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": str(gpus)}]}],
                }
            ],
        },
    }


POLICY: Json = {
    "cluster": "test",
    "priorities": {"urgent": 1000, "normal": 500, "scavenge": 100},
    "pools": {"h100": {"model": "H100-SXM5-80GB"}},
    "teams": {
        "vision": {"namespaces": ["vision"], "notify": ["oncall"]},
        "speech": {"namespaces": ["speech"], "notify": []},
    },
    "notify_targets": {"oncall": {"kind": "webhook", "url": "http://oncall.example/hook"}},
}


class World:
    """Two teams that share; nothing runs yet."""

    def __init__(self) -> None:
        self.now = NOW
        self.api = FakeApi()
        self.cache = Cache(check_name="myriad")
        self.policy = SitePolicy.read(POLICY)
        for team in ("vision", "speech"):
            self.put(NAMESPACES, {"metadata": {"name": team, "labels": {"myriad.dev/team": team}}})
            self.put(CLUSTER_QUEUES, cluster_queue(team, 16))
            spec = {"clusterQueue": f"{team}-h100"}
            self.put(LOCAL_QUEUES, {"metadata": {"name": "h100", "namespace": team}, "spec": spec})

    def put(self, resource: Resource, obj: Json) -> None:
        self.cache.upsert(resource.plural, copy.deepcopy(self.api.put(resource, obj)))

    def drop(self, resource: Resource, key: str) -> None:
        self.cache.remove(resource.plural, self.api.objects[resource.plural].pop(key))

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def clock(self) -> float:
        return self.now.timestamp()

    def preempt(self, job: str = "clip-ft", *, pods: int = 2, **options: Any) -> None:
        """A running gang of vision is preempted for speech/asr-prod, which waits."""
        waits = {"Admitted": ("False", "", "")}
        self.put(
            WORKLOADS,
            workload("asr-prod", namespace="speech", pods=1, priority=1000, priority_class="urgent", conditions=waits),
        )
        started = {"Admitted": self.now - timedelta(hours=2), "QuotaReserved": self.now - timedelta(hours=2)}
        evicted = workload(job, pods=pods, conditions=preempted(), at=self.now, times=started, **options)
        for i in range(pods):
            self.put(PODS, pod(f"{job}-{i}", job, node=f"g{i}", deleted_at=self.now))
        self.put(WORKLOADS, evicted)

    def events(self) -> list[Json]:
        return list(self.api.objects.get("events", {}).values())


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def make() -> Any:
    """Builders of objects."""

    class Make:
        workload = staticmethod(workload)
        pod = staticmethod(pod)
        preempted = staticmethod(preempted)
        message = MESSAGE
        now = NOW

    return Make
