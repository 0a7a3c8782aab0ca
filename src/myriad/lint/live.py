"""The objects of a cluster that rules look at, read with the caller's own credentials."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import (
    ADMISSION_CHECKS,
    API_SERVICES,
    CLUSTER_QUEUES,
    CLUSTER_TRAINING_RUNTIMES,
    COHORTS,
    CONFIG_MAPS,
    CRON_JOBS,
    DEPLOYMENTS,
    HYPER_NODES,
    JAX_JOBS,
    JOB_SETS,
    JOBS,
    LEADER_WORKER_SETS,
    LOCAL_QUEUES,
    MPI_JOBS,
    MPI_JOBS_V1,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PADDLE_JOBS,
    POD_GROUPS,
    PODS,
    PRIORITY_CLASSES,
    PYTORCH_JOBS,
    RAY_CLUSTERS,
    RAY_JOBS,
    REPLICA_SETS,
    RESOURCE_FLAVORS,
    RESOURCE_QUOTAS,
    STATEFUL_SETS,
    TF_JOBS,
    TOPOLOGIES,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
    VALIDATING_WEBHOOKS,
    VOLCANO_JOBS,
    VOLCANO_QUEUES,
    VOLUME_CLAIMS,
    WORKLOAD_PRIORITY_CLASSES,
    WORKLOADS,
    XGBOOST_JOBS,
    Resource,
)
from myriad.lint.documents import Document

#: What is read. A kind that the cluster does not serve is not there, which is a fact like any other.
READ = (
    NODES, NAMESPACES, PODS, RESOURCE_QUOTAS, VOLUME_CLAIMS, CONFIG_MAPS, DEPLOYMENTS, STATEFUL_SETS, REPLICA_SETS,
    JOBS, CRON_JOBS, PRIORITY_CLASSES, API_SERVICES, MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, CLUSTER_QUEUES,
    LOCAL_QUEUES, COHORTS, RESOURCE_FLAVORS, TOPOLOGIES, ADMISSION_CHECKS, WORKLOAD_PRIORITY_CLASSES, WORKLOADS,
    VOLCANO_QUEUES, POD_GROUPS, HYPER_NODES, VOLCANO_JOBS, PYTORCH_JOBS, MPI_JOBS, MPI_JOBS_V1, TF_JOBS, XGBOOST_JOBS,
    PADDLE_JOBS, JAX_JOBS, TRAIN_JOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES, JOB_SETS, RAY_JOBS, RAY_CLUSTERS,
    LEADER_WORKER_SETS,
)  # fmt: skip


def read(api: Api, *, resources: Iterable[Resource] = READ) -> tuple[list[Document], frozenset[str], list[str]]:
    """Objects of the cluster; kinds of which all were read; and what these credentials may not read.

    Raises:
        MyriadError: nothing can be read at all.
    """
    wanted = list(resources)

    def fetch(resource: Resource) -> list[Document] | int:
        try:
            items, _ = api.list(resource)
        except ApiError as error:
            if error.status in (401, 403, 404):
                return error.status
            raise
        # Items of a list come without their kind.
        return [Document({"apiVersion": resource.api_version, "kind": resource.kind, **item}) for item in items]

    documents: list[Document] = []
    complete: set[str] = set()
    forbidden: list[str] = []
    with ThreadPoolExecutor(max_workers=6) as pool:
        for resource, found in zip(wanted, pool.map(fetch, wanted), strict=True):
            if isinstance(found, list):
                documents += found
                complete.add(resource.kind)
            elif found == 404:
                continue
            else:
                forbidden.append(resource.plural)
    if not complete:
        raise MyriadError(
            "these credentials may read nothing that could be looked at",
            where=api.base_url,
            hint="`kubectl auth can-i list jobs -A`; or lint files: `myriad lint FILE|DIR`",
        )
    return documents, frozenset(complete), forbidden
