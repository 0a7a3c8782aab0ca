"""A request as Kubernetes objects: a PyTorchJob, or a batch Job with what its ranks need to find each other. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from myriad.jobs.request import PORT, UNNAMED_IMAGE, Request

Json = dict[str, Any]

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
MAX_EXEC_TIME_LABEL = "kueue.x-k8s.io/max-exec-time-seconds"
MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
EQUAL_COMPLETIONS = "kueue.x-k8s.io/job-completions-equal-parallelism"
PREFERRED_TOPOLOGY = "kueue.x-k8s.io/podset-preferred-topology"
CHECKPOINT_INTERVAL = "myriad.dev/checkpoint-interval"
HANDLES_SIGTERM = "myriad.dev/handles-sigterm"
GROUP_MIN_MEMBER = "scheduling.volcano.sh/group-min-member"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
VOLCANO_TOPOLOGY = "volcano.sh/network-topology-mode"
#: The preStop hook makes this file; a training loop that cannot take signals looks for it.
STOP_FOLDER = "/run/myriad"
STOP_FILE = f"{STOP_FOLDER}/stop"
#: Exit code of a process that ended on SIGTERM.
SIGTERM_EXIT = 143
TORCHRUN = ("torchrun", "/workspace/train.py")
CHECKPOINT_DIR = "/checkpoint"


@dataclass(frozen=True, slots=True)
class Rendered:
    """What was rendered.

    Attributes:
        objects: in the order to create them, the job last.
        says: what a person should know about it, a sentence each.
    """

    objects: tuple[Json, ...]
    says: tuple[str, ...] = ()


def render(request: Request, *, pytorch_served: bool = True) -> Rendered:
    """The objects of a job.

    Args:
        request: a checked request.
        pytorch_served: whether the cluster knows PyTorchJobs; without them a `pytorch` job is a batch Job that runs
            torchrun.
    """
    says: list[str] = []
    if request.image == UNNAMED_IMAGE:
        says.append(
            "it names no image: put yours in the place of the zeros (--image NAME@sha256:DIGEST) before you submit it"
        )
    if request.form == "pytorch" and pytorch_served:
        objects: tuple[Json, ...] = (_pytorch_job(request),)
    else:
        if request.form == "pytorch":
            says.append("the cluster has no PyTorchJobs: this is a batch Job that runs torchrun, which does the same")
        objects = _batch(request, torch=request.form == "pytorch")
    if not request.checkpoint_claim:
        says.append(
            "its checkpoints go with the pod (emptyDir): after a preemption it begins anew; --checkpoint-claim keeps "
            "them"
        )
    if request.limit_s is None:
        says.append(
            "it has no time limit, so nobody behind it can be told when its GPUs are free again; --hours sets one"
        )
    return Rendered(objects, tuple(says))


def to_yaml(rendered: Rendered, header: Sequence[str]) -> str:
    """The objects as one text.

    Args:
        rendered: the objects.
        header: lines of a comment at the top.
    """
    text = yaml.dump_all(
        rendered.objects, Dumper=yaml.CSafeDumper, sort_keys=False, explicit_start=False, allow_unicode=True, width=110
    )
    return "".join(f"# {line}\n" for line in header) + text


# Parts that all forms share


def _metadata(request: Request, *, batch: bool) -> Json:
    labels = {QUEUE_LABEL: request.queue}
    if request.priority:
        labels[PRIORITY_LABEL] = request.priority
    if request.limit_s is not None:
        labels[MAX_EXEC_TIME_LABEL] = str(request.limit_s)
    annotations = {CHECKPOINT_INTERVAL: request.checkpoint_interval}
    if request.pool.engine == "volcano" and batch:
        annotations[GROUP_MIN_MEMBER] = str(request.minimum or request.nodes)
    return {"name": request.name, "namespace": request.namespace, "labels": labels, "annotations": annotations}


def _template_metadata(request: Request) -> Json:
    annotations = {HANDLES_SIGTERM: "true", CHECKPOINT_INTERVAL: request.checkpoint_interval}
    # One pod has no neighbours; and a pool of Volcano's is placed by its HyperNodes, not by Kueue.
    if request.nodes > 1 and request.pool.engine == "kueue" and request.pool.level:
        annotations[PREFERRED_TOPOLOGY] = request.pool.level
    if request.pool.engine == "volcano":
        # Volcano makes the PodGroup of a Job from its first pod: what stands on the Job alone is not asked for these.
        annotations[VOLCANO_QUEUE] = request.pool.volcano_queue
        if request.nodes > 1:
            annotations[VOLCANO_TOPOLOGY] = "soft"
    return {"annotations": annotations}


def _pod_spec(request: Request, *, container: str, command: Sequence[str], env: Sequence[Json]) -> Json:
    claim = request.checkpoint_claim
    amounts: Json = {}
    if request.cpu:
        amounts["cpu"] = request.cpu
    if request.memory:
        amounts["memory"] = request.memory
    amounts[request.pool.resource] = request.gpus
    main: Json = {"name": container, "image": request.image, "imagePullPolicy": "IfNotPresent"}
    if command:
        main["command"] = list(command)
    main["env"] = [
        *env,
        {"name": "CHECKPOINT_DIR", "value": CHECKPOINT_DIR},
        {"name": "MYRIAD_STOP_FILE", "value": STOP_FILE},
        *({"name": name, "value": value} for name, value in request.env),
    ]
    main["resources"] = {"requests": dict(amounts), "limits": dict(amounts)}
    # SIGTERM follows as soon as the hook has ended; the grace counts from its start.
    main["lifecycle"] = {"preStop": {"exec": {"command": ["/bin/sh", "-c", f"touch {STOP_FILE}"]}}}
    main["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    main["volumeMounts"] = [
        {"name": "checkpoint", "mountPath": CHECKPOINT_DIR},
        {"name": "myriad", "mountPath": STOP_FOLDER},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the path in the container
    ]
    spec: Json = {}
    if request.pool.engine == "volcano":
        spec["schedulerName"] = "volcano"
    if request.priority:
        spec["priorityClassName"] = request.priority
    spec["terminationGracePeriodSeconds"] = request.grace_s
    spec["automountServiceAccountToken"] = False
    spec["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    spec["containers"] = [main]
    # NCCL and data loaders share memory there; the default of 64 MiB makes them fail.
    spec["volumes"] = [
        {"name": "checkpoint", **({"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}})},
        {"name": "myriad", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    return spec


# PyTorchJob


def _pytorch_job(request: Request) -> Json:
    """One master and nodes - 1 workers. The operator sets torchrun's PET_* variables, and the container has to be
    called pytorch (its webhook looks for it)."""

    def replica(count: int) -> Json:
        spec = _pod_spec(request, container="pytorch", command=request.command or TORCHRUN, env=())
        return {
            "replicas": count,
            # The operator starts a pod again whose exit code says that it was killed (143), and ends the job on others.
            "restartPolicy": "ExitCode",
            "template": {"metadata": _template_metadata(request), "spec": spec},
        }

    replicas: Json = {"Master": replica(1)}
    if request.nodes > 1:
        replicas["Worker"] = replica(request.nodes - 1)
    scheduling: Json = {"minAvailable": request.nodes}
    if request.pool.engine == "volcano":
        scheduling["queue"] = request.pool.volcano_queue
    if request.priority:
        scheduling["priorityClass"] = request.priority
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _metadata(request, batch=False),
        "spec": {
            "runPolicy": {
                "suspend": True,
                "cleanPodPolicy": "Running",
                "backoffLimit": 3,
                "schedulingPolicy": scheduling,
            },
            "nprocPerNode": str(request.gpus),
            "pytorchReplicaSpecs": replicas,
        },
    }


# Batch Job


def _batch(request: Request, *, torch: bool) -> tuple[Json, ...]:
    several = request.nodes > 1
    first = f"{request.name}-0.{request.name}" if several else "localhost"
    rank = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    env: list[Json] = [
        {"name": "MASTER_ADDR", "value": first},
        {"name": "MASTER_PORT", "value": str(PORT)},
        {"name": "RANK", "valueFrom": rank} if several else {"name": "RANK", "value": "0"},
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    elastic = request.minimum is not None
    if not elastic:
        env.append({"name": "WORLD_SIZE", "value": str(request.nodes)})
    command: Sequence[str] = request.command
    if torch:
        env += _torchrun(request, first)
        command = request.command or TORCHRUN
    elif elastic:
        # How many ranks there are is known when Kueue has admitted the job: torchrun asks the others.
        env += _torchrun(request, first)
    container = "pytorch" if torch else "main"
    spec = _pod_spec(request, container=container, command=command, env=env)
    spec = {**({"subdomain": request.name} if several else {}), "restartPolicy": "Never", **spec}
    ended = {"containerName": container, "operator": "In", "values": [SIGTERM_EXIT]}
    metadata = _metadata(request, batch=True)
    if elastic:
        metadata["annotations"] |= {MIN_PARALLELISM: str(request.minimum), EQUAL_COMPLETIONS: "true"}
    # The ranks meet at rank 0. A worker that was lost shortly before the end has nobody to come back to, and must not
    # keep the job: https://kubernetes.io/docs/concepts/workloads/controllers/job/#success-policy
    success: Json = {"successPolicy": {"rules": [{"succeededIndexes": "0"}]}} if elastic else {}
    job: Json = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "completions": request.nodes,
            "parallelism": request.nodes,
            "backoffLimit": 3,
            **success,
            "podFailurePolicy": {
                "rules": [
                    # A pod that was asked to leave has saved and exits 143. That, or a lost node, is no failure.
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
                    {"action": "Ignore", "onExitCodes": ended},
                ]
            },
            "template": {"metadata": _template_metadata(request), "spec": spec},
        },
    }
    return (_service(request), job) if several else (job,)


def _torchrun(request: Request, first: str) -> list[Json]:
    """What torchrun reads from its environment (PET_*), so that the command is the same in every form."""
    nodes = str(request.nodes) if request.minimum is None else f"{request.minimum}:{request.nodes}"
    env: list[Json] = [
        {"name": "PET_NNODES", "value": nodes},
        {"name": "PET_NPROC_PER_NODE", "value": str(request.gpus)},
    ]
    if request.minimum is None:
        return [
            *env,
            {"name": "PET_NODE_RANK", "value": "$(RANK)"},
            {"name": "PET_MASTER_ADDR", "value": "$(MASTER_ADDR)"},
            {"name": "PET_MASTER_PORT", "value": "$(MASTER_PORT)"},
        ]
    return [
        *env,
        {"name": "PET_RDZV_BACKEND", "value": "c10d"},
        {"name": "PET_RDZV_ENDPOINT", "value": f"{first}:{PORT}"},
        {"name": "PET_RDZV_ID", "value": request.name},
        # Workers that come back join again this often before the job is given up.
        {"name": "PET_MAX_RESTARTS", "value": "10"},
    ]


def _service(request: Request) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": request.name, "namespace": request.namespace, "labels": {"myriad.dev/job": request.name}},
        "spec": {
            "clusterIP": "None",
            # The ranks look for each other while they start, before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": request.name},
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }
