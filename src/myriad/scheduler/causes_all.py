"""Every layer that has evidence asked in turn: the causes of a job, first to mend first. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from myriad.scheduler.causes import Cause, Evidence, in_order, priority_causes, quota_object_causes
from myriad.scheduler.causes_pods import event_causes, pod_causes, volume_causes
from myriad.scheduler.causes_volcano import volcano_causes


def causes_of(evidence: Evidence, *, now: datetime | None = None) -> tuple[Cause, ...]:
    """Everything that the evidence holds against the job, first to mend first."""
    now = now or datetime.now(UTC)
    return in_order(
        [
            *(Cause("job", p) for p in evidence.problems),
            *priority_causes(evidence),
            *quota_object_causes(evidence),
            *volume_causes(evidence),
            *event_causes(evidence, now),
            *pod_causes(evidence, now),
            *volcano_causes(evidence, now),
        ]
    )
