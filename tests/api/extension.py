"""The extension as these tests run it: a process on loopback with the rights of its service account, as the role
renders them, and what tests ask of it and of Kueue."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import apiserver
import httpx
import yaml
from apiserver import PATIENCE, ControlPlane, gang_job, until
from jinja2 import Environment, FileSystemLoader

from myriad.kube.client import Api
from myriad.kube.kinds import CLUSTER_QUEUES, JOBS, WORKLOADS
from myriad.kube.spread import spread
from myriad.scheduler.objects import WorkloadView, workload_view

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
ACCOUNT = "system:serviceaccount:myriad-system:myriad-scheduler"
SYSTEM: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "myriad-system"}}


def rendered(**inputs: Any) -> list[Json]:
    """What the role renders; `inputs` without their prefix scheduler_extension_."""
    environment = Environment(loader=FileSystemLoader(ROOT / "roles/scheduler_extension/templates"), autoescape=False)  # noqa: S701 - YAML, no page
    environment.filters["to_nice_yaml"] = lambda value: yaml.safe_dump(value)
    environment.filters["dict2items"] = lambda value, key_name="key": [
        {key_name: k, "value": v} for k, v in value.items()
    ]
    environment.filters["myriad.gpu.spread"] = spread
    environment.filters["combine"] = lambda a, b: {**a, **b}
    given = yaml.safe_load((ROOT / "roles/scheduler_extension/defaults/main.yml").read_text())
    given |= {"scheduler_extension_image": f"registry.invalid/x@sha256:{'0' * 64}"}
    given |= {f"scheduler_extension_{name}": value for name, value in inputs.items()}
    return [o for o in yaml.safe_load_all(environment.get_template("objects.yaml.j2").render(given)) if o]


def rights() -> list[Json]:
    """The RBAC objects exactly as the role renders them."""
    return [o for o in rendered() if "Role" in o["kind"] or o["kind"] == "ServiceAccount"]


def lease(duration_s: float, deadline_s: float, retry_s: float) -> dict[str, str]:
    """Settings of the leader election."""
    values = {"LEASE_DURATION_S": duration_s, "RENEW_DEADLINE_S": deadline_s, "RETRY_PERIOD_S": retry_s}
    return {f"MYRIAD_SCHEDULER_{name}": str(value * PATIENCE) for name, value in values.items()}


class Replica:
    """One process of the extension, with the rights of its service account; `settings` are variables of its own."""

    def __init__(self, plane: ControlPlane, name: str, settings: dict[str, str] | None = None) -> None:
        self.name = name
        self.port = apiserver._free_port()
        self.log = plane.work / "logs" / f"{name}.log"
        self._plane = plane
        environment = {
            "PYTHONPATH": str(ROOT / "src"),
            "KUBECONFIG": str(plane.kubeconfig_for(ACCOUNT)),
            "POD_NAME": name,
            "MYRIAD_SCHEDULER_PORT": str(self.port),
            "MYRIAD_SCHEDULER_AUTH": "off",
            "MYRIAD_SCHEDULER_DECISIONS": str(plane.work / f"{name}.jsonl"),
            "MYRIAD_SCHEDULER_NUDGE_INTERVAL_S": "3",
            # Long enough for a busy machine: a leader that loses the Lease stops, and its tests wait in vain.
            **lease(15, 12, 1),
            **(settings or {}),
        }
        plane.start(name, [sys.executable, "-m", "myriad.scheduler"], environment)

    def get(self, path: str) -> Any:
        answer = httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=10)
        answer.raise_for_status()
        return answer.json()

    def leads(self) -> bool:
        return bool(self.get("/v1/status")["extension"]["this_replica_leads"])

    def records(self, job: str, event: str) -> list[Json]:
        return [r for r in self.get(f"/v1/decisions?job=vision/{job}") if r["event"] == event]

    def stop(self, *, kill: bool = False) -> None:
        self._plane.stop(self.name, kill=kill)


ALWAYS = {"MYRIAD_SCHEDULER_ATTACH": "always"}
"""Queues ask the check from the start, not only while a gang waits."""


def attached(api: Api) -> bool:
    spec = api.get(CLUSTER_QUEUES, "vision-h100")["spec"]
    return [c["name"] for c in (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or []] == ["myriad"]


def delete_job(api: Api, name: str) -> None:
    api.delete(JOBS, name, namespace="vision")


def submit(plane: ControlPlane, name: str, *, pods: int = 4, gpus: int = 8, **spec: Any) -> None:
    plane.apply([gang_job(name, pods=pods, gpus=gpus, **spec)])


def look(api: Api, job: str) -> WorkloadView | None:
    for body in api.list(WORKLOADS, namespace="vision")[0]:
        view = workload_view(body, check_name="myriad")
        if view.gang.name == job:
            return view
    return None


def admitted(api: Api, job: str) -> WorkloadView:
    def check() -> WorkloadView | None:
        view = look(api, job)
        return view if view is not None and view.admitted else None

    return until(check, what=f"{job} is admitted")  # type: ignore[no-any-return]
