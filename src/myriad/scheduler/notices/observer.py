"""Tells owners of an eviction within a second of it, once.

The record comes first (`book`): writing it is what decides who tells. Then come the Events, whose names follow from the
eviction, so that a second one cannot be made, and the deliveries (`courier`), whose results are facts of the record.
A leader that takes over goes on with what was recorded and not delivered.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import EVENTS
from myriad.scheduler.cache import Cache
from myriad.scheduler.eta.model import Eta
from myriad.scheduler.notices import text
from myriad.scheduler.notices.book import Book, Record
from myriad.scheduler.notices.courier import DEADLINE_S, Courier, Note
from myriad.scheduler.notices.events import event_of
from myriad.scheduler.notices.facts import Cause, Eviction, cause_of, moment, record_id, stop_of
from myriad.scheduler.notices.gather import Estimator, build, evictions_counted, party_of, pods_of
from myriad.scheduler.policy import SitePolicy

log = logging.getLogger("myriad.notices")

Json = dict[str, Any]

_PATIENCE_S = 0.5
"""Kueue suspends the job after it evicted the Workload; so long a notice waits for the pods' own kill time."""
_AWAY_S = 3.0
"""The observer is called four times a second; after a longer gap another replica may have led."""
_RECENT = timedelta(minutes=30)
"""An eviction that is older is recorded when it is found, and told by its record alone."""
_SWEEP_S = 30.0
_WORKERS = 8
_QUIET = ("WorkloadSliceReplaced",)
"""Evictions that are none to the owner: a gang that grew or shrank."""


def event(about: Json, eviction: Eviction, message: str, now: datetime) -> Json:
    """An Event of which there can be one only: its name follows from the eviction and the object."""
    reason = "MyriadPreempted" if eviction.is_preemption else "MyriadEvicted"
    return event_of(about, reason, message, eviction.id, now)


def document(eviction: Eviction, words: str) -> Json:
    """What a webhook gets."""
    kind = "preemption" if eviction.is_preemption else "eviction"
    return {"version": 1, "kind": kind, "id": eviction.id, "text": words, "eviction": eviction.as_dict()}


class Notices:
    """The observer.

    Args:
        api, cache: the cluster.
        book: the records.
        courier: delivers to targets.
        policy: the site's, as it is now.
        eta: estimates when evicted gangs start again.
        details: where a person reads more, from (namespace, job).
        counted: called for each eviction told, with its reason and the seconds since it was seen.
        now, clock: wall clock, and monotonic seconds.
    """

    name = "notices"
    interval_s = 0.2

    def __init__(
        self,
        *,
        api: Api,
        cache: Cache,
        book: Book,
        courier: Courier,
        policy: Callable[[], SitePolicy],
        eta: Estimator | None = None,
        details: Callable[[str, str], str] = lambda namespace, job: f"myriad preemptions {namespace}/{job}",
        counted: Callable[[str, float], object] = lambda reason, after_s: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._cache = cache
        self._book = book
        self._courier = courier
        self._policy = policy
        self._eta = eta
        self._details = details
        self._counted = counted
        self._now = now
        self._clock = clock
        self._last = float("-inf")
        self._swept = float("-inf")
        self._first_seen: dict[str, float] = {}
        self._told: set[str] = set()

    def step(self) -> None:
        """Tell what was not told yet."""
        began = self._clock()
        # Asked each time: what was laid aside during a gap is covered by what the gap itself leads to.
        if self._courier.put_down() or began - self._last > _AWAY_S:
            self._book.load()
            self._told = {record.id for record in self._book if "eviction" in record.facts}
            self._first_seen.clear()
            self._resume()
        due = self._due(self._cache.evicted(), began)
        if began - self._swept > _SWEEP_S:
            self._swept = began
            due += self._missed()
        if due:
            self._tell(due)
        self._last = self._clock()

    def _due(self, evicted: Iterable[Json], now: float) -> list[tuple[Json, Cause]]:
        """Evictions to tell now: those whose pods were told to end, and those that waited long enough for that."""
        due = []
        seen: dict[str, float] = {}
        for workload in evicted:
            cause = cause_of(workload)
            if cause is None or cause.past or cause.reason in _QUIET:
                continue
            identity = record_id(workload, cause)
            if identity in self._told:
                continue
            first = seen[identity] = self._first_seen.get(identity, now)
            if now - first >= _PATIENCE_S or self._is_stopping(workload, cause):
                due.append((workload, cause))
        self._first_seen = seen
        return due

    def _is_stopping(self, workload: Json, cause: Cause) -> bool:
        view = self._cache.view(f"{workload['metadata']['namespace']}/{workload['metadata']['name']}")
        if view is None:
            return True
        return stop_of(pods_of(self._cache, view), moment(cause.at) or self._now()).exact

    def _missed(self) -> list[tuple[Json, Cause]]:
        """Workloads that were evicted and admitted again while nobody looked: Kueue counts more than is recorded."""
        counts = self._counts()
        missed = []
        for workload in self._cache.evicted_before():
            known = counts.get(str(workload["metadata"].get("uid")), 0)
            cause = cause_of(workload)
            is_missed = cause and cause.past and evictions_counted(workload) > known
            if cause and is_missed and record_id(workload, cause) not in self._told:
                missed.append((workload, cause))
        return missed

    def _counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for identity in self._told:
            uid = identity.rpartition(".")[0]
            counts[uid] = counts.get(uid, 0) + 1
        return counts

    def _tell(self, due: Sequence[tuple[Json, Cause]]) -> None:
        policy, now, counts = self._policy(), self._now(), self._counts()
        etas = self._estimates(due)

        def make(item: tuple[Json, Cause]) -> Eviction | None:
            workload, cause = item
            uid = str(workload["metadata"].get("uid"))
            return build(
                self._api,
                self._cache,
                workload,
                cause,
                policy=policy,
                now=now,
                count=counts.get(uid, 0),
                eta=etas.get(uid),
            )

        with ThreadPoolExecutor(_WORKERS, thread_name_prefix="notices") as pool:
            made = {e.id: (workload, e) for (workload, _), e in zip(due, pool.map(make, due), strict=True) if e}
            ours = self._book.append_all([(e.id, "eviction", e.as_dict()) for _, e in made.values()])
            mine = [made[identity] for identity, _ in ours]
            self._told.update(made)
            news = [item for item in mine if is_news(item[1])]
            for _, eviction in news:
                self._deliver(eviction, eviction.targets, begun=())
            for _ in pool.map(lambda item: self._write_events(*item), news):
                pass
        for _, eviction in mine:
            log.info("%s", text.first_line(eviction))
            self._counted(eviction.policy or eviction.reason, (self._now() - now).total_seconds())

    def _estimates(self, due: Sequence[tuple[Json, Cause]]) -> Mapping[str, Eta]:
        """When they start again, for all of them at once."""
        if self._eta is None:
            return {}
        pairs = []
        for workload, cause in due:
            view = self._cache.view(f"{workload['metadata']['namespace']}/{workload['metadata']['name']}")
            if view is not None and not cause.past:
                # It goes back to its place without its shield.
                priority = party_of(self._cache, view, self._policy()).priority
                gang = replace(view.gang, priority=priority)
                pairs.append((replace(view, gang=gang), cause.preemptor_uid))
        try:
            return self._eta(pairs) if pairs else {}
        except Exception:
            # A notice without an estimate is worth more than none.
            log.exception("no estimate for evicted jobs")
            return {}

    def _deliver(self, eviction: Eviction, targets: Iterable[str], *, begun: Iterable[str]) -> None:
        words = text.notice(eviction, details=self._details(eviction.victim.namespace, eviction.victim.job))
        at = (moment(eviction.seen_at) or self._now()).timestamp()
        for target in targets:
            note = Note(
                eviction.id, text.subject(eviction), words, document(eviction, words), at, begun=target in set(begun)
            )
            self._courier.send(target, note)

    def _write_events(self, workload: Json, eviction: Eviction) -> None:
        message = text.event_message(eviction, details=self._details(eviction.victim.namespace, eviction.victim.job))
        for about in objects_of(workload):
            self._event(event(about, eviction, message, self._now()))

    def _event(self, body: Json) -> None:
        try:
            self._api.create(EVENTS, body, namespace=body["metadata"]["namespace"])
        except ApiError as error:
            # It is there already, or the namespace is being deleted and takes no Events.
            if not error.is_conflict:
                log.info("no event on %s: %s", body["involvedObject"]["name"], error.message)
        except MyriadError as error:
            log.warning("no event on %s: %s", body["involvedObject"]["name"], error.message)

    def _resume(self) -> None:
        """After a start or a failover: what was recorded and not told to the end."""
        now = self._now()
        evicted = {str(w["metadata"].get("uid")): w for w in self._cache.evicted()}
        for record in self._book:
            eviction = eviction_of(record)
            if eviction is None or not is_news(eviction):
                continue
            seen = moment(eviction.seen_at)
            if seen is None or (now - seen).total_seconds() > DEADLINE_S:
                continue
            left = [t for t in eviction.targets if f"sent-{t}" not in record.facts]
            self._deliver(eviction, left, begun=[t for t in left if f"begun-{t}" in record.facts])
            workload = evicted.get(eviction.victim.uid)
            if workload is not None:
                self._write_events(workload, eviction)


def is_news(eviction: Eviction) -> bool:
    """Whether it was seen soon enough to be told; a cluster that Myriad comes to has old ones by the thousand."""
    at, seen = moment(eviction.at), moment(eviction.seen_at)
    return at is None or seen is None or seen - at <= _RECENT


def eviction_of(record: Record) -> Eviction | None:
    """The first fact of a record; None where it is not there any more, or no eviction."""
    try:
        return Eviction.from_dict(record.facts["eviction"])
    except (KeyError, TypeError):
        return None


def objects_of(workload: Json) -> list[Json]:
    """The Workload and its owner, as Events refer to them."""
    metadata = workload["metadata"]
    found = [{"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": metadata}]
    for owner in metadata.get("ownerReferences") or []:
        if owner.get("controller"):
            about = {"name": owner["name"], "namespace": metadata["namespace"], "uid": owner["uid"]}
            found.append({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "metadata": about})
    return found
