"""The cluster as somebody may see it: a cache in which the jobs, pods and queues of other teams have no names.

Every answer (queue, why, fit, quota, map) is computed by a pure function from a cache. A caller without the right to
see everything gets the same functions over a `ScopedCache`: numbers stay true, what holds a place still holds it, but
names of other namespaces are not in it, so no sentence can say them. It fails closed: what this class does not answer
itself raises, because the fields of the cache that it inherits from are not there.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from myriad.kube.kinds import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    COHORTS,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_FLAVORS,
    TOPOLOGIES,
    WORKLOADS,
    Resource,
)
from myriad.scheduler.cache import Cache
from myriad.scheduler.model import POOL_LABEL, PodUse
from myriad.scheduler.objects import TEAM_LABEL, WorkloadView
from myriad.scheduler.policy import SitePolicy
from myriad.scheduler.protect import RESERVED_ANNOTATION, mark_of
from myriad.scheduler.snapshot import Snapshot
from myriad.scheduler.web.auth import Scope

Json = dict[str, Any]
T = TypeVar("T")

OTHERS = "another team"
THEIR_JOB = "a job of another team"

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

_CLUSTER_WIDE = frozenset(k.plural for k in (NODES, COHORTS, RESOURCE_FLAVORS, TOPOLOGIES, ADMISSION_CHECKS))


def visible_queues(cache: Cache, scope: Scope) -> frozenset[str]:
    """ClusterQueues that a namespace of the scope uses."""
    found = {
        str(q["spec"]["clusterQueue"]) for q in cache.listing(LOCAL_QUEUES) if scope.sees(q["metadata"]["namespace"])
    }
    found |= {v.cluster_queue for v in cache.views() if v.cluster_queue and scope.sees(v.gang.namespace)}
    return frozenset(found)


class ScopedCache(Cache):
    """A view of a cache; see the module's text.

    Args:
        inner: the whole cluster.
        scope: what may be seen.
    """

    def __init__(self, inner: Cache, scope: Scope) -> None:
        # Cache.__init__ is left out on purpose: without its fields, whatever is not answered below raises.
        self._inner = inner
        self._scope = scope
        self.lock = inner.lock
        self.check_name = inner.check_name
        self._mine = threading.Lock()
        self._made: dict[str, tuple[int, Any]] = {}

    @property
    def version(self) -> int:  # type: ignore[override]
        """The version of the whole cluster."""
        return self._inner.version

    @property
    def levels(self) -> tuple[str, ...]:
        """Topology levels, broadest first."""
        return self._inner.levels

    def _once(self, name: str, make: Callable[[], T]) -> T:
        """What follows from the whole state, made once for each version of it."""
        version = self._inner.version
        with self._mine:
            known = self._made.get(name)
        if known is None or known[0] != version:
            known = (version, make())
            with self._mine:
                self._made[name] = known
        found: T = known[1]
        return found

    # Names

    def _queues(self) -> frozenset[str]:
        return self._once("queues", lambda: visible_queues(self._inner, self._scope))

    def _teams(self) -> frozenset[str]:
        def find() -> frozenset[str]:
            labels = [
                (body["metadata"].get("labels") or {}).get(TEAM_LABEL)
                for body in self._inner.listing(NAMESPACES)
                if self._scope.sees(body["metadata"]["name"])
            ]
            return frozenset(team for team in labels if team)

        return self._once("teams", find)

    @property
    def teams(self) -> frozenset[str]:
        """Teams whose namespaces may be seen."""
        return self._teams()

    def queue_alias(self, name: str) -> str:
        """The name under which a ClusterQueue is shown: its own, or a number that means nothing elsewhere."""
        return name if not name or name in self._queues() else f"other-{_mark(name)}"

    def seen_queues(self) -> frozenset[str]:
        """ClusterQueues that are shown by their own names."""
        return self._queues()

    def scrub(self, text: str) -> str:
        """A sentence that was written for somebody who sees everything, without the names that may not be seen."""

        def hidden() -> frozenset[str]:
            shown: set[str] = set()
            found: set[str] = set()
            for view in self._inner.views():
                names = {view.gang.namespace, view.gang.name, view.workload, view.gang.team}
                (shown if self._scope.sees(view.gang.namespace) else found).update(names)
            for body in self._inner.listing(NAMESPACES):
                name = body["metadata"]["name"]
                (shown if self._scope.sees(name) else found).add(name)
            for body in self._inner.listing(CLUSTER_QUEUES):
                name = body["metadata"]["name"]
                (shown if name in self._queues() else found).add(name)
            return frozenset(n for n in found - shown if n)

        names = self._once("hidden", hidden)
        return _WORD.sub(lambda word: "(another team's)" if word[0].rstrip(".") in names else word[0], text)

    def _team(self, team: str) -> str:
        return team if not team or team in self._teams() else OTHERS

    def _view(self, view: WorkloadView) -> WorkloadView:
        if self._scope.sees(view.gang.namespace):
            return view
        podsets = tuple(replace(p, images=()) for p in view.gang.podsets)
        gang = replace(
            view.gang,
            name=THEIR_JOB,
            namespace=OTHERS,
            uid=_mark(view.gang.uid),
            queue="",
            team=self._team(view.gang.team),
            podsets=podsets,
        )
        return replace(
            view,
            gang=gang,
            workload=_mark(view.key),
            job={},
            local_queue="",
            quota_message="",
            check=None,
            cluster_queue=self.queue_alias(view.cluster_queue),
        )

    def _both(self) -> tuple[list[WorkloadView], dict[str, WorkloadView]]:
        def make() -> tuple[list[WorkloadView], dict[str, WorkloadView]]:
            shown, real = [], {}
            for view in self._inner.views():
                alias = self._view(view)
                shown.append(alias)
                real[alias.key] = view
            return shown, real

        return self._once("views", make)

    def _real(self, view: WorkloadView) -> WorkloadView:
        return self._both()[1].get(view.key, view)

    # The questions

    def views(self) -> list[WorkloadView]:
        """All Workloads; those of others without names."""
        return self._both()[0]

    def view(self, key: str) -> WorkloadView | None:
        """A Workload by the key under which it is shown."""
        real = self._both()[1].get(key)
        return self._view(real) if real else None

    def view_of_job(self, namespace: str, job: str) -> WorkloadView | None:
        """The Workload of a job; None where its namespace may not be seen."""
        return self._inner.view_of_job(namespace, job) if self._scope.sees(namespace) else None

    def view_of_uid(self, workload: str, job: str = "") -> WorkloadView | None:
        """A Workload by its own uid, or by its owner's; one of others without its name."""
        found = self._inner.view_of_uid(workload, job)
        return self._view(found) if found else None

    def policy(self) -> SitePolicy:
        """The site's rules, without those of other teams and without addresses."""
        rules = self._inner.policy()
        return replace(rules, teams={t: r for t, r in rules.teams.items() if t in self._teams()}, notify_targets={})

    def evicted(self) -> list[Json]:
        """Workloads that may be seen, are evicted and were not admitted again."""
        return [body for body in self._inner.evicted() if self._scope.sees(body["metadata"]["namespace"])]

    def evicted_before(self) -> list[Json]:
        """Workloads that may be seen and hold quota again after an eviction."""
        return [body for body in self._inner.evicted_before() if self._scope.sees(body["metadata"]["namespace"])]

    def gpu_pods_owned(self, namespace: str, owner: str) -> list[Json]:
        """GPU pods of an owner, where their namespace may be seen."""
        return self._inner.gpu_pods_owned(namespace, owner) if self._scope.sees(namespace) else []

    def cluster_queue_of(self, view: WorkloadView) -> str:
        """The ClusterQueue of a Workload, as it is shown."""
        return self.queue_alias(self._inner.cluster_queue_of(self._real(view)))

    def waiting(self) -> dict[str, list[WorkloadView]]:
        """Waiting Workloads by ClusterQueue, in Kueue's order."""
        return self._once(
            "waiting",
            lambda: {
                self.queue_alias(name): [self._view(v) for v in views] for name, views in self._inner.waiting().items()
            },
        )

    def gpus_held(self) -> dict[str, int]:
        """GPUs held of each ClusterQueue."""
        return {self.queue_alias(name): gpus for name, gpus in self._inner.gpus_held().items()}

    def snapshot(self) -> Snapshot:
        """The cluster's state; pods of others have no owner in it."""

        def make() -> Snapshot:
            snapshot = self._inner.snapshot()
            snapshot.rename_owners(lambda owner: owner if self._scope.sees(owner.partition("/")[0]) else THEIR_JOB)
            return snapshot

        return self._once("snapshot", make).clone()

    def listing(self, kind: Resource) -> list[Json]:
        """Objects of a kind: those that may be seen, and the rest without names where they count."""
        items = self._inner.listing(kind)
        if kind.plural == NODES.plural:
            return [self._node(body) for body in items]
        if kind.plural in _CLUSTER_WIDE:
            return items
        if kind.plural in (WORKLOADS.plural, PODS.plural, CLUSTER_QUEUES.plural):
            return [found for item in items if (found := self._body(kind, item)) is not None]
        return [i for i in items if self._visible(kind, i)]

    def object(self, kind: Resource, key: str) -> Json | None:
        """One object by its key, as shown."""
        if kind.plural == WORKLOADS.plural:
            real = self._both()[1].get(key)
            body = self._inner.object(kind, real.key) if real else None
            return self._body(kind, body) if body else None
        if kind.plural == CLUSTER_QUEUES.plural:
            return next((q for q in self.listing(kind) if q["metadata"]["name"] == key), None)
        body = self._inner.object(kind, key)
        if body is not None and kind.plural == NODES.plural:
            return self._node(body)
        if body is None or kind.plural in _CLUSTER_WIDE:
            return body
        return body if self._visible(kind, body) else None

    def _node(self, body: Json) -> Json:
        """A node; for whom it is reserved stands in an annotation."""
        mark = mark_of(body)
        if mark is None or self._scope.sees(str(mark["workload"]).partition("/")[0]):
            return body
        told = {**mark, "uid": _mark(mark["uid"]), "workload": _mark(mark["workload"]), "job": THEIR_JOB}
        spec = body.get("spec") or {}
        taints = [{**t, "value": told["uid"]} if t.get("value") == mark["uid"] else t for t in spec.get("taints") or []]
        metadata = {**body["metadata"], "annotations": {RESERVED_ANNOTATION: json.dumps(told)}}
        return {**body, "metadata": metadata, "spec": {**spec, "taints": taints}}

    def _visible(self, kind: Resource, body: Json) -> bool:
        if kind.plural == NAMESPACES.plural:
            return self._scope.sees(body["metadata"]["name"])
        return self._scope.sees(body["metadata"].get("namespace") or "")

    def _body(self, kind: Resource, body: Json) -> Json | None:
        metadata = body["metadata"]
        if kind.plural == CLUSTER_QUEUES.plural:
            if metadata["name"] in self._queues():
                return body
            labels = metadata.get("labels") or {}
            kept = {k: v for k, v in labels.items() if k == POOL_LABEL}
            if TEAM_LABEL in labels:
                kept[TEAM_LABEL] = self._team(labels[TEAM_LABEL])
            shown = ("cohortName", "resourceGroups", "stopPolicy", "admissionChecksStrategy")
            spec = {k: v for k, v in body["spec"].items() if k in shown}
            return {
                "metadata": {"name": self.queue_alias(metadata["name"]), "labels": kept},
                "spec": spec,
                "status": {},
            }
        if self._scope.sees(metadata["namespace"]):
            return body
        if kind.plural == PODS.plural:
            return {
                "metadata": {"name": THEIR_JOB, "namespace": OTHERS, "uid": metadata["uid"]}
                | {k: metadata[k] for k in ("deletionTimestamp",) if k in metadata},
                "spec": {k: body["spec"][k] for k in ("nodeName",) if k in body["spec"]} | {"containers": []},
                "status": {k: v for k, v in (body.get("status") or {}).items() if k == "phase"},
            }
        status, spec = body.get("status") or {}, body["spec"]
        times = [
            {k: c[k] for k in ("type", "status", "lastTransitionTime") if k in c}
            for c in status.get("conditions") or []
        ]
        return {
            "metadata": {"name": _mark(f"{metadata['namespace']}/{metadata['name']}"), "namespace": OTHERS}
            | {k: metadata[k] for k in ("creationTimestamp",) if k in metadata},
            "spec": {k: spec[k] for k in ("maximumExecutionTimeSeconds", "priority") if k in spec},
            "status": {"conditions": times}
            | {k: status[k] for k in ("accumulatedPastExecutionTimeSeconds",) if k in status},
        }

    def pods_of_workload(self, view: WorkloadView) -> list[Json]:
        """The GPU pods of a Workload."""
        return [p for body in self._inner.pods_of_workload(self._real(view)) if (p := self._body(PODS, body))]

    def use(self, uid: str) -> PodUse | None:
        """What a pod takes now."""
        use = self._inner.use(uid)
        if use is None or self._scope.sees(use.owner.partition("/")[0]):
            return use
        return replace(use, owner=THEIR_JOB)

    def reserved_uids(self, view: WorkloadView) -> tuple[str, ...]:
        """Stand-ins in the snapshot for pods of a gang that are not bound yet."""
        return self._inner.reserved_uids(self._real(view))

    def uids_of(self, view: WorkloadView) -> tuple[str, ...]:
        """Everything in the snapshot that belongs to a gang."""
        return self._inner.uids_of(self._real(view))

    def pods_of(self, view: WorkloadView) -> dict[str, dict[str, int]]:
        """Where the pods of a Workload really stand."""
        return self._inner.pods_of(self._real(view))


def _mark(text: str) -> str:
    """Tells things apart without saying what they are; another process gives another mark."""
    return hashlib.blake2b(text.encode(), key=_KEY, digest_size=6).hexdigest()


_KEY = secrets.token_bytes(16)
