"""Notices as people read them. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from myriad.scheduler.explain import duration, ordinal
from myriad.scheduler.notices.facts import Eviction, Party, moment

_EVENT_BYTES = 1020
"""An Event's message holds 1024."""


def notice(e: Eviction, *, details: str = "") -> str:
    """The whole notice, two lines.

    Args:
        e: what happened.
        details: where to read more: an address, or a command.
    """
    lines = [first_line(e)]
    second = [words for words in (_saving(e), _at_risk(e), _afterwards(e), _again(e)) if words]
    if second:
        lines.append(" ".join(second) + (f"     details: {details}" if details else ""))
    return "\n".join(lines)


def event_message(e: Eviction, *, details: str = "") -> str:
    """The notice on one line, as long as an Event may be."""
    text = " ".join(notice(e, details=details).split())
    if len(text.encode()) <= _EVENT_BYTES:
        return text
    return text.encode()[: _EVENT_BYTES - 3].decode(errors="ignore") + "..."


def subject(e: Eviction) -> str:
    """A title for mail and chat."""
    what = "was preempted" if e.is_preemption else "was stopped"
    return f"{e.victim.job} ({e.victim.team or e.victim.namespace}) {what}"


def first_line(e: Eviction) -> str:
    """What happens to the job, and for whom or why."""
    who = f"Your job {e.victim.job} ({e.victim.team or e.victim.namespace})"
    if e.late:
        return f"{who} was stopped before {clock(e.at)} {_purpose(e)}. Nobody could tell it then."
    if not e.pods and e.started_at and not e.victim.gpus:
        return f"{who} is stopping {_purpose(e)}."
    if not e.pods:
        return f"{who} has lost its place {_purpose(e)}. None of its pods ran, so nothing is lost."
    when = f"at {clock(e.kill_at, e.at)}" if e.exact else f"at about {clock(e.kill_at, e.at)}"
    return f"{who} is stopping, and will be killed {when}, {_purpose(e)}."


def _purpose(e: Eviction) -> str:
    if e.is_preemption:
        return f"to make room for {preemptor_words(e)}"
    return because(e.reason, e.message)


def preemptor_words(e: Eviction) -> str:
    """Who takes the place, with priority and policy in brackets."""
    p = e.preemptor or Party()
    if p.job:
        name = f"{p.team or p.namespace}/{p.job}"
    elif p.queue:
        name = f"a job of queue {p.queue} that is gone already"
    else:
        name = "a job that is gone already"
    inside = [words for words in (_priority(p), policy_words(e)) if words]
    return f"{name} ({', '.join(inside)})" if inside else name


def _priority(p: Party) -> str:
    if p.priority_class:
        return f"priority {p.priority_class}"
    return f"priority {p.priority}" if p.job else ""


def policy_words(e: Eviction) -> str:
    """By which rule, with the numbers."""
    mine = e.victim.team or e.victim.namespace
    theirs = e.preemptor.team if e.preemptor else ""
    if e.policy == "InCohortReclamation":
        if e.borrowed:
            return f"reclaiming its own quota: {e.reclaimed} of the {e.borrowed} {e.gpu_name} that {mine} borrowed"
        return f"reclaiming its own quota, which {mine} had borrowed"
    if e.policy == "InClusterQueue":
        yours = e.victim.priority_class or str(e.victim.priority)
        return f"which goes before {yours} in the same queue"
    if e.policy == "InCohortFairSharing":
        return f"fair sharing: {mine} holds more than its share, {theirs or 'the other team'} less"
    if e.policy == "InCohortReclaimWhileBorrowing":
        return f"both borrow in the same cohort, and among borrowers the priority decides: yours is {e.victim.priority}"
    return ""


_BECAUSE = {
    "PodsReadyTimeout": "because its pods were not all ready in time after it was admitted",
    "AdmissionCheck": "because an admission check took its answer back",
    "ClusterQueueStopped": "because its ClusterQueue was stopped",
    "LocalQueueStopped": "because its queue was stopped",
    "NodeFailures": "because nodes that it ran on failed and could not be replaced",
    "DeactivatedDueToMaximumExecutionTimeExceeded": "because it has run for as long as its limit allows",
    "DeactivatedDueToRequeuingLimitExceeded": "because it was started and stopped too often without becoming ready",
    "Deactivated": "because it was deactivated (spec.active: false on its Workload)",
}


def because(reason: str, message: str) -> str:
    """Why a job was evicted that made room for nobody, with Kueue's own words where they say more."""
    said = message.strip().rstrip(".")
    words = _BECAUSE.get(reason) or f"because Kueue evicted it ({reason or said or 'no reason given'})"
    return f"{words} ({said})" if said and reason in ("PodsReadyTimeout", "AdmissionCheck", "NodeFailures") else words


def _saving(e: Eviction) -> str:
    if not e.pods or e.late:
        return ""
    if not e.grace_s:
        return "It has no time to save: its pods ask for a grace of 0 s."
    sent = f"SIGTERM was sent at {clock(e.sigterm_at, e.at)}" if e.exact else "SIGTERM is being sent now"
    return f"It has {e.grace_s} s to save ({sent})."


def _at_risk(e: Eviction) -> str:
    if not e.pods or not e.victim.gpus:
        return ""
    gpus = f"{e.victim.gpus} GPUs" if e.victim.gpus != 1 else "1 GPU"
    cost = f"about {duration(e.at_risk_s)} of {gpus} ({gpu_hours(e.at_risk_gpu_h)})"
    cost += " are at risk if it does not save" if not e.late else " were at risk"
    if e.last_checkpoint and (moment(e.last_checkpoint) or 0) and e.last_checkpoint < e.started_at:
        return f"No checkpoint since it started at {clock(e.started_at, e.at)}, so {cost}."
    if e.last_checkpoint:
        return f"Last checkpoint {clock(e.last_checkpoint, e.at, seconds=False)}, so {cost}."
    return f"It has reported no checkpoint, so {cost}."


def _afterwards(e: Eviction) -> str:
    if e.reason.startswith("Deactivated"):
        return "It does not go back to the queue: it stays out until its owner submits or activates it again."
    if e.late:
        return ""
    place = []
    if e.position is not None:
        place.append(ordinal(e.position))
    if e.eta_s is not None:
        low, high = e.eta_low_s, e.eta_high_s
        between = f", {duration(low)} to {duration(high)}" if low is not None and high is not None else ""
        place.append(f"about {duration(e.eta_s)}{between}")
    return f"It goes back to the queue ({', '.join(place)})." if place else "It goes back to the queue."


def _again(e: Eviction) -> str:
    return f"This is the {ordinal(e.count)} time." if e.count > 1 else ""


def gpu_hours(hours: float) -> str:
    """`0.5 GPU-hours`, with as many digits as matter."""
    if hours >= 10:
        return f"{hours:,.0f} GPU-hours"
    return f"{hours:.1f} GPU-hours" if hours >= 0.05 else f"{hours:.2f} GPU-hours"


def clock(text: str, base: str = "", *, seconds: bool = True) -> str:
    """A time of day in UTC; with the date where it is another day than `base`."""
    at = moment(text)
    if at is None:
        return "an unknown time"
    day = moment(base)
    form = "%H:%M:%S" if seconds else "%H:%M"
    if day is None or at.date() != day.date():
        form = f"%Y-%m-%d {form}"
    return f"{at:{form}} UTC" if seconds else f"{at:{form}}"


def planned(
    job: Party, *, by: str, because_of: str, at: datetime, grace_s: int, now: datetime, at_risk_gpu_h: float | None
) -> str:
    """What is said before an eviction that is planned.

    Args:
        job: whose.
        by: what is going to ask it to leave, such as `drain of gpu12`.
        because_of: why, as the end of a sentence that begins with "because".
        at: when it is asked to leave at the latest.
        grace_s: time that it has from then on.
        now: the time.
        at_risk_gpu_h: what it would lose now, None where not known.
    """
    rest = max(timedelta(0), at - now).total_seconds()
    lose = (
        "" if at_risk_gpu_h is None else f" Without a new checkpoint it would lose {gpu_hours(at_risk_gpu_h)} by now."
    )
    return (
        f"Your job {job.job} ({job.team or job.namespace}) will be asked to leave at {at:%H:%M:%S} UTC "
        f"(in {duration(rest)}): {by}, because {because_of}.\n"
        f"It has {grace_s} s to save from then on.{lose} A checkpoint before that costs least; "
        f"`kubectl annotate job {job.job} -n {job.namespace} myriad.dev/may-leave=now` lets it go at once."
    )
