"""What `myriad job submit` looks at: the cluster as the caller may see it, and what the extension adds to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from myriad.cli import _cluster as cluster
from myriad.cli._scope import read_what_is_allowed
from myriad.errors import MyriadError
from myriad.jobs.judge import Balance
from myriad.kube.client import Api, ApiError, ClusterUnreachableError
from myriad.kube.kinds import (
    CONFIG_MAPS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    VOLCANO_QUEUES,
    VOLUME_CLAIMS,
    WORKLOAD_PRIORITY_CLASSES,
    Resource,
)
from myriad.kube.listing import listed
from myriad.lint.documents import Document
from myriad.lint.works import Work
from myriad.scheduler.cache import FOLLOWED, Cache
from myriad.scheduler.inquiry import PLACEMENT
from myriad.scheduler.model import is_gpu_resource
from myriad.scheduler.policy import CONFIG_MAP, NAMESPACE

Json = dict[str, Any]

#: What lint needs beside the cache: small kinds that say whether a job's words mean anything here.
_BESIDE = (PRIORITY_CLASSES, WORKLOAD_PRIORITY_CLASSES, VOLCANO_QUEUES)
_IN_NAMESPACE = (RESOURCE_QUOTAS, VOLUME_CLAIMS)
#: Kinds of the cache that lint looks at; pods are too many, and no rule about a new job asks for them.
_FROM_CACHE = frozenset({"Node", "LocalQueue", "ClusterQueue", "Cohort", "Namespace", "ResourceFlavor", "Topology"})


def cache_of(api: Api, namespaces: Sequence[str]) -> tuple[Cache, frozenset[str]]:
    """The cluster as these credentials see it, and what is missing of it.

    A plain user of a team sees the pods of its own namespaces only; how full the nodes are is then asked of the
    extension, which tells everybody how many GPUs of a node are used, and nobody by whom.
    """
    try:
        cache, missing = read_what_is_allowed(api, namespaces[0])
    except ClusterUnreachableError:
        raise
    except MyriadError as error:
        if isinstance(error, ApiError):
            raise
        return Cache(check_name=cluster.CHECK), frozenset(resource.plural for resource in FOLLOWED)
    if CONFIG_MAP not in {body["metadata"]["name"] for body in cache.listing(CONFIG_MAPS)}:
        try:
            rules = api.find(CONFIG_MAPS, CONFIG_MAP, namespace=NAMESPACE)
        except ApiError as error:
            if error.status not in (401, 403):
                raise
            rules = None
        if rules is not None:
            cache.upsert(CONFIG_MAPS.plural, rules)
    if PLACEMENT in missing and NODES.plural not in missing:
        told = cluster.ask_extension(api, "/v1/map")
        rows = told.get("nodes") if isinstance(told, dict) else None
        if isinstance(rows, dict) and rows:
            add_others(cache, rows)
            missing = missing - {PLACEMENT}
    return cache, missing


def add_others(cache: Cache, rows: Json) -> None:
    """Put GPUs that others use into the cache, as one pod a node: what is used, less what is seen already."""
    snapshot = cache.snapshot()
    for name, row in rows.items():
        column = snapshot.index.get(name)
        if column is None or not isinstance(row, dict):
            continue
        resources = [r for r in snapshot.nodes[column].allocatable if is_gpu_resource(r)]
        seen = sum(int(snapshot.used[snapshot.row[r], column]) for r in resources)
        hidden = int(row.get("used") or 0) - seen
        if hidden > 0 and resources:
            requests = {"requests": {resources[0]: str(hidden)}}
            cache.upsert(
                PODS.plural,
                {
                    "metadata": {"name": f"others-{name}", "namespace": "", "uid": f"others-{name}"},
                    "spec": {"nodeName": name, "containers": [{"name": "others", "resources": requests}]},
                    "status": {"phase": "Running"},
                },
            )


def context_of(
    api: Api, cache: Cache, missing: Iterable[str], namespaces: Sequence[str]
) -> tuple[list[Document], set[str]]:
    """What the job's words may refer to, and the kinds of which all objects are known."""
    documents: list[Document] = []
    sure: set[str] = set()
    for resource in FOLLOWED:
        if resource.kind in _FROM_CACHE and resource.plural not in missing:
            documents += [_document(resource, item) for item in cache.listing(resource)]
            sure.add(resource.kind)
    for resource in _BESIDE:
        items = listed(api, resource)
        if items is not None:
            documents += [_document(resource, item) for item in items]
            sure.add(resource.kind)
    for resource in _IN_NAMESPACE:
        found = [listed(api, resource, namespace=name) for name in namespaces]
        if all(items is not None for items in found):
            documents += [_document(resource, item) for items in found for item in items or []]
            sure.add(resource.kind)
    return documents, sure


def _document(resource: Resource, item: Json) -> Document:
    return Document({"apiVersion": resource.api_version, "kind": resource.kind, **item})


def balance_of(api: Api, cache: Cache, work: Work) -> Balance | None:
    """GPU-hours left, from the extension; None where it does not answer or nothing is budgeted."""
    policy = cache.policy()
    team = next((name for name, rules in policy.teams.items() if work.thing.namespace in rules.namespaces), "")
    if not team or work.queue not in policy.teams[team].gpu_hours:
        return None
    return balance_in(cluster.ask_extension(api, "/v1/budgets", {"team": team}), work.queue)


def balance_in(answer: Any, pool: str) -> Balance | None:
    """The team's own line for a pool in the extension's answer; None where there is none that can be read."""
    rows = answer.get("budgets") if isinstance(answer, dict) else answer
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, dict) or row.get("pool") != pool or row.get("project"):
            continue
        left, end = row.get("left_h"), row.get("period_end")
        if not isinstance(left, int | float) or isinstance(left, bool):
            continue
        # The end of a period comes as a time of day or as seconds since the epoch.
        until = datetime.fromtimestamp(end, UTC).date().isoformat() if isinstance(end, int) else str(end or "")[:10]
        period = row.get("period")
        return Balance(Decimal(str(left)), period if isinstance(period, str) else "period", until)
    return None
