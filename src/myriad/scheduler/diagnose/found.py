"""Findings about gangs, reservations, queues and nodes. Pure: reads a cache and what was read beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from myriad.kube.kinds import CLUSTER_QUEUES, NODES, PODS, WORKLOADS
from myriad.scheduler.brake import trouble
from myriad.scheduler.braking import node_states
from myriad.scheduler.cache import Cache
from myriad.scheduler.causes import annotations_of, labels_of
from myriad.scheduler.causes_volcano import GROUP_ANNOTATION
from myriad.scheduler.diagnose.use import Usage, idle_holders
from myriad.scheduler.explain import SILENCE_S
from myriad.scheduler.model import POOL_LABEL, Refusal, gpus_words, is_gpu_resource
from myriad.scheduler.objects import WorkloadView, owner_of, pod_is_terminal, pod_requests, seconds_since
from myriad.scheduler.placement import fits_ever
from myriad.scheduler.words import duration

Json = dict[str, Any]

STRANDED_MARGIN_S = 60.0
UNHEALTHY_S = 300.0
NOT_READY_S = 300.0
PILL_TRIES = 3
REJECTIONS = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: stranded_gang, phantom_reservation, orphan_podgroup, unhealthy_nodes, silent_together, dead_holder,
            two_schedulers, visibility_down, poison_pill, silence, wait_cycle, idle_holder, rejections.
        about: `namespace/name` of a job, or a node, pool or queue.
        sentence: what is wrong, with figures.
        next: what to do.
        gpus: GPUs that it costs now.
        job: kind, apiVersion, name, namespace and uid of the object an Event belongs on; {} where there is none.
        numbers: the figures.
    """

    kind: str
    about: str
    sentence: str
    next: str = ""
    gpus: int = 0
    job: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> Json:
        """For `--json`."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Outside:
    """What is read beside the cache. None = not read, or not there.

    Attributes:
        pod_groups: Volcano's.
        visibility: Kueue's visibility APIServices.
        usage: how busy GPUs were, by node.
    """

    pod_groups: Sequence[Json] | None = None
    visibility: Sequence[Json] | None = None
    usage: Usage | None = None


def report(cache: Cache, outside: Outside | None = None, *, now: datetime | None = None) -> list[Finding]:
    """Everything that is wrong now, what costs most GPUs first."""
    outside, now = outside or Outside(), now or datetime.now(UTC)
    views = cache.views()
    grace_s = float(cache.policy().preemption.grace_s)
    partial = _partial(cache, views)
    found = [
        *_stranded(cache, partial, grace_s, now),
        *_wait_cycles(cache, partial),
        *_phantoms(cache, views, grace_s, now),
        *_unhealthy(cache, views, now),
        *_silent_together(cache),
        *_dead_holders(cache, now),
        *_two_schedulers(cache),
        *_rejections(cache),
        *_pills(cache, views),
        *_silence(cache, views, now),
        *_pod_groups(cache, outside.pod_groups, now),
        *_visibility(outside.visibility),
    ]
    if outside.usage is not None:
        idle = cache.policy().idle
        for holder in idle_holders(
            cache, outside.usage, threshold_percent=idle.threshold_percent, after_s=idle.after_s
        ):
            found.append(Finding("idle_holder", holder.job, holder.sentence, holder.next, holder.gpus, holder.owner))
    return sorted(found, key=lambda f: (-f.gpus, f.kind, f.about))


def _name(view: WorkloadView) -> str:
    return f"{view.gang.namespace}/{view.gang.name}"


def _job(view: WorkloadView) -> Mapping[str, str]:
    return {**view.job, "namespace": view.gang.namespace} if view.job else {}


def _condition(cache: Cache, view: WorkloadView, kind: str) -> Json:
    status = (cache.object(WORKLOADS, view.key) or {}).get("status") or {}
    return next((c for c in status.get("conditions") or [] if c["type"] == kind), {})


def _partial(cache: Cache, views: Sequence[WorkloadView]) -> dict[str, tuple[WorkloadView, int, int]]:
    """Admitted gangs of which some pods hold GPUs and others have no node: view, pods bound, GPUs held. An elastic one
    goes on with its least number, whether it began with no more or lost a worker."""
    found = {}
    for view in views:
        if not view.admitted or view.finished or view.gang.pods < 2 or not view.gang.gpus:
            continue
        by_podset = cache.pods_of(view)
        bound = sum(sum(nodes.values()) for nodes in by_podset.values())
        if 0 < bound < view.gang.least_pods:
            each = {p.name: p.gpus_per_pod for p in view.gang.podsets}
            held = sum(sum(nodes.values()) * each.get(name, 0) for name, nodes in by_podset.items())
            found[view.key] = (view, bound, held)
    return found


def _stranded(
    cache: Cache, partial: Mapping[str, tuple[WorkloadView, int, int]], grace_s: float, now: datetime
) -> list[Finding]:
    """Part of a gang holds GPUs for longer than grace and a minute, the rest has no node (volcano#4607)."""
    found = []
    for view, bound, held in partial.values():
        since = seconds_since(str(_condition(cache, view, "Admitted").get("lastTransitionTime") or ""), now)
        if since <= grace_s + STRANDED_MARGIN_S:
            continue
        found.append(
            Finding(
                "stranded_gang",
                _name(view),
                f"{bound} of its {view.gang.pods} pods hold {gpus_words(held)} for {duration(since)} and wait for the "
                "rest, which have no node",
                f"myriad why {_name(view)}; evict it whole (kubectl patch its Workload: active false, then true)",
                held,
                _job(view),
                {"bound": bound, "pods": view.gang.pods, "since_s": round(since)},
            )
        )
    return found


def _wait_cycles(cache: Cache, partial: Mapping[str, tuple[WorkloadView, int, int]]) -> list[Finding]:
    """Gangs that hold and wait in a ring: each has part of what another needs (vgpu-device-plugin#116)."""
    edges: dict[str, set[str]] = defaultdict(set)
    for key, (view, _, _) in partial.items():
        for other, (theirs, _, held) in partial.items():
            if other != key and held and theirs.gang.pool == view.gang.pool:
                edges[key].add(other)
    ring = _ring(edges)
    if not ring:
        return []
    views = [partial[key] for key in ring]
    names = [_name(v) for v, _, _ in views]
    least = min(views, key=lambda item: (item[0].gang.priority, item[2]))
    held = sum(h for _, _, h in views)
    return [
        Finding(
            "wait_cycle",
            names[0],
            f"{' waits for '.join([*names, names[0]])}: each holds GPUs ({gpus_words(held)} in all) that another needs",
            f"evict {_name(least[0])}, which holds {gpus_words(least[2])}: the others can then complete",
            held,
            _job(least[0]),
            {"jobs": names},
        )
    ]


def _ring(edges: Mapping[str, set[str]]) -> list[str]:
    """One cycle of a graph, [] where there is none."""
    done: set[str] = set()
    for start in sorted(edges):
        path: list[str] = []
        stack = [(start, iter(sorted(edges[start])))]
        on_path = {start}
        path.append(start)
        while stack:
            node, others = stack[-1]
            for other in others:
                if other in on_path:
                    return path[path.index(other) :]
                if other not in done:
                    stack.append((other, iter(sorted(edges.get(other, ())))))
                    on_path.add(other)
                    path.append(other)
                    break
            else:
                stack.pop()
                on_path.discard(node)
                path.pop()
                done.add(node)
    return []


def _phantoms(cache: Cache, views: Sequence[WorkloadView], grace_s: float, now: datetime) -> list[Finding]:
    """Quota that is held by gangs without a pod on any node: never made, gated, or that no node can take."""
    found = []
    snapshot = None
    for view in views:
        if not view.admitted or view.finished or not view.gpus_held or not view.assignment:
            continue
        since = seconds_since(str(_condition(cache, view, "Admitted").get("lastTransitionTime") or ""), now)
        if since <= grace_s + STRANDED_MARGIN_S or cache.pods_of(view):
            continue
        snapshot = snapshot or cache.snapshot()
        never = fits_ever(snapshot, view.gang)
        why = f": {never.sentence}" if isinstance(never, Refusal) else ", and none of its pods has a node"
        found.append(
            Finding(
                "phantom_reservation",
                _name(view),
                f"holds quota of {gpus_words(view.gpus_held)} for {duration(since)}{why}",
                f"myriad why {_name(view)}",
                view.gpus_held,
                _job(view),
                {"since_s": round(since)},
            )
        )
    return found


def _silent_together(cache: Cache) -> list[Finding]:
    """Nodes that fell silent together (kubernetes#24597): while that stands the brake lets nothing through."""
    found = trouble(node_states(cache.listing(NODES), cache.levels).values())
    if found is None:
        return []
    words = "look at the API server and the network first; `kubectl cordon` those that are really lost"
    numbers = {"not_ready": len(found.not_ready), "nodes": found.nodes}
    return [Finding("silent_together", found.scope, found.sentence(), words, numbers=numbers)]


def _unhealthy(cache: Cache, views: Sequence[WorkloadView], now: datetime) -> list[Finding]:
    """Kueue has marked nodes of a job unhealthy and not replaced them (kueue#10660)."""
    found = []
    for view in views:
        status = (cache.object(WORKLOADS, view.key) or {}).get("status") or {}
        nodes = [str(n.get("name")) for n in status.get("unhealthyNodes") or []]
        if not nodes or view.finished:
            continue
        since = max((_not_ready_s(cache, n, now) for n in nodes), default=0.0)
        if since and since < UNHEALTHY_S:
            continue
        found.append(
            Finding(
                "unhealthy_nodes",
                _name(view),
                f"runs with {', '.join(nodes)} marked unhealthy"
                + (f" for {duration(since)}" if since else "")
                + ": the node was not replaced",
                "free a node in the same rack, or let the job start anew elsewhere (kubectl delete pod)",
                view.gang.gpus,
                _job(view),
                {"nodes": nodes},
            )
        )
    return found


def _not_ready_s(cache: Cache, name: str, now: datetime) -> float:
    """How long a node is not Ready; 0 for one that is, or that is not known."""
    for condition in ((cache.object(NODES, name) or {}).get("status") or {}).get("conditions") or []:
        if condition["type"] == "Ready" and condition["status"] != "True":
            return seconds_since(str(condition.get("lastTransitionTime") or ""), now)
    return 0.0


def _dead_holders(cache: Cache, now: datetime) -> list[Finding]:
    """Pods on nodes that are gone silent still hold quota (kubernetes#52436, kueue#6757)."""
    by_node: dict[str, tuple[int, set[str], bool]] = {}
    for pod in cache.listing(PODS):
        node = (pod.get("spec") or {}).get("nodeName")
        if not node or pod_is_terminal(pod) or _not_ready_s(cache, node, now) < NOT_READY_S:
            continue
        gpus = sum(n for r, n in pod_requests(pod["spec"]).items() if is_gpu_resource(r))
        had, owners, stuck = by_node.get(node, (0, set(), False))
        stuck = stuck or bool(pod["metadata"].get("deletionTimestamp"))
        by_node[node] = (had + gpus, owners | {owner_of(pod)}, stuck)
    found = []
    for node, (gpus, owners, stuck) in by_node.items():
        since = _not_ready_s(cache, node, now)
        fix = (
            f"once it is certain that {node} is off: "
            f"kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
            if stuck
            else f"look at {node}; its pods are evicted when Kubernetes gives it up"
        )
        found.append(
            Finding(
                "dead_holder",
                node,
                f"{node} is not ready for {duration(since)}; {', '.join(sorted(owners)[:5])} still "
                f"{'hold' if len(owners) > 1 else 'holds'} {gpus_words(gpus)} on it"
                + (", and its pods cannot end" if stuck else ""),
                fix,
                gpus,
                {},
                {"jobs": sorted(owners), "stuck": stuck, "since_s": round(since)},
            )
        )
    return found


def _two_schedulers(cache: Cache) -> list[Finding]:
    """GPU pods of one pool that are bound by more than one scheduler: their caches over-commit nodes (volcano#1827)."""
    pools: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for pod in cache.listing(PODS):
        spec = pod.get("spec") or {}
        if pod_is_terminal(pod) or not spec.get("nodeName"):
            continue
        pool = labels_of(cache.object(NODES, spec["nodeName"])).get(POOL_LABEL, "")
        pools[pool][str(spec.get("schedulerName") or "default-scheduler")].append(owner_of(pod))
    found = []
    for pool, schedulers in pools.items():
        if len(schedulers) > 1:
            said = ", ".join(f"{name} ({sorted(set(jobs))[0]})" for name, jobs in sorted(schedulers.items()))
            found.append(
                Finding(
                    "two_schedulers",
                    pool or "nodes without a pool",
                    f"GPU pods of pool {pool or '(none)'} are bound by {len(schedulers)} schedulers: {said}",
                    "give all GPU pods of the pool one schedulerName (the pool's engine decides which)",
                    numbers={name: len(jobs) for name, jobs in schedulers.items()},
                )
            )
    return found


def _rejections(cache: Cache) -> list[Finding]:
    """Pods that one kubelet refuses again and again (kubernetes#84869)."""
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    for pod in cache.listing(PODS):
        status = pod.get("status") or {}
        reason = str(status.get("reason") or "")
        known = reason.startswith("OutOf") or reason in ("TopologyAffinityError", "UnexpectedAdmissionError")
        if status.get("phase") == "Failed" and known:
            counts[owner_of(pod), str((pod.get("spec") or {}).get("nodeName") or ""), reason] += 1
    return [
        Finding(
            "rejections",
            job,
            f"{node} has refused {n} pods of it: {reason}",
            f"myriad why {job}; suspend the job until that is mended, or its controller makes pods without end",
            numbers={"node": node, "reason": reason, "count": n},
        )
        for (job, node, reason), n in counts.items()
        if n >= REJECTIONS
    ]


def _pills(cache: Cache, views: Sequence[WorkloadView]) -> list[Finding]:
    """A gang at the head that is refused each cycle and can never fit: the queue goes on around it (kueue#15148)."""
    found = []
    snapshot = None
    for name, waiting in cache.waiting().items():
        queue = cache.object(CLUSTER_QUEUES, name) or {}
        strict = (queue.get("spec") or {}).get("queueingStrategy") == "StrictFIFO"
        for view in waiting[:1]:
            snapshot = snapshot or cache.snapshot()
            never = fits_ever(snapshot, view.gang)
            if never is None:
                continue
            behind = len(waiting) - 1
            blocks = f"; {behind} behind it wait (StrictFIFO)" if strict and behind else ""
            found.append(
                Finding(
                    "poison_pill",
                    _name(view),
                    f"stands first in {name} and can never fit: {never.sentence}{blocks}",
                    "its owner has to change it; until then set its Workload's active to false",
                    0,
                    _job(view),
                    {"behind": behind, "strict": strict},
                )
            )
    for view in views:
        if view.finished or not view.waiting:
            continue
        count = int(
            (((cache.object(WORKLOADS, view.key) or {}).get("status") or {}).get("requeueState") or {}).get("count")
            or 0
        )
        if count >= PILL_TRIES:
            found.append(
                Finding(
                    "poison_pill",
                    _name(view),
                    f"was started {count} times and never got ready",
                    f"myriad why {_name(view)}; look at the logs of its last pods",
                    0,
                    _job(view),
                    {"tries": count},
                )
            )
    return found


def _silence(cache: Cache, views: Sequence[WorkloadView], now: datetime) -> list[Finding]:
    """Kueue has not said a word about a waiting job (kueue#2391)."""
    silent = []
    for view in views:
        since = seconds_since(view.created, now)
        if view.waiting and since > SILENCE_S and not _condition(cache, view, "QuotaReserved"):
            silent.append((since, view))
    if not silent:
        return []
    since, oldest = max(silent, key=lambda pair: pair[0])
    return [
        Finding(
            "silence",
            _name(oldest),
            f"Kueue has looked at {len(silent)} waiting {'job' if len(silent) == 1 else 'jobs'} not once; "
            f"{_name(oldest)} waits {duration(since)} without a word",
            "kubectl -n kueue-system get pods; kubectl -n kueue-system logs deploy/kueue-controller-manager",
            0,
            _job(oldest),
            {"jobs": len(silent), "longest_s": round(since)},
        )
    ]


def _pod_groups(cache: Cache, groups: Sequence[Json] | None, now: datetime) -> list[Finding]:
    """PodGroups of Volcano that hold a reservation without pods, or that nobody looks at (volcano#2633, #4739)."""
    if not groups:
        return []
    with_pods: dict[str, int] = defaultdict(int)
    for pod in cache.listing(PODS):
        name = annotations_of(pod).get(GROUP_ANNOTATION)
        if name and not pod_is_terminal(pod):
            with_pods[f"{pod['metadata']['namespace']}/{name}"] += 1
    found = []
    for group in groups:
        metadata, spec, status = group["metadata"], group.get("spec") or {}, group.get("status") or {}
        key = f"{metadata['namespace']}/{metadata['name']}"
        age_s = seconds_since(str(metadata.get("creationTimestamp") or ""), now)
        phase = str(status.get("phase") or "")
        if with_pods[key] or phase == "Completed" or age_s < STRANDED_MARGIN_S:
            continue
        gpus = sum(
            int(str(v)) for k, v in (spec.get("minResources") or {}).items() if k.endswith("/gpu") and str(v).isdigit()
        )
        if not metadata.get("ownerReferences"):
            found.append(
                Finding("orphan_podgroup", key, f"PodGroup {key} belongs to nobody and has no pods",
                        f"kubectl -n {metadata['namespace']} delete podgroup {metadata['name']}", gpus)
            )  # fmt: skip
        elif phase == "Inqueue":
            found.append(
                Finding("phantom_reservation", key,
                        f"PodGroup {key} is Inqueue without a pod: Volcano holds its {gpus_words(gpus)} for nobody",
                        "delete the PodGroup, or start the job that it belongs to", gpus)
            )  # fmt: skip
    return found


def _visibility(services: Sequence[Json] | None) -> list[Finding]:
    """An aggregated API that does not answer: namespaces then hang in Terminating (kueue#1769)."""
    found = []
    for service in services or ():
        for condition in (service.get("status") or {}).get("conditions") or []:
            if condition["type"] == "Available" and condition["status"] != "True":
                name = service["metadata"]["name"]
                found.append(
                    Finding(
                        "visibility_down",
                        name,
                        f"the aggregated API {name} does not answer ({condition.get('reason')}): namespaces that are "
                        "deleted hang in Terminating",
                        "kubectl -n kueue-system get pods; bring Kueue back, or delete the APIService",
                    )
                )
    return found
