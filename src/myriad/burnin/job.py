"""The Job of a burn-in: one pod on each node, beside Kueue, tolerating the gate's taint. Pure.

Beside Kueue, because a rack that is not open yet has no quota and its nodes carry the gate's taint; the Job stands in
myriad-system, which Kueue leaves alone, and Kueue's topology-aware scheduling counts its pods as use of others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NAMESPACE = "myriad-system"
LABEL = "myriad.dev/burn-in"
PORT = 29400
LINK_CHECK = ("python3", "/opt/gang-check/link_check.py")
#: The line of nccl-tests (all_reduce_perf) that sums up a run: "# Avg bus bandwidth    : 371.22".
_BUS_BANDWIDTH = re.compile(r"Avg bus bandwidth\s*:\s*([\d.]+)")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """What all jobs of one run share.

    Attributes:
        image: image of the pods.
        seconds: how long each pair sends.
        rounds: at most so many partners for each node; 0 for all.
        rails: rail to addresses by node; empty measures over the pods' own network.
        gpus: GPUs for each pod (NCCL only).
        resource: by what name the kubelet counts them.
        command: what measures with NCCL, a shell command line; empty measures links with TCP.
        join_s: how long pods wait for each other (images are pulled meanwhile).
    """

    image: str
    seconds: int = 2
    rounds: int = 0
    rails: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gpus: int = 0
    resource: str = "nvidia.com/gpu"
    command: str = ""
    join_s: int = 300

    @property
    def uses_nccl(self) -> bool:
        """Whether a command with GPUs measures."""
        return bool(self.command)


def objects(name: str, nodes: Sequence[str], settings: Settings) -> list[Json]:
    """The headless Service by which the pods meet, and the Job.

    Args:
        name: of both; a DNS label.
        nodes: one pod on each.
        settings: what is measured.
    """
    labels = {LABEL: name}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels,
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": len(nodes),
            "parallelism": len(nodes),
            "backoffLimit": 0,
            "activeDeadlineSeconds": deadline_s(len(nodes), settings),
            "ttlSecondsAfterFinished": 3600,
            "template": {"metadata": {"labels": labels}, "spec": _pod(name, nodes, settings, labels)},
        },
    }
    return [service, job]


def deadline_s(nodes: int, settings: Settings) -> int:
    """Seconds after which a run is given up: joining, and every round twice over."""
    if settings.uses_nccl:
        return settings.join_s + 600
    rounds = min(settings.rounds or nodes, nodes)
    return settings.join_s + 60 + 2 * rounds * (settings.seconds + 2) * max(1, len(settings.rails))


def _pod(name: str, nodes: Sequence[str], settings: Settings, labels: Mapping[str, str]) -> Json:
    environment: list[Json] = [
        {"name": "MASTER_ADDR", "value": f"{name}-0.{name}"},
        {"name": "MASTER_PORT", "value": str(PORT)},
        {"name": "WORLD_SIZE", "value": str(len(nodes))},
        {
            "name": "RANK",
            "valueFrom": {
                "fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
            },
        },
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "GANG_JOIN_SECONDS", "value": str(settings.join_s)},
        {"name": "LINK_SECONDS", "value": str(settings.seconds)},
        {"name": "LINK_ROUNDS", "value": str(settings.rounds)},
    ]
    if settings.rails:
        rails = {rail: {node: at[node] for node in nodes} for rail, at in settings.rails.items()}
        environment.append({"name": "LINK_RAILS", "value": json.dumps(rails, sort_keys=True)})
    container: Json = {
        "name": "burn-in",
        "image": settings.image,
        "command": list(LINK_CHECK),
        "env": environment,
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if settings.uses_nccl:
        # What the command prints stays in the log; the line that counts goes where the pod's status shows it.
        script = (
            f"set -o pipefail; {{ {settings.command}; }} | tee /tmp/burn-in && "
            "tail -c 3000 /tmp/burn-in > /dev/termination-log"
        )
        container["command"] = ["bash", "-c", script]
        container["resources"] = {"limits": {settings.resource: settings.gpus}}
        # NCCL registers memory with the network card.
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
        container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 (a mount in the pod)
    pod: Json = {
        "subdomain": name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [{"operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
                            ]
                        }
                    ]
                }
            },
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": dict(labels)}}
                ]
            },
        },
        "containers": [container],
    }
    if settings.uses_nccl:
        pod["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    else:
        pod["securityContext"] = {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    if settings.rails or settings.uses_nccl:
        # The rails are interfaces of the node, which a pod's own network does not have.
        pod["hostNetwork"] = True
        pod["dnsPolicy"] = "ClusterFirstWithHostNet"
    return pod


def link_result(message: str) -> Json | None:
    """The result in a pod's termination message; None where there is none."""
    for line in reversed(message.splitlines()):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and {"node", "rails"} <= set(value):
            return value
    return None


def nccl_bandwidth(message: str) -> float | None:
    """NCCL's average bus bandwidth in GB/s in a pod's termination message; None where there is none."""
    found = _BUS_BANDWIDTH.findall(message)
    return float(found[-1]) if found else None
