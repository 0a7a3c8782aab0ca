"""The first cause of every job that does not run, as cheaply as thousands of waiting jobs ask for. Pure: reads a cache.

Thousands of jobs ask for few different things of few queues: a shape is planned once for one state of the cluster, a
queue's ledger is made once, and only what is left, the words, is made for each job.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from myriad.kube.kinds import WORKLOADS
from myriad.scheduler.cache import Cache
from myriad.scheduler.causes import Evidence
from myriad.scheduler.causes_queue import Looking, evicted_jobs
from myriad.scheduler.explain import QuotaView, why
from myriad.scheduler.inquiry import outcome_of, quota_view
from myriad.scheduler.job_facts import facts_of
from myriad.scheduler.model import Outcome
from myriad.scheduler.objects import WorkloadView, seconds_since
from myriad.scheduler.snapshot import Snapshot

Json = dict[str, Any]

PLACEABLE_S = 30.0
"""An admitted gang whose pods do not all stand on nodes for longer is told why (kueue#1530)."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:st|nd|rd|th)?")

CONDITION_REASONS = {
    "never": "NeverFits", "quota": "WaitingForQuota", "placement": "WaitingForNodes", "check": "WaitingForCheck",
    "gated": "SchedulingGated", "not_reached": "NotYetReached", "held": "Held", "fits": "FitsNow", "queue": "Queued",
    "external": "Blocked", "starting": "NotPlaceable",
}  # fmt: skip
"""The condition's reason (one CamelCase word, as Kubernetes asks) of each state."""


@dataclass(frozen=True, slots=True)
class Said:
    """A first cause.

    Attributes:
        state: as in `explain.Answer`.
        sentence: the first cause.
    """

    state: str
    sentence: str

    @property
    def reason(self) -> str:
        """The reason of a condition."""
        return CONDITION_REASONS.get(self.state, "Blocked")

    def same_kind(self, other: Said) -> bool:
        """Whether only figures differ: places in a queue and free counts move all the time."""
        return self.state == other.state and _NUMBER.sub("#", self.sentence) == _NUMBER.sub("#", other.sentence)


class Reasons:
    """First causes on one state of the cluster. Made anew for each state; see the module's text.

    Args:
        cache: the cluster.
        now: the time.
    """

    def __init__(self, cache: Cache, now: datetime) -> None:
        self._cache = cache
        self._now = now
        self._snapshot: Snapshot | None = None
        self._outcomes: dict[Any, Outcome] = {}
        self._ledgers: dict[str, QuotaView | None] = {}
        self._evicted = evicted_jobs(cache)
        waiting = cache.waiting()
        self._position = {view.key: i + 1 for views in waiting.values() for i, view in enumerate(views)}
        self._length = {name: len(views) for name, views in waiting.items()}

    def of(self, view: WorkloadView) -> Said | None:
        """The first cause of a job that does not run; None for one that runs, has ended, or starts as it should."""
        if view.finished or view.deleting:
            return None
        if view.admitted:
            return self._not_placeable(view)
        ask = Looking(self._cache, view.gang.namespace, Evidence(), self._now, evicted=self._evicted)
        outcome = None if view.quota_reserved else self._outcome(view)
        answer = why(facts_of(ask, view), quota=self._quota(view), placement=outcome)
        return Said(answer.state, answer.first_cause)

    def _not_placeable(self, view: WorkloadView) -> Said | None:
        body = self._cache.object(WORKLOADS, view.key) or {}
        since = next(
            (
                str(c.get("lastTransitionTime") or "")
                for c in (body.get("status") or {}).get("conditions") or []
                if c["type"] == "Admitted"
            ),
            "",
        )
        if seconds_since(since, self._now) < PLACEABLE_S or not view.assignment:
            return None  # without TAS the cache does not follow which pods are the job's
        bound = sum(sum(nodes.values()) for nodes in self._cache.pods_of(view).values())
        if bound >= view.gang.pods:
            return None
        ask = Looking(self._cache, view.gang.namespace, Evidence(), self._now)
        answer = why(facts_of(ask, view))
        # The age in the sentence grows with every look; the rest is what counts.
        sentence = re.sub(r"^admitted [^,]* ago, ", "admitted, ", answer.first_cause)
        return Said(answer.state, sentence) if answer.state in ("external", "gated") else None

    def _outcome(self, view: WorkloadView) -> Outcome:
        gang = view.gang
        key = repr((gang.pool, gang.podsets))
        found = self._outcomes.get(key)
        if found is None:
            if self._snapshot is None:
                self._snapshot = self._cache.snapshot()
            found = self._outcomes[key] = outcome_of(self._snapshot, gang)
        return found

    def _quota(self, view: WorkloadView) -> QuotaView | None:
        queue = self._cache.cluster_queue_of(view)
        key = f"{queue}/{view.gang.namespace}/{view.local_queue}"
        if key not in self._ledgers:
            self._ledgers[key] = quota_view(self._cache, view, now=self._now, names=False)
        ledger = self._ledgers[key]
        if ledger is None:
            return None
        return replace(ledger, position=self._position.get(view.key, 0), queue_length=self._length.get(queue, 0))
