"""The events of a simulated cluster, one after the other."""

from __future__ import annotations

import bisect
import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from myriad.scheduler.model import DEFAULT_GPU_RESOURCE, RESERVED_TAINT, Gang, Plan, PodSet, PodUse, Taint
from myriad.scheduler.objects import CheckEntry, WorkloadView
from myriad.scheduler.placement import plan
from myriad.scheduler.protect import Doors, Protection
from myriad.scheduler.protect_choice import Waiter, decide
from myriad.scheduler.round import Round
from myriad.scheduler.rules import next_write
from myriad.scheduler.snapshot import IntArray, Snapshot
from myriad.sim.config import POOL, SimConfig, site_nodes
from myriad.sim.jobs import SimJob
from myriad.sim.kueue import Quotas, Tas, victims
from myriad.sim.run import PENDING, Observation, Run
from myriad.sim.trace import Event, InvariantError, JobRecord, Kind, Trace

_SAMPLE_S = 60.0
_REQUEUE_S = 1.0


def simulate(
    config: SimConfig,
    jobs: Sequence[SimJob],
    seed: int = 0,
    *,
    observe: Callable[[Observation], None] | None = None,
) -> Trace:
    """Play the jobs on the cluster.

    Args:
        config: the cluster.
        jobs: in any order, with unique names and teams of the config.
        seed: of everything that is drawn: how long pods take to end, which nodes die and when.
        observe: called every ``config.observe_s``.

    Returns:
        The trace. Equal arguments give equal traces (`Trace.digest`).

    Raises:
        InvariantError: a double booking, a negative quota or a gang bound in part for too long.
    """
    return Simulation(config, jobs, seed, observe).run()


class Simulation:
    """One simulation; see `simulate`."""

    def __init__(
        self, config: SimConfig, jobs: Sequence[SimJob], seed: int, observe: Callable[[Observation], None] | None
    ) -> None:
        self.config = config
        self.now = 0.0
        self.snapshot = Snapshot.build(site_nodes(config))
        self.tas = Tas(self.snapshot)
        self.quotas = Quotas(config.teams)
        self.held: IntArray = np.zeros(config.nodes, dtype=np.int64)
        """GPUs that pods hold on each node, those that are still ending too."""
        self.trace = Trace(seed=seed, gpus=config.gpus)
        self.runs = [self._run_of(k, job) for k, job in enumerate(jobs)]
        self._rng = random.Random(seed)  # noqa: S311 - no secret
        self._observe = observe
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._waiting: dict[str, dict[object, list[tuple[tuple[int, float, int], Run]]]] = {t: {} for t in config.teams}
        self._holding: dict[str, Run] = {}
        self._refused: set[object] = set()
        self._queued_on: dict[int, list[Run]] = {}
        self._left = len(self.runs)
        self._pass_at: float | None = None
        self._last_pass = float("-inf")
        self._admissions = 0
        self._busy = 0
        self._busy_since = 0.0
        self.protections: dict[str, Protection] = {}
        self._given_up: dict[str, float] = {}

    def _run_of(self, number: int, job: SimJob) -> Run:
        podset = PodSet("main", job.pods, {DEFAULT_GPU_RESOURCE: job.gpus_per_pod}, topology=job.topology)
        gang = Gang(job.name, job.team, (podset,), uid=job.name, priority=job.priority, team=job.team, pool=POOL)
        record = self.trace.jobs[job.name] = JobRecord(job)
        return Run(job, (-job.priority, job.submit_s, number), gang, record)

    # -- time ----------------------------------------------------------------------------------------------------

    def at(self, t_s: float, action: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._heap, (t_s, next(self._number), action))

    def note(self, kind: Kind, subject: str, detail: str = "") -> None:
        """Write an event down."""
        self.trace.events.append(Event(self.now, kind, subject, detail))

    def run(self) -> Trace:
        """All events until the end."""
        for run in self.runs:
            self.at(run.job.submit_s, lambda run=run: self._submit(run))  # type: ignore[misc]
        if self.config.failures.mean_s:
            for i in range(self.config.nodes):
                self.at(self._rng.expovariate(1 / self.config.failures.mean_s), lambda i=i: self._node_down(i))  # type: ignore[misc]
        observe = self._observe
        if observe is not None and self.config.observe_s:
            self.at(self.config.observe_s, lambda: self._look(observe))
        if self.config.protection is not None:
            self.at(self.config.protect_s, self._protect)
        until = self.config.until_s or float("inf")
        while self._heap and self._left:
            t_s, _, action = heapq.heappop(self._heap)
            if t_s > until:
                self.now = until
                break
            self.now = t_s
            action()
            # Everything of one moment is done before Kueue looks.
            while self._heap and self._heap[0][0] <= self.now:
                heapq.heappop(self._heap)[2]()
            self._schedule()
            if self.config.check_invariants:
                self._check()
        self._count(0)
        for run in self.runs:
            if run.partly_since is not None:
                run.record.partly_bound_s = max(run.record.partly_bound_s, self.now - run.partly_since)
        self.trace.end_s = self.now
        return self.trace

    def _count(self, gpus: int) -> None:
        self.trace.gpu_seconds += self._busy * (self.now - self._busy_since)
        self._busy += gpus
        self._busy_since = self.now
        samples = self.trace.samples
        if gpus and (not samples or self.now - samples[-1][0] >= _SAMPLE_S):
            asked = sum(r.gpus for shapes in self._waiting.values() for runs in shapes.values() for _, r in runs)
            samples.append((self.now, self._busy, asked))

    def _look(self, observe: Callable[[Observation], None]) -> None:
        observe(
            Observation(
                self.now,
                {team: [r.job for r in self.waiting(team)] for team in self.config.teams},
                [(r.job, r.admitted_s) for r in self._holding.values() if r.state == "admitted"],
                self._admissions,
                self.snapshot,
            )
        )
        self.at(self.now + self.config.observe_s, lambda: self._look(observe))

    # -- queues --------------------------------------------------------------------------------------------------

    def waiting(self, team: str) -> Iterator[Run]:
        """A team's waiting jobs in Kueue's order."""
        return (run for _, run in heapq.merge(*self._waiting[team].values(), key=lambda entry: entry[0]))

    def _enqueue(self, run: Run) -> None:
        podset = run.podset
        run.state = "waiting"
        run.shape = (
            run.team, podset.count, run.gpus_per_pod, podset.topology, run.priority,
            tuple(sorted(podset.node_selector.items())), podset.tolerations,
        )  # fmt: skip
        bisect.insort(self._waiting[run.team].setdefault(run.shape, []), (run.order, run), key=lambda entry: entry[0])
        # Kueue looks again at a workload that changed.
        self._refused.discard(run.shape)

    def _dequeue(self, run: Run) -> None:
        runs = self._waiting[run.team][run.shape]
        del runs[bisect.bisect_left(runs, run.order, key=lambda entry: entry[0])]
        if not runs:
            del self._waiting[run.team][run.shape]

    def _submit(self, run: Run) -> None:
        self.note("submitted", run.job.name)
        run.check = PENDING
        room = self.config.gpus // run.gpus_per_pod
        if (
            run.gpus > self.quotas.could_ever(run.team)
            or run.job.pods > room
            or run.gpus_per_pod > self.config.gpus_per_node
        ):
            self.note("never", run.job.name)
            run.state = "done"
            run.record.reason = "no state of this cluster and its quotas can hold it"
            self._left -= 1
            return
        self._enqueue(run)
        self._want_pass()

    # -- Kueue ---------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Kueue's cycles until no head is left: one head of each queue at a time, borrowers last."""
        while True:
            heads = []
            for team, shapes in self._waiting.items():
                entries = [(runs[0][0], runs[0][1]) for shape, runs in shapes.items() if shape not in self._refused]
                if entries:
                    run = min(entries, key=lambda entry: entry[0])[1]
                    heads.append((self.quotas.borrows(team, run.gpus), run.order, run))
            if not heads:
                return
            for _, _, run in sorted(heads, key=lambda head: head[:2]):
                # Whoever lost its place to a preemption of this very cycle waits for the next.
                if run.state == "waiting" and run.shape not in self._refused:
                    self._try(run)

    def _try(self, run: Run) -> None:
        podset = run.podset
        if self.quotas.available(run.team) >= run.gpus:
            place = self.tas.assign(podset, POOL)
            if place is not None:
                self._reserve(run, place)
                return
            run.record.reason = "topology: no place for all of its pods now"
        else:
            run.record.reason = "quota: not enough is unused"
        targets = victims(
            podset,
            POOL,
            team=run.team,
            priority=run.priority,
            quotas=self.quotas,
            tas=self.tas,
            holders=list(self._holding.values()),
        )
        if not targets:
            self._refused.add(run.shape)
            return
        for target in targets:
            self._evict(target, f"preempted by {run.job.name}")

    def _reserve(self, run: Run, place: dict[int, int]) -> None:
        self._dequeue(run)
        run.state, run.place, run.reserved_s = "reserved", place, self.now
        run.epoch += 1
        self._holding[run.job.name] = run
        self.quotas.used[run.team] += run.gpus
        if self.config.compare and run.job.pods > 1:
            outcome = plan(self.snapshot, run.gang, self.config.policy)
            run.record.planned_tier = outcome.tier if isinstance(outcome, Plan) else ""
        for i, pods in place.items():
            self._take(run, i, pods)
        run.record.nodes = {self.snapshot.nodes[i].name: pods for i, pods in place.items()}
        run.record.tier = self.snapshot.tier_of(run.record.nodes)[0]
        self.note("reserved", run.job.name)
        if run.job.name in self.protections:
            self._unprotect(run.job.name, "its gang has its nodes")
        if not self.config.steered or run.check.state == "Ready":
            self._admit(run)
        else:
            self._want_pass()

    def _take(self, run: Run, i: int, pods: int) -> None:
        """TAS counts the nodes, and Myriad's cache counts them until the pods are gone."""
        self.tas.used[i] += pods * run.gpus_per_pod
        requests = {DEFAULT_GPU_RESOURCE: pods * run.gpus_per_pod}
        name = self.snapshot.nodes[i].name
        self.snapshot.apply_pod(PodUse(self._uid(run, i), name, requests, owner=f"{run.team}/{run.job.name}"))

    @staticmethod
    def _uid(run: Run, i: int) -> str:
        return f"{run.job.name}/{run.epoch}/{i}"

    def _admit(self, run: Run) -> None:
        run.state, run.admitted_s = "admitted", self.now
        run.record.admitted_s.append(self.now)
        run.record.reason = ""
        self._admissions += 1
        self.note("admitted", run.job.name)
        epoch = run.epoch
        if run.job.limit_s is not None:
            self.at(self.now + run.job.limit_s, lambda: self._limit(run, epoch))
        self.at(self.now + self.config.pods_ready_timeout_s, lambda: self._not_ready(run, epoch))
        for i in list(run.place):
            self._bind(run, i)
        self._bound_changed(run)

    # -- pods ----------------------------------------------------------------------------------------------------

    def _bind(self, run: Run, i: int) -> None:
        """kube-scheduler and the kubelet: pods start on their node when it has room, whatever Kueue thinks."""
        gpus = run.place[i] * run.gpus_per_pod
        if self.snapshot.ready[i] and self.held[i] + gpus <= self.config.gpus_per_node:
            self.held[i] += gpus
            run.bound[i] = run.place[i]
        else:
            self._queued_on.setdefault(i, []).append(run)

    def _bound_changed(self, run: Run) -> None:
        if run.state != "admitted":
            return
        if len(run.bound) < len(run.place):
            if run.bound and run.partly_since is None:
                run.partly_since = self.now
            return
        if run.partly_since is not None:
            run.record.partly_bound_s = max(run.record.partly_bound_s, self.now - run.partly_since)
            run.partly_since = None
        self.note("bound", run.job.name)
        epoch = run.epoch
        self.at(self.now + self.config.start_s, lambda: self._start(run, epoch))

    def _start(self, run: Run, epoch: int) -> None:
        if run.epoch != epoch or run.running_since is not None or len(run.bound) < len(run.place):
            return
        run.running_since = self.now
        if run.record.started_s is None:
            run.record.started_s = self.now
        self._count(run.gpus)
        self.note("started", run.job.name)
        self.at(self.now + max(0.0, run.job.run_s - run.progress_s), lambda: self._finish(run, epoch))

    def _stop_running(self, run: Run, *, lost_s: float = 0.0) -> None:
        if run.running_since is not None:
            self._count(-run.gpus)
            done = run.progress_s + self.now - run.running_since
            run.progress_s = max(0.0, done - (done % lost_s if lost_s else 0.0))
            run.running_since = None

    def _free(self, i: int, gpus: int) -> None:
        self.held[i] -= gpus
        for run in self._queued_on.pop(i, []):
            if run.state == "admitted" and i in run.place and i not in run.bound:
                self._bind(run, i)
                self._bound_changed(run)

    def _leave(self, run: Run, *, at_once: bool) -> None:
        """Give quota and nodes back to Kueue now, and the GPUs when the pods are gone."""
        run.epoch, old = run.epoch + 1, run.epoch
        self._holding.pop(run.job.name, None)
        self.quotas.used[run.team] -= run.gpus
        for i, pods in run.place.items():
            self.tas.used[i] -= pods * run.gpus_per_pod
            uid = f"{run.job.name}/{old}/{i}"
            if i not in run.bound or at_once or not self.snapshot.ready[i]:
                self._gone(uid, i, run.bound.get(i, 0) * run.gpus_per_pod)
            else:
                wait_s = self._rng.uniform(1.0, self.config.grace_s) if self.config.grace_s > 1 else self.config.grace_s
                gpus = run.bound[i] * run.gpus_per_pod
                ending = self.snapshot.pod(uid)
                if ending is not None:
                    self.snapshot.apply_pod(replace(ending, terminating=True))
                self.at(self.now + wait_s, lambda uid=uid, i=i, gpus=gpus: self._gone(uid, i, gpus))  # type: ignore[misc]
        run.place, run.bound = {}, {}
        if run.partly_since is not None:
            run.record.partly_bound_s = max(run.record.partly_bound_s, self.now - run.partly_since)
            run.partly_since = None
        self._refused.clear()
        self._want_pass()

    def _gone(self, uid: str, i: int, gpus: int) -> None:
        self.snapshot.remove_pod(uid)
        if gpus:
            self._free(i, gpus)
        self._want_pass()

    # -- ends ----------------------------------------------------------------------------------------------------

    def _finish(self, run: Run, epoch: int) -> None:
        if run.epoch != epoch or run.running_since is None:
            return
        if self.now - run.running_since + run.progress_s < run.job.run_s - 1e-6:
            return  # it started anew meanwhile (a node was replaced); that start has its own end
        self._end(run, "finished", at_once=True)

    def _limit(self, run: Run, epoch: int) -> None:
        if run.epoch == epoch and run.state == "admitted":
            run.record.killed_by_limit = True
            self._end(run, "limit", at_once=False)

    def _end(self, run: Run, kind: Kind, *, at_once: bool) -> None:
        self._stop_running(run)
        self._leave(run, at_once=at_once)
        run.state = "done"
        run.record.finished_s = self.now
        self._left -= 1
        self.note(kind, run.job.name)

    def _not_ready(self, run: Run, epoch: int) -> None:
        if run.epoch == epoch and run.running_since is None:
            self._evict(run, "not all pods were ready in time")

    def _evict(self, run: Run, why: str, *, lost_s: float = 0.0) -> None:
        self._stop_running(run, lost_s=lost_s)
        self._leave(run, at_once=False)
        run.record.evicted_s.append(self.now)
        run.record.reason = why
        # Kueue resets its checks on eviction.
        run.check = PENDING
        self.note("evicted", run.job.name, why)
        # It is in its queue again when its job is suspended; until then whoever evicted it is the first to be asked.
        run.state = "evicted"
        self.at(self.now + _REQUEUE_S, lambda: self._requeue(run))

    def _requeue(self, run: Run) -> None:
        if run.state == "evicted":
            self._enqueue(run)
            self._want_pass()

    # -- nodes ---------------------------------------------------------------------------------------------------

    def _node_down(self, i: int) -> None:
        if not self.snapshot.ready[i]:
            return
        name = self.snapshot.nodes[i].name
        self.note("node_down", name)
        self.snapshot.update_node(replace(self.snapshot.nodes[i], ready=False))
        for run in [r for r in self._holding.values() if i in r.place]:
            self._lose_node(run, i)
        self._refused.clear()
        self.at(self.now + self.config.failures.repair_s, lambda: self._node_up(i))
        self._want_pass()

    def _lose_node(self, run: Run, i: int) -> None:
        """Kueue replaces the node of an admitted gang (in its required domain), or evicts the gang."""
        if run.state == "reserved":
            self._evict(run, f"its node {self.snapshot.nodes[i].name} died")
            return
        lost = run.place[i]
        inside = None
        topology = run.gang.podsets[0].topology
        if topology.mode == "required" and len(run.place) > 1 and topology.level in self.snapshot.levels:
            depth = self.snapshot.levels.index(topology.level) + 1
            inside = self.snapshot.inside(self.snapshot.nodes[i].location[:depth])
        else:
            inside = np.ones(len(self.snapshot.nodes), dtype=np.bool_)
        # One node's pods go to one node, and to none that the gang has.
        inside = inside & ~np.isin(np.arange(len(inside)), list(run.place))
        probe = replace(run.podset, count=lost, topology=replace(topology, mode="unconstrained"))
        cap = np.where(inside, self.tas.counts(probe, POOL), 0)
        room = np.flatnonzero(cap >= lost)
        if not len(room):
            self._evict(run, f"its node {self.snapshot.nodes[i].name} died and no other takes its pods",
                        lost_s=self.config.checkpoint_s)  # fmt: skip
            return
        self._stop_running(run, lost_s=self.config.checkpoint_s)
        new = int(room[np.argmin(cap[room])])
        gpus = run.bound.pop(i, 0) * run.gpus_per_pod
        self.tas.used[i] -= lost * run.gpus_per_pod
        self._gone(self._uid(run, i), i, gpus)
        del run.place[i]
        run.place[new] = lost
        self._take(run, new, lost)
        run.record.nodes = {self.snapshot.nodes[k].name: pods for k, pods in run.place.items()}
        self._bind(run, new)
        self._bound_changed(run)

    def _node_up(self, i: int) -> None:
        self.note("node_up", self.snapshot.nodes[i].name)
        self.snapshot.update_node(replace(self.snapshot.nodes[i], ready=True))
        self._refused.clear()
        self._free(i, 0)
        self.at(self.now + self._rng.expovariate(1 / self.config.failures.mean_s), lambda: self._node_down(i))
        self._want_pass()

    # -- Myriad --------------------------------------------------------------------------------------------------

    def _want_pass(self) -> None:
        if not self.config.steered or self._pass_at is not None:
            return
        self._pass_at = max(self.now + self.config.settle_s, self._last_pass + self.config.pass_s)
        self.at(self._pass_at, self._pass)

    def _pass(self) -> None:
        """What `Steering.run_pass` does: answer those that hold quota, then plan those that wait, in order."""
        self._pass_at, self._last_pass = None, self.now
        for run in [r for r in self._holding.values() if r.state == "reserved"]:
            write = next_write(self._view(run), None)
            if write is not None:
                run.check = CheckEntry(write.state, write.message, write.updates, "")
                self._admit(run)
        chosen: list[Run] = []
        for team in self.config.teams:
            chosen += itertools.islice(self.waiting(team), self.config.planned_per_queue)
        if not chosen:
            return
        chosen.sort(key=lambda r: (-r.priority, r.job.submit_s, not r.check.updates, r.order))
        doors = Doors.of(self.snapshot, self.protections, self._ends(), self.now) if self.protections else None
        limits = {run.job.name: run.job.limit_s for run in chosen}
        planning = Round(
            self.snapshot,
            self.config.policy,
            passes=None if doors is None else lambda view: doors.passes(view.gang, limits[view.gang.name]),
        )
        for run in chosen:
            view = self._view(run)
            wished = planning.wish(view)
            if wished.refusal is not None:
                run.record.reason = wished.refusal.sentence
            write = next_write(view, wished.wish)
            if write is not None:
                self._dequeue(run)
                run.check = CheckEntry(write.state, write.message, write.updates, "")
                self._enqueue(run)
                self.note("steered" if write.why == "steered" else "released", run.job.name, write.message)

    def _ends(self) -> dict[str, float]:
        """When the limits of the jobs that hold nodes end them, by pod."""
        return {
            self._uid(run, i): run.admitted_s + run.job.limit_s
            for run in self._holding.values()
            if run.job.limit_s is not None and run.state == "admitted"
            for i in run.place
        }

    def _protect(self) -> None:
        """What the observer of protected domains does."""
        policy = self.config.protection
        assert policy is not None  # noqa: S101 - it is what started this
        latest = max((r.job.submit_s for r in self._holding.values()), default=0.0)
        waiting = [
            Waiter(
                run.gang,
                f"{run.team}/{run.job.name}",
                self.now - max(run.job.submit_s, *run.record.evicted_s[-1:], 0.0),
                quota=self.quotas.could_ever(run.team),
                given_up_s=self.now - self._given_up[run.job.name] if run.job.name in self._given_up else None,
                overtaken=latest > run.job.submit_s,
            )
            for team in self.config.teams
            for run in self.waiting(team)
            if run.job.name in self.protections
            or self.now - max(run.job.submit_s, *run.record.evicted_s[-1:], 0.0) >= policy.after_s
        ]
        decision = decide(
            self.snapshot,
            waiting,
            self._ends(),
            self.protections,
            policy,
            now=self.now,
            grace_s=self.config.grace_s,
            placement=self.config.policy,
        )
        for protection, why in decision.release:
            self._unprotect(protection.uid, why)
        for protection in decision.protect:
            self._mark(protection)
        for refused in decision.refused:
            self.trace.jobs[refused.uid].reason = refused.sentence
        self.at(self.now + self.config.protect_s, self._protect)
        self._want_pass()

    def _mark(self, protection: Protection) -> None:
        self.protections[protection.uid] = protection
        taint = Taint(RESERVED_TAINT, protection.uid)
        for name in protection.nodes:
            node = self.snapshot.nodes[self.snapshot.index[name]]
            if taint not in node.taints:
                self.snapshot.update_node(replace(node, taints=(*node.taints, taint)))
        text = f"{len(protection.nodes)} nodes until {protection.until:.0f}"
        self.note("protected", protection.uid, text)

    def _unprotect(self, uid: str, why: str) -> None:
        protection = self.protections.pop(uid)
        if self.now >= protection.expires:
            self._given_up[uid] = self.now
        for name in protection.nodes:
            node = self.snapshot.nodes[self.snapshot.index[name]]
            self.snapshot.update_node(replace(node, taints=tuple(t for t in node.taints if t.value != uid)))
        self.note("unprotected", uid, why)
        self._refused.clear()

    def _view(self, run: Run) -> WorkloadView:
        holds = run.state in ("reserved", "admitted")
        return WorkloadView(
            gang=run.gang, resource_version="", check=run.check, quota_reserved=holds, admitted=run.state == "admitted",
            evicted=False, finished=False, active=True, deleting=False, quota_message=run.record.reason,
            assignment={"main": run.record.nodes} if holds else None, cluster_queue=run.team if holds else "",
            local_queue=POOL, created="", steerable=True, gpus_held=run.gpus if holds else 0, job={},
            workload=run.job.name,
        )  # fmt: skip

    # -- what must always hold -----------------------------------------------------------------------------------

    def _check(self) -> None:
        if (self.held > self.config.gpus_per_node).any() or (self.held < 0).any():
            i = int(np.argmax(np.abs(self.held)))
            raise InvariantError(f"{self.now:.1f} s: {self.held[i]} GPUs held on node {self.snapshot.nodes[i].name}")
        if (self.tas.used > self.config.gpus_per_node).any() or (self.tas.used < 0).any():
            raise InvariantError(f"{self.now:.1f} s: a node is promised twice: {int(self.tas.used.max())} GPUs")
        if min(self.quotas.used.values()) < 0:
            raise InvariantError(f"{self.now:.1f} s: quota given back twice: {self.quotas.used}")
        limit_s = self.config.grace_s + 60.0
        for run in self._holding.values():
            if run.partly_since is not None and self.now - run.partly_since > limit_s:
                raise InvariantError(
                    f"{self.now:.1f} s: {run.job.name} has been bound in part for {self.now - run.partly_since:.0f} s"
                )
