"""What will become of a job if it is submitted now: fits, waits, or never; in one sentence with numbers. Pure.

The job is read as Kueue will read it and put to the same planner and the same quota view that `myriad why` asks, so
that the answer before is the answer afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from myriad.kube.kinds import CLUSTER_QUEUES, LOCAL_QUEUES, NAMESPACES, NODES
from myriad.lint.rules_leaving import CHECKPOINT_INTERVAL, MAX_EXEC_TIME, seconds_of
from myriad.lint.works import MIN_PARALLELISM, Work
from myriad.scheduler.cache import Cache
from myriad.scheduler.facts import QuotaView
from myriad.scheduler.inquiry import PLACEMENT, QUOTA, gpu_amounts, outcome_of, quota_view
from myriad.scheduler.ledger.limits import judge_limit
from myriad.scheduler.model import POOL_LABEL, Gang, Plan, Refusal, gpus_words, is_gpu_resource, parse_quantity, place
from myriad.scheduler.objects import TEAM_LABEL, WorkloadView, workload_view
from myriad.scheduler.placement import fits_ever, gpu_name_of, plan_elastic
from myriad.scheduler.policy import PoolPolicy
from myriad.scheduler.words import duration, ordinal

Json = dict[str, Any]

PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
_TOPOLOGY = {
    "kueue.x-k8s.io/podset-required-topology": "required",
    "kueue.x-k8s.io/podset-preferred-topology": "preferred",
}
_TIERS = {"node": "one node", "cluster": "spread over the cluster"}


@dataclass(frozen=True, slots=True)
class Balance:
    """GPU-hours that a team has left in a pool.

    Attributes:
        left: hours, 0 or less when the budget is used up.
        period: day, week, month, quarter or year.
        until: when the next period begins, as people read it.
    """

    left: Decimal
    period: str
    until: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What will become of a job.

    Attributes:
        state: `fits` starts at once, `waits` in the queue, `refused` can never run or is not allowed, `unknown` could
            not be judged with these credentials.
        sentence: why, in one sentence, without the job's name.
        notes: what else its owner should know.
        numbers: the figures in it.
    """

    state: Literal["fits", "waits", "refused", "unknown"]
    sentence: str
    notes: tuple[str, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)


def workload_of(work: Work, *, priority: int = 0) -> Json:
    """The Workload that Kueue will make of a job, as far as the planner reads it."""
    podsets: list[Json] = []
    for pods in work.pods:
        request: Json = {mode: pods.annotations[key] for key, mode in _TOPOLOGY.items() if key in pods.annotations}
        podset: Json = {"name": pods.name.lower() or "main", "count": pods.count, "template": {"spec": pods.spec}}
        if request:
            podset["topologyRequest"] = request
        minimum = work.thing.annotations.get(MIN_PARALLELISM)
        if work.kind == "Job" and isinstance(minimum, str) and minimum.isdigit():
            podset["minCount"] = int(minimum)
        podsets.append(podset)
    return {
        "metadata": {
            "name": f"submit-{work.thing.name}",
            "namespace": work.thing.namespace,
            "ownerReferences": [
                {
                    "apiVersion": "v1", "kind": work.thing.kind, "name": work.thing.name, "uid": "", "controller": True,
                }
            ],
        },
        "spec": {"podSets": podsets, "queueName": work.queue, "priority": priority},
        "status": {},
    }  # fmt: skip


def judge(
    cache: Cache, work: Work, *, missing: Collection[str] = (), balance: Balance | None = None, now: datetime
) -> Verdict:
    """What will become of a job.

    Args:
        cache: the cluster as it is now.
        work: the job; rules of lint have found no error in it.
        missing: kinds that could not be read.
        balance: GPU-hours left, None where nothing is known of a budget.
        now: for ages.
    """
    local = cache.object(LOCAL_QUEUES, f"{work.thing.namespace}/{work.queue}")
    queue = cache.object(CLUSTER_QUEUES, str(local["spec"].get("clusterQueue") or "")) if local else None
    if queue is None:
        lacking = ", ".join(sorted({LOCAL_QUEUES.plural, CLUSTER_QUEUES.plural} & set(missing)))
        if lacking:
            return Verdict(
                "unknown", f"these credentials may not read {lacking}, so quota and place were not looked at"
            )
        return Verdict("refused", f"queue {work.queue or '(none)'} of namespace {work.thing.namespace} leads nowhere")
    labels = queue["metadata"].get("labels") or {}
    pool, team = (
        str(labels.get(POOL_LABEL) or ""),
        _team(cache, work.thing.namespace) or str(labels.get(TEAM_LABEL) or ""),
    )
    policy = cache.policy()
    priority = policy.priorities.get(str(work.thing.labels.get(PRIORITY_LABEL) or ""), 0)
    view = workload_view(workload_of(work, priority=priority), check_name=cache.check_name, pool=pool, team=team)
    snapshot = cache.snapshot()
    name = gpu_name_of(snapshot, view.gang)
    rules = policy.pools.get(pool)
    refused, notes = _allowed(work, view.gang, rules, policy.preemption.checkpoint_max_age_s)
    cost, cost_text, cost_note = _cost(work, view.gang, rules, balance)
    numbers: dict[str, Any] = {"gpus": view.gang.gpus, "pods": view.gang.pods, "gpu_hours": cost}
    notes = [*notes, *([cost_note] if cost_note else [])]
    if refused:
        return Verdict("refused", refused, tuple(notes), numbers)
    quota = quota_view(cache, view, now=now)
    if quota is not None and QUOTA in missing:
        quota = by_status(cache, queue, quota)
    impossible = _quota_never(quota, view.gang, name)
    if impossible:
        return Verdict("refused", impossible, tuple(notes), numbers)
    outcome: Plan | Refusal | None = None
    if NODES.plural not in missing:
        outcome = fits_ever(snapshot, view.gang) if PLACEMENT in missing else outcome_of(snapshot, view.gang)
    if isinstance(outcome, Refusal) and outcome.kind == "never":
        return Verdict("refused", outcome.sentence, (*notes, *outcome.unblocks), {**numbers, **outcome.numbers})
    if isinstance(outcome, Refusal) and any(p.min_count for p in view.gang.podsets):
        smaller = plan_elastic(snapshot, view.gang)
        outcome = smaller if smaller is not None else outcome
    waits = _waits(cache, view, quota, name)
    if balance is not None and balance.left <= 0:
        until = f" until {balance.until}" if balance.until else ""
        waits = f"the GPU-hours of {team} in {pool} for this {balance.period} are used up: it is held{until}"
    if not waits and isinstance(outcome, Refusal):
        waits = outcome.sentence
    if waits:
        return Verdict("waits", f"{waits}{cost_text}", tuple(notes), numbers)
    if outcome is None:
        unseen = "nodes" if NODES.plural in missing else "other teams' pods, and the extension does not answer"
        notes.append(f"these credentials may not read {unseen}: where it fits was not looked at")
        return Verdict("fits", f"its quota is free. {_size(view.gang, name)}{cost_text}", tuple(notes), numbers)
    return Verdict("fits", f"fits now. {_placed(outcome, view.gang, name)}{cost_text}", tuple(notes), numbers)


def by_status(cache: Cache, queue: Json, quota: QuotaView) -> QuotaView:
    """The quota by what Kueue wrote into the ClusterQueues' status: for those who do not see other teams' Workloads."""
    used = _reserved(queue)
    cohort, pool = queue["spec"].get("cohortName") or "", (queue["metadata"].get("labels") or {}).get(POOL_LABEL)
    free = 0
    for other in cache.listing(CLUSTER_QUEUES) if cohort else ():
        labels = other["metadata"].get("labels") or {}
        same = other["spec"].get("cohortName") == cohort and labels.get(POOL_LABEL) == pool
        if same and other["metadata"]["name"] != queue["metadata"]["name"]:
            amounts = gpu_amounts(cache, other)
            unused = amounts["nominal"] - _reserved(other)
            free += min(unused, amounts["lend_limit"]) if amounts["lend_limit"] >= 0 else unused
    return replace(quota, used=used, borrowed=max(0, used - quota.nominal), cohort_free=max(0, free))


def _reserved(queue: Json) -> int:
    """GPUs that a ClusterQueue has given out, by its status."""
    return sum(
        int(parse_quantity(resource.get("total") or 0))
        for flavor in (queue.get("status") or {}).get("flavorsReservation") or []
        for resource in flavor.get("resources") or []
        if is_gpu_resource(resource.get("name") or "")
    )


def _team(cache: Cache, namespace: str) -> str:
    body = cache.object(NAMESPACES, namespace) or {}
    return str(((body.get("metadata") or {}).get("labels") or {}).get(TEAM_LABEL) or "")


def _allowed(work: Work, gang: Gang, rules: PoolPolicy | None, max_age_s: int) -> tuple[str, list[str]]:
    """Why the site's rules refuse it ("" where they do not), and what they add."""
    notes = []
    limit = _limit_hours(work)
    if (
        rules is not None
        and rules.max_hours is not None
        and limit is not None
        and limit > Decimal(str(rules.max_hours))
    ):
        return f"its time limit of {limit:g} h is above the {rules.max_hours:g} h that pool {gang.pool} allows", []
    if rules is not None and limit is None:
        # What becomes of it then is the ledger's to say, which also ends it.
        given = judge_limit(None, gang.pool, rules)
        if given.refused:
            return given.sentence, []
        if given.sentence:
            notes.append(given.sentence)
    interval = seconds_of(work.thing.annotations.get(CHECKPOINT_INTERVAL, ""))
    if interval and interval > max_age_s:
        notes.append(
            f"it saves every {duration(interval)}, and the policy wants a checkpoint within {duration(max_age_s)}: "
            "more is lost when it is evicted"
        )
    return "", notes


def _limit_hours(work: Work) -> Decimal | None:
    text = str(work.thing.labels.get(MAX_EXEC_TIME) or "")
    return Decimal(text) / 3600 if text.isascii() and text.isdigit() and int(text) else None


def _cost(work: Work, gang: Gang, rules: PoolPolicy | None, balance: Balance | None) -> tuple[float | None, str, str]:
    """GPU-hours at most, as a number and as the end of a sentence; and a warning where the budget does not reach."""
    limit = _limit_hours(work)
    if limit is None and rules is not None:
        given = judge_limit(None, gang.pool, rules).seconds
        limit = None if given is None else Decimal(given) / 3600
    if limit is None:
        left = f", {hours(balance.left)} GPU-hours left this {balance.period}" if balance is not None else ""
        return None, f", no time limit{left}.", ""
    cost = limit * gang.gpus
    if balance is None:
        return float(cost), f", {hours(cost)} GPU-hours at most.", ""
    note = ""
    if 0 < balance.left < cost:
        note = (
            f"it may need {hours(cost)} GPU-hours and only {hours(balance.left)} are left this {balance.period}: when "
            "they are used up, the queue is held"
        )
    return float(cost), f", {hours(cost)} GPU-hours of {hours(balance.left)} left this {balance.period}.", note


def hours(amount: Decimal) -> str:
    """`96`, `4,210`, `0.5`."""
    rounded = amount.quantize(Decimal("0.1"))
    return f"{int(rounded):,}" if rounded == int(rounded) else f"{rounded:,}"


def _quota_never(quota: QuotaView | None, gang: Gang, name: str) -> str:
    least = sum(p.gpus_per_pod * (p.min_count or p.count) for p in gang.podsets)
    if quota is None or quota.most is None or least <= quota.most:
        return ""
    borrowed = f" and may borrow {quota.borrow_limit}" if quota.borrow_limit else " and borrows nothing"
    return (
        f"needs {gpus_words(least, name)}{' at least' if least < gang.gpus else ''}, and {quota.team} has "
        f"{quota.nominal}{borrowed}: it would wait for ever"
    )


def _waits(cache: Cache, view: WorkloadView, quota: QuotaView | None, name: str) -> str:
    """Why it does not start at once as far as quota goes; "" where it does."""
    if quota is None:
        return ""
    if quota.stopped:
        return f"waits: {quota.stopped}"
    ahead = [v for v in cache.waiting().get(_cluster_queue(cache, view), ()) if v.gang.priority >= view.gang.priority]
    least = sum(p.gpus_per_pod * (p.min_count or p.count) for p in view.gang.podsets)
    position = f"; {ordinal(len(ahead) + 1)} in the queue" if ahead else ""
    if least > quota.left:
        borrowed = f" ({quota.borrowed} of them borrowed)" if quota.borrowed else ""
        share = quota.borrow_limit is None or quota.borrow_limit > 0
        lend = f"; {quota.cohort_free} to borrow now" if share else ""
        return (
            f"waits for quota: needs {gpus_words(least, name)}, {quota.team} has {quota.nominal}, {quota.used} in "
            f"use{borrowed}{lend}{position}"
        )
    return f"waits: {len(ahead)} of the same or a higher priority ahead{position}" if ahead else ""


def _cluster_queue(cache: Cache, view: WorkloadView) -> str:
    return cache.cluster_queue_of(view)


def _size(gang: Gang, name: str) -> str:
    """`2 x 8 H100`, shapes joined by +."""
    shapes: dict[int, int] = {}
    for podset in gang.podsets:
        if podset.gpus_per_pod:
            shapes[podset.gpus_per_pod] = shapes.get(podset.gpus_per_pod, 0) + podset.count
    if not shapes:
        return f"{gang.pods} pods without GPUs"
    return " + ".join(f"{count} x {each}" for each, count in shapes.items()) + f" {name}"


def _placed(plan: Plan | Refusal | None, gang: Gang, name: str) -> str:
    if not isinstance(plan, Plan):
        return _size(gang, name)
    pods = sum(plan.nodes.values())
    part = f" ({pods} of {gang.pods} pods)" if pods < gang.pods else ""
    return f"{_size(gang, name)}{part} in {place(plan.domain)} ({_TIERS.get(plan.tier, f'same {plan.tier}')})"
