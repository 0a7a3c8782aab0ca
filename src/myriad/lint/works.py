"""Jobs of every kind read alike: pods of which shape, how many, with which scheduler, queue and gang. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

from myriad.lint.scene import (
    PLATFORM_NAMESPACES,
    QUEUE_LABEL,
    Json,
    KeyPath,
    Scene,
    Thing,
    get,
    mapping,
    number,
    plain,
    rows,
    text,
    whole,
)

#: Replica maps of the training operator's kinds.
_REPLICA_MAPS = {
    "PyTorchJob": "pytorchReplicaSpecs", "TFJob": "tfReplicaSpecs", "XGBoostJob": "xgbReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs", "JAXJob": "jaxReplicaSpecs", "MPIJob": "mpiReplicaSpecs",
}  # fmt: skip
TRAINING_OPERATOR_KINDS = tuple(_REPLICA_MAPS)
#: Kueue's name of the integration of each kind (integrations.frameworks of its configuration).
FRAMEWORKS = {
    "Job": "batch/job", "PyTorchJob": "kubeflow.org/pytorchjob", "TFJob": "kubeflow.org/tfjob",
    "XGBoostJob": "kubeflow.org/xgboostjob", "PaddleJob": "kubeflow.org/paddlejob", "JAXJob": "kubeflow.org/jaxjob",
    "MPIJob": "kubeflow.org/mpijob", "TrainJob": "trainer.kubeflow.org/trainjob", "JobSet": "jobset.x-k8s.io/jobset",
    "Pod": "pod", "Deployment": "deployment", "StatefulSet": "statefulset", "RayJob": "ray.io/rayjob",
    "RayCluster": "ray.io/raycluster", "LeaderWorkerSet": "leaderworkerset.x-k8s.io/leaderworkerset",
}  # fmt: skip
#: Kinds that serve until they are taken down: nothing in them ends or is preempted to go on later.
SERVICES = ("Deployment", "StatefulSet", "LeaderWorkerSet")
KINDS = (*FRAMEWORKS, "CronJob", "VolcanoJob")
VOLCANO = "volcano"
MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
GROUP_MIN_MEMBER = "scheduling.volcano.sh/group-min-member"
GROUP_NAME = "scheduling.k8s.io/group-name"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
#: KubeRay's own words for Volcano: it sets the scheduler, the PodGroup and its minimum.
_RAY_SCHEDULER, _RAY_QUEUE = "ray.io/scheduler-name", "volcano.sh/queue-name"
DEFAULT_SCHEDULER = "default-scheduler"

#: Devices that count as accelerators: GPUs of any vendor, their slices and shares, NPUs, TPUs.
_ACCELERATOR = re.compile(
    r"[^/]+/(?:[a-z]*gpus?(?:[.-].*)?|mig-.+|vgpu(?:-number)?|Ascend.+|npu|mlu.*|dcu.*|gaudi|tpu|neuron.*|i915|xe|vcuda-core)"
)
#: Of these a pod gets a share of a card, so a count says nothing of cards.
_SHARE_PARAMETER = re.compile(r".*(?:gpumem|gpucores|vgpu-memory|vgpu-cores|gpu-memory|gpu-core).*", re.IGNORECASE)


def is_accelerator(name: str) -> bool:
    """Whether a resource counts accelerators (whole cards, slices or shares)."""
    return bool(_ACCELERATOR.fullmatch(name)) and not _SHARE_PARAMETER.fullmatch(name)


def is_slice(name: str) -> bool:
    """Whether it counts parts of cards."""
    return "/mig-" in name or "vgpu" in name or name.endswith(".shared")


@dataclass(frozen=True)
class Pods:
    """Pods of one shape in a job.

    Attributes:
        name: its name in the job (`Master`, `Worker`); "" where a job has pods of one shape only.
        count: how many.
        template: metadata and spec.
        path: where the template stands in the job's object.
        counted_at: where the count stands.
    """

    name: str
    count: int
    template: Json
    path: KeyPath
    counted_at: KeyPath

    @property
    def spec(self) -> Json:
        """The pod's spec."""
        return mapping(self.template, "spec")

    @property
    def annotations(self) -> Json:
        """The pod's annotations."""
        return mapping(self.template, "metadata", "annotations")

    @property
    def scheduler(self) -> str:
        """Its scheduler's name."""
        return text(self.spec, "schedulerName") or DEFAULT_SCHEDULER

    @cached_property
    def requests(self) -> dict[str, Decimal]:
        """What the scheduler counts for one pod: the sum of containers and sidecars, or a larger init step, plus
        overhead
        (https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers)."""
        sidecars: dict[str, Decimal] = {}
        peak: dict[str, Decimal] = {}
        for _, container in rows(self.spec, "initContainers"):
            step = _sum(sidecars, requests_of(container))
            if container.get("restartPolicy") == "Always":
                sidecars = step
            peak = _largest(peak, step)
        running = sidecars
        for _, container in rows(self.spec, "containers"):
            running = _sum(running, requests_of(container))
        running = {**running, **amounts(mapping(self.spec, "resources", "requests"))}
        return _sum(_largest(running, peak), amounts(mapping(self.spec, "overhead")))

    @cached_property
    def accelerators(self) -> dict[str, int]:
        """GPUs and the like of one pod, by resource."""
        return {name: int(value) for name, value in self.requests.items() if is_accelerator(name) and value > 0}

    def containers(self) -> Iterator[tuple[KeyPath, Json]]:
        """Its containers, init containers first, each with its path in the job's object."""
        for key in ("initContainers", "containers"):
            for index, container in rows(self.spec, key):
                yield (*self.path, "spec", key, index), container


def requests_of(container: Json) -> dict[str, Decimal]:
    """Requests of a container; a limit without a request is the request."""
    resources = mapping(container, "resources")
    return {**amounts(mapping(resources, "limits")), **amounts(mapping(resources, "requests"))}


def amounts(values: Mapping[str, object]) -> dict[str, Decimal]:
    """The quantities that can be read and asked for, by name."""
    found = {name: number(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None and value >= 0}


def _sum(a: Mapping[str, Decimal], b: Mapping[str, Decimal]) -> dict[str, Decimal]:
    return {name: a.get(name, Decimal(0)) + b.get(name, Decimal(0)) for name in {**a, **b}}


def _largest(a: Mapping[str, Decimal], b: Mapping[str, Decimal]) -> dict[str, Decimal]:
    return {name: max(a.get(name, Decimal(0)), b.get(name, Decimal(0))) for name in {**a, **b}}


@dataclass(frozen=True, eq=False)
class Work:
    """One job.

    Attributes:
        thing: its object.
        pods: its pods by shape.
    """

    thing: Thing
    pods: tuple[Pods, ...]

    @property
    def kind(self) -> str:
        """Its kind; Volcano's own Job is called VolcanoJob here."""
        return kind_of(self.thing)

    @property
    def count(self) -> int:
        """Pods of all shapes."""
        return sum(p.count for p in self.pods)

    @cached_property
    def accelerators(self) -> dict[str, int]:
        """GPUs and the like of the whole job, by resource."""
        total: dict[str, int] = {}
        for pods in self.pods:
            for name, each in pods.accelerators.items():
                total[name] = total.get(name, 0) + each * pods.count
        return {name: value for name, value in total.items() if value}

    @cached_property
    def total(self) -> dict[str, Decimal]:
        """Requests of the whole job."""
        total: dict[str, Decimal] = {}
        for pods in self.pods:
            total = _sum(total, {name: value * pods.count for name, value in pods.requests.items()})
        return total

    @cached_property
    def gpu_pods(self) -> tuple[Pods, ...]:
        """Shapes that ask for accelerators."""
        return tuple(p for p in self.pods if p.accelerators)

    @property
    def is_gang(self) -> bool:
        """Whether several of its pods compute together: a service's replicas do not."""
        serves = self.kind in SERVICES or self.kind == "Pod"
        return not serves and sum(p.count for p in self.gpu_pods) > 1

    @property
    def scheduled_by_volcano(self) -> bool:
        """Whether Volcano binds its GPU pods."""
        by_label = self.kind in ("RayJob", "RayCluster") and self.thing.labels.get(_RAY_SCHEDULER) == VOLCANO
        return self.kind == "VolcanoJob" or by_label or any(p.scheduler == VOLCANO for p in self.gpu_pods)

    @property
    def queue(self) -> str:
        """Kueue's LocalQueue that it names."""
        return text(self.thing.body, *self.queue_at)

    @property
    def queue_at(self) -> KeyPath:
        """Where that label stands, or should."""
        outer: KeyPath = ("spec", "jobTemplate") if self.kind == "CronJob" else ()
        return (*outer, "metadata", "labels", QUEUE_LABEL)

    def arithmetic(self, resource: str) -> str:
        """`9 x 8 = 72`, `1 x 4 + 2 x 8 = 20`: how its amount of a resource comes about."""
        shapes: dict[Decimal, int] = {}
        for pods in self.pods:
            each = pods.requests.get(resource, Decimal(0))
            if each and pods.count:
                shapes[each] = shapes.get(each, 0) + pods.count
        parts = [f"{count} x {plain(each)}" for each, count in shapes.items()]
        total = plain(self.total.get(resource, Decimal(0)))
        return f"{' + '.join(parts)} = {total}" if parts != [f"1 x {total}"] else total

    def volcano_queue(self) -> tuple[str, KeyPath]:
        """The Volcano queue that it names ("" for none) and where."""
        spec = self.thing.spec
        if self.kind == "VolcanoJob":
            return text(spec, "queue"), ("spec", "queue")
        scheduling: KeyPath = ("spec", "runPolicy", "schedulingPolicy", "queue")
        if text(self.thing.body, *scheduling):
            return text(self.thing.body, *scheduling), scheduling
        if self.kind in ("RayJob", "RayCluster") and text(self.thing.labels, _RAY_QUEUE):
            return text(self.thing.labels, _RAY_QUEUE), ("metadata", "labels", _RAY_QUEUE)
        for path in (("metadata", "annotations"), ("metadata", "labels")):
            if text(self.thing.body, *path, VOLCANO_QUEUE):
                return text(self.thing.body, *path, VOLCANO_QUEUE), (*path, VOLCANO_QUEUE)
        for pods in self.pods:
            for part in ("annotations", "labels"):
                if text(pods.template, "metadata", part, VOLCANO_QUEUE):
                    return text(pods.template, "metadata", part, VOLCANO_QUEUE), (
                        *pods.path,
                        "metadata",
                        part,
                        VOLCANO_QUEUE,
                    )
        return "", scheduling if self.kind in _REPLICA_MAPS else ("metadata", "annotations", VOLCANO_QUEUE)

    def minimum(self) -> tuple[object, KeyPath]:
        """The smallest number of pods that Volcano starts it with (None where it says nothing) and where."""
        if self.kind == "VolcanoJob":
            path: KeyPath = ("spec", "minAvailable")
        elif self.kind in _REPLICA_MAPS:
            path = ("spec", "runPolicy", "schedulingPolicy", "minAvailable")
        else:
            path = ("metadata", "annotations", GROUP_MIN_MEMBER)
        return get(self.thing.body, *path), path


def kind_of(thing: Thing) -> str:
    """The kind, with Volcano's own Job told apart from Kubernetes'."""
    return "VolcanoJob" if thing.kind == "Job" and thing.group.startswith("batch.volcano.sh") else thing.kind


def works(scene: Scene) -> list[Work]:
    """Every job that is judged and that nobody owns; platform namespaces are left out."""
    kept = scene.recall("works")
    if kept is not None:
        return list(kept)
    found = []
    kinds = {"Job" if kind == "VolcanoJob" else kind for kind in KINDS}
    for thing in scene.things:
        if thing.kind in kinds and not thing.owned and thing.namespace not in PLATFORM_NAMESPACES:
            work = work_of(scene, thing)
            if work is not None and not _ended(thing):
                found.append(work)
    scene.remember("works", found)
    return found


def gpu_works(scene: Scene) -> list[Work]:
    """Those that ask for accelerators."""
    kept = scene.recall("gpu_works")
    if kept is None:
        kept = scene.remember("gpu_works", [work for work in works(scene) if work.gpu_pods])
    return list(kept)


def _ended(thing: Thing) -> bool:
    if text(thing.body, "status", "phase") in ("Succeeded", "Failed"):
        return True
    ended = {"Complete", "Failed", "Succeeded", "Completed"}
    return any(
        c.get("type") in ended and c.get("status") == "True" for _, c in rows(thing.body, "status", "conditions")
    )


def work_of(scene: Scene, thing: Thing) -> Work | None:
    """A job's pods; None for a kind that is none."""
    kind = kind_of(thing)
    spec = thing.spec
    if kind in _REPLICA_MAPS:
        pods = [
            Pods(name, _count(item.get("replicas")), mapping(item, "template"), ("spec", key, name, "template"),
                 ("spec", key, name, "replicas"))
            for key in [_REPLICA_MAPS[kind]]
            for name, item in mapping(spec, key).items()
            if isinstance(item, dict)
        ]  # fmt: skip
    elif kind == "Job":
        pods = [_job_pods(spec, ("spec",))]
    elif kind == "CronJob":
        pods = [_job_pods(mapping(spec, "jobTemplate", "spec"), ("spec", "jobTemplate", "spec"))]
    elif kind == "VolcanoJob":
        pods = [
            Pods(text(item, "name"), _count(item.get("replicas")), mapping(item, "template"),
                 ("spec", "tasks", index, "template"), ("spec", "tasks", index, "replicas"))
            for index, item in rows(spec, "tasks")
        ]  # fmt: skip
    elif kind == "JobSet":
        pods = []
        for index, item in rows(spec, "replicatedJobs"):
            at: KeyPath = ("spec", "replicatedJobs", index, "template", "spec")
            inner = _job_pods(mapping(item, "template", "spec"), at)
            pods.append(
                Pods(
                    text(item, "name"),
                    _count(item.get("replicas")) * inner.count,
                    inner.template,
                    inner.path,
                    inner.counted_at,
                )
            )
    elif kind == "TrainJob":
        pods = [_train_job_pods(scene, thing)]
    elif kind in ("RayCluster", "RayJob"):
        at = ("spec",) if kind == "RayCluster" else ("spec", "rayClusterSpec")
        cluster = mapping(thing.body, *at)
        pods = [
            Pods(
                "head",
                1,
                mapping(cluster, "headGroupSpec", "template"),
                (*at, "headGroupSpec", "template"),
                (*at, "headGroupSpec"),
            )
        ]
        pods += [
            Pods(text(item, "groupName"), _count(item.get("replicas")) * _count(item.get("numOfHosts")),
                 mapping(item, "template"), (*at, "workerGroupSpecs", index, "template"),
                 (*at, "workerGroupSpecs", index, "replicas"))
            for index, item in rows(cluster, "workerGroupSpecs")
        ]  # fmt: skip
    elif kind == "Pod":
        pods = [Pods("", 1, thing.body, (), ("spec",))]
    elif kind == "LeaderWorkerSet":
        at = ("spec", "leaderWorkerTemplate")
        groups, size = _count(spec.get("replicas")), _count(get(thing.body, *at, "size"))
        leader = "leaderTemplate" if get(thing.body, *at, "leaderTemplate") is not None else "workerTemplate"
        pods = [
            Pods("leader", groups, mapping(thing.body, *at, leader), (*at, leader), ("spec", "replicas")),
            Pods("worker", groups * (size - 1), mapping(thing.body, *at, "workerTemplate"), (*at, "workerTemplate"),
                 (*at, "size")),
        ]  # fmt: skip
    elif kind in ("Deployment", "StatefulSet"):
        pods = [
            Pods(
                "", _count(spec.get("replicas")), mapping(spec, "template"), ("spec", "template"), ("spec", "replicas")
            )
        ]
    else:
        return None
    return Work(thing, tuple(pods))


def _count(value: object) -> int:
    return max(0, whole(value, 1)) if value is not None else 1


def _job_pods(spec: Json, at: KeyPath) -> Pods:
    # A Job with completions alone runs one pod after the other; never more run together than shall complete.
    together = _count(spec.get("parallelism"))
    if spec.get("completions") is not None:
        together = min(together, _count(spec.get("completions")))
    return Pods("", together, mapping(spec, "template"), (*at, "template"), (*at, "parallelism"))


def _train_job_pods(scene: Scene, thing: Thing) -> Pods:
    """The trainer's pods as the TrainJob says, over what its runtime says."""
    trainer = mapping(thing.spec, "trainer")
    runtime = runtime_of(scene, thing)
    scheduler = ""
    resources: Json = {}
    nodes: object = None
    if runtime is not None:
        nodes = get(runtime.spec, "mlPolicy", "numNodes")
        for _, item in rows(runtime.spec, "template", "spec", "replicatedJobs"):
            inner = mapping(item, "template", "spec", "template", "spec")
            scheduler = scheduler or text(inner, "schedulerName")
            for _, container in rows(inner, "containers"):
                resources = resources or mapping(container, "resources")
    container = {
        "name": "node",
        "image": trainer.get("image"),
        "resources": mapping(trainer, "resourcesPerNode") or resources,
    }
    template: Json = {"metadata": {}, "spec": {"containers": [container]}}
    if scheduler:
        template["spec"]["schedulerName"] = scheduler
    count = trainer.get("numNodes") if trainer.get("numNodes") is not None else nodes
    return Pods("node", _count(count), template, ("spec", "trainer"), ("spec", "trainer", "numNodes"))


def runtime_of(scene: Scene, thing: Thing) -> Thing | None:
    """The runtime that a TrainJob names, where it is known."""
    reference = mapping(thing.spec, "runtimeRef")
    kind = text(reference, "kind") or "ClusterTrainingRuntime"
    namespace = thing.namespace if kind == "TrainingRuntime" else ""
    return scene.find(kind, text(reference, "name"), namespace)


def groups_of_work(scene: Scene, work: Work) -> list[Thing]:
    """Volcano's PodGroups that a job's pods name."""
    names = dict.fromkeys(text(pods.annotations, GROUP_NAME) for pods in work.pods)
    found = [scene.find("PodGroup", name, work.thing.namespace) for name in names if name]
    return [group for group in found if group is not None]


def least_to_start(work: Work) -> dict[str, Decimal]:
    """The least of each resource with which Volcano may start a job: its smallest pods, as many as its minimum."""
    least = whole(work.minimum()[0])
    if not 0 < least < work.count:
        return work.total
    found: dict[str, Decimal] = {}
    for name in work.total:
        left = least
        total = Decimal(0)
        for each, count in sorted((pods.requests.get(name, Decimal(0)), pods.count) for pods in work.pods):
            total += each * min(left, count)
            left -= min(left, count)
        found[name] = total
    return found


def least_of(work: Work, pods: Pods) -> int:
    """Pods of a shape at the smallest size that the job may start with."""
    minimum = work.thing.annotations.get(MIN_PARALLELISM)
    if work.kind == "Job" and minimum is not None and len(work.pods) == 1:
        least = whole(minimum)
        if 0 < least < pods.count:
            return least
    return pods.count


def smallest(work: Work) -> dict[str, Decimal]:
    """Requests of a job at the smallest size that it may start with."""
    total: dict[str, Decimal] = {}
    for pods in work.pods:
        count = least_of(work, pods)
        total = _sum(total, {name: value * count for name, value in pods.requests.items()})
    return total
