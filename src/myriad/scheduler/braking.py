"""The brake over the live cluster: what asks it before Myriad evicts or taints, and what it remembers.

A leader that has just begun, or whose cache was out of step for a while, may have seen an outage alone: its windows of
silence begin anew. What was allowed lives as long as the process; the windows cover a restart.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from myriad.kube.kinds import NODES
from myriad.scheduler import brake
from myriad.scheduler.brake import Ask, Brake, NodeState, State, Trouble, Verdict
from myriad.scheduler.cache import Cache
from myriad.scheduler.notices.facts import moment
from myriad.scheduler.objects import location_of

log = logging.getLogger("myriad.brake")

Json = dict[str, Any]

_AWAY = timedelta(seconds=30)
"""`follow` is called every few seconds; after a longer gap nobody led here, or the cache did not follow."""

OFF = "the extension's brake is off (MYRIAD_SCHEDULER_BRAKE=false)"
"""What its state is called wherever it is shown."""


def node_states(nodes: Iterable[Json], levels: tuple[str, ...]) -> dict[str, NodeState]:
    """Nodes as the brake sees them, by name. Pure."""
    found = {}
    for node in nodes:
        metadata = node["metadata"]
        path = location_of(metadata.get("labels") or {}, levels)
        found[metadata["name"]] = NodeState(metadata["name"], path, _silent_since(node))
    return found


def _silent_since(node: Json) -> datetime | None:
    if (node.get("spec") or {}).get("unschedulable"):
        return None
    conditions = (node.get("status") or {}).get("conditions") or []
    ready: Json = next((c for c in conditions if c["type"] == "Ready"), {})
    # A node that never reported is being installed: it is no news of an outage.
    if ready.get("status") in (None, "True"):
        return None
    return moment(ready.get("lastTransitionTime"))


class Braking:
    """Asked by every part of the extension that evicts or taints; safe to use from several threads.

    Args:
        cache: the cluster.
        settle_s: see `Brake`.
        enabled: False lets everything through, and says so once.
        now: an aware time.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        settle_s: float = brake.LEADER_SETTLE_S,
        enabled: bool = True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cache = cache
        self._settle_s = settle_s
        self._enabled = enabled
        self._now = now
        self._lock = threading.Lock()
        self._state = State()
        self._followed: datetime | None = None
        if not enabled:
            log.warning("%s: domains are tainted in the middle of an outage too, as many as there are", OFF)

    def follow(self) -> None:
        """This replica leads and its cache is in step; called every few seconds while that is so."""
        now = self._now()
        with self._lock:
            last, self._followed = self._followed, now
            if last is None:
                self._state = brake.leads(self._state, now)
            elif now - last > _AWAY:
                # Another replica led, or the API server was away: both end here, and neither says which it was.
                state = brake.leads(brake.follows(self._state), now)
                self._state = brake.outage_ends(brake.outage_begins(state), now)
                log.info(
                    "nothing is evicted or tainted for %.0f s: nobody followed the cluster here", 2 * self._settle_s
                )

    def trouble(self) -> Trouble | None:
        """Nodes that fell silent together; None for none."""
        return brake.trouble(self._nodes().values())

    def ask(self, ask: Ask) -> Verdict:
        """May it be done? What is allowed counts for the caps; asking again about the same does not."""
        if not self._enabled:
            return Verdict(True)
        with self._lock:
            found = Brake(self._nodes(), self._team_nodes(), self._settle_s)
            verdict, self._state = found.ask(self._state, ask, self._now())
        return verdict

    def _nodes(self) -> dict[str, NodeState]:
        return node_states(self._cache.listing(NODES), self._cache.levels)

    def _team_nodes(self) -> dict[str, int]:
        nodes: dict[str, set[str]] = {}
        for view in self._cache.views():
            if view.admitted and not view.finished:
                nodes.setdefault(view.gang.team, set()).update(view.nodes)
        return {team: len(names) for team, names in nodes.items()}
