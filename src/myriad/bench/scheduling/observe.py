"""What a watcher sees of the jobs of an arm, each time on one clock: the watcher's own, at the moment of the change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from myriad.kube.client import Api
from myriad.kube.kinds import JOBS, PODS, WORKLOADS
from myriad.kube.watch import Watch
from myriad.scheduler.job_facts import WAITING
from myriad.scheduler.objects import workload_view

Json = dict[str, Any]
Change = tuple[float, str]

_JOB_LABEL = "batch.kubernetes.io/job-name"


@dataclass(slots=True)
class Seen:
    """One job's life. Times are monotonic seconds; None = it did not come to that.

    Attributes:
        submitted: when its creation was asked for.
        workload: when Kueue had made its Workload.
        reserved, admitted: when it had quota; when it was admitted.
        assigned: pods by node, as TAS said.
        bound: node of each pod by the pod's uid; ``bound_all``: when the last of its pods had one.
        running: when all its pods ran at once, the first time.
        finished: when its Workload was finished.
        kueue: what Kueue said on the Workload while it waited, each change with its time.
        told: what stood on the Job itself (condition myriad.dev/Waiting), the same.
        evicted: times that it was evicted.
    """

    submitted: float | None = None
    workload: float | None = None
    reserved: float | None = None
    admitted: float | None = None
    assigned: dict[str, int] = field(default_factory=dict)
    bound: dict[str, str] = field(default_factory=dict)
    bound_all: float | None = None
    running: float | None = None
    finished: float | None = None
    kueue: list[Change] = field(default_factory=list)
    told: list[Change] = field(default_factory=list)
    evicted: int = 0


class Observed:
    """Follows Workloads, Jobs and pods. Read it with `lock` held, or when nothing changes any more.

    Args:
        api: the client.
        pods: pods of each job by `namespace/name`; only these jobs are followed. More may be added later.
        clock: seconds.
    """

    def __init__(self, api: Api, pods: dict[str, int], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.lock = threading.RLock()
        self.jobs: dict[str, Seen] = {}
        self.used: dict[str, list[tuple[float, int]]] = {}
        """GPUs that Workloads hold of each ClusterQueue, after each change."""
        self._pods = pods
        self._clock = clock
        self._held: dict[str, tuple[str, int]] = {}
        self._sum: dict[str, int] = {}
        self._running: dict[str, set[str]] = {}
        self._stop = threading.Event()
        feeds = ((WORKLOADS, self.workload), (JOBS, self.job), (PODS, self.pod))
        self._watches = [Watch(api, kind, _Feed(take), stop=self._stop) for kind, take in feeds]

    def start(self) -> None:
        """Begin, and return when everything is followed."""
        for watch in self._watches:
            watch.start()
        for watch in self._watches:
            watch.synced.wait(60)

    def stop(self) -> None:
        """The watches end with their next change."""
        self._stop.set()

    def submitted(self, key: str) -> None:
        """A job is about to be created."""
        with self.lock:
            self.jobs.setdefault(key, Seen()).submitted = self._clock()

    def count(self, what: Callable[[Seen], bool]) -> int:
        """How many jobs are so."""
        with self.lock:
            return sum(1 for seen in self.jobs.values() if what(seen))

    # What the watches bring

    def workload(self, body: Json, gone: bool) -> None:
        """A Workload was added, changed or removed."""
        now = self._clock()
        view = workload_view(body, check_name="myriad")
        key = f"{view.gang.namespace}/{view.gang.name}"
        if key not in self._pods:
            return
        with self.lock:
            seen = self.jobs.setdefault(key, Seen())
            seen.workload = seen.workload or now
            if view.quota_reserved and not view.finished:
                seen.reserved = seen.reserved or now
            if view.admitted and not seen.admitted:
                seen.admitted, seen.assigned = now, dict(view.nodes)
            if view.finished:
                seen.finished = seen.finished or now
            if view.waiting and view.quota_message and (not seen.kueue or seen.kueue[-1][1] != view.quota_message):
                seen.kueue.append((now, view.quota_message))
            seen.evicted = max(seen.evicted, 1 if view.evicted else 0)
            holds = view.quota_reserved and not view.finished and not gone
            self._hold(key, (view.cluster_queue, view.gpus_held) if holds else None, now)

    def _hold(self, key: str, held: tuple[str, int] | None, now: float) -> None:
        before = self._held.get(key)
        if before == held:
            return
        for part, sign in ((before, -1), (held, 1)):
            if part is not None:
                queue, gpus = part
                self._sum[queue] = self._sum.get(queue, 0) + sign * gpus
                self.used.setdefault(queue, [(0.0, 0)]).append((now, self._sum[queue]))
        if held is None:
            del self._held[key]
        else:
            self._held[key] = held

    def job(self, body: Json, gone: bool) -> None:
        """A Job was added, changed or removed."""
        now = self._clock()
        key = f"{body['metadata']['namespace']}/{body['metadata']['name']}"
        if key not in self._pods or gone:
            return
        for condition in (body.get("status") or {}).get("conditions") or []:
            if condition["type"] == WAITING and condition["status"] == "True":
                with self.lock:
                    told = self.jobs.setdefault(key, Seen()).told
                    if not told or told[-1][1] != condition["message"]:
                        told.append((now, condition["message"]))

    def pod(self, body: Json, gone: bool) -> None:
        """A pod was added, changed or removed."""
        now = self._clock()
        metadata = body["metadata"]
        key = f"{metadata['namespace']}/{(metadata.get('labels') or {}).get(_JOB_LABEL, '')}"
        wanted = self._pods.get(key)
        node = body["spec"].get("nodeName")
        if wanted is None or not node:
            return
        with self.lock:
            seen = self.jobs.setdefault(key, Seen())
            seen.bound[metadata["uid"]] = node
            if seen.bound_all is None and len(seen.bound) >= wanted:
                seen.bound_all = now
            running = self._running.setdefault(key, set())
            if not gone and (body.get("status") or {}).get("phase") == "Running":
                running.add(metadata["uid"])
            else:
                running.discard(metadata["uid"])
            if seen.running is None and len(running) >= wanted:
                seen.running = now


class _Feed:
    """A watch's way to one of the methods above."""

    def __init__(self, take: Callable[[Json, bool], None]) -> None:
        self._take = take

    def replace(self, items: list[Json]) -> None:
        for item in items:
            self._take(item, False)

    def upsert(self, obj: Json) -> None:
        self._take(obj, False)

    def remove(self, obj: Json) -> None:
        self._take(obj, True)
