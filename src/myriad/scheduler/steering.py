"""The loop that steers: looks at every Workload, plans those that wait, answers the check, and records what happened.

Only the leader runs a pass. A pass first answers gangs that hold quota (a gang must not wait for us), then plans
waiting ones in queue order. Each planned gang holds its place on a private copy of the cluster, so that two gangs are
not steered to the same nodes. Everything is idempotent: a pass that fails half-way is simply made again.

In shadow (`myriad.scheduler.shadow`) a pass goes by the same lines, records what it would do, and writes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from myriad.errors import MyriadError
from myriad.kube.client import FIELD_MANAGER, Api, ApiError
from myriad.kube.kinds import ADMISSION_CHECKS, CLUSTER_QUEUES, NODES, WORKLOADS
from myriad.scheduler import attach, deadman
from myriad.scheduler.asking import Asking
from myriad.scheduler.cache import Cache
from myriad.scheduler.decisions import assigned_record, inputs_hash, record_of, utc_now
from myriad.scheduler.events import EventSink
from myriad.scheduler.inputs import Keeper
from myriad.scheduler.metrics import Metrics
from myriad.scheduler.model import DecisionRecord, Gang, PlacementPolicy, Plan, place
from myriad.scheduler.objects import REFUSED_ANNOTATION, PodSetUpdate, WorkloadView, seconds_since
from myriad.scheduler.placement import fits_ever, plan, tier_of_assignment, tiers
from myriad.scheduler.protect import Doors
from myriad.scheduler.protecting import doors_of, limit_of
from myriad.scheduler.records import RecordBook
from myriad.scheduler.round import Passes, Round, led_to
from myriad.scheduler.rules import Wish, Write, is_misled, next_write, with_updates
from myriad.scheduler.settings import Settings, own_version
from myriad.scheduler.shadow import Entries
from myriad.scheduler.snapshot import Snapshot

log = logging.getLogger("myriad.steering")

Json = dict[str, Any]

_LET_IN_S = 0.2
_LOOKED_AT_S = 3.0
"""Of a gang that Kueue has said nothing of for so long it does not think just now."""
_FRESH_S = 60.0
"""After a restart what TAS did with gangs that have long been running is compared with nothing."""
_WRITERS = 8
"""Writes that are under way at a time: enough for an API server that takes 50 ms, few beside its hundreds of seats."""


@dataclass(slots=True)
class _Memory:
    """What was said and recorded about one Workload (by uid), so that it is not said twice."""

    plan: Plan | None = None
    inputs: str = ""
    accepted: str = ""
    judged: str = ""
    misled: bool = False
    write: Write | None = None
    assigned: dict[str, int] = field(default_factory=dict)
    outcome: dict[str, int] = field(default_factory=dict)
    refused: str = ""
    parked_since: float | None = None


@dataclass(slots=True)
class _QueueNudge:
    """When a ClusterQueue was last asked to look again."""

    at: float = float("-inf")
    wait_s: float = 0.0


class Steering:
    """One replica's steering.

    Args:
        api: the client.
        cache: the cluster.
        settings: inputs.
        decisions: where decisions are recorded.
        events: where people are told.
        metrics: what is counted.
        policy: the planner's inputs.
        inputs: keeps what decisions were made on, for `myriad replay`; None = nobody does.
        leads: asked for each gang and before each write: a pass that took too long must not write beside the next
            leader's, and whoever is asked sees that it goes on.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        api: Api,
        cache: Cache,
        settings: Settings,
        decisions: RecordBook,
        events: EventSink,
        metrics: Metrics,
        policy: PlacementPolicy | None = None,
        inputs: Keeper | None = None,
        leads: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._cache = cache
        self._settings = settings
        self._decisions = decisions
        self._events = events
        self._metrics = metrics
        self._policy = policy or PlacementPolicy()
        self._leads = leads
        self._clock = clock
        self._memory: dict[str, _Memory] = {}
        self._nudges: dict[str, _QueueNudge] = {}
        self._versions = {"myriad": own_version()}
        self._inputs = inputs
        self._shadow = Entries() if settings.shadow else None
        self._hands = ThreadPoolExecutor(_WRITERS, thread_name_prefix="writes")
        self._telling: list[Future[bool]] = []
        self._let_in_at = float("-inf")
        self._asking = Asking(settings.attach, settings.detach_after_s, clock=clock)

    def run_pass(self) -> int:
        """One pass over all Workloads; the number of changes written."""
        with self._metrics.pass_seconds.time():
            written = self._keep_attached() if self._shadow is None else 0
            for view in self._cache.passed():
                # Admitted and evicted since the last pass: its pods stood there all the same.
                self._record_assigned(view, self._remember(view).plan)
            views = [self._seen(view) for view in self._cache.views()]
            self._forget({v.gang.uid for v in views})
            holding = [v for v in views if v.quota_reserved and not v.finished]
            written += self._accept(holding)
            for view in holding:
                self._must_lead()
                self._note(view)
            written += self._steer_waiting()
            for view in views:
                if view.quota_reserved and not view.deleting:
                    self._record_outcome(view)
            told, self._telling = self._telling, []
            for one in told:
                one.result()
        return written

    # The check

    def _keep_attached(self) -> int:
        """Active first, then the queues in which gangs wait: a queue whose check is inactive stops."""
        name = self._settings.admission_check
        check = self._cache.object(ADMISSION_CHECKS, name)
        if check is None:
            log.warning("there is no AdmissionCheck %s: gangs go unsteered until it is applied", name)
            return 0
        if check["spec"].get("controllerName") != self._settings.controller_name:
            log.warning("AdmissionCheck %s belongs to controller %s", name, check["spec"].get("controllerName"))
            return 0
        if not attach.is_active(check):
            attach.set_active(self._api, check)
            return 1
        written = 0
        wanted = self._asking.wanted(self._cache, datetime.now(UTC))
        for queue in self._cache.listing(CLUSTER_QUEUES):
            asks = wanted.get(queue["metadata"]["name"])
            if asks is None or queue["metadata"].get("deletionTimestamp"):
                continue
            if asks and not attach.is_attached(queue, name):
                attach.attach(self._api, queue, name)
                written += 1
            elif not asks and attach.entry_of(queue, name) is not None:
                attach.detach(self._api, queue)
                written += 1
        return written + deadman.unmark(self._api, check)

    # Gangs that hold quota

    def let_in(self) -> int:
        """Answer gangs that hold quota, several at a time, and nothing else: they wait for nothing but this.

        Cheap enough to be asked between two passes, and inside one that plans for long.
        """
        views = [self._seen(view) for view in self._cache.views()]
        return self._accept([v for v in views if v.quota_reserved and not v.finished])

    def _accept(self, views: Sequence[WorkloadView]) -> int:
        self._must_lead()
        wanted = []
        for view in views:
            write = next_write(view, None, misled=self._is_misled(view))
            # What was written already, and only the watch does not show yet, is not written again.
            if write is not None and self._remember(view).accepted != view.resource_version:
                wanted.append((view, write))
        self._let_in_at = self._clock()
        writes = self._write_all(wanted)
        for view, write in wanted:
            memory = self._remember(view)
            memory.write, done = write, writes[view.key][1]
            if done:
                memory.accepted = view.resource_version
                self._metrics.accept_seconds.observe(seconds_since(view.reserved_at, datetime.now(UTC)))
        return sum(done for _write, done in writes.values())

    def _is_misled(self, view: WorkloadView) -> bool:
        """Whether our selector came between Kueue's look and its admission; looked at once for each state of it.

        Never of a gang of which a pod stands: then it is a node's label that has changed.
        """
        if view.check is None or not view.check.updates or not view.quota_reserved:
            return False
        memory = self._remember(view)
        if memory.judged != view.resource_version:
            memory.judged = view.resource_version
            memory.misled = is_misled(view, self._labels_of)
        return memory.misled and not self._cache.pods_of(view)

    def _labels_of(self, node: str) -> Mapping[str, str] | None:
        body = self._cache.object(NODES, node)
        return None if body is None else body["metadata"].get("labels") or {}

    def _note(self, view: WorkloadView) -> None:
        """What TAS did with a gang that holds quota."""
        memory = self._remember(view)
        planned = memory.plan
        fresh = memory.write is not None or seconds_since(view.reserved_at, datetime.now(UTC)) < _FRESH_S
        if planned is None and fresh and view.nodes and view.nodes != memory.assigned:
            # TAS was faster than we: what would the planner have done with the nodes as they were?
            planned = self._plan_without(view)
        memory.write = None
        snapshot = self._record_assigned(view, planned)
        if snapshot is not None:
            tier, domain = tier_of_assignment(snapshot, view.nodes)
            order = tiers(snapshot.levels)
            if planned is not None and order.index(tier) > order.index(planned.tier):
                self._metrics.differences.inc()
            nodes = ", ".join(list(view.nodes)[:8]) + (
                f" and {len(view.nodes) - 8} more" if len(view.nodes) > 8 else ""
            )
            where = place(domain[: len(snapshot.levels)])
            self._tell_job(view, "MyriadPlaced", f"placed on {nodes} ({where})")

    def _record_assigned(self, view: WorkloadView, planned: Plan | None) -> Snapshot | None:
        """What TAS did, once. The nodes that it was judged on; None where there is nothing, or nothing new."""
        memory = self._remember(view)
        if not view.nodes or view.nodes == memory.assigned:
            return None
        memory.assigned = view.nodes
        snapshot = self._cache.snapshot()
        self._record(
            assigned_record(
                view.gang,
                planned,
                view.nodes,
                snapshot,
                time=utc_now(),
                inputs=memory.inputs,
                versions=self._versions,
            )
        )
        return snapshot

    def _plan_without(self, view: WorkloadView) -> Plan | None:
        snapshot = self._cache.snapshot()
        for uid in self._cache.uids_of(view):
            snapshot.remove_pod(uid)
        outcome = plan(snapshot, view.gang, self._policy)
        return outcome if isinstance(outcome, Plan) else None

    def _record_outcome(self, view: WorkloadView) -> None:
        """Where the pods really stand, once all that got a node stand; all of the gang where TAS gives none."""
        memory = self._remember(view)
        real: dict[str, int] = {}
        for by_node in self._cache.pods_of(view).values():
            for node, pods in by_node.items():
                real[node] = real.get(node, 0) + pods
        if sum(real.values()) < (sum(view.nodes.values()) or view.gang.pods) or real == memory.outcome:
            return
        memory.outcome = real
        snapshot = self._cache.snapshot()
        tier, domain = tier_of_assignment(snapshot, real)
        self._record(
            DecisionRecord(
                time=utc_now(),
                event="outcome",
                uid=view.gang.uid,
                namespace=view.gang.namespace,
                name=view.gang.name,
                tier=tier,
                domain=domain,
                nodes=real,
                assigned=view.nodes,
                agree=real == view.nodes,
                versions=self._versions,
            )
        )

    # Gangs that wait

    def _steer_waiting(self) -> int:
        waiting = self._cache.waiting()
        counts: dict[str, int] = {}
        chosen: list[WorkloadView] = []
        for views in waiting.values():
            for i, view in enumerate(views):
                counts[view.gang.pool] = counts.get(view.gang.pool, 0) + 1
                if i < self._settings.planned_per_queue:
                    chosen.append(self._seen(view))
        self._metrics.waiting.clear()
        for pool, n in counts.items():
            self._metrics.waiting.labels(pool).set(n)
        if not chosen:
            return 0
        # Times have whole seconds: of gangs that came in the same one, those that have a domain keep it.
        chosen.sort(key=lambda v: (-v.gang.priority, v.created, not led_to(v), v.gang.uid))
        now = self._cache.snapshot()
        doors = doors_of(self._cache, now, now=time.time())
        planning = Round(
            now, self._policy, passes=self._passes(doors), hashed=self._inputs.hashed if self._inputs else inputs_hash
        )
        written = 0

        def wishes() -> Iterator[tuple[WorkloadView, Write | None]]:
            nonlocal written
            for view in chosen:
                self._must_lead()
                if self._clock() - self._let_in_at > _LET_IN_S:
                    written += self.let_in()
                refusal = fits_ever(now, view.gang)
                if refusal is not None and _has_nodes(now, view.gang):
                    written += self._refuse(view, refusal.sentence)
                    continue
                written += self._no_longer_refused(view)
                if view.check is None:
                    continue  # its queue does not ask
                wish = self._wish(view, planning)
                # Kueue looks at a new gang at once, with or without us: a selector that comes meanwhile comes too late.
                write = next_write(view, wish) if self._was_looked_at(view) else None
                if write is None and self._shadow is None and self._nudge_if_parked(view, now):
                    written += 1
                yield view, write

        # The first is written while the next one is planned.
        return sum(done for _write, done in self._write_all(wishes()).values()) + written

    def _was_looked_at(self, view: WorkloadView) -> bool:
        return bool(view.quota_message) or seconds_since(view.created, datetime.now(UTC)) > _LOOKED_AT_S

    def _passes(self, doors: Doors | None) -> Callable[[WorkloadView], Passes] | None:
        """Who may pass into protected domains; None while there is none."""
        if doors is None:
            return None
        return lambda view: doors.passes(view.gang, limit_of(self._cache.object(WORKLOADS, view.key) or {}))

    def _wish(self, view: WorkloadView, planning: Round) -> Wish:
        """Where a waiting gang should go, given those before it; its place is then held in the round."""
        memory = self._remember(view)
        wished = planning.wish(view)
        memory.plan = wished.plan
        if not wished.kept:
            memory.inputs = wished.inputs
        return wished.wish

    def _nudge_if_parked(self, view: WorkloadView, now: Snapshot) -> bool:
        """Ask Kueue to look again at a gang that its TAS refused and that fits now with what its entry says."""
        memory = self._remember(view)
        updates = view.check.updates if view.check and view.check.state == "Ready" else ()
        # Only a refusal by topology: quota that is released makes Kueue look again by itself.
        if "topology" not in view.quota_message or not isinstance(
            plan(now, with_updates(view.gang, updates), self._policy), Plan
        ):
            memory.parked_since = None
            return False
        clock = self._clock()
        if memory.parked_since is None:
            memory.parked_since = clock
        if clock - memory.parked_since < self._settings.nudge_after_s:
            return False
        name = self._cache.cluster_queue_of(view)
        queue = self._cache.object(CLUSTER_QUEUES, name)
        if queue is None or not attach.is_attached(queue, self._settings.admission_check):
            return False
        nudge = self._nudges.setdefault(name, _QueueNudge())
        if clock - nudge.at < nudge.wait_s:
            return False
        # Where it does not help, ask ever more rarely; after a long quiet begin anew.
        least = self._settings.nudge_interval_s
        quiet = clock - nudge.at > 32 * least
        nudge.wait_s = least if quiet or not nudge.wait_s else min(nudge.wait_s * 2, 16 * least)
        nudge.at = clock
        self._must_lead()
        attach.nudge(self._api, queue, self._settings.admission_check)
        self._metrics.nudges.inc()
        log.info("asked Kueue to look again at %s (ClusterQueue %s)", view.key, name)
        return True

    # Refusals

    def _refuse(self, view: WorkloadView, sentence: str) -> int:
        """Tell at once that no state of this cluster can hold the gang. Deactivating it is its owner's business."""
        memory = self._remember(view)
        self._tell_job(view, "MyriadRefused", sentence)
        body = self._cache.object(WORKLOADS, view.key) or {}
        noted = (body.get("metadata", {}).get("annotations") or {}).get(REFUSED_ANNOTATION)
        told, memory.refused = memory.refused, sentence
        if noted == sentence:
            return 0
        if told != sentence:
            refusal = fits_ever(self._cache.snapshot(), view.gang)
            self._record(record_of(view.gang, refusal, "refused", time=utc_now(), versions=self._versions))
            if body and self._shadow is None:
                self._events.tell(body, "MyriadRefused", sentence)
        # Told once, and noted until it stands: others write the Workload too, and a write in between is a conflict.
        return self._annotate(view, sentence) if self._shadow is None else 0

    def _no_longer_refused(self, view: WorkloadView) -> int:
        body = self._cache.object(WORKLOADS, view.key) or {}
        if self._shadow is not None or REFUSED_ANNOTATION not in (body.get("metadata", {}).get("annotations") or {}):
            return 0
        self._remember(view).refused = ""
        return self._annotate(view, None)

    def _annotate(self, view: WorkloadView, text: str | None) -> int:
        body = {
            "metadata": {"resourceVersion": view.resource_version, "annotations": {REFUSED_ANNOTATION: text}},
        }
        return self._send(view, lambda: self._api.patch(WORKLOADS, view.workload, body, namespace=view.gang.namespace))

    # Writing

    def _write_all(self, wanted: Iterable[tuple[WorkloadView, Write | None]]) -> dict[str, tuple[Write, int]]:
        """Write what differs, several at a time, each as soon as it is known; key to the write and whether it was done.

        One after the other they would take as long as the API server answers, each for all that wait behind it.
        """
        sent: list[tuple[WorkloadView, Write, Future[int]]] = []
        found: dict[str, tuple[Write, int]] = {}
        try:
            for view, write in wanted:
                if write is not None:
                    sent.append((view, write, self._hands.submit(self._put, view, write)))
        finally:
            # Also of a pass that ends early: what was written is recorded.
            faults = [fault for one in sent if (fault := self._take(one, found)) is not None]
        if faults:
            raise faults[0]
        return found

    def _take(
        self, sent: tuple[WorkloadView, Write, Future[int]], found: dict[str, tuple[Write, int]]
    ) -> BaseException | None:
        """What became of a write: recorded, or the error that it ended by."""
        view, write, answer = sent
        fault = answer.exception()
        if fault is not None:
            return fault
        done = answer.result()
        found[view.key] = (write, done)
        if write.why == "steered" and (done or self._shadow is not None):
            self._record_steered(view, write.updates)
        return None

    def _put(self, view: WorkloadView, write: Write) -> int:
        """Change our entry, and nothing else, of the Workload as it was seen."""
        if self._shadow is not None:
            self._must_lead()
            self._shadow.write(view, write)
            return 0
        body = {
            "apiVersion": WORKLOADS.api_version,
            "kind": WORKLOADS.kind,
            "metadata": {
                "name": view.workload,
                "namespace": view.gang.namespace,
                "resourceVersion": view.resource_version,
            },
            "status": {
                "admissionChecks": [
                    {
                        "name": self._settings.admission_check,
                        "state": write.state,
                        "message": write.message,
                        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                        # Sent even when empty: an older list, whoever wrote it, must not stay.
                        "podSetUpdates": [u.to_api() for u in write.updates],
                    }
                ]
            },
        }
        done = self._send(
            view,
            lambda: self._api.patch(
                WORKLOADS,
                view.workload,
                body,
                kind="apply",
                namespace=view.gang.namespace,
                subresource="status",
                field_manager=FIELD_MANAGER,
                force=True,
            ),
        )
        if done:
            self._metrics.writes.labels(write.why).inc()
            log.info("%s: %s (%s)", view.key, write.message, write.why)
        return done

    def _record_steered(self, view: WorkloadView, updates: tuple[PodSetUpdate, ...]) -> None:
        memory = self._remember(view)
        if self._inputs is not None:
            self._inputs.keep(memory.inputs)
        self._record(
            record_of(
                view.gang,
                memory.plan,
                "steered" if self._shadow is None else "planned",
                time=utc_now(),
                inputs=memory.inputs,
                versions=self._versions,
                extra={"updates": [u.to_api() for u in updates], **({} if self._shadow is None else {"shadow": True})},
            )
        )

    def _must_lead(self) -> None:
        if not self._leads():
            raise MyriadError("this replica leads no more: its pass is not finished")

    def _send(self, view: WorkloadView, call: Callable[[], object]) -> int:
        self._must_lead()
        try:
            call()
        except ApiError as error:
            if error.is_conflict or error.is_not_found:
                # It moved on since we looked; the watch brings the new state and with it the next pass.
                self._metrics.conflicts.inc()
            else:
                self._metrics.refused_writes.inc()
                log.warning("%s: %s", view.key, error.message)
            return 0
        return 1

    def _tell_job(self, view: WorkloadView, reason: Any, sentence: str) -> None:
        if not view.job or self._shadow is not None:
            return
        about = {
            "apiVersion": view.job["apiVersion"],
            "kind": view.job["kind"],
            "metadata": {"name": view.job["name"], "namespace": view.gang.namespace, "uid": view.job["uid"]},
        }
        self._telling.append(self._hands.submit(self._events.tell, about, reason, sentence))

    def _record(self, record: DecisionRecord) -> None:
        try:
            self._decisions.append(record)
        except MyriadError as error:
            # A full disk must not stop gangs from being let in.
            log.warning("%s", error)

    def _remember(self, view: WorkloadView) -> _Memory:
        memory = self._memory.get(view.gang.uid)
        if memory is None:
            # After a restart or a change of leader: what is in the book is not recorded again.
            memory = self._memory[view.gang.uid] = _Memory()
            assigned = self._decisions.last(view.gang.uid, "assigned")
            outcome = self._decisions.last(view.gang.uid, "outcome")
            memory.assigned = dict(assigned.assigned) if assigned else {}
            memory.outcome = dict(outcome.nodes) if outcome else {}
        return memory

    def _forget(self, alive: set[str]) -> None:
        for uid in self._memory.keys() - alive:
            del self._memory[uid]
        if self._shadow is not None:
            self._shadow.forget(alive)

    def _seen(self, view: WorkloadView) -> WorkloadView:
        """The Workload, in shadow with the entry that it would have."""
        return view if self._shadow is None else self._shadow.seen(view)


def _has_nodes(snapshot: Snapshot, gang: Gang) -> bool:
    """Whether the gang's pool has a node at all: a pool that is still being brought up refuses nobody for good."""
    return any(not gang.pool or node.pool == gang.pool for node in snapshot.nodes)
