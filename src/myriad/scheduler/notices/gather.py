"""Puts together what a notice says: conditions from the cache, the job's own annotations, quota, place in the queue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from myriad.errors import MyriadError
from myriad.kube.client import Api
from myriad.kube.kinds import CLUSTER_QUEUES, WORKLOADS, Resource
from myriad.scheduler.cache import Cache
from myriad.scheduler.eta.model import Eta
from myriad.scheduler.inquiry import gpu_amounts
from myriad.scheduler.notices import checkpoint
from myriad.scheduler.notices.facts import (
    SHIELDED,
    Cause,
    Eviction,
    Party,
    Stop,
    moment,
    record_id,
    stamp,
    stop_of,
)
from myriad.scheduler.objects import TEAM_LABEL, WorkloadView
from myriad.scheduler.policy import SitePolicy

log = logging.getLogger("myriad.notices")

Json = dict[str, Any]
Estimator = Callable[[Sequence[tuple[WorkloadView, str]]], Mapping[str, Eta]]
"""Estimates when evicted gangs start again, by uid, from each with the uid of the Workload that takes its place."""


def job_resource(job: Mapping[str, str]) -> Resource | None:
    """The kind of a Workload's owner as the API serves it."""
    if not job.get("kind"):
        return None
    group, _, version = job["apiVersion"].rpartition("/")
    return Resource(group, version, job["kind"].lower() + "s", job["kind"])


def read_job(api: Api, view: WorkloadView) -> Json | None:
    """The owner of a Workload, None where there is none, it is gone, or it may not be read."""
    resource = job_resource(view.job)
    if resource is None:
        return None
    try:
        body = api.find(resource, view.job["name"], namespace=view.gang.namespace)
    except MyriadError as error:
        log.info("%s %s cannot be read: %s", resource.kind, view.key, error.message)
        return None
    return body if body and body["metadata"].get("uid") == view.job["uid"] else None


def pods_of(cache: Cache, view: WorkloadView) -> list[Json]:
    """The GPU pods of a job: those that TAS placed, or those that the job owns where Kueue counts quota only."""
    placed = cache.pods_of_workload(view)
    owner = view.job.get("uid")
    return placed or (cache.gpu_pods_owned(view.gang.namespace, owner) if owner else [])


def checkpoint_of(workload: Json, job: Json | None, pods: list[Json], now: datetime) -> checkpoint.Checkpoint:
    """What a job says of its checkpoints: on the Job, in its pod template, on its pods."""
    found = [(job or {}).get("metadata", {}).get("annotations")]
    for podset in workload["spec"].get("podSets") or []:
        found.append(((podset.get("template") or {}).get("metadata") or {}).get("annotations"))
    found += [pod["metadata"].get("annotations") for pod in pods]
    return checkpoint.read(found, now)


def class_of(workload: Json) -> tuple[str, bool]:
    """A Workload's own priority class, and whether it is shielded now."""
    name = str((workload["spec"].get("priorityClassRef") or {}).get("name") or "")
    return name.removesuffix(SHIELDED), name.endswith(SHIELDED)


def party_of(cache: Cache, view: WorkloadView, policy: SitePolicy, queue: str = "") -> Party:
    """A job that takes part, without its shield."""
    workload = cache.object(WORKLOADS, view.key) or {"spec": {}}
    own, shielded = class_of(workload)
    priority = policy.priorities.get(own, view.gang.priority) if shielded else view.gang.priority
    return Party(
        namespace=view.gang.namespace,
        job=view.gang.name,
        team=view.gang.team,
        uid=view.gang.uid,
        kind=view.job.get("kind", ""),
        gpus=view.gang.gpus,
        priority=priority,
        priority_class=own,
        queue=queue or cache.cluster_queue_of(view),
        pool=view.gang.pool,
    )


def preemptor_of(cache: Cache, cause: Cause, policy: SitePolicy) -> Party | None:
    """Who took the place; what is known of it where it is gone already; None where nobody did."""
    if not cause.is_preemption:
        return None
    view = cache.view_of_uid(cause.preemptor_uid, cause.preemptor_job_uid)
    if view is not None:
        return party_of(cache, view, policy, cause.preemptor_queue)
    queue = cache.object(CLUSTER_QUEUES, cause.preemptor_queue) if cause.preemptor_queue else None
    labels = (queue or {}).get("metadata", {}).get("labels") or {}
    return Party(team=labels.get(TEAM_LABEL, ""), uid=cause.preemptor_uid, queue=cause.preemptor_queue)


def gpu_name(policy: SitePolicy, pool: str) -> str:
    """What people call the GPUs of a pool: `H100` for H100-SXM5-80GB."""
    return policy.pool(pool).model.partition("-")[0] or "GPUs"


def position_of(cache: Cache, view: WorkloadView, priority: int) -> int:
    """The place that an evicted gang takes in its queue: by its own priority, then by its age, as Kueue orders."""
    mine = (-priority, view.created, view.gang.uid)
    waiting = cache.waiting().get(cache.cluster_queue_of(view), [])
    return 1 + sum((-v.gang.priority, v.created, v.gang.uid) < mine for v in waiting if v.key != view.key)


def build(
    api: Api,
    cache: Cache,
    workload: Json,
    cause: Cause,
    *,
    policy: SitePolicy,
    now: datetime,
    count: int,
    eta: Eta | None = None,
) -> Eviction | None:
    """The record of an eviction; None where the Workload is gone from the cache.

    Args:
        api: reads the Job, once.
        cache: everything else.
        workload: the evicted one.
        cause: what its conditions say.
        policy: the site's.
        now: an aware time.
        count: evictions of this job that are recorded already.
        eta: when it starts again, where that can be said.
    """
    metadata = workload["metadata"]
    view = cache.view(f"{metadata['namespace']}/{metadata['name']}")
    if view is None:
        return None
    pods = pods_of(cache, view)
    stop = Stop() if cause.past else stop_of(pods, moment(cause.at) or now)
    victim = party_of(cache, view, policy, cause.victim_queue)
    preemptor = preemptor_of(cache, cause, policy)
    known = checkpoint_of(workload, read_job(api, view), pods, now)
    started = started_at(workload, pods)
    borrowed = _borrowed(cache, victim.queue, moment(cause.at) or now)
    comes_back = eta is not None and not cause.past and not cause.reason.startswith("Deactivated")
    return Eviction(
        id=record_id(workload, cause),
        at=cause.at,
        reason=cause.reason,
        policy=cause.policy,
        message=cause.message,
        seen_at=now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        victim=victim,
        preemptor=preemptor,
        pods=stop.pods,
        nodes=stop.nodes,
        started_at=stamp(started),
        sigterm_at=stamp(stop.sigterm_at),
        kill_at=stamp(stop.kill_at),
        grace_s=stop.grace_s,
        exact=stop.exact,
        last_checkpoint=stamp(known.last),
        interval_s=known.interval_s,
        at_risk_s=round(checkpoint.at_risk_s(known, started, stop.sigterm_at or now), 1) if stop.pods else 0.0,
        position=None if cause.past else position_of(cache, view, victim.priority),
        eta_s=eta.mid_s if eta and comes_back else None,
        eta_low_s=eta.low_s if eta and comes_back else None,
        eta_high_s=eta.high_s if eta and comes_back else None,
        count=max(count + 1, evictions_counted(workload)),
        borrowed=borrowed,
        reclaimed=min(borrowed, preemptor.gpus, victim.gpus) if preemptor else 0,
        gpu_name=gpu_name(policy, victim.pool),
        shielded=class_of(workload)[1],
        late=cause.past,
        targets=tuple(policy.targets_of(victim.team)),
        cluster=policy.cluster,
    )


def evictions_counted(workload: Json) -> int:
    """How often Kueue has evicted a Workload, by its own statistics."""
    stats = (workload.get("status") or {}).get("schedulingStats") or {}
    return sum(int(e.get("count") or 0) for e in stats.get("evictions") or [])


def started_at(workload: Json, pods: list[Json]) -> datetime | None:
    """Since when a gang runs: since it was admitted, or since its first pod started where that is known no more."""
    conditions = {c["type"]: c for c in (workload.get("status") or {}).get("conditions") or []}
    admitted = conditions.get("Admitted") or {}
    if admitted.get("status") == "True":
        return moment(admitted.get("lastTransitionTime"))
    starts = [moment((p.get("status") or {}).get("startTime")) for p in pods]
    return min((at for at in starts if at is not None), default=None)


def held_at(cache: Cache, queue: str, at: datetime) -> int:
    """GPUs that the Workloads of a ClusterQueue held when one of them was evicted.

    Summed from the Workloads, with those that were evicted then or since: Kueue gives their quota back, and writes the
    ClusterQueue's status, within the same second. Times of conditions have whole seconds.
    """
    held = 0
    for view in cache.views_by_queue().get(queue, []):
        status = (cache.object(WORKLOADS, view.key) or {}).get("status") or {}
        conditions = {c["type"]: c for c in status.get("conditions") or []}
        if view.quota_reserved and not view.finished:
            since = moment((conditions.get("QuotaReserved") or {}).get("lastTransitionTime"))
            held += view.gpus_held if since is None or since <= at else 0
        elif view.evicted:
            left = moment((conditions.get("Evicted") or {}).get("lastTransitionTime"))
            held += view.gang.gpus if left is not None and left >= at else 0
    return held


def _borrowed(cache: Cache, queue: str, at: datetime) -> int:
    body = cache.object(CLUSTER_QUEUES, queue) if queue else None
    return max(0, held_at(cache, queue, at) - gpu_amounts(cache, body)["nominal"]) if body else 0


def unshielded(party: Party, policy: SitePolicy) -> Party:
    """A job with the priority of its own class, whatever shield it carries."""
    own = party.priority_class.removesuffix(SHIELDED)
    return replace(party, priority_class=own, priority=policy.priorities.get(own, party.priority))
