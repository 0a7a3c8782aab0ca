"""Rules about leaving and ending: grace, checkpoints, time limits, retries. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from myriad.lint.policy import policy_of
from myriad.lint.rule import Raw, rule
from myriad.lint.scene import Scene, get, rows, text, texts, whole
from myriad.lint.words import JOBS, gpus_words
from myriad.lint.works import (
    SERVICES,
    Work,
    gpu_works,
    works,
)

MAX_EXEC_TIME = "kueue.x-k8s.io/max-exec-time-seconds"
MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
EQUAL_COMPLETIONS = "kueue.x-k8s.io/job-completions-equal-parallelism"
CHECKPOINT_INTERVAL = "myriad.dev/checkpoint-interval"
HANDLES_SIGTERM = "myriad.dev/handles-sigterm"
_DURATION = re.compile(r"(?:(\d{1,12})h)?(?:(\d{1,12})m)?(?:(\d{1,12})s?)?")


def seconds_of(value: object) -> int | None:
    """Seconds of `30m`, `1h30m`, `1800`, `90s`; None for anything else."""
    if isinstance(value, bool):
        return None
    found = _DURATION.fullmatch(str(value).strip())
    if not found or not any(found.groups()):
        return None
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds


@rule("grace-too-short", "warning", "too little time to save", looks_at=JOBS, sources=("kueue#6143", "volcano#3369"))
def grace_too_short(scene: Scene) -> Iterator[Raw]:
    """A preempted pod gets SIGTERM and is killed after its terminationGracePeriodSeconds (30 s where it says
    nothing): what was not saved by then is lost on every GPU."""
    policy = policy_of(scene)
    for work in gpu_works(scene):
        if work.kind in (*SERVICES, "TrainJob"):
            continue
        for pods in work.gpu_pods:
            value = pods.spec.get("terminationGracePeriodSeconds")
            grace = whole(value, 30) if value is not None else 30
            if grace < policy.grace_s:
                said = f"has {grace} s" if value is not None else "has the default of 30 s"
                yield Raw(
                    work.thing,
                    (*pods.path, "spec", "terminationGracePeriodSeconds"),
                    f"{said} to save when it is preempted, and the policy gives {policy.grace_s} s: it is killed in "
                    "the middle of a checkpoint",
                    f"set terminationGracePeriodSeconds: {policy.grace_s} in the pod template",
                    "error" if policy.known else None,
                )
                break


@rule(
    "checkpoint-interval",
    "warning",
    "checkpoints that are too rare, or said wrongly",
    looks_at=JOBS,
    sources=("kueue#477",),
)
def checkpoint_interval(scene: Scene) -> Iterator[Raw]:
    """What runs since the last checkpoint is lost when a node dies; victims are chosen and costs told by this
    interval."""
    policy = policy_of(scene)
    for work in gpu_works(scene):
        value = work.thing.annotations.get(CHECKPOINT_INTERVAL)
        if value is None:
            continue
        path = ("metadata", "annotations", CHECKPOINT_INTERVAL)
        seconds = seconds_of(value)
        if seconds is None or seconds <= 0:
            yield Raw(
                work.thing,
                path,
                f"says {CHECKPOINT_INTERVAL} {value!r}, which is no time: it is ignored",
                "write it as 30m, 1h or 900s",
            )
        elif seconds > policy.checkpoint_max_age_s:
            yield Raw(
                work.thing,
                path,
                f"saves every {value}, and the policy wants a checkpoint within {policy.checkpoint_max_age_s} s: up "
                f"to {value} of {gpus_words(work)} are lost when a node dies",
                "save more often, and say so there",
            )


@rule("bad-time-limit", "error", "a time limit that is none", looks_at=JOBS)
def bad_time_limit(scene: Scene) -> Iterator[Raw]:
    """Kueue refuses the job, or (before it is there) nobody can count on when it ends."""
    for work in works(scene):
        value = work.thing.labels.get(MAX_EXEC_TIME)
        if value is None:
            continue
        path = ("metadata", "labels", MAX_EXEC_TIME)
        if not isinstance(value, str):
            yield Raw(
                work.thing,
                path,
                f"has the label {MAX_EXEC_TIME} without quotes ({value!r}): labels are texts, the API server refuses "
                "it",
                f'write "{value}"',
            )
        elif not re.fullmatch(r"0*[1-9][0-9]{0,9}", value, re.ASCII):
            yield Raw(
                work.thing,
                path,
                f"has the time limit {value[:40]!r}; Kueue wants whole seconds above 0 and refuses the job",
                "write seconds, 43200 for 12 hours",
            )


@rule("no-time-limit", "note", "a job without a time limit", looks_at=JOBS, sources=("kueue#13159",))
def no_time_limit(scene: Scene) -> Iterator[Raw]:
    """Nobody behind it can be told when it ends: no ETA, no backfill, and no bound on its GPU-hours."""
    for work in gpu_works(scene):
        if not work.queue or work.kind in (*SERVICES, "Pod", "CronJob") or MAX_EXEC_TIME in work.thing.labels:
            continue
        if work.kind == "Job" and get(work.thing.spec, "activeDeadlineSeconds") is not None:
            continue
        yield Raw(
            work.thing,
            ("metadata", "labels"),
            f"has no time limit: nobody behind it in the queue can be told when its {gpus_words(work)} are free again",
            f"set the label {MAX_EXEC_TIME} (`myriad job new --hours`)",
        )


@rule("bare-pod", "warning", "a GPU pod that nobody makes again", looks_at="Pod", sources=("KAI-Scheduler#84",))
def bare_pod(scene: Scene) -> Iterator[Raw]:
    """Preempting a pod without an owner deletes it for good: nothing goes back to the queue."""
    for work in gpu_works(scene):
        if work.kind == "Pod":
            yield Raw(
                work.thing,
                ("kind",),
                f"is a pod without an owner with {gpus_words(work)}: when it is preempted or its node dies it is gone "
                "for good",
                "wrap it in a batch Job (`myriad job new batch`)",
            )


@rule(
    "eviction-ends-job",
    "warning",
    "an eviction counts as a failure of the job",
    looks_at="Job, PyTorchJob and its like, vcjob",
    sources=("volcano#2560", "volcano#5885", "jobset#1117"),
)
def eviction_ends_job(scene: Scene) -> Iterator[Raw]:
    """A drained node or a preemption uses up the job's retries, or ends it, though it did nothing wrong."""
    for work in gpu_works(scene):
        spec = work.thing.spec
        if work.kind == "Job" and get(spec, "backoffLimit") is not None and whole(spec.get("backoffLimit"), 6) < 6:
            ignores = any(
                rule.get("action") == "Ignore"
                and any(c.get("type") == "DisruptionTarget" for _, c in rows(rule, "onPodConditions"))
                for _, rule in rows(spec, "podFailurePolicy", "rules")
            )
            if not ignores:
                yield Raw(
                    work.thing,
                    ("spec", "backoffLimit"),
                    f"allows {whole(spec.get('backoffLimit'))} failures and counts evicted pods among them: a drained "
                    "node with some of its pods ends the job",
                    "add a podFailurePolicy rule with action Ignore for onPodConditions DisruptionTarget",
                )
        elif work.kind == "VolcanoJob":
            yield from _vcjob_policies(work)


def _vcjob_policies(work: Work) -> Iterator[Raw]:
    places = [("spec",)] + [("spec", "tasks", index) for index, _ in rows(work.thing.spec, "tasks")]
    for place in places:
        policies = rows(get(work.thing.body, *place), "policies")
        events = {text(item, "event") for _, item in policies} | {
            e for _, item in policies for e in texts(item, "events")
        }
        for index, item in policies:
            fatal = text(item, "action") in ("AbortJob", "TerminateJob", "CompleteJob")
            if fatal and text(item, "event") in ("PodFailed", "*") and not events & {"PodEvicted"}:
                yield Raw(
                    work.thing,
                    (*place, "policies", index),
                    f"ends the job when a pod fails ({text(item, 'event')}: {text(item, 'action')}) and says nothing "
                    "of PodEvicted: an evicted pod is seen as failed, and the job is over",
                    "add {event: PodEvicted, action: RestartJob} before it",
                )
