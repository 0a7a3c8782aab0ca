"""Rules about topology: Kueue's Topology and flavors, wishes of jobs, Volcano's HyperNodes, labels of nodes. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from myriad.lint.rule import Raw, rule
from myriad.lint.rules_kueue import flavors_of, selects
from myriad.lint.scene import Json, KeyPath, Scene, Thing, get, mapping, number, rows, text, whole
from myriad.lint.works import Work, groups_of_work, is_accelerator, works

HOSTNAME = "kubernetes.io/hostname"
PREFIX = "kueue.x-k8s.io/"
REQUIRED, PREFERRED, UNCONSTRAINED = (
    f"{PREFIX}podset-required-topology",
    f"{PREFIX}podset-preferred-topology",
    f"{PREFIX}podset-unconstrained-topology",
)
SLICE_TOPOLOGY, SLICE_SIZE = f"{PREFIX}podset-slice-required-topology", f"{PREFIX}podset-slice-size"


def levels_of(topology: Thing) -> list[str]:
    """Label keys of a Topology, outermost first."""
    return [text(level, "nodeLabel") for _, level in rows(topology.spec, "levels")]


def flavors_of_work(scene: Scene, work: Work) -> list[Thing]:
    """Flavors that a job may get through the queue that it names."""
    local = scene.find("LocalQueue", work.queue, work.thing.namespace) if work.queue else None
    queue = scene.find("ClusterQueue", text(local.spec, "clusterQueue")) if local is not None else None
    if queue is None:
        return []
    found = [scene.find("ResourceFlavor", name) for _, _, name in flavors_of(queue)]
    return [flavor for flavor in found if flavor is not None]


@rule("topology-not-found", "error", "a flavor names a Topology that is not there", looks_at="ResourceFlavor, Topology")
def topology_not_found(scene: Scene) -> Iterator[Raw]:
    """ClusterQueues with this flavor are inactive."""
    for flavor in scene.given("ResourceFlavor"):
        name = text(flavor.spec, "topologyName")
        if not name:
            continue
        if scene.find("Topology", name) is None:
            have = ", ".join(sorted(t.name for t in scene.of("Topology")))
            yield Raw(
                flavor,
                ("spec", "topologyName"),
                f"places by the Topology {name}, which does not exist: queues with this flavor are inactive",
                f"name one of {have}" if have else "make the Topology (or give its file too)",
            )
        if not mapping(flavor.spec, "nodeLabels"):
            yield Raw(
                flavor,
                ("spec",),
                f"names the Topology {name} and no nodeLabels: Kueue refuses it, as it cannot tell which nodes are "
                "meant",
                "add nodeLabels, such as {myriad.dev/pool: POOL}",
            )


@rule(
    "topology-levels",
    "error",
    "levels of a Topology that do not work",
    looks_at="Topology",
    sources=("kueue.sigs.k8s.io/docs/concepts/topology_aware_scheduling",),
)
def topology_levels(scene: Scene) -> Iterator[Raw]:
    """Levels are unique and go from the outermost to the innermost; the host name is only allowed as the last.
    Without it Kueue assigns racks instead of nodes, and a node that dies is not replaced."""
    for topology in scene.given("Topology"):
        levels = levels_of(topology)
        at: KeyPath = ("spec", "levels")
        doubled = sorted({level for level in levels if levels.count(level) > 1})
        if doubled:
            yield Raw(topology, at, f"has the level {doubled[0]} twice: it is refused", "name each level once")
        elif HOSTNAME in levels[:-1]:
            yield Raw(
                topology,
                (*at, levels.index(HOSTNAME)),
                f"has {HOSTNAME} above other levels: it is refused",
                "put it last",
            )
        elif not levels:
            yield Raw(topology, ("spec",), "has no levels: it is refused", "list node labels, outermost first")
        elif levels[-1] != HOSTNAME:
            yield Raw(
                topology,
                (*at, len(levels) - 1, "nodeLabel"),
                f"ends at {levels[-1]} and not at {HOSTNAME}: Kueue assigns no nodes, so kube-scheduler may split a "
                "gang over what is left, and a node that dies is not replaced in its rack",
                f"add the level {HOSTNAME} at the end",
                "warning",
            )


@rule(
    "nodes-without-level",
    "warning",
    "GPU nodes that lack a topology label",
    looks_at="Topology, ResourceFlavor, Node",
    sources=("kueue#6996",),
)
def nodes_without_level(scene: Scene) -> Iterator[Raw]:
    """Kueue's topology-aware scheduling leaves such nodes out without a word: their GPUs idle while jobs wait."""
    for topology in scene.of("Topology"):
        flavors = [f for f in scene.of("ResourceFlavor") if text(f.spec, "topologyName") == topology.name]
        nodes = [
            node
            for node in scene.of("Node")
            if gpus_of(node)
            and any(all(node.labels.get(k) == v for k, v in mapping(f.spec, "nodeLabels").items()) for f in flavors)
        ]
        for level in levels_of(topology):
            lacking = [node for node in nodes if not text(node.labels, level)]
            if not lacking:
                continue
            target = topology if topology.given else next((n for n in lacking if n.given), topology)
            names = ", ".join(sorted(n.name for n in lacking)[:4]) + (", ..." if len(lacking) > 4 else "")
            yield Raw(
                target,
                ("spec", "levels"),
                f"counts on the label {level}, and {len(lacking)} of {len(nodes)} GPU nodes lack it ({names}): they "
                "are left out without a word, and their GPUs idle",
                "label them (`myriad site --limit NODE` does it from the inventory)",
            )


def gpus_of(node: Thing) -> int:
    """Accelerators that a node offers."""
    return sum(whole(v) for n, v in mapping(node.body, "status", "allocatable").items() if is_accelerator(n))


@rule(
    "flavor-matches-no-node",
    "error",
    "a flavor whose labels no node has",
    looks_at="ResourceFlavor, Node",
)
def flavor_matches_no_node(scene: Scene) -> Iterator[Raw]:
    """Its quota is given out, and the pods of the admitted jobs find no node."""
    if not scene.of("Node"):
        return
    for flavor in scene.given("ResourceFlavor"):
        labels = mapping(flavor.spec, "nodeLabels")
        if labels and not any(all(n.labels.get(k) == v for k, v in labels.items()) for n in scene.of("Node")):
            shown = ", ".join(f"{k}={v}" for k, v in labels.items())
            yield Raw(
                flavor,
                ("spec", "nodeLabels"),
                f"selects nodes with {shown}, and no node has that: what is admitted with it stays Pending",
                "correct the labels, or label the nodes",
            )


@rule(
    "flavors-overlap",
    "warning",
    "two flavors count the same nodes",
    looks_at="ResourceFlavor, ClusterQueue",
    sources=("kueue#1985",),
)
def flavors_overlap(scene: Scene) -> Iterator[Raw]:
    """Each flavor is a ledger of its own: GPUs that two of them count are promised twice."""
    used = {name for queue in scene.of("ClusterQueue") for _, _, name in flavors_of(queue)}
    flavors = [f for f in scene.of("ResourceFlavor") if f.name in used]
    for i, one in enumerate(flavors):
        for other in flavors[:i]:
            a, b = mapping(one.spec, "nodeLabels"), mapping(other.spec, "nodeLabels")
            if any(key in a and a[key] != value for key, value in b.items()) or not _both_on_gpus(scene, one, other):
                continue
            if not (a.items() <= b.items() or b.items() <= a.items()):
                continue
            yield Raw(
                one,
                ("spec", "nodeLabels") if a else ("spec",),
                f"counts nodes that flavor {other.name} counts too ({_labels(a)} and {_labels(b)}): their GPUs are "
                "promised twice",
                "let each node belong to one flavor (myriad.dev/pool does)",
            )


def _both_on_gpus(scene: Scene, one: Thing, other: Thing) -> bool:
    counted: dict[str, set[str]] = defaultdict(set)
    for queue in scene.of("ClusterQueue"):
        for _, flavor, name in flavors_of(queue):
            counted[name].update(text(r, "name") for _, r in rows(flavor, "resources"))
    return any(is_accelerator(name) for name in counted[one.name] & counted[other.name])


def _labels(labels: Json) -> str:
    return ", ".join(f"{k}={v}" for k, v in labels.items()) or "no labels, so every node"


@rule(
    "topology-wish",
    "error",
    "a topology wish that Kueue refuses or overlooks",
    looks_at="jobs, Topology",
    sources=("kueue#10282", "kueue.sigs.k8s.io/docs/concepts/topology_aware_scheduling"),
)
def topology_wish(scene: Scene) -> Iterator[Raw]:
    """Wishes stand on the pod template, one of required, preferred and unconstrained, and name a level of the
    Topology. On the job itself they do nothing; a level that does not exist waits for ever; a slice without its
    size, or alone, leaves the pods gated."""
    levels = sorted({level for topology in scene.of("Topology") for level in levels_of(topology)})
    for work in works(scene):
        if work.kind != "Pod":
            for name in (REQUIRED, PREFERRED, UNCONSTRAINED, SLICE_TOPOLOGY):
                if name in work.thing.annotations:
                    yield Raw(
                        work.thing,
                        ("metadata", "annotations", name),
                        f"wishes for a topology ({name}) on the {work.thing.kind} itself, where Kueue does not look: "
                        "the gang is placed anywhere",
                        "move the annotation to the pod template's metadata",
                    )
        for pods in work.pods:
            at: KeyPath = (*pods.path, "metadata", "annotations")
            notes = pods.annotations
            wishes = [n for n in (REQUIRED, PREFERRED, UNCONSTRAINED) if n in notes]
            if len(wishes) > 1:
                yield Raw(
                    work.thing,
                    (*at, wishes[1]),
                    f"wishes for {' and '.join(w.removeprefix(PREFIX) for w in wishes)} at once: Kueue refuses it",
                    "keep one",
                )
            for name in (REQUIRED, PREFERRED, SLICE_TOPOLOGY):
                level = notes.get(name)
                if level is not None and levels and level not in levels:
                    yield Raw(
                        work.thing,
                        (*at, name),
                        f"wishes for the level {level!r}, which no Topology has: it is never placed",
                        f"name one of {', '.join(sorted(levels))}",
                    )
            if (SLICE_TOPOLOGY in notes) != (SLICE_SIZE in notes):
                there, lacking = (
                    (SLICE_TOPOLOGY, SLICE_SIZE) if SLICE_TOPOLOGY in notes else (SLICE_SIZE, SLICE_TOPOLOGY)
                )
                yield Raw(
                    work.thing,
                    (*at, there),
                    f"says {there.removeprefix(PREFIX)} without {lacking.removeprefix(PREFIX)}: it is refused",
                    "write both or none",
                )
            elif SLICE_TOPOLOGY in notes and not wishes:
                yield Raw(
                    work.thing,
                    (*at, SLICE_TOPOLOGY),
                    "wishes for slices only: the topology gate of its pods is not removed, and they stay "
                    "SchedulingGated after admission",
                    f"add {PREFERRED} with the level around the slices",
                )


@rule(
    "two-topology-engines",
    "error",
    "Kueue and Volcano both choose the place",
    looks_at="jobs, PodGroup, ResourceFlavor, HyperNode",
    sources=("volcano#4374", "kueue.sigs.k8s.io/docs/concepts/topology_aware_scheduling"),
)
def two_topology_engines(scene: Scene) -> Iterator[Raw]:
    """Kueue's TAS pins each pod to a host. A hard HyperNode wish of Volcano can contradict that pin: permanently
    Pending."""
    for work in works(scene):
        for thing, holder, path in _network_topologies(scene, work):
            tas = [f.name for f in flavors_of_work(scene, work) if text(f.spec, "topologyName")]
            wish = next((n for p in work.pods for n in (REQUIRED, PREFERRED, UNCONSTRAINED) if n in p.annotations), "")
            if not tas and not wish:
                continue
            hard = text(holder, "mode") == "hard"
            reason = (
                f"flavor {tas[0]} places by its topology"
                if tas
                else f"the annotation {wish.removeprefix(PREFIX)} asks Kueue to place it"
            )
            whose = f"has a PodGroup ({thing.name}) with" if thing is not work.thing and not thing.given else "has"
            reason = (
                f"{work.thing.title} is its job and {reason}" if thing is not work.thing and thing.given else reason
            )
            yield Raw(
                thing if thing.given else work.thing,
                path if thing.given else ("metadata", "name"),
                f"{whose} a networkTopology of Volcano, while {reason}: Kueue pins the hosts, "
                + (
                    "and the hard tier can contradict them, so it stays Pending for ever"
                    if hard
                    else "so Volcano's wish does nothing"
                ),
                "take networkTopology out, or use a pool with engine volcano",
                None if hard else "warning",
            )


def _network_topologies(scene: Scene, work: Work) -> Iterator[tuple[Thing, Json, KeyPath]]:
    """Volcano's topology wishes of a job: object, wish, place."""
    for thing in (work.thing, *groups_of_work(scene, work)):
        own = mapping(thing.spec, "networkTopology")
        if own:
            yield thing, own, ("spec", "networkTopology")
    path = ("metadata", "annotations", "volcano.sh/network-topology-mode")
    mode = text(work.thing.body, *path)
    if mode:
        yield work.thing, {"mode": mode}, path


# HyperNodes


@rule(
    "hypernode-selector",
    "error",
    "members of a HyperNode that cannot be read",
    looks_at="HyperNode",
    sources=("volcano.sh/en/docs/network_topology_aware_scheduling",),
)
def hypernode_selector(scene: Scene) -> Iterator[Raw]:
    """Exactly one of exactMatch, regexMatch and labelMatch; labelMatch is for members of type Node only."""
    for hyper in scene.given("HyperNode"):
        members = rows(hyper.spec, "members")
        if not members:
            yield Raw(
                hyper,
                ("spec",),
                "has no members: it is refused, or nothing is ever placed in it",
                "list nodes or HyperNodes",
            )
        for index, member in members:
            path: KeyPath = ("spec", "members", index)
            selector = mapping(member, "selector")
            forms = [f for f in ("exactMatch", "regexMatch", "labelMatch") if f in selector]
            if len(forms) != 1:
                said = " and ".join(forms) or "no selector"
                yield Raw(
                    hyper,
                    (*path, "selector") if forms else path,
                    f"has a member with {said}: exactly one is allowed, the HyperNode is refused",
                    "keep one",
                )
            elif forms[0] == "labelMatch" and text(member, "type") != "Node":
                yield Raw(
                    hyper,
                    (*path, "selector", "labelMatch"),
                    "selects HyperNodes by labels, which is for nodes only: it is refused",
                    "name them by exactMatch or regexMatch",
                )
            elif forms[0] == "regexMatch":
                try:
                    re.compile(text(selector, "regexMatch", "pattern"))
                except re.error as error:
                    yield Raw(
                        hyper,
                        (*path, "selector", "regexMatch"),
                        f"has a pattern that is no regular expression ({error}): it matches nothing",
                        "correct it",
                    )


def _members(scene: Scene, hyper: Thing, kind: str) -> Iterator[tuple[KeyPath, str, Thing | None]]:
    """Members of a kind: path, name, object (None where an exact name does not exist)."""
    for index, member in rows(hyper.spec, "members"):
        if text(member, "type") != kind:
            continue
        path: KeyPath = ("spec", "members", index, "selector")
        exact = text(member, "selector", "exactMatch", "name")
        pattern = text(member, "selector", "regexMatch", "pattern")
        labels = get(member, "selector", "labelMatch")
        if exact:
            yield (*path, "exactMatch", "name"), exact, scene.find(kind, exact)
            continue
        try:
            form = re.compile(pattern) if pattern else None
        except re.error:
            continue
        for thing in scene.of(kind):
            if (form is not None and form.search(thing.name)) or (
                isinstance(labels, dict) and selects(labels, thing.labels)
            ):
                yield path, thing.name, thing


@rule(
    "hypernode-tree",
    "error",
    "HyperNodes that form no tree",
    looks_at="HyperNode, Node",
    sources=("volcano#4007", "volcano.sh/en/docs/network_topology_aware_scheduling"),
)
def hypernode_tree(scene: Scene) -> Iterator[Raw]:
    """A HyperNode stands above members of a lower tier; each is below one only, and all of them exist. Else
    Volcano's cache of the topology is wrong or empty, and gangs are spread or stay Pending."""
    holder: dict[tuple[str, str], Thing] = {}
    for hyper in scene.of("HyperNode"):
        tier = whole(hyper.spec.get("tier"), -1)
        said = hyper.spec.get("tier")
        if isinstance(said, bool) or not isinstance(said, int) or said < 0:
            yield Raw(
                hyper,
                ("spec", "tier") if "tier" in hyper.spec else ("spec",),
                f"has {'no tier' if said is None else f'the tier {said!r}'}, and a tier is a whole number (1 at the "
                "rack, more above it): the API server refuses it",
                "write tier: 1",
            )
        for path, name, inner in _members(scene, hyper, "HyperNode"):
            if inner is None:
                if scene.knows("HyperNode"):
                    yield Raw(
                        hyper,
                        path,
                        f"has the HyperNode {name} below it, which does not exist: its nodes are not in the tree",
                        "make it, or correct the name",
                    )
                continue
            if whole(inner.spec.get("tier"), -1) >= tier:
                yield Raw(
                    hyper,
                    path,
                    f"is of tier {tier} and has {name} of tier {inner.spec.get('tier')} below it: a lower number is "
                    "nearer, so the tree is upside down",
                    "number tiers from 1 at the rack upwards",
                )
            first = holder.setdefault(("HyperNode", name), hyper)
            if first is not hyper:
                yield Raw(
                    hyper,
                    path,
                    f"has {name} below it, which is below {first.name} too: it is no tree, and gangs are placed "
                    "wrongly",
                    "keep one",
                )
        seen: set[str] = set()
        for path, name, node in _members(scene, hyper, "Node"):
            if node is None and "Node" in scene.sure:
                yield Raw(
                    hyper,
                    path,
                    f"names the node {name}, which does not exist: the rack looks larger than it is",
                    "select nodes by their rack label (labelMatch)",
                )
            if name in seen:
                continue
            seen.add(name)
            first = holder.setdefault(("Node", name), hyper)
            if first is not hyper:
                yield Raw(
                    hyper,
                    path,
                    f"holds the node {name}, which {first.name} holds too: it is no tree, and gangs are placed wrongly",
                    "keep one",
                )


@rule(
    "network-topology",
    "error",
    "a networkTopology that cannot be kept",
    looks_at="vcjob, PodGroup, HyperNode",
    sources=("volcano#4343", "volcano#4374"),
)
def network_topology(scene: Scene) -> Iterator[Raw]:
    """highestTierAllowed and highestTierName exclude each other, and a hard tier that no HyperNode has is never met."""
    tiers = {whole(h.spec.get("tier"), -1) for h in scene.of("HyperNode")}
    names = {text(h.spec, "tierName") for h in scene.of("HyperNode")}
    holders = [*scene.given("PodGroup"), *(w.thing for w in works(scene) if w.kind == "VolcanoJob" and w.thing.given)]
    for thing in holders:
        wish = mapping(thing.spec, "networkTopology")
        at: KeyPath = ("spec", "networkTopology")
        if not wish:
            continue
        tier, name = wish.get("highestTierAllowed"), text(wish, "highestTierName")
        if tier is not None and name:
            yield Raw(
                thing, (*at, "highestTierName"), "names a highest tier by number and by name: it is refused", "keep one"
            )
        elif text(wish, "mode") == "hard" and tiers:
            if tier is not None and number(tier) is not None and whole(tier) < min(tiers):
                yield Raw(
                    thing,
                    (*at, "highestTierAllowed"),
                    f"may not leave tier {tier}, and the lowest HyperNodes are of tier {min(tiers)}: it stays Pending "
                    "for ever",
                    f"allow tier {min(tiers)} or a higher one",
                )
            elif name and name not in names:
                yield Raw(
                    thing,
                    (*at, "highestTierName"),
                    f"may not leave tier {name}, and no HyperNode has that tierName: it stays Pending for ever",
                    f"name one of {', '.join(sorted(filter(None, names)))}",
                )


@rule(
    "hypernode-by-hand",
    "note",
    "nodes of a HyperNode listed by name",
    looks_at="HyperNode",
    sources=("volcano#4007",),
)
def hypernode_by_hand(scene: Scene) -> Iterator[Raw]:
    """A list of names is wrong after the next repair; labels follow the node."""
    for hyper in scene.given("HyperNode"):
        named = [
            i
            for i, m in rows(hyper.spec, "members")
            if text(m, "type") == "Node" and get(m, "selector", "exactMatch") is not None
        ]
        if named:
            yield Raw(
                hyper,
                ("spec", "members", named[0]),
                f"lists {len(named)} node{'s' if len(named) > 1 else ''} by name: it is wrong after the next swap of "
                "a machine",
                "select by the rack label: labelMatch: {matchLabels: {myriad.dev/rack: PLACE}} (`myriad render` does)",
            )
