"""Follows the cluster's Workloads and hands what they say to the writer.

Every change that a watch delivers is heard, on every replica, so that an eviction and a new admission in the same
second are two facts. The leader hands them on; a follower keeps its own for the case that it becomes the leader and
the last one had no time to. Once a minute, and first of all, everything is compared: what the cache shows against what
was heard, and what is open in the ledger against what is there.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import insort
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import CLUSTER_QUEUES, EVENTS, JOBS, NAMESPACES, WORKLOADS
from myriad.scheduler.cache import Cache
from myriad.scheduler.ledger import facts as reading
from myriad.scheduler.ledger.facts import Admission, Ending, Fact, Holding, Places
from myriad.scheduler.ledger.journal import Writer
from myriad.scheduler.ledger.store import Open, Quota, Store
from myriad.scheduler.model import POOL_LABEL, is_gpu_resource, parse_quantity
from myriad.scheduler.objects import TEAM_LABEL

log = logging.getLogger("myriad.ledger")

Json = dict[str, Any]

_KEPT = 20_000
_COMPARE_EVERY_S = 60.0
_LOOKED_UP = 500
_LOSES_WORK = ("preempted", "evicted", "deactivated", "time_limit", "failed")
_ENDED_JOB = {"Complete": "finished", "Failed": "failed"}


class Recorder:
    """An observer: `heard` is called for each change of a Workload, `step` by the leader.

    Args:
        api: asked about what is gone.
        cache: the cluster.
        store: the ledger, read for what is open.
        writer: takes the facts.
        checkpoint: when a job last reported a checkpoint, seconds since the epoch; by its Workload's uid.
        estimated: called with the number of endings that had to be estimated.
        clock, wall: monotonic seconds and seconds since the epoch.
    """

    name = "ledger"
    interval_s = 5.0

    def __init__(
        self,
        *,
        api: Api,
        cache: Cache,
        store: Store,
        writer: Writer,
        checkpoint: Callable[[str], int | None] = lambda _uid: None,
        estimated: Callable[[int], object] = lambda _count: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._cache = cache
        self._store = store
        self._writer = writer
        self._checkpoint = checkpoint
        self._estimated = estimated
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._heard: list[Fact] = []
        self._said: dict[str, tuple[Fact, ...]] = {}
        self._holding: dict[str, tuple[int, str, tuple[Holding, ...]]] = {}
        self._compared_at = float("-inf")
        self._quotas: dict[str, tuple[str, int, int]] = {}
        self.places = Places(self._team_of, self._queue_of, self._model_of)

    # Hearing

    def heard(self, kind: str, change: str, obj: Json) -> None:
        """A change of the cache; called with its lock held, so it only takes notes."""
        if kind != WORKLOADS.plural:
            return
        uid = str(obj["metadata"].get("uid") or "")
        if change == "remove":
            self._note(uid, reading.removed(obj, self.places))
            with self._lock:
                self._said.pop(uid, None)
        else:
            self._note(uid, reading.read(obj, self.places))

    def _note(self, uid: str, facts: list[Fact]) -> None:
        if not facts:
            return
        with self._lock:
            before = self._said.get(uid, ())
            new = [fact for fact in facts if fact not in before]
            if not new:
                return
            if len(self._heard) >= _KEPT:
                # Nobody leads, or for long: whoever does next reads everything from the Workloads instead.
                self._heard.clear()
                self._said.clear()
            self._said[uid] = tuple(facts)
            for fact in new:
                self._heard += self._as_resize(fact, before)

    def _as_resize(self, fact: Fact, before: tuple[Fact, ...]) -> list[Fact]:
        """An admission that was said with other amounts is a resize from now on; one with other names is the same. An
        ending is that of the admission that was said last."""
        if isinstance(fact, Ending):
            last = next((old.admitted_at for old in before if isinstance(old, Admission)), None)
            known = fact.started_at is None and last is not None and last <= fact.ended_at
            return [replace(fact, started_at=last) if known else fact]
        for old in before:
            if isinstance(old, Admission) and old.admitted_at == fact.admitted_at:
                if _slices(old.holdings) == _slices(fact.holdings):
                    return []
                return [replace(fact, started_at=max(int(self._wall()), fact.admitted_at + 1))]
        return [fact]

    # Handing on

    def step(self) -> None:
        """Hand on what was heard; compare everything where that is due."""
        self._hand_on()
        if self._clock() - self._compared_at >= _COMPARE_EVERY_S:
            if self._writer.state().queued:
                # What is open is known only when the database has everything: at the next step.
                return
            self._compare()
            self._compared_at = self._clock()
        # What is heard after this moment is not in it: one second less is sure.
        self._writer.seen(int(self._wall()) - 1)

    def _hand_on(self) -> None:
        with self._lock:
            facts = list(self._heard)
            self._heard.clear()
        if facts:
            self._writer.put([self._completed(fact) for fact in facts])

    def _completed(self, fact: Fact) -> Fact:
        """What a Workload does not say itself: team, borrowed share, the checkpoint it had when it had to go."""
        if isinstance(fact, Ending):
            self._holding.pop(fact.uid, None)
            if fact.outcome in _LOSES_WORK and fact.checkpoint_at is None:
                return replace(fact, checkpoint_at=self._checkpoint(fact.uid))
            return fact
        team = fact.team or self._team_of(fact.namespace) or self._queue_of(fact.cluster_queue)[0]
        holdings = self._with_borrowed(fact)
        self._holding[fact.uid] = (fact.started_at, fact.cluster_queue, fact.holdings)
        return replace(fact, team=team, holdings=holdings)

    def _with_borrowed(self, fact: Admission) -> tuple[Holding, ...]:
        """How much of it is beyond what its ClusterQueue owns, after all that were admitted there before it."""
        queue = self._cache.object(CLUSTER_QUEUES, fact.cluster_queue)
        nominal = nominal_of(queue)
        result = []
        for holding in fact.holdings:
            before = sum(
                other.slices
                for uid, (since, name, others) in self._holding.items()
                if name == fact.cluster_queue and uid != fact.uid and (since, uid) < (fact.started_at, fact.uid)
                for other in others
                if (other.flavor, other.resource) == (holding.flavor, holding.resource)
            )
            units = nominal.get((holding.flavor, holding.resource))
            slices = 0 if units is None else units * reading.share(holding.resource, self._model_of(holding.pool))[0]
            beyond = before + holding.slices - slices if units is not None else 0
            result.append(replace(holding, borrowed=max(0, min(holding.slices, beyond))))
        return tuple(result)

    # Comparing

    def _compare(self) -> None:
        workloads = self._cache.listing(WORKLOADS)
        alive = {str(w["metadata"].get("uid")): w for w in workloads}
        found: list[Fact] = []
        for charge in self._store.open_charges():
            workload = alive.get(charge.uid)
            if workload is not None:
                found += self._changed_meanwhile(charge, workload)
            elif len(found) < _LOOKED_UP:
                found += self._lost(charge)
        self._writer.put(found)
        for uid, workload in alive.items():
            self._note(uid, reading.read(workload, self.places))
        with self._lock:
            for uid in self._said.keys() - alive.keys():
                del self._said[uid]
        for uid in self._holding.keys() - alive.keys():
            del self._holding[uid]
        self._hand_on()
        self._note_quotas()

    def _changed_meanwhile(self, charge: Open, workload: Json) -> list[Fact]:
        """A resize, or an end, of which the Workload tells and the ledger does not know."""
        result: list[Fact] = []
        for fact in reading.read(workload, self.places):
            if isinstance(fact, Ending):
                if fact.started_at in (None, charge.admitted_at) and fact.ended_at >= charge.started_at:
                    result.append(replace(fact, started_at=charge.admitted_at))
            elif fact.admitted_at > charge.admitted_at:
                # Evicted and admitted again while nobody looked.
                seen = self._from_events(charge, before=fact.admitted_at)
                if seen is not None:
                    result.append(seen)
            elif fact.admitted_at == charge.admitted_at and _slices(fact.holdings) != charge.holdings:
                result.append(replace(self._completed(fact), started_at=max(int(self._wall()), charge.started_at + 1)))
        return result

    def _lost(self, charge: Open) -> list[Fact]:
        """The end of a charge whose Workload is gone, from what is left of it."""
        try:
            still = self._api.find(WORKLOADS, charge.workload, namespace=charge.namespace)
        except MyriadError as error:
            log.warning("%s/%s: %s", charge.namespace, charge.workload, error)
            return []
        if still is not None and still["metadata"].get("uid") == charge.uid:
            # Younger than the cache: its change is on its way.
            return []
        ending = self._from_job(charge) or self._from_events(charge)
        if ending is None:
            seen = self._store.last_seen()
            at = max(charge.started_at, charge.started_at if seen is None else seen)
            ending = Ending(charge.uid, charge.admitted_at, at, "lost", "gone while nobody looked", "estimated")
            self._estimated(1)
        return [ending]

    def _from_job(self, charge: Open) -> Ending | None:
        """A Job outlives its Workload where Kueue deletes finished ones (its objectRetentionPolicies)."""
        if not charge.job_uid:
            return None
        try:
            job = self._api.find(JOBS, charge.job, namespace=charge.namespace)
        except MyriadError:
            return None
        if job is None or job["metadata"].get("uid") != charge.job_uid:
            return None
        for condition in (job.get("status") or {}).get("conditions") or []:
            at = reading.seconds(condition.get("lastTransitionTime"))
            outcome = _ENDED_JOB.get(str(condition.get("type")))
            if outcome and condition.get("status") == "True" and at is not None and at >= charge.started_at:
                reason = str(condition.get("reason") or "")
                return Ending(charge.uid, charge.admitted_at, at, outcome, reason, "event")
        return None

    def _from_events(self, charge: Open, before: int | None = None) -> Ending | None:
        """Kueue writes an Event when it evicts or finishes; the API server keeps them for an hour."""
        first: tuple[int, str] | None = None
        for uid in filter(None, (charge.uid, charge.job_uid)):
            try:
                events, _ = self._api.list(EVENTS, namespace=charge.namespace, fields=f"involvedObject.uid={uid}")
            except ApiError:
                return None
            for event in events:
                reason = str(event.get("reason") or "")
                at = reading.seconds(event.get("lastTimestamp") or event.get("firstTimestamp"))
                ends = reason.startswith("EvictedDueTo") or reason in ("Preempted", "FinishedWorkload", "Stopped")
                if ends and at is not None and charge.started_at <= at <= (before or at):
                    first = min(first, (at, reason)) if first else (at, reason)
        if first is None:
            return None
        at, reason = first
        outcome = "finished" if reason == "FinishedWorkload" else "preempted" if "Preempt" in reason else "evicted"
        return Ending(charge.uid, charge.admitted_at, at, outcome, reason, "event")

    # What a Workload does not say

    def _note_quotas(self) -> None:
        """What each ClusterQueue owns, whenever that changes."""
        found = []
        for queue in self._cache.listing(CLUSTER_QUEUES):
            labels = queue["metadata"].get("labels") or {}
            team, pool = labels.get(TEAM_LABEL, ""), labels.get(POOL_LABEL, "")
            if not (team and pool):
                continue
            nominal, per_gpu = _in_slices(nominal_of(queue), self._model_of(pool))
            name, cohort = queue["metadata"]["name"], str(queue["spec"].get("cohortName") or "")
            if self._quotas.get(name) != (cohort, nominal, per_gpu):
                self._quotas[name] = cohort, nominal, per_gpu
                found.append(Quota(name, int(self._wall()), team, pool, cohort, nominal, per_gpu))
        self._writer.put_quotas(found)

    def _team_of(self, namespace: str) -> str:
        body = self._cache.object(NAMESPACES, namespace)
        return str(((body or {}).get("metadata", {}).get("labels") or {}).get(TEAM_LABEL) or "")

    def _queue_of(self, name: str) -> tuple[str, str]:
        body = self._cache.object(CLUSTER_QUEUES, name)
        labels = (body or {}).get("metadata", {}).get("labels") or {}
        return str(labels.get(TEAM_LABEL) or ""), str(labels.get(POOL_LABEL) or "")

    def _model_of(self, pool: str) -> str:
        return self._cache.policy().pool(pool).model


def nominal_of(queue: Json | None) -> dict[tuple[str, str], int]:
    """Units that a ClusterQueue owns by (flavor, GPU resource)."""
    found: dict[tuple[str, str], int] = {}
    for group in ((queue or {}).get("spec") or {}).get("resourceGroups") or []:
        for flavor in group.get("flavors") or []:
            for resource in flavor.get("resources") or []:
                if is_gpu_resource(resource["name"]):
                    found[flavor["name"], resource["name"]] = int(parse_quantity(resource["nominalQuota"]))
    return found


def _in_slices(nominal: Mapping[tuple[str, str], int], model: str) -> tuple[int, int]:
    """All units together, in slices of one card."""
    total, of_card = Fraction(0), 1
    for (_, resource), units in nominal.items():
        slices, per_gpu = reading.share(resource, model)
        total += Fraction(units * slices, per_gpu)
        of_card = max(of_card, per_gpu)
    return int(total * of_card), of_card


def _slices(holdings: tuple[Holding, ...]) -> tuple[tuple[str, str, int], ...]:
    ordered: list[tuple[str, str, int]] = []
    for holding in holdings:
        insort(ordered, (holding.flavor, holding.resource, holding.slices))
    return tuple(ordered)
