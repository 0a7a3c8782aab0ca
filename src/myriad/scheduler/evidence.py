"""What is known of one job outside the cache, read with the caller's own credentials. Reads only.

What may not be read, or is not served, is named in `Evidence.unread` and left out: a plain user of one namespace gets
an answer from what the namespace shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import yaml

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import (
    CONFIG_MAPS,
    EVENTS,
    LIMIT_RANGES,
    LOCAL_QUEUES,
    POD_GROUPS,
    PODS,
    RESOURCE_QUOTAS,
    VOLCANO_QUEUES,
    VOLUME_CLAIMS,
    WORKLOAD_PRIORITY_CLASSES,
    WORKLOADS,
    Resource,
)
from myriad.scheduler.causes import QUEUE_LABEL, Evidence, annotations_of, labels_of
from myriad.scheduler.causes_pods import claims_named
from myriad.scheduler.causes_volcano import GROUP_ANNOTATION
from myriad.scheduler.subject import Subject, find_subject, pods_of

Json = dict[str, Any]

KUEUE_NAMESPACE = "kueue-system"
KUEUE_CONFIG = "kueue-manager-config"


def gather(api: Api, namespace: str, job: str, kind: str = "", *, subject: Subject | None = None) -> Evidence:
    """Read the object of that name and everything about it.

    Args:
        api: with the caller's credentials.
        namespace, job: where and what.
        kind: a word for the kind; "" = whichever has the name.
        subject: the object, where the caller has found it already.
    """
    unread: list[str] = []
    try:
        if subject is None:
            subject, refused = find_subject(api, namespace, job, kind)
            unread.extend(refused)
    except MyriadError:
        unread.append("jobs")
    if subject is None:
        return Evidence(unread=tuple(unread))
    found = subject

    def read(what: Resource, fetch: Callable[[], Any]) -> Any:
        try:
            return fetch()
        except ApiError as error:
            if not error.is_not_found:
                unread.append(what.plural)
        except MyriadError:
            unread.append(what.plural)
        return None

    def listing(resource: Resource, namespaced: bool = True) -> Callable[[], list[Json]]:
        return lambda: api.list(resource, namespace=namespace if namespaced else None)[0]

    tasks: dict[str, tuple[Resource, Callable[[], Any]]] = {
        "pods": (PODS, lambda: pods_of(api, found)),
        "events": (EVENTS, listing(EVENTS)),
        "quotas": (RESOURCE_QUOTAS, listing(RESOURCE_QUOTAS)),
        "limits": (LIMIT_RANGES, listing(LIMIT_RANGES)),
        "claims": (VOLUME_CLAIMS, listing(VOLUME_CLAIMS)),
        "classes": (WORKLOAD_PRIORITY_CLASSES, listing(WORKLOAD_PRIORITY_CLASSES, False)),
        "groups": (POD_GROUPS, listing(POD_GROUPS)),
        "vqueues": (VOLCANO_QUEUES, listing(VOLCANO_QUEUES, False)),
        "config": (CONFIG_MAPS, lambda: api.get(CONFIG_MAPS, KUEUE_CONFIG, namespace=KUEUE_NAMESPACE)),
        "queue": (LOCAL_QUEUES, lambda: _queue_of(api, found)),
    }
    with ThreadPoolExecutor(max_workers=6) as pool:
        answers = dict(zip(tasks, pool.map(lambda task: read(*task), tasks.values()), strict=True))
    pods: list[Json] = answers["pods"] or []
    named = claims_named(found.kind, found.body, pods)
    claims = None
    if answers["claims"] is not None:
        by_name = {c["metadata"]["name"]: c for c in answers["claims"]}
        claims = {name: by_name.get(name) for name in named}
    groups = answers["groups"]
    looked = ["events"] * (answers["events"] is not None) + ["pods"] * (answers["pods"] is not None)
    looked += ["ResourceQuota"] * (answers["quotas"] is not None) + ["PVCs"] * (claims is not None)
    looked += ["Volcano"] * (groups is not None)
    # Kueue's own configuration lies in its namespace: a plain user's answer does without it, and need not say so.
    hidden = {CONFIG_MAPS.plural, VOLCANO_QUEUES.plural} if groups is None else {CONFIG_MAPS.plural}
    return Evidence(
        job=found.body,
        kind=found.kind,
        pods=tuple(pods),
        events=tuple(_about(answers["events"] or [], found, pods, named)),
        quotas=_tuple(answers["quotas"]),
        limit_ranges=_tuple(answers["limits"]),
        claims=claims,
        priority_classes=None
        if answers["classes"] is None
        else frozenset(c["metadata"]["name"] for c in answers["classes"]),
        stopped_by=_stopped_by(answers["queue"]),
        pod_groups=None if groups is None else tuple(g for g in groups if _is_of(g, found, pods)),
        volcano_queues=_tuple(answers["vqueues"]),
        frameworks=_frameworks(answers["config"]),
        unread=tuple(sorted(set(unread) - hidden)),
        looked_at=tuple(looked),
    )


def _tuple(items: list[Json] | None) -> tuple[Json, ...] | None:
    return None if items is None else tuple(items)


def _queue_of(api: Api, subject: Subject) -> Json | None:
    name = labels_of(subject.body).get(QUEUE_LABEL)
    return api.find(LOCAL_QUEUES, name, namespace=subject.namespace) if name else None


def _stopped_by(queue: Json | None) -> dict[str, str]:
    """Which program last set a queue's stopPolicy (its field manager)."""
    if queue is None:
        return {}
    for entry in (queue.get("metadata") or {}).get("managedFields") or []:
        if "f:stopPolicy" in ((entry.get("fieldsV1") or {}).get("f:spec") or {}):
            return {f"LocalQueue/{queue['metadata']['name']}": str(entry.get("manager") or "")}
    return {}


def _about(events: Iterable[Json], subject: Subject, pods: list[Json], claims: set[str]) -> list[Json]:
    """Events about the job, what it owns, its Workload, its pods and its claims."""
    uids = ({subject.uid} | {p["metadata"]["uid"] for p in pods}) - {""}
    owned = _owned_names(subject)
    names = {p["metadata"]["name"] for p in pods}
    found = []
    for event in events:
        about = event.get("involvedObject") or event.get("regarding") or {}
        name, kind = str(about.get("name") or ""), about.get("kind")
        mine = (
            (about.get("uid") in uids and about.get("uid"))
            or (kind == subject.kind and name == subject.name and not about.get("uid"))
            or (kind == "Pod" and name in names)
            or (kind == "PersistentVolumeClaim" and name in claims)
            or (kind in owned and owned[kind].fullmatch(name) is not None)
        )
        if mine:
            found.append(event)
    return found


def _owned_names(subject: Subject) -> dict[str, re.Pattern[str]]:
    """Names of what a job owns and whose Events are its own: its Workload, its ReplicaSets, the Jobs of a JobSet."""
    name = re.escape(subject.name)
    owned = {"Workload": re.compile(rf"[a-z]+-{name}-[0-9a-f]{{5}}|{name}")}
    if subject.kind == "Deployment":
        owned["ReplicaSet"] = re.compile(rf"{name}-[a-z0-9]{{5,10}}")
    if subject.kind in ("JobSet", "TrainJob"):
        owned["Job"] = re.compile(rf"{name}-[a-z0-9-]+-\d+")
    return owned


def _is_of(group: Json, subject: Subject, pods: list[Json]) -> bool:
    """Whether a PodGroup of Volcano is this job's: named by its pods, owned by it, or bearing its name."""
    metadata = group["metadata"]
    named = {annotations_of(p).get(GROUP_ANNOTATION) for p in pods} | {
        annotations_of(subject.body).get(GROUP_ANNOTATION)
    }
    owners = {str(o.get("uid") or "") for o in metadata.get("ownerReferences") or []}
    return metadata["name"] in named or metadata["name"] == subject.name or bool(subject.uid and subject.uid in owners)


def _frameworks(config: Json | None) -> frozenset[str] | None:
    """Kinds that Kueue manages, from its configuration; None where it was not read or says nothing of it."""
    text = ((config or {}).get("data") or {}).get("controller_manager_config.yaml")
    if not text:
        return None
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    names = ((document or {}).get("integrations") or {}).get("frameworks") if isinstance(document, dict) else None
    return frozenset(names) if names else None


def workload_of(api: Api, subject: Subject) -> Json | None:
    """The Workload of a subject, by its owner; None where there is none."""
    bodies, _ = api.list(WORKLOADS, namespace=subject.namespace)
    found = [
        b
        for b in bodies
        if subject.uid and any(o.get("uid") == subject.uid for o in b["metadata"].get("ownerReferences") or [])
    ]
    return max(found, key=lambda b: str(b["metadata"].get("creationTimestamp")), default=None)
