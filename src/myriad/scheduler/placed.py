"""What a Workload's queue, flavor and namespace add to it: pool, team, tolerations and selector. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from myriad.scheduler.attach import flavors_of
from myriad.scheduler.model import POOL_LABEL, Gang
from myriad.scheduler.objects import TEAM_LABEL, WorkloadView, toleration

Json = dict[str, Any]


def says_the_same(before: Json | None, after: Json) -> bool:
    """Whether what `placed` reads of a queue, flavor or namespace is as it was; their status changes all the time."""
    if before is None:
        return False
    labels = [(one.get("metadata") or {}).get("labels") for one in (before, after)]
    return before.get("spec") == after.get("spec") and labels[0] == labels[1]


def placed(view: WorkloadView, queue: Json | None, namespace: Json | None, flavors: Mapping[str, Json]) -> WorkloadView:
    """The view of a Workload with the pool of its queue, the team of its namespace, and what its flavor gives pods.

    Args:
        view: of the Workload alone.
        queue: its ClusterQueue; None where it is not known.
        namespace: its Namespace; None where it is not known.
        flavors: ResourceFlavors by name.
    """
    labels: Mapping[str, str] = (queue["metadata"].get("labels") or {}) if queue else {}
    pool = labels.get(POOL_LABEL, "")
    named = [pool] if pool or not queue else flavors_of(queue)
    flavor = flavors.get(named[0]) if len(named) == 1 else None
    spec = (flavor or {}).get("spec") or {}
    tolerations = tuple(toleration(t) for t in spec.get("tolerations") or [])
    # A queue that Myriad did not make says by its only flavor which nodes it is for.
    selector = {} if pool else dict(spec.get("nodeLabels") or {})
    podsets = view.gang.podsets
    if tolerations or selector:
        # Kueue gives every pod of the flavor its tolerations and labels, and TAS counts with them.
        podsets = tuple(
            replace(p, tolerations=(*p.tolerations, *tolerations), node_selector={**selector, **p.node_selector})
            for p in podsets
        )
    team = ((namespace or {}).get("metadata", {}).get("labels") or {}).get(TEAM_LABEL) or labels.get(TEAM_LABEL, "")
    gang: Gang = replace(view.gang, pool=pool, team=team, podsets=podsets)
    return replace(view, gang=gang)
