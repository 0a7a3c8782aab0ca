"""The objects of a cluster that rules look at, read with the caller's own credentials."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError, Resource
from myriad.lint.documents import Document

_KUEUE = "kueue.x-k8s.io"
_VOLCANO = "scheduling.volcano.sh"
#: What is read. A kind that the cluster does not serve is not there, which is a fact like any other.
READ = (
    Resource("", "v1", "nodes", "Node", namespaced=False),
    Resource("", "v1", "namespaces", "Namespace", namespaced=False),
    Resource("", "v1", "pods", "Pod"),
    Resource("", "v1", "resourcequotas", "ResourceQuota"),
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    Resource("", "v1", "configmaps", "ConfigMap"),
    Resource("apps", "v1", "deployments", "Deployment"),
    Resource("apps", "v1", "statefulsets", "StatefulSet"),
    Resource("apps", "v1", "replicasets", "ReplicaSet"),
    Resource("batch", "v1", "jobs", "Job"),
    Resource("batch", "v1", "cronjobs", "CronJob"),
    Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False),
    Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False),
    Resource(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        namespaced=False,
    ),
    Resource(
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        namespaced=False,
    ),
    Resource(_KUEUE, "v1beta2", "clusterqueues", "ClusterQueue", namespaced=False),
    Resource(_KUEUE, "v1beta2", "localqueues", "LocalQueue"),
    Resource(_KUEUE, "v1beta2", "cohorts", "Cohort", namespaced=False),
    Resource(_KUEUE, "v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False),
    Resource(_KUEUE, "v1beta2", "topologies", "Topology", namespaced=False),
    Resource(_KUEUE, "v1beta2", "admissionchecks", "AdmissionCheck", namespaced=False),
    Resource(_KUEUE, "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False),
    Resource(_KUEUE, "v1beta2", "workloads", "Workload"),
    Resource(_VOLCANO, "v1beta1", "queues", "Queue", namespaced=False),
    Resource(_VOLCANO, "v1beta1", "podgroups", "PodGroup"),
    Resource("topology.volcano.sh", "v1alpha1", "hypernodes", "HyperNode", namespaced=False),
    Resource("batch.volcano.sh", "v1alpha1", "jobs", "Job"),
    Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob"),
    Resource("kubeflow.org", "v1", "mpijobs", "MPIJob"),
    Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob"),
    Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime"),
    Resource("trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False),
    Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet"),
    Resource("ray.io", "v1", "rayjobs", "RayJob"),
    Resource("ray.io", "v1", "rayclusters", "RayCluster"),
)


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
