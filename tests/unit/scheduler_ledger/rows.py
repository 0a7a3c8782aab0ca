"""Facts as tests write them."""

from __future__ import annotations

from myriad.scheduler.ledger.facts import Admission, Ending, Holding


def admission(
    uid: str,
    start: int,
    *,
    gpus: int = 8,
    per_gpu: int = 1,
    admitted: int | None = None,
    team: str = "vision",
    queued: int | None = None,
    project: str = "",
) -> Admission:
    return Admission(
        uid=uid,
        started_at=start,
        admitted_at=start if admitted is None else admitted,
        queued_at=start if queued is None else queued,
        namespace=team,
        workload=f"job-{uid}",
        job=uid,
        job_kind="Job",
        job_uid=f"job-uid-{uid}",
        team=team,
        project=project,
        owner="",
        cluster_queue=f"{team}-h100",
        local_queue="h100",
        priority=0,
        priority_class="normal",
        limit_s=None,
        holdings=(Holding("h100", "h100", "nvidia.com/gpu", gpus, per_gpu),),
    )


def ending(uid: str, start: int | None, end: int, outcome: str = "finished") -> Ending:
    return Ending(uid, start, end, outcome, "", "condition")
