"""A cache filled with what the caller may read: the whole cluster, or one namespace for a plain user of a team."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from myriad.cli import _cluster as cluster
from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import NAMESPACES, PODS, WORKLOADS, Resource
from myriad.kube.listing import listed
from myriad.scheduler.cache import FOLLOWED, Cache
from myriad.scheduler.inquiry import PLACEMENT, QUOTA

Json = dict[str, Any]


def read_what_is_allowed(api: Api, namespace: str) -> tuple[Cache, frozenset[str]]:
    """The cluster as these credentials see it, and what is missing of it by plural name.

    A kind that may be read in `namespace` alone is read there. Where other namespaces' pods are hidden, nothing can be
    said about free nodes (`PLACEMENT`), where their Workloads are, nothing about quota that is used (`QUOTA`).

    Raises MyriadError where not even the namespace's Workloads may be read.
    """
    cache = Cache(check_name=cluster.CHECK)
    missing: set[str] = set()

    def fetch(resource: Resource) -> tuple[list[Json] | None, bool]:
        try:
            return api.list(resource)[0], True
        except ApiError as error:
            if error.status not in (401, 403, 404):
                raise
            if error.is_not_found or not (resource.namespaced or resource is NAMESPACES):
                return None, False
        if resource is not NAMESPACES:
            return listed(api, resource, namespace=namespace), False
        try:
            return [api.get(resource, namespace)], False
        except ApiError as error:
            if error.status not in (401, 403, 404):
                raise
            return None, False

    with ThreadPoolExecutor(max_workers=6) as pool:
        for resource, (items, whole) in zip(FOLLOWED, pool.map(fetch, FOLLOWED), strict=True):
            if items is None:
                missing.add(resource.plural)
            else:
                cache.replace(resource.plural, items)
            if not whole and resource is PODS:
                missing.add(PLACEMENT)
            if not whole and resource is WORKLOADS:
                missing.add(QUOTA)
    if WORKLOADS.plural in missing:
        raise MyriadError(
            f"Kueue's Workloads cannot be read in namespace {namespace}: Kueue is not installed, or these credentials "
            "may not see it",
            where=api.base_url,
            hint=f"`kubectl -n {namespace} get workloads` shows which; the site run installs Kueue",
        )
    return cache, frozenset(missing)


def own_namespace(kubeconfig: str | None) -> str:
    """The namespace of the kubeconfig's context, `default` where it names none."""
    from kubernetes import config

    try:
        _, context = config.list_kube_config_contexts(config_file=kubeconfig)  # type: ignore[no-untyped-call]
    except config.ConfigException:
        return "default"
    return str(((context or {}).get("context") or {}).get("namespace") or "default")
