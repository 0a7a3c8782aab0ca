"""Rules about names of resources and amounts that nobody means. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from myriad.lint.rule import Raw, rule
from myriad.lint.scene import MOST, KeyPath, Scene, Thing, mapping, number, plain, rows, text, texts
from myriad.lint.words import JOBS
from myriad.lint.works import is_accelerator, works

_STANDARD = re.compile(r"cpu|memory|ephemeral-storage|storage|pods|hugepages-.+|attachable-volumes-.+")
_PROFILE = re.compile(r"mig-[1-9]g\.\d+gb(\.[a-z]+)*")
#: What is written for a vendor's whole GPU and is not its name.
_ALMOST = re.compile(r"(?:(?P<vendor>nvidia|amd)(?:\.com)?[/.-])?gpus?(?:[.-]?count)?", re.IGNORECASE)
_BINARY = re.compile(r"[KMGTPE]i")
_LEAST_MEMORY = 1024**2
#: Cores that no machine has: a figure above it was meant in thousandths.
_MOST_CORES = 2048


def _amounts(scene: Scene) -> Iterator[tuple[Thing, KeyPath, str, object, bool]]:
    """Each amount of a resource: object, place, resource, amount as written, whether one container asks for it."""
    for work in works(scene):
        if not work.thing.given:
            continue
        for pods in work.pods:
            for path, container in pods.containers():
                requests = mapping(container, "resources", "requests")
                for part in ("requests", "limits"):
                    for name, said in mapping(container, "resources", part).items():
                        if part == "limits" and requests.get(name) == said:
                            continue  # One mistake, copied.
                        yield work.thing, (*path, "resources", part, name), str(name), said, True
    for queue in scene.given("ClusterQueue", "Cohort"):
        for g, group in rows(queue.spec, "resourceGroups"):
            for f, flavor in rows(group, "flavors"):
                for r, row in rows(flavor, "resources"):
                    for field in ("nominalQuota", "borrowingLimit", "lendingLimit"):
                        if field in row:
                            at = ("spec", "resourceGroups", g, "flavors", f, "resources", r, field)
                            yield queue, at, text(row, "name"), row[field], False
    for queue in scene.given("Queue"):
        for field in ("capability", "deserved"):
            for name, said in mapping(queue.spec, field).items():
                yield queue, ("spec", field, name), str(name), said, False
    for holder in scene.given("PodGroup"):
        for name, said in mapping(holder.spec, "minResources").items():
            yield holder, ("spec", "minResources", name), str(name), said, False


@rule(
    "resource-name",
    "error",
    "a resource that no node can offer by that name",
    looks_at=f"{JOBS}, ClusterQueue, Cohort, Queue",
    sources=("docs.nvidia.com/datacenter/cloud-native/kubernetes/latest/mig.html",),
)
def resource_name(scene: Scene) -> Iterator[Raw]:
    """A device has the name that its plugin gives it (nvidia.com/gpu, nvidia.com/mig-1g.10gb), to the letter. Another
    one is refused, or waited for for ever, and a quota of it counts nothing."""
    for thing, path, name, _, by_pod in _amounts(scene):
        if path[-1] in ("borrowingLimit", "lendingLimit"):
            continue
        yield from _misnamed(thing, path if by_pod or thing.kind == "Queue" else (*path[:-1], "name"), name, by_pod)
    for queue in scene.given("ClusterQueue", "Cohort"):
        for g, group in rows(queue.spec, "resourceGroups"):
            for index, name in enumerate(texts(group, "coveredResources")):
                at = ("spec", "resourceGroups", g, "coveredResources", index)
                yield from _misnamed(queue, at, name, False)


def device_meant(name: str) -> str:
    """The vendor's name of a whole GPU where a name is nearly that; "" for any other, and for the right one."""
    almost = _ALMOST.fullmatch(name)
    right = f"{(almost['vendor'] or 'nvidia').lower()}.com/gpu" if almost else ""
    return right if right != name else ""


def _misnamed(thing: Thing, path: KeyPath, name: str, by_pod: bool) -> Iterator[Raw]:
    what = "asks for" if by_pod else "counts"
    right = device_meant(name)
    if right:
        effect = "the API server refuses it" if "/" not in name and by_pod else "no node offers that"
        yield Raw(
            thing,
            path,
            f"{what} {name}, and the device is called {right}: {effect}",
            f"write {right}",
        )
    elif name.startswith("nvidia.com/mig-") and not _PROFILE.fullmatch(name.partition("/")[2]):
        yield Raw(
            thing,
            path,
            f"{what} {name}, which is the name of no MIG profile: no node offers that",
            "write it as nvidia-smi does, such as nvidia.com/mig-1g.10gb",
        )
    elif by_pod and "/" not in name and not _STANDARD.fullmatch(name):
        yield Raw(
            thing,
            path,
            f"asks for {name}, which is no resource of Kubernetes: the API server refuses it",
            "write cpu, memory or ephemeral-storage, or a device with its vendor (vendor.com/device)",
        )


@rule(
    "implausible-quantity",
    "warning",
    "an amount in a unit that nobody means",
    looks_at=f"{JOBS}, ClusterQueue, Cohort, Queue, PodGroup",
    sources=("kubernetes.io/docs/concepts/configuration/manage-resources-containers",),
)
def implausible_quantity(scene: Scene) -> Iterator[Raw]:
    """Memory is in bytes (`64` is 64 bytes, `400m` less than one), cpu in cores, devices in pieces: what was meant is
    a thousand or a thousand million times as much, or as little."""
    for thing, path, name, said, by_pod in _amounts(scene):
        value = number(said)
        if value is None or value <= 0:
            continue
        reading, change = implausible(name, str(said), value, by_pod=by_pod)
        if reading:
            yield Raw(thing, path, f"says {name} {said}, which is {reading}", change)


def implausible(name: str, said: str, value: Decimal, *, by_pod: bool) -> tuple[str, str]:
    """How an amount reads that nobody means, and what to write; two empty texts for any other."""
    binary = _BINARY.search(said)
    if value >= MOST:
        return "more than Kubernetes counts, so it is capped", "write the figure that is meant"
    if is_accelerator(name):
        if binary:
            return f"{plain(value)} devices: {binary[0]} is a unit of memory", f"write {said.replace(binary[0], '')}"
        if value != int(value) and not by_pod:
            return "no whole number of devices: the part is never given out", f"write {plain(Decimal(int(value)))}"
    elif name in ("memory", "ephemeral-storage") and value < _LEAST_MEMORY:
        shown = "less than a byte" if value < 1 else f"{plain(value)} byte{'' if value == 1 else 's'}"
        digits = said.rstrip("mkK")
        return f"{shown}: a pod needs thousands of times as much", f"write the unit, such as {digits}Gi"
    elif name == "cpu":
        if binary:
            return f"{plain(value)} cores: {binary[0]} is a unit of memory", f"write {said.replace(binary[0], '')}"
        if by_pod and value > _MOST_CORES:
            return f"{plain(value)} cores, which no machine has", f"write {said}m where thousandths are meant"
    return "", ""


@rule(
    "pod-group-count",
    "error",
    "pods of a group of Kueue that do not add up",
    looks_at="Pod",
    sources=("kueue.sigs.k8s.io/docs/tasks/run/plain_pods",),
)
def pod_group_count(scene: Scene) -> Iterator[Raw]:
    """Kueue admits a group of plain pods once all of pod-group-total-count are there: one too few waits for ever, and
    without the annotation the pods are refused."""
    label, total = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
    groups: dict[tuple[str, str], list[Thing]] = {}
    for pod in scene.of("Pod"):
        name = text(pod.labels, label)
        if name and not pod.owned:
            groups.setdefault((pod.namespace, name), []).append(pod)
    for (_, name), pods in groups.items():
        counts = sorted({str(pod.annotations.get(total, "none")) for pod in pods})
        first = pods[0]
        at: KeyPath = ("metadata", "annotations", total)
        count = number(counts[0])
        if len(counts) > 1 or count is None or count < 1 or count != int(count):
            yield Raw(
                first,
                at,
                f"is in the group {name} of {len(pods)} pod{'' if len(pods) == 1 else 's'}, which say "
                f"{' and '.join(counts)} as {total}: Kueue refuses them, or never admits them",
                f'write the annotation {total}: "{len(pods)}" on each of them',
            )
        elif count != len(pods) and not any(text(p.body, "status", "phase") for p in pods):
            fewer = count > len(pods)
            yield Raw(
                first,
                at,
                f"is in the group {name}, which says that it has {plain(count)} pods, and there are {len(pods)}: "
                + ("Kueue waits for the others for ever" if fewer else "Kueue deletes those that are too many"),
                f'write {total}: "{len(pods)}", or make as many pods as it says',
                "warning" if fewer else None,
            )
