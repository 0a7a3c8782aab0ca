"""What the scheduler extension has to know of the description, as one document in the cluster.

The document stands in a ConfigMap beside the queues, so that it changes with them in one run. It holds no secret: an
address that is one is named by its Secret. `myriad.scheduler.policy` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from myriad.fleet import model, model_policy

VERSION = 1
CONFIG_MAP = "myriad-policy"
NAMESPACE = "myriad-system"
KEY = "policy.json"


def policy_document(fleet: model.Fleet) -> dict[str, Any]:
    """The document. Every key is always there; hours are numbers or null, seconds whole numbers."""
    return {
        "version": VERSION,
        "cluster": fleet.cluster.name,
        "levels": list(fleet.cluster.topology_levels),
        "priorities": dict(sorted(fleet.priorities.items())),
        "preemption": {
            "grace_s": fleet.preemption.grace_s,
            "min_run_s": fleet.preemption.min_run_s,
            "checkpoint_max_age_s": fleet.preemption.checkpoint_max_age_s,
        },
        "protection": {
            "after_s": fleet.protection.after_s,
            "max_domains": fleet.protection.max_domains,
            "max_share": float(fleet.protection.max_share),
            "level": protected_level(fleet),
        },
        "pools": {name: _pool(pool) for name, pool in sorted(fleet.pools.items())},
        "teams": {name: _team(team) for name, team in sorted(fleet.teams.items())},
        "notify_targets": {name: _target(target) for name, target in sorted(fleet.notify.items())},
        "idle": {"threshold_percent": fleet.idle.threshold_percent, "after_s": fleet.idle.after_s},
    }


def policy_text(fleet: model.Fleet) -> str:
    """The document as text; the same description gives the same bytes."""
    return json.dumps(policy_document(fleet), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def protected_level(fleet: model.Fleet) -> str:
    """The level of protected domains: as described, or the one above the innermost (a block where racks are below)."""
    levels = fleet.cluster.topology_levels
    return fleet.protection.level or (levels[-2] if len(levels) > 1 else levels[-1])


def _pool(pool: model.Pool) -> dict[str, Any]:
    return {
        "model": pool.model,
        "use": pool.use,
        "engine": pool.engine,
        "resource": pool.resource,
        "gpus_per_node": pool.gpus_per_node,
        "default_hours": _hours(pool.default_hours),
        "max_hours": _hours(pool.max_hours),
        "unlimited": pool.without_limit,
    }


def _team(team: model.Team) -> dict[str, Any]:
    return {
        "namespaces": sorted(set(team.namespaces)),
        "quota": dict(sorted(team.quota.items())),
        "borrow": dict(sorted(team.borrow.items())),
        "lend": dict(sorted(team.lend.items())),
        "reserve": dict(sorted(team.reserve.items())),
        "weight": float(team.weight),
        "cohort": team.cohort,
        "gpu_hours": _budgets(team.gpu_hours),
        "projects": {
            name: {"gpu_hours": _budgets(project.gpu_hours)} for name, project in sorted(team.projects.items())
        },
        "notify": list(team.notify),
    }


def _budgets(budgets: Mapping[str, model.GpuHours]) -> dict[str, Any]:
    return {
        pool: {"budget": hours.budget, "period": hours.period, "used_up": hours.used_up}
        for pool, hours in sorted(budgets.items())
    }


def _target(target: model_policy.NotifyTarget) -> dict[str, Any]:
    # A webhook's secret beside a url is the key that signs; alone it is the address.
    given = {"secret": target.secret, "url": target.url}
    return {"kind": target.kind, **{key: value for key, value in given.items() if value is not None}}


def _hours(hours: Fraction | None) -> float | None:
    return None if hours is None else float(hours)
