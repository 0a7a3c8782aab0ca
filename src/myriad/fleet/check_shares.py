"""Rules between teams, pools, cohorts, priorities and images: what only several parts together can tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from myriad.fleet import model, names
from myriad.fleet.labels import hypernode_name
from myriad.fleet.problems import Problem, Severity
from myriad.fleet.schema import dotted
from myriad.fleet.source import KeyPath, RawInventory


def check_shares(fleet: model.Fleet, raw: RawInventory) -> list[Problem]:
    """Every problem between the parts of `fleet`. `raw` gives the places where they were written."""
    return list(_Shares(fleet, raw).all())


class _Shares:
    def __init__(self, fleet: model.Fleet, raw: RawInventory) -> None:
        self.fleet = fleet
        self.raw = raw
        # A section that could not even be read is reported once; what refers to it would only repeat that.
        self.pools_unread = bool(raw.variables.get("myriad_pools")) and not fleet.pools
        self.cohorts_unread = bool(raw.variables.get("myriad_cohorts")) and not fleet.cohorts

    def problem(self, path: KeyPath, rule: str, message: str, severity: Severity = "error") -> Problem:
        return Problem(rule, message, severity, key=dotted(path), origin=self.raw.origin_of(path))

    def all(self) -> Iterator[Problem]:
        yield from self.sections()
        for team in self.fleet.teams:
            yield from self.team(team)
        yield from self.namespaces()
        yield from self.cohorts()
        yield from self.capacity()
        yield from self.priorities()
        yield from self.images()
        yield from self.object_names()

    def given(self, team: str) -> Mapping[str, Any]:
        """What was written for a team, refused values included: a wrong quota is not a missing one."""
        value = self.raw.variables["myriad_teams"][team]
        return value if isinstance(value, Mapping) else {}

    def sections(self) -> Iterator[Problem]:
        variables = self.raw.variables
        levels = self.fleet.cluster.topology_levels
        for level in dict.fromkeys(level for level in levels if levels.count(level) > 1):
            yield self.problem(
                ("myriad_cluster", "topology_levels"),
                "level-twice",
                f'names "{level}" twice; every level has a name of its own',
            )
        if not variables.get("myriad_pools"):
            yield self.problem(
                ("myriad_pools",), "missing", "is missing; describe at least one pool: {h100: {model: H100-SXM5-80GB}}"
            )
        if not variables.get("myriad_teams"):
            yield self.problem(
                ("myriad_teams",), "missing", "is missing, so nobody may run anything; describe the teams", "warning"
            )

    def team(self, name: str) -> Iterator[Problem]:
        team = self.fleet.teams[name]
        at: KeyPath = ("myriad_teams", name)
        given = self.given(name)
        if not given.get("namespaces"):
            yield self.problem(
                at, "team-without-namespace", f"has no namespace; add one, for example namespaces: [{name}]"
            )
        for field in ("quota", "borrow", "lend", "gpu_hours"):
            for pool in getattr(team, field):
                if pool not in self.fleet.pools and not self.pools_unread:
                    yield self.problem(
                        (*at, field, pool),
                        "unknown-pool",
                        f'"{pool}" is not a pool{names.did_you_mean(pool, self.fleet.pools)}',
                    )
        for project, rules in team.projects.items():
            for pool in rules.gpu_hours:
                if pool not in self.fleet.pools and not self.pools_unread:
                    yield self.problem(
                        (*at, "projects", project, "gpu_hours", pool),
                        "unknown-pool",
                        f'"{pool}" is not a pool{names.did_you_mean(pool, self.fleet.pools)}',
                    )
        if not given.get("quota"):
            yield self.problem(at, "team-without-quota", "has no quota in any pool, so it can run nothing", "warning")
        yield from self.sharing(name)

    def sharing(self, name: str) -> Iterator[Problem]:
        team = self.fleet.teams[name]
        at: KeyPath = ("myriad_teams", name)
        given = self.given(name)
        if team.cohort is not None and team.cohort not in self.fleet.cohorts and not self.cohorts_unread:
            yield self.problem(
                (*at, "cohort"),
                "unknown-cohort",
                f'"{team.cohort}" is not a cohort{names.did_you_mean(team.cohort, self.fleet.cohorts)}',
            )
        for field, act in (("borrow", "borrow from"), ("lend", "lend to")):
            limits: dict[str, int] = getattr(team, field)
            if limits and not given.get("cohort"):
                yield self.problem(
                    (*at, field),
                    "limit-without-cohort",
                    f"is set, but the team has no cohort to {act}; name one or remove it",
                )
            quotas = given.get("quota") or {}
            # A quota that is no mapping was refused: what it would have named is not known.
            for pool in limits if isinstance(quotas, Mapping) else ():
                if pool in self.fleet.pools and pool not in quotas:
                    yield self.problem(
                        (*at, field, pool),
                        "limit-without-quota",
                        f"is set, but the team has no quota.{pool}; add it (0 is a quota: then all is borrowed)",
                    )
        for pool, lent in team.lend.items():
            if pool in team.quota and lent > team.quota[pool]:
                yield self.problem(
                    (*at, "lend", pool),
                    "lend-above-quota",
                    f"is {lent}, more than the quota of {team.quota[pool]} that it owns",
                )
        for pool, quota in team.quota.items():
            if quota == 0 and not given.get("cohort"):
                yield self.problem(
                    (*at, "quota", pool),
                    "quota-unusable",
                    "is 0 and the team has no cohort to borrow from, so nothing can run there",
                    "warning",
                )

    def namespaces(self) -> Iterator[Problem]:
        owner: dict[str, str] = {}
        for name, team in self.fleet.teams.items():
            at: KeyPath = ("myriad_teams", name, "namespaces")
            for namespace in team.namespaces:
                first = owner.setdefault(namespace, name)
                if first != name:
                    yield self.problem(
                        at,
                        "namespace-twice",
                        f'"{namespace}" belongs to team {first} already; a namespace has one team',
                    )
            doubled = {namespace for namespace in team.namespaces if team.namespaces.count(namespace) > 1}
            for namespace in sorted(doubled):
                yield self.problem(at, "namespace-twice", f'"{namespace}" is listed twice', "warning")

    def cohorts(self) -> Iterator[Problem]:
        reported: set[str] = set()
        for name, cohort in self.fleet.cohorts.items():
            at: KeyPath = ("myriad_cohorts", name, "parent")
            if cohort.parent is not None and cohort.parent not in self.fleet.cohorts:
                others = [other for other in self.fleet.cohorts if other != name]
                yield self.problem(
                    at,
                    "unknown-cohort",
                    f'"{cohort.parent}" is not a cohort{names.did_you_mean(cohort.parent, others)}',
                )
            if name not in reported:
                ring = self.ring(name)
                if ring:
                    reported.update(ring)
                    yield self.problem(
                        at,
                        "cohort-cycle",
                        f"closes a circle: {' -> '.join([*ring, ring[0]])}; a cohort cannot be above itself: "
                        "remove one of these parents",
                    )
        used = {team.cohort for team in self.fleet.teams.values()} | {
            cohort.parent for cohort in self.fleet.cohorts.values()
        }
        for name in self.fleet.cohorts:
            if name not in used:
                yield self.problem(
                    ("myriad_cohorts", name), "unused-cohort", "has no team and no cohort in it", "warning"
                )

    def ring(self, start: str) -> list[str]:
        """The circle that `start` is in, beginning with it; empty where there is none."""
        path = [start]
        while True:
            cohort = self.fleet.cohorts.get(path[-1])
            if cohort is None or cohort.parent is None:
                return []
            if cohort.parent == start:
                return path
            if cohort.parent in path:
                return []  # a circle further up, which its own members report
            path.append(cohort.parent)

    def capacity(self) -> Iterator[Problem]:
        for pool, capacity in self.fleet.capacity.items():
            shares = {name: team.quota[pool] for name, team in self.fleet.teams.items() if team.quota.get(pool)}
            total = sum(shares.values())
            at: KeyPath = ("myriad_pools", pool)
            written = self.raw.variables["myriad_pools"][pool]
            if not self.fleet.hosts_by_pool[pool] or (
                isinstance(written, Mapping)
                and written.get("gpus_per_node", self.fleet.pools[pool].gpus_per_node)
                != self.fleet.pools[pool].gpus_per_node
            ):
                continue  # an empty pool, or a size that was refused: an error of its own
            if total > capacity:
                said = names.listing((f"{team} {gpus}" for team, gpus in shares.items()), limit=6)
                path: KeyPath = (
                    ("myriad_teams", next(iter(shares)), "quota", pool) if len(shares) == 1 else ("myriad_teams",)
                )
                yield Problem(
                    "quota-above-capacity",
                    f"the quotas of pool {pool} add up to {total} GPUs ({said}), but its "
                    f"{_hosts_have(len(self.fleet.hosts_by_pool[pool]))} {capacity}: "
                    f"{total - capacity} of them cannot be honoured at the same time",
                    "warning",
                    key=dotted(path),
                    origin=self.raw.origin_of(path),
                )
            elif total < capacity and self.fleet.teams:
                yield self.problem(
                    at,
                    "capacity-unowned",
                    f"has {capacity} GPUs, but the quotas of all teams add up to {total}: {capacity - total} GPUs "
                    "belong to nobody and cannot be used",
                    "warning",
                )

    def priorities(self) -> Iterator[Problem]:
        seen: dict[int, str] = {}
        for name, value in self.fleet.priorities.items():
            first = seen.setdefault(value, name)
            if first != name:
                yield self.problem(
                    ("myriad_priorities", name),
                    "priority-twice",
                    f"is {value}, as {first} is: neither can preempt the other",
                    "warning",
                )

    def images(self) -> Iterator[Problem]:
        for index, image in enumerate(self.fleet.images.warm):
            for pool in image.pools:
                if pool not in self.fleet.pools and not self.pools_unread:
                    yield self.problem(
                        ("myriad_images", "warm", index, "pools"),
                        "unknown-pool",
                        f'"{pool}" is not a pool{names.did_you_mean(pool, self.fleet.pools)}',
                    )

    def object_names(self) -> Iterator[Problem]:
        """Different parts must not end in one Kubernetes object."""
        made: dict[str, tuple[str, str]] = {}
        for team_name, team in self.fleet.teams.items():
            for pool in team.quota:
                queue = model.cluster_queue_name(team_name, pool)
                at: KeyPath = ("myriad_teams", team_name)
                first = made.setdefault(queue, (team_name, pool))
                if first != (team_name, pool):
                    yield self.problem(
                        at,
                        "name-clash",
                        f'with pool {pool} makes the queue "{queue}", as team {first[0]} with pool {first[1]} does; '
                        "rename one of the teams",
                    )
                if len(queue) > names.MAX_NAME:
                    yield self.problem(
                        at,
                        "name",
                        f'makes the queue "{queue}" of {len(queue)} characters; Kubernetes allows {names.MAX_NAME}: '
                        "shorten the name of the team or the pool",
                    )
        for cohort in self.fleet.cohorts:
            if model.inference_cohort(cohort) in self.fleet.cohorts:
                yield self.problem(
                    ("myriad_cohorts", model.inference_cohort(cohort)),
                    "name-clash",
                    f"has the name that Myriad gives the inference side of cohort {cohort}; choose another",
                )
        yield from self.hypernodes()

    def hypernodes(self) -> Iterable[Problem]:
        made: dict[str, tuple[str, ...]] = {}
        for pool_name, pool in self.fleet.pools.items():
            if pool.engine != "volcano":
                continue
            for host in self.fleet.hosts_by_pool[pool_name]:
                for depth in range(1, len(host.location) + 1):
                    place = host.location[:depth]
                    first = made.setdefault(hypernode_name(place), place)
                    if first != place:
                        yield Problem(
                            "name-clash",
                            f'is in "{"/".join(place)}", which Volcano cannot tell from "{"/".join(first)}": '
                            "rename one of them",
                            key="myriad_location",
                            hosts=(host.name,),
                            origin=self.raw.hosts[host.name].origins.get("myriad_location"),
                        )


def _hosts_have(count: int) -> str:
    return "1 host has" if count == 1 else f"{count} hosts have"
