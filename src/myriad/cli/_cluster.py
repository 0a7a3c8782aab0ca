"""What the verbs about a running cluster share: a cache filled once with the caller's own credentials."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from myriad.agent import brake
from myriad.cli.output import console
from myriad.errors import InputError, MyriadError
from myriad.kube.client import Api, ApiError, connect
from myriad.kube.kinds import CONFIG_MAPS, CRON_JOBS, LOCAL_QUEUES, NAMESPACES, WORKLOADS, Resource
from myriad.kube.listing import listed
from myriad.scheduler import deadman
from myriad.scheduler.cache import FOLLOWED, Cache
from myriad.scheduler.objects import TEAM_LABEL
from myriad.scheduler.policy import CONFIG_MAP as POLICY
from myriad.scheduler.policy import NAMESPACE as POLICY_NAMESPACE

Json = dict[str, Any]

CHECK = "myriad"
SERVICE = "/api/v1/namespaces/myriad-system/services/myriad-scheduler:http/proxy"


def reach(kubeconfig: str | None) -> Api:
    """The API server of --kubeconfig or $KUBECONFIG."""
    return connect(kubeconfig, in_cluster=False)


def node_portraits(api: Api, *, without: str) -> list[Json]:
    """Every NodePortrait.

    Args:
        api: the cluster.
        without: what to do where there are none.

    Raises:
        MyriadError: the cluster does not know the kind.
    """
    # Verbs that never ask pay nothing for the agent's modules.
    from myriad.kube.kinds import NODE_PORTRAITS

    try:
        return api.list(NODE_PORTRAITS)[0]
    except ApiError as error:
        if not error.is_not_found:
            raise
        raise MyriadError("the cluster has no NodePortraits", where=api.base_url, hint=without) from error


def read_cluster(api: Api) -> tuple[Cache, list[str]]:
    """A cache with the cluster as it is now, and what the caller may not read.

    Raises ClusterUnreachableError where nothing answers.
    """
    cache = Cache(check_name=CHECK)
    missing: list[str] = []

    def fetch(resource: Resource) -> list[Json] | None:
        # What is hidden is named in the answer instead of failing it.
        return listed(api, resource)

    with ThreadPoolExecutor(max_workers=6) as pool:
        for resource, items in zip(FOLLOWED, pool.map(fetch, FOLLOWED), strict=True):
            if items is None:
                missing.append(resource.plural)
            else:
                cache.replace(resource.plural, items)
    rules = _policy_map(api)
    if rules is not None:
        cache.upsert(CONFIG_MAPS.plural, rules)
    if WORKLOADS.plural in missing:
        raise MyriadError(
            "Kueue's Workloads cannot be read: Kueue is not installed, or these credentials may not see it",
            where=api.base_url,
            hint="`kubectl get workloads -A` shows which; the site run installs Kueue",
        )
    return cache, missing


def _policy_map(api: Api) -> Json | None:
    """The ConfigMap of the site's rules; None where there is none or the caller may not read it."""
    try:
        return api.find(CONFIG_MAPS, POLICY, namespace=POLICY_NAMESPACE)
    except ApiError as error:
        if error.status not in (401, 403):
            raise
        return None


def print_table(table: Table) -> None:
    """Print a table; where no terminal says how wide it is, wide enough that names stay whole."""
    wide = console if console.is_terminal else Console(file=console.file, width=160, highlight=False)
    wide.print(table)


def split_job(job: str, namespace: str | None) -> tuple[str | None, str]:
    """Namespace and name of `name` or `ns/name`. Raises InputError where the two disagree."""
    before, slash, name = job.rpartition("/")
    if not slash:
        return namespace, name
    if namespace and namespace != before:
        raise InputError(f"the job is given as {job}, but -n says {namespace}", hint="give the namespace once")
    return before, name


def namespaces_of_teams(cache: Cache) -> list[str]:
    """Namespaces that belong to a team, or have a queue."""
    teams = {
        body["metadata"]["name"]
        for body in cache.listing(NAMESPACES)
        if (body["metadata"].get("labels") or {}).get(TEAM_LABEL)
    }
    queues = {body["metadata"]["namespace"] for body in cache.listing(LOCAL_QUEUES)}
    return sorted(teams | queues)


def brakes(api: Api) -> list[Json]:
    """Brakes of the GPU gate that are on; none where the caller may not look into Myriad's own namespace."""
    maps = listed(api, CONFIG_MAPS, namespace=brake.NAMESPACE, labels=brake.BRAKE_LABEL)
    return brake.trips(maps, datetime.now(UTC)) if maps else []


def dead_man_asleep(api: Api) -> str:
    """Why nobody would detach the check of an extension that ends; "" where all is well or the caller may not look."""
    try:
        found = api.find(CRON_JOBS, deadman.CRON_JOB, namespace=POLICY_NAMESPACE)
    except ApiError as error:
        if error.status not in (401, 403):
            raise
        return ""
    return deadman.asleep(found, datetime.now(UTC))


def ask_extension(api: Api, path: str, params: dict[str, str] | None = None) -> Any | None:
    """A document from the extension through the API server's service proxy; None where it does not answer."""
    try:
        return api.get_raw(f"{SERVICE}{path}", params=params, headers=extension_headers(api))
    except (MyriadError, json.JSONDecodeError):
        return None


def extension_headers(api: Api) -> dict[str, str] | None:
    """Who asks, for the extension: the API server's proxy keeps the header Authorization to itself."""
    token = _token(api)
    return {"X-Myriad-Token": token} if token else None


def _token(api: Api) -> str:
    """A token for the extension alone where the caller may make one, else the caller's own; "" where there is none."""
    spec = {"audiences": ["myriad.dev/page"], "expirationSeconds": 600}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    try:
        return str(api.create(_VIEWER, body, namespace="myriad-system")["status"]["token"])
    except ApiError:
        scheme, _, own = api.headers().get("Authorization", "").partition(" ")
        return own if scheme == "Bearer" else ""


_VIEWER = Resource("", "v1", "serviceaccounts/myriad-viewer/token", "TokenRequest")
