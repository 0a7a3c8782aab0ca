"""A pool right after evictions: the victims wait again, and who made them leave holds what they held. Pure.

An estimate for a victim is wanted within the second in which it is evicted. Then its Workload may still hold quota, its
preemptor may not hold any yet, and the free GPUs that a snapshot shows are spoken for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from myriad.scheduler.eta.model import NodeState, PoolState, RunningJob, WaitingJob


@dataclass(frozen=True, slots=True)
class Departure:
    """One gang that was evicted.

    Attributes:
        job: as it waits from now on.
        place: its place in its queue, 0 = first.
        preemptor: who takes its GPUs, as it waited; None: nobody, or one that holds its own already.
    """

    job: WaitingJob
    place: int
    preemptor: WaitingJob | None = None


def after(state: PoolState, departures: Sequence[Departure]) -> PoolState:
    """The pool once the evicted have left and the preemptors stand where they stood."""
    running = {r.uid: r for r in state.running}
    freed: dict[str, dict[str, int]] = {}
    preemptors: dict[str, WaitingJob] = {}
    touched: set[str] = set()
    for departure in departures:
        victim = running.pop(departure.job.uid, None)
        touched |= set(victim.nodes if victim else ())
        preemptor = departure.preemptor
        if preemptor is None or preemptor.uid in running:
            continue
        preemptors[preemptor.uid] = preemptor
        places = freed.setdefault(preemptor.uid, {})
        for node, gpus in (victim.nodes if victim else {}).items():
            places[node] = places.get(node, 0) + gpus
    for uid, job in preemptors.items():
        running[uid] = RunningJob(
            uid=uid,
            queue=job.queue,
            kind=job.kind,
            gpus=job.gpus,
            elapsed_s=0.0,
            limit_s=job.limit_s,
            nodes=_taken(freed[uid], job.gpus),
            priority=job.priority,
        )
    used: dict[str, int] = {}
    for one in running.values():
        for node, gpus in one.nodes.items():
            used[node] = used.get(node, 0) + gpus
    return replace(
        state,
        running=tuple(running.values()),
        waiting=_queued([w for w in state.waiting if w.uid not in preemptors], departures),
        nodes=tuple(_node(n, used.get(n.name, 0)) if n.name in touched else n for n in state.nodes),
    )


def _taken(places: Mapping[str, int], gpus: int) -> dict[str, int]:
    """As many GPUs of these places as a gang takes, whole nodes first."""
    found: dict[str, int] = {}
    for node, held in sorted(places.items(), key=lambda item: (-item[1], item[0])):
        if gpus <= 0:
            break
        found[node] = min(held, gpus)
        gpus -= found[node]
    return found


def _queued(waiting: list[WaitingJob], departures: Sequence[Departure]) -> tuple[WaitingJob, ...]:
    """The queues with the evicted in their places; one that stands there already stays."""
    known = {w.uid for w in waiting}
    for departure in sorted(departures, key=lambda d: d.place):
        if departure.job.uid in known:
            continue
        mine = [i for i, w in enumerate(waiting) if w.queue == departure.job.queue]
        at = mine[departure.place] if departure.place < len(mine) else len(waiting)
        waiting.insert(at, departure.job)
    return tuple(waiting)


def _node(node: NodeState, used: int) -> NodeState:
    return replace(node, free=max(0, node.gpus - used))
