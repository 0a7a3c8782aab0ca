"""Rules about gangs: their minimum, and who forms them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from myriad.lint.rule import Raw, rule
from myriad.lint.scene import Json, Scene, get, mapping, number, plain, rows, text, whole
from myriad.lint.works import (
    DEFAULT_SCHEDULER,
    GROUP_MIN_MEMBER,
    GROUP_NAME,
    SERVICES,
    TRAINING_OPERATOR_KINDS,
    VOLCANO,
    VOLCANO_QUEUE,
    Work,
    gpu_works,
    runtime_of,
    works,
)

_TOPOLOGY_WISHES = ("volcano.sh/network-topology-mode", "volcano.sh/network-topology-highest-tier")


@rule(
    "gang-minimum-missing",
    "error",
    "several pods under Volcano without a minimum: no gang",
    looks_at="PyTorchJob and its like, Job, JobSet, TrainJob with schedulerName volcano",
    sources=("trainer#1825", "volcano#1863"),
)
def gang_minimum_missing(scene: Scene) -> Iterator[Raw]:
    """Without a minimum Volcano binds pod by pod (it makes PodGroups with minMember 1): two half-started jobs can
    hold what each other needs."""
    for work in gpu_works(scene):
        if not work.scheduled_by_volcano or not work.is_gang or work.kind == "VolcanoJob":
            continue
        value, path = work.minimum()
        if value is not None or any(GROUP_NAME in p.annotations for p in work.pods):
            continue
        if not any(p.scheduler == VOLCANO for p in work.gpu_pods):
            continue  # KubeRay makes the PodGroup.
        if work.kind == "TrainJob" and get(runtime_spec(scene, work), "podGroupPolicy") is not None:
            continue  # Its runtime makes a PodGroup of all pods.
        operator = work.kind in TRAINING_OPERATOR_KINDS
        yield Raw(
            work.thing,
            path if get(work.thing.body, *path[:-1]) is not None else path[:1],
            f"says no minAvailable for its {work.count} pods"
            + (
                ": unless the training operator runs with --gang-scheduler-name=volcano they are bound one by one"
                if operator
                else ": Volcano makes a PodGroup with minMember 1 and binds them one by one"
            )
            + ", and a part of the job holds its GPUs while the rest waits",
            f"set spec.runPolicy.schedulingPolicy.minAvailable: {work.count}"
            if operator
            else f'set the annotation {GROUP_MIN_MEMBER}: "{work.count}" on the {work.thing.kind}',
        )


def runtime_spec(scene: Scene, work: Work) -> Json:
    """The spec of the runtime that a TrainJob names, {} where it is not known."""
    runtime = runtime_of(scene, work.thing)
    return runtime.spec if runtime is not None else {}


@rule(
    "gang-minimum-odd",
    "error",
    "the gang's minimum is not the number of its pods",
    looks_at="PyTorchJob and its like, Job, vcjob, PodGroup",
    sources=("volcano#4607", "volcano#4739"),
)
def gang_minimum_odd(scene: Scene) -> Iterator[Raw]:
    """Above the number of pods the gang never starts; below it a part starts and holds its GPUs while the others
    are missing, which a job with fixed ranks cannot use."""
    yield from _minimum_of_groups(scene)
    for work in works(scene):
        yield from _minimum_of_tasks(work)
        value, path = work.minimum()
        if value is None:
            continue
        least = number(value)
        if least is None or least != int(least) or least < 1:
            yield Raw(
                work.thing,
                path,
                f"has minAvailable {value!r}, which is no number of pods: it is refused or ignored",
                f"write {work.count}, the number of its pods",
            )
        elif least > work.count:
            yield Raw(
                work.thing,
                path,
                f"wants {plain(least)} pods to start and has only {work.count}: it never starts, and what is enqueued "
                "for it is taken from others",
                f"set it to {work.count}",
            )
        elif least < work.count and work.kind not in SERVICES and not _elastic(work, int(least)):
            yield Raw(
                work.thing,
                path,
                f"may start with {plain(least)} of its {work.count} pods: those hold their GPUs and wait for the "
                "ranks that are missing",
                f"set it to {work.count}, or make the job elastic",
                "warning",
            )


def _minimum_of_tasks(work: Work) -> Iterator[Raw]:
    for index, task in rows(work.thing.spec, "tasks") if work.kind == "VolcanoJob" else ():
        least, pods = number(task.get("minAvailable")), work.pods[index].count if index < len(work.pods) else 0
        if least is not None and least > pods:
            yield Raw(
                work.thing,
                ("spec", "tasks", index, "minAvailable"),
                f"wants {plain(least)} pods of task {text(task, 'name') or index} to start, which has {pods}: it never "
                "starts",
                f"set it to {pods}",
            )


def _minimum_of_groups(scene: Scene) -> Iterator[Raw]:
    """minMember of PodGroups that are written by hand, against the pods that name them."""
    members: dict[tuple[str, str], int] = {}
    for work in works(scene):
        for pods in work.pods:
            name = text(pods.annotations, GROUP_NAME)
            if name:
                members[work.thing.namespace, name] = members.get((work.thing.namespace, name), 0) + pods.count
    for group in scene.given("PodGroup"):
        count = members.get((group.namespace, group.name))
        least = group.spec.get("minMember")
        if least is not None and (isinstance(least, bool) or not isinstance(least, int) or least < 0):
            yield Raw(
                group,
                ("spec", "minMember"),
                f"has minMember {least!r}, which is no number of pods: the API server refuses it",
                f"write {count or 'the number of its pods'}",
            )
        elif count is not None and isinstance(least, int) and least > count:
            yield Raw(
                group,
                ("spec", "minMember"),
                f"wants {least} pods to start, and {count} name it: it never starts, and what is enqueued for it is "
                "taken from others",
                f"set minMember to {count}",
            )


def _elastic(work: Work, least: int) -> bool:
    policy = mapping(work.thing.spec, "elasticPolicy")
    return bool(policy) and least >= whole(policy.get("minReplicas"), 1)


@rule(
    "gang-scheduler-wrong",
    "error",
    "a gang is asked of Volcano, and its pods go to another scheduler",
    looks_at="PyTorchJob and its like, Job, Pod, PodGroup, TrainingRuntime",
    sources=("trainer#1825",),
)
def gang_scheduler_wrong(scene: Scene) -> Iterator[Raw]:
    """The PodGroup is there and nobody reads it: the other scheduler binds the pods one by one."""
    for work in gpu_works(scene):
        if work.kind == "VolcanoJob":
            other = text(work.thing.spec, "schedulerName") or VOLCANO
            if other != VOLCANO:
                yield Raw(
                    work.thing,
                    ("spec", "schedulerName"),
                    f"is a Volcano Job whose pods go to {other}, which knows no PodGroup: they are bound one by one",
                    "set spec.schedulerName: volcano",
                )
            continue
        value, path = work.minimum()
        # The operator's own gang scheduler fills in an empty schedulerName.
        fills_in = work.kind in TRAINING_OPERATOR_KINDS
        for pods in work.gpu_pods:
            explicit = "schedulerName" in pods.spec
            named = GROUP_NAME in pods.annotations
            asked = value is not None and (explicit or not fills_in)
            if pods.scheduler != VOLCANO and (asked or named):
                yield Raw(
                    work.thing,
                    (*pods.path, "spec", "schedulerName") if explicit else path if not named else pods.path,
                    f"asks for a gang ({'its PodGroup' if named else 'minAvailable'}), and its pods go to "
                    f"{pods.scheduler}, which knows no PodGroup: they are bound one by one",
                    "set schedulerName: volcano in the pod template, or leave the gang to Kueue and drop the minimum",
                )
                break
    for runtime in scene.given("TrainingRuntime", "ClusterTrainingRuntime"):
        if get(runtime.spec, "podGroupPolicy", "volcano") is None:
            continue
        for index, item in rows(runtime.spec, "template", "spec", "replicatedJobs"):
            inner = mapping(item, "template", "spec", "template", "spec")
            if text(inner, "schedulerName") != VOLCANO:
                yield Raw(
                    runtime,
                    ("spec", "template", "spec", "replicatedJobs", index),
                    f"makes a PodGroup of Volcano, and the pods of {text(item, 'name') or 'its job'} go to "
                    f"{text(inner, 'schedulerName') or DEFAULT_SCHEDULER}: Volcano never binds them, and the PodGroup "
                    "reserves what nobody uses",
                    "set schedulerName: volcano in that pod template (the plugin does not do it)",
                )
                break


@rule(
    "rollout-cannot-form-gang",
    "error",
    "a rolling update makes fewer pods than the gang needs",
    looks_at="Deployment",
    sources=("volcano#4739",),
)
def rollout_cannot_form_gang(scene: Scene) -> Iterator[Raw]:
    """The new ReplicaSet gets a PodGroup of its own and only maxSurge pods: its gang never forms, and the update
    hangs."""
    for work in works(scene):
        value, path = work.minimum()
        if work.kind != "Deployment" or value is None or text(work.thing.spec, "strategy", "type") == "Recreate":
            continue
        least = whole(value)
        surge = get(work.thing.spec, "strategy", "rollingUpdate", "maxSurge")
        shown = "25%" if surge is None else str(surge)
        share = shown.removesuffix("%")
        percent = whole(share, -1) if shown.endswith("%") else -1
        pods = -(-work.count * percent // 100) if percent >= 0 else whole(surge)
        if least > pods:
            yield Raw(
                work.thing,
                path,
                f"wants a gang of {least}, and a rolling update makes {pods} new pod{'' if pods == 1 else 's'} at a "
                f"time (maxSurge {shown}): the new PodGroup never gets its {least}, and the update hangs",
                f"set maxSurge to {least} or more, or strategy.type to Recreate",
            )


@rule(
    "volcano-wish-on-the-wrong-object",
    "warning",
    "Volcano's queue or topology stands on the Job, and is read on its pods alone",
    looks_at="Job, Deployment, StatefulSet with schedulerName volcano",
    sources=("seen with Volcano 1.15.1",),
)
def volcano_wish_on_the_wrong_object(scene: Scene) -> Iterator[Raw]:
    """Volcano makes the PodGroup from the first pod: of its owner it reads the minimum, and nothing else of these."""
    for work in works(scene):
        if work.kind not in ("Job", "Deployment", "StatefulSet") or not work.scheduled_by_volcano:
            continue
        for name in (VOLCANO_QUEUE, *_TOPOLOGY_WISHES):
            path = ("metadata", "annotations", name)
            said = text(work.thing.body, *path)
            if said and not any(name in pods.annotations for pods in work.gpu_pods):
                effect = (
                    "its gang goes to the queue default" if name == VOLCANO_QUEUE else "its gang may stand anywhere"
                )
                yield Raw(
                    work.thing,
                    path,
                    f"has the annotation {name}: {said}, which Volcano reads on pods alone: {effect}",
                    f"move {name} to spec.template.metadata.annotations",
                )
