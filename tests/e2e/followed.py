"""What tests on the lab see of jobs from outside: every state that a watch showed, with the time at which it came."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from myriad.kube.client import Api
from myriad.kube.kinds import PODS, WORKLOADS
from myriad.kube.watch import Watch
from myriad.scheduler.notices.facts import moment

Json = dict[str, Any]


def until(check: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """Poll until the check gives something true, and give that back."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if found := check():
            return found
        time.sleep(0.5)
    raise AssertionError(f"not within {timeout_s:.0f} s: {what}")


@dataclass
class Transition:
    """A condition of a Workload changed: by its own time, and when a watch brought it (seconds since the epoch)."""

    type: str
    status: str
    reason: str
    at: datetime
    seen: float


@dataclass
class PodSeen:
    """A pod's life. Times are the node's and the API server's own; they have whole seconds."""

    name: str
    job: str
    index: str
    node: str = ""
    created: datetime | None = None
    told_at: datetime | None = None
    grace_s: int | None = None
    ready: bool = False
    started: dict[str, datetime] = field(default_factory=dict)
    ended: dict[str, tuple[datetime, int]] = field(default_factory=dict)
    restarts: int = 0
    gone: float | None = None


def job_of(obj: Json) -> str:
    """The Job that owns a Workload or a pod."""
    owners = obj["metadata"].get("ownerReferences") or []
    return next((str(o["name"]) for o in owners if o["kind"] == "Job"), "")


class Followed:
    """Follows Workloads and pods of some namespaces until closed."""

    def __init__(self, api: Api, namespaces: list[str]) -> None:
        self.transitions: dict[str, list[Transition]] = defaultdict(list)
        self.workloads: dict[str, Json] = {}
        self.pods: dict[str, PodSeen] = {}
        self._stop = threading.Event()
        for namespace in namespaces:
            Watch(api, WORKLOADS, _Handler(self._workload), stop=self._stop, namespace=namespace).start()
            Watch(api, PODS, _Handler(self._pod, self._gone), stop=self._stop, namespace=namespace).start()

    def close(self) -> None:
        """End the watches."""
        self._stop.set()

    def _workload(self, obj: Json) -> None:
        job = job_of(obj)
        self.workloads[job] = obj
        known = self.transitions[job]
        for c in (obj.get("status") or {}).get("conditions") or []:
            last = next((t for t in reversed(known) if t.type == c["type"]), None)
            if last is None or last.status != c["status"]:
                at = moment(c["lastTransitionTime"])
                assert at is not None
                known.append(Transition(c["type"], c["status"], str(c.get("reason") or ""), at, time.time()))

    def _pod(self, obj: Json) -> None:
        metadata, status = obj["metadata"], obj.get("status") or {}
        labels = metadata.get("labels") or {}
        index = labels.get("batch.kubernetes.io/job-completion-index", "")
        pod = self.pods.setdefault(metadata["uid"], PodSeen(metadata["name"], job_of(obj), index))
        pod.created = moment(metadata["creationTimestamp"])
        pod.node = obj["spec"].get("nodeName") or pod.node
        # The first word counts: a kubelet whose containers have all ended deletes the pod with a grace of nothing.
        if pod.told_at is None:
            pod.told_at = moment(metadata.get("deletionTimestamp"))
            pod.grace_s = metadata.get("deletionGracePeriodSeconds", pod.grace_s)
        pod.ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or [])
        for container in [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]:
            state, name = container.get("state") or {}, container["name"]
            pod.restarts = max(pod.restarts, int(container.get("restartCount") or 0))
            began = moment((state.get("running") or state.get("terminated") or {}).get("startedAt"))
            if began:
                pod.started[name] = began
            ended = state.get("terminated")
            at = moment((ended or {}).get("finishedAt"))
            if ended and at:
                pod.ended[name] = (at, int(ended["exitCode"]))

    def _gone(self, obj: Json) -> None:
        # The last state comes with the deletion: exit codes that no update showed.
        self._pod(obj)
        self.pods[obj["metadata"]["uid"]].gone = time.time()

    def of(self, job: str) -> list[PodSeen]:
        """Every pod that a job ever had, oldest first."""
        found = [p for p in list(self.pods.values()) if p.job == job]
        return sorted(found, key=lambda p: (str(p.created), p.index))

    def running(self, job: str, count: int) -> list[PodSeen] | None:
        """The pods of a job that run, where there are so many."""
        found = [p for p in self.of(job) if p.ready and p.told_at is None and p.gone is None]
        return found if len(found) == count else None

    def last(self, job: str, type_: str) -> Transition | None:
        """The last change of a condition of a job's Workload."""
        return next((t for t in reversed(self.transitions.get(job, [])) if t.type == type_), None)

    def is_true(self, job: str, type_: str) -> bool:
        """Whether a condition holds."""
        last = self.last(job, type_)
        return last is not None and last.status == "True"

    def charged(self, job: str) -> list[tuple[datetime, datetime]]:
        """From Admitted to Evicted or Finished, by the Workload's own conditions, each time that it was admitted."""
        spans: list[tuple[datetime, datetime]] = []
        began: datetime | None = None
        for t in self.transitions.get(job, []):
            if t.type == "Admitted" and t.status == "True":
                began = t.at
            elif began is not None and t.type in ("Evicted", "Finished") and t.status == "True":
                spans.append((began, t.at))
                began = None
        return spans


class _Handler:
    def __init__(self, changed: Callable[[Json], None], removed: Callable[[Json], None] = lambda _: None) -> None:
        self._changed, self._removed = changed, removed

    def replace(self, items: list[Json]) -> None:
        for item in items:
            self._changed(item)

    def upsert(self, obj: Json) -> None:
        self._changed(obj)

    def remove(self, obj: Json) -> None:
        self._removed(obj)
