"""Rules about fields that nobody reads, elastic sizes, ranks, volumes and leaving in order. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from myriad.fleet.names import closest
from myriad.lint.rule import Raw, dotted, rule
from myriad.lint.scene import KeyPath, Scene, get, mapping, number, rows, text, whole
from myriad.lint.words import JOBS, gpus_words
from myriad.lint.works import MIN_PARALLELISM, SERVICES, TRAINING_OPERATOR_KINDS, gpu_works, works

EQUAL_COMPLETIONS = "kueue.x-k8s.io/job-completions-equal-parallelism"
#: Jobs that Kueue lets grow and shrink while they run (its feature ElasticJobsViaWorkloadSlices).
_ELASTIC_JOB = "kueue.x-k8s.io/elastic-job"
HANDLES_SIGTERM = "myriad.dev/handles-sigterm"

_QUOTA = "name nominalQuota borrowingLimit lendingLimit"
_RUN_POLICY = (
    "cleanPodPolicy ttlSecondsAfterFinished activeDeadlineSeconds backoffLimit schedulingPolicy suspend managedBy"
)
#: Fields of the kinds whose misspelt fields cost most: Kueue 0.17 (v1beta2, v1beta1), Volcano 1.15, training operator.
_FIELDS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("kueue.x-k8s.io", "ClusterQueue"): {
        "spec": "resourceGroups cohortName cohort queueingStrategy namespaceSelector flavorFungibility preemption "
        "admissionChecks admissionChecksStrategy stopPolicy fairSharing admissionScope concurrentAdmissionPolicy",
        "spec.resourceGroups.*": "coveredResources flavors",
        "spec.resourceGroups.*.flavors.*": "name resources",
        "spec.resourceGroups.*.flavors.*.resources.*": _QUOTA,
        "spec.preemption": "reclaimWithinCohort borrowWithinCohort withinClusterQueue",
    },
    ("kueue.x-k8s.io", "LocalQueue"): {"spec": "clusterQueue stopPolicy fairSharing"},
    ("kueue.x-k8s.io", "ResourceFlavor"): {"spec": "nodeLabels nodeTaints tolerations topologyName"},
    ("kueue.x-k8s.io", "Topology"): {"spec": "levels", "spec.levels.*": "nodeLabel"},
    ("kueue.x-k8s.io", "Cohort"): {
        "spec": "parentName resourceGroups fairSharing",
        "spec.resourceGroups.*": "coveredResources flavors",
        "spec.resourceGroups.*.flavors.*": "name resources",
        "spec.resourceGroups.*.flavors.*.resources.*": _QUOTA,
    },
    ("scheduling.volcano.sh", "Queue"): {
        "spec": "weight capability reclaimable extendClusters guarantee affinity type parent deserved priority "
        "dequeueStrategy",
    },
    ("scheduling.volcano.sh", "PodGroup"): {
        "spec": "minMember minTaskMember queue priorityClassName minResources networkTopology subGroupPolicy",
    },
    ("topology.volcano.sh", "HyperNode"): {
        "spec": "tier tierName members",
        "spec.members.*": "type selector",
        "spec.members.*.selector": "exactMatch regexMatch labelMatch",
    },
    ("kubeflow.org", "PyTorchJob"): {
        "spec": "runPolicy elasticPolicy pytorchReplicaSpecs nprocPerNode",
        "spec.runPolicy": _RUN_POLICY,
        "spec.runPolicy.schedulingPolicy": "minAvailable queue minResources priorityClass scheduleTimeoutSeconds",
        "spec.pytorchReplicaSpecs": "Master Worker",
        "spec.pytorchReplicaSpecs.*": "replicas template restartPolicy",
    },
    **{
        ("kubeflow.org", kind): {
            "spec.runPolicy": _RUN_POLICY,
            "spec.runPolicy.schedulingPolicy": "minAvailable queue minResources priorityClass scheduleTimeoutSeconds",
            f"spec.{key}": roles,
            f"spec.{key}.*": "replicas template restartPolicy",
        }
        for kind, key, roles in (
            ("TFJob", "tfReplicaSpecs", "Chief Master PS Worker Evaluator"),
            ("XGBoostJob", "xgbReplicaSpecs", "Master Worker"),
            ("PaddleJob", "paddleReplicaSpecs", "Master Worker"),
            ("JAXJob", "jaxReplicaSpecs", "Worker"),
            ("MPIJob", "mpiReplicaSpecs", "Launcher Worker"),
        )
    },
    ("batch.volcano.sh", "Job"): {
        "spec": "schedulerName minAvailable volumes tasks policies plugins runningEstimate queue maxRetry "
        "ttlSecondsAfterFinished priorityClassName minSuccess networkTopology",
        "spec.tasks.*": "name replicas minAvailable template policies topologyPolicy maxRetry dependsOn "
        "partitionPolicy",
    },
}

#: Fields of the table that one version does not have, with what it is called there.
_NOT_IN: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("ClusterQueue", "v1beta2"): {
        "cohort": "cohortName",
        "admissionChecks": "admissionChecksStrategy: {admissionChecks: [{name: CHECK}]}",
    },
    ("ClusterQueue", "v1beta1"): {"cohortName": "cohort", "concurrentAdmissionPolicy": "apiVersion v1beta2"},
}


@rule(
    "unknown-field",
    "error",
    "a field that the kind does not have",
    looks_at="ClusterQueue, LocalQueue, ResourceFlavor, Topology, Cohort, Queue, PodGroup, HyperNode, vcjob, "
    "PyTorchJob and its like",
    sources=("trainer#2325",),
)
def unknown_field(scene: Scene) -> Iterator[Raw]:
    """The API server drops fields that a CRD does not have: what was meant by it does not happen, and nobody says
    so."""
    for (group, kind), places in _FIELDS.items():
        for thing in scene.given(kind):
            if thing.group != group:
                continue
            version = text(thing.body, "apiVersion").rpartition("/")[2]
            other_version = _NOT_IN.get((kind, version), {})
            for place, allowed in places.items():
                names = allowed.split()
                for path, body in _at(thing.body, tuple(place.split("."))):
                    for key in body:
                        moved = other_version.get(key) if path == ("spec",) else None
                        if not isinstance(key, str) or (key in names and not moved):
                            continue
                        best = moved or closest(key, names)
                        of = f"{kind} of {version}" if moved else kind
                        yield Raw(
                            thing,
                            (*path, key),
                            f"has the field {dotted((*path, key))}, which a {of} does not have: it is "
                            "dropped, and what it was meant for does not happen",
                            f"write {best}" if best else f"the fields here are {', '.join(names)}",
                        )


def _at(body: object, pattern: tuple[str, ...], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Mapping[str, object]]]:
    if not pattern:
        if isinstance(body, dict):
            yield path, body
        return
    first, rest = pattern[0], pattern[1:]
    if first != "*":
        yield from _at(get(body, first), rest, (*path, first))
    elif isinstance(body, list):
        for index, item in enumerate(body):
            yield from _at(item, rest, (*path, index))
    elif isinstance(body, dict):
        for key, item in body.items():
            yield from _at(item, rest, (*path, key))


@rule(
    "elastic-size",
    "error",
    "an elastic size that is refused or that nobody honours",
    looks_at="Job, PyTorchJob and its like",
    sources=("kueue.sigs.k8s.io/docs/tasks/run/jobs",),
)
def elastic_size(scene: Scene) -> Iterator[Raw]:
    """Kueue 0.17 knows a minimum for batch Jobs only: an annotation between 1 and parallelism - 1. On other kinds
    it does nothing, and an elasticPolicy under Kueue neither starts smaller nor grows."""
    for work in works(scene):
        value = work.thing.annotations.get(MIN_PARALLELISM)
        path: KeyPath = ("metadata", "annotations", MIN_PARALLELISM)
        if value is not None and work.kind != "Job":
            yield Raw(
                work.thing,
                path,
                f"has a minimum ({MIN_PARALLELISM}), which Kueue reads on batch Jobs only: it is admitted whole or "
                "not at all",
                "write it as a batch Job (`myriad job new batch --elastic MIN:MAX`)",
            )
        elif value is not None:
            least, pods = number(value), work.pods[0].count
            if not isinstance(value, str) or least is None or least != int(least) or not 0 < least < pods:
                yield Raw(
                    work.thing,
                    path,
                    f"may start with {value!r} of its {pods} pods; the minimum is a quoted number from 1 to "
                    f"{max(1, pods - 1)}: the Job is refused",
                    f'write a number below {pods}, such as "{max(1, pods // 2)}", or leave the annotation out',
                )
            elif (
                text(work.thing.spec, "completionMode") == "Indexed"
                and str(work.thing.annotations.get(EQUAL_COMPLETIONS)).lower() != "true"
                and whole(work.thing.spec.get("completions"), -1) == pods
            ):
                yield Raw(
                    work.thing,
                    path,
                    f"may start with {least} of its {pods} pods and still wants {pods} completions: the missing ranks "
                    "run after the others, alone",
                    f'set the annotation {EQUAL_COMPLETIONS}: "true", so that the number of ranks follows '
                    f"what was admitted",
                )
        scaled = {"RayCluster": ("spec",), "RayJob": ("spec", "rayClusterSpec")}.get(work.kind)
        elastic = str(work.thing.annotations.get(_ELASTIC_JOB)).lower() == "true"
        if scaled and work.queue and not elastic and get(work.thing.body, *scaled, "enableInTreeAutoscaling") is True:
            yield Raw(
                work.thing,
                (*scaled, "enableInTreeAutoscaling"),
                "scales itself (enableInTreeAutoscaling) and stands in a queue of Kueue, which counts it once, when it "
                "is admitted: Kueue refuses it",
                "set enableInTreeAutoscaling: false and a fixed number of replicas",
            )
        if work.kind in TRAINING_OPERATOR_KINDS and mapping(work.thing.spec, "elasticPolicy") and work.queue:
            yield Raw(
                work.thing,
                ("spec", "elasticPolicy"),
                "has an elasticPolicy and stands in a queue of Kueue, which admits it whole or not at all: it never "
                "starts smaller, and what an autoscaler adds is counted by nobody",
                "use `myriad job new batch --elastic MIN:MAX`, or take elasticPolicy out",
                "warning",
            )


@rule(
    "ranks-without-index",
    "warning",
    "pods of a gang that do not know which rank they are",
    looks_at="Job",
    sources=("kueue.sigs.k8s.io/docs/concepts/topology_aware_scheduling",),
)
def ranks_without_index(scene: Scene) -> Iterator[Raw]:
    """Without completionMode Indexed pods have no index: ranks have to be made up, a pod that comes again is
    another rank, and Kueue cannot place neighbours side by side."""
    for work in gpu_works(scene):
        if work.kind == "Job" and work.is_gang and text(work.thing.spec, "completionMode") != "Indexed":
            yield Raw(
                work.thing,
                ("spec", "completionMode") if "completionMode" in work.thing.spec else ("spec", "parallelism"),
                f"runs {work.count} GPU pods without an index (completionMode is not Indexed): none of them knows its "
                "rank, and Kueue cannot place neighbouring ranks side by side",
                "set completionMode: Indexed and completions equal to parallelism",
            )


@rule(
    "claim-not-found",
    "error",
    "a volume claim that does not exist",
    looks_at=f"{JOBS}, PersistentVolumeClaim",
    sources=("volcano#2285",),
)
def claim_not_found(scene: Scene) -> Iterator[Raw]:
    """The pods stay Pending, and the scheduler reports the gang instead of the claim."""
    if "PersistentVolumeClaim" not in scene.sure:
        return
    for work in works(scene):
        for pods in work.pods:
            for index, volume in rows(pods.spec, "volumes"):
                name = text(volume, "persistentVolumeClaim", "claimName")
                if name and scene.find("PersistentVolumeClaim", name, work.thing.namespace) is None:
                    yield Raw(
                        work.thing,
                        (*pods.path, "spec", "volumes", index),
                        f"mounts the PersistentVolumeClaim {name}, which its namespace does not have: its pods are "
                        "admitted and stay Pending with their GPUs",
                        f"make the claim {name}, or correct the name",
                    )


@rule(
    "leaves-unprepared",
    "note",
    "a preemptible job that does not say how it leaves",
    looks_at=JOBS,
    sources=("volcano#3369", "volcano#394"),
)
def leaves_unprepared(scene: Scene) -> Iterator[Raw]:
    """A preempted pod gets its preStop hook and SIGTERM. A program that takes neither dies at once (or is killed
    after its grace) without saving."""
    for work in gpu_works(scene):
        if not work.queue or work.kind in (*SERVICES, "TrainJob"):
            continue
        for pods in work.gpu_pods:
            declared = str(pods.annotations.get(HANDLES_SIGTERM, work.thing.annotations.get(HANDLES_SIGTERM))) == "true"
            hooks = any(get(c, "lifecycle", "preStop") is not None for _, c in rows(pods.spec, "containers"))
            if not declared and not hooks:
                yield Raw(
                    work.thing,
                    (*pods.path, "spec"),
                    f"has neither a preStop hook nor says that it handles SIGTERM: what its {gpus_words(work)} have "
                    "computed since the last checkpoint is lost when it is preempted",
                    f'save on SIGTERM and say so ({HANDLES_SIGTERM}: "true" on the pod template), or add a '
                    f"preStop hook",
                )
                break
