"""What is known of one job outside the cache: the Job object, and what Events say of it and its pods. Reads only."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from myriad.errors import MyriadError
from myriad.kube.client import EVENTS, JOBS, Api
from myriad.scheduler.inquiry import Evidence
from myriad.scheduler.objects import seconds_since

Json = dict[str, Any]

# Events whose message is a cause in itself, from whoever writes them: a missing PVC, a ResourceQuota, a webhook.
_CAUSES = frozenset(
    {
        "FailedCreate",
        "FailedMount",
        "FailedAttachVolume",
        "FailedBinding",
        "ProvisioningFailed",
        "FailedCreatePodSandBox",
        "ErrorsInPodSpec",
    }
)
# An older Event tells of a cause that may be long gone; a cause that lasts is reported again and again.
_RECENT_S = 600.0


def gather(api: Api, namespace: str, job: str) -> Evidence:
    """Read the Job and the Events about it and its pods; what may not be read is left out."""
    try:
        body = api.find(JOBS, job, namespace=namespace)
    except MyriadError:
        body = None
    return Evidence(job=body, problems=tuple(_problems(api, namespace, job, body)))


def _problems(api: Api, namespace: str, job: str, body: Json | None) -> list[str]:
    try:
        events, _ = api.list(EVENTS, namespace=namespace, fields="type=Warning")
    except MyriadError:
        return []
    now = datetime.now(UTC)
    uid = (body or {}).get("metadata", {}).get("uid")
    found: dict[str, str] = {}
    for event in events:
        about = event.get("involvedObject") or {}
        name = about.get("name") or ""
        of_job = about.get("uid") == uid if about.get("kind") == "Job" else name.startswith(f"{job}-")
        if of_job and event.get("reason") in _CAUSES:
            when = str(event.get("lastTimestamp") or event.get("eventTime") or "")
            if seconds_since(when, now) > _RECENT_S:
                continue
            message = " ".join(str(event.get("message") or "").split())
            found[message] = max(when, found.get(message, ""))
    newest = sorted(found, key=lambda m: found[m], reverse=True)
    return newest[:3]
