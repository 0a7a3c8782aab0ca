"""Rules about Volcano's queues, PodGroups and its own Deployments. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from myriad.lint.rule import Raw, rule
from myriad.lint.rules_volcano import configurations, plugins_of
from myriad.lint.scene import Json, KeyPath, Scene, Thing, mapping, number, plain, rows, text, texts, whole
from myriad.lint.words import amount, asked, unit
from myriad.lint.works import GROUP_NAME, Work, gpu_works, is_accelerator, least_to_start, runtime_of, works


@rule(
    "two-quota-ledgers",
    "error",
    "quota in Volcano's queues beside Kueue's",
    looks_at="Queue, ClusterQueue",
    sources=("kueue#1985", "volcano#3220", "volcano#4479"),
)
def two_quota_ledgers(scene: Scene) -> Iterator[Raw]:
    """Two ledgers kept by hand drift: Volcano refuses what Kueue has admitted, and the job stands admitted and Pending.
    A queue that is made from a ClusterQueue (same name, or same team and pool) is held against it figure by figure."""
    if not scene.kueue:
        return
    for queue in scene.given("Queue"):
        said = [f for f in ("capability", "deserved", "guarantee") if mapping(queue.spec, f)]
        if queue.name == "root" or not said:
            continue
        twin = _twin(scene, queue)
        if twin is not None:
            yield from _differences(queue, twin, said)
            continue
        shown = ", ".join(f"{name} {value}" for name, value in _amounts(queue, said[0]).items())
        yield Raw(
            queue,
            ("spec", said[0]),
            f"limits what Kueue counts already ({' and '.join(said)}: {shown}): where the two differ, Volcano refuses "
            "what Kueue has admitted, and nobody says which of them holds a job",
            f"take {' and '.join(said)} out (one neutral queue), or give the queue the name and the figures of its "
            "ClusterQueue",
        )
    weighted = [
        q for q in scene.of("Queue") if q.name not in ("root", "default") and whole(q.spec.get("weight"), 1) >= 1
    ]
    proportion = any(text(p, "name") == "proportion" for c, _ in configurations(scene) for _, p in plugins_of(c))
    if proportion and len(weighted) > 1 and len({str(q.spec.get("weight", 1)) for q in weighted}) > 1:
        yield Raw(
            weighted[0],
            ("spec", "weight"),
            f"is one of {len(weighted)} queues with weights under the proportion plugin: `deserved` follows from the "
            "weights, and refuses what Kueue has admitted",
            "use one neutral queue",
        )


def _twin(scene: Scene, queue: Thing) -> Thing | None:
    """The ClusterQueue that a Volcano queue was made from."""
    found = scene.find("ClusterQueue", queue.name)
    if found is not None:
        return found
    own = (queue.labels.get("myriad.dev/team"), queue.labels.get("myriad.dev/pool"))
    for other in scene.of("ClusterQueue") if all(own) else ():
        if (other.labels.get("myriad.dev/team"), other.labels.get("myriad.dev/pool")) == own:
            return other
    return None


def _differences(queue: Thing, twin: Thing, fields: list[str]) -> Iterator[Raw]:
    """deserved and guarantee are the nominal quota; capability is that and what may be borrowed."""
    nominal: dict[str, Decimal] = {}
    most: dict[str, Decimal] = {}
    for _, group in rows(twin.spec, "resourceGroups"):
        for _, flavor in rows(group, "flavors"):
            for _, resource in rows(flavor, "resources"):
                name = text(resource, "name")
                quota, borrow = number(resource.get("nominalQuota")), number(resource.get("borrowingLimit"))
                nominal[name] = nominal.get(name, Decimal(0)) + (quota or 0)
                most[name] = most.get(name, Decimal(0)) + (quota or 0) + (borrow or 0)
    for field in fields:
        wanted = most if field == "capability" else nominal
        for name, value in _amounts(queue, field).items():
            figure = number(value)
            kept = wanted.get(name)
            if figure is None or kept is None or figure == kept or (field == "guarantee" and figure <= kept):
                continue
            inner = ("resource", name) if field == "guarantee" and "resource" in mapping(queue.spec, field) else (name,)
            yield Raw(
                queue,
                ("spec", field, *inner),
                f"has {field} {amount(name, figure)}, and ClusterQueue {twin.name} of the same team gives "
                f"{amount(name, kept)}: the two ledgers have drifted, and the smaller one holds jobs back in silence",
                f"write {plain(kept)}, or generate the queue from the ClusterQueue",
            )


def _amounts(queue: Thing, field: str) -> Json:
    found = mapping(queue.spec, field)
    return mapping(found, "resource") or found if field == "guarantee" else found


@rule(
    "volcano-queue-never-fits",
    "error",
    "a job asks for more than its Volcano queue holds",
    looks_at="jobs, PodGroup, Queue",
    sources=("volcano#4617", "volcano#3220"),
)
def volcano_queue_never_fits(scene: Scene) -> Iterator[Raw]:
    """It stays Pending for ever ("queue resource quota insufficient"), and what is enqueued for it others lack."""
    for work in works(scene):
        if not work.scheduled_by_volcano:
            continue
        name, _ = work.volcano_queue()
        candidates = _queues_for(scene, name)
        misfits = [(queue, misfit) for queue in candidates if (misfit := _misfit(scene, work.total, queue))]
        if not misfits or len(misfits) < len(candidates):
            continue
        queue, (resource, most, holder) = misfits[0]
        need = work.total[resource]
        part = whole(work.minimum()[0]) if not _misfit(scene, least_to_start(work), queue) else 0
        names = ", ".join(q.name for q in candidates)
        target = f"Volcano queue {queue.name}" if len(candidates) == 1 else f"any of the Volcano queues ({names})"
        if holder is not queue and len(candidates) == 1:
            target += f", whose parent {holder.name} is one"
        pods = next((p for p in work.pods if p.requests.get(resource)), work.pods[0])
        yield Raw(
            work.thing,
            pods.counted_at,
            f"asks for {asked(work, resource)}, and never fits {target} of {amount(resource, most)}"
            + (
                f" as a whole: it starts with a part (minAvailable {part}), and the other pods wait for ever"
                if part
                else ": the gang waits for ever"
            ),
            f"raise the capability to {amount(resource, need)} or leave it out, or ask for "
            f"{_largest(work, resource, most)}",
            # A job of tasks may be meant to run with fewer; ranks of an operator's job are not.
            "warning" if part and (work.kind == "VolcanoJob" or "elasticPolicy" in work.thing.spec) else None,
        )
    jobs = {(w.thing.namespace, w.thing.name) for w in works(scene)}
    for group in scene.given("PodGroup"):
        if not group.group.startswith("scheduling.volcano.sh"):
            continue
        name = text(group.spec, "queue") or "default"
        need_of = {n: v for n, a in mapping(group.spec, "minResources").items() if (v := number(a)) is not None}
        for queue in _queues_for(scene, name):
            misfit = _misfit(scene, need_of, queue)
            if misfit and (group.namespace, group.name) not in jobs:
                yield Raw(
                    group,
                    ("spec", "minResources", misfit[0]),
                    f"needs {amount(misfit[0], need_of[misfit[0]])}, and Volcano queue {queue.name} holds "
                    f"{amount(misfit[0], misfit[1])}: it waits for ever",
                    "raise the capability, or ask for less",
                )


def _queues_for(scene: Scene, name: str) -> list[Thing]:
    """The queue that a job gets; where it names none and `default` is not among the objects, the queues that are."""
    if name:
        found = scene.find("Queue", name)
        return [found] if found is not None else []
    default = scene.find("Queue", "default")
    if default is not None:
        return [default]
    return [q for q in scene.of("Queue") if q.name != "root"] if "Queue" not in scene.sure else []


def _misfit(scene: Scene, need: dict[str, Decimal], queue: Thing) -> tuple[str, Decimal, Thing] | None:
    """The first resource of which a queue, or one that it is below, holds too little: name, amount, that queue."""
    at: Thing | None = queue
    seen: set[str] = set()
    while at is not None and at.name not in seen:
        seen.add(at.name)
        capability = mapping(at.spec, "capability")
        for resource in sorted(capability, key=lambda n: not is_accelerator(n)):
            most = number(capability[resource])
            if most is not None and need.get(resource, Decimal(0)) > most:
                return resource, most, at
        parent = text(at.spec, "parent")
        at = scene.find("Queue", parent) if parent else None
    return None


def _largest(work: Work, resource: str, most: Decimal) -> str:
    each = max((p.requests.get(resource, Decimal(0)) for p in work.pods), default=Decimal(0))
    pods = int(most // each) if each else 0
    return f"{pods} pods at most" if pods > 1 else "less"


@rule(
    "volcano-queue-not-found",
    "error",
    "a job names a Volcano queue that does not exist, or is closed",
    looks_at="jobs, PodGroup, Queue",
    sources=("trainer#2325",),
)
def volcano_queue_not_found(scene: Scene) -> Iterator[Raw]:
    """The webhook refuses it, or its PodGroup stays Pending without an event."""
    holders: list[tuple[Thing, str, KeyPath]] = []
    for work in works(scene):
        if work.scheduled_by_volcano:
            name, path = work.volcano_queue()
            holders.append((work.thing, name, path))
    holders += [
        (g, text(g.spec, "queue"), ("spec", "queue"))
        for g in scene.given("PodGroup")
        if g.group.startswith("scheduling.volcano.sh")
    ]
    for thing, name, path in holders:
        if not name or name == "default":
            continue
        queue = scene.find("Queue", name)
        if queue is None:
            if scene.knows("Queue"):
                have = ", ".join(sorted(q.name for q in scene.of("Queue")))
                yield Raw(
                    thing,
                    path,
                    f"names the Volcano queue {name}, which does not exist: it is refused or stays Pending",
                    f"name one of {have}",
                )
        elif text(queue.body, "status", "state") in ("Closed", "Closing") or text(queue.spec, "state") == "Closed":
            yield Raw(
                thing,
                path,
                f"names the Volcano queue {name}, which is closed: it is refused",
                f"open it (`vcctl queue operate -a open -n {name}`), or name another",
            )


@rule(
    "volcano-queue-figures",
    "error",
    "figures of a Volcano queue that contradict each other",
    looks_at="Queue",
    sources=("volcano#3220",),
)
def volcano_queue_figures(scene: Scene) -> Iterator[Raw]:
    """guarantee <= deserved <= capability, weight of 1 or more, and a parent that exists: else the webhook refuses
    it, or the queue gets nothing."""
    for queue in scene.given("Queue"):
        spec = queue.spec
        weight = spec.get("weight")
        if weight is not None and (isinstance(weight, bool) or not isinstance(weight, int) or weight < 1):
            yield Raw(
                queue,
                ("spec", "weight"),
                f"has the weight {weight!r}; it is a whole number of 1 or more, so the queue is refused",
                "write weight: 1",
            )
        parent = text(spec, "parent")
        if parent and parent != "root" and scene.knows("Queue") and scene.find("Queue", parent) is None:
            yield Raw(
                queue,
                ("spec", "parent"),
                f"is below the queue {parent}, which does not exist: it is refused",
                "make it first, or correct the name",
            )
        for low, high in (("deserved", "capability"), ("guarantee", "deserved"), ("guarantee", "capability")):
            for name, value in _amounts(queue, low).items():
                bottom, top = number(value), number(_amounts(queue, high).get(name))
                if bottom is not None and top is not None and bottom > top:
                    path: KeyPath = (
                        ("spec", low, "resource", name)
                        if low == "guarantee" and "resource" in mapping(spec, low)
                        else ("spec", low, name)
                    )
                    yield Raw(
                        queue,
                        path,
                        f"has {low} {plain(bottom)} above {high} {plain(top)} of {name}: it is refused, or "
                        f"never gets "
                        "it",
                        f"lower {low} or raise {high}",
                    )


# PodGroups


@rule(
    "podgroup-without-resources",
    "warning",
    "a PodGroup that Volcano lets in unasked",
    looks_at="PodGroup",
    sources=("trainer#2980", "volcano's enqueue action"),
)
def podgroup_without_resources(scene: Scene) -> Iterator[Raw]:
    """Without minResources the enqueue action always passes: the group is counted as nothing, and its pods pile up
    Pending."""
    by_name: dict[str, list[Work]] = defaultdict(list)
    for work in works(scene):
        for name in {work.thing.name, *(text(p.annotations, GROUP_NAME) for p in work.pods)}:
            by_name[name].append(work)
    for group in scene.given("PodGroup"):
        if not group.group.startswith("scheduling.volcano.sh") or group.owned:
            continue
        members = [
            w
            for w in by_name.get(group.name, ())
            if not group.namespace or not w.thing.namespace or w.thing.namespace == group.namespace
        ]
        gpus: dict[str, Decimal] = {}
        for work in members:
            for name, value in work.total.items():
                gpus[name] = gpus.get(name, Decimal(0)) + value
        stated = {n: v for n, a in mapping(group.spec, "minResources").items() if (v := number(a)) is not None}
        if not stated:
            yield Raw(
                group,
                ("spec",),
                "has no minResources: Volcano enqueues it without asking whether there is room, and its pods pile up "
                "Pending",
                "set minResources to the sum of its pods' requests",
            )
        elif members and whole(group.spec.get("minMember"), 1) >= sum(w.count for w in members):
            for name, need in gpus.items():
                if is_accelerator(name) and stated.get(name, Decimal(0)) != need:
                    yield Raw(
                        group,
                        ("spec", "minResources", name) if name in stated else ("spec", "minResources"),
                        f"says {plain(stated.get(name, Decimal(0)))} {unit(name)} in minResources, and its pods ask "
                        f"for {plain(need)}: too much or too little is reserved",
                        f"write {plain(need)}",
                    )


@rule(
    "podgroup-stranded",
    "warning",
    "a PodGroup without pods that holds a reservation",
    looks_at="PodGroup, ReplicaSet (a cluster)",
    sources=("volcano#2143", "volcano#2633", "volcano#1863"),
)
def podgroup_stranded(scene: Scene) -> Iterator[Raw]:
    """Volcano counts minResources of groups that are Inqueue, have ended, or belong to a ReplicaSet of no pods: new
    jobs hear that the cluster is overused while it is empty."""
    replicas = {(r.namespace, r.name): whole(r.spec.get("replicas"), 1) for r in scene.of("ReplicaSet")}
    for group in scene.given("PodGroup"):
        if not mapping(group.spec, "minResources"):
            continue
        phase = text(group.body, "status", "phase")
        owners = [
            (group.namespace, text(o, "name"))
            for _, o in rows(group.body, "metadata", "ownerReferences")
            if o.get("kind") == "ReplicaSet"
        ]
        if phase == "Completed":
            yield Raw(
                group,
                ("status", "phase"),
                "has ended and still says minResources: older Volcano counts it as in use",
                "delete it (it goes with its job)",
            )
        elif any(replicas.get(owner) == 0 for owner in owners):
            yield Raw(
                group,
                ("metadata",),
                "belongs to a ReplicaSet of no pods: what it reserves nobody uses",
                "delete the old ReplicaSet, or set revisionHistoryLimit: 0",
            )
        elif not phase and scene.now is not None:
            yield Raw(
                group,
                ("status",),
                "has no phase: Volcano's scheduler has not looked at it, and says so nowhere",
                "look whether its scheduler runs and serves this schedulerName",
                "note",
            )


@rule(
    "trainjob-phantom-reservation",
    "warning",
    "a PodGroup for a TrainJob that Kueue holds back",
    looks_at="TrainJob, TrainingRuntime",
    sources=("trainer's volcano plugin", "trainer#2980", "trainer#3315"),
)
def trainjob_phantom_reservation(scene: Scene) -> Iterator[Raw]:
    """The trainer's volcano plugin makes the PodGroup while the TrainJob is still suspended: Volcano reserves room
    for pods that do not exist; and it takes minResources from the runtime, not from resourcesPerNode."""
    for work in gpu_works(scene):
        if work.kind != "TrainJob" or not work.queue:
            continue
        runtime = runtime_of(scene, work.thing)
        if (
            runtime is None
            or not isinstance(runtime.spec.get("podGroupPolicy"), dict)
            or "volcano" not in runtime.spec["podGroupPolicy"]
        ):
            continue
        override = mapping(work.thing.spec, "trainer", "resourcesPerNode")
        yield Raw(
            work.thing,
            ("spec", "runtimeRef"),
            f"uses the runtime {runtime.name} with Volcano's PodGroup policy: while Kueue holds the job back, the "
            "group reserves room for pods that do not exist"
            + (", and it reckons with the runtime's resources, not with resourcesPerNode" if override else ""),
            "use a runtime without podGroupPolicy (Kueue admits whole jobs), or a PyTorchJob",
        )


def replicas_and_election(body: Any) -> tuple[int, bool]:
    """Replicas of a Deployment, and whether a container of it asks for leader election."""
    spec = mapping(body, "spec")
    arguments: list[str] = []
    for _, container in rows(spec, "template", "spec", "containers"):
        for key in ("command", "args"):
            arguments += texts(container, key)
    said = [a for item in arguments for a in item.split() if a.startswith("--leader-elect")]
    return whole(spec.get("replicas"), 1), bool(said) and not said[-1].endswith("=false")


@rule(
    "volcano-leader-election",
    "error",
    "several schedulers without leader election",
    looks_at="Deployment",
    sources=("volcano's chart",),
)
def volcano_leader_election(scene: Scene) -> Iterator[Raw]:
    """Two schedulers that both bind give each GPU away twice; one replica alone is no schedule while its node is
    down."""
    for deployment in scene.given("Deployment"):
        images = [text(c, "image") for _, c in rows(deployment.spec, "template", "spec", "containers")]
        if not any(
            "vc-scheduler" in image or "vc-controller-manager" in image or "volcano-scheduler" in image
            for image in images
        ):
            continue
        replicas, elects = replicas_and_election(deployment.body)
        if replicas > 1 and not elects:
            yield Raw(
                deployment,
                ("spec", "replicas"),
                f"runs {replicas} replicas without leader election: all of them bind pods, and a GPU is given away "
                "twice",
                "add the argument --leader-elect=true",
            )
        elif replicas == 1:
            yield Raw(
                deployment,
                ("spec", "replicas") if "replicas" in deployment.spec else ("spec",),
                "runs one replica: nothing is scheduled while its node is down",
                "run two with --leader-elect=true",
                "note",
            )
