"""Watches of a test's own that keep what must never be: a GPU given twice, a gang bound in part, an admission twice.

Two accounts are kept and each is judged at every change: what Kueue has given (the nodes of Workloads that hold quota)
and what really stands on the nodes (pods that have a node and have not ended, those that are leaving among them).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from myriad.kube.client import Api
from myriad.kube.kinds import PODS, WORKLOADS
from myriad.kube.watch import Watch
from myriad.scheduler.objects import WorkloadView, workload_view

Json = dict[str, Any]

GPU = "nvidia.com/gpu"


class Bookings:
    """What was seen.

    Args:
        gpus_per_node: what a node has.

    Attributes:
        faults: what must never be, in sentences.
        admissions: times at which a Workload (by uid) was admitted, as its own condition says.
        views: each Workload as it was seen last, by uid.
        bodies: the same, raw; of those that are gone too.
        lock: held while anything of it changes.
        partly_bound_s: the longest time that each job's pods stood in part, by namespace/job.
    """

    def __init__(self, *, gpus_per_node: int = 8) -> None:
        self.faults: list[str] = []
        self.admissions: dict[str, set[str]] = {}
        self.views: dict[str, WorkloadView] = {}
        self.bodies: dict[str, Json] = {}
        self.partly_bound_s: dict[str, float] = {}
        self._gpus = gpus_per_node
        self._pods: dict[str, Json] = {}
        self._since: dict[str, float] = {}
        self.lock = threading.Lock()

    def admitted(self) -> int:
        """Workloads that were ever admitted."""
        return len(self.admissions)

    def workload(self, obj: Json, *, gone: bool = False) -> None:
        """A Workload changed."""
        view = workload_view(obj, check_name="myriad")
        with self.lock:
            if gone:
                self.views.pop(view.gang.uid, None)
            else:
                self.views[view.gang.uid] = view
                self.bodies[view.gang.uid] = obj
                at = moment_of(obj, "Admitted")
                if at:
                    self.admissions.setdefault(view.gang.uid, set()).add(at)
            given: dict[str, list[tuple[int, str]]] = {}
            for one in self.views.values():
                if one.quota_reserved and not one.finished and one.assignment:
                    for podset in one.gang.podsets:
                        each = podset.requests.get(GPU, 0)
                        for node, pods in one.assignment.get(podset.name, {}).items():
                            given.setdefault(node, []).append((each * pods, one.gang.name))
            self._judge("Kueue has given", given)

    def pod(self, obj: Json, *, gone: bool = False) -> None:
        """A pod changed."""
        uid = obj["metadata"]["uid"]
        with self.lock:
            if gone:
                self._pods.pop(uid, None)
            else:
                self._pods[uid] = obj
            standing: dict[str, list[tuple[int, str]]] = {}
            for pod in self._pods.values():
                node = pod["spec"].get("nodeName")
                if node and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
                    limits = pod["spec"]["containers"][0]["resources"].get("limits") or {}
                    standing.setdefault(node, []).append((int(limits.get(GPU, 0)), pod["metadata"]["name"]))
            self._judge("pods stand on", standing)

    def _judge(self, what: str, by_node: dict[str, list[tuple[int, str]]]) -> None:
        for node, holders in by_node.items():
            if sum(gpus for gpus, _ in holders) > self._gpus:
                self.faults.append(f"{what} {node} twice: {sorted(holders)}")

    def sample(self) -> None:
        """Which gangs are bound in part now, and for how long."""
        now = time.monotonic()
        with self.lock:
            gangs: dict[str, list[bool]] = {}
            for pod in self._pods.values():
                name = (pod["metadata"].get("labels") or {}).get("batch.kubernetes.io/job-name")
                # One that is leaving frees its node as fast as its grace allows; it binds nothing more.
                if name and not pod["metadata"].get("deletionTimestamp"):
                    key = f"{pod['metadata']['namespace']}/{name}"
                    gangs.setdefault(key, []).append(bool(pod["spec"].get("nodeName")))
            parts = {key for key, bound in gangs.items() if any(bound) and not all(bound)}
            for key in self._since.keys() - parts:
                del self._since[key]
            for key in parts:
                began = self._since.setdefault(key, now)
                self.partly_bound_s[key] = max(self.partly_bound_s.get(key, 0.0), now - began)


def moment_of(workload: Json, condition: str) -> str:
    """Since when a condition of a Workload is true; empty where it is not."""
    for one in (workload.get("status") or {}).get("conditions") or []:
        if one["type"] == condition and one["status"] == "True":
            return str(one["lastTransitionTime"])
    return ""


class _Handler:
    def __init__(self, take: Callable[..., None]) -> None:
        self._take = take
        self._known: dict[str, Json] = {}

    def replace(self, items: list[Json]) -> None:
        alive = {item["metadata"]["uid"] for item in items}
        for uid in self._known.keys() - alive:
            self._take(self._known.pop(uid), gone=True)
        for item in items:
            self.upsert(item)

    def upsert(self, obj: Json) -> None:
        self._known[obj["metadata"]["uid"]] = obj
        self._take(obj)

    def remove(self, obj: Json) -> None:
        self._known.pop(obj["metadata"]["uid"], None)
        self._take(obj, gone=True)


@contextmanager
def watched(api: Api) -> Iterator[Bookings]:
    """Follow Workloads and pods until the block ends."""
    found = Bookings()
    stop = threading.Event()
    Watch(api, WORKLOADS, _Handler(found.workload), stop=stop).start()
    Watch(api, PODS, _Handler(found.pod), stop=stop).start()

    def sample() -> None:
        while not stop.wait(0.2):
            found.sample()

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join(timeout=5)
