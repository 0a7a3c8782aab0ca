"""Protected domains on the live cluster: who waits, when running jobs must end, and the nodes' taints.

The decision is `protect_choice.decide`; what stands is read from the nodes each time (`protect.standing`). Nodes are
written one by one, each with its resourceVersion: a pass that fails half-way is simply made again, and a domain of
which some nodes could not be marked is filled up by the next.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import CLUSTER_QUEUES, NODES, WORKLOADS
from myriad.scheduler.brake import Ask, Verdict
from myriad.scheduler.braking import Braking
from myriad.scheduler.cache import Cache
from myriad.scheduler.model import PlacementPolicy, parse_quantity
from myriad.scheduler.objects import WorkloadView
from myriad.scheduler.policy import ProtectionPolicy
from myriad.scheduler.protect import Doors, Protection, is_marked, mark_of, operations, sentence, standing
from myriad.scheduler.protect_choice import Decision, Waiter, decide
from myriad.scheduler.snapshot import Snapshot
from myriad.scheduler.surroundings import Surroundings

log = logging.getLogger("myriad.protecting")

Json = dict[str, Any]

GIVEN_UP_ANNOTATION = "myriad.dev/protection-given-up"
"""On a Workload: when a domain that was kept for it expired; the next is tried as late as the first."""

_LEAST_S = 2.0


class Protecting:
    """The observer; the leader calls it.

    Args:
        parts: the extension's.
        braking: asked before a node is tainted; one of its own where it is not shared.
        wall: seconds since the epoch.
        clock: monotonic seconds.
    """

    name = "protecting"
    interval_s = 5.0

    def __init__(
        self,
        parts: Surroundings,
        *,
        braking: Braking | None = None,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._braking = braking or Braking(
            parts.cache, settle_s=parts.settings.brake_settle_s, enabled=parts.settings.brake
        )
        self._api: Api = parts.api
        self._cache = parts.cache
        self._events = parts.events
        self._wall = wall
        self._clock = clock
        self._last = float("-inf")

    def step(self) -> None:
        """Look at most every two seconds: changes come much faster, and no gang starves in less."""
        self._braking.follow()
        if self._clock() - self._last < _LEAST_S:
            return
        self._last = self._clock()
        now = self._wall()
        rules = self._cache.policy()
        nodes = self._cache.listing(NODES)
        stands = standing(nodes)
        waiting = waiters(self._cache, rules.protection, stands, now=now)
        strays = [n for n in nodes if (m := mark_of(n)) is not None and not is_marked(n, m["uid"])]
        for node in strays:
            # Somebody took our taint away: the node is theirs, and our annotation would lie.
            self._write(node, None)
        if not waiting and not stands:
            return
        snapshot = self._cache.snapshot()
        decision = decide(
            snapshot,
            waiting,
            ends_of(self._cache),
            stands,
            rules.protection,
            now=now,
            grace_s=float(rules.preemption.grace_s),
            placement=PlacementPolicy(),
        )
        self._apply(decision, {n["metadata"]["name"]: n for n in nodes}, stands, snapshot, now)

    def _apply(
        self,
        decision: Decision,
        nodes: Mapping[str, Json],
        stands: Mapping[str, Protection],
        snapshot: Snapshot,
        now: float,
    ) -> None:
        for protection, why in decision.release:
            for name in protection.nodes:
                self._write(nodes[name], None)
            if now >= protection.expires:
                self._give_up(protection.workload, now)
            log.info("%s: its %d nodes are free for all again: %s", protection.job, len(protection.nodes), why)
            self._tell(protection.workload, f"the {len(protection.nodes)} nodes that were kept are free again: {why}")
        for protection in decision.protect:
            before = stands.get(protection.uid)
            fresh = set(protection.nodes) - set(before.nodes if before else ())
            verdict = self._may_taint(protection, fresh)
            if not verdict.allowed:
                self._tell(protection.workload, f"it has waited long, but no domain is kept for it: {verdict.reason}")
                continue
            for name in set(before.nodes if before else ()) - set(protection.nodes):
                self._write(nodes[name], None)
            for name in protection.nodes:
                self._write(nodes[name], protection)
            log.info("%s: %d nodes are kept for it", protection.job, len(protection.nodes))
            self._tell(protection.workload, sentence(protection, snapshot, now=now))
        for refused in decision.refused:
            view = self._cache.view_of_uid(refused.uid)
            if view is not None:
                self._tell(view.key, f"it has waited long, but no domain is kept for it: {refused.sentence}")

    def _may_taint(self, protection: Protection, nodes: set[str]) -> Verdict:
        """The brake's word on the nodes that are not tainted yet; what stands is kept whatever it says."""
        if not nodes:
            return Verdict(True)
        ask = Ask("taint", f"the domain for {protection.job}", tuple(sorted(nodes)), by="protection")
        verdict = self._braking.ask(ask)
        if not verdict.allowed:
            log.info("%s: %s", protection.job, verdict.reason)
        return verdict

    def _write(self, node: Json, protection: Protection | None) -> None:
        changes = operations(node, protection)
        if not changes:
            return
        try:
            self._api.patch(NODES, node["metadata"]["name"], changes, kind="json")
        except ApiError as error:
            # It moved on, or is gone: the watch brings what it is now, and the next step looks again.
            log.info("%s: %s", node["metadata"]["name"], error.message)

    def _give_up(self, key: str, now: float) -> None:
        namespace, _, name = key.partition("/")
        when = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            body = {"metadata": {"annotations": {GIVEN_UP_ANNOTATION: when}}}
            self._api.patch(WORKLOADS, name, body, namespace=namespace)
        except ApiError as error:
            log.info("%s: %s", key, error.message)

    def _tell(self, key: str, text: str) -> None:
        view = self._cache.view(key)
        if view is None or not view.job:
            return
        about = {
            "apiVersion": view.job["apiVersion"],
            "kind": view.job["kind"],
            "metadata": {"name": view.job["name"], "namespace": view.gang.namespace, "uid": view.job["uid"]},
        }
        self._events.tell(about, "MyriadProtected", text)


# -- what the cache says -----------------------------------------------------------------------------------------


def waiters(cache: Cache, policy: ProtectionPolicy, stands: Mapping[str, Protection], *, now: float) -> list[Waiter]:
    """Gangs that have waited long enough, and those that have a domain."""
    views = cache.views()
    latest: dict[str, list[tuple[str, int]]] = {}
    for view in views:
        if view.quota_reserved and not view.finished and view.gpus_held:
            latest.setdefault(view.gang.pool, []).append((view.created, view.gang.priority))
    found = []
    for view in views:
        if not view.waiting:
            continue
        body = cache.object(WORKLOADS, view.key) or {}
        waits_s = now - max(_seconds(view.created), _condition(body, "Evicted"))
        if view.gang.uid not in stands and waits_s < policy.after_s:
            continue
        given_up = _seconds((body.get("metadata", {}).get("annotations") or {}).get(GIVEN_UP_ANNOTATION, ""))
        found.append(
            Waiter(
                gang=view.gang,
                workload=view.key,
                waits_s=waits_s,
                quota=_quota(cache, view),
                given_up_s=now - given_up if given_up else None,
                steerable=view.steerable and view.check is not None and view.check.state in ("Pending", "Ready"),
                overtaken=any(
                    # Times have whole seconds: one that came in the same second and has its place overtook too.
                    created >= view.created and priority <= view.gang.priority
                    for created, priority in latest.get(view.gang.pool, ())
                ),
            )
        )
    return found


def ends_of(cache: Cache) -> dict[str, float]:
    """When the limit of each running gang ends its pods, by pod (and stand-in of a pod): seconds since the epoch."""
    ends: dict[str, float] = {}
    for view in cache.views():
        if not view.quota_reserved or view.finished:
            continue
        body = cache.object(WORKLOADS, view.key) or {}
        limit_s = limit_of(body)
        if limit_s is None:
            continue
        # Kueue counts from the admission; one that is not admitted yet will be any moment.
        begin = _condition(body, "Admitted") or time.time()
        past = float((body.get("status") or {}).get("accumulatedPastExecutionTimeSeconds") or 0)
        for uid in cache.uids_of(view):
            ends[uid] = begin + max(0.0, limit_s - past)
    return ends


def limit_of(workload: Json) -> float | None:
    """The limit that Kueue enforces on a Workload, in seconds; None where there is none."""
    value = (workload.get("spec") or {}).get("maximumExecutionTimeSeconds")
    return float(value) if isinstance(value, int | float) and value > 0 else None


def doors_of(cache: Cache, snapshot: Snapshot, *, now: float) -> Doors | None:
    """Who may pass into which protected domain; None where there is none."""
    stands = standing(cache.listing(NODES))
    return Doors.of(snapshot, stands, ends_of(cache), now) if stands else None


def report(cache: Cache, *, now: float, uids: Sequence[str] | None = None) -> list[Json]:
    """The protected domains, for people: for whom, where, since when and until when (all, or those of some gangs)."""
    snapshot = cache.snapshot()
    out = []
    for uid, protection in standing(cache.listing(NODES)).items():
        if uids is None or uid in uids:
            tier, path = snapshot.tier_of(protection.nodes)
            out.append(
                {
                    "uid": uid,
                    "workload": protection.workload,
                    "job": protection.job,
                    "tier": tier,
                    "domain": list(path),
                    "nodes": list(protection.nodes),
                    "since": protection.since,
                    "until": protection.until,
                    "expires": protection.expires,
                    "sentence": sentence(protection, snapshot, now=now),
                }
            )
    return out


def _quota(cache: Cache, view: WorkloadView) -> int | None:
    """The most GPUs that the gang's queue could hold; None where the cohort alone bounds it, or nothing is known."""
    queue = cache.object(CLUSTER_QUEUES, cache.cluster_queue_of(view))
    wanted = {p.gpu_resource for p in view.gang.podsets if p.gpus}
    if queue is None or len(wanted) != 1:
        return None
    spec = queue["spec"]
    cohort = spec.get("cohortName") or spec.get("cohort")
    for group in spec.get("resourceGroups") or []:
        for flavor in group.get("flavors") or []:
            for resource in flavor.get("resources") or []:
                if resource["name"] in wanted:
                    nominal = int(parse_quantity(resource.get("nominalQuota") or 0))
                    if not cohort:
                        return nominal
                    borrowing = resource.get("borrowingLimit")
                    return None if borrowing is None else nominal + int(parse_quantity(borrowing))
    return None


def _condition(workload: Json, kind: str) -> float:
    """When a condition became True; 0 where it is not."""
    for condition in (workload.get("status") or {}).get("conditions") or []:
        if condition.get("type") == kind and condition.get("status") == "True":
            return _seconds(str(condition.get("lastTransitionTime") or ""))
    return 0.0


def _seconds(timestamp: str) -> float:
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0
    except ValueError:
        return 0.0
