"""Holds what has no GPU-hours left, lets it go when the next period begins, and says before that it will.

Where the ledger cannot be read nothing is held and nothing is let go: a database that is away must neither stop teams
nor give them more than they have.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import CLUSTER_QUEUES, LOCAL_QUEUES, WORKLOADS, Resource
from myriad.scheduler.cache import Cache, key_of
from myriad.scheduler.ledger import budgets, facts, holds
from myriad.scheduler.ledger.book import Ledger
from myriad.scheduler.ledger.budgets import Balance
from myriad.scheduler.ledger.holds import Hold
from myriad.scheduler.ledger.limits import Limit, hours_words, judge_limit
from myriad.scheduler.ledger.periods import moment
from myriad.scheduler.model import POOL_LABEL, is_gpu_resource
from myriad.scheduler.objects import TEAM_LABEL, WorkloadView

log = logging.getLogger("myriad.ledger")

Json = dict[str, Any]


class Keeper:
    """An observer.

    Args:
        api: writes holds and Events.
        cache: the cluster.
        ledger: balances.
        clock: monotonic seconds.
    """

    name = "budgets"
    interval_s = 10.0

    def __init__(self, *, api: Api, cache: Cache, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._cache = cache
        self._ledger = ledger
        self._clock = clock
        self._last = float("-inf")
        self._told: dict[str, set[str]] = {}

    def step(self) -> None:
        """Look at every budget and limit; at most once in `interval_s`."""
        # Called at each change of the cache; sums do not move that fast.
        if self._clock() - self._last < self.interval_s:
            return
        self._last = self._clock()
        limits = self._limits()
        balances = {(b.line.team, b.line.pool, b.line.project): b for b in self._ledger.balances()}
        for queue in self._cache.listing(LOCAL_QUEUES):
            self._keep_queue(queue, balances.get((*self._place(queue), "")))
        for view, limit in limits:
            self._keep_workload(view, limit, balances)

    # Queues

    def _place(self, queue: Json) -> tuple[str, str]:
        """Team and pool of a LocalQueue: those of its ClusterQueue."""
        parent = self._cache.object(CLUSTER_QUEUES, str(queue["spec"].get("clusterQueue") or ""))
        labels = (parent or {}).get("metadata", {}).get("labels") or {}
        return str(labels.get(TEAM_LABEL) or ""), str(labels.get(POOL_LABEL) or "")

    def _keep_queue(self, queue: Json, balance: Balance | None) -> None:
        wanted = None
        if balance is not None and balance.used_up:
            wanted = Hold(
                "budget",
                budgets.used_up_sentence(balance, self._ledger.tz),
                moment(balance.period.end, self._ledger.tz),
                "HoldAndDrain" if balance.line.leave else "Hold",
            )
        change = holds.queue_change(queue, wanted)
        if change is not None and self._send(LOCAL_QUEUES, queue, change):
            name = key_of(queue)
            if wanted is not None:
                log.info("LocalQueue %s is held: %s", name, wanted.reason)
                self._event(queue, LOCAL_QUEUES, "MyriadBudgetUsedUp", wanted.reason, warning=True)
            elif "spec" in change:
                log.info("LocalQueue %s takes jobs again", name)
                self._event(queue, LOCAL_QUEUES, "MyriadBudgetRenewed", "its budget has GPU-hours left again")
        elif balance is not None and balance.short:
            self._warn(queue, balance)

    def _warn(self, queue: Json, balance: Balance) -> None:
        """Once a period, also over restarts: what was said is written on the queue."""
        if (queue["metadata"].get("annotations") or {}).get(holds.TOLD) == balance.period.name:
            return
        metadata = {
            "resourceVersion": queue["metadata"].get("resourceVersion"),
            "annotations": {holds.TOLD: balance.period.name},
        }
        if self._send(LOCAL_QUEUES, queue, {"metadata": metadata}):
            self._event(queue, LOCAL_QUEUES, "MyriadBudgetShort", budgets.short_sentence(balance), warning=True)

    # Jobs

    def _limits(self) -> list[tuple[WorkloadView, Limit]]:
        """Workloads that ask for GPUs and are not over, each with the verdict on its limit."""
        policy = self._cache.policy()
        found = []
        for view in self._cache.views():
            if view.finished or view.deleting or not view.gang.gpus:
                continue
            body = self._cache.object(WORKLOADS, view.key)
            asked = ((body or {}).get("spec") or {}).get("maximumExecutionTimeSeconds")
            pool = view.gang.pool
            found.append((view, judge_limit(int(asked) if asked else None, pool, policy.pool(pool))))
        gone = self._told.keys() - {view.gang.uid for view, _ in found}
        for uid in gone:
            del self._told[uid]
        return found

    def _keep_workload(self, view: WorkloadView, limit: Limit, balances: dict[tuple[str, str, str], Balance]) -> None:
        workload = self._cache.object(WORKLOADS, view.key)
        if workload is None:
            return
        team, pool = view.gang.team, view.gang.pool
        project = facts.named(workload, facts.PROJECT_LABEL)
        of_project = balances.get((team, pool, project)) if project else None
        wanted = self._wanted(view, workload, limit, of_project)
        change = holds.workload_change(workload, wanted)
        if change is not None:
            if self._send(WORKLOADS, workload, change) and wanted is not None and "spec" in change:
                self._tell(view, workload, wanted.by, wanted.reason, warning=True)
            return
        if not view.waiting:
            return
        if limit.sentence:
            self._tell(view, workload, "limit", limit.sentence, warning=limit.refused)
        for balance in (of_project, balances.get((team, pool, ""))):
            if balance is not None:
                text = budgets.overrun_sentence(_cards(view), limit.seconds, balance)
                if text:
                    self._tell(view, workload, f"overrun {balance.line.project}", text, warning=True)

    def _wanted(self, view: WorkloadView, workload: Json, limit: Limit, project: Balance | None) -> Hold | None:
        """How a Workload should be held; one that runs only where its time or its project's policy says so."""
        runs = view.quota_reserved
        over = self._over(view, workload, limit)
        if over:
            return Hold("time", over)
        if limit.refused and not runs:
            return Hold("limit", limit.sentence)
        if project is not None and project.used_up and (not runs or project.line.leave):
            return Hold(
                "project-budget",
                budgets.used_up_sentence(project, self._ledger.tz),
                moment(project.period.end, self._ledger.tz),
            )
        ours = holds.hold_of(workload)
        # A job whose time is over has had it: nothing starts it again by itself.
        return ours if ours is not None and ours.by == "time" else None

    def _over(self, view: WorkloadView, workload: Json, limit: Limit) -> str:
        """That a job's time is over, where Kueue does not end it itself; empty where it is not."""
        if not (view.admitted and limit.by_us and limit.seconds and not view.evicted):
            return ""
        conditions = (workload.get("status") or {}).get("conditions") or []
        admitted: Json = next((c for c in conditions if c.get("type") == "Admitted"), {})
        since = facts.seconds(admitted.get("lastTransitionTime"))
        if since is None or self._ledger.now() - since < limit.seconds:
            return ""
        whose = "the default" if limit.basis == "default" else "the maximum"
        return f"it has run for {hours_words(limit.seconds)}, {whose} of pool {view.gang.pool}"

    # Writing

    def _send(self, resource: Resource, obj: Json, change: Json) -> bool:
        metadata = obj["metadata"]
        try:
            self._api.patch(resource, metadata["name"], change, namespace=metadata.get("namespace"))
        except ApiError as error:
            # Somebody else was faster, or it is gone: the next step sees what it is now.
            if not (error.is_conflict or error.is_not_found):
                log.warning("%s %s: %s", resource.kind, key_of(obj), error)
            return False
        return True

    def _tell(self, view: WorkloadView, workload: Json, what: str, sentence: str, *, warning: bool) -> None:
        """An Event on the Workload and on its job, once for each sentence's subject."""
        told = self._told.setdefault(view.gang.uid, set())
        if what in told:
            return
        told.add(what)
        reason = "MyriadTimeLimit" if what in ("limit", "time") else "MyriadBudget"
        for about in _people_look_at(view, workload):
            self._event(about, None, reason, sentence, warning=warning)

    def _event(
        self, about: Json, resource: Resource | None, reason: str, sentence: str, *, warning: bool = False
    ) -> None:
        body = about if resource is None else {**about, "apiVersion": resource.api_version, "kind": resource.kind}
        try:
            self._api.create_event(body, reason=reason, message=sentence, type_="Warning" if warning else "Normal")
        except MyriadError as error:
            log.info("no event on %s: %s", key_of(about), error)


def _people_look_at(view: WorkloadView, workload: Json) -> Iterable[Json]:
    yield {**workload, "apiVersion": WORKLOADS.api_version, "kind": WORKLOADS.kind}
    if view.job:
        yield {
            "apiVersion": view.job["apiVersion"],
            "kind": view.job["kind"],
            "metadata": {"name": view.job["name"], "namespace": view.gang.namespace, "uid": view.job["uid"]},
        }


def _cards(view: WorkloadView) -> Fraction:
    """GPUs that a gang asks for, MIG instances as parts of a card."""
    total = Fraction(0)
    for podset in view.gang.podsets:
        for name, amount in podset.requests.items():
            if is_gpu_resource(name):
                slices, per_gpu = facts.share(name)
                total += Fraction(amount * slices, per_gpu) * podset.count
    return total
