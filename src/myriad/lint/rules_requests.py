"""Rules about requests: quantities, devices, nodes and quotas of namespaces. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from myriad.lint.rule import Raw, rule
from myriad.lint.scene import Scene, Thing, get, mapping, number, plain, rows, text
from myriad.lint.words import JOBS, amount, unit
from myriad.lint.works import (
    SERVICES,
    Pods,
    Work,
    amounts,
    gpu_works,
    is_accelerator,
    is_slice,
    least_of,
    works,
)

_REQUIRED = "kueue.x-k8s.io/podset-required-topology"
#: The highest priority that is not the system's own.
_MOST_PRIORITY = 1_000_000_000


@rule(
    "bad-quantity",
    "error",
    "a quantity or a number that cannot be read",
    looks_at="everything with requests, limits, quotas, capabilities and replicas",
)
def bad_quantity(scene: Scene) -> Iterator[Raw]:
    """The API server refuses the object, or a controller reads another figure than was meant."""
    for work in works(scene):
        for pods in work.pods:
            value = get(work.thing.body, *pods.counted_at)
            if (
                value is not None
                and not isinstance(value, dict)
                and (isinstance(value, bool) or not isinstance(value, int) or value < 0)
            ):
                yield Raw(
                    work.thing,
                    pods.counted_at,
                    f"has {value!r} where a number of pods belongs: the API server refuses it",
                    "write a whole number without quotes",
                )
            ends = (*pods.counted_at[:-1], "completions")
            shall = get(work.thing.body, *ends) if work.kind in ("Job", "CronJob", "JobSet") else None
            if shall is not None and (isinstance(shall, bool) or not isinstance(shall, int) or shall < 0):
                yield Raw(
                    work.thing,
                    ends,
                    f"has completions {shall!r}, which is no number of pods: the API server refuses it",
                    "write a whole number without quotes",
                )
            for path, container in pods.containers():
                for part in ("requests", "limits"):
                    for name, said in mapping(container, "resources", part).items():
                        where = (*path, "resources", part, name)
                        found = number(said)
                        if found is None or found < 0:
                            yield Raw(
                                work.thing,
                                where,
                                f"asks for {name} {said!r}, which is {_fault(found)}: the API server refuses it",
                                "write a number with an optional suffix, such as 8, 500m or 16Gi",
                            )
                        elif is_accelerator(name) and found != int(found):
                            yield Raw(
                                work.thing,
                                where,
                                f"asks for {said} of {name}; devices are given whole, so the API server refuses it",
                                "ask for whole devices, or for a MIG slice or a share by its own resource name",
                            )
    yield from _bad_quotas(scene)


def _fault(found: Decimal | None) -> str:
    return "no quantity" if found is None else "below 0"


def _bad_quotas(scene: Scene) -> Iterator[Raw]:
    for each in scene.given("PriorityClass", "WorkloadPriorityClass"):
        value = each.body.get("value")
        most = _MOST_PRIORITY if each.kind == "PriorityClass" and not each.name.startswith("system-") else 2**31 - 1
        if isinstance(value, bool) or not isinstance(value, int) or not -(2**31) <= value <= most:
            yield Raw(
                each,
                ("value",) if "value" in each.body else (),
                f"has {'no value' if value is None else f'the value {value!r}'}, and a priority is a whole number of "
                f"{most:,} at most: the API server refuses it",
                "write value: 1000",
            )
    for queue in scene.given("Queue"):
        for field in ("capability", "deserved"):
            for name, said in mapping(queue.spec, field).items():
                found = number(said)
                if found is None or found < 0:
                    yield Raw(
                        queue,
                        ("spec", field, name),
                        f"has {field} {name} {said!r}, which is {_fault(found)}: the queue is refused",
                        "write a number such as 64",
                    )
    for queue in scene.given("ClusterQueue", "Cohort"):
        for g, group in rows(queue.spec, "resourceGroups"):
            for f, flavor in rows(group, "flavors"):
                for r, resource in rows(flavor, "resources"):
                    at = ("spec", "resourceGroups", g, "flavors", f, "resources", r)
                    for field in ("nominalQuota", "borrowingLimit", "lendingLimit"):
                        found = number(resource.get(field))
                        missing = field not in resource
                        if (missing and field == "nominalQuota") or (not missing and (found is None or found < 0)):
                            shown = (
                                "no nominalQuota"
                                if missing
                                else f"{field} {resource.get(field)!r}, which is {_fault(found)},"
                            )
                            yield Raw(
                                queue,
                                (*at, field),
                                f"has {shown} for {text(resource, 'name')}: the API server refuses it",
                                "write a number of 0 or more, such as 32",
                            )


@rule(
    "requests-not-limits",
    "error",
    "GPU requests that differ from the limits",
    looks_at=JOBS,
    sources=("kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus",),
)
def requests_not_limits(scene: Scene) -> Iterator[Raw]:
    """Devices cannot be overcommitted: the API server refuses pods whose requests and limits of a device differ, or
    that have a request without a limit. The job is created and its pods are not."""
    for work in works(scene):
        for pods in work.pods:
            for path, container in pods.containers():
                resources = mapping(container, "resources")
                requests, limits = mapping(resources, "requests"), mapping(resources, "limits")
                for name in (n for n in requests if is_accelerator(n)):
                    asked, limit = number(requests[name]), number(limits.get(name))
                    if asked is None or asked == limit or (name in limits and limit is None):
                        continue
                    what = f"a limit of {plain(limit)}" if limit is not None else "no limit"
                    yield Raw(
                        work.thing,
                        (*path, "resources", "requests", name),
                        f"asks for {plain(asked)} {unit(name)} in container {text(container, 'name') or '?'} with "
                        f"{what}: the API server refuses each of its pods",
                        f"set resources.limits of {name} to {plain(asked)} too",
                    )


@rule("no-containers", "error", "a job without pods or containers", looks_at=JOBS)
def no_containers(scene: Scene) -> Iterator[Raw]:
    """The API server or the operator refuses it, or it does nothing."""
    for work in works(scene):
        if not work.pods:
            yield Raw(
                work.thing,
                ("spec",),
                "has no pods: its replica specs are missing",
                "write them, or render the job with `myriad job new`",
            )
            continue
        for pods in work.pods:
            if work.kind != "TrainJob" and not rows(pods.spec, "containers"):
                whose = f" of {pods.name}" if pods.name else ""
                yield Raw(
                    work.thing,
                    (*pods.path, "spec", "containers"),
                    f"has no containers in the pod template{whose}: its pods are refused",
                    "write a list of containers with name and image",
                )


@rule(
    "mixed-accelerators",
    "error",
    "one pod asks for two kinds of accelerators",
    looks_at=JOBS,
    sources=("gpu-feature-discovery#7",),
)
def mixed_accelerators(scene: Scene) -> Iterator[Raw]:
    """No node offers both (or no pool counts both), so the pod fits nowhere."""
    for work in gpu_works(scene):
        for pods in work.gpu_pods:
            names = sorted(pods.accelerators)
            if len(names) > 1 and not _together_on_a_node(scene, names):
                yield Raw(
                    work.thing,
                    (*pods.path, "spec", "containers"),
                    f"asks for {' and '.join(names)} in one pod: no node offers both, so it stays Pending",
                    "ask for one of them, or split the job",
                )


def _together_on_a_node(scene: Scene, names: list[str]) -> bool:
    return any(all(number(get(n.body, "status", "allocatable", name)) for name in names) for n in scene.of("Node"))


@rule(
    "gang-on-slices",
    "error",
    "a job of several pods on MIG slices or shared GPUs",
    looks_at=JOBS,
    sources=("docs.nvidia.com/datacenter/tesla/mig-user-guide",),
)
def gang_on_slices(scene: Scene) -> Iterator[Raw]:
    """Slices of a card do not reach each other over NVLink or GPUDirect, and NCCL refuses two ranks on one card:
    training takes whole cards."""
    for work in gpu_works(scene):
        for pods in work.gpu_pods:
            slices = {name: n for name, n in pods.accelerators.items() if is_slice(name)}
            if not slices or not (work.is_gang or sum(slices.values()) > 1) or work.kind in SERVICES:
                continue
            name = next(iter(slices))
            yield Raw(
                work.thing,
                (*pods.path, "spec", "containers"),
                f"is spread over {work.arithmetic(name)} {name}: slices do not reach each other as cards do, and NCCL "
                "fails or crawls",
                "ask for whole GPUs; one slice is for one pod that computes alone",
            )
            break


@rule(
    "pod-fits-no-node",
    "error",
    "one pod asks for more than any node has",
    looks_at=f"{JOBS}, Node",
    sources=("volcano#1295", "volcano#665", "volcano#4617", "kueue#706"),
)
def pod_fits_no_node(scene: Scene) -> Iterator[Raw]:
    """A sum over nodes says nothing: each pod stands on one node. A pod that no node can hold waits for ever, and
    what is reserved for it is taken from others."""
    shapes = node_shapes(scene)
    if not shapes:
        return
    offered = {name for shape in shapes for name in shape}
    for work in works(scene):
        for pods in work.pods:
            need = {n: v for n, v in pods.requests.items() if v > 0 and (is_accelerator(n) or n in offered)}
            if (
                not need
                or not pods.count
                or any(all(shape.get(n, Decimal(0)) >= v for n, v in need.items()) for shape in shapes)
            ):
                continue
            resource = next(
                (
                    n
                    for n, v in sorted(need.items(), key=lambda item: not is_accelerator(item[0]))
                    if all(s.get(n, Decimal(0)) < v for s in shapes)
                ),
                "",
            )
            if resource:
                best = max(shape.get(resource, Decimal(0)) for shape in shapes)
                message = (
                    f"asks for {amount(resource, need[resource])} in one pod, and no node has more than "
                    f"{amount(resource, best)}"
                )
            else:
                message = (
                    "asks for "
                    + ", ".join(amount(n, v) for n, v in sorted(need.items()))
                    + " in one pod, and no node has all of it"
                )
            yield Raw(
                work.thing,
                (*pods.path, "spec", "containers"),
                f"{message}: it waits for ever",
                "split it into smaller pods",
            )
            break


@rule(
    "gang-fits-no-nodes",
    "error",
    "a gang asks for more pods than all its nodes hold",
    looks_at=f"{JOBS}, Node, ResourceFlavor",
    sources=("volcano#665", "volcano#4617", "kueue#706"),
)
def gang_fits_no_nodes(scene: Scene) -> Iterator[Raw]:
    """Counted node by node on empty nodes, of those that the pods and their flavor select: what does not fit then
    never does, whatever the quota says."""
    nodes = scene.of("Node")
    by_selector: dict[frozenset[tuple[str, object]], list[tuple[dict[str, Decimal], int]]] = {}
    for work in gpu_works(scene) if nodes else ():
        shapes: dict[tuple[frozenset[tuple[str, object]], tuple[tuple[str, Decimal], ...]], int] = {}
        for pods in work.gpu_pods:
            selector = _selected(scene, work, pods)
            if selector not in by_selector:
                by_selector[selector] = _offered(nodes, selector)
            need = tuple(sorted((n, v) for n, v in pods.requests.items() if v > 0))
            shapes[selector, need] = shapes.get((selector, need), 0) + least_of(work, pods)
        for (selector, need), count in shapes.items():
            offered = by_selector[selector]
            known = {name for shape, _ in offered for name in shape}
            needs = [(n, v) for n, v in need if n in known or is_accelerator(n)]
            hold = sum(each * min(int(shape.get(n, 0) // v) for n, v in needs) for shape, each in offered)
            level = next((w for p in work.gpu_pods if (w := text(p.annotations, _REQUIRED))), "")
            if level and hold >= count:
                yield from _no_domain(scene, work, nodes, selector, needs, level, count)
            labels = ", ".join(sorted(f"{k}={v}" for k, v in selector))
            if (offered and not hold) or hold >= count:
                continue  # Where no node holds a single pod, `pod-fits-no-node` says so.
            which = f" with {labels}" if labels else ""
            if not offered:
                message = f"wants nodes{which}, and no node has that: it stays Pending"
                change = "correct nodeSelector, or label the nodes"
            else:
                machines = sum(each for _, each in offered)
                message = (
                    f"asks for {count} pods of {', '.join(amount(n, v) for n, v in needs)}, and the "
                    f"{machines} node{'' if machines == 1 else 's'}{which} can hold {hold} of them with nothing else "
                    "running: "
                    "the gang waits for ever"
                )
                change = f"ask for {hold} pod{'' if hold == 1 else 's'} at most, or for nodes of another pool"
            yield Raw(
                work.thing, work.gpu_pods[0].counted_at, message, change, None if "Node" in scene.sure else "warning"
            )
            break


def _no_domain(
    scene: Scene,
    work: Work,
    nodes: list[Thing],
    selector: frozenset[tuple[str, object]],
    needs: list[tuple[str, Decimal]],
    level: str,
    count: int,
) -> Iterator[Raw]:
    """A gang that has to stay within one domain (a rack), held against the largest of them."""
    domains: dict[str, list[Thing]] = {}
    for node in nodes:
        if text(node.labels, level) and all(node.labels.get(k) == v for k, v in selector):
            domains.setdefault(text(node.labels, level), []).append(node)
    largest, best = 0, ""
    for name, members in sorted(domains.items()):
        shapes = _offered(members, frozenset())
        hold = sum(each * min(int(shape.get(n, 0) // v) for n, v in needs) for shape, each in shapes)
        if hold > largest:
            largest, best = hold, name
    if best and largest < count:
        yield Raw(
            work.thing,
            work.gpu_pods[0].counted_at,
            f"wants its {count} pods within one {level}, and the largest ({best}) can hold {largest} of them with "
            "nothing else running: it waits for ever",
            f"wish for it instead of requiring it ({_REQUIRED.replace('required', 'preferred')}), name an outer "
            f"level, or ask for {largest} pod{'' if largest == 1 else 's'}",
            None if "Node" in scene.sure else "warning",
        )


def _selected(scene: Scene, work: Work, pods: Pods) -> frozenset[tuple[str, object]]:
    """Labels of the nodes that pods may stand on: their nodeSelector, and what the one flavor of their queue adds."""
    wanted = {str(k): v for k, v in mapping(pods.spec, "nodeSelector").items() if isinstance(v, str)}
    local = scene.find("LocalQueue", work.queue, work.thing.namespace) if work.queue else None
    queue = scene.find("ClusterQueue", text(local.spec, "clusterQueue")) if local is not None else None
    names = {
        text(flavor, "name")
        for _, group in (rows(queue.spec, "resourceGroups") if queue is not None else ())
        for _, flavor in rows(group, "flavors")
        if any(text(row, "name") in pods.accelerators for _, row in rows(flavor, "resources"))
    }
    flavor_of = scene.find("ResourceFlavor", names.pop()) if len(names) == 1 else None
    labels = mapping(flavor_of.spec, "nodeLabels") if flavor_of is not None else {}
    return frozenset({**{str(k): v for k, v in labels.items() if isinstance(v, str)}, **wanted}.items())


def _offered(nodes: list[Thing], selector: frozenset[tuple[str, object]]) -> list[tuple[dict[str, Decimal], int]]:
    """What selected nodes have when all of it works, and how many are alike."""
    found: dict[tuple[tuple[str, Decimal], ...], int] = {}
    for node in nodes:
        if all(node.labels.get(key) == value for key, value in selector):
            has = amounts(mapping(node.body, "status", "allocatable"))
            for name, value in amounts(mapping(node.body, "status", "capacity")).items():
                has[name] = max(has.get(name, Decimal(0)), value) if is_accelerator(name) else has.get(name, value)
            shape = tuple(sorted(has.items()))
            if shape:
                found[shape] = found.get(shape, 0) + 1
    return [(dict(shape), count) for shape, count in found.items()]


def node_shapes(scene: Scene) -> list[dict[str, Decimal]]:
    """What nodes offer, each kind of node once."""
    kept = scene.recall("node_shapes")
    if kept is None:
        shapes = {
            tuple(
                sorted(
                    (n, v)
                    for n, a in mapping(node.body, "status", "allocatable").items()
                    if (v := number(a)) is not None
                )
            )
            for node in scene.of("Node")
        }
        kept = scene.remember("node_shapes", [dict(shape) for shape in shapes if shape])
    return list(kept)


@rule(
    "namespace-quota-too-small",
    "error",
    "a ResourceQuota lets only a part of the gang be created",
    looks_at=f"{JOBS}, ResourceQuota",
    sources=("trainer#1264", "volcano#1387"),
)
def namespace_quota_too_small(scene: Scene) -> Iterator[Raw]:
    """The job controller creates pods until the quota refuses one; the gang waits for pods that never come."""
    quotas = scene.of("ResourceQuota")
    for work in works(scene) if quotas else ():
        for quota in quotas:
            if quota.namespace and work.thing.namespace and quota.namespace != work.thing.namespace:
                continue
            for name, hard in mapping(quota.spec, "hard").items():
                limit = number(hard)
                resource = name.removeprefix("requests.")
                need = Decimal(work.count) if name in ("pods", "count/pods") else work.total.get(resource, Decimal(0))
                if limit is None or need <= limit or (name.startswith(("limits.", "count/")) and name != "count/pods"):
                    continue
                shown = str(work.count) if name in ("pods", "count/pods") else work.arithmetic(resource)
                yield Raw(
                    work.thing,
                    work.pods[0].counted_at,
                    f"asks for {shown} {unit(resource)}, and ResourceQuota {quota.name} of its namespace allows "
                    f"{plain(limit)} ({name}): a part of its pods is refused, and the rest waits for them",
                    f"leave GPUs to Kueue and take {name} out of ResourceQuota {quota.name}, or ask for less",
                )
