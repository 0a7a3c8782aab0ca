"""The first cause where people look: as a condition on the job and its Workload, and as an Event. docs/adr/0035.

A suspended job has no pods, so `kubectl describe job` would say nothing. The observer finds what is to be said, on
each change of the cluster; a thread of its own writes it, so that neither steering nor other observers wait.

What is new goes first, then what changed in kind, then what was said and no longer holds, then figures. Writes have a
budget of their own: a bucket that is halved when the API server is slow or says no, and grows again by little.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import JOBS, PYTORCH_JOBS, WORKLOADS, Resource
from myriad.scheduler.cache import Cache
from myriad.scheduler.events import EventSink
from myriad.scheduler.job_facts import WAITING
from myriad.scheduler.objects import WorkloadView, seconds_since
from myriad.scheduler.reasons import CONDITION_REASONS, Reasons, Said
from myriad.scheduler.settings import Settings

log = logging.getLogger("myriad.telling")

Json = dict[str, Any]

FIELD_MANAGER = "myriad-why"
_LONGEST = 1000
"""Characters of a condition's message; a Workload takes 32768, but nobody reads more."""
_STEP_S = 0.2
_AGAIN_S = 5.0
"""A job that has not changed is looked at again after this long: what others do changes its cause too."""
_LEFT_S = 15.0
"""The observer is not called any more (another replica leads): what is queued is not ours to write."""
_NEW, _CHANGED, _OVER, _EVENT, _WORKLOAD, _FIGURES = range(6)
_PASSING = frozenset({"not_reached", "fits", "check"})
_NEW_S = 3.0
_SLOW_S = 1.0
_SHY_S = 600.0


class Series:
    """What is counted of it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "myriad_scheduler_reason_seconds",
            "From a job's Workload to its first cause on the job itself",
            buckets=(0.25, 0.5, 1, 2, 5, 10, 30, 60, 300),
            registry=registry,
        )
        self.writes = Counter("myriad_scheduler_reason_writes", "First causes written", ["on"], registry=registry)
        self.rate = Gauge("myriad_scheduler_reason_rate", "Writes a second that are allowed now", registry=registry)
        self.queued = Gauge("myriad_scheduler_reason_queue", "First causes that wait to be written", registry=registry)


@dataclass(slots=True)
class _Told:
    """What was said about one Workload (by uid)."""

    said: Said | None = None
    at: float = float("-inf")
    looked: float = float("-inf")
    since: str = ""
    version: str = ""


@dataclass(slots=True)
class _Task:
    on: str
    view: WorkloadView
    said: Said | None
    since: str


@dataclass(slots=True)
class Pace:
    """How fast may be written: a bucket that the answers of the API server fill and halve.

    Args:
        most: writes a second at best.
    """

    most: float
    clock: Callable[[], float] = time.monotonic
    rate: float = 0.0
    _tokens: float = 1.0
    _at: float = field(default=float("-inf"))

    def __post_init__(self) -> None:
        self.rate = self.most

    def wait_s(self) -> float:
        """Take one token; seconds until it may be used."""
        now = self.clock()
        if self._at > float("-inf"):
            self._tokens = min(max(1.0, self.rate / 2), self._tokens + (now - self._at) * self.rate)
        self._at = now
        self._tokens -= 1.0
        return 0.0 if self._tokens >= 0 else -self._tokens / self.rate

    def answered(self, took_s: float, *, refused: bool) -> None:
        """The API server has answered."""
        if refused or took_s > _SLOW_S:
            self.rate = max(1.0, self.rate / 2)
        else:
            self.rate = min(self.most, self.rate + self.most / 100)


class Writer(threading.Thread):
    """Writes what is queued, most urgent first; a newer sentence about the same object takes the older one's place.

    Args:
        api: the client.
        events: where Events go.
        series: what is counted.
        per_s: writes a second at best.
        stop: ends the thread; a daemon, it ends with the process too.
    """

    def __init__(
        self,
        api: Api,
        events: EventSink,
        series: Series,
        *,
        per_s: float,
        stop: threading.Event | None = None,
    ) -> None:
        super().__init__(name="telling", daemon=True)
        self._api = api
        self._events = events
        self._series = series
        self.pace = Pace(per_s)
        self._stop_event = stop or threading.Event()
        self._order = itertools.count()
        self._heap: list[tuple[int, int, tuple[str, str]]] = []
        self._tasks: dict[tuple[str, str], _Task] = {}
        self._wake = threading.Condition()
        self._shy: dict[str, float] = {}
        self._called = time.monotonic()

    def called(self) -> None:
        """The observer was called: this replica leads. Starts the thread at the first time."""
        self._called = time.monotonic()
        if not self.is_alive() and not self._stop_event.is_set():
            self.start()

    def put(self, urgency: int, task: _Task) -> None:
        """Queue a write."""
        key = (task.on, task.view.gang.uid)
        with self._wake:
            if key not in self._tasks:
                heapq.heappush(self._heap, (urgency, next(self._order), key))
            self._tasks[key] = task
            self._wake.notify()

    def run(self) -> None:
        """Until `stop` is set."""
        while not self._stop_event.is_set():
            with self._wake:
                self._wake.wait_for(lambda: bool(self._heap), timeout=0.5)
            self.write_one()

    def write_one(self) -> bool:
        """Write the most urgent; False where nothing is queued."""
        with self._wake:
            self._series.queued.set(len(self._tasks))
            self._series.rate.set(self.pace.rate)
            if time.monotonic() - self._called > _LEFT_S:
                self._heap.clear()
                self._tasks.clear()
            if not self._heap:
                return False
            _, _, key = heapq.heappop(self._heap)
            task = self._tasks.pop(key)
        wait_s = self.pace.wait_s()
        if wait_s:
            self._stop_event.wait(wait_s)
        began = time.monotonic()
        refused = False
        try:
            done = self._write(task)
            if done:
                self._series.writes.labels(task.on).inc()
                if task.on == "job" and task.said is not None:
                    self._series.seconds.observe(seconds_since(task.view.created, datetime.now(UTC)))
        except ApiError as error:
            refused = error.status in (429, 500, 503, 504)
            if not (error.is_conflict or error.is_not_found):
                log.info("%s: %s", task.view.key, error.message)
        except MyriadError as error:
            refused = True
            log.info("%s: %s", task.view.key, error.message)
        except Exception:
            # One write must not end the thread, which cannot be started again: nobody would be told anything any more.
            refused = True
            log.exception("%s: its first cause could not be written", task.view.key)
        self.pace.answered(time.monotonic() - began, refused=refused)
        return True

    def _write(self, task: _Task) -> bool:
        if task.on == "workload":
            return self._on_workload(task)
        if task.on == "event":
            return self._event(task)
        kind = task.view.job.get("kind", "")
        if self._shy.get(kind, float("-inf")) > time.monotonic():
            return False
        try:
            if kind == JOBS.kind:
                self._on_job(task)
            elif kind == PYTORCH_JOBS.kind:
                self._on_custom(PYTORCH_JOBS, task)
            else:
                return False
        except ApiError as error:
            if error.status in (401, 403, 405, 415, 422):
                # Not now and not in the next minutes: the Event and the Workload's condition have to do.
                log.warning("no condition on %ss: %s", kind, error.message)
                self._shy[kind] = time.monotonic() + _SHY_S
                return False
            raise
        return True

    def _on_job(self, task: _Task) -> None:
        """A Job's list of conditions is atomic: server-side apply would replace the job controller's own entries. A
        strategic merge patch changes the one of our type and leaves the others."""
        view = task.view
        body = {"metadata": {"uid": view.job["uid"]}, "status": {"conditions": [_condition(task)]}}
        name, namespace = view.job["name"], view.gang.namespace
        self._api.patch(
            JOBS, name, body, kind="strategic", namespace=namespace, subresource="status", field_manager=FIELD_MANAGER
        )

    def _on_custom(self, resource: Resource, task: _Task) -> None:
        """A custom resource knows no strategic merge: the list is read, and written back if nobody wrote meanwhile."""
        view = task.view
        name, namespace = view.job["name"], view.gang.namespace
        body = self._api.get(resource, name, namespace=namespace)
        if body["metadata"].get("uid") != view.job["uid"]:
            return
        old = (body.get("status") or {}).get("conditions") or []
        fresh = {**_condition(task), "lastUpdateTime": _now()}
        conditions = [c for c in old if c.get("type") != WAITING] + [fresh]
        patch = {
            "metadata": {"resourceVersion": body["metadata"]["resourceVersion"]},
            "status": {"conditions": conditions},
        }
        self._api.patch(resource, name, patch, namespace=namespace, subresource="status", field_manager=FIELD_MANAGER)

    def _on_workload(self, task: _Task) -> bool:
        view = task.view
        body = {
            "apiVersion": WORKLOADS.api_version,
            "kind": WORKLOADS.kind,
            "metadata": {"name": view.workload, "namespace": view.gang.namespace, "uid": view.gang.uid},
            "status": {"conditions": [_condition(task)]},
        }
        self._api.patch(
            WORKLOADS, view.workload, body, kind="apply", namespace=view.gang.namespace, subresource="status",
            field_manager=FIELD_MANAGER, force=True,
        )  # fmt: skip
        return True

    def _event(self, task: _Task) -> bool:
        view = task.view
        if task.said is None or not view.job:
            return False
        about = {
            "apiVersion": view.job["apiVersion"],
            "kind": view.job["kind"],
            "metadata": {"name": view.job["name"], "namespace": view.gang.namespace, "uid": view.job["uid"]},
        }
        return self._events.tell(about, "MyriadWaiting", task.said.sentence[:_LONGEST])


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(task: _Task) -> Json:
    said = task.said
    return {
        "type": WAITING,
        "status": "False" if said is None else "True",
        "reason": "Started" if said is None else said.reason,
        "message": "it waits for nothing" if said is None else said.sentence[:_LONGEST],
        "lastTransitionTime": task.since,
    }


class Telling:
    """The observer: what is to be said of whom.

    Args:
        cache: the cluster.
        writer: writes it.
        event_interval_s: figures that changed are said again after this long.
        clock: monotonic seconds.
    """

    name = "reasons"
    interval_s = 1.0

    def __init__(
        self,
        cache: Cache,
        writer: Writer,
        *,
        event_interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._writer = writer
        self._event_interval_s = event_interval_s
        self._clock = clock
        self._told: dict[str, _Told] = {}

    def step(self) -> None:
        """Look at every job that is new, then at those that were not looked at for longest, for a bounded time."""
        self._writer.called()
        views = self._cache.views()
        alive = {v.gang.uid for v in views}
        for uid in self._told.keys() - alive:
            del self._told[uid]
        began = self._clock()
        reasons = Reasons(self._cache, datetime.now(UTC))
        for view in sorted(views, key=self._turn):
            told = self._told.get(view.gang.uid)
            if told is None:
                told = self._told[view.gang.uid] = self._remembered(view)
            elif told.version == view.resource_version and began - told.looked < _AGAIN_S:
                return
            told.looked, told.version = self._clock(), view.resource_version
            said = reasons.of(view)
            if said is None or told.said is not None or not _passes_by(view, said):
                self._say(view, told, said)
            if self._clock() - began > _STEP_S:
                return  # the next step goes on with those that had no turn

    def _turn(self, view: WorkloadView) -> tuple[int, float, str]:
        """New jobs first, then those that changed, then who was looked at longest ago."""
        told = self._told.get(view.gang.uid)
        if told is None:
            return 0, 0.0, view.created
        return (1 if told.version != view.resource_version else 2), told.looked, view.created

    def _remembered(self, view: WorkloadView) -> _Told:
        """After a restart or a change of leader: what stands on the Workload is not written again."""
        body = self._cache.object(WORKLOADS, view.key)
        for condition in ((body or {}).get("status") or {}).get("conditions") or []:
            if condition.get("type") == WAITING:
                since = str(condition.get("lastTransitionTime") or "")
                if condition.get("status") == "True":
                    return _Told(_read(condition), self._clock(), since=since)
                return _Told(None, self._clock(), since=since)
        return _Told()

    def _say(self, view: WorkloadView, told: _Told, said: Said | None) -> None:
        now = self._clock()
        if said is None:
            if told.said is not None:
                told.said, told.at, told.since = None, now, _now()
                for on in ("job", "workload"):
                    self._writer.put(_OVER, _Task(on, view, None, told.since))
            return
        if told.said == said:
            return
        fresh = told.said is None
        figures = not fresh and told.said is not None and told.said.same_kind(said)
        if figures and now - told.at < self._event_interval_s:
            return
        if fresh:
            told.since = _now()
        told.said, told.at = said, now
        urgency = _NEW if fresh else _FIGURES if figures else _CHANGED
        self._writer.put(urgency, _Task("job", view, said, told.since))
        self._writer.put(max(urgency, _WORKLOAD), _Task("workload", view, said, told.since))
        if not figures and said.state != "never":  # a refusal is told by steering, as a warning
            self._writer.put(_EVENT, _Task("event", view, said, told.since))


def _passes_by(view: WorkloadView, said: Said) -> bool:
    """Whether a job has come, or has got or lost its quota, so lately that what is said of it passes before it is read.

    Hundreds that come at once and get in would cost five writes each, while the API server has the most to do.
    """
    since = max(view.created, view.reserved_at)
    return said.state in _PASSING and seconds_since(since, datetime.now(UTC)) < _NEW_S


def _read(condition: Json) -> Said:
    """What a condition of ours said; its state is as good as its reason."""
    reason = str(condition.get("reason") or "")
    state = next((s for s, r in CONDITION_REASONS.items() if r == reason), "external")
    return Said(state, str(condition.get("message") or ""))


def telling(api: Api, cache: Cache, events: EventSink, registry: CollectorRegistry, settings: Settings) -> Telling:
    """The observer with its writer, as the extension runs it."""
    writer = Writer(api, events, Series(registry), per_s=settings.reason_writes_per_s)
    return Telling(cache, writer, event_interval_s=settings.event_interval_s)
