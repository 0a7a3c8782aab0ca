"""Rules about jobs and the queue that they stand in, or not. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

from myriad.lint.rule import Raw, rule
from myriad.lint.scene import QUEUE_LABEL, Json, Scene, Thing, get, mapping, plain, rows, text, texts
from myriad.lint.shares import Key, Share, cohort_name, lenders_read, shares_of
from myriad.lint.words import JOBS, amount, asked, bare_amount, gpus_words, unit
from myriad.lint.works import (
    FRAMEWORKS,
    VOLCANO,
    Pods,
    Work,
    gpu_works,
    is_accelerator,
    least_of,
    smallest,
    works,
)


@rule(
    "no-queue-label",
    "error",
    "a job with GPUs names no Kueue queue",
    looks_at=JOBS,
    sources=("kueue.sigs.k8s.io/docs/tasks/run/jobs", "volcano#1827"),
)
def no_queue_label(scene: Scene) -> Iterator[Raw]:
    """Kueue leaves a job alone that names no queue: it starts outside every quota, and Kueue goes on to promise its
    GPUs to others, whose pods then stay Pending. With manageJobsWithoutQueueName it never starts at all."""
    held = any(c.body.get("manageJobsWithoutQueueName") is True for c in scene.kueue_configurations)
    defaults = {queue.namespace for queue in scene.of("LocalQueue") if queue.name == "default"}
    for work in gpu_works(scene):
        if work.kind == "VolcanoJob" or work.queue:
            continue
        if work.thing.namespace in defaults:
            continue  # Kueue gives the namespace's LocalQueue `default` to a job that names none.
        noted = QUEUE_LABEL in work.thing.annotations
        inner = next((p for p in work.pods if text(p.template, "metadata", "labels", QUEUE_LABEL)), None)
        misplaced = inner is not None and work.kind != "Pod"
        if misplaced:
            said = "names its queue in the pod template, where Kueue does not look for it"
        elif noted:
            said = f"names its queue in an annotation, and Kueue reads the label {QUEUE_LABEL}"
        else:
            said = f"names no queue (no label {QUEUE_LABEL})"
        gpus = gpus_words(work)
        if held:
            effect = f"Kueue holds it back for ever (manageJobsWithoutQueueName), and its {gpus} are never asked for"
        else:
            effect = (
                f"Kueue does not manage it, its {gpus} start outside every quota, and Kueue goes on to promise them "
                "to others"
            )
        whose = "the CronJob's jobTemplate" if work.kind == "CronJob" else f"the {work.thing.kind} itself"
        yield Raw(
            work.thing,
            (*inner.path, "metadata", "labels", QUEUE_LABEL) if inner and misplaced else work.queue_at,
            f"{said}: {effect}",
            f"set the label {QUEUE_LABEL} on {whose}, with the name of a LocalQueue of its namespace",
        )


@rule(
    "queue-not-found",
    "error",
    "a job names a LocalQueue that its namespace does not have",
    looks_at=f"{JOBS}, LocalQueue",
    sources=("trainer#2325",),
)
def queue_not_found(scene: Scene) -> Iterator[Raw]:
    """The job stays suspended for ever with the reason that its LocalQueue does not exist."""
    if not scene.knows("LocalQueue"):
        return
    named: dict[str, list[str]] = {}
    for work in works(scene):
        if not work.queue or scene.find("LocalQueue", work.queue, work.thing.namespace):
            continue
        own = work.thing.namespace
        if own not in named:
            every = scene.of("LocalQueue")
            named[own] = sorted({q.name for q in every if not q.namespace or not own or q.namespace == own})
        names = named[own]
        where = f"namespace {work.thing.namespace}" if work.thing.namespace else "what was read"
        yield Raw(
            work.thing,
            work.queue_at,
            f"names the queue {work.queue}, and there is no such LocalQueue in {where}: it stays suspended for ever",
            f"name one of {', '.join(names[:8])}" if names else "make a LocalQueue there, or move the job",
        )


@rule(
    "vcjob-outside-kueue",
    "error",
    "a Volcano Job where Kueue counts quota",
    looks_at="vcjob",
    sources=("kueue#1204", "volcano#3875", "volcano#2785"),
)
def vcjob_outside_kueue(scene: Scene) -> Iterator[Raw]:
    """A vcjob cannot be suspended, so Kueue cannot manage it: its GPUs are counted by nobody, whatever label it
    carries."""
    for work in gpu_works(scene):
        if work.kind == "VolcanoJob" and (work.queue or scene.kueue):
            yield Raw(
                work.thing,
                work.queue_at if work.queue else ("spec",),
                f"is a Volcano Job, which Kueue cannot manage (it cannot be suspended): its {gpus_words(work)} start "
                "outside Kueue's quota" + (f", and the label {QUEUE_LABEL} does nothing" if work.queue else ""),
                "write it as a batch Job or a PyTorchJob (`myriad job new`)",
            )


@rule(
    "queue-never-fits",
    "error",
    "a job asks for more than its Kueue queue can ever give",
    looks_at=f"{JOBS}, LocalQueue, ClusterQueue",
    sources=("kueue#6947", "kueue#706"),
)
def queue_never_fits(scene: Scene) -> Iterator[Raw]:
    """It waits for ever; under older Kueue it also preempts others again and again without ever starting."""
    for work in works(scene):
        local = scene.find("LocalQueue", work.queue, work.thing.namespace) if work.queue else None
        queue = scene.find("ClusterQueue", text(local.spec, "clusterQueue")) if local else None
        if queue is not None:
            yield from _never_fits(scene, work, queue)


def _never_fits(scene: Scene, work: Work, queue: Thing) -> Iterator[Raw]:
    shares = shares_of(scene, queue)
    needed = smallest(work)
    told = False
    by_resource: dict[str, list[Share]] = defaultdict(list)
    for (_, resource), share in shares.items():
        by_resource[resource].append(share)
    for resource in sorted(by_resource, key=lambda name: not is_accelerator(name)):
        members = by_resource[resource]
        need = needed.get(resource, Decimal(0))
        bounds = [share.most for share in members if share.most is not None]
        sure = len(bounds) == len(members) and need > sum(bounds, Decimal(0))
        limit = sum(bounds, Decimal(0)) if sure else sum((share.read for share in members), Decimal(0))
        if need <= 0 or (not sure and (need <= limit or not lenders_read(scene, queue))):
            continue
        pods = next((p for p in work.pods if p.requests.get(resource)), work.pods[0])
        at_least = "" if needed == work.total else "at least "
        shown = amount(resource, need) if at_least or resource == "memory" else asked(work, resource)
        how = members[0].how if len(members) == 1 else f"{plain(limit)} in all its flavors"
        most = bare_amount(resource, limit)
        yield Raw(
            work.thing,
            pods.counted_at,
            f"asks for {at_least}{shown}, and "
            + (
                f"ClusterQueue {queue.name} never gives more than {most} ({how}): it waits for ever"
                if sure
                else f"the queues that were read let ClusterQueue {queue.name} have {most} at most: unless there are "
                f"others in cohort {cohort_name(queue)}, it waits for ever"
            ),
            "ask for less, or have the quota or the borrowing limit raised",
            None if sure else "warning",
        )
        told = True
    if not told:
        yield from _no_single_flavor(scene, work, queue, shares)


def _no_single_flavor(scene: Scene, work: Work, queue: Thing, shares: Mapping[Key, Share]) -> Iterator[Raw]:
    """Kueue takes all pods of one shape from one flavor: what is left over in several does not add up."""
    for _, group in rows(queue.spec, "resourceGroups"):
        names = list(dict.fromkeys(text(flavor, "name") for _, flavor in rows(group, "flavors")))
        covered = [name for name in texts(group, "coveredResources") if is_accelerator(name)]
        for resource in covered:
            given = [shares[name, resource] for name in names if (name, resource) in shares]
            if len(names) < 2 or any(share.most is None for share in given):
                continue
            for pods in work.pods:
                need = pods.requests.get(resource, Decimal(0)) * least_of(work, pods)
                open_to = {
                    n: s for n in names if (s := shares.get((n, resource))) and not _against(scene, pods, n, names)
                }
                if need <= 0 or any(need <= (s.most or Decimal(0)) for s in open_to.values()):
                    continue
                shown = ", ".join(
                    f"{name} {bare_amount(resource, s.most or Decimal(0))}" for name, s in open_to.items()
                )
                whose = f" ({pods.name})" if pods.name else ""
                each, count = pods.requests.get(resource, Decimal(0)), least_of(work, pods)
                yield Raw(
                    work.thing,
                    pods.counted_at,
                    f"asks for {count} x {plain(each)} = {plain(need)} {unit(resource)} for pods of one shape{whose}, "
                    f"and no flavor of ClusterQueue {queue.name} that they may use gives so many "
                    f"({shown or 'none fits their nodeSelector'}): Kueue takes all of them from one flavor, so it "
                    "waits for ever",
                    "ask for less, put the quota into one flavor, or split the job",
                )
                return


def _against(scene: Scene, pods: Pods, flavor: str, group: Iterable[str]) -> str:
    """Why pods cannot have a flavor of a group, as a part of a sentence; "" where they can.

    Of what pods select Kueue looks at the labels that any flavor of the group has.
    """
    found = scene.find("ResourceFlavor", flavor)
    labels = mapping(found.spec, "nodeLabels") if found is not None else {}
    for key, value in mapping(pods.spec, "nodeSelector").items():
        if key in labels and labels[key] != value:
            return f"{flavor} is {key}={labels[key]}, and they select {value}"
        others = (scene.find("ResourceFlavor", name) for name in group)
        if found is not None and key not in labels and any(o and key in mapping(o.spec, "nodeLabels") for o in others):
            return f"{flavor} has no label {key}, and they select {value}"
    tolerations = [t for _, t in rows(pods.spec, "tolerations")]
    if found is not None:
        tolerations += [t for _, t in rows(found.spec, "tolerations")]
        for _, taint in rows(found.spec, "nodeTaints"):
            if taint.get("effect") in ("NoSchedule", "NoExecute") and not any(
                tolerates(toleration, taint) for toleration in tolerations
            ):
                return f"{flavor} has the taint {text(taint, 'key')}, which they do not tolerate"
    return ""


def tolerates(toleration: Json, taint: Json) -> bool:
    """Whether a toleration covers a taint
    (https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/)."""
    if text(toleration, "effect") not in ("", text(taint, "effect")):
        return False
    exists = text(toleration, "operator") == "Exists"
    if not text(toleration, "key"):
        return exists
    same = text(toleration, "key") == text(taint, "key")
    return same and (exists or str(toleration.get("value") or "") == str(taint.get("value") or ""))


@rule(
    "no-flavor-for-job",
    "error",
    "a job that can have no flavor of its queue",
    looks_at=f"{JOBS}, ClusterQueue, ResourceFlavor",
    sources=("kueue.sigs.k8s.io/docs/concepts/resource_flavor",),
)
def no_flavor_for_job(scene: Scene) -> Iterator[Raw]:
    """Kueue gives a job only flavors whose labels its nodeSelector does not contradict and whose taints it tolerates.
    Where there is none it waits, with room on every node."""
    for work in works(scene):
        local = scene.find("LocalQueue", work.queue, work.thing.namespace) if work.queue else None
        queue = scene.find("ClusterQueue", text(local.spec, "clusterQueue")) if local is not None else None
        if queue is None or work.kind == "TrainJob":
            continue  # What a TrainJob's pods select and tolerate stands in its runtime.
        for pods in work.pods:
            for _, group in rows(queue.spec, "resourceGroups"):
                if not any(pods.requests.get(name) for name in texts(group, "coveredResources")):
                    continue
                names = dict.fromkeys(text(flavor, "name") for _, flavor in rows(group, "flavors"))
                reasons = [_against(scene, pods, name, names) for name in names]
                if reasons and all(reasons):
                    whose = f"its {pods.name} pods" if pods.name else "its pods"
                    yield Raw(
                        work.thing,
                        (*pods.path, "spec"),
                        f"can have no flavor of ClusterQueue {queue.name} for {whose}: {'; '.join(reasons[:4])}. It "
                        "waits for ever",
                        (
                            "take the nodeSelector out (Kueue adds the flavor's)"
                            if any("they select" in reason for reason in reasons)
                            else "tolerate the taint"
                        )
                        + ", or use another queue",
                    )
                    break


@rule(
    "mixed-schedulers",
    "error",
    "GPU pods of one pool go to different schedulers",
    looks_at=JOBS,
    sources=("volcano#1827", "volcano#2700", "kubernetes#72043", "kubernetes#136782", "scheduler-plugins#447"),
)
def mixed_schedulers(scene: Scene) -> Iterator[Raw]:
    """Each scheduler has a cache of its own and gives the same GPU away twice: the kubelet refuses the second pod
    (OutOfnvidia.com/gpu), and its controller makes the next one."""
    by_pool: dict[str, dict[str, list[Work]]] = defaultdict(lambda: defaultdict(list))
    for work in gpu_works(scene):
        for pods in work.gpu_pods:
            scheduler = VOLCANO if work.kind == "VolcanoJob" else pods.scheduler
            pool = text(pods.spec, "nodeSelector", "myriad.dev/pool") or work.queue
            by_pool[pool][scheduler].append(work)
    for pool, by_scheduler in by_pool.items():
        if len(by_scheduler) < 2:
            continue
        most = max(by_scheduler, key=lambda name: (len({w.thing.title for w in by_scheduler[name]}), name == VOLCANO))
        for scheduler, members in by_scheduler.items():
            if scheduler == most:
                continue
            for work in dict.fromkeys(members):
                pods = next((p for p in work.gpu_pods if p.scheduler == scheduler), work.gpu_pods[0])
                explicit = "schedulerName" in pods.spec
                yield Raw(
                    work.thing,
                    (*pods.path, "spec", "schedulerName") if explicit else (*pods.path, "spec"),
                    f"goes to {scheduler}, while other GPU jobs{f' of {pool}' if pool else ''} go to {most} "
                    f"({by_scheduler[most][0].thing.title}): both give away the same GPUs, and the kubelet refuses "
                    "the second pod",
                    f"give all GPU pods of the pool one schedulerName ({most}), or keep their nodes apart by a taint",
                )


@rule(
    "job-kind-unmanaged",
    "error",
    "Kueue's integration of a kind is off",
    looks_at=f"{JOBS}, Kueue's Configuration",
    sources=("Kueue 0.19's default configuration",),
)
def job_kind_unmanaged(scene: Scene) -> Iterator[Raw]:
    """The queue label does nothing then: the job starts at once, outside every quota."""
    for configuration in scene.kueue_configurations:
        frameworks = get(configuration.body, "integrations", "frameworks")
        if not isinstance(frameworks, list):
            continue
        for work in works(scene):
            name = FRAMEWORKS.get(work.kind)
            if work.queue and name and name not in frameworks:
                yield Raw(
                    work.thing,
                    work.queue_at,
                    f"names the queue {work.queue}, and Kueue's integration {name} is off: it starts at once, outside "
                    "every quota",
                    f'add "{name}" to integrations.frameworks of Kueue\'s configuration, and restart Kueue',
                )
