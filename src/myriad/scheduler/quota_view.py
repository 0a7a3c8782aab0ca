"""What each team has, uses, borrows, lends and has left in each pool, and which of it the hardware cannot honour. Pure.

Quota is a promise about GPUs that exist. Capacity is what nodes hold, withdrawn what their device plugins took back
(capacity - allocatable), out of work what stands on nodes that take none (closed gate, cordon, not ready); the rest is
what the promises can be kept with. Where the nominal quotas of a pool add up to more than that, somebody's guarantee is
broken: those who use less of theirs than they own bear it, because what runs is not taken away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from myriad.kube.kinds import CLUSTER_QUEUES, LOCAL_QUEUES, NODES, PODS, WORKLOADS
from myriad.scheduler.cache import Cache
from myriad.scheduler.eta.live import pool_of_queue, queue_state, stop_of
from myriad.scheduler.eta.model import QueueState
from myriad.scheduler.model import NodeInfo, gpus_words, is_gpu_resource, parse_quantity
from myriad.scheduler.objects import QUEUE_LABEL, TEAM_LABEL, WorkloadView, node_info
from myriad.scheduler.snapshot import EXPECTED_LABEL

Json = dict[str, Any]


@dataclass(slots=True)
class NodeGpus:
    """GPUs of one node, told apart.

    Attributes:
        expected: as the description says, None where it does not.
        capacity: what the kubelet was told of.
        allocatable: what it may give out; capacity - allocatable are unhealthy or withdrawn.
        requested: what bound pods hold, terminating ones too.
        dead: of these, on a node that is not ready: held by nobody who can use it.
        trouble: why the node takes no work, "" where it does.
    """

    node: str
    pool: str
    expected: int | None
    capacity: int
    allocatable: int
    requested: int
    dead: int
    trouble: str

    @property
    def withdrawn(self) -> int:
        """GPUs that the device plugin took back, and those that never showed up."""
        return max(0, max(self.capacity, self.expected or 0) - self.allocatable)

    @property
    def overcommitted(self) -> int:
        """GPUs that pods hold beyond what is allocatable: the node takes no pod until they end."""
        return max(0, self.requested - self.allocatable)

    @property
    def usable(self) -> int:
        """GPUs that a quota can be honoured with: allocatable on a node that takes work, or held by a running pod."""
        if self.trouble:
            return min(self.requested - self.dead, self.allocatable)
        return self.allocatable

    @property
    def free(self) -> int:
        """GPUs that a pod could get now; from allocatable, never from capacity."""
        return 0 if self.trouble else max(0, self.allocatable - self.requested)


def node_gpus(cache: Cache) -> list[NodeGpus]:
    """Every node that has, had or should have GPUs."""
    requested: dict[str, int] = defaultdict(int)
    for pod in cache.listing(PODS):
        use = cache.use(pod["metadata"]["uid"])
        if use is not None:
            requested[use.node] += sum(n for name, n in use.requests.items() if is_gpu_resource(name))
    found = []
    for body in cache.listing(NODES):
        info = node_info(body, cache.levels)
        status = body.get("status") or {}
        capacity = _gpus(status.get("capacity") or status.get("allocatable"))
        allocatable = _gpus(status.get("allocatable"))
        expected = info.labels.get(EXPECTED_LABEL, "")
        if not (capacity or allocatable or expected.isdigit()):
            continue
        held = requested[info.name]
        found.append(
            NodeGpus(
                info.name,
                info.pool,
                int(expected) if expected.isdigit() else None,
                capacity,
                allocatable,
                held,
                held if not info.ready else 0,
                _trouble(info),
            )
        )
    return sorted(found, key=lambda n: n.node)


def _gpus(amounts: Mapping[str, Any] | None) -> int:
    return sum(int(parse_quantity(v)) for name, v in (amounts or {}).items() if is_gpu_resource(name))


def _trouble(info: NodeInfo) -> str:
    if not info.ready:
        return "not ready"
    if info.gate_closed:
        return f"gate closed: {info.gate_reason}" if info.gate_reason else "gate closed"
    if info.cordoned:
        return f"cordoned by {info.cordoned_by}" if info.cordoned_by else "cordoned"
    return ""


@dataclass(slots=True)
class PoolCapacity:
    """A pool's GPUs in all, each number a sum over its nodes."""

    pool: str
    nodes: int = 0
    capacity: int = 0
    allocatable: int = 0
    withdrawn: int = 0
    out_of_work: int = 0
    requested: int = 0
    held_by_dead_nodes: int = 0
    overcommitted: int = 0
    usable: int = 0
    free: int = 0
    outside_queues: int = 0
    promised: int = 0
    troubles: list[Json] = field(default_factory=list)

    def as_dict(self) -> Json:
        """For `--json`."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"missing": self.missing}

    @property
    def missing(self) -> int:
        """Promised GPUs that are not there."""
        return max(0, self.promised - self.usable)


def pool_capacities(cache: Cache) -> dict[str, PoolCapacity]:
    """Pools with what their nodes hold; "" for GPU nodes without a pool."""
    pools: dict[str, PoolCapacity] = {}
    for node in node_gpus(cache):
        pool = pools.setdefault(node.pool, PoolCapacity(node.pool))
        pool.nodes += 1
        pool.capacity += max(node.capacity, node.expected or 0)
        pool.allocatable += node.allocatable
        pool.withdrawn += node.withdrawn
        pool.out_of_work += max(0, node.allocatable - node.usable) if node.trouble else 0
        pool.requested += node.requested
        pool.held_by_dead_nodes += node.dead
        pool.overcommitted += node.overcommitted
        pool.usable += node.usable
        pool.free += node.free
        if node.trouble or node.withdrawn or node.overcommitted:
            pool.troubles.append(
                {
                    "node": node.node,
                    "capacity": max(node.capacity, node.expected or 0),
                    "allocatable": node.allocatable,
                    "requested": node.requested,
                    "withdrawn": node.withdrawn,
                    "held_by_dead_node": node.dead,
                    "overcommitted": node.overcommitted,
                    "cause": _node_words(node),
                }
            )
    held = _held_by_pool(cache)
    for name, pool in pools.items():
        pool.outside_queues = max(0, pool.requested - held.get(name, 0))
    return pools


def _held_by_pool(cache: Cache) -> dict[str, int]:
    """GPUs of pods that belong to a Workload with quota, by pool."""
    found: dict[str, int] = defaultdict(int)
    for view in cache.views():
        if view.quota_reserved and not view.finished:
            found[view.gang.pool] += view.gpus_held
    return found


def _node_words(node: NodeGpus) -> str:
    words = [node.trouble] if node.trouble else []
    if node.withdrawn:
        words.append(f"{node.withdrawn} of {max(node.capacity, node.expected or 0)} GPUs withdrawn or missing")
    if node.dead:
        words.append(f"{gpus_words(node.dead)} held by pods of a dead node")
    if node.overcommitted:
        words.append(
            f"{gpus_words(node.overcommitted)} more are held than are allocatable, so it takes no pod until they end"
        )
    return "; ".join(words)


@dataclass(frozen=True, slots=True)
class Balance:
    """GPU-hours of a team in a pool, from the ledger. `period_end` is a date."""

    budget_h: float
    used_h: float
    left_h: float
    period_end: str


def quota_report(
    cache: Cache,
    team: str = "",
    *,
    now: datetime | None = None,
    balances: Mapping[tuple[str, str], Balance] | None = None,
    missing: Iterable[str] = (),
) -> Json:
    """Quota by team and pool, and the pools' capacity.

    Args:
        cache: the cluster, or what the caller may read of it.
        team: only this one.
        now: the time.
        balances: GPU-hours by (team, pool), where the ledger is at hand.
        missing: kinds that the caller may not read: numbers that need them are None.
    """
    now = now or datetime.now(UTC)
    unseen = set(missing)
    pools = {} if NODES.plural in unseen else pool_capacities(cache)
    queues = [(body, queue_state(cache, body)) for body in cache.listing(CLUSTER_QUEUES)]
    by_pool: dict[str, list[QueueState]] = defaultdict(list)
    for body, state in queues:
        by_pool[pool_of_queue(body)].append(state)
    used = cache.gpus_held()
    for name, states in by_pool.items():
        if name in pools:
            pools[name].promised = sum(s.nominal for s in states)
    broken = broken_guarantees(by_pool, used, {name: p.missing for name, p in pools.items()})
    lent = lent_by(by_pool, used)
    rows = []
    for body, state in sorted(queues, key=lambda x: str(x[0]["metadata"]["name"])):
        labels = body["metadata"].get("labels") or {}
        pool, owner = pool_of_queue(body), labels.get(TEAM_LABEL, "")
        if team and owner != team:
            continue
        mine = used.get(state.name, 0)
        left = left_of(state, by_pool[pool], used)
        row: Json = {
            "team": owner,
            "pool": pool,
            "cluster_queue": state.name,
            "cohort": body["spec"].get("cohortName") or "",
            "total_gpus": state.nominal,
            "used_gpus": mine,
            "borrowed_gpus": max(0, mine - state.nominal),
            "lent_gpus": lent.get(state.name, 0),
            "left_gpus": left,
            "may_borrow_gpus": max(0, left - max(0, state.nominal - mine)),
            "borrow_limit_gpus": state.borrow_limit,
            "lend_limit_gpus": state.lend_limit,
            "weight": state.weight,
            "waiting_gpus": sum(v.gang.gpus for v in cache.waiting().get(state.name, [])),
            "waiting_jobs": len(cache.waiting().get(state.name, [])),
            "not_honoured_gpus": broken.get(state.name, 0) if pools else None,
            "free_now_gpus": min(left, pools[pool].free) if pool in pools else None,
            "stopped": stop_of(body),
        }
        balance = (balances or {}).get((owner, pool))
        if balance is not None:
            row["gpu_hours"] = {
                "budget": round(balance.budget_h, 1),
                "used": round(balance.used_h, 1),
                "left": round(balance.left_h, 1),
                "until": balance.period_end,
            }
        row["notes"] = _notes(row, pools.get(pool))
        rows.append(row)
    shown = {row["pool"] for row in rows}
    return {
        "quotas": rows,
        "pools": [p.as_dict() for name, p in sorted(pools.items()) if not team or name in shown],
        "elsewhere": wrong_queues(cache, team),
        "not_readable": sorted(unseen),
    }


def _notes(row: Json, pool: PoolCapacity | None) -> list[str]:
    notes = []
    if row["stopped"]:
        notes.append(row["stopped"])
    if row["not_honoured_gpus"]:
        notes.append(
            f"{row['not_honoured_gpus']} of its {row['total_gpus']} GPUs cannot be honoured now: pool {row['pool']} "
            f"promises {pool.promised if pool else 0} and {pool.usable if pool else 0} work"
        )
    if pool is not None and row["left_gpus"] > pool.free and not row["not_honoured_gpus"]:
        notes.append(f"quota leaves {row['left_gpus']}, but only {gpus_words(pool.free)} of the pool are free")
    return notes


def _available(state: QueueState, peers: Sequence[QueueState], used: Mapping[str, int]) -> int:
    """GPUs that Kueue would still give a queue: its own unused, and what its cohort lends within its limit."""
    mine = used.get(state.name, 0)
    if not state.cohort:
        return state.nominal - mine
    kept, shared, lent = _kept(state), 0, 0
    for peer in peers:
        if peer.cohort == state.cohort:
            shared += peer.nominal - _kept(peer)
            lent += max(0, used.get(peer.name, 0) - _kept(peer))
    available = max(0, kept - mine) + shared - lent
    if state.borrow_limit is not None:
        available = min(available, state.nominal + state.borrow_limit - mine)
    return available


def _kept(state: QueueState) -> int:
    """What a queue never lends."""
    return 0 if state.lend_limit is None else max(0, state.nominal - state.lend_limit)


def left_of(state: QueueState, peers: Sequence[QueueState], used: Mapping[str, int]) -> int:
    """GPUs that a team can still get without taking anything back from anybody."""
    return max(0, _available(state, peers, used))


def lent_by(by_pool: Mapping[str, Sequence[QueueState]], used: Mapping[str, int]) -> dict[str, int]:
    """GPUs of each queue's nominal quota that others of its cohort use now.

    What is borrowed comes out of what its lenders leave unused, in proportion to what each has to lend; Kueue itself
    keeps no account of who lent to whom. Whole GPUs, the largest remainders first.
    """
    found: dict[str, int] = {}
    for states in by_pool.values():
        for cohort in {s.cohort for s in states if s.cohort}:
            members = [s for s in states if s.cohort == cohort]
            borrowed = sum(max(0, used.get(s.name, 0) - s.nominal) for s in members)
            idle = {s.name: max(0, s.nominal - max(used.get(s.name, 0), _kept(s))) for s in members}
            found |= share_out(min(borrowed, sum(idle.values())), idle)
    return found


def broken_guarantees(
    by_pool: Mapping[str, Sequence[QueueState]], used: Mapping[str, int], missing: Mapping[str, int]
) -> dict[str, int]:
    """GPUs of each queue's nominal quota that cannot be honoured, where a pool misses some of what it promises.

    What is in use within nominal quota stays in use; the unused part of the promises bears the loss, in proportion.
    Only what even that does not cover falls on the used part.
    """
    found: dict[str, int] = {}
    for pool, states in by_pool.items():
        lost = missing.get(pool, 0)
        if not lost:
            continue
        unused = {s.name: max(0, s.nominal - used.get(s.name, 0)) for s in states}
        first = share_out(min(lost, sum(unused.values())), unused)
        rest = lost - sum(first.values())
        used_part = {s.name: min(s.nominal, used.get(s.name, 0)) for s in states}
        second = share_out(min(rest, sum(used_part.values())), used_part)
        for s in states:
            found[s.name] = first.get(s.name, 0) + second.get(s.name, 0)
    return found


def share_out(amount: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Whole parts of an amount in proportion to weights, none above its weight; they add up to the amount."""
    total = sum(weights.values())
    if amount <= 0 or total <= 0:
        return dict.fromkeys(weights, 0)
    exact = {name: amount * w / total for name, w in weights.items()}
    parts = {name: int(x) for name, x in exact.items()}
    rest = amount - sum(parts.values())
    for name in sorted(exact, key=lambda n: (parts[n] - exact[n], n)):
        if rest and parts[name] < weights[name]:
            parts[name] += 1
            rest -= 1
    return parts


def wrong_queues(cache: Cache, team: str = "") -> list[Json]:
    """Jobs that are not in the queue that their owner asked for (trainer#2325), or in one that does not exist."""
    found = []
    known = {f"{q['metadata']['namespace']}/{q['metadata']['name']}" for q in cache.listing(LOCAL_QUEUES)}
    for view in cache.views():
        if view.finished or (team and view.gang.team != team):
            continue
        asked, real = asked_queue(cache, view), view.local_queue
        if asked and asked != real:
            words = f"asks for queue {asked}, and stands in {real or 'none'}"
        elif real and known and f"{view.gang.namespace}/{real}" not in known:
            words = f"names queue {real}, which namespace {view.gang.namespace} does not have"
        else:
            continue
        found.append({"namespace": view.gang.namespace, "job": view.gang.name, "asked": asked, "cause": words})
    return found


def asked_queue(cache: Cache, view: WorkloadView) -> str:
    """The queue that the Workload's labels or its pods' templates ask for; empty where they say nothing."""
    body = cache.object(WORKLOADS, view.key) or {}
    label = (body.get("metadata") or {}).get("labels") or {}
    if label.get(QUEUE_LABEL):
        return str(label[QUEUE_LABEL])
    for podset in (body.get("spec") or {}).get("podSets") or []:
        labels = ((podset.get("template") or {}).get("metadata") or {}).get("labels") or {}
        if labels.get(QUEUE_LABEL):
            return str(labels[QUEUE_LABEL])
    return ""
