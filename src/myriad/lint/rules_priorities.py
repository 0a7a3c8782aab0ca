"""Rules about priorities, and about quota against what the nodes have. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal

from myriad.lint.rule import Raw, rule
from myriad.lint.rules_kueue import CQ, flavors_of
from myriad.lint.scene import KeyPath, Scene, Thing, get, mapping, number, plain, rows, text
from myriad.lint.works import Work, groups_of_work, is_accelerator, works


@rule(
    "priority-class-not-found",
    "error",
    "a job names a priority class that does not exist",
    looks_at="jobs, WorkloadPriorityClass, PriorityClass",
)
def priority_class_not_found(scene: Scene) -> Iterator[Raw]:
    """Kueue makes no Workload for it (or the API server refuses its pods): it never starts."""
    label = "kueue.x-k8s.io/priority-class"
    for work in works(scene):
        name = text(work.thing.labels, label)
        if name and scene.knows("WorkloadPriorityClass") and scene.find("WorkloadPriorityClass", name) is None:
            have = ", ".join(sorted(c.name for c in scene.of("WorkloadPriorityClass")))
            yield Raw(
                work.thing,
                ("metadata", "labels", label),
                f"names the WorkloadPriorityClass {name}, which does not exist: Kueue makes no Workload for it, and "
                "it never starts",
                f"name one of {have}" if have else "make it",
            )
        for pods in work.pods:
            name = text(pods.spec, "priorityClassName")
            known = name.startswith("system-") or not scene.knows("PriorityClass") or scene.find("PriorityClass", name)
            if name and not known:
                yield Raw(
                    work.thing,
                    (*pods.path, "spec", "priorityClassName"),
                    f"names the PriorityClass {name}, which does not exist: the API server refuses its pods",
                    "correct the name, or make the class",
                )
                break


@rule(
    "two-priorities",
    "error",
    "Kueue and the schedulers order by different priorities",
    looks_at="WorkloadPriorityClass, PriorityClass, jobs",
    sources=("volcano#2612",),
)
def two_priorities(scene: Scene) -> Iterator[Raw]:
    """WorkloadPriorityClass does not touch the pods' priority. Where the two differ, one part evicts what the other
    has just admitted."""
    for mirror in scene.given("PriorityClass"):
        own = scene.find("WorkloadPriorityClass", mirror.name)
        if own is not None and number(own.body.get("value")) != number(mirror.body.get("value")):
            yield Raw(
                mirror,
                ("value",),
                f"has the value {mirror.body.get('value')}, and the WorkloadPriorityClass of the same name "
                f"{own.body.get('value')}: Kueue and the scheduler order the same jobs differently",
                "give both the same value",
            )
    for work in works(scene):
        # A shield relabels a running job for a while; its pods keep the class that it came with.
        wanted = text(work.thing.labels, "kueue.x-k8s.io/priority-class").removesuffix("-shielded")
        own = scene.find("WorkloadPriorityClass", wanted) if wanted else None
        for thing, path in _pod_priorities(scene, work) if own is not None else ():
            name = text(thing.body, *path)
            mirror_of = scene.find("PriorityClass", name) if name else None
            if (
                own is not None
                and mirror_of is not None
                and number(own.body.get("value")) != number(mirror_of.body.get("value"))
            ):
                whose = f" (PodGroup {thing.name})" if thing is not work.thing else ""
                yield Raw(
                    work.thing if not thing.given else thing,
                    path,
                    f"stands in Kueue's queue with {wanted} ({own.body.get('value')}) and before the scheduler with "
                    f"{name} ({mirror_of.body.get('value')}){whose}: what Kueue admits first can be bound last, or "
                    "evicted",
                    f"name the PriorityClass {wanted} too, or none",
                )
                break


def _pod_priorities(scene: Scene, work: Work) -> Iterator[tuple[Thing, KeyPath]]:
    """Where the schedulers' priority of a job may stand: its pods, its gang's policy, its PodGroup."""
    for pods in work.gpu_pods:
        yield work.thing, (*pods.path, "spec", "priorityClassName")
    yield work.thing, ("spec", "runPolicy", "schedulingPolicy", "priorityClass")
    if work.kind == "VolcanoJob":
        yield work.thing, ("spec", "priorityClassName")
    for group in groups_of_work(scene, work):
        yield group, ("spec", "priorityClassName")


@rule(
    "second-preemptor",
    "error",
    "a PriorityClass that lets kube-scheduler preempt",
    looks_at="PriorityClass, WorkloadPriorityClass",
    sources=("kubernetes#97182", "kueue.sigs.k8s.io/docs/concepts/workload_priority_class"),
)
def second_preemptor(scene: Scene) -> Iterator[Raw]:
    """kube-scheduler then evicts pods of jobs that Kueue has admitted: Kueue sees a failed pod, keeps the quota,
    and the job uses up its retries."""
    used = {text(p.spec, "priorityClassName") for work in works(scene) if work.queue for p in work.gpu_pods}
    for each in scene.given("PriorityClass"):
        mirrored = scene.find("WorkloadPriorityClass", each.name) is not None
        if (
            each.name.startswith("system-")
            or text(each.body, "preemptionPolicy") == "Never"
            or not (mirrored or each.name in used)
        ):
            continue
        yield Raw(
            each,
            ("preemptionPolicy",) if "preemptionPolicy" in each.body else ("value",),
            "lets kube-scheduler preempt (preemptionPolicy is not Never) for jobs of Kueue: it evicts what Kueue has "
            "admitted, and Kueue takes that for a failure",
            "set preemptionPolicy: Never; Kueue is the only preemptor",
        )


# Capacity


@rule(
    "quota-above-capacity",
    "warning",
    "more quota than the nodes have",
    looks_at="ClusterQueue, ResourceFlavor, Node",
    sources=("kubernetes#92592", "skypilot#10395"),
)
def quota_above_capacity(scene: Scene) -> Iterator[Raw]:
    """Kueue admits what no node can hold: the job is admitted, its pods stay Pending, and nobody says why."""
    promised: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    by_flavor: dict[str, Thing] = {}
    for queue in scene.of(CQ):
        for _, flavor, name in flavors_of(queue):
            by_flavor.setdefault(name, queue)
            for _, resource in rows(flavor, "resources"):
                quota = number(resource.get("nominalQuota"))
                if is_accelerator(text(resource, "name")) and quota is not None:
                    promised[name, text(resource, "name")] += quota
    for (name, resource_name), quota in promised.items():
        flavor_thing = scene.find("ResourceFlavor", name)
        labels = mapping(flavor_thing.spec, "nodeLabels") if flavor_thing is not None else {}
        nodes = [n for n in scene.of("Node") if all(n.labels.get(k) == v for k, v in labels.items())]
        if flavor_thing is None or not labels or not nodes:
            continue
        have = sum(
            (number(get(n.body, "status", "allocatable", resource_name)) or Decimal(0) for n in nodes), Decimal(0)
        )
        if quota > have:
            target = flavor_thing if flavor_thing.given else by_flavor[name]
            yield Raw(
                target,
                ("metadata", "name"),
                f"is promised for {plain(quota)} {resource_name} (the nominal quotas of flavor {name}), and its "
                f"{len(nodes)} node{' offers' if len(nodes) == 1 else 's offer'} {plain(have)} now: "
                f"{plain(quota - have)} of the quota cannot be honoured",
                "lower quotas, or bring the missing GPUs back (`myriad status`, `myriad gate`)",
            )
