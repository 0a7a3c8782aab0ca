"""Looks at a lab: one list of each kind, what the engine and the kubelets say, and the extension's own books."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from typing import Any

import httpx

from myriad.agent.report import Record, own_taints
from myriad.errors import MyriadError
from myriad.kube.client import Api
from myriad.kube.kinds import ADMISSION_CHECKS, CLUSTER_QUEUES, DEPLOYMENTS, LEASES, NODES, PODS, WORKLOADS
from myriad.lab.soak.inject import LEASE, Nodes
from myriad.lab.soak.seen import CHECK, Charge, Look, NodeSeen, devices_seen, moment, pods_seen, workloads_seen
from myriad.lab.state import LabPaths
from myriad.scheduler import deadman
from myriad.scheduler.attach import is_attached, is_ours
from myriad.scheduler.policy import NAMESPACE as SYSTEM

Json = dict[str, Any]

CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
GPU = "nvidia.com/gpu"
SERVICE = f"/api/v1/namespaces/{SYSTEM}/services/myriad-scheduler:http/proxy"
EXEC_TIMEOUT_S = 60

LEDGER = """
import json, sqlite3
db = sqlite3.connect("file:/var/lib/myriad-scheduler/ledger.db?mode=ro", uri=True)
print(json.dumps(db.execute(
    "select a.workload_uid, a.started_at, e.ended_at, h.slices * 1.0 / h.per_gpu, e.basis from admissions a"
    " join holdings h on h.admission_id = a.id left join endings e on e.admission_id = a.id"
    " order by a.started_at"
).fetchall()))
"""
"""Run where the leader runs: its SQLite file, read only."""


def node_seen(body: Json, started: float) -> NodeSeen:
    """A Node of the API and the last start of its machine. Pure."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    record = Record.of(body)
    return NodeSeen(
        name=str(metadata["name"]),
        is_ready=any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or []),
        gpus=int((status.get("allocatable") or {}).get(GPU, 0)),
        is_open=not own_taints(body),
        gate_since=record.since,
        boot=record.boot,
        started=started,
        is_cordoned=bool(spec.get("unschedulable")),
        taints=frozenset(
            f"{taint['key']}={taint.get('value') or ''}:{taint.get('effect')}" for taint in spec.get("taints") or []
        ),
        labels=dict(metadata.get("labels") or {}),
    )


class Observer:
    """Looks.

    Args:
        api: admin credentials.
        nodes: the lab's.
        gpus: GPU node -> GPUs.
        registry: its URL.
        paths: of the lab, for its kubectl.
    """

    def __init__(self, api: Api, nodes: Nodes, gpus: Mapping[str, int], *, registry: str, paths: LabPaths) -> None:
        self._api = api
        self._nodes = nodes
        self._gpus = gpus
        self._registry = registry
        self._paths = paths

    def look(self, *, with_devices: bool) -> Look:
        """Look once.

        Args:
            with_devices: ask the kubelets' accounts too, which costs a process on each GPU node.

        Raises:
            MyriadError: the API server does not answer.
        """
        started = self._nodes.started()
        at = time.time()
        nodes = {
            str(body["metadata"]["name"]): node_seen(body, started.get(str(body["metadata"]["name"]), 0.0))
            for body in self._api.list(NODES)[0]
        }
        nodes_read = time.time()
        pods = pods_seen(self._api.list(PODS)[0])
        workloads = workloads_seen(self._api.list(WORKLOADS)[0])
        lease = (self._api.find(LEASES, LEASE, namespace=SYSTEM) or {}).get("spec") or {}
        extension = self._api.find(DEPLOYMENTS, LEASE, namespace=SYSTEM) or {}
        wanted = (extension.get("spec") or {}).get("replicas", 0)
        gone = bool(deadman.detached(self._api.find(ADMISSION_CHECKS, CHECK)))
        queues = [queue for queue in self._api.list(CLUSTER_QUEUES)[0] if is_ours(queue)]
        return Look(
            at=at,
            nodes_read=nodes_read,
            nodes=nodes,
            pods=pods,
            workloads=workloads,
            leader=str(lease.get("holderIdentity") or ""),
            renewed=moment(lease.get("renewTime")),
            is_extension_ready=(extension.get("status") or {}).get("readyReplicas", 0) == wanted > 0,
            unsteered=tuple(
                str(queue["metadata"]["name"]) for queue in queues if gone and not is_attached(queue, CHECK)
            ),
            has_registry=self._has_registry(),
            devices=self._devices() if with_devices else {},
            ended=time.time(),
        )

    def _has_registry(self) -> bool:
        try:
            # Of this machine's own network: whatever proxy it has for others knows nothing of it.
            return httpx.get(f"{self._registry}/v2/", timeout=2, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def _devices(self) -> dict[str, Mapping[str, frozenset[str]]]:
        found: dict[str, Mapping[str, frozenset[str]]] = {}
        for node in self._gpus:
            try:
                found[node] = devices_seen(json.loads(self._nodes.read(node, CHECKPOINT)))
            except ValueError:  # the node does not run, or its kubelet has given nothing away yet
                continue
        return found

    def charges(self) -> list[Charge]:
        """Every row of the ledger.

        Raises:
            MyriadError: nobody leads, or the leader does not answer.
        """
        lease = self._api.get(LEASES, LEASE, namespace=SYSTEM)
        leader = str(lease["spec"].get("holderIdentity") or "")
        argv = [str(self._paths.bin / "kubectl"), "--kubeconfig", str(self._paths.kubeconfig), "-n", SYSTEM]
        argv += ["exec", leader, "--", "python3", "-c", LEDGER]
        environment = {**os.environ, "KUBECACHEDIR": str(self._paths.kube_cache)}
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, check=False, env=environment, timeout=EXEC_TIMEOUT_S
            )
            rows = json.loads(done.stdout)
        except (ValueError, subprocess.TimeoutExpired) as error:
            raise MyriadError("the leader's ledger cannot be read", where=leader or "nobody leads") from error
        return [Charge(str(uid), began, ended, float(gpus), basis or "") for uid, began, ended, gpus, basis in rows]

    def assigned(self, job: str, *, since: str) -> set[str]:
        """Nodes to which decision records say that a job was assigned, from a time on (RFC 3339, UTC).

        Raises:
            MyriadError: the extension does not answer.
        """
        records: Any = self._api.get_raw(f"{SERVICE}/v1/decisions", params={"job": job, "since": since})
        return {str(node) for record in records if record["event"] == "assigned" for node in record["assigned"]}
