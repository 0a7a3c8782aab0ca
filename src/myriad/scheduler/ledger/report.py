"""What teams used of a period, from the ledger's rows: used, borrowed, lent, waited, lost to preemption. Pure.

Amounts of charges are exact (fractions of GPU-seconds). What was borrowed and lent at any moment follows from all
charges and from what the ClusterQueues owned then, so it is summed over the moments at which one of them changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np

from myriad.scheduler.ledger.periods import Period
from myriad.scheduler.ledger.store import Charge, Correction, Quota

Json = dict[str, Any]
Key = tuple[str, str]
"""Team and pool."""

COMES_BACK = frozenset({"preempted", "evicted"})
"""Endings after which Kueue starts the job again: what was computed since its last checkpoint is computed twice."""
LOSES = frozenset({"failed", "deactivated", "time_limit"})
"""Endings after which nothing starts it again by itself: what was not saved is lost."""


@dataclass(slots=True)
class Sums:
    """GPU-seconds and counts of whatever is summed up.

    Attributes:
        used: charged, from Admitted to Evicted or Finished.
        waited: GPUs times the time between queued and admitted, of admissions that began in the period.
        recomputed: of `used`, computed after the last checkpoint by a run that was evicted and comes back.
        lost: of `used`, computed after the last checkpoint by a run that failed, was stopped, or ran out of time.
        estimated: of `used`, up to an end whose time nobody saw.
        waits: seconds that each admission waited.
        jobs: uids of Workloads.
        preempted: runs that were evicted for others.
    """

    used: Fraction = Fraction(0)
    waited: Fraction = Fraction(0)
    recomputed: Fraction = Fraction(0)
    lost: Fraction = Fraction(0)
    estimated: Fraction = Fraction(0)
    waits: list[int] = field(default_factory=list)
    jobs: set[str] = field(default_factory=set)
    preempted: int = 0

    def add(self, charge: Charge, period: Period, now: int) -> None:
        """Count one holding of one admission."""
        used = charge.gpu_seconds(period.start, period.end, now)
        self.used += used
        self.jobs.add(charge.uid)
        first = charge.started_at == charge.admitted_at
        if first and period.start <= charge.started_at < period.end:
            wait = max(0, charge.admitted_at - charge.queued_at)
            self.waited += wait * charge.gpus
            self.waits.append(wait)
        if charge.ended_at is None:
            return
        if charge.basis == "estimated":
            self.estimated += used
        if charge.outcome == "preempted" and period.start <= charge.ended_at < period.end:
            self.preempted += 1
        if charge.outcome in COMES_BACK:
            self.recomputed += unsaved(charge, period)
        elif charge.outcome in LOSES:
            self.lost += unsaved(charge, period)


def unsaved(charge: Charge, period: Period) -> Fraction:
    """GPU-seconds of a period that a run computed after its last checkpoint; all of them where it reported none."""
    if charge.ended_at is None:
        return Fraction(0)
    since = max(charge.started_at, charge.checkpoint_at or charge.started_at, period.start)
    return max(0, min(charge.ended_at, period.end) - since) * charge.gpus


@dataclass(frozen=True, slots=True)
class Shares:
    """GPU-seconds of a ClusterQueue's own quota and beyond it.

    Attributes:
        owned: its nominal quota.
        borrowed: used beyond it.
        lent: of it, used by others of the cohort while its owner did not need it.
        unused: of it, used by nobody.
    """

    owned: float = 0.0
    borrowed: float = 0.0
    lent: float = 0.0
    unused: float = 0.0


def shares(charges: Iterable[Charge], quotas: Sequence[Quota], *, since: int, until: int) -> dict[str, Shares]:
    """Who borrowed from whom, by ClusterQueue.

    Kueue keeps no account of who lent to whom. What is borrowed in a cohort's pool comes out of what its members leave
    unused at that moment, in proportion; what nobody has left to lend is not counted as lent.

    Args:
        charges: all that touch [since, until).
        quotas: what each ClusterQueue owned, each from its moment on.
        since, until: seconds since the epoch; `until` is not after now.
    """
    if until <= since:
        return {}
    known = {q.cluster_queue: q for q in quotas}
    scale = lcm(1, *(q.per_gpu for q in quotas), *{c.per_gpu for c in charges})
    rows: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for charge in charges:
        begin, end = max(since, charge.started_at), min(until, until if charge.ended_at is None else charge.ended_at)
        if begin < end and charge.cluster_queue in known:
            amount = charge.slices * (scale // charge.per_gpu)
            rows[charge.cluster_queue] += [(begin, amount, 0), (end, -amount, 0)]
    cohorts: dict[tuple[str, str], list[str]] = defaultdict(list)
    before: dict[str, int] = {}
    for quota in sorted(quotas, key=lambda q: q.since):
        name, owned = quota.cluster_queue, quota.nominal * (scale // quota.per_gpu)
        if quota.since >= until:
            continue
        rows[name].append((max(since, quota.since), 0, owned - before.get(name, 0)))
        before[name] = owned
    for name in rows:
        # The cohort that it belongs to now: a queue that moved in the middle of a period is counted where it went.
        cohorts[known[name].cohort or f"={name}", known[name].pool].append(name)
    found: dict[str, Shares] = {}
    for names in cohorts.values():
        found |= _of_cohort(names, rows, since=since, until=until, scale=scale)
    return found


def _of_cohort(
    names: Sequence[str], rows: Mapping[str, Sequence[tuple[int, int, int]]], *, since: int, until: int, scale: int
) -> dict[str, Shares]:
    """Shares of the members of one cohort in one pool: arrays of moments x members."""
    moments = np.unique([since, *(at for name in names for at, _, _ in rows[name])])
    used = np.zeros((len(moments), len(names)), dtype=np.int64)
    owned = np.zeros_like(used)
    for column, name in enumerate(names):
        at, use, own = (np.array(part, dtype=np.int64) for part in zip(*rows[name], strict=True))
        index = np.searchsorted(moments, at)
        np.add.at(used[:, column], index, use)
        np.add.at(owned[:, column], index, own)
    used, owned = used.cumsum(axis=0), owned.cumsum(axis=0)
    length = np.diff(np.append(moments, until)).clip(min=0).astype(np.float64)[:, None]
    borrowed = (used - owned).clip(min=0)
    idle = (owned - used).clip(min=0)
    total, can = borrowed.sum(axis=1, keepdims=True), idle.sum(axis=1, keepdims=True)
    part = np.minimum(total, can) / np.maximum(can, 1)
    lent = idle * part
    sums = [(amount * length).sum(axis=0) / scale for amount in (owned, borrowed, lent, idle - lent)]
    return {name: Shares(*(float(s[column]) for s in sums)) for column, name in enumerate(names)}


def report(
    charges: Sequence[Charge],
    quotas: Sequence[Quota],
    corrections: Sequence[Correction],
    *,
    period: Period,
    now: int,
    per: Callable[[Charge], str] | None = None,
) -> Json:
    """What every team used.

    Args:
        charges, quotas, corrections: of the ledger, those that touch the period.
        period: of which.
        now: until where open charges are counted.
        per: the name under which a charge is broken down as well, such as its project or owner.

    Returns:
        {"period", "start", "end", "until", "rows", "details"}. `rows` has one for each team and pool, hours as floats;
        `details` one for each team, pool, namespace and name of `per`.
    """
    until = min(period.end, now)
    sums: dict[Key, Sums] = defaultdict(Sums)
    parts: dict[tuple[str, str, str, str], Sums] = defaultdict(Sums)
    queues: dict[str, Key] = {q.cluster_queue: (q.team, q.pool) for q in quotas}
    for charge in charges:
        sums[charge.team, charge.pool].add(charge, period, now)
        if per is not None:
            parts[charge.team, charge.pool, charge.namespace, per(charge)].add(charge, period, now)
    corrected: dict[Key, int] = defaultdict(int)
    for correction in corrections:
        corrected[correction.team, correction.pool] += correction.gpu_seconds
    own: dict[Key, list[Shares]] = defaultdict(list)
    for name, of_queue in shares(charges, quotas, since=period.start, until=until).items():
        own[queues[name]].append(of_queue)
    keys = sorted(k for k in {*sums, *corrected, *own} if any(k))
    return {
        "period": period.name,
        "start": period.start,
        "end": period.end,
        "until": until,
        "rows": [_row(key, sums[key], own[key], corrected[key]) for key in keys],
        "details": [
            {"team": team, "pool": pool, "namespace": namespace, "name": name, **_measures(of)}
            for (team, pool, namespace, name), of in sorted(parts.items())
        ],
    }


def _row(key: Key, sums: Sums, own: Sequence[Shares], corrected: int) -> Json:
    return {
        "team": key[0],
        "pool": key[1],
        **_measures(sums),
        "corrected_h": _hours(corrected),
        "charged_h": _hours(sums.used + corrected),
        **{f"{name}_h": _hours(sum(getattr(s, name) for s in own)) for name in Shares.__dataclass_fields__},
    }


def _measures(sums: Sums) -> Json:
    return {
        "jobs": len(sums.jobs),
        "runs": len(sums.waits),
        "preempted": sums.preempted,
        "used_h": _hours(sums.used),
        "waited_h": _hours(sums.waited),
        "wait_median_s": int(np.median(sums.waits)) if sums.waits else None,
        "recomputed_h": _hours(sums.recomputed),
        "lost_h": _hours(sums.lost),
        "effective_h": _hours(sums.used - sums.recomputed - sums.lost),
        "estimated_h": _hours(sums.estimated),
    }


def _hours(gpu_seconds: Fraction | float) -> float:
    """Hours to the second of one GPU."""
    return round(float(gpu_seconds) / 3600, 4)


_ADDED = ("jobs", "runs", "preempted", "used_h", "waited_h", "recomputed_h", "lost_h", "effective_h", "estimated_h")


def merged(details: Iterable[Json], by: Sequence[str]) -> list[Json]:
    """Details added up over what `by` does not name; medians of parts cannot be added and are left out."""
    found: dict[tuple[str, ...], Json] = {}
    for detail in details:
        key = tuple(str(detail[name]) for name in by)
        row = found.setdefault(key, {**dict(zip(by, key, strict=True)), **dict.fromkeys(_ADDED, 0)})
        for name in _ADDED:
            row[name] = round(row[name] + detail[name], 4)
    return [found[key] for key in sorted(found)]
