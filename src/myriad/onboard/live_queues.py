"""Kueue's queues, cohorts and priorities of a running cluster as teams and quotas. Pure.

Field names are those of kueue.x-k8s.io/v1beta2 with the older ones of v1beta1 beside them (`cohort`, `parent`). A team
of the description has one ClusterQueue for each pool (docs/adr/0004); one with several flavors is one team.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from myriad.fleet import names, quantity
from myriad.fleet.catalog import GpuModel
from myriad.fleet.labels import TEAM_LABEL
from myriad.fleet.model import INFERENCE_COHORT_SUFFIX, MAX_PRIORITY, RESERVED_NAMESPACES
from myriad.onboard.live_nodes import Gap, dns_name, free_name, name_of

Json = dict[str, Any]

CHECK = "myriad"
_SHIELDED = "-shielded"
_UNBOUND_CPU = 10**6
"""Cores: a quota of more than any cluster has binds nobody."""
_UNBOUND_MEMORY = 2**50
_PREEMPTION = {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}
"""What the description makes of every training queue; another setting is named."""


@dataclass(slots=True)
class LiveTeam:
    """A team as it will be written; empty parts are left out."""

    namespaces: list[str] = field(default_factory=list)
    quota: dict[str, int] = field(default_factory=dict)
    weight: Fraction = Fraction(1)
    cohort: str = ""
    borrow: dict[str, int] = field(default_factory=dict)
    lend: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class LiveQueues:
    """What the queues say.

    Attributes:
        teams: by name.
        cohorts: by name, with `parent` and `weight` where they are not the usual ones.
        priorities: value by class; empty where the cluster has none.
        inference: pools whose queues share in a tree of their own.
        per_gpu: pools whose CPU and memory are counted by GPU: `cpu_per_gpu`, `memory_per_gpu`.
        gaps: what could not be described.
    """

    teams: dict[str, LiveTeam] = field(default_factory=dict)
    cohorts: dict[str, dict[str, Any]] = field(default_factory=dict)
    priorities: dict[str, int] = field(default_factory=dict)
    inference: set[str] = field(default_factory=set)
    per_gpu: dict[str, dict[str, Any]] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Quota:
    """One flavor of one ClusterQueue, in GPUs, cores and bytes."""

    queue: str
    team: str
    pool: str
    gpus: int
    cpu: Fraction | None
    memory: Fraction | None


def read_queues(
    cluster_queues: Sequence[Json],
    local_queues: Sequence[Json],
    cohorts: Sequence[Json],
    priorities: Sequence[Json],
    *,
    pools: Mapping[str, tuple[GpuModel, str]],
    pool_of_flavor: Mapping[str, str],
) -> LiveQueues:
    """Teams, cohorts and priorities.

    Args:
        cluster_queues, local_queues, cohorts: every object of the kind.
        priorities: every WorkloadPriorityClass.
        pools: model and resource by pool.
        pool_of_flavor: pool by ResourceFlavor.
    """
    found = LiveQueues()
    bodies = sorted(cluster_queues, key=name_of)
    team_of = _teams(bodies, pool_of_flavor, found)
    rows: list[_Quota] = []
    for body in bodies:
        rows += _quotas(body, team_of[name_of(body)], pools, pool_of_flavor, found)
        _settings(body, found)
    _inference(bodies, rows, found)
    for body in bodies:
        _sharing(body, team_of[name_of(body)], found)
    _cohorts(cohorts, found)
    _rename_twins(found)
    _namespaces(local_queues, team_of, rows, found)
    _per_gpu(rows, found)
    _priorities(priorities, found)
    for team in found.teams.values():
        # Without a cohort there is nobody to borrow from or lend to: a description refuses such limits.
        team.borrow = team.borrow if team.cohort else {}
        team.lend = {p: min(n, team.quota[p]) for p, n in team.lend.items()} if team.cohort else {}
    return found


# -- teams -------------------------------------------------------------------------------------------------------------


def _teams(bodies: Sequence[Json], pool_of_flavor: Mapping[str, str], found: LiveQueues) -> dict[str, str]:
    """The team of each ClusterQueue: its label's, else its name's, without the name of its only pool."""
    team_of: dict[str, str] = {}
    for body in bodies:
        name = name_of(body)
        pools = {pool_of_flavor[flavor] for flavor in _flavors(body) if flavor in pool_of_flavor}
        wanted = (body["metadata"].get("labels") or {}).get(TEAM_LABEL) or name
        if wanted == name and len(pools) == 1:
            wanted = name.removesuffix(f"-{next(iter(pools))}")
        team_of[name] = team = dns_name(wanted)
        if team != wanted:
            found.gaps.append(Gap(f"ClusterQueue {name}", f'its name is no team\'s; the team is "{team}"'))
        found.teams.setdefault(team, LiveTeam())
    return team_of


def _flavors(body: Json) -> list[str]:
    groups = (body.get("spec") or {}).get("resourceGroups") or []
    return [str(flavor["name"]) for group in groups for flavor in group.get("flavors") or []]


def _quotas(
    body: Json,
    team_name: str,
    pools: Mapping[str, tuple[GpuModel, str]],
    pool_of_flavor: Mapping[str, str],
    found: LiveQueues,
) -> list[_Quota]:
    team, subject = found.teams[team_name], f"ClusterQueue {name_of(body)}"
    rows = []
    for group in (body.get("spec") or {}).get("resourceGroups") or []:
        for flavor in group.get("flavors") or []:
            by_name = {str(r["name"]): r for r in flavor.get("resources") or []}
            pool = pool_of_flavor.get(str(flavor["name"]))
            if pool is None:
                found.gaps.append(
                    Gap(
                        subject, f"its quota of flavor {flavor['name']} ({_amounts(by_name)}): no node with GPUs has it"
                    )
                )
                continue
            resource = pools[pool][1]
            gpu = by_name.pop(resource, None)
            others = {n: r for n, r in by_name.items() if n not in ("cpu", "memory")}
            if others:
                found.gaps.append(Gap(subject, f"its quota of {_amounts(others)} in pool {pool}"))
            if gpu is None:
                found.gaps.append(Gap(subject, f"pool {pool} without a quota of {resource} ({_amounts(by_name)})"))
                continue
            if pool in team.quota:
                found.gaps.append(
                    Gap(subject, f"a second quota of team {team_name} in pool {pool}; both were added up")
                )
            gpus = _whole(gpu.get("nominalQuota"))
            team.quota[pool] = team.quota.get(pool, 0) + gpus
            for limits, key in ((team.borrow, "borrowingLimit"), (team.lend, "lendingLimit")):
                if gpu.get(key) is not None:
                    limits[pool] = limits.get(pool, 0) + _whole(gpu[key])
            cpu, memory = (_value(by_name.get(n, {}).get("nominalQuota")) for n in ("cpu", "memory"))
            rows.append(_Quota(name_of(body), team_name, pool, gpus, cpu, memory))
    return rows


def _amounts(by_name: Mapping[str, Json]) -> str:
    return ", ".join(f"{name} {r.get('nominalQuota')}" for name, r in by_name.items()) or "nothing"


def _settings(body: Json, found: LiveQueues) -> None:
    """What the description sets alike for all, where this queue has it otherwise."""
    spec, subject = body.get("spec") or {}, f"ClusterQueue {name_of(body)}"
    preemption = spec.get("preemption") or {}
    other = {k: v for k, v in preemption.items() if k in _PREEMPTION and v not in (_PREEMPTION[k], None)}
    if (preemption.get("borrowWithinCohort") or {}).get("policy", "Never") != "Never":
        other["borrowWithinCohort"] = preemption["borrowWithinCohort"]["policy"]
    said = [f"{key} is {value}" for key, value in sorted(other.items())]
    if spec.get("queueingStrategy", "BestEffortFIFO") != "BestEffortFIFO":
        said.append(f"queueingStrategy is {spec['queueingStrategy']}")
    if spec.get("stopPolicy", "None") != "None":
        said.append(f"stopPolicy is {spec['stopPolicy']}")
    if spec.get("admissionScope"):
        said.append("it has an admissionScope")
    if spec.get("flavorFungibility") and len(_flavors(body)) > 1:
        said.append("flavorFungibility chooses between its flavors; each pool gets a queue of its own")
    strategy = spec.get("admissionChecksStrategy") or {}
    checks = [*(spec.get("admissionChecks") or []), *(c["name"] for c in strategy.get("admissionChecks") or [])]
    foreign = sorted(check for check in checks if check != CHECK)
    if foreign:
        said.append(f"it asks the admission check{'' if len(foreign) == 1 else 's'} {', '.join(foreign)}")
    found.gaps += [Gap(subject, text) for text in said]


def _cohort_name(body: Json) -> str:
    spec = body.get("spec") or {}
    return str(spec.get("cohortName") or spec.get("cohort") or "")


def _inference(bodies: Sequence[Json], rows: Sequence[_Quota], found: LiveQueues) -> None:
    """Pools all of whose queues share in a cohort `<name>-inference`: the tree that an inference pool gets."""
    cohort_of = {name_of(body): _cohort_name(body) for body in bodies}
    by_pool: dict[str, set[str]] = {}
    for row in rows:
        by_pool.setdefault(row.pool, set()).add(cohort_of[row.queue])
    found.inference = {
        pool for pool, cohorts in by_pool.items() if all(c.endswith(INFERENCE_COHORT_SUFFIX) for c in cohorts)
    }


def _sharing(body: Json, team_name: str, found: LiveQueues) -> None:
    team, subject = found.teams[team_name], f"ClusterQueue {name_of(body)}"
    cohort = _base(_cohort_name(body), found)
    if cohort:
        known = dns_name(cohort)
        if team.cohort and team.cohort != known:
            found.gaps.append(Gap(subject, f"its cohort {cohort}: team {team_name} shares in {team.cohort} already"))
        else:
            team.cohort = known
        if known != cohort:
            found.gaps.append(Gap(subject, f'its cohort {cohort} is written "{known}"'))
        found.cohorts.setdefault(known, {})
    weight = _value(((body.get("spec") or {}).get("fairSharing") or {}).get("weight", 1))
    if not weight:
        found.gaps.append(Gap(subject, "its weight is 0: a weight is above 0, so it was left at 1"))
    elif weight != 1:
        team.weight = weight


def _base(cohort: str, found: LiveQueues) -> str:
    """A cohort's name without the suffix of the tree of inference pools, where there are any."""
    return cohort.removesuffix(INFERENCE_COHORT_SUFFIX) if found.inference else cohort


def _cohorts(bodies: Sequence[Json], found: LiveQueues) -> None:
    for body in sorted(bodies, key=name_of):
        spec, name = body.get("spec") or {}, _base(name_of(body), found)
        fields = found.cohorts.setdefault(dns_name(name), {})
        parent = _base(str(spec.get("parentName") or spec.get("parent") or ""), found)
        if parent:
            fields["parent"] = dns_name(parent)
            found.cohorts.setdefault(dns_name(parent), {})
        weight = _value((spec.get("fairSharing") or {}).get("weight", 1))
        if weight and weight != 1:
            fields["weight"] = _number(weight)
        if spec.get("resourceGroups"):
            found.gaps.append(
                Gap(f"Cohort {name_of(body)}", "it has quotas of its own; teams alone own GPUs in a description")
            )


def _rename_twins(found: LiveQueues) -> None:
    """A cohort that is called as Myriad calls the inference side of another one gets another name."""
    for cohort in sorted(found.cohorts):
        base = cohort.removesuffix(INFERENCE_COHORT_SUFFIX)
        if base == cohort or base not in found.cohorts:
            continue
        renamed = free_name(f"{base}-inf", found.cohorts)
        found.cohorts[renamed] = found.cohorts.pop(cohort)
        for fields in found.cohorts.values():
            if fields.get("parent") == cohort:
                fields["parent"] = renamed
        for team in found.teams.values():
            if team.cohort == cohort:
                team.cohort = renamed
        what = f'is what Myriad calls the inference side of {base}; it is written "{renamed}"'
        found.gaps.append(Gap(f"Cohort {cohort}", what))


def _namespaces(
    local_queues: Sequence[Json], team_of: Mapping[str, str], rows: Sequence[_Quota], found: LiveQueues
) -> None:
    pools_of_queue: dict[str, set[str]] = {}
    for row in rows:
        pools_of_queue.setdefault(row.queue, set()).add(row.pool)
    votes: dict[str, Counter[str]] = {}
    for body in local_queues:
        team = team_of.get(str((body.get("spec") or {}).get("clusterQueue") or ""))
        if team is not None:
            votes.setdefault(str(body["metadata"]["namespace"]), Counter())[team] += 1
    # The team of most of its queues; of two with as many the one of the same name.
    owner = {
        namespace: min((-queues, team != namespace, team) for team, queues in counts.items())[2]
        for namespace, counts in votes.items()
    }
    renamed: dict[tuple[str, str], list[str]] = {}
    for body in sorted(local_queues, key=lambda b: (b["metadata"]["namespace"], name_of(b))):
        namespace, queue = str(body["metadata"]["namespace"]), str((body.get("spec") or {}).get("clusterQueue") or "")
        subject = f"LocalQueue {namespace}/{name_of(body)}"
        team = team_of.get(queue)
        if team is None:
            found.gaps.append(Gap(subject, f"its ClusterQueue {queue} does not exist"))
            continue
        if namespace in RESERVED_NAMESPACES or namespace.startswith("kube-"):
            found.gaps.append(Gap(subject, f"namespace {namespace} belongs to the system; a team has one of its own"))
            continue
        if owner[namespace] != team:
            whose = f"the namespace is team {owner[namespace]}'s, and has one team"
            found.gaps.append(Gap(subject, f"leads to team {team}; {whose}"))
            continue
        if namespace not in found.teams[team].namespaces:
            found.teams[team].namespaces.append(namespace)
        pools = pools_of_queue.get(queue, set())
        if pools and name_of(body) not in pools:
            renamed.setdefault((name_of(body), ", ".join(sorted(pools))), []).append(namespace)
    for (name, pools_text), some in sorted(renamed.items()):
        found.gaps.append(
            Gap(
                f"{len(some)} LocalQueue{'' if len(some) == 1 else 's'} {name}",
                f"{names.listing(some)}: a queue of the description is named like its pool ({pools_text}); jobs that "
                f"name {name} have to be changed before it goes",
            )
        )
    for name, without in found.teams.items():
        if not without.namespaces:
            made = free_name(f"{name}-team" if name in RESERVED_NAMESPACES else name, owner)
            owner[made] = name
            without.namespaces.append(made)
            found.gaps.append(Gap(f"team {name}", f'no LocalQueue leads to it; "{made}" was written as its namespace'))


# -- the rest ----------------------------------------------------------------------------------------------------------


def _per_gpu(rows: Sequence[_Quota], found: LiveQueues) -> None:
    """CPU and memory that are the same multiple of every team's GPUs; others are named."""
    for key, field_name, unbound in (
        ("cpu", "cpu_per_gpu", Fraction(_UNBOUND_CPU)),
        ("memory", "memory_per_gpu", Fraction(_UNBOUND_MEMORY)),
    ):
        by_pool: dict[str, list[tuple[_Quota, Fraction]]] = {}
        for row in rows:
            amount = row.cpu if key == "cpu" else row.memory
            if amount is not None and amount < unbound and (row.gpus or amount):
                by_pool.setdefault(row.pool, []).append((row, amount))
        for pool, bound in sorted(by_pool.items()):
            ratios = Counter(amount / row.gpus for row, amount in bound if row.gpus)
            ratio = ratios.most_common(1)[0][0] if ratios else Fraction(0)
            fits = ratio > 0 and (key == "memory" or ratio.denominator <= 1000)
            if fits:
                text = quantity.canonical(ratio, binary=True) if key == "memory" else _number(ratio)
                found.per_gpu.setdefault(pool, {})[field_name] = text
            for row, amount in bound:
                if not fits or amount != ratio * row.gpus:
                    shown = quantity.canonical(amount, binary=key == "memory")
                    found.gaps.append(
                        Gap(
                            f"ClusterQueue {row.queue}",
                            f"its {key} of {shown} is no multiple of its GPUs as others' is",
                        )
                    )


def _priorities(bodies: Sequence[Json], found: LiveQueues) -> None:
    classes = {name_of(body): int(body.get("value") or 0) for body in bodies}
    for name, value in sorted(classes.items(), key=lambda item: (-item[1], item[0])):
        if name.endswith(_SHIELDED) and name.removesuffix(_SHIELDED) in classes:
            continue
        fault = names.dns_label_fault(name) or ("" if not name.startswith("system-") else "the system's own name")
        if fault or not 0 <= value <= MAX_PRIORITY:
            what = fault or f"its value {value} is not from 0 to {MAX_PRIORITY}"
            found.gaps.append(Gap(f"WorkloadPriorityClass {name}", f"{what}; it is left out"))
            continue
        found.priorities[name] = value


def _whole(text: Any) -> int:
    value = _value(text)
    return int(value) if value is not None else 0


def _value(text: Any) -> Fraction | None:
    if text is None:
        return None
    try:
        return quantity.parse(text)[0]
    except ValueError:
        return None


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)
