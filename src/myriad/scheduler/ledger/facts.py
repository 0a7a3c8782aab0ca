"""What a Workload says about GPU-hours: when it was admitted, with what, and when that was over. Pure.

All times are those of the Workload's own conditions, written by Kueue; no clock of ours is asked. Whoever reads the
same Workload gets the same facts, so facts may be recorded by several replicas and any number of times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from myriad.fleet.catalog import CATALOG
from myriad.fleet.mig import geometry
from myriad.scheduler.model import is_gpu_resource, parse_quantity

Json = dict[str, Any]

PROJECT_LABEL = "myriad.dev/project"
OWNER_LABEL = "myriad.dev/owner"
CHECKPOINT_ANNOTATION = "myriad.dev/last-checkpoint"

_MIG = re.compile(r"/mig-(?:(?P<whole>\d+)c\.)?(?P<slices>\d+)g\.(?P<memory>\d+)gb")
_SLICES_OF_A_CARD = 7
_OF_FOUR = {"6", "12", "24"}
"""Memory sizes of the A30's profiles, the one card of four slices."""


@dataclass(frozen=True, slots=True)
class Holding:
    """GPUs of one flavor: `slices`, of which `per_gpu` make one card; `borrowed` of them beyond the own quota."""

    pool: str
    flavor: str
    resource: str
    slices: int
    per_gpu: int
    borrowed: int = 0


@dataclass(frozen=True, slots=True)
class Admission:
    """A Workload is charged from `started_at` on. See `schema.AdmissionRow`.

    One whose `started_at` is not its `admitted_at` is a resize: the same admission goes on with other amounts.
    """

    uid: str
    started_at: int
    admitted_at: int
    queued_at: int
    namespace: str
    workload: str
    job: str
    job_kind: str
    job_uid: str
    team: str
    project: str
    owner: str
    cluster_queue: str
    local_queue: str
    priority: int
    priority_class: str
    limit_s: int | None
    holdings: tuple[Holding, ...]


@dataclass(frozen=True, slots=True)
class Ending:
    """A charge is over.

    Attributes:
        uid: of the Workload.
        started_at: which of its charges; None = the one that is open.
        ended_at: when.
        outcome: finished, failed, preempted, evicted, deactivated, time_limit, resized, deleted or lost.
        reason: Kueue's own.
        basis: condition, deleted, event or estimated.
        checkpoint_at: the last checkpoint that the job had reported.
    """

    uid: str
    started_at: int | None
    ended_at: int
    outcome: str
    reason: str
    basis: str
    checkpoint_at: int | None = None


Fact = Admission | Ending


@dataclass(frozen=True, slots=True)
class Places:
    """What a Workload does not say itself.

    Attributes:
        team_of: team of a namespace, "" where it belongs to none.
        queue_of: team and pool of a ClusterQueue, "" each where it has none.
        model_of: GPU model of a pool, "" where it is not known.
    """

    team_of: Callable[[str], str]
    queue_of: Callable[[str], tuple[str, str]]
    model_of: Callable[[str], str] = lambda _pool: ""


def seconds(timestamp: Any) -> int | None:
    """A Kubernetes timestamp in whole seconds since the epoch; None for none, or for what is no timestamp."""
    if not isinstance(timestamp, str) or not timestamp:
        return None
    try:
        parsed = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return int(parsed.timestamp()) if parsed.tzinfo is not None else None


def share(resource: str, model: str = "") -> tuple[int, int]:
    """Slices that one unit of a resource is, and how many make one card: (1, 1) for a whole card, (3, 7) for
    `nvidia.com/mig-3g.40gb`.

    A MIG instance counts as its compute slices: seven of 1g fill an H100, and so do 3g and 4g together.
    """
    found = _MIG.search(resource)
    if found is None:
        return 1, 1
    shape = geometry(model) if model in CATALOG else None
    of_card = shape.slices if shape else 4 if found["memory"] in _OF_FOUR else _SLICES_OF_A_CARD
    return min(int(found["slices"]), of_card), of_card


def read(workload: Json, places: Places) -> list[Fact]:
    """What a Workload says now, in order of time. Empty for one that was never admitted."""
    metadata = workload["metadata"]
    uid = str(metadata.get("uid") or "")
    conditions = {str(c.get("type")): c for c in (workload.get("status") or {}).get("conditions") or []}
    admitted = conditions.get("Admitted")
    if not uid or admitted is None:
        return []
    changed = seconds(admitted.get("lastTransitionTime"))
    if changed is None:
        return []
    ending = _ending(workload, conditions)
    if admitted.get("status") == "True":
        facts: list[Fact] = []
        admission = _admission(workload, conditions, changed, places)
        if admission is not None:
            facts.append(admission)
        if ending is not None and ending.ended_at >= changed:
            facts.append(replace(ending, started_at=changed))
        return facts
    if ending is None:
        # Nothing says why: quota was taken away all the same, at this time.
        ending = Ending(uid, None, changed, "evicted", str(admitted.get("reason") or ""), "condition")
    return [ending]


def removed(workload: Json, places: Places) -> list[Fact]:
    """What follows from a Workload that is gone: its last state, and the end of a charge that was still open."""
    facts = read(workload, places)
    if any(isinstance(fact, Ending) for fact in facts):
        return facts
    gone = seconds(workload["metadata"].get("deletionTimestamp"))
    for fact in list(facts):
        if isinstance(fact, Admission) and gone is not None and gone >= fact.started_at:
            facts.append(
                Ending(fact.uid, fact.started_at, gone, "deleted", "Deleted", "deleted", checkpoint_of(workload))
            )
    return facts


def amounts(workload: Json, places: Places) -> tuple[Holding, ...]:
    """GPUs that a Workload's admission holds, by flavor and resource; empty without admission."""
    admission = (workload.get("status") or {}).get("admission") or {}
    _, pool = places.queue_of(str(admission.get("clusterQueue") or ""))
    found: dict[tuple[str, str], int] = {}
    for podset in admission.get("podSetAssignments") or []:
        flavors = podset.get("flavors") or {}
        for resource, amount in (podset.get("resourceUsage") or {}).items():
            if is_gpu_resource(resource):
                key = str(flavors.get(resource) or ""), str(resource)
                found[key] = found.get(key, 0) + int(parse_quantity(amount))
    held = []
    for (flavor, resource), units in sorted(found.items()):
        if units > 0:
            slices, per_gpu = share(resource, places.model_of(pool or flavor))
            held.append(Holding(pool or flavor, flavor, resource, units * slices, per_gpu))
    return tuple(held)


def checkpoint_of(workload: Json) -> int | None:
    """The last checkpoint that is reported on the Workload."""
    return seconds((workload["metadata"].get("annotations") or {}).get(CHECKPOINT_ANNOTATION))


def named(workload: Json, key: str) -> str:
    """A label or annotation of the Workload, or of the pods that it asks for; empty where nobody set it."""
    metadata = workload["metadata"]
    found = [metadata] + [
        (podset.get("template") or {}).get("metadata") or {} for podset in workload["spec"].get("podSets") or []
    ]
    for part in found:
        for kind in ("labels", "annotations"):
            value = (part.get(kind) or {}).get(key)
            if value:
                # What a database cannot hold (NUL) or a terminal would obey has no place in a name.
                return "".join(c for c in str(value) if c.isprintable())[:253]
    return ""


def _admission(workload: Json, conditions: Mapping[str, Json], at: int, places: Places) -> Admission | None:
    metadata, spec = workload["metadata"], workload["spec"]
    holdings = amounts(workload, places)
    if not holdings:
        # A job without GPUs costs no GPU-hours.
        return None
    queue = str(workload["status"]["admission"].get("clusterQueue") or "")
    owner: Json = next((o for o in metadata.get("ownerReferences") or [] if o.get("controller")), {})
    created = seconds(metadata.get("creationTimestamp"))
    requeued = seconds((conditions.get("Requeued") or {}).get("lastTransitionTime"))
    queued = [t for t in (created, requeued) if t is not None and t <= at]
    limit = spec.get("maximumExecutionTimeSeconds")
    priority_class = spec.get("priorityClassRef") or {}
    return Admission(
        uid=str(metadata["uid"]),
        started_at=at,
        admitted_at=at,
        queued_at=max(queued, default=at),
        namespace=str(metadata.get("namespace") or ""),
        workload=str(metadata["name"]),
        job=str(owner.get("name") or metadata["name"]),
        job_kind=str(owner.get("kind") or "Workload"),
        job_uid=str(owner.get("uid") or ""),
        team=places.team_of(str(metadata.get("namespace") or "")) or places.queue_of(queue)[0],
        project=named(workload, PROJECT_LABEL),
        owner=named(workload, OWNER_LABEL),
        cluster_queue=queue,
        local_queue=str(spec.get("queueName") or ""),
        priority=int(spec.get("priority") or 0),
        priority_class=str(priority_class.get("name") or ""),
        limit_s=int(limit) if limit else None,
        holdings=holdings,
    )


def _ending(workload: Json, conditions: Mapping[str, Json]) -> Ending | None:
    """The earliest of what ended it. Evicted comes first where a job also finished while it was leaving."""
    ends = []
    for kind in ("Evicted", "Finished"):
        condition = conditions.get(kind) or {}
        at = seconds(condition.get("lastTransitionTime"))
        if condition.get("status") == "True" and at is not None:
            reason = str(condition.get("reason") or "")
            ends.append((at, kind, reason))
    gone = seconds(workload["metadata"].get("deletionTimestamp"))
    if not ends:
        if gone is None or (conditions["Admitted"].get("status") != "True"):
            return None
        return Ending(
            str(workload["metadata"]["uid"]), None, gone, "deleted", "Deleted", "deleted", checkpoint_of(workload)
        )
    at, kind, reason = min(ends)
    return Ending(
        uid=str(workload["metadata"]["uid"]),
        started_at=None,
        ended_at=at,
        outcome=_outcome(kind, reason),
        reason=reason,
        basis="condition",
        checkpoint_at=checkpoint_of(workload),
    )


def _outcome(kind: str, reason: str) -> str:
    if kind == "Finished":
        if reason == "WorkloadSliceReplaced":
            return "resized"
        return "failed" if "Fail" in reason else "finished"
    if reason == "Preempted":
        return "preempted"
    if "MaximumExecutionTimeExceeded" in reason:
        return "time_limit"
    return "deactivated" if reason.startswith("Deactivated") else "evicted"


# As JSON, for the journal


def to_json(fact: Fact) -> Json:
    """A fact as one line of the journal."""
    return {"fact": "admission" if isinstance(fact, Admission) else "ending", **asdict(fact)}


def from_json(document: Json) -> Fact:
    """A line of the journal. Raises KeyError, TypeError or ValueError for anything else."""
    fields = dict(document)
    kind = fields.pop("fact")
    if kind == "ending":
        return Ending(**fields)
    if kind != "admission":
        raise ValueError(kind)
    return Admission(**{**fields, "holdings": tuple(Holding(**h) for h in fields["holdings"])})
