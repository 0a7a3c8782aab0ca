"""What the API server takes: groups and versions of kinds, values of fields, and their shapes. Tables only.

Kueue 0.17 (v1beta1, v1beta2), Volcano 1.15, training operator 1.8, JobSet 0.x, KubeRay 1.x, Kubernetes 1.3x.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

Shape = Literal["mapping", "list", "mappings", "texts"]

KUEUE, VOLCANO, VOLCANO_BATCH = "kueue.x-k8s.io", "scheduling.volcano.sh", "batch.volcano.sh"
HYPER, KUBEFLOW, TRAINER = "topology.volcano.sh", "kubeflow.org", "trainer.kubeflow.org"
JOBSET, RAY = "jobset.x-k8s.io", "ray.io"

#: Versions of the kinds that rules judge, by group. Elsewhere the same word names something else (Knative's
#: Configuration, another scheduler's Queue), and is none of lint's business.
VERSIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "": dict.fromkeys(("ConfigMap", "Namespace", "Node", "PersistentVolumeClaim", "Pod", "ResourceQuota"), ("v1",)),
    "apps": dict.fromkeys(("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet"), ("v1",)),
    "batch": {"Job": ("v1",), "CronJob": ("v1",)},
    "scheduling.k8s.io": {"PriorityClass": ("v1",)},
    "apiregistration.k8s.io": {"APIService": ("v1",)},
    "admissionregistration.k8s.io": {
        "MutatingWebhookConfiguration": ("v1",), "ValidatingWebhookConfiguration": ("v1",),
    },
    KUEUE: dict.fromkeys(
        ("ClusterQueue", "LocalQueue", "Cohort", "ResourceFlavor", "Topology", "AdmissionCheck",
         "WorkloadPriorityClass", "Workload"),
        ("v1beta2", "v1beta1"),
    ),
    "config.kueue.x-k8s.io": {"Configuration": ("v1beta2", "v1beta1")},
    "kubescheduler.config.k8s.io": {"KubeSchedulerConfiguration": ("v1",)},
    "kubelet.config.k8s.io": {"KubeletConfiguration": ("v1beta1",)},
    VOLCANO: {"Queue": ("v1beta1",), "PodGroup": ("v1beta1",)},
    VOLCANO_BATCH: {"Job": ("v1alpha1",)},
    HYPER: {"HyperNode": ("v1alpha1",)},
    KUBEFLOW: {
        **dict.fromkeys(("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob"), ("v1",)),
        "MPIJob": ("v2beta1", "v1"),
    },
    TRAINER: dict.fromkeys(("TrainJob", "TrainingRuntime", "ClusterTrainingRuntime"), ("v1alpha1",)),
    JOBSET: {"JobSet": ("v1alpha2",)},
    "leaderworkerset.x-k8s.io": {"LeaderWorkerSet": ("v1",)},
    RAY: dict.fromkeys(("RayJob", "RayCluster"), ("v1", "v1alpha1")),
}  # fmt: skip
#: Groups that hold few kinds, all of which are known: any other word there is a mistake.
CLOSED: Mapping[str, tuple[str, ...]] = {
    "apps": ("ControllerRevision",),
    "batch": (),
    KUEUE: ("MultiKueueConfig", "MultiKueueCluster", "ProvisioningRequestConfig"),
    VOLCANO: (),
    HYPER: (),
}
#: Kinds whose name nobody else uses: under any group they are meant.
OWN = frozenset(
    {
        "ClusterQueue", "LocalQueue", "ResourceFlavor", "WorkloadPriorityClass", "HyperNode", "PyTorchJob", "TFJob",
        "XGBoostJob", "PaddleJob", "JAXJob", "TrainJob", "JobSet", "RayCluster", "LeaderWorkerSet",
        "KubeSchedulerConfiguration",
        "KubeletConfiguration",
    }
)  # fmt: skip

#: From which likeness on a word is another one misspelt: PersistentVolume is not a PersistentVolumeClaim (0.86).
_NEARLY = 0.9


def nearly(word: str, words: Iterable[str]) -> str | None:
    """The word that was meant: alike but for capitals, or for a letter."""
    known = list(words)
    same = next((each for each in known if each.lower() == word.lower()), None)
    return same or next(iter(difflib.get_close_matches(word, known, n=1, cutoff=_NEARLY)), None)


def groups_of(kind: str) -> tuple[str, ...]:
    """Groups in which a kind is known."""
    return tuple(group for group, kinds in VERSIONS.items() if kind in kinds)


@lru_cache(maxsize=256)
def is_foreign(kind: str, group: str) -> bool:
    """Whether an object has the word of a known kind in a group that is not looked at (nor one misspelt)."""
    right = groups_of(kind)
    if not right or kind in OWN or group in VERSIONS:
        return False
    return not difflib.get_close_matches(group, right, n=1, cutoff=_NEARLY)


_SELECTOR = {"matchExpressions.*.operator": ("In", "NotIn", "Exists", "DoesNotExist")}
_STOP = ("None", "Hold", "HoldAndDrain")
_POD_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TOPOLOGY_WISH = {"spec.networkTopology.mode": ("hard", "soft")}
_REPLICA_POLICIES = ("Always", "OnFailure", "Never", "ExitCode")
_OPERATOR = {"spec.runPolicy.cleanPodPolicy": ("All", "Running", "None")}
#: Values that a field takes, by kind and place. A `.v1beta1` after the kind is of that version only.
VALUES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "ClusterQueue": {
        "spec.queueingStrategy": ("BestEffortFIFO", "StrictFIFO"),
        "spec.stopPolicy": _STOP,
        "spec.preemption.reclaimWithinCohort": ("Never", "LowerPriority", "Any"),
        "spec.preemption.withinClusterQueue": ("Never", "LowerPriority", "LowerOrNewerEqualPriority"),
        "spec.preemption.borrowWithinCohort.policy": ("Never", "LowerPriority"),
        **{f"spec.namespaceSelector.{place}": values for place, values in _SELECTOR.items()},
    },
    "ClusterQueue.v1beta1": {
        "spec.flavorFungibility.whenCanBorrow": ("MayStopSearch", "TryNextFlavor", "Borrow"),
        "spec.flavorFungibility.whenCanPreempt": ("MayStopSearch", "TryNextFlavor", "Preempt"),
    },
    "ClusterQueue.v1beta2": {
        "spec.flavorFungibility.whenCanBorrow": ("MayStopSearch", "TryNextFlavor"),
        "spec.flavorFungibility.whenCanPreempt": ("MayStopSearch", "TryNextFlavor"),
    },
    "LocalQueue": {"spec.stopPolicy": _STOP},
    "ResourceFlavor": {
        "spec.nodeTaints.*.effect": _POD_EFFECTS,
        "spec.tolerations.*.effect": (*_POD_EFFECTS, ""),
        "spec.tolerations.*.operator": ("Exists", "Equal", "Lt", "Gt", ""),
    },
    "PriorityClass": {"preemptionPolicy": ("Never", "PreemptLowerPriority")},
    "Job": {"spec.completionMode": ("Indexed", "NonIndexed"), **_TOPOLOGY_WISH},
    "PodGroup": _TOPOLOGY_WISH,
    "HyperNode": {"spec.members.*.type": ("Node", "HyperNode")},
    "PyTorchJob": {**_OPERATOR, "spec.pytorchReplicaSpecs.*.restartPolicy": _REPLICA_POLICIES},
    "TFJob": {**_OPERATOR, "spec.tfReplicaSpecs.*.restartPolicy": _REPLICA_POLICIES},
    "XGBoostJob": {**_OPERATOR, "spec.xgbReplicaSpecs.*.restartPolicy": _REPLICA_POLICIES},
    "PaddleJob": {**_OPERATOR, "spec.paddleReplicaSpecs.*.restartPolicy": _REPLICA_POLICIES},
    "MPIJob": _OPERATOR,
}

_GROUPS: Mapping[str, Shape] = {
    "spec.resourceGroups": "mappings",
    "spec.resourceGroups.*.coveredResources": "texts",
    "spec.resourceGroups.*.flavors": "mappings",
    "spec.resourceGroups.*.flavors.*.resources": "mappings",
}
_SCHEDULING: Mapping[str, Shape] = {"spec.runPolicy": "mapping", "spec.runPolicy.schedulingPolicy": "mapping"}
#: Shapes of fields, by kind and place; the empty name is of every kind.
SHAPES: Mapping[str, Mapping[str, Shape]] = {
    "": {"metadata": "mapping", "metadata.labels": "mapping", "metadata.annotations": "mapping"},
    "ClusterQueue": {
        "spec": "mapping",
        **_GROUPS,
        "spec.namespaceSelector": "mapping",
        "spec.namespaceSelector.matchLabels": "mapping",
        "spec.namespaceSelector.matchExpressions": "mappings",
        "spec.preemption": "mapping",
        "spec.flavorFungibility": "mapping",
        "spec.fairSharing": "mapping",
    },
    "Cohort": {"spec": "mapping", **_GROUPS},
    "LocalQueue": {"spec": "mapping"},
    "ResourceFlavor": {
        "spec": "mapping", "spec.nodeLabels": "mapping", "spec.nodeTaints": "mappings",
        "spec.tolerations": "mappings",
    },
    "Topology": {"spec": "mapping", "spec.levels": "mappings"},
    "Queue": {
        "spec": "mapping", "spec.capability": "mapping", "spec.deserved": "mapping", "spec.guarantee": "mapping",
    },
    "PodGroup": {"spec": "mapping", "spec.minResources": "mapping", "spec.networkTopology": "mapping"},
    "HyperNode": {"spec": "mapping", "spec.members": "mappings", "spec.members.*.selector": "mapping"},
    "Job": {"spec": "mapping", "spec.template": "mapping", "spec.tasks": "mappings"},
    "CronJob": {"spec": "mapping", "spec.jobTemplate": "mapping"},
    "JobSet": {"spec": "mapping", "spec.replicatedJobs": "mappings"},
    "PyTorchJob": {
        "spec": "mapping", **_SCHEDULING, "spec.pytorchReplicaSpecs": "mapping",
        "spec.pytorchReplicaSpecs.*": "mapping",
    },
    "TFJob": {"spec": "mapping", **_SCHEDULING, "spec.tfReplicaSpecs": "mapping", "spec.tfReplicaSpecs.*": "mapping"},
    "MPIJob": {
        "spec": "mapping", **_SCHEDULING, "spec.mpiReplicaSpecs": "mapping", "spec.mpiReplicaSpecs.*": "mapping",
    },
    "RayCluster": {"spec": "mapping", "spec.workerGroupSpecs": "mappings"},
    "RayJob": {"spec": "mapping", "spec.rayClusterSpec": "mapping"},
    "Deployment": {"spec": "mapping", "spec.template": "mapping"},
    "StatefulSet": {"spec": "mapping", "spec.template": "mapping"},
    "LeaderWorkerSet": {"spec": "mapping", "spec.leaderWorkerTemplate": "mapping"},
    "Pod": {"spec": "mapping"},
}  # fmt: skip
#: The same below a pod template.
POD_SHAPES: Mapping[str, Shape] = {
    "metadata.labels": "mapping",
    "metadata.annotations": "mapping",
    "spec": "mapping",
    "spec.containers": "mappings",
    "spec.initContainers": "mappings",
    "spec.volumes": "mappings",
    "spec.tolerations": "mappings",
    "spec.nodeSelector": "mapping",
    "spec.containers.*.resources": "mapping",
    "spec.containers.*.resources.limits": "mapping",
    "spec.containers.*.resources.requests": "mapping",
    "spec.containers.*.env": "mappings",
    "spec.containers.*.command": "texts",
    "spec.containers.*.args": "texts",
}
