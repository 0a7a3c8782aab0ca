"""Everything that is wrong with a description, together: `check(raw)` gives the fleet and all problems.

Linear in the number of hosts. Rules about one value stand with the field (`myriad.fleet.model`), rules about groups and
hosts here, rules between teams, pools and cohorts in `myriad.fleet.check_shares`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from myriad.fleet import model, names
from myriad.fleet.catalog import CATALOG
from myriad.fleet.check_mig import check_mig
from myriad.fleet.check_policy import check_policy
from myriad.fleet.check_shares import check_shares
from myriad.fleet.check_wiring import check_wiring
from myriad.fleet.problems import Origin, Problem, errors, fold, warnings
from myriad.fleet.schema import Parts, read_parts
from myriad.fleet.source import RawGroup, RawHost, RawInventory

ROLE_GROUPS = ("control_plane", "gpu_nodes", "registry")
"""Groups that Myriad's playbooks use, besides pool_<name>."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of a check.

    Attributes:
        fleet: the description. Where there are errors it lacks what was refused, and nothing may be built from it.
        problems: all problems, folded and ordered by file.
        complete: False where something could not be read; then only single values were checked.
    """

    fleet: model.Fleet
    problems: tuple[Problem, ...]
    complete: bool = True

    @property
    def errors(self) -> list[Problem]:
        """Problems that stop a run."""
        return errors(self.problems)

    @property
    def warnings(self) -> list[Problem]:
        """Problems that are printed only."""
        return warnings(self.problems)


def check(raw: RawInventory) -> Checked:
    """Check a description that was read from an inventory.

    Returns:
        The fleet and every problem; nothing is raised for wrong input.
    """
    parts = read_parts(raw)
    problems = list(raw.problems) + parts.problems
    if not raw.complete:
        return Checked(fleet=model.Fleet(), problems=tuple(fold(problems)), complete=False)
    problems += _check_variable_names(raw)
    problems += _check_groups(raw, parts)
    hosts = _Hosts(raw, parts)
    problems += hosts.check()
    fleet = model.Fleet(
        cluster=parts.cluster,
        hosts=hosts.hosts,
        pools=parts.pools,
        teams=parts.teams,
        cohorts=parts.cohorts,
        priorities=parts.priorities,
        preemption=parts.preemption,
        images=parts.images,
        topology=parts.topology,
        fabrics=parts.fabrics,
        burn_in=parts.burn_in,
        protection=parts.protection,
        notify=parts.notify,
        idle=parts.idle,
        admission=parts.admission,
    )
    problems += check_wiring(fleet, raw)
    problems += check_mig(fleet, raw)
    problems += check_policy(fleet, raw)
    shares = check_shares(fleet, raw)
    if errors([*problems, *shares]):
        # What was refused counts as absent here: that something is left over says nothing yet.
        shares = [problem for problem in shares if problem.rule not in {"capacity-unowned", "unused-cohort"}]
    problems += shares
    return Checked(fleet=fleet, problems=tuple(fold(problems)))


def _check_variable_names(raw: RawInventory) -> Iterable[Problem]:
    known = model.DESCRIPTION_VARIABLES + model.HOST_VARIABLES
    for name in raw.variables:
        if name not in known:
            yield Problem(
                "unknown-variable",
                f"is not a variable of the description{_variable_meant(name, model.DESCRIPTION_VARIABLES)}",
                key=name,
                origin=raw.origin_of((name,)),
            )
    for group in raw.groups.values():
        if group.name == "all":
            continue
        for name in group.variables:
            origin = group.origins.get(name)
            if name in model.DESCRIPTION_VARIABLES:
                yield Problem(
                    "misplaced-variable",
                    f"is set for group {group.name}; it describes the whole site: move it to group all "
                    "(group_vars/all/)",
                    key=name,
                    origin=origin,
                )
            elif name.startswith("myriad_") and name not in known:
                yield Problem(
                    "unknown-variable",
                    f"(group {group.name}) is not a variable of the description{_variable_meant(name, known)}",
                    key=name,
                    origin=origin,
                )
    for host in raw.hosts.values():
        for name in host.own:
            if name in model.DESCRIPTION_VARIABLES:
                yield Problem(
                    "misplaced-variable",
                    f"sets {name}; it describes the whole site: move it to group all (group_vars/all/)",
                    hosts=(host.name,),
                    key=name,
                    origin=host.origins.get(name),
                )
            elif name.startswith("myriad_") and name not in known:
                yield Problem(
                    "unknown-variable",
                    f"sets {name}, which is not a variable of a host{_variable_meant(name, known)}",
                    hosts=(host.name,),
                    key=name,
                    origin=host.origins.get(name),
                )


def _variable_meant(name: str, known: Iterable[str]) -> str:
    """As `did_you_mean`, but the common prefix makes no two names alike."""
    prefix = "myriad_"
    best = names.closest(name.removeprefix(prefix), [other.removeprefix(prefix) for other in known])
    return f'; did you mean "{prefix}{best}"?' if best else f"; known: {names.listing(known, limit=20)}"


def _check_groups(raw: RawInventory, parts: Parts) -> Iterable[Problem]:
    members = _members(raw)
    all_origin = raw.groups["all"].origin if "all" in raw.groups else None
    for name, purpose in (
        ("control_plane", "the machines of the control plane"),
        ("gpu_nodes", "the machines with GPUs"),
    ):
        if members.get(name):
            continue
        stranger = names.closest(name, [group for group in raw.groups if group not in ROLE_GROUPS], cutoff=0.75)
        if stranger is not None:
            continue  # reported below, under the name that was written
        group = raw.groups.get(name)
        yield Problem(
            "empty-group" if group else "missing-group",
            f"{'has no hosts' if group else 'does not exist'}; list {purpose} in it",
            key=f"group {name}",
            origin=(group.origin if group else None) or all_origin,
        )
    yield from _check_control_plane(raw, members)
    pooled = {host for name, hosts in members.items() if name.startswith("pool_") for host in hosts}
    below_gpu_nodes = _descendants(raw, ["gpu_nodes"])
    placed = {host for name, hosts in members.items() if _has_role(name) for host in hosts}
    for name, group in raw.groups.items():
        if name in {"all", "ungrouped", *ROLE_GROUPS}:
            continue
        if name.startswith("pool_"):
            inside = name in below_gpu_nodes or "gpu_nodes" not in raw.groups
            yield from _check_pool_group(group, parts, members.get(name, set()), inside=inside)
            continue
        meant = names.closest(name, ROLE_GROUPS, cutoff=0.75)
        if meant is not None and (not members.get(meant) or not members.get(name, set()) <= placed):
            yield Problem(
                "unknown-group",
                f'is not a group that Myriad knows; did you mean "{meant}"?',
                key=f"group {name}",
                origin=group.origin,
            )
        elif name.lower().startswith("pool") and (not members.get(name) or not members[name] <= pooled):
            yield Problem(
                "unknown-group",
                f"is not a group that Myriad knows; groups of pools are named pool_<name>, for example "
                f"pool_{name.lower().removeprefix('pools').removeprefix('pool').strip('_-') or 'h100'}",
                key=f"group {name}",
                origin=group.origin,
            )
        elif not members.get(name):
            yield Problem(
                "empty-group",
                "has no hosts; list some or remove it",
                "warning",
                key=f"group {name}",
                origin=group.origin,
            )
    yield from _check_pools_have_hosts(raw, parts, members)


def _check_control_plane(raw: RawInventory, members: Mapping[str, set[str]]) -> Iterable[Problem]:
    count = len(members.get("control_plane", ()))
    if count and count % 2 == 0:
        # https://etcd.io/docs/v3.6/faq/: an even member adds no tolerance, only one more that can fail.
        yield Problem(
            "control-plane-even",
            f"has {count} hosts; etcd needs a majority, so {count} survive no more failures than {count - 1}: "
            "use 1, 3 or 5",
            "warning",
            key="group control_plane",
            origin=raw.groups["control_plane"].origin,
        )


def _check_pool_group(group: RawGroup, parts: Parts, members: set[str], *, inside: bool) -> Iterable[Problem]:
    key = f"group {group.name}"
    if model.pool_of_group(group.name, parts.pools) is None:
        wanted = group.name.removeprefix("pool_")
        yield Problem(
            "unknown-pool",
            f'stands for a pool "{wanted}", which myriad_pools does not have{names.did_you_mean(wanted, parts.pools)}',
            key=key,
            origin=group.origin,
        )
    if not inside:
        yield Problem("pool-outside", "is not a child of gpu_nodes; put it there", key=key, origin=group.origin)
    if not members:
        yield Problem("empty-group", "has no hosts; list the machines of the pool in it", key=key, origin=group.origin)


def _check_pools_have_hosts(raw: RawInventory, parts: Parts, members: Mapping[str, set[str]]) -> Iterable[Problem]:
    present = {model.pool_of_group(name, parts.pools) for name in raw.groups if name.startswith("pool_")}
    orphans = [
        name for name in raw.groups if name.startswith("pool_") and model.pool_of_group(name, parts.pools) is None
    ]
    for pool in parts.pools:
        if pool in present:
            continue
        near = names.closest(model.pool_group(pool), orphans, cutoff=0.8)
        advice = f'rename group "{near}" to it' if near else "list its machines there, below gpu_nodes"
        yield Problem(
            "pool-without-hosts",
            f"has no hosts: there is no group {model.pool_group(pool)}; {advice}, or remove the pool",
            key=f"myriad_pools.{pool}",
            origin=raw.origin_of(("myriad_pools", pool)),
        )


def _has_role(group: str) -> bool:
    return group in ROLE_GROUPS or group.startswith("pool_")


def _members(raw: RawInventory) -> dict[str, set[str]]:
    members: dict[str, set[str]] = {}
    for host in raw.hosts.values():
        for group in host.groups:
            members.setdefault(group, set()).add(host.name)
    return members


def _descendants(raw: RawInventory, roots: Iterable[str]) -> set[str]:
    found: set[str] = set()
    queue = [child for root in roots if root in raw.groups for child in raw.groups[root].children]
    while queue:
        name = queue.pop()
        if name not in found:
            found.add(name)
            queue += raw.groups[name].children if name in raw.groups else ()
    return found


class _Hosts:
    """The checks of single hosts and of hosts against each other."""

    def __init__(self, raw: RawInventory, parts: Parts) -> None:
        self.raw = raw
        self.parts = parts
        self.hosts: dict[str, model.Host] = {}
        self.problems: list[Problem] = []
        self.levels = parts.cluster.topology_levels
        # Where the levels were refused the usual ones stand in, and nobody's place is wrong by them.
        self.levels_are_known = not any(
            problem.key in ("myriad_cluster", "myriad_cluster.topology_levels") for problem in parts.problems
        )

    def check(self) -> list[Problem]:
        unused: list[RawHost] = []
        for host in self.raw.hosts.values():
            if not any(_has_role(group) for group in host.groups):
                if host.name != "localhost" and not self._has_misspelled_group(host):
                    unused.append(host)
                continue
            fault = names.host_name_fault(host.name)
            if fault is not None:
                self.report(host, "host-name", fault)
            self.hosts[host.name] = self.host(host)
        for host in unused:
            self.report(
                host,
                "unused-host",
                "in none of the groups control_plane, gpu_nodes and registry: left alone by Myriad",
                severity_is_warning=True,
            )
        self.check_twins()
        self.check_boards()
        return self.problems

    def report(
        self, host: RawHost, rule: str, message: str, *, variable: str | None = None, severity_is_warning: bool = False
    ) -> None:
        origin: Origin | None = host.origins.get(variable, host.origin) if variable else host.origin
        self.problems.append(
            Problem(
                rule,
                message,
                "warning" if severity_is_warning else "error",
                key=variable,
                hosts=(host.name,),
                origin=origin,
            )
        )

    def _has_misspelled_group(self, host: RawHost) -> bool:
        return any(names.closest(group, ROLE_GROUPS, cutoff=0.75) for group in host.groups - {"all", "ungrouped"})

    def host(self, host: RawHost) -> model.Host:
        pool_name = self.pool(host)
        pool = self.parts.pools.get(pool_name) if pool_name else None
        is_gpu = "gpu_nodes" in host.groups or pool_name is not None
        return model.Host(
            name=host.name,
            address=self.address(host),
            location=self.location(host) if is_gpu else (),
            pool=pool_name,
            gpu_model=pool.model if pool else None,
            gpus=self.gpus(host, pool) if pool else 0,
            is_control_plane="control_plane" in host.groups,
        )

    def address(self, host: RawHost) -> str:
        value = host.variables.get("ansible_host", host.name)
        if not isinstance(value, str) or not value.strip():
            self.report(
                host, "address", f"ansible_host is {names.show(value)}; write an address", variable="ansible_host"
            )
            return host.name
        fault = names.address_fault(value) if "ansible_host" in host.variables else None
        if fault is not None:
            self.report(host, "address", f'ansible_host "{value}" {fault}', variable="ansible_host")
        return str(value)

    def pool(self, host: RawHost) -> str | None:
        groups = sorted(group for group in host.groups if group.startswith("pool_"))
        if len(groups) > 1:
            self.report(host, "two-pools", f"is in {len(groups)} pools ({', '.join(groups)}); a node belongs to one")
        if not groups and "gpu_nodes" in host.groups:
            self.report(
                host,
                "no-pool",
                f"in gpu_nodes but in no pool; list it in a group of a pool below gpu_nodes ({self._pool_groups()})",
            )
        return model.pool_of_group(groups[0], self.parts.pools) if groups else None

    def _pool_groups(self) -> str:
        return names.listing(model.pool_group(pool) for pool in self.parts.pools) or "pool_<name>"

    def gpus(self, host: RawHost, pool: model.Pool) -> int:
        value = host.variables.get("myriad_gpus", pool.gpus_per_node)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= pool.gpus_per_node:
            self.report(
                host,
                "host-gpus",
                f"myriad_gpus is {names.show(value)}; it is the whole number of GPUs that a smaller node of the pool "
                f"has, from 1 to gpus_per_node ({pool.gpus_per_node})",
                variable="myriad_gpus",
            )
            return pool.gpus_per_node
        return int(value)

    def location(self, host: RawHost) -> tuple[str, ...]:
        wanted = "/".join(self.levels)
        value = host.variables.get("myriad_location")
        if value is None:
            self.report(host, "location-missing", f"myriad_location is missing; write the place as {wanted}")
            return ()
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            self.report(
                host,
                "location",
                f"myriad_location is {names.show(value)}; write the place as the text {wanted}",
                variable="myriad_location",
            )
            return ()
        steps = tuple(value.split("/"))
        fault: str | None = None
        if len(steps) != len(self.levels) and self.levels_are_known:
            fault = (
                f"has {len(steps)} level{'s' if len(steps) != 1 else ''}; "
                f"topology_levels needs {len(self.levels)} ({wanted})"
            )
        else:
            fault = next((found for step in steps if (found := names.place_fault(step)) is not None), None)
        if fault is None and len(value) > names.MAX_NAME:
            fault = (
                f"has {len(value)} characters; it becomes a label value, of which Kubernetes allows {names.MAX_NAME}"
            )
        if fault is not None:
            self.report(
                host,
                "location-depth" if "topology_levels" in fault else "location",
                f'myriad_location "{value}" {fault}',
                variable="myriad_location",
            )
            return ()
        self.check_location_is_single(host)
        return steps if len(steps) == len(self.levels) else ()

    def check_location_is_single(self, host: RawHost) -> None:
        """A host that two groups place differently is listed in two racks."""
        if "myriad_location" in host.own:
            return
        placing = [
            group
            for name in sorted(host.groups)
            if (group := self.raw.groups.get(name)) is not None and "myriad_location" in group.variables
        ]
        if len(placing) < 2:
            return
        # An inner group may refine its parent; only groups on different branches contradict each other.
        outer = {ancestor for group in placing for ancestor in self._ancestors(group)}
        rivals = [group for group in placing if group.name not in outer]
        if len({str(group.variables["myriad_location"]) for group in rivals}) > 1:
            said = " and ".join(f'"{group.variables["myriad_location"]}" (group {group.name})' for group in rivals)
            self.report(host, "two-locations", f"gets two places: {said}; list it in one of the groups")

    def _ancestors(self, group: RawGroup) -> set[str]:
        found: set[str] = set()
        queue = list(group.parents)
        while queue:
            name = queue.pop()
            if name not in found:
                found.add(name)
                queue += self.raw.groups[name].parents if name in self.raw.groups else ()
        return found

    def check_twins(self) -> None:
        """Two entries for one machine: one address twice, or names that differ only in zero padding."""
        by_address: dict[str, str] = {}
        by_name: dict[str, str] = {}
        for name, host in self.hosts.items():
            raw = self.raw.hosts[name]
            first = by_address.setdefault(names.address_key(host.address), name)
            twin = by_name.setdefault(names.zero_padding_key(name), name)
            if first != name and first == twin:
                self.report(
                    raw, "twin", f"also listed as {first} with the same address {host.address}; remove one of them"
                )
            elif first != name:
                self.report(
                    raw,
                    "duplicate-address",
                    f"has the address {host.address}, which {first} has too",
                    variable="ansible_host",
                )
            elif twin != name:
                self.report(
                    raw,
                    "twin",
                    f"differs from {twin} only in zeros; is one machine listed twice?",
                    severity_is_warning=True,
                )

    def check_boards(self) -> None:
        """Cards that come soldered on boards of 4, 8 or 16: more than a board on a node is a slip."""
        for name, pool in self.parts.pools.items():
            written = self.raw.variables["myriad_pools"][name]
            if not isinstance(written, Mapping) or written.get("model") != pool.model:
                continue  # a placeholder stands for a model that was refused
            boards = CATALOG[pool.model].per_board
            if boards and pool.gpus_per_node > max(boards):
                self.problems.append(
                    Problem(
                        "gpus-per-node",
                        f"is {pool.gpus_per_node}; {pool.model} comes on boards of "
                        f"{' or '.join(str(count) for count in boards)}",
                        "warning",
                        key=f"myriad_pools.{name}.gpus_per_node",
                        origin=self.raw.origin_of(("myriad_pools", name, "gpus_per_node")),
                    )
                )
