"""The gangs of a soak as jobs, and somebody else's marks on nodes: what the harness itself writes into the cluster."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError, ClusterUnreachableError
from myriad.kube.kinds import JOBS, NODES, PODS
from myriad.lab.soak.invariants import Planted
from myriad.lab.soak.plan import Gang

Json = dict[str, Any]

GRACE_S = 10
JOB_LABEL = "dev.myriad.lab/soak"
JOB_NAME = "batch.kubernetes.io/job-name"
FOREIGN = "example.com/soak"
"""Key of the taint and the label that stand for somebody else's."""
TAINT = {"key": FOREIGN, "value": "keep", "effect": "PreferNoSchedule"}
MANAGER = "myriad-soak"
RETRY_S = 300.0
"""So long a call is made again while the API server, or a webhook behind it, is away."""


def job_of(gang: Gang, example: Json) -> Json:
    """The Job of a gang, made from an example of this project: its image, queue and rights. Pure.

    Its pods sleep and do not heed SIGTERM, so that each takes its whole grace; a lost node is no failure of the job.

    Args:
        gang: what is wanted.
        example: the Job of docs/examples/gang.yml.
    """
    job = copy.deepcopy(example)
    job["metadata"] |= {"name": gang.name, "namespace": gang.namespace}
    job["metadata"].pop("annotations", None)
    job["metadata"]["labels"] |= {JOB_LABEL: "gang"}
    job["spec"] |= {"completions": gang.pods, "parallelism": gang.pods, "backoffLimit": 100}
    template = job["spec"]["template"]
    template.pop("metadata", None)
    pod = template["spec"]
    pod.pop("subdomain", None)
    pod["terminationGracePeriodSeconds"] = GRACE_S
    # A node that is lost is given up soon, and not after five minutes.
    pod["tolerations"] = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10}
        for key in ("unreachable", "not-ready")
    ]
    container = pod["containers"][0]
    container["command"] = ["python3", "-c", f"import time; time.sleep({gang.seconds})"]
    container["env"] = []
    container["resources"] = {
        "requests": {"cpu": "10m", "memory": "16Mi", "nvidia.com/gpu": gang.gpus},
        "limits": {"memory": "64Mi", "nvidia.com/gpu": gang.gpus},
    }
    return job


def persistently(
    call: Callable[[], Any], *, timeout_s: float = RETRY_S, is_over: Callable[[], bool] = lambda: False
) -> Any:
    """Make a call to the API server, again while the server or a webhook is away.

    Raises:
        ApiError, ClusterUnreachableError: it was refused, or nobody answered for too long.
    """
    end = time.monotonic() + timeout_s
    while True:
        try:
            return call()
        except ClusterUnreachableError:
            if is_over() or time.monotonic() > end:
                raise
        except ApiError as error:
            # A server that has just started knows neither rights (403) nor kinds (404) for a moment; after a conflict
            # the call reads anew. What is wrong in itself stays so.
            if error.status in (400, 422) or is_over() or time.monotonic() > end:
                raise
        time.sleep(1.0)


class Gangs:
    """The jobs of a soak.

    Args:
        api: admin credentials.
        example: see `job_of`.
    """

    def __init__(self, api: Api, example: Json) -> None:
        self._api = api
        self._example = example

    def submit(self, gang: Gang, *, is_over: Callable[[], bool] = lambda: False) -> None:
        """Create the Job of a gang; one that is there already is fine, as an answer may be lost.

        Raises:
            MyriadError: it is refused, or nobody answers for five minutes.
        """

        def create() -> None:
            try:
                self._api.create(JOBS, job_of(gang, self._example), namespace=gang.namespace)
            except ApiError as error:
                if not error.is_conflict:
                    raise

        persistently(create, is_over=is_over)

    def ends(self) -> dict[str, str]:
        """How each gang has ended: `namespace/name` -> Complete or Failed; those that go on are left out."""
        return {
            f"{job['metadata']['namespace']}/{job['metadata']['name']}": str(condition["type"])
            for job in self._api.list(JOBS, labels=JOB_LABEL)[0]
            for condition in (job.get("status") or {}).get("conditions") or []
            if condition["type"] in ("Complete", "Failed") and condition["status"] == "True"
        }

    def remove(self, *, timeout_s: float = RETRY_S) -> None:
        """Delete the gangs of every soak, and wait until their pods are gone.

        Raises:
            MyriadError: they are not within the time.
        """
        end = time.monotonic() + timeout_s
        while True:
            jobs = persistently(lambda: self._api.list(JOBS, labels=JOB_LABEL)[0], timeout_s=timeout_s)
            for job in jobs:
                name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
                persistently(partial(self._api.delete, JOBS, name, namespace=namespace), timeout_s=timeout_s)
            pods = persistently(lambda: self._api.list(PODS, labels=JOB_NAME)[0], timeout_s=timeout_s)
            left = [pod for pod in pods if str(pod["metadata"]["labels"][JOB_NAME]).startswith("soak-")]
            if not jobs and not left:
                return
            if time.monotonic() > end:
                raise MyriadError(
                    f"{len(jobs)} jobs and {len(left)} pods of the soak are still there",
                    hint=f"kubectl delete jobs -A -l {JOB_LABEL}",
                )
            time.sleep(1.0)


class Foreign:
    """Somebody else: sets a taint, a label and cordons on nodes, and knows what it set.

    Args:
        api: admin credentials.
        planted: what is set now, and from when to when; shared with the rule that watches it.
    """

    def __init__(self, api: Api, planted: list[Planted]) -> None:
        self._api = api
        self._planted = planted

    def mark(self, node: str) -> None:
        """Set taint and label.

        Raises:
            MyriadError: the API server refuses, or does not answer.
        """

        def taint() -> None:
            self._taints(node, lambda taints: [*_without(taints), TAINT])

        persistently(taint)
        self._plant(node, "taint", f"{TAINT['key']}={TAINT['value']}:{TAINT['effect']}")
        self._patch(node, {"metadata": {"labels": {FOREIGN: "keep"}}})
        self._plant(node, "label", f"{FOREIGN}=keep")

    def cordon(self, node: str) -> None:
        """Cordon; an annotation tells a later soak whose it is, where this one is killed."""
        self._patch(node, {"metadata": {"annotations": {FOREIGN: "cordon"}}, "spec": {"unschedulable": True}})
        self._plant(node, "cordon", "")

    def uncordon(self, node: str) -> None:
        """Take back the cordon that a soak set."""
        self._lift(node, "cordon")
        self._patch(node, {"metadata": {"annotations": {FOREIGN: None}}, "spec": {"unschedulable": None}})

    def sweep(self) -> None:
        """Take back every mark and cordon that a soak set, an earlier one too."""
        for body in persistently(lambda: self._api.list(NODES)[0]):
            node = str(body["metadata"]["name"])
            if FOREIGN in (body["metadata"].get("annotations") or {}):
                self.uncordon(node)
            if any(taint["key"] == FOREIGN for taint in (body.get("spec") or {}).get("taints") or []):
                self._lift(node, "taint")
                persistently(partial(self._taints, node, _without))
            if FOREIGN in (body["metadata"].get("labels") or {}):
                self._lift(node, "label")
                self._patch(node, {"metadata": {"labels": {FOREIGN: None}}})

    def _plant(self, node: str, what: Literal["taint", "label", "cordon"], value: str) -> None:
        self._planted.append(Planted(node, what, value, time.time()))

    def _lift(self, node: str, what: str) -> None:
        """From now on its absence is nobody's fault: said before it is removed."""
        for one in self._planted:
            if one.node == node and one.what == what and one.until is None:
                one.until = time.time()

    def _patch(self, node: str, body: Json) -> None:
        persistently(lambda: self._api.patch(NODES, node, body, field_manager=MANAGER))

    def _taints(self, node: str, change: Callable[[list[Json]], list[Json]]) -> None:
        """Taints are a list without names: written over exactly what was read, or refused with a conflict."""
        body = self._api.get(NODES, node)
        taints = change(list((body.get("spec") or {}).get("taints") or []))
        metadata = {"resourceVersion": body["metadata"]["resourceVersion"]}
        self._api.patch(NODES, node, {"metadata": metadata, "spec": {"taints": taints}}, field_manager=MANAGER)


def _without(taints: list[Json]) -> list[Json]:
    return [taint for taint in taints if taint["key"] != FOREIGN]
