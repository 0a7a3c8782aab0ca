"""Emptying nodes, and giving them back as they were found.

A node is cordoned under a name (`by`); its annotation `myriad.dev/cordon-owner` keeps who did it, why, and what stood
there before. Giving it back restores that state only where the annotation is ours: a cordon or taint of somebody else
is left alone (deepops#804), and a drain that fails gives back exactly what it cordoned (kubespray#6545). Before
anything is touched the API server is asked, by a dry-run eviction of every pod, what would stand in the way
(kubespray#8093).

Pods of the whole cluster are listed once, for the gangs that they tell of; while a drain waits, those of its nodes.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from myriad.errors import InputError, MyriadError
from myriad.kube.client import Api, ApiError, Json
from myriad.kube.kinds import DISRUPTION_BUDGETS, NODES, PODS

CORDON_ANNOTATION = "myriad.dev/cordon-owner"
FIELD_MANAGER = "myriad-drain"
_MIRROR = "kubernetes.io/config.mirror"
_TIES = 6
"""How often a Node that somebody else changes in the same moment is read again."""
_ASKING = 8
"""Evictions under way at a time."""

# Where a pod says which gang it is part of, the most telling first: annotation or label, and how the gang is called.
_GANG_ANNOTATIONS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_GANG_LABELS = (
    "jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name", "kueue.x-k8s.io/pod-group-name",
    "leaderworkerset.sigs.k8s.io/name", "ray.io/cluster", "batch.kubernetes.io/job-name", "job-name",
)  # fmt: skip


class DrainError(MyriadError):
    """A node could not be emptied."""


class DrainBlockedError(DrainError):
    """Nothing was touched: evictions would be refused. `blockers` names the pods."""

    def __init__(self, message: str, blockers: Sequence[Blocker], *, where: str, hint: str) -> None:
        super().__init__(message, where=where, hint=hint)
        self.blockers = tuple(blockers)


@dataclass(frozen=True, slots=True)
class Cordon:
    """Who closed a node, as its annotation says.

    Attributes:
        by: the name under which it was cordoned (`reboot`, `mig`).
        at: since when (RFC 3339, UTC).
        reason: a sentence.
        before: what `spec.unschedulable` was before.
    """

    by: str
    at: str = ""
    reason: str = ""
    before: bool = False

    def text(self) -> str:
        """The annotation's value."""
        body = {"by": self.by, "at": self.at, "reason": self.reason, "unschedulable": self.before}
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> Cordon | None:
        """The cordon that a Node carries; None where Myriad set none."""
        text = (node["metadata"].get("annotations") or {}).get(CORDON_ANNOTATION)
        try:
            body = json.loads(text or "")
            return cls(
                str(body["by"]), str(body.get("at") or ""), str(body.get("reason") or ""), bool(body["unschedulable"])
            )
        except (ValueError, TypeError, KeyError):
            return None


@dataclass(frozen=True, slots=True)
class PodView:
    """What matters of a pod here. `gang` is the group that it belongs to, `namespace/name`, or ""."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str = ""
    terminating: bool = False
    is_mirror: bool = False
    owner_kind: str = ""
    gang: str = ""
    grace_s: int = 30
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def has_ended(self) -> bool:
        """Whether it holds nothing any more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def must_go(self) -> bool:
        """Whether it has to leave a node that is drained: not a static pod, not a daemon, not ended."""
        return not (self.is_mirror or self.owner_kind == "DaemonSet" or self.has_ended)


@dataclass(frozen=True, slots=True)
class Blocker:
    """A pod whose eviction would be refused.

    Attributes:
        pod: `namespace/name`.
        node: where it runs.
        budgets: PodDisruptionBudgets that select it, `name (allows N)`.
        reason: why, as a sentence.
    """

    pod: str
    node: str
    budgets: tuple[str, ...]
    reason: str

    def sentence(self) -> str:
        """One line."""
        return f"{self.pod} on {self.node}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Gang:
    """Pods of one job that run on several nodes.

    Attributes:
        name: `namespace/name` of the job or pod group.
        nodes: pods by node, all nodes of the cluster.
    """

    name: str
    nodes: Mapping[str, int]

    def sentence(self) -> str:
        """One line."""
        return f"{self.name} ({sum(self.nodes.values())} pods) runs on {', '.join(sorted(self.nodes))}"


@dataclass(frozen=True, slots=True)
class Preflight:
    """What a drain would do.

    Attributes:
        pods: pods that would be evicted, by node.
        blockers: pods that would not go.
        gangs: jobs that would be interrupted and that span more than one node.
        notes: what takes longer than one would think.
    """

    pods: Mapping[str, tuple[PodView, ...]]
    blockers: tuple[Blocker, ...] = ()
    gangs: tuple[Gang, ...] = ()
    notes: tuple[str, ...] = ()

    def as_dict(self) -> Json:
        """Plain types."""
        return {
            "pods": {node: [pod.key for pod in pods] for node, pods in self.pods.items()},
            "blockers": [
                {"pod": b.pod, "node": b.node, "budgets": list(b.budgets), "reason": b.reason} for b in self.blockers
            ],
            "gangs": [{"name": gang.name, "nodes": dict(gang.nodes)} for gang in self.gangs],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """How to drain.

    Attributes:
        by: the name under which nodes are closed.
        reason: a sentence that stands on the Node.
        deadline_s: seconds until all pods of all nodes must be gone.
        unmanaged: evict pods that nothing would make again, too; without it they are blockers.
        poll_s: seconds between two looks at what is left.
    """

    by: str
    reason: str = ""
    deadline_s: float = 900.0
    unmanaged: bool = False
    poll_s: float = 2.0


# Pure


def pod_view(pod: Mapping[str, Any]) -> PodView:
    """A pod as the API gives it."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    owner = next((o for o in metadata.get("ownerReferences") or [] if o.get("controller")), None)
    owners = metadata.get("ownerReferences") or []
    owner = owner or (owners[0] if owners else None)
    grace = metadata.get("deletionGracePeriodSeconds") or spec.get("terminationGracePeriodSeconds")
    return PodView(
        namespace=metadata.get("namespace") or "default",
        name=metadata["name"],
        uid=str(metadata.get("uid") or ""),
        node=str(spec.get("nodeName") or ""),
        phase=str((pod.get("status") or {}).get("phase") or ""),
        terminating=bool(metadata.get("deletionTimestamp")),
        is_mirror=_MIRROR in (metadata.get("annotations") or {}),
        owner_kind=str(owner["kind"]) if owner else "",
        gang=_gang(metadata, owner),
        grace_s=30 if grace is None else int(grace),
        labels=metadata.get("labels") or {},
    )


def _gang(metadata: Mapping[str, Any], owner: Mapping[str, Any] | None) -> str:
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    # A JobSet's pods belong to a Job each and to one gang together: what names the larger thing comes first.
    name = next((labels[key] for key in _GANG_LABELS[:5] if labels.get(key)), "")
    name = name or next((annotations[key] for key in _GANG_ANNOTATIONS if annotations.get(key)), "")
    name = name or next((labels[key] for key in _GANG_LABELS[5:] if labels.get(key)), "")
    if not name and owner and owner["kind"] not in ("ReplicaSet", "DaemonSet", "StatefulSet", "Node"):
        name = owner["name"]
    return f"{metadata.get('namespace') or 'default'}/{name}" if name else ""


def gangs_of(pods: Iterable[PodView]) -> list[Gang]:
    """Gangs that run on more than one node, by name."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for pod in pods:
        if pod.gang and pod.node and not pod.has_ended:
            found[pod.gang][pod.node] += 1
    return [Gang(name, dict(sorted(nodes.items()))) for name, nodes in sorted(found.items()) if len(nodes) > 1]


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector picks a pod. In policy/v1 an empty one picks all, a missing one none."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for rule in selector.get("matchExpressions") or []:
        key, operator, values = rule["key"], rule["operator"], rule.get("values") or []
        if operator == "In" and labels.get(key) not in values:
            return False
        if operator == "NotIn" and key in labels and labels[key] in values:
            return False
        if operator == "Exists" and key not in labels:
            return False
        if operator == "DoesNotExist" and key in labels:
            return False
    return True


def budgets_of(pod: PodView, budgets: Iterable[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """PodDisruptionBudgets of a pod with how many evictions each allows now."""
    return [
        (budget["metadata"]["name"], int((budget.get("status") or {}).get("disruptionsAllowed") or 0))
        for budget in budgets
        if budget["metadata"].get("namespace") == pod.namespace
        and selects((budget.get("spec") or {}).get("selector"), pod.labels)
    ]


def cordon_patch(node: Mapping[str, Any], by: str, reason: str, at: str) -> Json | None:
    """The merge patch that closes a Node and remembers how it was; None where it says so already.

    Raises:
        DrainError: another part of Myriad has closed it for its own purpose.
    """
    name, found = node["metadata"]["name"], Cordon.of(node)
    is_closed = bool((node.get("spec") or {}).get("unschedulable"))
    if found is not None and found.by != by:
        raise DrainError(
            f"the node is closed by {found.by} since {found.at or '?'} ({found.reason or 'no reason given'})",
            where=name,
            hint="let that end first; where nothing is under way any more, "
            f"`kubectl annotate node {name} {CORDON_ANNOTATION}-`, and `kubectl uncordon {name}` if it may work",
        )
    wanted = Cordon(by, found.at if found else at, reason, found.before if found else is_closed)
    if found == wanted and is_closed:
        return None
    return {
        "metadata": {
            "resourceVersion": node["metadata"].get("resourceVersion"),
            "annotations": {CORDON_ANNOTATION: wanted.text()},
        },
        "spec": {"unschedulable": True},
    }


def release_patch(node: Mapping[str, Any], by: str) -> Json | None:
    """The merge patch that gives a Node back as it was found; None where `by` did not close it."""
    found = Cordon.of(node)
    if found is None or found.by != by:
        return None
    return {
        "metadata": {
            "resourceVersion": node["metadata"].get("resourceVersion"),
            "annotations": {CORDON_ANNOTATION: None},
        },
        # One who had cordoned it before keeps the last word, also where it is uncordoned by now.
        **({} if found.before else {"spec": {"unschedulable": None}}),
    }


# The API


def now_text() -> str:
    """The time as it stands in annotations."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def patch_node(api: Api, name: str, change: Callable[[Json], Json | None]) -> bool:
    """Read a Node, change it, and do so again where somebody else was quicker. Returns whether it was changed."""
    for attempt in range(_TIES):
        node = api.get(NODES, name)
        body = change(node)
        if body is None:
            return False
        try:
            api.patch(NODES, name, body, field_manager=FIELD_MANAGER)
            return True
        except ApiError as error:
            if not error.is_conflict or attempt == _TIES - 1:
                raise
    return False


def cordon(api: Api, nodes: Sequence[str], *, by: str, reason: str) -> list[str]:
    """Close nodes, remembering how they were. Returns those that changed."""
    at = now_text()
    return [name for name in nodes if patch_node(api, name, lambda node: cordon_patch(node, by, reason, at))]


def release(api: Api, nodes: Sequence[str], *, by: str) -> list[str]:
    """Give back nodes that `by` closed, as they were found. Returns those that changed; a Node that is gone is fine."""
    changed = []
    for name in nodes:
        try:
            if patch_node(api, name, lambda node: release_patch(node, by)):
                changed.append(name)
        except ApiError as error:
            if not error.is_not_found:
                raise
    return changed


def pods_on(api: Api, nodes: Sequence[str]) -> list[PodView]:
    """Pods of these nodes, asked for node by node: what the rest of a large cluster runs is not sent."""

    def of(node: str) -> list[PodView]:
        return [pod_view(pod) for pod in api.list(PODS, fields=f"spec.nodeName={node}")[0]]

    with ThreadPoolExecutor(_ASKING) as pool:
        return [pod for pods in pool.map(of, nodes) for pod in pods]


def preflight(api: Api, nodes: Sequence[str], options: DrainOptions) -> Preflight:
    """What a drain of these nodes would do and what stands in its way. Touches nothing.

    Every pod's eviction is asked for as a dry run, so webhooks and budgets answer themselves.
    """
    known = {node["metadata"]["name"] for node in api.list(NODES)[0]}
    unknown = [name for name in nodes if name not in known]
    if unknown:
        raise InputError(
            f"the cluster has no node {', '.join(unknown)}",
            hint="`kubectl get nodes` lists them; a node's name is its name in the inventory",
        )
    # All of them, once: a gang is told by its pods on other nodes.
    everything = [pod for pod in map(pod_view, api.list(PODS)[0]) if pod.node]
    leaving = set(nodes)
    going = [pod for pod in everything if pod.node in leaving and pod.must_go]
    budgets = api.list(DISRUPTION_BUDGETS)[0] if going else []
    asked = [pod for pod in going if not pod.terminating]
    with ThreadPoolExecutor(_ASKING) as pool:
        answers = dict(zip(asked, pool.map(lambda pod: _ask(api, pod), asked), strict=True)) if asked else {}
    blockers = []
    wanted: dict[tuple[str, str], int] = defaultdict(int)
    allowed: dict[tuple[str, str], int] = {}
    for pod in asked:
        mine = budgets_of(pod, budgets)
        for name, allows in mine:
            wanted[pod.namespace, name] += 1
            allowed[pod.namespace, name] = allows
        reason = answers[pod] or ("" if options.unmanaged or pod.owner_kind else _UNMANAGED)
        if reason:
            named = tuple(f"{name} (allows {allows})" for name, allows in mine)
            if answers[pod] and named:
                reason = f"{'budget' if len(named) == 1 else 'budgets'} {', '.join(named)}: {reason}"
            blockers.append(Blocker(pod.key, pod.node, named, reason))
    notes = [
        f"budget {namespace}/{name} allows {allowed[namespace, name]} of {count} pods at a time: they go in turn"
        for (namespace, name), count in sorted(wanted.items())
        if 0 < allowed[namespace, name] < count
    ]
    touched = {pod.gang for pod in going if pod.gang}
    return Preflight(
        pods={name: tuple(pod for pod in going if pod.node == name) for name in nodes},
        blockers=tuple(blockers),
        gangs=tuple(gang for gang in gangs_of(everything) if gang.name in touched),
        notes=tuple(notes),
    )


_UNMANAGED = "it belongs to no controller, so nothing would make it again elsewhere"


def _ask(api: Api, pod: PodView) -> str:
    """Why the eviction of a pod would be refused, "" where it would not."""
    try:
        api.evict(pod.name, namespace=pod.namespace, dry_run=True)
    except ApiError as error:
        return "" if error.is_not_found else _short(error)
    return ""


def _short(error: ApiError) -> str:
    text = error.message.partition(": ")[2] or error.message
    return text.rstrip(".")


def blocked(blockers: Sequence[Blocker], nodes: Sequence[str]) -> DrainBlockedError:
    """The error that says which pods would not leave."""
    many = "1 pod would" if len(blockers) == 1 else f"{len(blockers)} pods would"
    return DrainBlockedError(
        "\n  ".join([f"{many} not leave, nothing was touched:", *(blocker.sentence() for blocker in blockers[:20])]),
        blockers,
        where=", ".join(nodes),
        hint="bring up what the budgets wait for (`kubectl get pdb -A`) or end those pods; then the same command again",
    )


class Farewell(Protocol):
    """What is said to the jobs on nodes that are drained (`myriad.scheduler.notices.farewell`)."""

    def ask(self) -> None:
        """Whether anything may be evicted now. Raises MyriadError where not."""

    def tell(self, pods: Iterable[PodView]) -> None:
        """Tell whose pods these are, and wait as long as they were promised."""

    def end(self) -> None:
        """The drain is over, whatever came of it."""


def drain(
    api: Api,
    nodes: Sequence[str],
    options: DrainOptions,
    *,
    farewell: Farewell | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = lambda _text: None,
) -> tuple[Preflight, list[str]]:
    """Empty nodes together. Returns what was foreseen, and the nodes whose cordon is new.

    On any failure every node of the call that carries our cordon is given back as it was found. Jobs are told when
    nothing new can come any more, and before their pods are asked to go; the deadline counts from then on.

    Raises:
        DrainBlockedError: before anything was touched, because some evictions would be refused.
        DrainError: pods were left at the deadline.
    """
    try:
        if farewell is not None:
            farewell.ask()
        foreseen = preflight(api, nodes, options)
        if foreseen.blockers:
            raise blocked(foreseen.blockers, nodes)
        closed = cordon(api, nodes, by=options.by, reason=options.reason)
        if farewell is not None:
            # Listed anew: asking takes a while, and what came before the cordon is evicted too.
            farewell.tell(pod for pod in pods_on(api, nodes) if pod.must_go)
        _evict_all(api, nodes, options, sleep, clock, say)
        return foreseen, closed
    except BaseException:
        # Ctrl-C too: a node must not stay closed because somebody gave up waiting.
        release(api, nodes, by=options.by)
        raise
    finally:
        if farewell is not None:
            farewell.end()


def _evict_all(
    api: Api,
    nodes: Sequence[str],
    options: DrainOptions,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    say: Callable[[str], None],
) -> None:
    end = clock() + options.deadline_s
    refused: dict[str, str] = {}
    said = -1
    while True:
        left = [pod for pod in pods_on(api, nodes) if pod.must_go]
        if not left:
            return
        if len(left) != said:
            said = len(left)
            say(f"{said} {'pod' if said == 1 else 'pods'} still on {', '.join(sorted({pod.node for pod in left}))}")
        if clock() >= end:
            raise DrainError(
                f"{len(left)} {'pod is' if len(left) == 1 else 'pods are'} left after {options.deadline_s:.0f} s; "
                f"the nodes were given back as they were found:\n  "
                + "\n  ".join(f"{pod.key} on {pod.node}: {_why_left(pod, refused)}" for pod in left[:20]),
                where=", ".join(sorted({pod.node for pod in left})),
                hint="look at them (`kubectl describe pod`) or give a longer deadline; then the same command again",
            )
        going = [pod for pod in left if not pod.terminating]
        with ThreadPoolExecutor(_ASKING) as pool:
            for pod, reason in zip(going, pool.map(lambda pod: _evict(api, pod), going), strict=True):
                if reason:
                    refused[pod.uid] = reason
                else:
                    refused.pop(pod.uid, None)
        sleep(options.poll_s)


def _why_left(pod: PodView, refused: Mapping[str, str]) -> str:
    if pod.terminating:
        return f"it is stopping (it may take {pod.grace_s} s)"
    return refused.get(pod.uid) or "it was asked to go"


def _evict(api: Api, pod: PodView) -> str:
    """Ask a pod to go; the reason where it is refused now (it is asked again), "" else."""
    try:
        api.evict(pod.name, namespace=pod.namespace, uid=pod.uid)
    except ApiError as error:
        if error.is_not_found or error.is_conflict:
            return ""
        if error.status == 429:
            return _short(error)
        raise DrainError(
            f"the eviction of {pod.key} failed: {_short(error)}", where=pod.node, hint="see the API server's answer"
        ) from error
    return ""
