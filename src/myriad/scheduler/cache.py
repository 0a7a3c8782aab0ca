"""The cluster as the extension knows it: watches feed it, the planner and the HTTP server read it.

Nodes and pods go into the planner's Snapshot change by change; a node that is new or moved marks the layout stale,
and the next reader lays it out once for all such changes (a thousand nodes that join cost one layout).

A gang that holds quota but whose pods are not bound yet has its nodes assigned by TAS: they are counted as used, pod
by pod, until the pods are there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from myriad.kube.client import Api
from myriad.kube.kinds import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    COHORTS,
    CONFIG_MAPS,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_FLAVORS,
    TOPOLOGIES,
    WORKLOADS,
    Resource,
)
from myriad.kube.watch import Watch
from myriad.scheduler.model import DEFAULT_LEVELS, NodeInfo, PodUse, is_gpu_resource
from myriad.scheduler.objects import (
    PODSET_LABEL,
    WorkloadView,
    levels_of,
    node_info,
    pod_is_terminal,
    pod_requests,
    pod_use,
    succeeded_at,
    workload_key_of_pod,
    workload_view,
)
from myriad.scheduler.placed import placed, says_the_same
from myriad.scheduler.policy import CONFIG_MAP as POLICY
from myriad.scheduler.policy import NAMESPACE as POLICY_NAMESPACE
from myriad.scheduler.policy import SitePolicy
from myriad.scheduler.snapshot import Snapshot

log = logging.getLogger("myriad.cache")

Json = dict[str, Any]
T = TypeVar("T")

TOPOLOGY = "myriad"
#: Admissions that are over and that nobody asked for yet; a follower forgets the eldest.
_PASSED = 4096
_PLACING = frozenset(kind.plural for kind in (LOCAL_QUEUES, CLUSTER_QUEUES, NAMESPACES, RESOURCE_FLAVORS))
FOLLOWED = (
    NODES,
    PODS,
    WORKLOADS,
    LOCAL_QUEUES,
    CLUSTER_QUEUES,
    COHORTS,
    NAMESPACES,
    RESOURCE_FLAVORS,
    TOPOLOGIES,
    ADMISSION_CHECKS,
)


def key_of(obj: Json) -> str:
    """`namespace/name`, or the name of an object without namespace."""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


class Cache:
    """Everything that decisions are made on. Safe to use from any thread.

    Args:
        check_name: our AdmissionCheck.
        clock: monotonic seconds.
    """

    def __init__(self, *, check_name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.check_name = check_name
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.version = 0
        self.objects: dict[str, dict[str, Json]] = defaultdict(dict)
        self._clock = clock
        self._views: dict[str, WorkloadView] = {}
        self._levels: tuple[str, ...] = DEFAULT_LEVELS
        self._nodes: dict[str, NodeInfo] = {}
        self._uses: dict[str, PodUse] = {}
        self._gpu_pods: dict[str, Json] = {}
        self._gpu_pods_of: dict[str, set[str]] = defaultdict(set)
        self._gpu_pods_owned: dict[str, set[str]] = defaultdict(set)
        # uid of a Workload, or of its owner -> keys of Workloads, the eldest first.
        self._keys_of: dict[str, dict[str, None]] = defaultdict(dict)
        # uid -> podset, node, when it succeeded (empty before), and whether it is being deleted.
        self._pods_by_workload: dict[str, dict[str, tuple[str, str, str, bool]]] = defaultdict(dict)
        self._passed: deque[WorkloadView] = deque(maxlen=_PASSED)
        self._reserved: dict[str, dict[str, PodUse]] = {}
        self._snapshot = Snapshot(self._levels)
        self._stale = True
        self._watches: list[Watch] = []
        self._derived: dict[str, tuple[int, Any]] = {}
        # Grows when a queue, flavor or namespace says something else; key -> view, that version, the view with it.
        self._said = 0
        self._placed_of: dict[str, tuple[WorkloadView, int, WorkloadView]] = {}
        self._policy = SitePolicy()
        self.listeners: list[Callable[[str, str, Json], object]] = []
        """Called with the kind's plural, `upsert` or `remove`, and the object, at every change, with the lock held."""

    # Following the API server

    def follow(self, api: Api, stop: threading.Event, resources: Iterable[Resource] = FOLLOWED) -> None:
        """Start a watch for each kind, and one for the ConfigMap of the site's rules."""
        watches = [Watch(api, resource, _Feed(self, resource.plural), stop=stop) for resource in resources]
        rules = _Feed(self, CONFIG_MAPS.plural)
        only = f"metadata.name={POLICY}"
        watches.append(Watch(api, CONFIG_MAPS, rules, stop=stop, namespace=POLICY_NAMESPACE, fields=only))
        for watch in watches:
            self._watches.append(watch)
            watch.start()

    def out_of_step(self, *, lost_limit_s: float) -> list[str]:
        """Kinds that were not listed yet, or whose watch has been broken for too long; empty = in step."""
        return [
            w.resource.plural
            for w in self._watches
            if not w.synced.is_set() or w.lost_for_s > lost_limit_s or not w.is_alive()
        ]

    def wait(self, seen: int, timeout_s: float) -> int:
        """Sleep until something changed after version `seen`, or the time is over; the version now."""
        with self.changed:
            self.changed.wait_for(lambda: self.version != seen, timeout=timeout_s)
            return self.version

    # Changes

    def replace(self, kind: str, items: list[Json]) -> None:
        """The whole list of a kind; what is not in it is gone."""
        with self.changed:
            if kind == PODS.plural:
                self._replace_pods(items)
            else:
                fresh = {key_of(item): item for item in items}
                gone = [obj for key, obj in self.objects[kind].items() if key not in fresh]
                for obj in gone:
                    self._remove(kind, obj)
                for item in items:
                    self._upsert(kind, item)
            self._bump()

    def upsert(self, kind: str, obj: Json) -> None:
        """An object was added or changed."""
        with self.changed:
            before = self._nodes.get(key_of(obj)) if kind == NODES.plural else None
            self._upsert(kind, obj)
            # Heartbeats of thousands of nodes change nothing that anybody decides on.
            if before is None or before != self._nodes.get(key_of(obj)):
                self._bump()

    def remove(self, kind: str, obj: Json) -> None:
        """An object is gone."""
        with self.changed:
            self._remove(kind, obj)
            self._bump()

    def _bump(self) -> None:
        self.version += 1
        self.changed.notify_all()

    def _upsert(self, kind: str, obj: Json) -> None:
        obj["metadata"].pop("managedFields", None)
        if kind == PODS.plural:
            self._upsert_pod(obj)
            return
        for hear in self.listeners:
            hear(kind, "upsert", obj)
        key = key_of(obj)
        if kind in _PLACING and not says_the_same(self.objects[kind].get(key), obj):
            self._said += 1
        self.objects[kind][key] = obj
        if kind == NODES.plural:
            self._upsert_node(node_info(obj, self._levels))
        elif kind == WORKLOADS.plural:
            self._set_view(key, workload_view(obj, check_name=self.check_name))
        elif kind == TOPOLOGIES.plural:
            self._set_levels()
        elif kind == CONFIG_MAPS.plural and key == f"{POLICY_NAMESPACE}/{POLICY}":
            self._policy = SitePolicy.of_config_map(obj)

    def _remove(self, kind: str, obj: Json) -> None:
        key = key_of(obj)
        if kind == PODS.plural:
            self._remove_pod(obj["metadata"]["uid"], workload_key_of_pod(obj))
            return
        for hear in self.listeners:
            hear(kind, "remove", obj)
        self.objects[kind].pop(key, None)
        self._said += kind in _PLACING
        if kind == NODES.plural:
            self._nodes.pop(key, None)
            self._stale = True
        elif kind == WORKLOADS.plural:
            self._set_view(key, None)
        elif kind == TOPOLOGIES.plural:
            self._set_levels()
        elif kind == CONFIG_MAPS.plural and key == f"{POLICY_NAMESPACE}/{POLICY}":
            self._policy = SitePolicy()

    def _set_view(self, key: str, view: WorkloadView | None) -> None:
        old = self._views.pop(key, None) if view is None else self._views.get(key)
        if old is not None and old.nodes and (view is None or view.nodes != old.nodes):
            self._passed.append(old)
        for uid in _uids(old) - _uids(view):
            self._keys_of[uid].pop(key, None)
            if not self._keys_of[uid]:
                del self._keys_of[uid]
        if view is None:
            self._placed_of.pop(key, None)
        else:
            self._views[key] = view
            for uid in _uids(view):
                self._keys_of[uid][key] = None
        self._reserve(key)

    def _set_levels(self) -> None:
        # On a cluster that Myriad did not make there may be another topology: the first one tells where nodes stand.
        known = self.objects[TOPOLOGIES.plural]
        levels = levels_of(known.get(TOPOLOGY) or known.get(min(known, default=""))) or DEFAULT_LEVELS
        if levels != self._levels:
            self._levels = levels
            for name, node in self.objects[NODES.plural].items():
                self._nodes[name] = node_info(node, levels)
            self._stale = True

    def _upsert_node(self, node: NodeInfo) -> None:
        old = self._nodes.get(node.name)
        self._nodes[node.name] = node
        known = set(self._snapshot.row)
        if old is None or old.location != node.location or not known.issuperset(node.allocatable):
            self._stale = True
        elif not self._stale:
            self._snapshot.update_node(node)

    def _replace_pods(self, items: list[Json]) -> None:
        keys = set(self._pods_by_workload)
        self._uses, self._gpu_pods = {}, {}
        self._gpu_pods_of, self._gpu_pods_owned = defaultdict(set), defaultdict(set)
        self._pods_by_workload = defaultdict(dict)
        self._stale = True
        for item in items:
            item["metadata"].pop("managedFields", None)
            self._upsert_pod(item, reserve=False)
        for key in keys | set(self._pods_by_workload):
            self._reserve(key)

    def _upsert_pod(self, pod: Json, *, reserve: bool = True) -> None:
        uid = pod["metadata"]["uid"]
        workload = workload_key_of_pod(pod)
        use = pod_use(pod)
        if use is None:
            self._uses.pop(uid, None)
            if not self._stale:
                self._snapshot.remove_pod(uid)
        elif self._uses.get(uid) != use:
            self._uses[uid] = use
            if not self._stale:
                self._snapshot.apply_pod(use)
        if any(is_gpu_resource(name) for name in pod_requests(pod["spec"])):
            self._disown(uid)
            self._gpu_pods[uid] = pod
            for owner in _owners(pod):
                self._gpu_pods_owned[owner].add(uid)
            if workload:
                self._gpu_pods_of[workload].add(uid)
        if workload:
            self._note_pod_of_workload(workload, uid, pod)
            if reserve:
                self._reserve(workload)

    def _note_pod_of_workload(self, workload: str, uid: str, pod: Json) -> None:
        node = pod["spec"].get("nodeName") or ""
        failed = pod_is_terminal(pod) and (pod.get("status") or {}).get("phase") == "Failed"
        podset = (pod["metadata"].get("labels") or {}).get(PODSET_LABEL, "")
        # A failed pod is replaced on the same node, so its place stays reserved; a finished one is not.
        if node and not failed:
            leaves = bool(pod["metadata"].get("deletionTimestamp")) and not pod_is_terminal(pod)
            self._pods_by_workload[workload][uid] = (podset, node, succeeded_at(pod), leaves)
        else:
            self._pods_by_workload[workload].pop(uid, None)

    def _remove_pod(self, uid: str, workload: str) -> None:
        self._uses.pop(uid, None)
        self._disown(uid)
        self._gpu_pods.pop(uid, None)
        if workload in self._gpu_pods_of:
            self._gpu_pods_of[workload].discard(uid)
            if not self._gpu_pods_of[workload]:
                del self._gpu_pods_of[workload]
        if not self._stale:
            self._snapshot.remove_pod(uid)
        if workload:
            self._pods_by_workload[workload].pop(uid, None)
            if not self._pods_by_workload[workload]:
                del self._pods_by_workload[workload]
            self._reserve(workload)

    def _disown(self, uid: str) -> None:
        """Take a GPU pod off the lists of its owners."""
        for owner in _owners(self._gpu_pods.get(uid)):
            self._gpu_pods_owned[owner].discard(uid)
            if not self._gpu_pods_owned[owner]:
                del self._gpu_pods_owned[owner]

    def _reserve(self, key: str) -> None:
        """Count what TAS assigned to a gang and no pod of it stands on yet."""
        wanted = self._reservation(key)
        have = self._reserved.get(key, {})
        if wanted == have:
            return
        if not self._stale:
            for uid in have.keys() - wanted.keys():
                self._snapshot.remove_pod(uid)
            for uid in wanted.keys() - have.keys():
                self._snapshot.apply_pod(wanted[uid])
        if wanted:
            self._reserved[key] = wanted
        else:
            self._reserved.pop(key, None)

    def _reservation(self, key: str) -> dict[str, PodUse]:
        view = self._views.get(key)
        if view is None or not view.quota_reserved or view.finished or view.evicted or not view.assignment:
            return {}
        standing = Counter(self._standing(view))
        requests = {p.name: p.requests for p in view.gang.podsets}
        owner = f"{view.gang.namespace}/{view.gang.name}"
        uses = {}
        for podset, by_node in view.assignment.items():
            for node, pods in by_node.items():
                for i in range(pods - standing[podset, node]):
                    uid = f"reserved:{key}:{podset}:{node}:{i}"
                    uses[uid] = PodUse(uid=uid, node=node, requests=requests.get(podset, {}), owner=owner)
        return uses

    # Reading

    def snapshot(self) -> Snapshot:
        """A copy of the cluster's state that the caller owns."""
        with self.lock:
            if self._stale:
                reserved = [use for uses in self._reserved.values() for use in uses.values()]
                self._snapshot = Snapshot.build(
                    self._nodes.values(), [*self._uses.values(), *reserved], levels=self._levels
                )
                self._stale = False
            # Made here, kept in step with the nodes, and shared by all copies: each would make its own otherwise.
            self._snapshot.pristine()
            return self._snapshot.clone()

    def policy(self) -> SitePolicy:
        """The site's rules; the defaults where the cluster has none."""
        with self.lock:
            return self._policy

    def _derive(self, name: str, make: Callable[[], T]) -> T:
        """What follows from the whole state, made once for each version of it. Callers must not change it."""
        with self.lock:
            known = self._derived.get(name)
            if known is None or known[0] != self.version:
                known = self._derived[name] = (self.version, make())
            found: T = known[1]
            return found

    def views(self) -> list[WorkloadView]:
        """All Workloads, each with the pool of its queue and the team of its namespace."""
        return self._derive("views", lambda: [self._placed(view) for view in self._views.values()])

    def passed(self) -> list[WorkloadView]:
        """Workloads as they stood before they lost their nodes, since the last call, in the order of their losses.

        An admission may last shorter than the time between two looks at the cache.
        """
        with self.lock:
            passed = [self._placed(view) for view in self._passed]
            self._passed.clear()
            return passed

    def gpus_held(self) -> dict[str, int]:
        """GPUs that Workloads hold of each ClusterQueue. Counted here: a ClusterQueue's own status follows later."""

        def count() -> dict[str, int]:
            held: dict[str, int] = defaultdict(int)
            for view in self._views.values():
                if view.quota_reserved and not view.finished:
                    held[view.cluster_queue] += view.gpus_held
            return dict(held)

        return self._derive("gpus_held", count)

    def views_by_queue(self) -> dict[str, list[WorkloadView]]:
        """All Workloads by the ClusterQueue that they wait in or hold quota of."""

        def sort() -> dict[str, list[WorkloadView]]:
            queues: dict[str, list[WorkloadView]] = defaultdict(list)
            for view in self.views():
                queues[self.cluster_queue_of(view)].append(view)
            return dict(queues)

        return self._derive("views_by_queue", sort)

    def view_of_job(self, namespace: str, job: str) -> WorkloadView | None:
        """The Workload of a job by the job's name (or the Workload's own)."""
        with self.lock:
            found = [
                v for v in self._views.values() if v.gang.namespace == namespace and job in (v.gang.name, v.workload)
            ]
            # A job that was re-created has two for a moment: the younger one counts.
            return self._placed(max(found, key=lambda v: v.created)) if found else None

    def view(self, key: str) -> WorkloadView | None:
        """A Workload by `namespace/name`."""
        with self.lock:
            view = self._views.get(key)
            return self._placed(view) if view else None

    def view_of_uid(self, workload: str, job: str = "") -> WorkloadView | None:
        """A Workload by its own uid, or by its owner's."""
        with self.lock:
            for uid in filter(None, (workload, job)):
                for key in self._keys_of.get(uid, ()):
                    return self._placed(self._views[key])
        return None

    def evicted(self) -> list[Json]:
        """Workloads that are evicted and were not admitted again."""
        with self.lock:
            return [self.objects[WORKLOADS.plural][key] for key, view in self._views.items() if view.evicted]

    def evicted_before(self) -> list[Json]:
        """Workloads that hold quota again after an eviction, as Kueue counts."""
        with self.lock:
            return [
                body
                for key, view in self._views.items()
                if not view.evicted
                and ((body := self.objects[WORKLOADS.plural][key]).get("status") or {}).get("schedulingStats")
            ]

    def gpu_pods(self) -> list[Json]:
        """All GPU pods, whatever their state."""
        with self.lock:
            return list(self._gpu_pods.values())

    def gpu_pods_owned(self, namespace: str, owner: str) -> list[Json]:
        """GPU pods of a namespace that name an owner by its uid, whatever their state."""
        with self.lock:
            found = [self._gpu_pods[uid] for uid in self._gpu_pods_owned.get(owner, ())]
        return [pod for pod in found if pod["metadata"]["namespace"] == namespace]

    def cluster_queue_of(self, view: WorkloadView) -> str:
        """The ClusterQueue that a Workload waits in or holds quota of; empty where its LocalQueue is unknown."""
        if view.cluster_queue:
            return view.cluster_queue
        with self.lock:
            queue = self.objects[LOCAL_QUEUES.plural].get(f"{view.gang.namespace}/{view.local_queue}")
        return str(queue["spec"]["clusterQueue"]) if queue else ""

    def waiting(self) -> dict[str, list[WorkloadView]]:
        """Waiting Workloads by ClusterQueue, in Kueue's order: priority, then age."""

        def sort() -> dict[str, list[WorkloadView]]:
            queues: dict[str, list[WorkloadView]] = defaultdict(list)
            for view in self.views():
                if view.waiting:
                    queues[self.cluster_queue_of(view)].append(view)
            for views in queues.values():
                views.sort(key=lambda v: (-v.gang.priority, v.created, v.gang.uid))
            return dict(queues)

        return self._derive("waiting", sort)

    def listing(self, kind: Resource) -> list[Json]:
        """All objects of a kind (for pods: those that ask for GPUs)."""
        with self.lock:
            if kind.plural == PODS.plural:
                return list(self._gpu_pods.values())
            return list(self.objects[kind.plural].values())

    def object(self, kind: Resource, key: str) -> Json | None:
        """One object by `namespace/name` or name."""
        with self.lock:
            return self.objects[kind.plural].get(key)

    def pods_of_workload(self, view: WorkloadView) -> list[Json]:
        """The GPU pods of a Workload that TAS placed, whatever their state."""
        with self.lock:
            return [self._gpu_pods[uid] for uid in self._gpu_pods_of.get(view.key, ())]

    def use(self, uid: str) -> PodUse | None:
        """What a pod takes now."""
        with self.lock:
            return self._uses.get(uid)

    def reserved_uids(self, view: WorkloadView) -> tuple[str, ...]:
        """Stand-ins in the snapshot for pods of a gang that are not bound yet."""
        with self.lock:
            return tuple(self._reserved.get(view.key, ()))

    def uids_of(self, view: WorkloadView) -> tuple[str, ...]:
        """Everything in the snapshot that belongs to a gang: its bound pods and the stand-ins."""
        with self.lock:
            return (*self._pods_by_workload.get(view.key, ()), *self.reserved_uids(view))

    def pods_of(self, view: WorkloadView) -> dict[str, dict[str, int]]:
        """Where the pods of a Workload really stand: podset -> node -> pods."""
        with self.lock:
            found: dict[str, dict[str, int]] = {}
            for podset, node in self._standing(view):
                by_node = found.setdefault(podset, {})
                by_node[node] = by_node.get(node, 0) + 1
            return found

    def _standing(self, view: WorkloadView) -> Iterator[tuple[str, str]]:
        """Podset and node of each pod of this admission.

        A gang that was evicted and comes back brings only the pods that it still needs: those that had succeeded
        before (Kueue's reclaimable pods) stand where the earlier admission put them, and those that still take their
        grace hold what they hold, but belong to it no longer.
        """
        for podset, node, ended, leaves in self._pods_by_workload.get(view.key, {}).values():
            if not leaves and (not ended or ended >= view.reserved_at):
                yield podset, node

    @property
    def levels(self) -> tuple[str, ...]:
        """Topology levels, broadest first."""
        return self._levels

    def _placed(self, view: WorkloadView) -> WorkloadView:
        """The view with what queue, flavor and namespace say; made once, until one of them says something else."""
        known = self._placed_of.get(view.key)
        if known is not None and known[0] is view and known[1] == self._said:
            return known[2]
        found = placed(
            view,
            self.objects[CLUSTER_QUEUES.plural].get(self.cluster_queue_of(view)),
            self.objects[NAMESPACES.plural].get(view.gang.namespace),
            self.objects[RESOURCE_FLAVORS.plural],
        )
        if self._views.get(view.key) is view:
            self._placed_of[view.key] = (view, self._said, found)
        return found


def _uids(view: WorkloadView | None) -> set[str]:
    """The uids by which a Workload is asked for: its own and its owner's."""
    return {uid for uid in (view.gang.uid, view.job.get("uid", "")) if uid} if view else set()


def _owners(pod: Json | None) -> set[str]:
    owners = ((pod or {}).get("metadata") or {}).get("ownerReferences") or []
    return {str(owner["uid"]) for owner in owners if owner.get("uid")}


class _Feed:
    """One kind's way into the cache."""

    def __init__(self, cache: Cache, kind: str) -> None:
        self._cache = cache
        self._kind = kind

    def replace(self, items: list[Json]) -> None:
        self._cache.replace(self._kind, items)

    def upsert(self, obj: Json) -> None:
        self._cache.upsert(self._kind, obj)

    def remove(self, obj: Json) -> None:
        self._cache.remove(self._kind, obj)
