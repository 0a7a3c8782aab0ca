"""What the gate's verdict says on the Node: one annotation, two taints, and nothing of anybody else's. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from myriad.agent.gate import Check, Verdict
from myriad.agent.probe import ProbeResult
from myriad.fleet.labels import GATE_TAINT, PREFIX

Json = dict[str, Any]

UNHEALTHY_TAINT = f"{PREFIX}gpu-unhealthy"
GATE_ANNOTATION = f"{PREFIX}gate"
RUN_ANNOTATION = f"{PREFIX}gate-run"
"""Any new value asks the agent to judge the node afresh, from a container too."""

OWN_TAINTS: Mapping[str, str] = {GATE_TAINT: "", UNHEALTHY_TAINT: "agent"}
"""The gate's taints and the value by which it knows its own: what somebody else set by hand has another."""
_EFFECT = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Record:
    """The annotation of a Node: the verdict and what the agent has to remember over its own restarts.

    Attributes:
        open: whether the node takes work as far as the gate is concerned.
        checks: the verdict.
        since: since when it is open, or closed for this cause (RFC 3339, UTC).
        boot: boot id of the node that it is about.
        was_open: whether the gate was open in this boot before: from then on closing it needs the brake's permission.
        claimed: whether it was closed with the brake's permission.
        held: why the brake keeps it open although checks fail; empty where it does not.
        released: when the brake was last let go, as far as this node knows.
        run: the last request (RUN_ANNOTATION) that was carried out.
        probe: what a container found in this boot.
        baseline: error reports that were dealt with, `UUID/code` to count.
    """

    open: bool = False
    checks: tuple[Check, ...] = ()
    since: str = ""
    boot: str = ""
    was_open: bool = False
    claimed: bool = False
    held: str = ""
    released: str = ""
    run: str = ""
    probe: ProbeResult | None = None
    baseline: Mapping[str, int] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """The checks as a verdict."""
        return Verdict(self.checks)

    def text(self) -> str:
        """The annotation's value: the same record always reads the same, so it is written on change only."""
        body: Json = {"open": self.open}
        for key, value in (
            ("since", self.since), ("boot", self.boot), ("wasOpen", self.was_open), ("claimed", self.claimed),
            ("held", self.held), ("released", self.released), ("run", self.run),
            ("probe", self.probe.as_json() if self.probe else None), ("baseline", dict(sorted(self.baseline.items()))),
        ):  # fmt: skip
            if value:
                body[key] = value
        body["checks"] = [_entry(check) for check in self.checks]
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str | None) -> Record:
        """Read an annotation; an empty record where there is none, or it is not the agent's."""
        try:
            body = json.loads(text or "")
            probe = body.get("probe")
            return cls(
                open=bool(body.get("open")),
                checks=tuple(_check(entry) for entry in body.get("checks") or []),
                since=str(body.get("since") or ""),
                boot=str(body.get("boot") or ""),
                was_open=bool(body.get("wasOpen")),
                claimed=bool(body.get("claimed")),
                held=str(body.get("held") or ""),
                released=str(body.get("released") or ""),
                run=str(body.get("run") or ""),
                probe=ProbeResult.from_json(probe) if probe else None,
                baseline={str(key): int(value) for key, value in (body.get("baseline") or {}).items()},
            )
        except (ValueError, TypeError, AttributeError, KeyError):
            return cls()

    @classmethod
    def of(cls, node: Json) -> Record:
        """The record on a Node."""
        return cls.parse((node["metadata"].get("annotations") or {}).get(GATE_ANNOTATION))


def _entry(check: Check) -> Json:
    entry: Json = {"check": check.check, "ok": check.ok}
    for key in ("expected", "found"):
        if getattr(check, key) is not None:
            entry[key] = getattr(check, key)
    for key in ("cause", "next", "follows"):
        if getattr(check, key):
            entry[key] = getattr(check, key)
    return entry


def _check(entry: Mapping[str, Any]) -> Check:
    return Check(
        str(entry["check"]), entry.get("expected"), entry.get("found"), bool(entry["ok"]),
        str(entry.get("cause") or ""), str(entry.get("next") or ""), str(entry.get("follows") or ""),
    )  # fmt: skip


def own_taints(node: Json) -> set[str]:
    """Keys of the gate's own taints that the Node carries."""
    return {taint["key"] for taint in (node.get("spec") or {}).get("taints") or [] if _is_own(taint)}


def foreign_taints(node: Json) -> list[Json]:
    """Taints of the gate's keys that somebody else set: they are left alone."""
    taints = (node.get("spec") or {}).get("taints") or []
    return [taint for taint in taints if taint["key"] in OWN_TAINTS and not _is_own(taint)]


def _is_own(taint: Mapping[str, Any]) -> bool:
    key = taint["key"]
    return key in OWN_TAINTS and taint.get("effect") == _EFFECT and (taint.get("value") or "") == OWN_TAINTS[key]


def operations(node: Json, record: Record, taints: Collection[str]) -> list[Json]:
    """JSON patch operations that make the Node say what is true; empty where it does.

    The first operation tests the resourceVersion: taints are a list without names, and replacing it must not undo
    somebody else's change.

    Args:
        node: the Node as last seen.
        record: for the annotation.
        taints: keys of the gate's taints that it should carry.
    """
    metadata = node["metadata"]
    found: list[Json] = []
    annotations = metadata.get("annotations")
    text = record.text()
    if annotations is None:
        found.append({"op": "add", "path": "/metadata/annotations", "value": {GATE_ANNOTATION: text}})
    elif annotations.get(GATE_ANNOTATION) != text:
        path = f"/metadata/annotations/{GATE_ANNOTATION.replace('~', '~0').replace('/', '~1')}"
        found.append({"op": "add", "path": path, "value": text})
    current = list((node.get("spec") or {}).get("taints") or [])
    wanted = _tainted(current, taints)
    if wanted != current:
        found.append({"op": "add", "path": "/spec/taints", "value": wanted})
    if not found:
        return []
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}, *found]


def _tainted(current: Iterable[Json], keys: Collection[str]) -> list[Json]:
    kept = [taint for taint in current if not _is_own(taint) or taint["key"] in keys]
    # A key and effect stand once on a Node: where somebody else's stands, the gate's cannot, and need not.
    there = {(taint["key"], taint.get("effect")) for taint in kept}
    for key, value in OWN_TAINTS.items():
        if key in keys and (key, _EFFECT) not in there:
            kept.append({"key": key, "effect": _EFFECT, **({"value": value} if value else {})})
    return kept
