"""Shadow mode: the extension plans, records and explains, and decides nothing. docs/adr/0047.

Three parts:

- `ShadowApi` is what the workers write through: it lets nothing pass but records of Myriad's own, whoever asks.
- `Entries` stands in for our entry of each Workload's checks, which in shadow no Workload has: steering runs by the
  same lines as ever, and what it would have written is remembered here.
- `Withdrawing` takes back what an extension that was switched on has left: check, taints, holds, shields.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from myriad.kube.client import Api, ApiError, Json
from myriad.kube.kinds import CLUSTER_QUEUES, CONFIG_MAPS, LOCAL_QUEUES, NODES, WORKLOADS
from myriad.scheduler import attach
from myriad.scheduler.cache import Cache
from myriad.scheduler.ledger.holds import hold_of, queue_change, workload_change
from myriad.scheduler.objects import CheckEntry, WorkloadView, seconds_since
from myriad.scheduler.policy import SitePolicy
from myriad.scheduler.protect import mark_of, operations
from myriad.scheduler.rules import Write
from myriad.scheduler.shield import Shields

log = logging.getLogger("myriad.shadow")

_READS = ("GET", "HEAD")
_FRESH_S = 60.0
"""A gang that has held quota for longer was placed on a cluster that is no more: comparing it with now says nothing."""


class ShadowApi(Api):
    """A client that reads as another one does and writes into one namespace's ConfigMaps alone.

    Args:
        api: whose connections and credentials are used.
        namespace: of Myriad's own programs, where the extension keeps records.
    """

    def __init__(self, api: Api, *, namespace: str) -> None:
        self.base_url, self.source, self.headers = api.base_url, api.source, api.headers
        self._client = api._client
        self._own = CONFIG_MAPS.path(namespace)

    def _json(self, method: str, path: str, **more: Any) -> Json:
        if method not in _READS and path != self._own and not path.startswith(f"{self._own}/"):
            raise ApiError(403, "Shadow", "the extension runs in shadow and changes nothing", where=f"{method} {path}")
        return super()._json(method, path, **more)


class Entries:
    """Our entry of each Workload's checks as it would be, by uid.

    Args:
        now: an aware time.
    """

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._entries: dict[str, CheckEntry] = {}
        self._held: set[str] = set()

    def seen(self, view: WorkloadView) -> WorkloadView:
        """The Workload as steering would see it, were it switched on."""
        uid = view.gang.uid
        if view.quota_reserved:
            self._held.add(uid)
        elif uid in self._held:
            # It lost its quota again: Kueue sets every check back to Pending then.
            self._held.discard(uid)
            self._entries.pop(uid, None)
        entry = self._entries.get(uid)
        if entry is None:
            held_s = seconds_since(view.reserved_at, self._now()) if view.quota_reserved else 0.0
            entry = self._entries[uid] = CheckEntry("Ready" if held_s > _FRESH_S else "Pending", "", (), "")
        return replace(view, check=entry)

    def write(self, view: WorkloadView, write: Write) -> None:
        """What would have been written."""
        self._entries[view.gang.uid] = CheckEntry(write.state, write.message, write.updates, "")

    def forget(self, alive: set[str]) -> None:
        """Workloads that are gone."""
        for uid in self._entries.keys() - alive:
            del self._entries[uid]
        self._held &= alive


class Withdrawing:
    """The observer that takes back what was set while the extension was switched on. Idempotent.

    Args:
        api: the client itself, not `ShadowApi`: these are the only writes outside of the own namespace.
        cache: the cluster.
        check: the AdmissionCheck.
    """

    name = "withdrawing"
    interval_s = 30.0

    def __init__(self, *, api: Api, cache: Cache, check: str) -> None:
        self._api = api
        self._cache = cache
        self._check = check
        # Of a policy without priorities no class has a shield: those that jobs carry are taken off.
        self._shields = Shields(api=api, cache=cache, policy=SitePolicy)

    def step(self) -> None:
        """Look at everything that carries a mark of ours."""
        for queue in self._cache.listing(CLUSTER_QUEUES):
            if attach.entry_of(queue, self._check) is not None:
                attach.detach(self._api, queue)
        for node in self._cache.listing(NODES):
            changes = operations(node, None) if mark_of(node) is not None else []
            if changes:
                self._patch("node", node, partial(self._api.patch, NODES, _name(node), changes, kind="json"))
        for kind, change_of in ((LOCAL_QUEUES, queue_change), (WORKLOADS, workload_change)):
            for held in self._cache.listing(kind):
                change = change_of(held, None) if hold_of(held) is not None else None
                if change is not None:
                    namespace = held["metadata"]["namespace"]
                    call = partial(self._api.patch, kind, _name(held), change, namespace=namespace)
                    self._patch(kind.kind, held, call)
        self._shields.step()

    def _patch(self, what: str, obj: Json, call: Callable[[], object]) -> None:
        try:
            call()
        except ApiError as error:
            # It moved on, or is gone: the next step sees what it is now.
            log.info("%s %s: %s", what, _name(obj), error.message)
        else:
            log.info("%s %s is as it was before Myriad", what, _name(obj))


def _name(obj: Json) -> str:
    return str(obj["metadata"]["name"])
