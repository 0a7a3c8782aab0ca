"""Workloads as Kueue writes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

Json = dict[str, Any]

T0 = 1_796_000_000
"""2026-11-30, some hour."""


def at(seconds: float) -> str:
    """A moment in Kubernetes' form."""
    return datetime.fromtimestamp(T0 + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def workload(
    name: str = "bert",
    *,
    created: float = 0,
    admitted: float | None = None,
    evicted: tuple[float, str] | None = None,
    finished: tuple[float, str] | None = None,
    left: float | None = None,
    requeued: float | None = None,
    deleted: float | None = None,
    usage: dict[str, int] | None = None,
    namespace: str = "vision",
    queue: str = "vision-h100",
    flavor: str = "h100",
    uid: str = "",
    limit_s: int | None = None,
    labels: dict[str, str] | None = None,
    active: bool = True,
) -> Json:
    """A Workload.

    Args:
        admitted: Admitted=True since then.
        left: Admitted=False since then (after an eviction).
        evicted, finished: since when that is True, and why.
    """
    conditions: list[Json] = []

    def condition(kind: str, true: bool, since: float, reason: str) -> None:
        status = "True" if true else "False"
        conditions.append({"type": kind, "status": status, "reason": reason, "lastTransitionTime": at(since)})

    holds = admitted is not None
    if admitted is not None:
        condition("QuotaReserved", True, admitted, "QuotaReserved")
        condition("Admitted", True, admitted, "Admitted")
    elif left is not None:
        condition("QuotaReserved", False, left, "Pending")
        condition("Admitted", False, left, "NoReservation")
    if evicted is not None:
        condition("Evicted", True, *evicted)
    if finished is not None:
        condition("Finished", True, *finished)
    if requeued is not None:
        condition("Requeued", True, requeued, "Preempted")
    resources = {"nvidia.com/gpu": 16} if usage is None else usage
    status: Json = {"conditions": conditions}
    if holds:
        status["admission"] = {
            "clusterQueue": queue,
            "podSetAssignments": [
                {
                    "name": "main",
                    "flavors": dict.fromkeys(("cpu", *resources), flavor),
                    "resourceUsage": {"cpu": "2", **{r: str(n) for r, n in resources.items()}},
                    "count": 2,
                }
            ],
        }
    metadata: Json = {
        "name": f"job-{name}",
        "namespace": namespace,
        "uid": uid or f"uid-{name}",
        "resourceVersion": "1",
        "creationTimestamp": at(created),
        "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"job-uid-{name}", "controller": True}
        ],
    }
    if deleted is not None:
        metadata["deletionTimestamp"] = at(deleted)
    requests = {r: str(max(1, n // 2)) for r, n in resources.items()}
    spec: Json = {
        "queueName": "h100",
        "priority": 500,
        "priorityClassRef": {"kind": "WorkloadPriorityClass", "name": "normal"},
        "podSets": [
            {
                "name": "main",
                "count": 2,
                "template": {
                    "metadata": {"labels": labels or {}},
                    "spec": {"containers": [{"name": "main", "resources": {"requests": requests, "limits": requests}}]},
                },
            }
        ],
    }
    if limit_s is not None:
        spec["maximumExecutionTimeSeconds"] = limit_s
    if not active:
        spec["active"] = False
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": metadata,
        "spec": spec,
        "status": status,
    }
