"""Evictions as people ask for them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from myriad.errors import InputError
from myriad.scheduler.notices import patterns
from myriad.scheduler.notices.checkpoint import Unreadable, parse_interval
from myriad.scheduler.notices.facts import Eviction, Party, cause_of, moment, record_id, stamp
from myriad.scheduler.notices.text import gpu_hours, notice

Json = dict[str, Any]


def since_when(text: str, now: datetime) -> datetime | None:
    """The time that `24h`, `7d`, `2026-11-30` or a full time means; None for an empty text. Raises InputError."""
    value = text.strip()
    if not value:
        return None
    if re.match(r"\d{4}-", value):
        at = moment(value)
        if at is not None:
            return at
    else:
        try:
            return now - timedelta(seconds=parse_interval(value))
        except Unreadable:
            # Said below, for both forms.
            pass
    raise InputError(f'"{text}" is no time', where="--since", hint="write 24h, 7d, 2026-11-30 or 2026-11-30T14:00:00Z")


def read_all(bodies: Iterable[Json]) -> list[Eviction]:
    """Records read back, oldest first; one that is none is passed over."""
    found = []
    for body in bodies:
        try:
            found.append(Eviction.from_dict(body))
        except (KeyError, TypeError):
            continue
    return sorted(found, key=lambda e: (e.at, e.id))


def chosen(
    evictions: Iterable[Eviction], *, namespace: str = "", job: str = "", since: datetime | None = None
) -> list[Eviction]:
    """Those of a namespace, a job (as victim or as preemptor) and a time."""

    def is_it(party: Party | None) -> bool:
        return party is not None and (not namespace or party.namespace == namespace) and (not job or party.job == job)

    return [
        e
        for e in evictions
        if (is_it(e.victim) or (bool(job) and is_it(e.preemptor)))
        and (since is None or ((at := moment(e.at)) is not None and at >= since))
    ]


def report(evictions: Sequence[Eviction], *, now: datetime | None = None) -> Json:
    """Evictions with their notice, counts by pair, and loops that go on."""
    now = now or datetime.now(UTC)
    lost = sum(e.at_risk_gpu_h for e in evictions)
    return {
        "evictions": [{**e.as_dict(), "text": notice(e)} for e in evictions],
        "pairs": [asdict(p) for p in patterns.pairs(evictions)],
        "loops": [{**asdict(loop), "text": loop.sentence()} for loop in patterns.loops(evictions, now)],
        "inverted": [e.id for e in evictions if patterns.inverted(e)],
        "at_risk_gpu_h": round(lost, 3),
    }


def from_workload(workload: Json, team: str = "") -> Eviction | None:
    """What a Workload alone tells of its last eviction, for whoever may read no more than that."""
    cause = cause_of(workload)
    if cause is None:
        return None
    metadata = workload["metadata"]
    owner: Json = next((o for o in metadata.get("ownerReferences") or [] if o.get("controller")), {})
    victim = Party(
        metadata["namespace"], owner.get("name") or metadata["name"], team, metadata.get("uid", ""),
        owner.get("kind", ""), queue=cause.victim_queue,
    )  # fmt: skip
    preemptor = Party(uid=cause.preemptor_uid, queue=cause.preemptor_queue) if cause.is_preemption else None
    return Eviction(
        record_id(workload, cause), cause.at, cause.reason, victim, policy=cause.policy, message=cause.message,
        preemptor=preemptor, late=cause.past,
    )  # fmt: skip


def row(e: Eviction) -> list[str]:
    """Cells of one line: time, job, for whom, rule, at risk, count."""
    at = moment(e.at)
    whom = patterns.preemptor_key(e) if e.is_preemption else e.reason
    return [
        f"{at:%Y-%m-%d %H:%M:%S}" if at else stamp(at),
        e.victim.key,
        whom,
        e.policy or "-",
        gpu_hours(e.at_risk_gpu_h) if e.victim.gpus else "-",
        str(e.count),
    ]
