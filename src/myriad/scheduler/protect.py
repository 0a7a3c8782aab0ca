"""Domains that are kept for a gang that has waited too long: which, for how long, and who may still use them. Pure.

A large gang starves in a pool that small jobs keep full: whatever comes free is taken at once. So its nodes are chosen
beforehand: those whose running jobs must end soonest, by the limits that Kueue enforces. They get the taint
`myriad.dev/reserved=<uid of the Workload>`, which Kueue's TAS honours before it gives quota, and drain by attrition:
nobody is evicted. Two kinds of jobs get the toleration through our check: the gang, and jobs whose own limit ends
before the last of those that hold the domain up. docs/adr/0036-protected-domains.md gives the reasons.

Nothing is remembered: what stands is read from the nodes (taint and annotation), so a restart or another leader goes
on where it was. A taint without our annotation, or with another's, is somebody else's and is left alone.

Times are seconds since the epoch; `Holder` says what is known about a running job.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from myriad.scheduler.model import (
    RESERVED_TAINT,
    Gang,
    Toleration,
    level_label,
    level_value,
    place,
)
from myriad.scheduler.round import NO_PASSES, Passes
from myriad.scheduler.snapshot import Snapshot

Json = dict[str, Any]

RESERVED_ANNOTATION = "myriad.dev/reserved"
"""On a node: for whom it is kept and until when, as JSON; with it the taint is ours."""


@dataclass(frozen=True, slots=True)
class Protection:
    """A domain that is kept for one gang.

    Attributes:
        uid: of the gang's Workload; the taint's value.
        workload: `namespace/name` of the Workload; ``job`` of the job, for people.
        nodes: sorted.
        since: when it began; ``until``: when, by limits and grace, the last of its holders is gone; ``expires``: when
            it is given up.
    """

    uid: str
    workload: str
    job: str
    nodes: tuple[str, ...]
    since: float
    until: float
    expires: float

    @property
    def toleration(self) -> Toleration:
        """What lets a pod in."""
        return Toleration(RESERVED_TAINT, "Equal", self.uid, "NoSchedule")

    def annotation(self) -> str:
        """What each node says about it. Equal protections have equal texts."""
        body = {
            "uid": self.uid,
            "workload": self.workload,
            "job": self.job,
            "since": round(self.since),
            "until": round(self.until),
            "expires": round(self.expires),
        }
        return json.dumps(body, sort_keys=True)


def standing(nodes: Iterable[Json]) -> dict[str, Protection]:
    """The protections that stand, by uid, as the nodes say. Raw Node objects."""
    found: dict[str, list[str]] = {}
    bodies: dict[str, Json] = {}
    for node in nodes:
        body = mark_of(node)
        if body is not None and is_marked(node, body["uid"]):
            found.setdefault(body["uid"], []).append(node["metadata"]["name"])
            known = bodies.setdefault(body["uid"], body)
            if body["until"] > known["until"]:
                bodies[body["uid"]] = body
    return {
        uid: Protection(
            uid=uid,
            workload=str(body["workload"]),
            job=str(body["job"]),
            nodes=tuple(sorted(found[uid])),
            since=float(body["since"]),
            until=float(body["until"]),
            expires=float(body["expires"]),
        )
        for uid, body in sorted(bodies.items())
    }


def mark_of(node: Json) -> Json | None:
    """Our annotation on a node; None where there is none or it is not ours to read."""
    text = (node["metadata"].get("annotations") or {}).get(RESERVED_ANNOTATION)
    try:
        body = json.loads(text) if text else None
    except ValueError:
        return None
    if not isinstance(body, dict) or not all(isinstance(body.get(k), str) for k in ("uid", "workload", "job")):
        return None
    return body if all(isinstance(body.get(k), int | float) for k in ("since", "until", "expires")) else None


def is_marked(node: Json, uid: str) -> bool:
    """Whether a node carries the taint of a protection."""
    return any(
        t.get("key") == RESERVED_TAINT and (t.get("value") or "") == uid and t.get("effect") == "NoSchedule"
        for t in (node.get("spec") or {}).get("taints") or []
    )


def operations(node: Json, protection: Protection | None) -> list[Json]:
    """JSON patch operations that make a node say what it should: kept for a protection, or no longer for anybody.

    Only a taint that our annotation names is taken away. The first operation tests the resourceVersion: taints are a
    list without names, and replacing it must not undo somebody else's change. Empty where nothing is to be done.
    """
    metadata = node["metadata"]
    annotations = metadata.get("annotations")
    body = mark_of(node)
    taints = list((node.get("spec") or {}).get("taints") or [])
    wanted = [
        t
        for t in taints
        if not (t.get("key") == RESERVED_TAINT and body is not None and (t.get("value") or "") == body["uid"])
    ]
    path = f"/metadata/annotations/{RESERVED_ANNOTATION.replace('/', '~1')}"
    found: list[Json] = []
    if protection is None:
        if RESERVED_ANNOTATION in (annotations or {}):
            found.append({"op": "remove", "path": path})
    else:
        if any(t.get("key") == RESERVED_TAINT for t in wanted):
            return []  # somebody else keeps this node
        wanted.append({"key": RESERVED_TAINT, "value": protection.uid, "effect": "NoSchedule"})
        text = protection.annotation()
        if annotations is None:
            found.append({"op": "add", "path": "/metadata/annotations", "value": {RESERVED_ANNOTATION: text}})
        elif annotations.get(RESERVED_ANNOTATION) != text:
            found.append({"op": "add", "path": path, "value": text})
    if sorted(map(str, wanted)) != sorted(map(str, taints)):
        found.append({"op": "add", "path": "/spec/taints", "value": wanted})
    if not found:
        return []
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}, *found]


# -- who may use one ---------------------------------------------------------------------------------------------


def latest_end(snapshot: Snapshot, protection: Protection, ends: Mapping[str, float], *, now: float) -> float:
    """When the last of those that hold a protected domain up must end: jobs that end sooner delay nobody.

    It only comes nearer: whoever is let in ends before it.
    """
    mine = {snapshot.index[n] for n in protection.nodes if n in snapshot.index}
    last = now
    for pod in snapshot.pods():
        if snapshot.index.get(pod.node) in mine and not pod.permanent and not pod.terminating:
            last = max(last, min(ends.get(pod.uid, now), protection.until))
    return last


@dataclass(frozen=True, slots=True)
class Doors:
    """The protections that stand, ready to judge who may pass. Made once for each pass.

    Attributes:
        protections: by uid.
        domains: by uid, label and value of the narrowest domain that holds its nodes.
        closes: by uid, the time by which a job that is let in must have ended.
        now: the time.
    """

    protections: Mapping[str, Protection]
    domains: Mapping[str, Mapping[str, str]]
    closes: Mapping[str, float]
    now: float

    @classmethod
    def of(cls, snapshot: Snapshot, stands: Mapping[str, Protection], ends: Mapping[str, float], now: float) -> Doors:
        """From what stands."""
        return cls(
            stands,
            {uid: _domain(snapshot, p.nodes) for uid, p in stands.items()},
            {uid: latest_end(snapshot, p, ends, now=now) for uid, p in stands.items()},
            now,
        )

    def passes(self, gang: Gang, limit_s: float | None) -> Passes:
        """Tolerations for a waiting gang: of its own domain, or of those that it leaves in time."""
        own = self.protections.get(gang.uid)
        if own is not None:
            why = f"{len(own.nodes)} nodes are kept for it"
            return Passes((own.toleration,), self.domains[own.uid], (), why)
        if limit_s is None or not gang.gpus:
            return NO_PASSES
        open_to = [p for uid, p in self.protections.items() if self.now + limit_s <= self.closes[uid]]
        if not open_to:
            return NO_PASSES
        # A pod takes eight tolerations of a check at most (Kueue), and one domain is enough for a job that is let in.
        return Passes((), None, tuple(p.toleration for p in open_to[:4]), "it ends before the domain is needed")


def _domain(snapshot: Snapshot, nodes: Iterable[str]) -> Mapping[str, str]:
    tier, path = snapshot.tier_of(n for n in nodes if n in snapshot.index)
    if tier == "node":
        path = path[: len(snapshot.levels)]
        tier = snapshot.levels[len(path) - 1] if path else "cluster"
    return {} if tier == "cluster" else {level_label(tier): level_value(tier, path)}


def sentence(protection: Protection, snapshot: Snapshot, *, now: float) -> str:
    """What a gang's owner reads about the domain that is kept for it."""
    tier, path = snapshot.tier_of(protection.nodes)
    where = place(path) if tier != "cluster" else "the cluster"
    left = max(0.0, protection.until - now)
    free = "its holders are gone" if not left else f"by limits and grace they are free in {_span(left)} at the latest"
    return f"{len(protection.nodes)} nodes in {where} are kept for it (taint {RESERVED_TAINT}); {free}"


def _span(seconds: float) -> str:
    minutes = math.ceil(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
