"""What it looks like that we hold a LocalQueue or a Workload, and which change would hold it or let it go. Pure.

Only what carries our annotations is ever let go, and only while it is as we set it. A queue that somebody else stopped
stays stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

HELD_BY = "myriad.dev/held-by"
REASON = "myriad.dev/hold-reason"
UNTIL = "myriad.dev/hold-until"
POLICY = "myriad.dev/hold-policy"
TOLD = "myriad.dev/budget-told"
IGNORE = "myriad.dev/budget"
"""With the value `ignore` on a LocalQueue its budget is counted and not enforced."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold of ours.

    Attributes:
        by: budget or project-budget (used up), limit (it has none and needs one) or time (its time is over).
        reason: one sentence.
        until: when it passes, RFC 3339; empty where that is not a date.
        policy: the stopPolicy that we set; empty on a Workload.
    """

    by: str
    reason: str
    until: str = ""
    policy: str = ""


def hold_of(obj: Json) -> Hold | None:
    """Our hold of a LocalQueue or Workload; None where we hold it not."""
    annotations = obj["metadata"].get("annotations") or {}
    if not annotations.get(HELD_BY):
        return None
    return Hold(
        str(annotations[HELD_BY]),
        str(annotations.get(REASON) or ""),
        str(annotations.get(UNTIL) or ""),
        str(annotations.get(POLICY) or ""),
    )


def queue_change(queue: Json, wanted: Hold | None) -> Json | None:
    """The merge patch that a LocalQueue needs, None where it needs none.

    Args:
        queue: the LocalQueue.
        wanted: how it should be held, None where it should not.
    """
    metadata = queue["metadata"]
    if (metadata.get("annotations") or {}).get(IGNORE) == "ignore":
        wanted = None
    now = str((queue.get("spec") or {}).get("stopPolicy") or "None")
    ours = hold_of(queue)
    if ours is not None and now not in ("None", ours.policy):
        # Somebody else has stopped it in another way since: it is theirs now.
        return _patch(metadata, None, {})
    if wanted is None:
        if ours is None:
            return None
        return _patch(metadata, None, {"stopPolicy": None} if now == ours.policy else {})
    if ours is None and now != "None":
        return None
    if ours == wanted and now == wanted.policy:
        return None
    return _patch(metadata, wanted, {"stopPolicy": wanted.policy} if now != wanted.policy else {})


def workload_change(workload: Json, wanted: Hold | None) -> Json | None:
    """The merge patch that a Workload needs, None where it needs none.

    Args:
        workload: the Workload.
        wanted: how it should be held, None where it should not.
    """
    metadata = workload["metadata"]
    active = (workload.get("spec") or {}).get("active") is not False
    ours = hold_of(workload)
    if wanted is None:
        return None if ours is None else _patch(metadata, None, {} if active else {"active": True})
    if ours is None and not active:
        return None
    if ours == wanted and not active:
        return None
    return _patch(metadata, wanted, {"active": False} if active else {})


def _patch(metadata: Json, hold: Hold | None, spec: Json) -> Json:
    values = (hold.by, hold.reason, hold.until, hold.policy) if hold else ("", "", "", "")
    annotations = {key: value or None for key, value in zip((HELD_BY, REASON, UNTIL, POLICY), values, strict=True)}
    change: Json = {"metadata": {"resourceVersion": metadata.get("resourceVersion"), "annotations": annotations}}
    if spec:
        change["spec"] = spec
    return change
