"""Rules between pools, teams and the parts that say who waits, for how long, and who is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from myriad.fleet import model, names
from myriad.fleet.model_policy import Alignment, NotifyTarget
from myriad.fleet.problems import Problem, Severity
from myriad.fleet.schema import dotted
from myriad.fleet.source import KeyPath, RawInventory


def check_policy(fleet: model.Fleet, raw: RawInventory) -> Iterator[Problem]:
    """Problems of time limits, reserves, protection, notices and access."""
    return _Policy(fleet, raw).all()


class _Policy:
    def __init__(self, fleet: model.Fleet, raw: RawInventory) -> None:
        self.fleet = fleet
        self.raw = raw

    def problem(self, path: KeyPath, rule: str, message: str, severity: Severity = "error") -> Problem:
        return Problem(rule, message, severity, key=dotted(path), origin=self.raw.origin_of(path))

    def all(self) -> Iterator[Problem]:
        for name, pool in self.fleet.pools.items():
            yield from self.limits(name, pool)
            yield from self.alignment(name, pool)
        for name, team in self.fleet.teams.items():
            yield from self.reserve(name, team)
            yield from self.notify(name, team)
        for name, target in self.fleet.notify.items():
            yield from self.target(name, target)
        yield from self.members()
        level = self.fleet.protection.level
        levels = self.fleet.cluster.topology_levels
        if level is not None and level not in levels:
            yield self.problem(
                ("myriad_protection", "level"),
                "unknown-level",
                f'"{level}" is not a level of the topology{names.did_you_mean(level, levels)}',
            )

    def limits(self, name: str, pool: model.Pool) -> Iterator[Problem]:
        at: KeyPath = ("myriad_pools", name)
        given = self.raw.variables["myriad_pools"][name]
        if pool.default_hours is not None and pool.max_hours is not None and pool.default_hours > pool.max_hours:
            yield self.problem(
                (*at, "default_hours"),
                "default-above-maximum",
                f"is {float(pool.default_hours):g}, more than max_hours, which is {float(pool.max_hours):g}",
            )
        refused = isinstance(given, Mapping) and given.get("default_hours") is not None
        if pool.unlimited == "default" and pool.default_hours is None and not refused:
            yield self.problem(
                (*at, "unlimited"),
                "limit-without-default",
                "is default, but the pool has no default_hours; add it, or write refuse or allow",
            )
        if pool.unlimited in ("refuse", "allow") and pool.default_hours is not None:
            yield self.problem(
                (*at, "default_hours"),
                "default-unused",
                f"is never used: unlimited is {pool.unlimited}",
                "warning",
            )

    def alignment(self, name: str, pool: model.Pool) -> Iterator[Problem]:
        found = pool.alignment
        given = self.raw.variables["myriad_pools"][name]["alignment"] if found != Alignment() else {}
        if found.cpu_manager == "static" and found.reserved_cpus is None and not given.get("reserved_cpus"):
            yield self.problem(
                ("myriad_pools", name, "alignment", "cpu_manager"),
                "static-without-reserve",
                "is static, and a kubelet that keeps no CPU for the system does not start with it; "
                'name some in reserved_cpus, for example "0-1"',
            )

    def reserve(self, name: str, team: model.Team) -> Iterator[Problem]:
        for pool_name, kept in team.reserve.items():
            path: KeyPath = ("myriad_teams", name, "reserve", pool_name)
            pool = self.fleet.pools.get(pool_name)
            if pool is None:
                if self.fleet.pools:
                    offer = names.did_you_mean(pool_name, self.fleet.pools)
                    yield self.problem(path, "unknown-pool", f'"{pool_name}" is not a pool{offer}')
                continue
            quota = team.quota.get(pool_name)
            if pool.use != "inference":
                yield self.problem(
                    path,
                    "reserve-for-training",
                    "is set for a training pool, where jobs wait and what is unused is lent; a reserve is for "
                    "inference: remove it, or set lend",
                )
            elif quota is not None and kept > quota:
                yield self.problem(
                    path, "reserve-above-quota", f"is {kept}, more than the quota of {quota} that the team owns"
                )
            elif quota is not None and team.lend.get(pool_name, 0) > quota - kept:
                yield self.problem(
                    path,
                    "reserve-lent",
                    f"keeps {kept} of {quota} GPUs, but lend.{pool_name} gives away {team.lend[pool_name]}: "
                    f"{quota - kept} at most",
                )

    def notify(self, name: str, team: model.Team) -> Iterator[Problem]:
        given = self.raw.variables.get("myriad_notify")
        if not isinstance(given, Mapping):
            return  # without targets the names are for people; a section that was refused is an error of its own
        for index, target in enumerate(team.notify):
            if target not in given:
                yield self.problem(
                    ("myriad_teams", name, "notify", index),
                    "unknown-target",
                    f'"{target}" is not a target of myriad_notify, so nobody would be told'
                    f"{names.did_you_mean(target, map(str, given))}",
                )

    def target(self, name: str, target: NotifyTarget) -> Iterator[Problem]:
        given = self.raw.variables["myriad_notify"][name] or {}
        at: KeyPath = ("myriad_notify", name)
        addresses = [key for key in ("secret", "url") if given.get(key) is not None]
        if not addresses:
            yield self.problem(
                at,
                "target-without-address",
                "has no address; give secret: NAME/KEY of a Secret in myriad-system, or url",
            )
        elif len(addresses) == 2 and target.kind == "apprise":
            yield self.problem(at, "two-addresses", "has both secret and url; keep the one that is meant")
        elif target.kind == "webhook" and target.url is not None and not target.url.startswith(("http://", "https://")):
            yield self.problem(
                (*at, "url"), "url", "is not of http or https, which a webhook is; write kind: apprise for others"
            )

    def members(self) -> Iterator[Problem]:
        owner: dict[str, str] = {}
        for name, team in self.fleet.teams.items():
            for group in team.groups:
                first = owner.setdefault(group, name)
                if first != name:
                    yield self.problem(
                        ("myriad_teams", name, "groups"),
                        "group-in-two-teams",
                        f'"{group}" belongs to team {first} too: its people work in both',
                        "warning",
                    )
