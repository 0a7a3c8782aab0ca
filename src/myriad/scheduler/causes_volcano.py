"""What Volcano holds against a job: its PodGroup's phase and conditions, and its queue, resource by resource. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from myriad.scheduler.causes import Cause, Evidence, _amount, annotations_of, templates_of
from myriad.scheduler.objects import seconds_since

Json = dict[str, Any]

GROUP_ANNOTATION = "scheduling.k8s.io/group-name"
SESSION_S = 1.0
_SILENT_S = 10.0
"""A PodGroup without a phase for longer was looked at by no session of Volcano (a session takes about a second)."""


def volcano_causes(evidence: Evidence, now: datetime) -> list[Cause]:
    """Causes from the PodGroups and Queues that concern the job; [] where Volcano is not installed or not used."""
    schedulers = {
        str((t.get("spec") or {}).get("schedulerName") or "") for _, _, t in templates_of(evidence.kind, evidence.job)
    } | {str((p.get("spec") or {}).get("schedulerName") or "") for p in evidence.pods}
    schedulers -= {""}
    if evidence.pod_groups is None:
        if "volcano" in schedulers and "podgroups" not in evidence.unread:
            return [
                Cause(
                    "volcano",
                    "its pods ask for the scheduler volcano, and the cluster has no Volcano",
                    ("remove schedulerName from the job, or install Volcano",),
                    never=True,
                )
            ]
        return []
    found: list[Cause] = []
    if evidence.pod_groups and schedulers and "volcano" not in schedulers:
        group = evidence.pod_groups[0]["metadata"]["name"]
        found.append(
            Cause(
                "volcano",
                f"PodGroup {group} asks for a gang, but its pods go to the scheduler {', '.join(sorted(schedulers))}, "
                "which binds them one by one",
                ("set schedulerName: volcano in the pod templates",),
            )
        )
    for group in evidence.pod_groups:
        found.extend(_group_causes(group, evidence, now))
    return found


def _group_causes(group: Json, evidence: Evidence, now: datetime) -> list[Cause]:
    name, spec, status = group["metadata"]["name"], group.get("spec") or {}, group.get("status") or {}
    phase = str(status.get("phase") or "")
    age_s = seconds_since(str(group["metadata"].get("creationTimestamp") or ""), now)
    if phase in ("Running", "Completed"):
        return []  # an older condition of a group that runs is stale (volcano#4971)
    if not phase:
        if age_s <= _SILENT_S:
            return []
        return [
            Cause(
                "volcano",
                f"Volcano has not looked at PodGroup {name} since it came {age_s:.0f} s ago: it has no phase",
                (
                    "look at Volcano: kubectl -n volcano-system get pods; "
                    "kubectl -n volcano-system logs deploy/volcano-scheduler",
                ),
            )
        ]
    found = []
    members = int(spec.get("minMember") or 0)
    pods = [p for p in evidence.pods if annotations_of(p).get(GROUP_ANNOTATION) == name]
    if members and pods and len(pods) < members:
        found.append(
            Cause(
                "volcano",
                f"PodGroup {name} waits for {members} pods (minMember) and {len(pods)} exist",
                ("make minMember at most the number of pods that the job makes at once",),
                {"min_member": members, "pods": len(pods)},
            )
        )
    queue_name = str(spec.get("queue") or "default")
    queue = next((q for q in evidence.volcano_queues or () if q["metadata"]["name"] == queue_name), None)
    if queue is None and evidence.volcano_queues is not None:
        found.append(
            Cause(
                "volcano",
                f"PodGroup {name} names the Volcano queue {queue_name}, which does not exist",
                ("create the queue",),
                never=True,
            )
        )
    elif queue is not None:
        found.extend(_queue_causes(group, queue))
    if not found:
        said = next(
            (
                c
                for c in reversed(status.get("conditions") or [])
                if c.get("status") == "True" and c.get("type") == "Unschedulable"
            ),
            None,
        )
        message = " ".join(str((said or {}).get("message") or "").split())
        where = {
            "Pending": "held at enqueue: Volcano's preemption cannot act for it",
            "Inqueue": "let in, not bound yet",
        }.get(phase, phase)
        found.append(Cause("volcano", f"PodGroup {name} is {phase} ({where})" + (f": {message}" if message else "")))
    return found


def _queue_causes(group: Json, queue: Json) -> list[Cause]:
    name, spec, status = queue["metadata"]["name"], queue.get("spec") or {}, queue.get("status") or {}
    state = str(status.get("state") or "Open")
    if state != "Open":
        return [Cause("volcano", f"the Volcano queue {name} is {state}", (f"open the queue {name}",))]
    asked = (group.get("spec") or {}).get("minResources") or {}
    used = status.get("allocated") or {}
    found = []
    for limit_name, words in (("capability", "capability"), ("deserved", "deserved share")):
        limits: Mapping[str, Any] = spec.get(limit_name) or {}
        for resource, limit in sorted(limits.items(), key=lambda item: not item[0].endswith("/gpu")):
            need, has, most = _amount(asked.get(resource, 0)), _amount(used.get(resource, 0)), _amount(limit)
            if need and has + need > most:
                found.append(
                    Cause(
                        "volcano",
                        f"the {words} of the Volcano queue {name} leaves {max(0.0, most - has):g} of {most:g} "
                        f"{resource} ({has:g} in use); the gang needs {need:g}",
                        (f"wait for jobs of the queue to end, or raise its {limit_name}",),
                        {"resource": resource, limit_name: most, "allocated": has, "asked": need},
                        never=need > most and limit_name == "capability",
                    )
                )
        if found:
            break
    return found
