"""Which ClusterQueues ask the extension's check: those in which a gang waits. Pure; docs/adr/0051.

A check costs every job of its queue three more writes of the Workload, and gives nothing to one that Kueue lets in at
its first look: a selector that comes later comes too late. So a queue asks it from the moment in which a gang waits
there, or a domain of its pool is kept for one, and until nobody has for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from myriad.kube.client import Json
from myriad.kube.kinds import ADMISSION_CHECKS, CLUSTER_QUEUES, NODES, WORKLOADS
from myriad.scheduler import deadman
from myriad.scheduler.attach import is_attached, is_ours
from myriad.scheduler.cache import Cache
from myriad.scheduler.model import POOL_LABEL
from myriad.scheduler.objects import REFUSED_ANNOTATION, WorkloadView, seconds_since
from myriad.scheduler.protect import standing

_WAITS_S = 3.0
"""Of a burst most are let in within it."""
_LATE_S = 10.0
"""A queue that does not ask by then although a gang waits in it is one that nobody steers."""


class Asking:
    """Which queues are to ask the check, pass by pass.

    Args:
        mode: one of `settings.ATTACH_MODES`.
        quiet_s: a queue goes on asking so long after the last gang waited there; after a change of leader anew.
        clock: monotonic seconds.
    """

    def __init__(self, mode: str, quiet_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._always = mode == "always"
        self._quiet_s = quiet_s
        self._clock = clock
        self._last: dict[str, float] = {}

    def wanted(self, cache: Cache, now: datetime) -> dict[str, bool]:
        """For each of our ClusterQueues by name: whether it is to ask."""
        at = self._clock()
        waiting = cache.waiting()
        kept = _pools_with_a_domain(cache)
        found = {}
        for queue in cache.listing(CLUSTER_QUEUES):
            if not is_ours(queue):
                continue
            name = queue["metadata"]["name"]
            needed = queue["metadata"]["labels"][POOL_LABEL] in kept or gang_waits(cache, waiting.get(name, ()), now)
            if needed or (name not in self._last and is_attached(queue, cache.check_name)):
                self._last[name] = at
            found[name] = self._always or at - self._last.get(name, float("-inf")) < self._quiet_s
        for name in self._last.keys() - found:
            del self._last[name]
        return found


def gang_waits(cache: Cache, views: Iterable[WorkloadView], now: datetime, *, since_s: float = _WAITS_S) -> bool:
    """Whether Kueue has refused one of these Workloads for now that a selector may help, and not only this moment.

    That is one of several pods, or of one where the reason is the topology: quota alone is Kueue's own affair. What
    fits no state of the cluster is not helped.
    """
    for view in views:
        if not view.quota_message or not (view.gang.pods > 1 or "topology" in view.quota_message):
            continue
        if seconds_since(max(view.created, view.reserved_at), now) < since_s:
            continue
        body = cache.object(WORKLOADS, view.key) or {"metadata": {}}
        if REFUSED_ANNOTATION not in (body["metadata"].get("annotations") or {}):
            return True
    return False


def unsteered(cache: Cache) -> list[str]:
    """ClusterQueues whose gangs are steered by nobody: the dead-man says so, or a gang waits and nobody asks."""
    now = datetime.now(UTC)
    gone = bool(mark_of(cache))
    waiting = cache.waiting()
    return sorted(
        str(queue["metadata"]["name"])
        for queue in cache.listing(CLUSTER_QUEUES)
        if is_ours(queue)
        and not is_attached(queue, cache.check_name)
        and (gone or gang_waits(cache, waiting.get(queue["metadata"]["name"], ()), now, since_s=_LATE_S))
    )


def mark_of(cache: Cache) -> str:
    """What the dead-man wrote on the check; empty where it did not detach."""
    return deadman.detached(cache.object(ADMISSION_CHECKS, cache.check_name))


def _pools_with_a_domain(cache: Cache) -> set[str]:
    kept = {name for protection in standing(cache.listing(NODES)).values() for name in protection.nodes}
    pools = set()
    for name in kept:
        node: Json = cache.object(NODES, name) or {"metadata": {}}
        pools.add((node["metadata"].get("labels") or {}).get(POOL_LABEL, ""))
    return pools
