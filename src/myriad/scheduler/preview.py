"""What a change of quotas would do to the jobs of now: who has to leave, who starts, who waits. Pure.

A model of one pass of Kueue over the waiting jobs, before and after the change, on GPUs alone. What Kueue does
(https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/): a job starts where its queue has quota or may borrow. Within
its own quota it takes back what others borrowed, the lowest priority and the youngest first, whatever its own priority;
in its own queue it preempts lower priorities. A quota that shrinks ends nobody by itself: its jobs run on as borrowers.
Where nodes would not suffice (topology) Kueue may take other victims than these; fair shares are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from myriad.scheduler.cache import Cache
from myriad.scheduler.model import is_gpu_resource, parse_quantity

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Quota:
    """GPUs of one ClusterQueue.

    Attributes:
        nominal: its own.
        borrow: most that it may borrow; None has no limit.
        lend: of its own, what others may use.
        root: the cohort at the top of its tree, empty for none: there it shares.
        within: whether a job may preempt lower priorities of the same queue.
    """

    queue: str
    nominal: int
    borrow: int | None = None
    lend: int = 0
    root: str = ""
    within: bool = True


@dataclass(frozen=True, slots=True)
class Job:
    """A job that holds quota, or waits for it.

    Attributes:
        since: when it got quota, or was submitted.
        uid: what tells it from another job of the same name (a Job and a PyTorchJob may share one).
    """

    job: str
    queue: str
    gpus: int
    priority: int = 0
    since: str = ""
    uid: str = ""

    @property
    def key(self) -> str:
        """Names this job and no other."""
        return self.uid or self.job


@dataclass(slots=True)
class Pass:
    """Result of one pass: jobs that start, victims and for whom they leave, and who waits with the reason."""

    starts: list[Job] = field(default_factory=list)
    victims: list[tuple[Job, Job]] = field(default_factory=list)
    waits: list[tuple[Job, str]] = field(default_factory=list)


class _Books:
    """Quotas, and who holds how much of them. Every question takes the same time, however many queues there are."""

    def __init__(self, quotas: Mapping[str, Quota], running: Iterable[Job]) -> None:
        self.quotas = quotas
        self.used = dict.fromkeys(quotas, 0)
        self.running: dict[str, dict[str, Job]] = {queue: {} for queue in quotas}
        """Jobs that hold quota, by queue and name."""
        self._trees: dict[str, list[str]] = defaultdict(list)
        self._lent: dict[str, int] = defaultdict(int)
        """What the queues of a tree lend."""
        self._shared: dict[str, int] = defaultdict(int)
        """Of that, what nobody uses; below 0 where more is in use than is lent."""
        for quota in quotas.values():
            self._trees[quota.root].append(quota.queue)
            self._lent[quota.root] += quota.lend
            self._shared[quota.root] += quota.lend
        for job in running:
            if job.queue in quotas:
                self.take(job)

    def free(self, queue: str) -> int:
        """GPUs that a queue could still take: the rest of what is its own, and what is lent and unused."""
        own = self.quotas[queue]
        if not own.root:
            return own.nominal - self.used[queue]
        free = max(0, own.nominal - own.lend - self.used[queue]) + max(0, self._shared[own.root])
        return free if own.borrow is None else min(free, own.nominal + own.borrow - self.used[queue])

    def most(self, queue: str) -> int:
        """GPUs that a job of a queue can ever get."""
        own = self.quotas[queue]
        lent = self._lent[own.root] - own.lend if own.root else 0
        return own.nominal + (lent if own.borrow is None else min(lent, own.borrow))

    def borrowers(self, queue: str) -> dict[str, int]:
        """Other queues of the same tree that hold more than their own, and how much more."""
        own = self.quotas[queue]
        if not own.root:
            return {}
        over = {name: self.used[name] - self.quotas[name].nominal for name in self._trees[own.root]}
        return {name: gpus for name, gpus in over.items() if gpus > 0 and name != queue}

    def take(self, job: Job) -> None:
        """A job gets quota."""
        self.running[job.queue][job.key] = job
        self._use(job.queue, job.gpus)

    def drop(self, job: Job) -> None:
        """A job gives its quota back."""
        del self.running[job.queue][job.key]
        self._use(job.queue, -job.gpus)

    def _use(self, queue: str, gpus: int) -> None:
        own, used = self.quotas[queue], self.used[queue]
        kept = own.nominal - own.lend
        self._shared[own.root] -= max(0, used + gpus - kept) - max(0, used - kept)
        self.used[queue] = used + gpus


def one_pass(quotas: Mapping[str, Quota], running: Sequence[Job], waiting: Sequence[Job]) -> Pass:
    """One pass over the waiting jobs in order of priority, then age."""
    books = _Books(quotas, running)
    result = Pass()
    for job in sorted(waiting, key=lambda j: (-j.priority, j.since, j.job)):
        if job.queue not in quotas:
            result.waits.append((job, f"queue {job.queue} is gone"))
            continue
        victims = [] if books.free(job.queue) >= job.gpus else _victims(books, job)
        if victims is None:
            result.waits.append((job, _why(books, job)))
            continue
        for victim in victims:
            books.drop(victim)
            result.victims.append((victim, job))
        books.take(job)
        result.starts.append(job)
    return result


def _victims(books: _Books, job: Job) -> list[Job] | None:
    """Who leaves so that a job fits; None where nobody's leaving would do."""
    own = books.quotas[job.queue]
    if job.gpus > books.most(job.queue):
        return None
    queues = list(books.borrowers(job.queue)) if books.used[job.queue] + job.gpus <= own.nominal else []
    candidates = [other for queue in queues for other in books.running[queue].values()]
    if own.within:
        candidates += [other for other in books.running[job.queue].values() if other.priority < job.priority]
    # Other queues first, then low priority, then the youngest.
    candidates.sort(key=lambda other: other.since, reverse=True)
    candidates.sort(key=lambda other: (other.queue == job.queue, other.priority))
    taken: list[Job] = []
    for other in candidates:
        if books.free(job.queue) >= job.gpus:
            break
        # A queue gives back what it borrowed, never its own.
        if other.queue != job.queue and books.used[other.queue] <= books.quotas[other.queue].nominal:
            continue
        books.drop(other)
        taken.append(other)
    enough = books.free(job.queue) >= job.gpus
    # Whoever need not go after all stays: Kueue looks back in the same way.
    victims = []
    for other in taken:
        books.take(other)
        if enough and books.free(job.queue) < job.gpus:
            books.drop(other)
            victims.append(other)
    for other in victims:
        books.take(other)
    return victims if enough else None


def _why(books: _Books, job: Job) -> str:
    most = books.most(job.queue)
    if job.gpus > most:
        return f"asks for {job.gpus} GPUs, and queue {job.queue} can get {most} at most: it never starts"
    return f"asks for {job.gpus} GPUs, {max(0, books.free(job.queue))} are free to queue {job.queue}"


def preview(
    before: Mapping[str, Quota], after: Mapping[str, Quota], running: Sequence[Job], waiting: Sequence[Job]
) -> Json:
    """What changes for queues and jobs, as a document."""
    old, new = one_pass(before, running, waiting), one_pass(after, running, waiting)
    held = _Books({name: replace(quota, root="") for name, quota in {**before, **after}.items()}, running).used
    empty = _Books(after, ())
    changed = []
    for name in sorted({*before, *after}):
        was, will = before.get(name), after.get(name)
        if was != will:
            changed.append(
                {
                    "queue": name,
                    "nominal": [was.nominal if was else None, will.nominal if will else None],
                    "borrow": [was.borrow if was else None, will.borrow if will else None],
                    "lend": [was.lend if was else None, will.lend if will else None],
                    "held": held.get(name, 0),
                    "above_quota": max(0, held.get(name, 0) - (will.nominal if will else 0)),
                }
            )
    gone = {victim.key: victim.job for victim, _ in old.victims}
    kept = gone.keys() - {victim.key for victim, _ in new.victims}
    started = {job.key for job in old.starts}
    waited = {job.key for job, _ in old.waits}
    return {
        "queues": changed,
        "preempted": [
            {"job": v.job, "queue": v.queue, "gpus": v.gpus, "priority": v.priority, "for": j.job, "for_queue": j.queue}
            for v, j in new.victims
            if v.key not in gone
        ],
        "spared": sorted(gone[key] for key in kept),
        "start": sorted(job.job for job in new.starts if job.key not in started),
        "wait": [
            {"job": job.job, "queue": job.queue, "gpus": job.gpus, "reason": reason}
            for job, reason in new.waits
            if job.key not in waited
        ],
        "still_wait": sum(1 for job, _ in new.waits if job.key in waited),
        "orphaned": sorted(job.job for job in running if job.queue in before and job.queue not in after),
        "not_again": sorted(job.job for job in running if job.queue in after and job.gpus > empty.most(job.queue)),
    }


def quotas_of(cluster_queues: Iterable[Json], cohorts: Iterable[Json]) -> dict[str, Quota]:
    """GPU quotas of ClusterQueues, live ones or rendered ones."""
    parents = {c["metadata"]["name"]: (c.get("spec") or {}).get("parentName") or "" for c in cohorts}
    found = {}
    for body in cluster_queues:
        spec = body.get("spec") or {}
        rows = [
            row
            for group in spec.get("resourceGroups") or []
            for flavor in group.get("flavors") or []
            for row in flavor.get("resources") or []
            if is_gpu_resource(row["name"])
        ]
        nominal = sum(_count(row.get("nominalQuota", 0)) for row in rows)
        limits = [row.get("borrowingLimit") for row in rows]
        name = body["metadata"]["name"]
        found[name] = Quota(
            queue=name,
            nominal=nominal,
            borrow=None if None in limits or not limits else sum(_count(limit) for limit in limits),
            lend=sum(_count(row.get("lendingLimit", row.get("nominalQuota", 0))) for row in rows),
            root=_root(spec.get("cohortName") or "", parents),
            within=(spec.get("preemption") or {}).get("withinClusterQueue", "Never") != "Never",
        )
    return found


def _root(cohort: str, parents: Mapping[str, str]) -> str:
    seen: set[str] = set()
    while parents.get(cohort) and cohort not in seen:
        seen.add(cohort)
        cohort = parents[cohort]
    return cohort


def _count(value: Any) -> int:
    return int(parse_quantity(value))


def jobs_of(cache: Cache) -> tuple[list[Job], list[Job]]:
    """Jobs that hold quota, and jobs that wait for it, in the cluster of now."""
    running, waiting = [], []
    for view in cache.views():
        name = f"{view.gang.namespace}/{view.gang.name}"
        queue = cache.cluster_queue_of(view)
        if view.quota_reserved and not view.finished:
            body = cache.objects["workloads"].get(view.key) or {}
            conditions = {c["type"]: c for c in (body.get("status") or {}).get("conditions") or []}
            since = str((conditions.get("QuotaReserved") or {}).get("lastTransitionTime") or view.created)
            running.append(Job(name, queue, view.gpus_held, view.gang.priority, since, view.key))
        elif view.waiting and view.gang.gpus:
            waiting.append(Job(name, queue, view.gang.gpus, view.gang.priority, view.created, view.key))
    return running, waiting


def sentences(report: Json) -> list[str]:
    """The document as people read it."""
    lines = []
    for queue in report["queues"]:
        was, will = queue["nominal"]
        if will is None:
            lines.append(f"{queue['queue']}: is taken away; {queue['held']} GPUs of it are in use")
            continue
        parts = []
        if was != will:
            parts.append(f"quota {'none' if was is None else was} -> {will} GPUs")
        for word in ("borrow", "lend"):
            if queue[word][0] != queue[word][1] and was is not None:
                parts.append(f"{word} {_limit(queue[word][0])} -> {_limit(queue[word][1])}")
        above = f", {queue['above_quota']} above the quota" if queue["above_quota"] else ""
        lines.append(f"{queue['queue']}: {', '.join(parts) or 'shares with others'}; {queue['held']} in use{above}")
    for victim in report["preempted"]:
        lines.append(
            f"{victim['job']} ({victim['gpus']} GPUs of {victim['queue']}) would be preempted for {victim['for']} "
            f"of {victim['for_queue']}"
        )
    lines += [f"{job} would no longer be preempted" for job in report["spared"]]
    lines += [f"{job} would start" for job in report["start"]]
    lines += [f"{waiter['job']} would wait: {waiter['reason']}" for waiter in report["wait"]]
    lines += [
        f"{job} runs in a queue that is taken away: the queue goes when it has ended" for job in report["orphaned"]
    ]
    lines += [
        f"{job} runs on, and would not be admitted again: it is larger than its queue" for job in report["not_again"]
    ]
    if not lines:
        return ["no queue changes, so nothing changes for any job"]
    if report["still_wait"]:
        lines.append(f"{report['still_wait']} more wait as before")
    return lines


def _limit(value: int | None) -> str:
    return "without limit" if value is None else str(value)
