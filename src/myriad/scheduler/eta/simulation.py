"""One future of a pool, played forward: jobs end, room comes free, the queues' heads take it. Pure.

The rules are Kueue's in outline: quota by queue with borrowing and lending in a flat cohort (available = own unused +
what the cohort lends, capped by the borrowing limit); a queue's order is priority, then age; BestEffortFIFO lets those
behind pass a head that does not fit, StrictFIFO does not; among queues whoever need not borrow goes first, then the one
that uses the least of its share; nominal quota is taken back from borrowers. Places are whole nodes and parts of nodes
by best fit, and for a gang bound to a level one domain of it.

The end of time is coarse: what happens within one percent of the time from now happens together, which bounds the
number of looks at the queues by a few hundred however many jobs there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from myriad.scheduler.eta.model import HORIZON_S, PoolState, QueueState, RunningJob, WaitingJob

FloatArray = npt.NDArray[np.float64]

COARSE = 0.01
_STEP_S = 1.0


@dataclass(slots=True)
class Arrival:
    """A job that comes later: it can overtake those that wait, and takes room."""

    at_s: float
    job: WaitingJob
    run_s: float


@dataclass(slots=True)
class _Job:
    queue: int
    pods: int
    per_pod: int
    gpus: int
    priority: int
    rank: float
    level: str
    run_s: float
    number: int
    """Position among the waiting jobs that are asked about; -1 for others."""
    nodes: list[tuple[int, int]] = field(default_factory=list)
    started: float = 0.0
    ends: float = 0.0
    gone: bool = False


class Layout:
    """What all futures of one state share: numbers for queues, cohorts and nodes."""

    def __init__(self, state: PoolState) -> None:
        self.state = state
        self.queues: tuple[QueueState, ...] = state.queues
        self.queue_of = {q.name: i for i, q in enumerate(state.queues)}
        names = sorted({q.cohort for q in state.queues if q.cohort})
        self.cohort_of = [names.index(q.cohort) if q.cohort else -1 for q in state.queues]
        self.members = [[i for i, c in enumerate(self.cohort_of) if c == k] for k in range(len(names))]
        self.guaranteed = [
            0 if q.lend_limit is None else max(0, q.nominal - q.lend_limit) if self.cohort_of[i] >= 0 else q.nominal
            for i, q in enumerate(state.queues)
        ]
        self.lendable = [
            state.cohorts.get(name, 0) + sum(self.queues[i].nominal - self.guaranteed[i] for i in self.members[k])
            for k, name in enumerate(names)
        ]
        self.node_of = {n.name: i for i, n in enumerate(state.nodes)}
        self.most = max((n.gpus for n in state.nodes), default=0)
        self._ever: dict[tuple[int, int, int], bool] = {}
        self.domains: dict[str, list[list[int]]] = {}
        for level in sorted({w.level for w in state.waiting if w.level}):
            by_name: dict[str, list[int]] = {}
            for i, node in enumerate(state.nodes):
                by_name.setdefault(node.domains.get(level, ""), []).append(i)
            by_name.pop("", None)
            self.domains[level] = list(by_name.values())

    def can_ever(self, queue: int, gpus: int, per_pod: int, pods: int) -> bool:
        """Whether quota and nodes would do if nothing else ran: who can never start is not waited for."""
        key = (queue, per_pod, pods)
        known = self._ever.get(key)
        if known is None:
            q, cohort = self.queues[queue], self.cohort_of[queue]
            most = q.nominal if cohort < 0 else self.guaranteed[queue] + self.lendable[cohort]
            if cohort >= 0 and q.borrow_limit is not None:
                most = min(most, q.nominal + q.borrow_limit)
            held = sum(n.gpus // per_pod for n in self.state.nodes) if per_pod else pods
            known = self._ever[key] = not q.stopped and gpus <= most and held >= pods
        return known


class _Places:
    """Free GPUs by node, and nodes by free GPUs."""

    def __init__(self, layout: Layout) -> None:
        self.free = [max(0, n.free) for n in layout.state.nodes]
        self.most = max([layout.most, *self.free]) if self.free else 0
        self.count = [0] * (self.most + 1)
        self.stacks: list[list[int]] = [[] for _ in range(self.most + 1)]
        self.domains = layout.domains
        self.total = 0
        for i, f in enumerate(self.free):
            self.count[f] += 1
            self.stacks[f].append(i)
            self.total += f

    def room(self, per_pod: int, pods: int) -> bool:
        """Whether that many pods fit now, anywhere."""
        if per_pod == 0:
            return True
        if per_pod * pods > self.total:
            return False
        left = pods
        for f in range(per_pod, self.most + 1):
            left -= self.count[f] * (f // per_pod)
            if left <= 0:
                return True
        return False

    def _set(self, node: int, amount: int) -> None:
        old = self.free[node]
        self.count[old] -= 1
        self.total += amount - old
        self.free[node] = amount
        self.count[amount] += 1
        self.stacks[amount].append(node)

    def take(self, per_pod: int, pods: int, level: str) -> list[tuple[int, int]] | None:
        """Place the pods; (node, GPUs) pairs, or None where there is no place."""
        if per_pod == 0:
            return []
        if not self.room(per_pod, pods):
            return None
        if level:
            return self._take_in_domain(per_pod, pods, level)
        taken: list[tuple[int, int]] = []
        left = pods
        f = per_pod
        while left and f <= self.most:
            stack = self.stacks[f]
            # Entries of nodes that have changed since are stale and fall away here.
            while stack and self.free[stack[-1]] != f:
                stack.pop()
            if not stack:
                f += 1
                continue
            node = stack.pop()
            fits = min(left, f // per_pod)
            taken.append((node, fits * per_pod))
            self._set(node, f - fits * per_pod)
            left -= fits
        return taken

    def _take_in_domain(self, per_pod: int, pods: int, level: str) -> list[tuple[int, int]] | None:
        best: list[int] | None = None
        least = 0
        for nodes in self.domains.get(level, []):
            held = sum(self.free[i] // per_pod for i in nodes)
            if held >= pods and (best is None or held < least):
                best, least = nodes, held
        if best is None:
            return None
        taken: list[tuple[int, int]] = []
        left = pods
        for node in sorted(best, key=lambda i: -(self.free[i] // per_pod)):
            fits = min(left, self.free[node] // per_pod)
            if fits:
                taken.append((node, fits * per_pod))
                self._set(node, self.free[node] - fits * per_pod)
                left -= fits
            if not left:
                break
        return taken

    def would_hold(self, per_pod: int, pods: int, extra: dict[int, int]) -> bool:
        """Whether the pods fit anywhere once these GPUs are free too."""
        if per_pod == 0:
            return True
        held = sum(self.count[f] * (f // per_pod) for f in range(per_pod, self.most + 1))
        held += sum((self.free[n] + g) // per_pod - self.free[n] // per_pod for n, g in extra.items())
        return held >= pods

    def hold(self, taken: Sequence[tuple[int, int]]) -> None:
        """Take back what was given."""
        for node, gpus in taken:
            if node >= 0:
                self._set(node, self.free[node] - gpus)

    def give(self, taken: Sequence[tuple[int, int]]) -> None:
        """Free what a job held."""
        for node, gpus in taken:
            if node >= 0:
                self._set(node, min(self.most, self.free[node] + gpus))


_Shape = tuple[int, int, str]
_Entry = tuple[int, float, int, _Job]


class Future:
    """One future; it is played once."""

    def __init__(self, layout: Layout, *, horizon_s: float = HORIZON_S) -> None:
        self.layout = layout
        self.horizon_s = horizon_s
        self.places = _Places(layout)
        self.used = [0] * len(layout.queues)
        self.lent = [0] * len(layout.members)
        """GPUs by cohort that its queues hold beyond what they keep for themselves."""
        # Waiting jobs by queue and shape, each a heap in the queue's order: whoever fits first is at a heap's head.
        self.shapes: list[dict[_Shape, list[_Entry]]] = [{} for _ in layout.queues]
        self.ends: list[tuple[float, int, _Job]] = []
        self.running: list[dict[int, _Job]] = [{} for _ in layout.queues]
        self.priorities: list[dict[int, int]] = [{} for _ in layout.queues]
        """Running jobs by priority, for each queue."""
        self._aside: list[_Job] = []
        self._serial = 0
        self._now = 0.0

    def play(
        self, runs: FloatArray, waits: FloatArray, arrivals: Iterable[Arrival] = (), *, graces: FloatArray | None = None
    ) -> FloatArray:
        """Play until every waiting job has started; their starts in seconds, `inf` beyond the horizon.

        Args:
            runs: (R,) remaining seconds of the running jobs.
            waits: (P,) run times of the waiting jobs once they start.
            arrivals: jobs that come later, in order of time.
            graces: (P,) seconds from an eviction to the start of whoever needed it.
        """
        state = self.layout.state
        starts = np.full(len(state.waiting), np.inf)
        for i, running in enumerate(state.running):
            self._stand(running, float(runs[i]))
        open_jobs = 0
        for i, waiting in enumerate(state.waiting):
            # Those that wait now came before all that come later.
            open_jobs += self._arrive(waiting, rank=float(i - len(state.waiting)), run_s=float(waits[i]), number=i)
        coming = iter(arrivals)
        arrival = next(coming, None)
        rate = max(0.1, state.admissions_per_s)
        while open_jobs:
            admitted = 0
            while (found := self._next()) is not None:
                job, evicts = found
                start = self._now + admitted / rate
                admitted += 1
                if evicts and graces is not None and job.number >= 0:
                    start += float(graces[job.number])
                if job.number >= 0:
                    starts[job.number] = start
                    open_jobs -= 1
                self._run(job, start)
            next_s = min(self.ends[0][0] if self.ends else np.inf, arrival.at_s if arrival else np.inf)
            if not open_jobs or next_s > self.horizon_s:
                break
            # Everything within a hundredth of the time from now happens together.
            self._now = max(next_s, self._now) + max(_STEP_S, COARSE * next_s)
            while self.ends and self.ends[0][0] <= self._now:
                job = heapq.heappop(self.ends)[2]
                if not job.gone:
                    self._leave(job)
            while arrival is not None and arrival.at_s <= self._now:
                self._arrive(arrival.job, rank=arrival.at_s, run_s=arrival.run_s, number=-1)
                arrival = next(coming, None)
        return starts

    # Jobs come, run and go

    def _tick(self) -> int:
        self._serial += 1
        return self._serial

    def _arrive(self, waiting: WaitingJob, *, rank: float, run_s: float, number: int) -> bool:
        queue, w = self.layout.queue_of.get(waiting.queue, -1), waiting
        if queue < 0 or not self.layout.can_ever(queue, w.gpus, w.gpus_per_pod, w.pods):
            return False
        self._enqueue(_Job(queue, w.pods, w.gpus_per_pod, w.gpus, w.priority, rank, w.level, run_s, number))
        return True

    def _stand(self, running: RunningJob, run_s: float) -> None:
        layout = self.layout
        queue = layout.queue_of.get(running.queue, -1)
        job = _Job(queue, 1, running.gpus, running.gpus, running.priority, -1e18, "", run_s, -1)
        job.nodes = [(layout.node_of.get(name, -1), gpus) for name, gpus in running.nodes.items()]
        if queue >= 0:
            self._count(job)
        self._run(job, 0.0)
        job.started = -running.elapsed_s

    def _run(self, job: _Job, start_s: float) -> None:
        job.started, job.ends = start_s, start_s + job.run_s
        heapq.heappush(self.ends, (job.ends, self._tick(), job))

    def _count(self, job: _Job) -> None:
        self._use(job.queue, job.gpus)
        self.running[job.queue][id(job)] = job
        priorities = self.priorities[job.queue]
        priorities[job.priority] = priorities.get(job.priority, 0) + 1

    def _leave(self, job: _Job) -> None:
        job.gone = True
        self.places.give(job.nodes)
        if job.queue < 0:
            return
        self._use(job.queue, -job.gpus)
        del self.running[job.queue][id(job)]
        priorities = self.priorities[job.queue]
        priorities[job.priority] -= 1
        if not priorities[job.priority]:
            del priorities[job.priority]

    def _use(self, queue: int, gpus: int) -> None:
        keeps = self.layout.guaranteed[queue]
        before = max(0, self.used[queue] - keeps)
        self.used[queue] += gpus
        cohort = self.layout.cohort_of[queue]
        if cohort >= 0:
            self.lent[cohort] += max(0, self.used[queue] - keeps) - before

    def _enqueue(self, job: _Job) -> None:
        heap = self.shapes[job.queue].setdefault((job.per_pod, job.pods, job.level), [])
        heapq.heappush(heap, (-job.priority, job.rank, self._tick(), job))

    # Who is next

    def _available(self, queue: int) -> int:
        layout = self.layout
        q, used, cohort = layout.queues[queue], self.used[queue], layout.cohort_of[queue]
        if cohort < 0:
            return q.nominal - used
        available = max(0, layout.guaranteed[queue] - used) + layout.lendable[cohort] - self.lent[cohort]
        if q.borrow_limit is not None:
            available = min(available, q.nominal + q.borrow_limit - used)
        return available

    def _next(self) -> tuple[_Job, bool] | None:
        """The job that is admitted next, placed and counted, and whether it evicts somebody; None = nobody can be."""
        while any(self.shapes) and self._least() <= self.places.total:
            best: tuple[tuple[float, ...], int, _Shape] | None = None
            for queue, shapes in enumerate(self.shapes):
                found = self._candidate(queue) if shapes else None
                if found is None:
                    continue
                shape, (priority, rank, _, job) = found
                q = self.layout.queues[queue]
                borrows = self.used[queue] + job.gpus > q.nominal
                share = max(0, self.used[queue] - q.nominal) / max(1e-6, q.weight)
                order = (float(borrows), share, float(priority), rank)
                if best is None or order < best[0]:
                    best = (order, queue, shape)
            if best is None:
                break
            _, queue, shape = best
            job = self.shapes[queue][shape][0][3]
            nodes = self.places.take(job.per_pod, job.pods, job.level)
            if nodes is not None:
                self._pop(queue, shape)
                return self._start(job, nodes), False
            # The sum would do and no single domain does: it and its likes are left out until something changes.
            while shape in self.shapes[queue]:
                self._aside.append(self._pop(queue, shape))
        self._bring_back()
        job_or_none = self._preempt()
        return (job_or_none, True) if job_or_none is not None else None

    def _start(self, job: _Job, nodes: list[tuple[int, int]]) -> _Job:
        job.nodes = nodes
        self._count(job)
        self._bring_back()
        return job

    def _bring_back(self) -> None:
        for job in self._aside:
            self._enqueue(job)
        self._aside = []

    def _least(self) -> int:
        """GPUs of the smallest job that waits."""
        return min(shape[0] * shape[1] for shapes in self.shapes for shape in shapes)

    def _candidate(self, queue: int) -> tuple[_Shape, _Entry] | None:
        shapes = self.shapes[queue]
        available = self._available(queue)
        if self.layout.queues[queue].strict:
            shape, heap = min(shapes.items(), key=lambda item: item[1][0][:3])
            fits = shape[0] * shape[1] <= available and self.places.room(shape[0], shape[1])
            return (shape, heap[0]) if fits else None
        best: tuple[_Shape, _Entry] | None = None
        for shape, heap in shapes.items():
            entry = heap[0]
            if shape[0] * shape[1] > available or (best is not None and entry[:3] > best[1][:3]):
                continue
            if self.places.room(shape[0], shape[1]):
                best = (shape, entry)
        return best

    def _pop(self, queue: int, shape: _Shape) -> _Job:
        heap = self.shapes[queue][shape]
        job = heapq.heappop(heap)[3]
        if not heap:
            del self.shapes[queue][shape]
        return job

    # Preemption

    def _preempt(self) -> _Job | None:
        """A head that gets in by taking its queue's nominal quota back, or over lower ones of its own queue."""
        for queue, shapes in enumerate(self.shapes):
            q = self.layout.queues[queue]
            if not shapes or (q.reclaims == "Never" and not q.preempts_own):
                continue
            shape, heap = min(shapes.items(), key=lambda item: item[1][0][:3])
            job = heap[0][3]
            if not self._may_evict(queue, job):
                continue
            victims = self._victims(queue, job)
            if not victims:
                continue
            for victim in victims:
                self._leave(victim)
            nodes = self.places.take(job.per_pod, job.pods, job.level)
            if nodes is None:
                # The quota would do, the places do not: Kueue tries both, so nobody is evicted.
                for victim in victims:
                    self.places.hold(victim.nodes)
                    self._count(victim)
                    victim.gone = False
                continue
            self._pop(queue, shape)
            for v in victims:
                # It goes on later from its checkpoint, as if nothing were lost, in the place that its age gives it.
                rest = max(1.0, v.ends - self._now)
                self._enqueue(_Job(v.queue, v.pods, v.per_pod, v.gpus, v.priority, v.rank, v.level, rest, -1))
            return self._start(job, nodes)
        return None

    def _may_evict(self, queue: int, job: _Job) -> bool:
        """Whether anybody could be a victim at all: most looks end here."""
        q = self.layout.queues[queue]
        if q.preempts_own and min(self.priorities[queue], default=job.priority) < job.priority:
            return True
        return self._may_reclaim(queue, job) and any(
            self.used[other] > self.layout.queues[other].nominal
            for other in self.layout.members[self.layout.cohort_of[queue]]
            if other != queue
        )

    def _may_reclaim(self, queue: int, job: _Job) -> bool:
        q = self.layout.queues[queue]
        in_cohort = self.layout.cohort_of[queue] >= 0
        return q.reclaims != "Never" and in_cohort and self.used[queue] + job.gpus <= q.nominal

    def _victims(self, queue: int, job: _Job) -> list[_Job]:
        """Whom the job would evict; nobody where evictions do not help."""
        q, cohort = self.layout.queues[queue], self.layout.cohort_of[queue]
        candidates: list[_Job] = []
        if q.preempts_own:
            candidates += [v for v in self.running[queue].values() if v.priority < job.priority]
        if self._may_reclaim(queue, job):
            for other in self.layout.members[cohort]:
                if other != queue and self.used[other] > self.layout.queues[other].nominal:
                    candidates += [
                        v for v in self.running[other].values() if q.reclaims == "Any" or v.priority < job.priority
                    ]
        # Lowest priority first, then whoever started last, as Kueue orders its candidates.
        candidates.sort(key=lambda v: (v.priority, -v.started))
        over = [used - self.layout.queues[i].nominal for i, used in enumerate(self.used)]
        wanted = job.gpus - self._available(queue)
        chosen: list[_Job] = []
        extra: dict[int, int] = {}
        freed = 0
        for victim in candidates:
            if victim.queue != queue:
                if over[victim.queue] <= 0:
                    continue
                over[victim.queue] -= victim.gpus
            chosen.append(victim)
            freed += victim.gpus
            for node, gpus in victim.nodes:
                if node >= 0:
                    extra[node] = extra.get(node, 0) + gpus
            if freed >= wanted and self.places.would_hold(job.per_pod, job.pods, extra):
                return chosen
        return []
