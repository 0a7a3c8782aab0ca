"""Replicas of a program on different nodes: the constraint of its pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def spread(labels: Mapping[str, str], required: bool = False) -> list[dict[str, Any]]:
    """`topologySpreadConstraints` by which the replicas of a program stand on different nodes.

    Args:
        labels: those of its pods.
        required: a replica that finds no second node waits for one. Without it all of them may share a node, and
            stay there: nothing moves a pod that runs to a node that came later.
    """
    constraint = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": dict(labels)},
        # Of a rollout each generation counts by itself, else what is on its way out would decide where the new one is.
        "matchLabelKeys": ["pod-template-hash"],
    }
    if not required:
        return [constraint | {"whenUnsatisfiable": "ScheduleAnyway"}]
    return [constraint | {"whenUnsatisfiable": "DoNotSchedule", "minDomains": 2, "nodeTaintsPolicy": "Honor"}]
