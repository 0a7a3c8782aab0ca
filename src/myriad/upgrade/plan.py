"""The plan of an upgrade: what changes where, who goes when, and what stands in its way. No I/O.

Order: control planes one at a time, because the API server must not be older than any kubelet; then nodes in waves, few
of a rack at a time; then what runs in the cluster. Skew: https://kubernetes.io/releases/version-skew-policy/
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from myriad.fleet.driver.rules import exact
from myriad.fleet.names import listing
from myriad.kube.drain import Cordon, Gang
from myriad.kube.reboot import CONTROL_PLANE_LABEL, RACK_LABEL, Candidate, Rules
from myriad.kube.reboot import plan as batches_of
from myriad.stack.compat import Version, compare, parse_version

BY = "upgrade"
"""The name under which nodes are closed."""

JOB_RUNS = "the job "
"""How the reason of a node begins that stays for a job."""

HELD = "waits for its upgrade"
"""How the reason of a cordon begins on a node that is closed for that and not changed yet."""

Json = Mapping[str, Any]
WorkPolicy = Literal["wait", "checkpoint", "leave"]
WORK_POLICIES: tuple[WorkPolicy, ...] = ("wait", "checkpoint", "leave")
"""Jobs that hold GPUs: waited for, asked to save and go (SIGTERM, their grace), or left with their nodes."""

# Files whose exchange a running pod does not notice; everything else is done on an empty node.
_HARMLESS = frozenset({"kubectl", "kubeadm", "crictl", "ctr", "helm", "etcdctl", "etcdutl"})
_KUBELET_BEHIND = 3


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that becomes another on a host or in the cluster."""

    item: str
    old: str
    new: str

    def words(self) -> str:
        """`kubelet 1.34.4 -> 1.35.4`."""
        return f"{self.item} {self.old or 'another file'} -> {self.new}"


@dataclass(frozen=True, slots=True)
class DriverWish:
    """The GPU driver that a host shall have.

    Attributes:
        version: of the locked set for the host's channel and distribution; empty where the lock has none.
        packages: of that set, name to version; a host has those that its PCI bus asks for.
        replaces: the locked set takes the place of another one (``gpu_driver_existing: replace``).
    """

    version: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """What one host told.

    Attributes:
        artifacts: files of the bundle that the roles recorded there, name to sha256.
        packages: packages that the roles recorded, name to version.
        driver: what the lock and the description want of the host's GPU driver.
    """

    artifacts: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    driver: DriverWish = field(default_factory=DriverWish)


@dataclass(frozen=True, slots=True)
class Target:
    """What the lock wants.

    Attributes:
        versions: component to version.
        artifacts: file of the bundle to (sha256, version).
    """

    versions: Mapping[str, str]
    artifacts: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Limits:
    """How many nodes may be away at a time, and what becomes of jobs.

    Attributes:
        batch: nodes in a wave at most; 0 = no bound but the racks.
        per_rack: nodes of one rack in a wave at most.
        jobs: what becomes of jobs that hold GPUs.
    """

    batch: int = 10
    per_rack: int = 1
    jobs: WorkPolicy = "wait"


@dataclass(frozen=True, slots=True)
class Plan:
    """What an upgrade does.

    Attributes:
        to: version of Kubernetes that is wanted.
        control_plane: hosts, one at a time, in this order.
        waves: other hosts, wave by wave.
        changes: what changes, by host.
        empties: nodes that are emptied for it; on the others only tools change.
        cluster: what changes in the cluster.
        refusals: why nothing may begin (skew, versions that do not go together).
        left: hosts that stay as they are, with the reason.
        notes: what a person should know before it begins.
    """

    to: str
    control_plane: tuple[str, ...]
    waves: tuple[tuple[str, ...], ...]
    changes: Mapping[str, tuple[Change, ...]]
    empties: frozenset[str] = frozenset()
    cluster: tuple[Change, ...] = ()
    refusals: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def order(self) -> list[str]:
        """All nodes of the waves, first wave first."""
        return [name for wave in self.waves for name in wave]

    def text(self) -> str:
        """As people read it."""
        lines = [self._sentence()]
        for number, name in enumerate(self.control_plane):
            lines.append(f"  {'control plane' if number == 0 else '':<15}{name:<20} {self._words(name)}")
        for number, wave in enumerate(self.waves, start=1):
            same: dict[str, list[str]] = defaultdict(list)
            for name in wave:
                same[self._words(name)].append(name)
            for index, (words, names) in enumerate(same.items()):
                lines.append(f"  {f'wave {number}' if index == 0 else '':<15}{','.join(names):<20} {words}")
        for number, change in enumerate(self.cluster):
            lines.append(f"  {'cluster' if number == 0 else '':<15}{change.words()}")
        reasons: dict[str, list[str]] = defaultdict(list)
        for name, reason in self.left.items():
            reasons[reason].append(name)
        lines += [f"  {'stays':<15}{', '.join(names)}: {reason}" for reason, names in reasons.items()]
        lines += [f"  {'note':<15}{note}" for note in self.notes]
        lines += [f"  {'REFUSED':<15}{refusal}" for refusal in self.refusals]
        return "\n".join(lines)

    def _sentence(self) -> str:
        nodes = len(self.control_plane) + len(self.order)
        if not nodes and not self.cluster:
            if self.left or self.refusals:
                return f"nothing of the upgrade to Kubernetes {self.to} can be done now"
            return f"nothing to upgrade: everything is at the lock (Kubernetes {self.to})"
        steps = ["control planes one at a time"] if self.control_plane or not self.waves else []
        steps += ["1 wave" if len(self.waves) == 1 else f"{len(self.waves)} waves"] if self.waves else []
        many = "1 node" if nodes == 1 else f"{nodes} nodes"
        if not nodes:
            return f"upgrade of the cluster's programs, Kubernetes stays {self.to}"
        return f"upgrade of {many} to Kubernetes {self.to}: {', then '.join(steps)}"

    def _words(self, name: str) -> str:
        return ", ".join(change.words() for change in self.changes.get(name, ())) or "to be finished"

    def as_dict(self) -> dict[str, Any]:
        """Plain types."""
        return {
            "to": self.to,
            "control_plane": list(self.control_plane),
            "waves": [list(wave) for wave in self.waves],
            "order": self.order,
            "sizes": [len(wave) for wave in self.waves],
            "changes": {name: [asdict(change) for change in changes] for name, changes in self.changes.items()},
            "reasons": {name: self._words(name) for name in (*self.control_plane, *self.order)},
            "empties": sorted(self.empties & {*self.control_plane, *self.order}),
            "cluster": [asdict(change) for change in self.cluster],
            "refusals": list(self.refusals),
            "left": dict(self.left),
            "notes": list(self.notes),
        }


def changes_of(look: Look, node: Json | None, target: Target) -> tuple[Change, ...]:
    """What becomes another on a host: by the files that its roles recorded, and by what its kubelet says runs there."""
    info = ((node or {}).get("status") or {}).get("nodeInfo") or {}
    running = {
        "kubelet": str(info.get("kubeletVersion") or "").removeprefix("v"),
        "containerd": str(info.get("containerRuntimeVersion") or "").rpartition("://")[2].removeprefix("v"),
    }
    found = []
    for name, (digest, version) in sorted(target.artifacts.items()):
        recorded = look.artifacts.get(name)
        if recorded is not None and recorded != digest:
            found.append(Change(name, running.get(name, ""), version))
    named = {change.item for change in found}
    for name, component in (("kubelet", "kubernetes"), ("containerd", "containerd")):
        wanted = target.versions.get(component, "")
        # A runtime that the host had before may be one that was adopted; a kubelet always is the site's own.
        is_ours = name == "kubelet" or name in look.artifacts
        if name not in named and running[name] and wanted and is_ours and _order(running[name], wanted):
            # Its file is there already, another one runs: a run was killed in between.
            found.append(Change(name, running[name], wanted))
    return (*found, *(driver_changes(look) if look.driver.replaces else ()))


def driver_changes(look: Look) -> tuple[Change, ...]:
    """How the driver that the roles installed differs from the locked one: one change for the set, which moves as a
    whole, or one for each package beside it that has a version of its own. Nothing on a host without a driver."""
    wanted = look.driver.packages
    differ = {name: look.packages[name] for name in wanted if look.packages.get(name, wanted[name]) != wanted[name]}
    before = exact(differ)
    old = sorted(set(before.values()) - {look.driver.version})
    if old:
        return (Change("driver", " and ".join(old), look.driver.version),)
    return tuple(Change(name, version, wanted[name]) for name, version in sorted(differ.items()))


def _kept_drivers(looks: Mapping[str, Look]) -> list[str]:
    """Hosts whose driver stays although the lock names another one, a sentence for each pair of versions."""
    kept: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, look in sorted(looks.items()):
        for change in () if look.driver.replaces else driver_changes(look):
            if change.item == "driver":
                kept[change.old, change.new].append(name)
    return [
        f"{listing(names)} keep driver {old}, the lock has {new}: `gpu_driver_existing: replace` brings it"
        for (old, new), names in sorted(kept.items())
    ]


def skew(target: Target, nodes: Iterable[Json], api_server: str) -> list[str]:
    """Why Kubernetes may not go from what runs to what is wanted, a sentence each."""
    wanted = target.versions.get("kubernetes", "")
    if not wanted or not api_server:
        return []
    old, new = _version(api_server), _version(wanted)
    if old is None:
        return [f'the API server says that it is "{api_server}", which is no version: nobody can tell what may follow']
    if new is None:
        return [f'the lock names Kubernetes "{wanted}", which is no version: `myriad lock verify` says more']
    found = []
    if compare(new, old) < 0:
        found.append(
            f"the cluster runs Kubernetes {api_server}, the lock names the older {wanted}: there is no way back"
        )
    elif new[0] != old[0]:
        found.append(f"from {api_server} to {wanted} is another major version: nothing is known of that way")
    elif new[1] > old[1] + 1:
        step = f"{old[0]}.{old[1] + 1}"
        found.append(f"from {api_server} to {wanted} is more than one minor: lock a {step} first, upgrade, then go on")
    return found + _kubelets(nodes, wanted, new)


def _kubelets(nodes: Iterable[Json], wanted: str, new: Version) -> list[str]:
    """Kubelets that do not go with the API server that is wanted: at most three minors behind it, and never ahead."""
    far, ahead, unknown = [], [], []
    for node in nodes:
        told = str(((node.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion") or "")
        version = _version(told)
        words = f"{node['metadata']['name']} ({told})"
        if version is None:
            unknown += [words] if told else []
        elif new[1] - version[1] > _KUBELET_BEHIND:
            far.append(words)
        elif version[:2] > new[:2]:
            ahead.append(words)
    found = []
    if far:
        found.append(
            f"kubelets would be more than {_KUBELET_BEHIND} minors behind the API server: {listing(sorted(far))}"
        )
    if ahead:
        found.append(
            f"kubelets are ahead of the API server that the lock names ({wanted}), and none is made older: "
            f"{listing(sorted(ahead))}; lock their version, or install these machines anew"
        )
    if unknown:
        found.append(
            f"kubelets that name no version: {listing(sorted(unknown))}; `kubectl get nodes -o wide` shows them"
        )
    return found


def _version(text: str) -> Version | None:
    """A version as numbers, at least two of them; None where the text is none."""
    try:
        found = parse_version(text)
    except ValueError:
        return None
    return found if len(found) > 1 else None


def plan(
    looks: Mapping[str, Look],
    nodes: Mapping[str, Json],
    target: Target,
    jobs: Sequence[Gang],
    limits: Limits,
    *,
    api_server: str = "",
    control_plane_hosts: Sequence[str] = (),
    cluster: Sequence[Change] = (),
    blockers: Mapping[str, str] | None = None,
    findings: Sequence[str] = (),
) -> Plan:
    """Who is upgraded when.

    Args:
        looks: what each host told.
        nodes: Nodes by name.
        target: what the lock wants.
        jobs: jobs that hold GPUs, with their nodes.
        limits: caps and the policy for jobs.
        api_server: version of the API server that answers.
        control_plane_hosts: hosts of the control plane, in the order of the inventory.
        cluster: what changes in the cluster.
        blockers: nodes whose pods would not leave, with the reason.
        findings: violated rules between the versions of the lock.
    """
    left: dict[str, str] = {}
    changes: dict[str, tuple[Change, ...]] = {}
    chosen: list[Candidate] = []
    foreign: list[str] = []
    # An old program of the control plane is a change of every such host, also where its files are new already.
    wanted = target.versions.get("kubernetes", "")
    behind = bool(api_server and wanted) and _order(api_server, wanted) != 0
    # By name: hosts come in the order in which they answered.
    for name, look in sorted(looks.items()):
        node = nodes.get(name)
        if node is None:
            left[name] = "the cluster has no such node"
            continue
        found = changes_of(look, node, target)
        is_control_plane = CONTROL_PLANE_LABEL in (node["metadata"].get("labels") or {})
        if is_control_plane and behind and not any(change.item == "kubelet" for change in found):
            found = (*found, Change("control plane", api_server, wanted))
        cordon = Cordon.of(node)
        is_ours = cordon is not None and cordon.by == BY
        is_begun = is_ours and not (cordon is not None and cordon.reason.startswith(HELD))
        if not found and not is_begun:
            continue
        changes[name] = found
        if cordon is not None and not is_ours:
            left[name] = f"it is closed by {cordon.by} since {cordon.at or '?'} ({cordon.reason or 'no reason given'})"
            continue
        if (node.get("spec") or {}).get("unschedulable") and cordon is None:
            foreign.append(name)
        rack = str((node["metadata"].get("labels") or {}).get(RACK_LABEL) or "")
        reasons = tuple(change.words() for change in found) or ("to be finished",)
        chosen.append(Candidate(name, reasons, rack, is_control_plane, is_begun))
    for name, reason in (blockers or {}).items():
        if name in changes and name not in left:
            left[name] = reason
    # Only an emptied node asks a job to go.
    empties = {host.name for host in chosen if _needs_drain(changes[host.name]) or host.is_begun}
    mine = [job for job in jobs if empties & set(job.nodes)]
    notes = []
    if limits.jobs in ("wait", "leave"):
        for job in mine:
            for name in sorted(empties & set(job.nodes)):
                left.setdefault(name, f"{JOB_RUNS}{job.name} runs on it")
        # A driver must not differ under one job: its nodes stay or go together.
        mine = []
    else:
        notes += [f"{job.sentence()}: asked to save and stop (SIGTERM, its grace)" for job in mine]
    going = [host for host in chosen if host.name not in left]
    first = [host for host in going if host.is_control_plane]
    order = {name: number for number, name in enumerate(control_plane_hosts)}
    first.sort(key=lambda host: (not host.is_begun, order.get(host.name, len(order)), host.name))
    workers = [host for host in going if not host.is_control_plane]
    rules = Rules(batch=limits.batch, per_rack=limits.per_rack, gangs="together")
    waves = batches_of(workers, [job for job in mine if len(job.nodes) > 1], rules).batches
    if foreign:
        notes.append(f"cordoned by hand, upgraded and left cordoned: {', '.join(sorted(foreign))}")
    notes += [*_kept_drivers(looks), *_capacity(waves, nodes)]
    refusals = [*skew(target, nodes.values(), api_server), *findings]
    unseen = [name for name in control_plane_hosts if name not in looks]
    if behind and unseen:
        refusals.append(f"the control plane would stay behind: {', '.join(unseen)} was not looked at")
    stuck = [host.name for host in chosen if host.is_control_plane and host.name in left]
    if stuck and waves:
        refusals.append(f"the control plane would stay behind ({', '.join(f'{n}: {left[n]}' for n in stuck)})")
    return Plan(
        to=target.versions.get("kubernetes", "?"),
        control_plane=tuple(host.name for host in first),
        waves=waves,
        changes=changes,
        empties=frozenset(empties),
        cluster=tuple(cluster),
        refusals=tuple(refusals),
        left=left,
        notes=tuple(notes),
    )


def _needs_drain(changes: Sequence[Change]) -> bool:
    return any(change.item not in _HARMLESS for change in changes)


def _order(one: str, other: str) -> int:
    try:
        return compare(parse_version(one), parse_version(other))
    except ValueError:
        return 0 if one == other else 1


def _capacity(waves: Sequence[Sequence[str]], nodes: Mapping[str, Json]) -> list[str]:
    """How many GPUs the largest wave takes away."""
    gpus = {
        name: sum(
            int(count)
            for resource, count in ((node.get("status") or {}).get("allocatable") or {}).items()
            if resource.endswith("/gpu") and str(count).isdigit()
        )
        for name, node in nodes.items()
    }
    away = max((sum(gpus.get(name, 0) for name in wave) for wave in waves), default=0)
    total = sum(gpus.values())
    return [f"at most {away} of {total} GPUs are away at a time"] if away else []


def cluster_changes(target: Target, deployments: Iterable[Json], images: Mapping[str, str]) -> list[Change]:
    """Programs of the cluster whose image is not the bundle's.

    Args:
        target: what the lock wants.
        deployments: Deployments and DaemonSets with containers of the site's registry.
        images: repository to digest, as the bundle has them.
    """
    found = []
    for item in deployments:
        spec = ((item.get("spec") or {}).get("template") or {}).get("spec") or {}
        for container in spec.get("containers") or []:
            reference = str(container.get("image") or "")
            name, _, digest = reference.partition("@")
            tag = name.rpartition(":")[2] if ":" in name.rpartition("/")[2] else ""
            repository = name.partition("/")[2].removesuffix(f":{tag}") if tag else name.partition("/")[2]
            wanted = images.get(repository)
            if wanted and digest and wanted != digest:
                new = target.versions.get(repository.rpartition("/")[2], wanted[7:19])
                place = f"{item['metadata'].get('namespace')}/{item['metadata']['name']}"
                found.append(Change(place, tag or digest[7:19], new))
    return found
