"""The AdmissionCheck and the ClusterQueues that ask it: attach, detach, and ask Kueue to look again.

The extension owns one field of a ClusterQueue, its own entry of `spec.admissionChecksStrategy`, by server-side apply
under the field manager `myriad-scheduler`. Everything else there belongs to the policy.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from myriad.kube.client import FIELD_MANAGER, Api, ApiError
from myriad.kube.kinds import ADMISSION_CHECKS, CLUSTER_QUEUES
from myriad.scheduler.model import POOL_LABEL

log = logging.getLogger("myriad.attach")

Json = dict[str, Any]


def is_ours(queue: Json) -> bool:
    """Whether a ClusterQueue belongs to a pool of the description."""
    return bool((queue["metadata"].get("labels") or {}).get(POOL_LABEL))


def flavors_of(queue: Json) -> list[str]:
    """All flavors of a ClusterQueue."""
    return sorted(
        {f["name"] for group in queue["spec"].get("resourceGroups") or [] for f in group.get("flavors") or []}
    )


def entry_of(queue: Json, check: str) -> Json | None:
    """Our entry in a ClusterQueue."""
    strategy = queue["spec"].get("admissionChecksStrategy") or {}
    return next((e for e in strategy.get("admissionChecks") or [] if e["name"] == check), None)


def is_attached(queue: Json, check: str) -> bool:
    """Whether the queue asks the check for all its flavors.

    An entry that names only some flavors would be listed on a Workload only after quota (Kueue v0.17,
    AdmissionChecksForWorkload), too late to steer.
    """
    entry = entry_of(queue, check)
    if entry is None:
        return False
    flavors = sorted(entry.get("onFlavors") or [])
    return not flavors or flavors == flavors_of(queue)


def is_active(check: Json | None) -> bool:
    """Whether the AdmissionCheck says Active=True. Kueue stops every queue that uses an inactive one."""
    conditions = ((check or {}).get("status") or {}).get("conditions") or []
    return any(c["type"] == "Active" and c["status"] == "True" for c in conditions)


def set_active(api: Api, check: Json) -> None:
    """Say Active=True on the AdmissionCheck."""
    api.patch(
        ADMISSION_CHECKS,
        check["metadata"]["name"],
        {
            "apiVersion": ADMISSION_CHECKS.api_version,
            "kind": ADMISSION_CHECKS.kind,
            "metadata": {"name": check["metadata"]["name"]},
            "status": {
                "conditions": [
                    {
                        "type": "Active",
                        "status": "True",
                        "reason": "Active",
                        "message": "myriad-scheduler answers this check",
                        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                        "observedGeneration": check["metadata"].get("generation", 1),
                    }
                ]
            },
        },
        kind="apply",
        subresource="status",
        force=True,
    )


def attach(api: Api, queue: Json, check: str) -> None:
    """Ask the check for every Workload of the queue."""
    _apply(api, queue["metadata"]["name"], {"admissionChecksStrategy": {"admissionChecks": [{"name": check}]}})
    log.info("attached the check to ClusterQueue %s", queue["metadata"]["name"])


def detach(api: Api, queue: Json) -> None:
    """Take our entry out: Kueue drops it from the Workloads and goes on unsteered."""
    _apply(api, queue["metadata"]["name"], {})
    log.info("detached the check from ClusterQueue %s", queue["metadata"]["name"])


def detach_all(api: Api, check: str) -> tuple[list[str], list[str]]:
    """Detach from every ClusterQueue; names of those done, and of those where somebody else keeps the entry."""
    done: list[str] = []
    kept: list[str] = []
    for queue in api.list(CLUSTER_QUEUES)[0]:
        if entry_of(queue, check) is not None:
            detach(api, queue)
            name = queue["metadata"]["name"]
            (done if entry_of(api.get(CLUSTER_QUEUES, name), check) is None else kept).append(name)
    return done, kept


def nudge(api: Api, queue: Json, check: str) -> None:
    """Make Kueue look again at the gangs that it parked in this queue and its cohort.

    Kueue v0.17 parks a gang that did not fit until quota is released, a node changes or the queue's spec changes.
    A changed podSetUpdate, or a pod outside Kueue that ended, is none of these. Our entry with all flavors named
    means the same as the entry with none named, so switching between the two changes the spec and nothing else.
    """
    entry = entry_of(queue, check) or {}
    body: Json = {"name": check}
    if not entry.get("onFlavors"):
        body["onFlavors"] = flavors_of(queue)
    _apply(api, queue["metadata"]["name"], {"admissionChecksStrategy": {"admissionChecks": [body]}})


def _apply(api: Api, name: str, spec: Json) -> None:
    body = {
        "apiVersion": CLUSTER_QUEUES.api_version,
        "kind": CLUSTER_QUEUES.kind,
        "metadata": {"name": name},
        "spec": spec,
    }
    try:
        api.patch(CLUSTER_QUEUES, name, body, kind="apply", field_manager=FIELD_MANAGER, force=True)
    except ApiError as error:
        if not error.is_not_found:
            raise
