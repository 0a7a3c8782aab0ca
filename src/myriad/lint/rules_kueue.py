"""Rules about Kueue's queues, flavors, cohorts and admission checks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from myriad.lint.rule import Raw, rule
from myriad.lint.scene import Json, KeyPath, Scene, Thing, get, mapping, number, plain, rows, text, texts
from myriad.lint.works import is_accelerator, works

CQ = "ClusterQueue"


def flavors_of(queue: Thing) -> Iterator[tuple[KeyPath, Json, str]]:
    """Flavors of a ClusterQueue: path, body, name."""
    for g, group in rows(queue.spec, "resourceGroups"):
        for f, flavor in rows(group, "flavors"):
            yield ("spec", "resourceGroups", g, "flavors", f), flavor, text(flavor, "name")


def cohort_of(queue: Thing) -> tuple[str, KeyPath]:
    """Its cohort ("" for none) and where that is said; v1beta1 calls the field cohort."""
    field = "cohortName" if "cohortName" in queue.spec else "cohort"
    return text(queue.spec, field), ("spec", field)


@rule(
    "flavor-not-found",
    "error",
    "a ClusterQueue names a ResourceFlavor that is not there",
    looks_at="ClusterQueue, ResourceFlavor",
    sources=("kueue.sigs.k8s.io/docs/concepts/cluster_queue",),
)
def flavor_not_found(scene: Scene) -> Iterator[Raw]:
    """The ClusterQueue stays inactive (FlavorNotFound), and every job of its queues waits without a reason of its
    own."""
    names = sorted(flavor.name for flavor in scene.of("ResourceFlavor"))
    for queue in scene.given(CQ, "Cohort"):
        missing: dict[str, KeyPath] = {}
        for path, _, name in flavors_of(queue):
            if name and name not in names:
                missing.setdefault(name, (*path, "name"))
        for name, path in missing.items():
            yield Raw(
                queue,
                path,
                f"uses the flavor {name}, and there is no ResourceFlavor {name}: "
                + (
                    "the queue stays inactive, and nothing in it is ever admitted"
                    if queue.kind == CQ
                    else "what it lends can be spent nowhere"
                ),
                f"make the ResourceFlavor {name} (or give its file too)"
                + (f"; those that exist: {', '.join(names[:8])}" if names else ""),
            )


@rule(
    "everybody-admitted",
    "warning",
    "a ClusterQueue takes jobs of every namespace",
    looks_at="ClusterQueue",
    sources=("kueue.sigs.k8s.io/docs/concepts/cluster_queue",),
)
def everybody_admitted(scene: Scene) -> Iterator[Raw]:
    """`namespaceSelector: {}` selects all namespaces: whoever may make a LocalQueue anywhere spends this team's
    quota."""
    for queue in scene.given(CQ):
        selector = queue.spec.get("namespaceSelector")
        if isinstance(selector, dict) and selects_all(selector):
            written = (
                "selects" if mapping(selector, "matchLabels") or rows(selector, "matchExpressions") else "{} selects"
            )
            yield Raw(
                queue,
                ("spec", "namespaceSelector"),
                f"admits everybody (namespaceSelector {written} every namespace): whoever has a LocalQueue "
                "that leads here spends this quota",
                "select the team's namespaces: matchLabels: {myriad.dev/team: TEAM}",
            )


@rule(
    "nobody-admitted",
    "error",
    "a ClusterQueue takes jobs of no namespace",
    looks_at="ClusterQueue, LocalQueue, Namespace",
    sources=("kueue.sigs.k8s.io/docs/concepts/cluster_queue",),
)
def nobody_admitted(scene: Scene) -> Iterator[Raw]:
    """Without a namespaceSelector nothing is selected; with one that a namespace does not match its jobs wait for
    ever."""
    for queue in scene.given(CQ):
        if not isinstance(queue.spec.get("namespaceSelector"), dict):
            yield Raw(
                queue,
                ("spec", "namespaceSelector") if "namespaceSelector" in queue.spec else ("spec",),
                "has no namespaceSelector, which selects no namespace: no job is ever admitted",
                "select the team's namespaces: namespaceSelector: {matchLabels: {myriad.dev/team: TEAM}}",
            )
    for local in scene.given("LocalQueue"):
        target = scene.find(CQ, text(local.spec, "clusterQueue"))
        namespace = scene.find("Namespace", local.namespace) if local.namespace else None
        selector = target.spec.get("namespaceSelector") if target is not None else None
        if target is None or namespace is None or not isinstance(selector, dict):
            continue
        labels = {"kubernetes.io/metadata.name": namespace.name, **namespace.labels}
        if not selects(selector, labels):
            yield Raw(
                local,
                ("spec", "clusterQueue"),
                f"leads to ClusterQueue {target.name}, whose namespaceSelector does not match the labels of namespace "
                f"{namespace.name}: its jobs wait for ever",
                "label the namespace as the selector wants, or use the queue of its own team",
            )


def selects_all(selector: Json) -> bool:
    """Whether a selector of namespaces leaves none out: it is empty, or asks only for the label that each has."""
    if mapping(selector, "matchLabels"):
        return False
    terms = rows(selector, "matchExpressions")
    each_has = {"key": "kubernetes.io/metadata.name", "operator": "Exists"}
    return all({k: v for k, v in term.items() if k in each_has} == each_has for _, term in terms)


def selects(selector: Json, labels: Json) -> bool:
    """Whether a label selector matches labels."""
    for key, value in mapping(selector, "matchLabels").items():
        if labels.get(key) != value:
            return False
    for _, term in rows(selector, "matchExpressions"):
        key, operator, values = text(term, "key"), text(term, "operator"), texts(term, "values")
        has = key in labels
        match = {
            "In": has and labels[key] in values,
            "NotIn": not has or labels[key] not in values,
            "Exists": has,
            "DoesNotExist": not has,
        }.get(operator, True)
        if not match:
            return False
    return True


@rule(
    "resources-not-covered",
    "error",
    "a ClusterQueue does not cover what its jobs ask for",
    looks_at="ClusterQueue, Kueue's Configuration, jobs",
    sources=("kueue.sigs.k8s.io/docs/concepts/cluster_queue",),
)
def resources_not_covered(scene: Scene) -> Iterator[Raw]:
    """Kueue counts each resource that a pod asks for. A job that asks for one that its queue does not cover is
    never admitted; nearly every pod asks for cpu and memory, if only by its namespace's LimitRange."""
    excluded = tuple(
        prefix
        for configuration in scene.kueue_configurations
        for prefix in texts(configuration.body, "resources", "excludeResourcePrefixes")
    )
    for queue in scene.given(CQ):
        groups = rows(queue.spec, "resourceGroups")
        covered = {name for _, group in groups for name in texts(group, "coveredResources")}
        if not groups or not covered:
            yield Raw(
                queue,
                ("spec", "resourceGroups") if "resourceGroups" in queue.spec else ("spec",),
                "covers no resources: no job with requests is ever admitted",
                "add a resource group that covers cpu, memory and the GPU resource",
            )
            continue
        missing = [n for n in ("cpu", "memory") if n not in covered and not any(n.startswith(p) for p in excluded)]
        if missing:
            both = " and ".join(missing)
            yield Raw(
                queue,
                ("spec", "resourceGroups", groups[0][0], "coveredResources"),
                f"covers only {', '.join(sorted(covered))}: a job that also asks for {both} is never admitted, "
                f"because Kueue counts every resource of a pod and finds no flavor for {both}",
                f"cover {both} too, with a quota that is large where only GPUs shall decide (or leave them out for "
                "all queues by resources.excludeResourcePrefixes in Kueue's configuration)",
            )
    for work in works(scene):
        local = scene.find("LocalQueue", work.queue, work.thing.namespace) if work.queue else None
        target = scene.find(CQ, text(local.spec, "clusterQueue")) if local is not None else None
        if target is None:
            continue
        covered = {
            name for _, group in rows(target.spec, "resourceGroups") for name in texts(group, "coveredResources")
        }
        lacking = [
            n
            for n, v in work.total.items()
            if v > 0 and n not in covered and n not in ("cpu", "memory") and not any(n.startswith(p) for p in excluded)
        ]
        if covered and lacking:
            yield Raw(
                work.thing,
                work.queue_at,
                f"asks for {', '.join(sorted(lacking))}, which ClusterQueue {target.name} does not cover "
                f"({', '.join(sorted(covered))}): it is never admitted",
                "use the queue of a pool that has it",
            )


@rule(
    "covered-resources-differ",
    "error",
    "a flavor's resources are not those that its group covers",
    looks_at="ClusterQueue",
    sources=("Kueue's webhook for ClusterQueues",),
)
def covered_resources_differ(scene: Scene) -> Iterator[Raw]:
    """Kueue's webhook refuses the ClusterQueue: each flavor lists exactly the covered resources, in the same order."""
    for queue in scene.given(CQ):
        flavor_seen: dict[str, int] = {}
        resource_seen: dict[str, int] = {}
        for g, group in rows(queue.spec, "resourceGroups"):
            covered = texts(group, "coveredResources")
            for name in covered:
                if resource_seen.setdefault(name, g) != g:
                    yield Raw(
                        queue,
                        ("spec", "resourceGroups", g, "coveredResources"),
                        f"covers {name} in two resource groups: it is refused",
                        "cover it in one",
                    )
            for f, flavor in rows(group, "flavors"):
                path: KeyPath = ("spec", "resourceGroups", g, "flavors", f)
                name = text(flavor, "name")
                if flavor_seen.setdefault(name, g) != g:
                    yield Raw(
                        queue,
                        (*path, "name"),
                        f"uses the flavor {name} in two resource groups: it is refused",
                        "use it in one",
                    )
                listed = [text(resource, "name") for _, resource in rows(flavor, "resources")]
                if listed == covered:
                    continue
                lacking, odd = [n for n in covered if n not in listed], [n for n in listed if n not in covered]
                if lacking:
                    said = f"gives flavor {name or '?'} no quota of {', '.join(lacking)}, which the group covers"
                elif odd:
                    said = f"gives flavor {name or '?'} a quota of {', '.join(odd)}, which the group does not cover"
                else:
                    said = (
                        f"lists the resources of flavor {name or '?'} in another order ({', '.join(listed)}) than "
                        f"coveredResources ({', '.join(covered)})"
                    )
                yield Raw(
                    queue,
                    (*path, "resources"),
                    f"{said}: the ClusterQueue is refused",
                    "list exactly the covered resources, in their order",
                )


@rule(
    "limits-without-cohort",
    "error",
    "borrowing or lending limits on a queue that shares with nobody",
    looks_at="ClusterQueue",
    sources=("Kueue's webhook for ClusterQueues",),
)
def limits_without_cohort(scene: Scene) -> Iterator[Raw]:
    """Kueue refuses a borrowingLimit or lendingLimit without a cohort."""
    for queue in scene.given(CQ, "Cohort"):
        if cohort_of(queue)[0] if queue.kind == CQ else text(queue.spec, "parentName"):
            continue
        above, field_of = ("cohort", "cohortName") if queue.kind == CQ else ("parent", "parentName")
        for path, flavor, _ in flavors_of(queue):
            for r, resource in rows(flavor, "resources"):
                for field in ("borrowingLimit", "lendingLimit"):
                    if resource.get(field) is not None:
                        yield Raw(
                            queue,
                            (*path, "resources", r, field),
                            f"has a {field} of {text(resource, 'name')} and no {above} to share with: it is refused",
                            f"name its {above} ({field_of}), or take the limit out",
                        )


@rule(
    "sharing-refused",
    "error",
    "a way of lending or borrowing that Kueue refuses",
    looks_at="ClusterQueue, Cohort",
    sources=("Kueue's webhook for ClusterQueues",),
)
def sharing_refused(scene: Scene) -> Iterator[Raw]:
    """A queue lends no more than it has, and borrowing by preemption (borrowWithinCohort) needs an owner who can take
    back (reclaimWithinCohort)."""
    for queue in scene.given(CQ, "Cohort"):
        for path, flavor, name in flavors_of(queue):
            for r, resource in rows(flavor, "resources"):
                nominal, lending = number(resource.get("nominalQuota")), number(resource.get("lendingLimit"))
                if queue.kind == CQ and nominal is not None and lending is not None and lending > nominal:
                    yield Raw(
                        queue,
                        (*path, "resources", r, "lendingLimit"),
                        f"lends {plain(lending)} {text(resource, 'name')} of flavor {name} and has {plain(nominal)}: "
                        "it is refused",
                        f"lend {plain(nominal)} at most",
                    )
        borrow = text(queue.spec, "preemption", "borrowWithinCohort", "policy") or "Never"
        reclaim = text(queue.spec, "preemption", "reclaimWithinCohort") or "Never"
        if borrow != "Never" and reclaim == "Never":
            yield Raw(
                queue,
                ("spec", "preemption", "borrowWithinCohort"),
                f"evicts others to borrow (borrowWithinCohort {borrow}) and never takes back what is its own "
                "(reclaimWithinCohort is Never): it is refused",
                "set reclaimWithinCohort: Any or LowerPriority, or take borrowWithinCohort out",
            )


@rule(
    "cohort-cycle",
    "error",
    "cohorts that are above each other",
    looks_at="Cohort, ClusterQueue",
    sources=("kueue.sigs.k8s.io/docs/concepts/cohort",),
)
def cohort_cycle(scene: Scene) -> Iterator[Raw]:
    """Kueue stops all ClusterQueues of the cycle: nothing in them is admitted."""
    parents = {c.name: text(c.spec, "parentName") or text(c.spec, "parent") for c in scene.of("Cohort")}
    told: set[str] = set()
    for cohort in scene.given("Cohort"):
        seen = [cohort.name]
        at = parents.get(cohort.name, "")
        while at and at not in seen:
            seen.append(at)
            at = parents.get(at, "")
        if at == cohort.name and not told & set(seen):
            told.update(seen)
            yield Raw(
                cohort,
                ("spec", "parentName"),
                f"is above itself ({' under '.join([*seen, cohort.name])}): Kueue admits nothing in these cohorts",
                "take one parentName out",
            )


@rule(
    "owner-cannot-reclaim",
    "warning",
    "what is lent cannot be taken back",
    looks_at="ClusterQueue",
    sources=("kueue.sigs.k8s.io/docs/concepts/preemption",),
)
def owner_cannot_reclaim(scene: Scene) -> Iterator[Raw]:
    """With reclaimWithinCohort Never (the default) an owner waits until the borrower's jobs have ended."""
    for queue in scene.given(CQ):
        cohort = cohort_of(queue)[0]
        policy = text(queue.spec, "preemption", "reclaimWithinCohort") or "Never"
        if not cohort or policy != "Never" or not _lends(queue):
            continue
        there = get(queue.spec, "preemption", "reclaimWithinCohort") is not None
        yield Raw(
            queue,
            ("spec", "preemption", "reclaimWithinCohort") if there else ("spec",),
            f"lends its quota to cohort {cohort} and never takes it back (reclaimWithinCohort is Never): its own jobs "
            "wait until the borrowers' have ended",
            "set preemption.reclaimWithinCohort: Any (or LowerPriority), or lendingLimit: 0",
        )


def _lends(queue: Thing) -> bool:
    for _, flavor, _ in flavors_of(queue):
        for _, resource in rows(flavor, "resources"):
            nominal, lending = number(resource.get("nominalQuota")), number(resource.get("lendingLimit"))
            if is_accelerator(text(resource, "name")) and nominal and (lending is None or lending > 0):
                return True
    return False


@rule(
    "mixed-flavors",
    "warning",
    "several kinds of nodes behind one ClusterQueue",
    looks_at="ClusterQueue",
    sources=("kueue#9715", "kueue#1974", "kueue#3909"),
)
def mixed_flavors(scene: Scene) -> Iterator[Raw]:
    """A job takes the first flavor of a group that has room, not the one that was meant; and one order of waiting jobs
    serves all of them, so a job for the free kind stands behind those for the full one."""
    for queue in scene.given(CQ):
        groups = rows(queue.spec, "resourceGroups")
        for g, group in groups:
            names = list(dict.fromkeys(text(flavor, "name") for _, flavor in rows(group, "flavors")))
            if len(names) > 1:
                yield Raw(
                    queue,
                    ("spec", "resourceGroups", g, "flavors"),
                    f"has {len(names)} flavors for the same resources ({', '.join(names)}): a job takes the first "
                    "that has room, and one that waits for a full flavor holds up those for a free one",
                    "make a ClusterQueue and a LocalQueue for each flavor, so that a job names the one it wants",
                )
        if len(groups) > 1:
            yield Raw(
                queue,
                ("spec", "resourceGroups"),
                f"counts {len(groups)} groups of resources in one order of waiting jobs: a job without GPUs stands "
                "behind thousands that wait for them",
                "give jobs without GPUs a ClusterQueue of their own",
                "note",
            )


@rule(
    "strict-fifo",
    "warning",
    "one job that does not fit stops the whole queue",
    looks_at="ClusterQueue",
    sources=("kueue#6143", "kueue#2596"),
)
def strict_fifo(scene: Scene) -> Iterator[Raw]:
    """With StrictFIFO everything behind a job that cannot start yet waits, for hours where its victims take their
    time."""
    for queue in scene.given(CQ):
        if text(queue.spec, "queueingStrategy") == "StrictFIFO":
            yield Raw(
                queue,
                ("spec", "queueingStrategy"),
                "is StrictFIFO: one job that does not fit holds up every job behind it, however small",
                "use BestEffortFIFO; starving gangs get a protected domain from Myriad",
            )


@rule(
    "admission-check-missing",
    "error",
    "a ClusterQueue waits for a check that nobody answers",
    looks_at="ClusterQueue, AdmissionCheck",
    sources=("kueue.sigs.k8s.io/docs/concepts/admission_check",),
)
def admission_check_missing(scene: Scene) -> Iterator[Raw]:
    """The ClusterQueue is inactive while a check of it does not exist or is not Active."""
    for each in scene.given("AdmissionCheck"):
        if not text(each.spec, "controllerName"):
            yield Raw(
                each,
                ("spec",),
                "names no controller (spec.controllerName): the API server refuses it, and queues that wait for it are "
                "inactive",
                "name the controller that answers it",
            )
    for queue in scene.given(CQ):
        named: list[tuple[str, KeyPath]] = [
            (text(item, "name"), ("spec", "admissionChecksStrategy", "admissionChecks", i, "name"))
            for i, item in rows(queue.spec, "admissionChecksStrategy", "admissionChecks")
        ]
        named += [(name, ("spec", "admissionChecks", i)) for i, name in enumerate(texts(queue.spec, "admissionChecks"))]
        used = {name for _, _, name in flavors_of(queue)}
        for i, item in rows(queue.spec, "admissionChecksStrategy", "admissionChecks"):
            for k, flavor in enumerate(texts(item, "onFlavors")):
                if flavor not in used:
                    yield Raw(
                        queue,
                        ("spec", "admissionChecksStrategy", "admissionChecks", i, "onFlavors", k),
                        f"asks the admission check {text(item, 'name')} for the flavor {flavor}, which it does not "
                        "have: no job is ever checked by it",
                        f"name one of {', '.join(sorted(filter(None, used)))}, or take onFlavors out",
                    )
        for name, path in named:
            check = scene.find("AdmissionCheck", name)
            conditions = rows(check.body, "status", "conditions") if check is not None else []
            inactive = [c for _, c in conditions if c.get("type") == "Active" and c.get("status") != "True"]
            if check is None:
                yield Raw(
                    queue,
                    path,
                    f"waits for the admission check {name}, which does not exist: the queue is inactive, nothing is "
                    "admitted",
                    "make the AdmissionCheck and its controller, or take it out of the queue",
                )
            elif inactive:
                yield Raw(
                    queue,
                    path,
                    f"waits for the admission check {name}, whose controller is not active "
                    f"({text(inactive[0], 'message') or 'no reason given'}): nothing is admitted",
                    f"start the controller of {name} ({text(check.spec, 'controllerName')}), or take the check out of "
                    "the queue",
                )


@rule("queue-stopped", "note", "a queue is stopped", looks_at="ClusterQueue, LocalQueue")
def queue_stopped(scene: Scene) -> Iterator[Raw]:
    """It admits nothing until somebody takes stopPolicy back."""
    for queue in scene.given(CQ, "LocalQueue"):
        policy = text(queue.spec, "stopPolicy")
        if policy in ("Hold", "HoldAndDrain"):
            tail = " and its running jobs are evicted" if policy == "HoldAndDrain" else ""
            yield Raw(
                queue,
                ("spec", "stopPolicy"),
                f"is stopped ({policy}): it admits nothing{tail}",
                "set stopPolicy: None when it shall go on",
            )


@rule(
    "cluster-queue-not-found",
    "error",
    "a LocalQueue leads nowhere",
    looks_at="LocalQueue, ClusterQueue",
    sources=("trainer#2325",),
)
def cluster_queue_not_found(scene: Scene) -> Iterator[Raw]:
    """Jobs of the LocalQueue wait with the reason that the ClusterQueue does not exist."""
    for local in scene.given("LocalQueue"):
        name = text(local.spec, "clusterQueue")
        if not name:
            yield Raw(local, ("spec",), "names no ClusterQueue: it is refused", "set spec.clusterQueue")
        elif scene.knows(CQ) and scene.find(CQ, name) is None:
            yield Raw(
                local,
                ("spec", "clusterQueue"),
                f"leads to ClusterQueue {name}, which does not exist: its jobs wait for ever",
                "correct the name",
            )
