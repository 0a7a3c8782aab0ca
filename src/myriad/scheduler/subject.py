"""From a name that a person typed to the object that is meant: kinds, places in the API, pods. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from myriad.errors import InputError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import (
    JOBS,
    PODS,
    WORK,
    WORKLOADS,
    Resource,
)
from myriad.kube.listing import listed

Json = dict[str, Any]

KINDS: tuple[Resource, ...] = (*WORK, WORKLOADS)
"""Kinds that a job may be, in the order in which a bare name is looked for."""

FRAMEWORKS = {
    "Job": "batch/job", "PyTorchJob": "kubeflow.org/pytorchjob", "JobSet": "jobset.x-k8s.io/jobset",
    "TrainJob": "trainer.kubeflow.org/trainjob", "MPIJob": "kubeflow.org/mpijob", "TFJob": "kubeflow.org/tfjob",
    "XGBoostJob": "kubeflow.org/xgboostjob", "PaddleJob": "kubeflow.org/paddlejob", "JAXJob": "kubeflow.org/jaxjob",
    "RayJob": "ray.io/rayjob", "RayCluster": "ray.io/raycluster", "Pod": "pod", "Deployment": "deployment",
    "StatefulSet": "statefulset", "LeaderWorkerSet": "leaderworkerset.x-k8s.io/leaderworkerset",
}  # fmt: skip
"""Kueue's name of the integration that manages a kind."""

_SHORT = {
    "deploy": "Deployment",
    "sts": "StatefulSet",
    "po": "Pod",
    "lws": "LeaderWorkerSet",
    "wl": "Workload",
    "pytj": "PyTorchJob",
}
POD_GROUP = "PodGroup"
GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"

_POD_LABELS = {
    "Job": "batch.kubernetes.io/job-name",
    "JobSet": "jobset.sigs.k8s.io/jobset-name",
    "PyTorchJob": "training.kubeflow.org/job-name",
    "MPIJob": "training.kubeflow.org/job-name",
    "TFJob": "training.kubeflow.org/job-name",
    "XGBoostJob": "training.kubeflow.org/job-name",
    "PaddleJob": "training.kubeflow.org/job-name",
    "JAXJob": "training.kubeflow.org/job-name",
    "TrainJob": "jobset.sigs.k8s.io/jobset-name",
    "RayJob": "ray.io/originated-from-cr-name",
    "RayCluster": "ray.io/cluster",
    "LeaderWorkerSet": "leaderworkerset.sigs.k8s.io/name",
    POD_GROUP: GROUP_LABEL,
}


@dataclass(frozen=True, slots=True)
class Subject:
    """What is asked about: one object, or a group of plain pods.

    Attributes:
        kind: "Job", "Pod", ..., or "PodGroup" for plain pods with a group's name.
        name, namespace: of the object.
        body: the object; None for a group, and where it may not be read.
    """

    kind: str
    name: str
    namespace: str
    body: Json | None = None

    @property
    def uid(self) -> str:
        """The object's uid, "" where it was not read."""
        return str(((self.body or {}).get("metadata") or {}).get("uid") or "")


def kind_of(word: str) -> Resource | None:
    """The kind that a word names: `job`, `jobs`, `jobs.batch`, `PyTorchJob`, `deploy`; None for a word that is none."""
    low = word.lower()
    first = low.split(".")[0]
    for resource in KINDS:
        if first in (resource.kind.lower(), resource.plural) or _SHORT.get(first) == resource.kind:
            return resource
    return None


def split_subject(text: str) -> tuple[str, str, str]:
    """(kind word, namespace, name) of `name`, `kind/name`, `namespace/name` or `namespace/kind/name`.

    A word that is a kind's name is taken as the kind. Raises InputError for anything else.
    """
    parts = text.split("/")
    if not all(parts) or len(parts) > 3:
        raise InputError(f"{text!r} names no job", hint="write NAME, KIND/NAME, NAMESPACE/NAME or NAMESPACE/KIND/NAME")
    if len(parts) == 1:
        return "", "", parts[0]
    if len(parts) == 2:
        return (parts[0], "", parts[1]) if _is_kind(parts[0]) else ("", parts[0], parts[1])
    if not _is_kind(parts[1]):
        known = [r.kind for r in KINDS] + [POD_GROUP]
        close = get_close_matches(parts[1], known + [k.lower() for k in known], 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        raise InputError(f"{parts[1]!r} is no kind of job", hint=hint)
    return parts[1], parts[0], parts[2]


def _is_kind(word: str) -> bool:
    return kind_of(word) is not None or word.lower() == POD_GROUP.lower()


def find_subject(api: Api, namespace: str, name: str, kind: str = "") -> tuple[Subject | None, tuple[str, ...]]:
    """The object of that name, and the kinds that these credentials may not read.

    Without a kind the first of `KINDS` that has it; a group of plain pods last. An object that owns another of the
    same name (a JobSet its Job) is no case here: names of owned objects differ.
    """
    unread: list[str] = []
    if kind.lower() == POD_GROUP.lower():
        return _group(api, namespace, name), ()
    wanted = [r for r in (kind_of(kind),) if r] if kind else list(KINDS)

    def look(resource: Resource) -> Json | None:
        try:
            return api.find(resource, name, namespace=namespace)
        except ApiError as error:
            if error.status in (401, 403):
                unread.append(resource.plural)
                return None
            raise

    with ThreadPoolExecutor(max_workers=8) as pool:
        for resource, body in zip(wanted, pool.map(look, wanted), strict=True):
            if body is not None:
                if resource is WORKLOADS:
                    return _owner_of_workload(api, body), tuple(unread)
                return Subject(resource.kind, name, namespace, body), tuple(unread)
    if kind:
        return None, tuple(unread)
    return _group(api, namespace, name), tuple(unread)


def _owner_of_workload(api: Api, workload: Json) -> Subject:
    metadata = workload["metadata"]
    for owner in metadata.get("ownerReferences") or []:
        resource = kind_of(str(owner.get("kind")))
        if resource is not None:
            body = api.find(resource, owner["name"], namespace=metadata["namespace"])
            return Subject(resource.kind, owner["name"], metadata["namespace"], body)
    return Subject("Workload", metadata["name"], metadata["namespace"], workload)


def _group(api: Api, namespace: str, name: str) -> Subject | None:
    try:
        pods, _ = api.list(PODS, namespace=namespace, labels=f"{GROUP_LABEL}={name}")
    except ApiError as error:
        if error.status in (400, 401, 403):
            return None  # what is no label's value is no group's name
        raise
    return Subject(POD_GROUP, name, namespace) if pods else None


def pods_of(api: Api, subject: Subject) -> list[Json]:
    """The pods of a subject, whatever their state. Raises ApiError where they may not be read."""
    if subject.kind == "Pod":
        return [subject.body] if subject.body else []
    label = _POD_LABELS.get(subject.kind)
    if label:
        return api.list(PODS, namespace=subject.namespace, labels=f"{label}={subject.name}")[0]
    selector = (((subject.body or {}).get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    if selector:
        return api.list(
            PODS, namespace=subject.namespace, labels=",".join(f"{k}={v}" for k, v in sorted(selector.items()))
        )[0]
    return []


def names_like(api: Api, namespace: str, name: str) -> list[str]:
    """Names of jobs in a namespace that are close to one that does not exist, as `kind/name` for all but Jobs."""
    found: dict[str, str] = {}
    for resource in KINDS[:3] + tuple(r for r in KINDS if r.kind in ("Deployment", "StatefulSet")):
        for body in listed(api, resource, namespace=namespace) or ():
            short = body["metadata"]["name"]
            found.setdefault(short, short if resource is JOBS else f"{resource.kind.lower()}/{short}")
    return [found[n] for n in close_names(name, found)]


def close_names(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Names that are nearly the one typed, or that begin with it."""
    names: Sequence[str] = sorted(known)
    close = get_close_matches(name, names, most, 0.7)
    return (close + [n for n in names if n.startswith(name) and n not in close])[:most]
