"""Idle GPU-hours of a period, for `myriad report --prometheus`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from myriad.cli._scope import own_namespace, read_what_is_allowed
from myriad.kube.client import Api
from myriad.kube.kinds import NODES
from myriad.scheduler.ledger.idle import idle_hours
from myriad.scheduler.model import POOL_LABEL

Json = dict[str, Any]


def add_idle(api: Api, report: Json, address: str) -> None:
    """Put `idle_h` into the rows of a report, and take it off what was effective.

    Raises MyriadError where Prometheus does not answer or has no such gauge.
    """
    cache, _ = read_what_is_allowed(api, own_namespace(None))
    policy = cache.policy()
    pools = {
        n["metadata"]["name"]: (n["metadata"].get("labels") or {}).get(POOL_LABEL, "") for n in cache.listing(NODES)
    }
    start, until = (datetime.fromisoformat(report[name]) for name in ("start", "until"))
    found = idle_hours(
        address,
        since=int(start.timestamp()),
        until=int(until.timestamp()),
        threshold_percent=policy.idle.threshold_percent,
    )
    sums: dict[tuple[str, str], float] = {}
    for (namespace, node), idle in found.items():
        key = policy.team_of(namespace) or namespace, pools.get(node, "")
        sums[key] = sums.get(key, 0.0) + idle
    for row in report["rows"]:
        row["idle_h"] = round(sums.get((row["team"], row["pool"]), 0.0), 4)
        row["effective_h"] = round(max(0.0, row["effective_h"] - row["idle_h"]), 4)
