"""Reads from the API what `myriad.drift.live` judges: lists of whole kinds, whatever the number of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from myriad.drift.live import by_hand, nodes_against, strays, versions
from myriad.kube.client import Api, ApiError, Json
from myriad.kube.kinds import (
    ADMISSION_CHECKS,
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    CLUSTER_QUEUES,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    COHORTS,
    CONFIG_MAPS,
    DAEMON_SETS,
    DEPLOYMENTS,
    LOCAL_QUEUES,
    MUTATING_WEBHOOKS,
    NETWORK_POLICIES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_FLAVORS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    SERVICES,
    TOPOLOGIES,
    VALIDATING_WEBHOOKS,
    WORKLOAD_PRIORITY_CLASSES,
    Resource,
)
from myriad.kube.objects import SET_LABEL

# Kinds that only the description makes: another object of them decides about quota, priority or admission unseen.
DESCRIBED = (
    TOPOLOGIES, RESOURCE_FLAVORS, COHORTS, CLUSTER_QUEUES, LOCAL_QUEUES, ADMISSION_CHECKS, WORKLOAD_PRIORITY_CLASSES,
    PRIORITY_CLASSES, ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS,
)  # fmt: skip
_OF_KUBERNETES = {PRIORITY_CLASSES: ("system-",)}
# Kinds whose objects of a set are searched for fields that somebody added.
OWNED = (
    *DESCRIBED, DEPLOYMENTS, DAEMON_SETS, CONFIG_MAPS, SERVICES, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, CLUSTER_ROLES,
    CLUSTER_ROLE_BINDINGS, NETWORK_POLICIES, MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS,
)  # fmt: skip
# What kubeadm made, in kube-system and without a set.
_KUBEADM = {
    DEPLOYMENTS: ("coredns",),
    DAEMON_SETS: ("kube-proxy",),
    CONFIG_MAPS: ("coredns", "kube-proxy", "kubeadm-config", "kubelet-config"),
}
_WORKERS = 8


def look(api: Api, described: Sequence[str], locked: dict[str, str]) -> tuple[list[dict[str, str]], list[str]]:
    """What neither the description nor a program of the cluster made, and notes.

    Args:
        api: the cluster.
        described: hosts of the description that are Nodes.
        locked: components of the lock and their versions.
    """
    reads: list[tuple[Resource, str | None, str | None]] = [
        (resource, None if resource in DESCRIBED else SET_LABEL, None) for resource in OWNED
    ]
    reads += [(resource, None, "kube-system") for resource in _KUBEADM]
    with ThreadPoolExecutor(_WORKERS) as pool:
        answers = list(pool.map(lambda read: _list(api, read[0], labels=read[1], namespace=read[2]), reads))
        nodes, pods = pool.map(lambda call: call(), (lambda: api.list(NODES)[0], lambda: _control_plane(api)))
    found: list[dict[str, str]] = []
    for (resource, _labels, namespace), items in zip(reads, answers, strict=True):
        if namespace is not None:
            names = _KUBEADM[resource]
            items = [item for item in items if item["metadata"]["name"] in names]
        elif resource in DESCRIBED:
            found += strays(resource.kind, items, ignored_prefixes=_OF_KUBERNETES.get(resource, ()))
            items = [item for item in items if (item["metadata"].get("labels") or {}).get(SET_LABEL)]
        for item in items:
            found += by_hand(resource.kind, item)
    against, notes = nodes_against(described, nodes)
    return found + against + versions(locked, nodes, pods), notes


def _list(api: Api, resource: Resource, *, labels: str | None, namespace: str | None) -> list[Json]:
    """Objects of a kind; none where the cluster does not serve it."""
    try:
        return api.list(resource, namespace=namespace, labels=labels)[0]
    except ApiError as error:
        if error.is_not_found:
            return []
        raise


def _control_plane(api: Api) -> list[Json]:
    return api.list(PODS, namespace="kube-system", labels="tier=control-plane")[0]
