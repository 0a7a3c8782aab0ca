"""Rules about jobs and the queue that they stand in, or not. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal

from myriad.lint.rule import Raw, rule
from myriad.lint.scene import QUEUE_LABEL, Scene, get, number, plain, rows, text
from myriad.lint.words import JOBS, gpus_words, unit
from myriad.lint.works import (
    FRAMEWORKS,
    VOLCANO,
    Work,
    gpu_works,
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
    for work in gpu_works(scene):
        if work.kind == "VolcanoJob" or work.queue:
            continue
        if any(queue.name == "default" and queue.namespace == work.thing.namespace for queue in scene.of("LocalQueue")):
            continue  # Kueue gives the namespace's LocalQueue `default` to a job that names none.
        inner = next((p for p in work.pods if text(p.template, "metadata", "labels", QUEUE_LABEL)), None)
        misplaced = inner is not None and work.kind != "Pod"
        if misplaced:
            said = "names its queue in the pod template, where Kueue does not look for it"
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
    for work in works(scene):
        if not work.queue or scene.find("LocalQueue", work.queue, work.thing.namespace):
            continue
        names = sorted(
            {
                q.name
                for q in scene.of("LocalQueue")
                if not q.namespace or not work.thing.namespace or q.namespace == work.thing.namespace
            }
        )
        where = f"namespace {work.thing.namespace}" if work.thing.namespace else "what was read"
        yield Raw(
            work.thing,
            work.queue_at,
            f"names the queue {work.queue}, and there is no such LocalQueue in {where}: it stays suspended for ever",
            f"name one of {', '.join(names)}" if names else "make a LocalQueue there, or move the job",
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
        if queue is None:
            continue
        needed = smallest(work)
        for resource, most, how in most_of(scene, queue.name):
            need = needed.get(resource, Decimal(0))
            if need > most:
                pods = next((p for p in work.pods if p.requests.get(resource)), work.pods[0])
                at_least = "" if needed == work.total else "at least "
                shown = plain(need) if at_least else work.arithmetic(resource)
                yield Raw(
                    work.thing,
                    pods.counted_at,
                    f"asks for {at_least}{shown} {unit(resource)}, and ClusterQueue {queue.name} never gives more "
                    f"than {plain(most)} ({how}): it waits for ever",
                    "ask for less, or have the quota or the borrowing limit raised",
                )
                break


def most_of(scene: Scene, queue_name: str) -> list[tuple[str, Decimal, str]]:
    """The most that a ClusterQueue can give of each resource with a bound, and how that comes about."""
    queue = scene.find("ClusterQueue", queue_name)
    if queue is None:
        return []
    cohort = text(queue.spec, "cohortName") or text(queue.spec, "cohort")
    most: dict[str, Decimal] = {}
    unbound: set[str] = set()
    how: dict[str, str] = {}
    for _, group in rows(queue.spec, "resourceGroups"):
        for _, flavor in rows(group, "flavors"):
            for _, resource in rows(flavor, "resources"):
                name, nominal = text(resource, "name"), number(resource.get("nominalQuota"))
                limit = number(resource.get("borrowingLimit"))
                if nominal is None:
                    continue
                if cohort and limit is None:
                    unbound.add(name)
                borrow = limit if cohort and limit is not None else Decimal(0)
                most[name] = most.get(name, Decimal(0)) + nominal + borrow
                if name in how:
                    how[name] = f"{plain(most[name])} in all its flavors"
                elif cohort:
                    how[name] = f"{plain(nominal)} of its own and {plain(borrow)} borrowed"
                else:
                    how[name] = "its nominal quota; it is in no cohort that lends"
    if "ClusterQueue" in scene.sure:
        # Who may borrow without a limit still gets no more than the whole cohort has.
        for name in sorted(unbound):
            most[name] = _of_cohort(scene, cohort, name)
            how[name] = f"the whole cohort {root_of(scene, cohort)} has no more"
        unbound.clear()
    return [(name, value, how[name]) for name, value in most.items() if name not in unbound]


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


def root_of(scene: Scene, cohort: str) -> str:
    """The cohort at the top of the tree that a cohort is in."""
    seen: set[str] = set()
    while cohort not in seen:
        seen.add(cohort)
        above = scene.find("Cohort", cohort)
        parent = text(above.spec, "parentName") if above is not None else ""
        if not parent:
            break
        cohort = parent
    return cohort


def _of_cohort(scene: Scene, cohort: str, resource: str) -> Decimal:
    """All nominal quota of a resource in the tree of a cohort; summed once for each tree."""
    root = root_of(scene, cohort)
    key = f"cohort {root} {resource}"
    kept = scene.recall(key)
    if isinstance(kept, Decimal):
        return kept
    total = Decimal(0)
    for holder in scene.of("ClusterQueue", "Cohort"):
        name = (
            holder.name if holder.kind == "Cohort" else text(holder.spec, "cohortName") or text(holder.spec, "cohort")
        )
        if not name or root_of(scene, name) != root:
            continue
        for _, group in rows(holder.spec, "resourceGroups"):
            for _, flavor in rows(group, "flavors"):
                for _, row in rows(flavor, "resources"):
                    if text(row, "name") == resource:
                        total += number(row.get("nominalQuota")) or Decimal(0)
    scene.remember(key, total)
    return total
