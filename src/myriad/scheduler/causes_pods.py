"""What keeps the pods of a job that was let go from running: creation, gates, volumes, scheduler, kubelet. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from myriad.scheduler.causes import KUEUE_GATES, Cause, Evidence, Layer, recent, templates_of
from myriad.scheduler.model import gpus_words

Json = dict[str, Any]

_KUBELET = {
    "TopologyAffinityError": (
        "the kubelet's topology manager refuses it: its GPUs and CPUs are not to be had on one NUMA node"
    ),
    "UnexpectedAdmissionError": "the kubelet refuses it",
    "NodeAffinity": "its node no longer matches the pod's node selector",
    "NodeShutdown": "its node is shutting down",
    "Shutdown": "its node is shutting down",
    "Evicted": "the kubelet evicted it",
    "SMTAlignmentError": "the kubelet refuses it: its CPUs are not whole cores",
}
_IMAGE = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
)
_CREATE = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "StartError",
    "PreCreateHookError",
)
_QUIET = ("", "ContainerCreating", "PodInitializing")
_WEBHOOK = re.compile(r'admission webhook "(?P<name>[^"]+)" denied the request:? ?(?P<why>.*)', re.DOTALL)
_WEBHOOK_DOWN = re.compile(r'failed calling webhook "(?P<name>[^"]+)": ?(?P<why>.*)', re.DOTALL)
_POLICY = re.compile(r"ValidatingAdmissionPolicy '(?P<name>[^']+)'.*? denied request: (?P<why>.*)", re.DOTALL)
_EXCEEDED = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: (?P<asked>.*?), used: (?P<used>.*?), limited: (?P<most>.*)$"
)
_NEEDS = re.compile(r"failed quota: (?P<name>[^:]+): must specify (?P<what>.*)")
_SECURITY = re.compile(r'violates PodSecurity "(?P<level>[^"]+)": (?P<why>.*)', re.DOTALL)
_LIMIT_RANGE = re.compile(r"((?:maximum|minimum) [\w./-]+ usage per (?:Container|Pod) is .*?)(?:\.? *(?:\[|$))")
_NO_CLAIM = re.compile(r'persistentvolumeclaim "(?P<name>[^"]+)" (?P<what>not found|is being deleted)')
_TAKEN_BY_PVC = re.compile(r"unbound immediate PersistentVolumeClaims")
_NAMED = 5


def names_words(names: Iterable[str]) -> str:
    """The first five names, the rest counted."""
    listed = sorted(set(names))
    shown = ", ".join(listed[:_NAMED])
    return shown if len(listed) <= _NAMED else f"{shown} and {len(listed) - _NAMED} more"


# Events about the job, its Workload and its pods


def event_causes(evidence: Evidence, now: datetime) -> list[Cause]:
    """What recent Events say: pods that nobody can create, volumes, sandboxes, binds that fail."""
    found: list[Cause] = []
    binds: Counter[str] = Counter()
    pods_there = {(p["metadata"]["name"]) for p in evidence.pods}
    for event in recent(evidence.events, now):
        reason, about = str(event.get("reason") or ""), event.get("involvedObject") or {}
        message = " ".join(str(event.get("message") or event.get("note") or "").split())
        of_pod = about.get("kind") == "Pod"
        if of_pod and pods_there and about.get("name") not in pods_there:
            continue  # of a pod that is gone: its successor tells for itself
        if reason in ("FailedCreate", "FailedCreatePod", "FailedValidation"):
            found.append(creation_cause(message))
        elif reason in ("FailedMount", "FailedAttachVolume", "ProvisioningFailed", "FailedMapVolume"):
            found.append(Cause("volume", message))
        elif reason == "FailedBinding" and not of_pod:
            binds[message] += int(event.get("count") or 1)
        elif reason in ("FailedBinding", "FailedPreBind", "FailedPermit") or (
            reason == "FailedScheduling" and "binding rejected" in message
        ):
            binds[message] += int(event.get("count") or (event.get("series") or {}).get("count") or 1)
        elif reason in ("FailedCreatePodSandBox", "NetworkNotReady"):
            found.append(Cause("kubelet", f"the node cannot make the pod's sandbox: {message}"))
        elif reason == "ErrorsInPodSpec":
            found.append(Cause("pods", message, never=True))
    for message, count in binds.items():
        found.append(_bind_cause(message, count))
    return found


def creation_cause(message: str) -> Cause:
    """Why the API server made no pod, as a FailedCreate Event says it."""
    if m := _EXCEEDED.search(message):
        return Cause(
            "resource quota",
            f"its pods cannot be made: ResourceQuota {m['name']} of the namespace is used up "
            f"(asked {m['asked']}; used {m['used']} of {m['most']})",
            (f"raise ResourceQuota {m['name']}, or wait until other pods of the namespace end",),
        )
    if m := _NEEDS.search(message):
        return Cause(
            "resource quota",
            f"its pods cannot be made: ResourceQuota {m['name']} counts {m['what']}, and the pods do not say them",
            (f"give every container {m['what']}",),
            never=True,
        )
    if m := _POLICY.search(message):
        return Cause(
            "pods",
            f"its pods are refused by the admission policy {m['name']}: {m['why']}",
            ("change the job as it says",),
            never=True,
        )
    if m := _WEBHOOK_DOWN.search(message):
        return Cause(
            "pods",
            f"its pods cannot be made: the admission webhook {m['name']} does not answer ({_short(m['why'])})",
            (f"whoever runs the webhook {m['name']} has to bring it back",),
        )
    if m := _WEBHOOK.search(message):
        return Cause(
            "pods",
            f"its pods are refused by the admission webhook {m['name']}: {m['why'] or 'it gives no reason'}",
            (f"change the job as it says, or ask whoever runs the webhook {m['name']}",),
            never=True,
        )
    if m := _SECURITY.search(message):
        return Cause(
            "pods",
            f'its pods are refused by pod security "{m["level"]}" of the namespace: {m["why"]}',
            ("set the securityContext as it says",),
            never=True,
        )
    if m := _LIMIT_RANGE.search(message):
        return Cause(
            "pods",
            f"its pods are refused by a LimitRange of the namespace: {m[1]}",
            ("ask for what it allows",),
            never=True,
        )
    return Cause("pods", f"its pods cannot be made: {message}")


def _bind_cause(message: str, count: int) -> Cause:
    named = _WEBHOOK.search(message) or _WEBHOOK_DOWN.search(message)
    times = f" ({count} times)" if count > 1 else ""
    if named:
        return Cause(
            "bind",
            f"binding its pod to the node fails{times}: "
            f"the admission webhook {named['name']} refuses: {_short(named['why'])}",
            (f"ask whoever runs the webhook {named['name']}",),
            {"failures": count},
        )
    return Cause("bind", f"binding its pod to the node fails{times}: {message}", numbers={"failures": count})


def _short(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:300]}..."


# Volumes


def claims_named(kind: str, body: Json | None, pods: Sequence[Json]) -> set[str]:
    """PersistentVolumeClaims that a job's pods name."""
    specs = [t.get("spec") or {} for _, _, t in templates_of(kind, body)] + [p.get("spec") or {} for p in pods]
    return {
        str(volume["persistentVolumeClaim"].get("claimName") or "")
        for spec in specs
        for volume in spec.get("volumes") or []
        if volume.get("persistentVolumeClaim")
    } - {""}


def volume_causes(evidence: Evidence) -> list[Cause]:
    """Claims that are missing or not bound. Known before the job starts."""
    found = []
    for name, claim in sorted((evidence.claims or {}).items()):
        if claim is None:
            found.append(
                Cause(
                    "volume",
                    f"PersistentVolumeClaim {name} not found: the pods name it and the namespace has none of that name",
                    (f"create the PersistentVolumeClaim {name}, or correct the job's volumes",),
                    {"claim": name},
                )
            )
            continue
        phase = (claim.get("status") or {}).get("phase") or "Pending"
        klass = (claim.get("spec") or {}).get("storageClassName") or "the default class"
        if phase == "Lost":
            found.append(
                Cause("volume", f"PersistentVolumeClaim {name} has lost its volume", ("restore or replace the claim",))
            )
        elif (claim.get("metadata") or {}).get("deletionTimestamp"):
            found.append(Cause("volume", f"PersistentVolumeClaim {name} is being deleted", ("make the claim anew",)))
        elif phase == "Pending" and not _waits_for_consumer(claim, evidence.events):
            found.append(
                Cause(
                    "volume",
                    f"PersistentVolumeClaim {name} is not bound (storage class {klass})",
                    (f"kubectl describe pvc {name} says what the provisioner waits for",),
                )
            )
    return found


def _waits_for_consumer(claim: Json, events: Sequence[Json]) -> bool:
    """A claim that is bound only when a pod comes is right to be Pending; its own Event says so."""
    if ((claim.get("metadata") or {}).get("annotations") or {}).get("volume.kubernetes.io/selected-node"):
        return False  # the pod has come, and the provisioner is at work
    return any(
        e.get("reason") == "WaitForFirstConsumer"
        and (e.get("involvedObject") or {}).get("kind") == "PersistentVolumeClaim"
        and (e.get("involvedObject") or {}).get("name") == claim["metadata"]["name"]
        for e in events
    )


# Pods


def pod_causes(evidence: Evidence, now: datetime) -> list[Cause]:
    """What the pods themselves show, each cause once with the number of pods."""
    found: dict[tuple[Layer, str], list[str]] = {}
    more: dict[tuple[Layer, str], Cause] = {}
    for pod in evidence.pods:
        for cause in _of_pod(pod):
            key: tuple[Layer, str] = (cause.layer, cause.text)
            found.setdefault(key, []).append(pod["metadata"]["name"])
            more.setdefault(key, cause)
    out = []
    for key, names in found.items():
        cause = more[key]
        text = cause.text if len(names) == 1 else f"{cause.text}, on {len(names)} pods"
        out.append(Cause(cause.layer, text, cause.unblocks, {**cause.numbers, "pods": len(names)}, cause.never))
    return out + _rejections(evidence.pods)


def _of_pod(pod: Json) -> list[Cause]:
    status, spec, metadata = pod.get("status") or {}, pod.get("spec") or {}, pod["metadata"]
    if status.get("phase") in ("Succeeded", "Failed") or metadata.get("deletionTimestamp"):
        return []
    causes = [c for c in (_gate_cause(pod), _scheduler_cause(pod)) if c]
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for container in containers:
        state = container.get("state") or {}
        waiting = state.get("waiting") or {}
        reason, said = waiting.get("reason") or "", " ".join(str(waiting.get("message") or "").split())
        node = spec.get("nodeName") or "its node"
        if reason in _QUIET:
            continue
        image = container.get("image") or ""
        if reason in _IMAGE:
            causes.append(
                Cause(
                    "image",
                    f"container {container['name']}: {reason}: the image{f' {image}' if image else ''} cannot be had"
                    + (f" ({_short(said)})" if said else ""),
                    ("correct the image's name or its pull secret; `myriad prewarm status` shows what nodes have",),
                )
            )
        elif reason in _CREATE:
            causes.append(
                Cause(
                    "container",
                    f"container {container['name']}: {reason} on {node}" + (f" ({_short(said)})" if said else ""),
                )
            )
        else:
            ended = ((container.get("lastState") or {}).get("terminated")) or {}
            code = f", last exit code {ended['exitCode']}" if "exitCode" in ended else ""
            why = f" ({ended['reason']})" if ended.get("reason") not in (None, "Error") else ""
            causes.append(
                Cause(
                    "container",
                    f"container {container['name']}: {reason}{code}{why}"
                    + (f" ({_short(said)})" if said and not code else ""),
                    (f"kubectl logs {metadata['name']} -c {container['name']} --previous",) if code else (),
                )
            )
    return causes


def _gate_cause(pod: Json) -> Cause | None:
    """Gates that are left. Kueue removes only its own; another's stays, and the job is admitted but gated for ever."""
    gates = [g["name"] for g in (pod.get("spec") or {}).get("schedulingGates") or []]
    foreign = [g for g in gates if g not in KUEUE_GATES]
    if foreign:
        return Cause(
            "gate",
            f"its pods still carry the scheduling gate {', '.join(foreign)}",
            (f"whoever set the gate {foreign[0]} has to remove it",),
        )
    if gates and KUEUE_GATES[1] in gates and KUEUE_GATES[0] not in gates:
        return Cause(
            "gate",
            f"its pods still carry Kueue's topology gate {KUEUE_GATES[1]}",
            (
                "delete the job and leave the slice annotations out: Kueue gated its pods for a topology request "
                "that it does not serve (kueue#10282)",
            ),
        )
    return None


def _scheduler_cause(pod: Json) -> Cause | None:
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if (
            condition["type"] == "PodScheduled"
            and condition["status"] == "False"
            and condition.get("reason") != "SchedulingGated"
        ):
            message = " ".join(str(condition.get("message") or "").split())
            if m := _NO_CLAIM.search(message):
                name = m["name"]
                return Cause(
                    "volume",
                    f"PersistentVolumeClaim {name} {m['what']}",
                    (f"create the PersistentVolumeClaim {name}, or correct the job's volumes",),
                    {"claim": name},
                )
            if _TAKEN_BY_PVC.search(message):
                return Cause(
                    "volume", "a PersistentVolumeClaim of its pods is not bound", ("kubectl get pvc shows which",)
                )
            if condition.get("reason") == "SchedulerError":
                return _bind_cause(message, 1)
            who = (pod.get("spec") or {}).get("schedulerName") or "default-scheduler"
            name = "kube-scheduler" if who == "default-scheduler" else who
            return Cause("scheduler", f"{name} finds no node: {message}") if message else None
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    who = spec.get("schedulerName") or "default-scheduler"
    if (
        who != "default-scheduler"
        and not spec.get("nodeName")
        and not spec.get("schedulingGates")
        and not status.get("conditions")
    ):
        return Cause(
            "scheduler",
            f"no scheduler has looked at its pods: they ask for schedulerName {who}",
            (f"look whether {who} runs, or correct schedulerName",),
        )
    return None


def _rejections(pods: Sequence[Json]) -> list[Cause]:
    """Pods that kubelets refused after they were bound, by reason and node: a controller makes them again and again."""
    by_reason: dict[str, Counter[str]] = {}
    messages: dict[str, str] = {}
    gpus = 0
    for pod in pods:
        status = pod.get("status") or {}
        reason = str(status.get("reason") or "")
        if status.get("phase") != "Failed" or not (reason in _KUBELET or reason.startswith("OutOf")):
            continue
        node = (pod.get("spec") or {}).get("nodeName") or "a node"
        by_reason.setdefault(reason, Counter())[node] += 1
        messages.setdefault(reason, " ".join(str(status.get("message") or "").split()))
        gpus = max(gpus, *(int(v) for v in _gpu_limits(pod)), 0)
    found = []
    for reason, nodes in by_reason.items():
        count = sum(nodes.values())
        where = ", ".join(f"{node} x{n}" if n > 1 else node for node, n in nodes.most_common(_NAMED))
        said = f": {_short(messages[reason])}" if messages[reason] else ""
        text = f"{reason} on {where}: {_KUBELET.get(reason, _out_of(reason))}{said}"
        found.append(
            Cause(
                "kubelet", text, _advice(reason, gpus), {"rejections": count, "reason": reason, "by_node": dict(nodes)}
            )
        )
    return found


def _gpu_limits(pod: Json) -> list[str]:
    limits = [(c.get("resources") or {}).get("limits") or {} for c in (pod.get("spec") or {}).get("containers") or []]
    return [str(v) for each in limits for k, v in each.items() if k.endswith("/gpu") and str(v).isdigit()]


def _out_of(reason: str) -> str:
    resource = reason.removeprefix("OutOf")
    return f"the node has no {resource} left that the scheduler counted on (two schedulers on one node?)"


def _advice(reason: str, gpus: int) -> tuple[str, ...]:
    if reason == "TopologyAffinityError":
        split = f": {gpus_words(gpus)} split across NUMA nodes, {gpus // 2}+{gpus - gpus // 2}" if gpus > 1 else ""
        return (
            f"let the pod's GPUs come from one NUMA node (whole cards of a node, or fewer){split}; "
            "or set the pool's topologyManagerPolicy to best-effort",
            "stop the job until then: its controller makes the same pod again and again",
        )
    if reason.startswith("OutOf"):
        return ("`myriad diagnose` names the pods that another scheduler put there",)
    return ()
