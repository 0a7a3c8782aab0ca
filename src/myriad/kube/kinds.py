"""Kinds of objects by their place in the API, each written once. Pure: no request is made here.

What a cluster does not serve (a training operator that is not there) answers 404, which is the caller's to judge.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object by its place in the API.

    Args:
        group: the API group, empty for the core group.
        version: the served version.
        plural: the name in the path.
        kind: the name in the object.
        namespaced: whether objects live in a namespace.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The `apiVersion` of an object of this kind."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of the collection, of one object, or of a part of it."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            # What a person types is a name and never a way to another object.
            parts.append(quote(name, safe=":"))
        if subresource:
            parts.append(subresource)
        return "/" + "/".join(parts)


CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
EVENTS = Resource("", "v1", "events", "Event")
LIMIT_RANGES = Resource("", "v1", "limitranges", "LimitRange")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
SECRETS = Resource("", "v1", "secrets", "Secret")
SERVICES = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")

DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
CRON_JOBS = Resource("batch", "v1", "cronjobs", "CronJob")
JOBS = Resource("batch", "v1", "jobs", "Job")
DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
VOLUME_ATTACHMENTS = Resource("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", namespaced=False)
API_SERVICES = Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False)

_ADMISSION = "admissionregistration.k8s.io"
ADMISSION_POLICIES = Resource(
    _ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False
)
ADMISSION_POLICY_BINDINGS = Resource(
    _ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", namespaced=False
)
MUTATING_WEBHOOKS = Resource(
    _ADMISSION, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", namespaced=False
)
VALIDATING_WEBHOOKS = Resource(
    _ADMISSION, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False
)

_RBAC = "rbac.authorization.k8s.io"
CLUSTER_ROLES = Resource(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = Resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
ROLES = Resource(_RBAC, "v1", "roles", "Role")
ROLE_BINDINGS = Resource(_RBAC, "v1", "rolebindings", "RoleBinding")
CERTIFICATE_REQUESTS = Resource(
    "certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", namespaced=False
)
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
SELF_REVIEWS = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)

_KUEUE = "kueue.x-k8s.io"
ADMISSION_CHECKS = Resource(_KUEUE, "v1beta2", "admissionchecks", "AdmissionCheck", namespaced=False)
CLUSTER_QUEUES = Resource(_KUEUE, "v1beta2", "clusterqueues", "ClusterQueue", namespaced=False)
COHORTS = Resource(_KUEUE, "v1beta2", "cohorts", "Cohort", namespaced=False)
LOCAL_QUEUES = Resource(_KUEUE, "v1beta2", "localqueues", "LocalQueue")
RESOURCE_FLAVORS = Resource(_KUEUE, "v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False)
TOPOLOGIES = Resource(_KUEUE, "v1beta2", "topologies", "Topology", namespaced=False)
WORKLOADS = Resource(_KUEUE, "v1beta2", "workloads", "Workload")
WORKLOAD_PRIORITY_CLASSES = Resource(
    _KUEUE, "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False
)

_VOLCANO = "scheduling.volcano.sh"
HYPER_NODES = Resource("topology.volcano.sh", "v1alpha1", "hypernodes", "HyperNode", namespaced=False)
POD_GROUPS = Resource(_VOLCANO, "v1beta1", "podgroups", "PodGroup")
VOLCANO_JOBS = Resource("batch.volcano.sh", "v1alpha1", "jobs", "Job")
VOLCANO_QUEUES = Resource(_VOLCANO, "v1beta1", "queues", "Queue", namespaced=False)

_KUBEFLOW = "kubeflow.org"
JAX_JOBS = Resource(_KUBEFLOW, "v1", "jaxjobs", "JAXJob")
MPI_JOBS = Resource(_KUBEFLOW, "v2beta1", "mpijobs", "MPIJob")
"""Of the MPI operator, which Kueue manages."""
MPI_JOBS_V1 = Resource(_KUBEFLOW, "v1", "mpijobs", "MPIJob")
"""Of the training operator."""
PADDLE_JOBS = Resource(_KUBEFLOW, "v1", "paddlejobs", "PaddleJob")
PYTORCH_JOBS = Resource(_KUBEFLOW, "v1", "pytorchjobs", "PyTorchJob")
TF_JOBS = Resource(_KUBEFLOW, "v1", "tfjobs", "TFJob")
XGBOOST_JOBS = Resource(_KUBEFLOW, "v1", "xgboostjobs", "XGBoostJob")
_TRAINER = "trainer.kubeflow.org"
CLUSTER_TRAINING_RUNTIMES = Resource(
    _TRAINER, "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False
)
TRAINING_RUNTIMES = Resource(_TRAINER, "v1alpha1", "trainingruntimes", "TrainingRuntime")
TRAIN_JOBS = Resource(_TRAINER, "v1alpha1", "trainjobs", "TrainJob")
JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
LEADER_WORKER_SETS = Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet")
RAY_CLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
RAY_JOBS = Resource("ray.io", "v1", "rayjobs", "RayJob")

NODE_PORTRAITS = Resource("myriad.dev", "v1alpha1", "nodeportraits", "NodePortrait", namespaced=False)

WORK: tuple[Resource, ...] = (
    JOBS, PYTORCH_JOBS, JOB_SETS, TRAIN_JOBS, MPI_JOBS, TF_JOBS, XGBOOST_JOBS, PADDLE_JOBS, JAX_JOBS, RAY_JOBS,
    RAY_CLUSTERS, LEADER_WORKER_SETS, DEPLOYMENTS, STATEFUL_SETS, PODS,
)  # fmt: skip
"""Kinds of work that Kueue manages, the most common first."""
