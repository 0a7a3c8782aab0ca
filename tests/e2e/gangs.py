"""Thirty random gangs at once, watched from outside: what must never be seen, whatever the cluster is made of."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from myriad.errors import MyriadError
from myriad.kube.client import Api
from myriad.kube.kinds import JOBS, PODS, WORKLOADS
from myriad.scheduler.objects import pod_is_terminal, workload_key_of_pod, workload_view

Json = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """One random gang."""

    name: str
    namespace: str
    pods: int
    gpus: int


def random_sizes(seed: int, namespaces: list[str], *, count: int = 30, most_gpus: int = 16) -> list[Size]:
    """Gangs of 1 to 3 pods with 1 to 8 GPUs each, none larger than a team may ever hold."""
    chance = random.Random(seed)  # noqa: S311 - a test that can be repeated
    sizes: list[Size] = []
    while len(sizes) < count:
        pods, gpus = chance.randint(1, 3), chance.randint(1, 8)
        if pods * gpus <= most_gpus:
            sizes.append(Size(f"gang-{seed % 1000}-{len(sizes)}", namespaces[len(sizes) % len(namespaces)], pods, gpus))
    return sizes


@dataclass
class Watcher:
    """Looks at all pods twice a second until stopped, and keeps what it saw.

    Attributes:
        stood: job -> nodes on which a pod of it was ever seen.
        most_bound: the most GPUs ever seen bound on one node.
        partly_s: job -> longest time in which some but not all of its pods were bound.
        hold_and_wait_s: longest time in which two gangs, both partly bound, both had a pod that found no node.
    """

    api: Api
    sizes: dict[str, Size]
    stood: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    most_bound: int = 0
    partly_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    hold_and_wait_s: float = 0.0
    samples: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        partly_since: dict[str, float] = {}
        both_since: float | None = None
        while not self.stop.wait(0.5):
            try:
                pods, _ = self.api.list(PODS)
            except MyriadError:
                continue  # the API server may be busy; what counts is seen at the next look
            now = time.monotonic()
            self.samples += 1
            waiting = self._look(pods, partly_since, now)
            both_since = (both_since or now) if len(waiting) >= 2 else None
            if both_since is not None:
                self.hold_and_wait_s = max(self.hold_and_wait_s, now - both_since)

    def _look(self, pods: list[Json], partly_since: dict[str, float], now: float) -> set[str]:
        bound_gpus: dict[str, int] = defaultdict(int)
        bound: dict[str, int] = defaultdict(int)
        done: dict[str, int] = defaultdict(int)
        nowhere: set[str] = set()
        for pod in pods:
            job = _job_of(pod)
            node = pod["spec"].get("nodeName")
            if job and node:
                self.stood[job].add(node)
            if pod_is_terminal(pod):
                done[job] += pod["status"]["phase"] == "Succeeded"
                continue
            if node:
                bound_gpus[node] += _gpus(pod)
                bound[job] += 1
            elif any(c.get("reason") == "Unschedulable" for c in (pod.get("status") or {}).get("conditions") or []):
                nowhere.add(job)
        self.most_bound = max([self.most_bound, *bound_gpus.values()])
        waiting = set()
        for job, size in self.sizes.items():
            if bound[job] > 0 and bound[job] + done[job] < size.pods:
                since = partly_since.setdefault(job, now)
                self.partly_s[job] = max(self.partly_s[job], now - since)
                if job in nowhere:
                    waiting.add(job)
            else:
                partly_since.pop(job, None)
        return waiting


def _job_of(pod: Json) -> str:
    for owner in pod["metadata"].get("ownerReferences") or []:
        if owner["kind"] == "Job":
            return f"{pod['metadata']['namespace']}/{owner['name']}"
    return ""


def _gpus(pod: Json) -> int:
    return sum(
        int(((c.get("resources") or {}).get("limits") or {}).get("nvidia.com/gpu", 0))
        for c in pod["spec"]["containers"]
    )


def thirty_gangs(
    api: Api,
    sizes: list[Size],
    *,
    submit: Callable[[list[Size]], None],
    disturb: Callable[[], None],
    records: Callable[[Size], list[Json]],
    grace_s: float,
    timeout_s: float,
) -> None:
    """Submit all at once, disturb midway, wait until all have ended, and judge what was seen.

    Args:
        api: admin credentials.
        sizes: the gangs.
        submit: creates them.
        disturb: lets a node be lost and an intruder in; called when a third of the gangs have ended.
        records: decision records of a gang.
        grace_s: the gangs' grace period.
        timeout_s: all must have ended by then.
    """
    watcher = Watcher(api, {f"{s.namespace}/{s.name}": s for s in sizes})
    looking = threading.Thread(target=watcher.run, daemon=True)
    looking.start()
    try:
        submit(sizes)
        end = time.monotonic() + timeout_s
        disturbed = False
        while True:
            ended = {
                f"{j['metadata']['namespace']}/{j['metadata']['name']}": c["type"]
                for j in api.list(JOBS)[0]
                for c in (j.get("status") or {}).get("conditions") or []
                if c["type"] in ("Complete", "Failed") and c["status"] == "True"
            }
            ended = {job: how for job, how in ended.items() if job in watcher.sizes}
            if len(ended) >= len(sizes) // 3 and not disturbed:
                disturbed = True
                disturb()
            if len(ended) == len(sizes):
                break
            assert time.monotonic() < end, f"still there after {timeout_s} s: {_left(api, watcher.sizes, ended)}"
            time.sleep(1)
    finally:
        watcher.stop.set()
        looking.join(timeout=10)
    assert watcher.samples > 10
    failed = sorted(job for job, how in ended.items() if how == "Failed")
    assert not failed, f"these gangs failed: {failed}"
    assert watcher.most_bound <= 8, f"{watcher.most_bound} GPUs were bound on one node of 8"
    too_long = {job: round(s) for job, s in watcher.partly_s.items() if s > grace_s + 60}
    assert not too_long, f"partly bound for more than {grace_s + 60} s: {too_long}"
    assert watcher.hold_and_wait_s < 30, (
        f"two gangs held what the other waited for, for {watcher.hold_and_wait_s:.0f} s"
    )
    for size in sizes:
        found = records(size)
        assigned = {node for r in found if r["event"] == "assigned" for node in r["assigned"]}
        stood = watcher.stood[f"{size.namespace}/{size.name}"]
        assert stood, f"{size.name} was never seen on a node"
        assert stood <= assigned, f"{size.name} stood on {sorted(stood)}, decided was {sorted(assigned)}"
        outcome = [r for r in found if r["event"] == "outcome"]
        assert outcome and outcome[-1]["agree"] is not False, f"{size.name}: {outcome}"


def _left(api: Api, sizes: dict[str, Size], ended: dict[str, str]) -> list[str]:
    """What the gangs that have not ended are waiting for."""
    left = []
    for body in api.list(WORKLOADS)[0]:
        view = workload_view(body, check_name="myriad")
        job = f"{view.gang.namespace}/{view.gang.name}"
        if job in sizes and job not in ended:
            state = "admitted" if view.admitted else f"waits: {view.quota_message} {view.check}"
            left.append(f"{job} ({sizes[job].pods} x {sizes[job].gpus}): {state} on {view.nodes}")
    for pod in api.list(PODS)[0]:
        if not pod_is_terminal(pod) and _job_of(pod) in sizes:
            phase = (pod.get("status") or {}).get("phase")
            where = pod["spec"].get("nodeName")
            left.append(f"pod {pod['metadata']['name']} {phase} on {where}, Workload {workload_key_of_pod(pod)}")
    return left
