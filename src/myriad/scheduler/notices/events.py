"""Events that are written once, whoever writes them. Pure."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from myriad.scheduler.notices.facts import stamp

Json = dict[str, Any]


def event_of(about: Json, reason: str, message: str, key: str, now: datetime) -> Json:
    """An Event of which there can be one only, for `key` and the object: the API server refuses its name twice."""
    metadata = about["metadata"]
    digest = hashlib.sha256(f"{key} {metadata.get('uid', '')}".encode()).hexdigest()[:16]
    namespace = metadata.get("namespace") or "default"
    at = stamp(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name'][:200]}.{digest}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": metadata["name"],
            "namespace": namespace,
            "uid": metadata.get("uid", ""),
        },
        "reason": reason,
        "message": message[:1020],
        "type": "Warning",
        "source": {"component": "myriad-scheduler"},
        "reportingComponent": "myriad-scheduler",
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
