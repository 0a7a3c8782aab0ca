"""Jobs that a drain is about to evict: their owners are told, and have as long as they were promised.

Kueue says nothing of it: a drain evicts pods, not the Workload. So the plan stands on the Job before its pods are asked
to go (`announce`), also where nobody waits for an answer, and is taken away when the drain has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from myriad.errors import MyriadError
from myriad.kube.client import Api
from myriad.kube.drain import DrainError, PodView
from myriad.kube.kinds import JOBS, NODES, PYTORCH_JOBS, Resource
from myriad.scheduler.brake import trouble
from myriad.scheduler.braking import node_states
from myriad.scheduler.model import is_gpu_resource
from myriad.scheduler.notices.announce import Announced, JobChangedError, Plan, announce, withdraw
from myriad.scheduler.objects import pod_requests
from myriad.scheduler.policy import DEFAULT_LEVELS
from myriad.scheduler.words import duration

Json = dict[str, Any]

_QUEUE = "kueue.x-k8s.io/queue-name"
_LABELS = (("training.kubeflow.org/job-name", PYTORCH_JOBS), ("batch.kubernetes.io/job-name", JOBS))
_POLL_S = 2.0
_TIES = 5
"""How often a job that changes in the same moment is read again."""


class Farewell:
    """What a drain says to the jobs on its nodes.

    Args:
        api: the client.
        by: who drains, such as `reboot`.
        reason: why, as the end of a sentence that begins with "because".
        notice_s: how long jobs have from the announcement on; 0: they are told and asked to go at once.
        now, sleep: the time, and waiting.
        say: a line for whoever watches the drain.
    """

    def __init__(
        self,
        api: Api,
        *,
        by: str,
        reason: str = "",
        notice_s: float = 0.0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._api = api
        self._by = by
        self._reason = reason or "its nodes are needed empty"
        self._notice_s = notice_s
        self._now = now
        self._sleep = sleep
        self._say = say
        self._told: dict[tuple[str, str, str], Resource] = {}
        self._plan = ""

    def ask(self) -> None:
        """Whether this is the time to evict anything. Raises DrainError where the control plane is suspect."""
        found = trouble(node_states(self._api.list(NODES)[0], DEFAULT_LEVELS).values())
        if found is not None:
            raise DrainError(
                f"nothing was touched: {found.sentence()}",
                where=found.scope,
                hint="`kubectl get nodes`; `kubectl cordon` those that are really lost, then the same command again",
            )

    def tell(self, pods: Iterable[PodView]) -> None:
        """Announce to every queued job of these pods, and wait until all may be asked to go.

        Raises MyriadError where a job cannot be told; then it must not be evicted either.
        """
        jobs: dict[tuple[str, str, str], tuple[Resource, int, set[str]]] = {}
        for pod in pods:
            for label, resource in _LABELS:
                if pod.labels.get(label):
                    key = (resource.plural, pod.namespace, pod.labels[label])
                    known = jobs.setdefault(key, (resource, pod.grace_s, set()))
                    known[2].add(pod.node)
                    jobs[key] = (resource, max(known[1], pod.grace_s), known[2])
                    break
        nodes = sorted({node for _, _, held in jobs.values() for node in held})
        self._plan = f"{self._by} of {', '.join(nodes[:3])}{' and others' if len(nodes) > 3 else ''}"
        waiting = dict(jobs)
        said = False
        while waiting:
            for key, (resource, grace_s, _) in list(waiting.items()):
                if self._due(key, resource, grace_s):
                    del waiting[key]
            if waiting:
                if not said:
                    said = True
                    who = "1 job was" if len(waiting) == 1 else f"{len(waiting)} jobs were"
                    self._say(f"{who} told and may take {duration(self._notice_s)}")
                self._sleep(_POLL_S)

    def _due(self, key: tuple[str, str, str], resource: Resource, grace_s: int) -> bool:
        plan = Plan(self._plan, self._reason, self._notice_s, grace_s)
        done = self._announced(key, resource, plan)
        if done is None:
            return True
        if done.new:
            self._told[key] = resource
            self._say(done.text.splitlines()[0])
        return done.due

    def _announced(self, key: tuple[str, str, str], resource: Resource, plan: Plan) -> Announced | None:
        """What a job was told; None for one that needs no word: gone, ended, or of no queue.

        Raises JobChangedError where it changes again and again.
        """
        _, namespace, name = key
        for left in reversed(range(_TIES + 1)):
            job = self._api.find(resource, name, namespace=namespace)
            if job is None or not (job["metadata"].get("labels") or {}).get(_QUEUE) or has_ended(job):
                return None
            try:
                return announce(self._api, resource, job, plan, gpus=gpus_of(job), now=self._now())
            except JobChangedError:
                # Its controller counts pods all the time.
                if not left:
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    def end(self) -> None:
        """The drain is over, or was given up: nothing is planned any more."""
        for (_, namespace, name), resource in self._told.items():
            try:
                job = self._api.find(resource, name, namespace=namespace)
                if job is not None:
                    withdraw(self._api, resource, job, self._plan)
            except MyriadError as error:
                # The drain's own outcome matters more than a note on a job.
                self._say(f"the plan still stands on {namespace}/{name}: {error.message}")
        self._told.clear()


def has_ended(job: Json) -> bool:
    """Whether a Job or PyTorchJob is complete or failed."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(c["type"] in ("Complete", "Failed", "Succeeded") and c["status"] == "True" for c in conditions)


def gpus_of(job: Json) -> int:
    """GPUs that all pods of a Job or PyTorchJob ask for."""
    spec = job["spec"]
    if "pytorchReplicaSpecs" in spec:
        parts = [(int(r.get("replicas") or 1), r["template"]["spec"]) for r in spec["pytorchReplicaSpecs"].values()]
    else:
        parts = [(int(spec.get("parallelism") or 1), spec["template"]["spec"])]
    return sum(n * sum(a for r, a in pod_requests(pod).items() if is_gpu_resource(r)) for n, pod in parts)
