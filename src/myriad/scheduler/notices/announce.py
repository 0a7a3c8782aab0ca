"""Evictions that Myriad itself plans are told before: by drain, by a protected domain, by a budget that is used up.

Who plans one calls `announce`, and again with the same plan as often as it likes; the answer says when it may go on: at
the deadline, or as soon as the owner lets the job go by the annotation `myriad.dev/may-leave` on the Job. The plan
stands in an annotation of the Job (`myriad.dev/planned-eviction`), so it is seen before it happens, by whoever
describes the job, and survives the planner's restart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import Resource
from myriad.scheduler.notices import checkpoint, text
from myriad.scheduler.notices.facts import Party, moment, stamp

Json = dict[str, Any]

PLANNED = "myriad.dev/planned-eviction"
MAY_LEAVE = "myriad.dev/may-leave"


@dataclass(frozen=True, slots=True)
class Plan:
    """An eviction that is planned.

    Attributes:
        by: what asks the job to leave (`drain of gpu12`, `protection of hall1/b3`).
        reason: the end of a sentence that begins with "because".
        notice_s: time from the first announcement to the eviction.
        grace_s: time that the job has to save once it is asked.
    """

    by: str
    reason: str
    notice_s: float
    grace_s: int = 300


@dataclass(frozen=True, slots=True)
class Announced:
    """What was told.

    Attributes:
        at: when the job is asked to leave at the latest.
        new: this call told it first.
        acknowledged: the owner lets it go now.
        due: the planner may go on.
        text: the sentences.
    """

    at: datetime
    new: bool
    acknowledged: bool
    due: bool
    text: str = ""


class JobChangedError(MyriadError):
    """The job changed between the read and the announcement: read it again and announce again."""


def planned_of(job: Mapping[str, Any]) -> tuple[str, datetime] | None:
    """Who plans to evict a Job, and when; None where nobody does."""
    annotation = (job["metadata"].get("annotations") or {}).get(PLANNED)
    try:
        body = json.loads(annotation or "")
        at = moment(body["at"])
        return (str(body["by"]), at) if at else None
    except (ValueError, TypeError, KeyError):
        return None


def announce(
    api: Api, resource: Resource, job: Json, plan: Plan, *, team: str = "", gpus: int = 0, now: datetime | None = None
) -> Announced:
    """Tell the owner of a job that it will be asked to leave. Idempotent: the first deadline stands.

    Args:
        api: the client.
        resource: the job's kind.
        job: the object as it was just read.
        plan: what is planned.
        team, gpus: for the sentences and the cost.
        now: the time.

    Raises:
        JobChangedError: it is another one by now.
        MyriadError: the job cannot be told; then it should not be evicted either.
    """
    now = now or datetime.now(UTC)
    metadata = job["metadata"]
    annotations = metadata.get("annotations") or {}
    acknowledged = bool(annotations.get(MAY_LEAVE))
    known = planned_of(job)
    if known is not None and known[0] == plan.by:
        return Announced(known[1], False, acknowledged, acknowledged or now >= known[1])
    at = now + timedelta(seconds=plan.notice_s)
    # Two planners: the job leaves when the first of them wants it, and both may go on then.
    if known is not None and known[1] <= at:
        return Announced(known[1], False, acknowledged, acknowledged or now >= known[1])
    body = json.dumps({"by": plan.by, "at": stamp(at), "because": plan.reason}, separators=(",", ":"))
    patch = {
        "metadata": {
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion"),
            "annotations": {PLANNED: body},
        }
    }
    try:
        api.patch(resource, metadata["name"], patch, namespace=metadata["namespace"])
    except ApiError as error:
        if not error.is_conflict:
            raise
        raise JobChangedError(
            "the job changed while its eviction was announced", where=f"{metadata['namespace']}/{metadata['name']}",
            hint="read it again and announce again",
        ) from error  # fmt: skip
    party = Party(metadata["namespace"], metadata["name"], team, gpus=gpus)
    started = moment((job.get("status") or {}).get("startTime"))
    saved = checkpoint.read([annotations], now)
    cost = checkpoint.victim_cost(gpus, saved, started, now) / 3600 if gpus and started else None
    words = text.planned(
        party, by=plan.by, because_of=plan.reason, at=at, grace_s=plan.grace_s, now=now, at_risk_gpu_h=cost
    )
    about = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    api.create_event(about, reason="MyriadWillEvict", message=" ".join(words.split()), type_="Warning")
    return Announced(at, True, acknowledged, acknowledged or now >= at, words)


def withdraw(api: Api, resource: Resource, job: Json, by: str) -> bool:
    """The eviction does not take place: the plan is taken off a Job that bears it. True where it was."""
    known = planned_of(job)
    if known is None or known[0] != by:
        return False
    metadata = job["metadata"]
    body = {"metadata": {"uid": metadata["uid"], "annotations": {PLANNED: None}}}
    try:
        api.patch(resource, metadata["name"], body, namespace=metadata["namespace"])
    except ApiError as error:
        # A job that has ended needs no word any more.
        if not (error.is_not_found or error.is_conflict):
            raise
        return False
    return True
