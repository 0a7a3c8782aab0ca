"""What `myriad job new` knows of the place where a job goes: from an inventory, a cluster, or what was said."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from myriad.cli import _cluster as cluster
from myriad.errors import InputError
from myriad.jobs.request import PoolFacts
from myriad.kube.client import Api, ApiError, ClusterUnreachableError
from myriad.kube.kinds import CONFIG_MAPS, LOCAL_QUEUES
from myriad.kube.listing import listed
from myriad.scheduler.policy import CONFIG_MAP, NAMESPACE, SitePolicy

GRACE_S = 300


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known.

    Attributes:
        namespace: where the job goes.
        pool: its pool, which is its queue's name.
        facts: of the pool.
        pytorch_served: whether the cluster knows PyTorchJobs; None where no cluster was asked.
        grace_s: of the site's policy.
        priorities: the site's; empty where they are not known.
        says: what a person should know about it.
    """

    namespace: str
    pool: str
    facts: PoolFacts = field(default_factory=PoolFacts)
    pytorch_served: bool | None = None
    grace_s: int = GRACE_S
    priorities: Mapping[str, int] = field(default_factory=dict)
    says: tuple[str, ...] = ()


def facts_for(
    *,
    team: str,
    namespace: str,
    pool: str,
    resource: str,
    inventory: Sequence[Path],
    kubeconfig: str | None,
    offline: bool,
) -> Facts:
    """Everything that can be found out about the place.

    Raises:
        InputError: team, namespace or pool are unknown, or not said where they cannot be found out.
    """
    policy = _of_inventory(inventory) if inventory else None
    if not team and not namespace:
        teams = sorted(policy.teams) if policy is not None else []
        if len(teams) != 1:
            known = f": {', '.join(teams)}" if teams else ", or --namespace"
            raise InputError("nobody is named whose job it is", hint=f"give --team{known}")
        team = teams[0]
    served: bool | None = None
    queues: list[str] | None = None
    says: list[str] = []
    try:
        if not offline:
            with closing(cluster.reach(kubeconfig)) as api:
                policy = policy or _of_cluster(api)
                served = _serves_pytorch(api)
                queues = _queues(api, _namespace(team, namespace, policy))
    except ClusterUnreachableError as error:
        # A template needs no cluster; one that was named on purpose has to answer.
        if kubeconfig:
            raise
        if os.environ.get("KUBECONFIG"):
            says.append(f"the cluster does not answer, so it was not asked ({error.message})")
    where = _namespace(team, namespace, policy)
    chosen = _pool(pool, team, where, policy, queues)
    facts = PoolFacts()
    rules = policy.pools.get(chosen) if policy is not None else None
    if policy is not None and rules is not None:
        facts = PoolFacts(
            resource=rules.resource,
            gpus_per_node=rules.gpus_per_node,
            engine=rules.engine,
            level=f"myriad.dev/{policy.levels[-1]}" if policy.levels else "",
        )
    if resource:
        facts = replace(facts, resource=resource)
    return Facts(
        namespace=where,
        pool=chosen,
        facts=facts,
        pytorch_served=served,
        grace_s=policy.preemption.grace_s if policy is not None else GRACE_S,
        priorities=policy.priorities if policy is not None else {},
        says=tuple(says),
    )


def _of_inventory(inventory: Sequence[Path]) -> SitePolicy:
    from myriad.fleet import check
    from myriad.fleet.site_policy import policy_document
    from myriad.inventory import read_inventory

    checked = check(read_inventory(*inventory))
    if checked.errors:
        raise InputError(
            f"the inventory has errors; the first: {checked.errors[0].subject} {checked.errors[0].message}",
            where=str(inventory[0]),
            hint="`myriad validate -i INVENTORY` shows all of them",
        )
    return SitePolicy.read(policy_document(checked.fleet))


def _of_cluster(api: Api) -> SitePolicy | None:
    try:
        found = api.find(CONFIG_MAPS, CONFIG_MAP, namespace=NAMESPACE)
    except ApiError as error:
        if error.status in (401, 403):
            return None
        raise
    return SitePolicy.of_config_map(found) if found is not None else None


def _serves_pytorch(api: Api) -> bool | None:
    try:
        listed = api.get_raw("/apis/kubeflow.org/v1").get("resources") or []
    except ApiError as error:
        return False if error.is_not_found else None
    return any(item.get("name") == "pytorchjobs" for item in listed)


def _queues(api: Api, namespace: str) -> list[str] | None:
    queues = listed(api, LOCAL_QUEUES, namespace=namespace)
    return None if queues is None else sorted(item["metadata"]["name"] for item in queues)


def _namespace(team: str, namespace: str, policy: SitePolicy | None) -> str:
    if policy is None or not policy.teams or not team:
        return namespace or team
    rules = policy.teams.get(team)
    if rules is None:
        raise InputError(f"there is no team {team}", hint=f"the site has {', '.join(sorted(policy.teams))}")
    if namespace:
        if namespace not in rules.namespaces:
            raise InputError(
                f"namespace {namespace} is not one of team {team}", hint=f"it has {', '.join(rules.namespaces)}"
            )
        return namespace
    if len(rules.namespaces) > 1 and team not in rules.namespaces:
        raise InputError(
            f"team {team} has {len(rules.namespaces)} namespaces",
            hint=f"say which with -n: {', '.join(rules.namespaces)}",
        )
    return team if team in rules.namespaces or not rules.namespaces else rules.namespaces[0]


def _pool(pool: str, team: str, namespace: str, policy: SitePolicy | None, queues: list[str] | None) -> str:
    known: list[str] | None = None
    rules = policy.teams.get(team) if policy is not None else None
    if rules is not None:
        known = sorted(rules.quota)
    elif queues is not None:
        known = queues
    if pool:
        if known is not None and pool not in known:
            raise InputError(
                f"{team or namespace} has no queue for pool {pool}",
                hint=f"it has {', '.join(known)}" if known else "it has none: give it a quota in the inventory",
            )
        return pool
    if known is not None and len(known) == 1:
        return known[0]
    raise InputError(
        "the pool is not said" + (f", and {team or namespace} has {len(known)}" if known else ""),
        hint=f"give --pool: {', '.join(known)}" if known else "give --pool POOL (the name of its queue)",
    )
