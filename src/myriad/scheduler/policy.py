"""The site's rules as the extension reads them: the document of `myriad.fleet.site_policy`, typed.

Reading never fails. What is missing or has another shape gets its default, so that an extension which is older or newer
than the document, or meets none at all, works on with what it understands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

NAMESPACE = "myriad-system"
CONFIG_MAP = "myriad-policy"
KEY = "policy.json"
DEFAULT_LEVELS = ("room", "block", "rack")

Period = Literal["day", "week", "month", "quarter", "year"]
Unlimited = Literal["default", "refuse", "allow"]


@dataclass(frozen=True, slots=True)
class PreemptionPolicy:
    """How a running job is asked to leave, in seconds."""

    grace_s: int = 300
    min_run_s: int = 1800
    checkpoint_max_age_s: int = 3600


@dataclass(frozen=True, slots=True)
class ProtectionPolicy:
    """When a gang that waits gets a domain of its own.

    Attributes:
        after_s: seconds of waiting.
        max_domains: domains at the same time; 0 protects nobody.
        max_share: part of a pool's GPUs at the same time.
        level: topology level of a domain.
    """

    after_s: int = 7200
    max_domains: int = 1
    max_share: float = 0.25
    level: str = "block"


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """Rules of one pool. `unlimited` says what becomes of a job without a time limit."""

    model: str = ""
    use: Literal["training", "inference"] = "training"
    engine: Literal["kueue", "volcano"] = "kueue"
    resource: str = "nvidia.com/gpu"
    gpus_per_node: int = 8
    default_hours: float | None = None
    max_hours: float | None = None
    unlimited: Unlimited = "allow"


@dataclass(frozen=True, slots=True)
class Budget:
    """GPU-hours in each calendar period. `used_up` says what running jobs do then: finish, or leave."""

    budget: int
    period: Period = "month"
    used_up: Literal["finish", "leave"] = "finish"


@dataclass(frozen=True, slots=True)
class TeamPolicy:
    """Rules of one team; GPUs by pool. A pool that `borrow` or `lend` does not name has no limit.

    `projects` holds budgets of projects (the label `myriad.dev/project`) by pool, within the team's own.
    """

    namespaces: tuple[str, ...] = ()
    quota: Mapping[str, int] = field(default_factory=dict)
    borrow: Mapping[str, int] = field(default_factory=dict)
    lend: Mapping[str, int] = field(default_factory=dict)
    reserve: Mapping[str, int] = field(default_factory=dict)
    weight: float = 1.0
    cohort: str | None = None
    gpu_hours: Mapping[str, Budget] = field(default_factory=dict)
    projects: Mapping[str, Mapping[str, Budget]] = field(default_factory=dict)
    notify: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NotifyTarget:
    """Where notices go: `url`, or the address in the Secret `secret_name` of myriad-system under `secret_key`. A
    webhook with both is signed with what the Secret holds."""

    kind: Literal["webhook", "apprise"] = "webhook"
    url: str = ""
    secret_name: str = ""
    secret_key: str = ""


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """When held GPUs count as idle."""

    threshold_percent: int = 5
    after_s: int = 1800


Rules = TypeVar("Rules", PreemptionPolicy, IdlePolicy)


@dataclass(frozen=True, slots=True)
class SitePolicy:
    """All rules of a site."""

    cluster: str = ""
    levels: tuple[str, ...] = DEFAULT_LEVELS
    priorities: Mapping[str, int] = field(default_factory=dict)
    preemption: PreemptionPolicy = PreemptionPolicy()
    protection: ProtectionPolicy = ProtectionPolicy()
    pools: Mapping[str, PoolPolicy] = field(default_factory=dict)
    teams: Mapping[str, TeamPolicy] = field(default_factory=dict)
    notify_targets: Mapping[str, NotifyTarget] = field(default_factory=dict)
    idle: IdlePolicy = IdlePolicy()

    @classmethod
    def read(cls, document: Any) -> SitePolicy:
        """The rules in a document, `{}` for none."""
        body = _mapping(document)
        return cls(
            cluster=_text(body.get("cluster"), ""),
            levels=_texts(body.get("levels")) or DEFAULT_LEVELS,
            priorities=_counts(body.get("priorities")),
            preemption=_numbers(PreemptionPolicy(), body.get("preemption")),
            protection=_protection(_mapping(body.get("protection"))),
            pools={str(name): _pool(_mapping(pool)) for name, pool in _mapping(body.get("pools")).items()},
            teams={str(name): _team(_mapping(team)) for name, team in _mapping(body.get("teams")).items()},
            notify_targets={
                str(name): _target(_mapping(target)) for name, target in _mapping(body.get("notify_targets")).items()
            },
            idle=_numbers(IdlePolicy(), body.get("idle")),
        )

    @classmethod
    def of_config_map(cls, body: Mapping[str, Any] | None) -> SitePolicy:
        """The rules in the ConfigMap; the defaults where there is none or it holds no JSON."""
        text = _mapping((body or {}).get("data")).get(KEY)
        try:
            return cls.read(json.loads(text) if isinstance(text, str) else {})
        except ValueError:
            return cls.read({})

    def team_of(self, namespace: str) -> str:
        """The team that a namespace belongs to; empty for none."""
        return next((name for name, team in self.teams.items() if namespace in team.namespaces), "")

    def pool(self, name: str) -> PoolPolicy:
        """A pool's rules; the defaults for one that is not described."""
        return self.pools.get(name) or PoolPolicy()

    def targets_of(self, team: str) -> dict[str, NotifyTarget]:
        """Where a team is told, by name: what it names and `myriad_notify` describes."""
        named = self.teams[team].notify if team in self.teams else ()
        return {name: self.notify_targets[name] for name in named if name in self.notify_targets}

    def limit_s(self, pool: str, asked_s: int | None) -> int | None:
        """Time limit of a job in seconds: what it asked for, or its pool's default, and the pool's maximum at most, at
        which the ledger ends it; None runs without end."""
        rules = self.pool(pool)
        if rules.use == "inference":
            # Services run without end.
            return asked_s
        given = None if rules.unlimited != "default" or rules.default_hours is None else rules.default_hours * 3600
        most = None if rules.max_hours is None else rules.max_hours * 3600
        limits = [limit for limit in (asked_s if asked_s is not None else given, most) if limit is not None]
        return round(min(limits)) if limits else None


def _pool(body: Mapping[str, Any]) -> PoolPolicy:
    default = PoolPolicy()
    return PoolPolicy(
        model=_text(body.get("model"), ""),
        use="inference" if body.get("use") == "inference" else "training",
        engine="volcano" if body.get("engine") == "volcano" else "kueue",
        resource=_text(body.get("resource"), default.resource),
        gpus_per_node=_whole(body.get("gpus_per_node"), default.gpus_per_node),
        default_hours=_hours(body.get("default_hours")),
        max_hours=_hours(body.get("max_hours")),
        unlimited=cast(Unlimited, body["unlimited"]) if body.get("unlimited") in ("default", "refuse") else "allow",
    )


def _team(body: Mapping[str, Any]) -> TeamPolicy:
    return TeamPolicy(
        namespaces=_texts(body.get("namespaces")),
        quota=_counts(body.get("quota")),
        borrow=_counts(body.get("borrow")),
        lend=_counts(body.get("lend")),
        reserve=_counts(body.get("reserve")),
        weight=_number(body.get("weight"), 1.0),
        cohort=_text(body.get("cohort"), "") or None,
        gpu_hours=_budgets(body.get("gpu_hours")),
        projects={
            str(name): _budgets(_mapping(project).get("gpu_hours"))
            for name, project in _mapping(body.get("projects")).items()
        },
        notify=_texts(body.get("notify")),
    )


def _budgets(body: Any) -> dict[str, Budget]:
    found = {}
    for pool, hours in ((str(pool), _mapping(given)) for pool, given in _mapping(body).items()):
        budget = _whole(hours.get("budget"), 0)
        periods = ("day", "week", "month", "quarter", "year")
        period = cast(Period, hours["period"]) if hours.get("period") in periods else "month"
        # A budget of nothing would stop a team because of a slip in the document.
        if budget > 0:
            found[pool] = Budget(budget, period, "leave" if hours.get("used_up") == "leave" else "finish")
    return found


def _target(body: Mapping[str, Any]) -> NotifyTarget:
    name, _, key = _text(body.get("secret"), "").partition("/")
    return NotifyTarget(
        kind="apprise" if body.get("kind") == "apprise" else "webhook",
        url=_text(body.get("url"), ""),
        secret_name=name if key else "",
        secret_key=key,
    )


def _protection(body: Mapping[str, Any]) -> ProtectionPolicy:
    default = ProtectionPolicy()
    return ProtectionPolicy(
        after_s=_whole(body.get("after_s"), default.after_s),
        max_domains=_whole(body.get("max_domains"), default.max_domains),
        max_share=min(1.0, _number(body.get("max_share"), default.max_share)),
        level=_text(body.get("level"), default.level),
    )


def _numbers(default: Rules, body: Any) -> Rules:
    given = _mapping(body)
    names = type(default).__dataclass_fields__
    return type(default)(**{name: _whole(given.get(name), getattr(default, name)) for name in names})


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any, default: str) -> str:
    return value if isinstance(value, str) and value else default


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list | tuple) else ()


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def _number(value: Any, default: float) -> float:
    right = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    return float(value) if right else default


def _hours(value: Any) -> float | None:
    return _number(value, 0.0) or None


def _counts(value: Any) -> dict[str, int]:
    return {str(name): count for name, count in _mapping(value).items() if _whole(count, -1) >= 0}
