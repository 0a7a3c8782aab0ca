"""From raw variables to typed parts: every wrong value becomes a sentence, and the rest is kept for further checks.

A value that was refused is reported and taken out, so that its default stands in and the checks between parts still
see everything else: a wrong quota never hides an unknown cohort of the same team.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from myriad.fleet import model, model_policy, names
from myriad.fleet.problems import Problem
from myriad.fleet.source import KeyPath, RawInventory

Part = TypeVar("Part", bound=BaseModel)

# Stands in for required values that are missing or wrong, after the problem was reported.
_PLACEHOLDERS: dict[tuple[type[BaseModel], str], Any] = {
    (model.Pool, "model"): "H100-SXM5-80GB",
    (model.GpuHours, "budget"): 1,
    (model.WarmImage, "image"): "unknown",
    (model.Rail, "interface"): "unknown",
}


@dataclass(slots=True)
class Parts:
    """The typed parts of a description, each without what was refused."""

    cluster: model.Cluster = field(default_factory=model.Cluster)
    pools: dict[str, model.Pool] = field(default_factory=dict)
    teams: dict[str, model.Team] = field(default_factory=dict)
    cohorts: dict[str, model.Cohort] = field(default_factory=dict)
    priorities: dict[str, int] = field(default_factory=dict)
    preemption: model.Preemption = field(default_factory=model.Preemption)
    images: model.Images = field(default_factory=model.Images)
    topology: model.Topology = field(default_factory=model.Topology)
    fabrics: dict[str, model.Fabric] = field(default_factory=dict)
    burn_in: dict[str, model.BurnIn] = field(default_factory=dict)
    protection: model_policy.Protection = field(default_factory=model_policy.Protection)
    notify: dict[str, model_policy.NotifyTarget] = field(default_factory=dict)
    idle: model_policy.Idle = field(default_factory=model_policy.Idle)
    admission: model_policy.Admission = field(default_factory=model_policy.Admission)
    problems: list[Problem] = field(default_factory=list)


def dotted(path: KeyPath) -> str:
    """`myriad_teams.vision.namespaces[0]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else (f".{step}" if text else str(step))
    return text


def read_parts(raw: RawInventory) -> Parts:
    """Type every description variable of `raw`; problems stand in the result, nothing is raised."""
    parts = Parts()
    reader = _Reader(raw, parts.problems)
    parts.cluster = reader.one("myriad_cluster", model.Cluster)
    parts.preemption = reader.one("myriad_preemption", model.Preemption)
    parts.images = reader.one("myriad_images", model.Images)
    parts.topology = reader.one("myriad_topology", model.Topology)
    parts.fabrics = reader.named("myriad_fabric", model.Fabric)
    parts.burn_in = reader.named("myriad_burn_in", model.BurnIn)
    parts.pools = reader.named("myriad_pools", model.Pool)
    parts.teams = reader.named("myriad_teams", model.Team)
    parts.cohorts = reader.named("myriad_cohorts", model.Cohort)
    parts.priorities = reader.priorities()
    parts.protection = reader.one("myriad_protection", model_policy.Protection)
    parts.notify = reader.named("myriad_notify", model_policy.NotifyTarget)
    parts.idle = reader.one("myriad_idle", model_policy.Idle)
    parts.admission = reader.one("myriad_admission", model_policy.Admission)
    return parts


_EXAMPLES = {
    "myriad_cluster": "{name: prod}",
    "myriad_pools": "{h100: {model: H100-SXM5-80GB}}",
    "myriad_teams": "{vision: {namespaces: [vision], quota: {h100: 8}}}",
    "myriad_cohorts": "{research: {}}",
    "myriad_priorities": "{urgent: 1000, normal: 500}",
    "myriad_preemption": "{grace_s: 300}",
    "myriad_images": "{warm: [{image: gang-check}]}",
    "myriad_topology": "{switches: {tor-r1: hall1/b1/r1}}",
    "myriad_fabric": "{h100: {kind: roce, rails: [{interface: ens1f0np0}]}}",
    "myriad_burn_in": "{h100: {gb_s: 300}}",
    "myriad_protection": "{after_s: 7200}",
    "myriad_notify": "{vision-oncall: {kind: webhook, url: https://alerts.example.com/vision}}",
    "myriad_idle": "{threshold_percent: 5, after_s: 1800}",
    "myriad_admission": "{rules: {image-digest: deny}}",
}


class _Reader:
    def __init__(self, raw: RawInventory, problems: list[Problem]) -> None:
        self.raw = raw
        self.problems = problems

    def report(self, path: KeyPath, rule: str, message: str) -> None:
        self.problems.append(Problem(rule, message, key=dotted(path), origin=self.raw.origin_of(path)))

    def mapping(self, variable: str) -> dict[str, Any]:
        value = self.raw.variables.get(variable)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.report(
                (variable,), "shape", f"is {names.show(value)}; it is a mapping, for example {_EXAMPLES[variable]}"
            )
            return {}
        return {key: copy.deepcopy(inner) for key, inner in value.items()}

    def one(self, variable: str, kind: type[Part]) -> Part:
        return self.part((variable,), self.mapping(variable), kind)

    def named(self, variable: str, kind: type[Part]) -> dict[str, Part]:
        result: dict[str, Part] = {}
        for name, value in self.mapping(variable).items():
            fault = names.dns_label_fault(name)
            if fault is not None:
                self.report((variable, name), "name", fault)
            if not isinstance(name, str):
                continue
            if value is None:
                value = {}
            if not isinstance(value, Mapping):
                self.report((variable, name), "shape", f"is {names.show(value)}; {self.shape_of(kind)}")
                continue
            result[name] = self.part((variable, name), dict(value), kind)
        return result

    def priorities(self) -> dict[str, int]:
        given = self.mapping("myriad_priorities")
        if self.raw.variables.get("myriad_priorities") is None:
            return dict(model.DEFAULT_PRIORITIES)
        return self.typed(("myriad_priorities",), given, dict[model.PriorityName, model.Priority], None)  # type: ignore[no-any-return]

    def part(self, path: KeyPath, value: dict[str, Any], kind: type[Part]) -> Part:
        return self.typed(path, value, kind, kind)  # type: ignore[no-any-return]

    def typed(self, path: KeyPath, value: dict[str, Any], annotation: Any, kind: type[BaseModel] | None) -> Any:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        # Each round takes out what was refused; a round without an error ends it. Values nest three deep.
        reported: set[tuple[KeyPath, str]] = set()
        for _ in range(8):
            try:
                return adapter.validate_python(value)
            except ValidationError as error:
                for fault in error.errors(include_url=False):
                    loc = fault["loc"]
                    where = loc[:-1] if loc[-1] == "[key]" else loc
                    message = self.sentence(fault, where, kind)
                    if (where, message) not in reported:
                        reported.add((where, message))
                        self.report(path + where, _rule(fault["type"], where), message)
                    _take_out(value, where, kind)
                value = _swept(value)
        # Everything was said; what stands in is what nothing was written for.
        return adapter.validate_python(
            {field: stand for (owner, field), stand in _PLACEHOLDERS.items() if owner is kind}
        )

    def sentence(self, fault: Any, where: KeyPath, kind: type[BaseModel] | None) -> str:
        code = fault["type"]
        given = fault.get("input")
        if code == "description":
            return str(fault["ctx"]["sentence"])
        if code == "extra_forbidden":
            allowed = _fields_at(kind, where[:-1])
            best = names.closest(str(where[-1]), allowed)
            offer = f'; did you mean "{best}"?' if best else ""
            return f"is not a key that is known here{offer} (allowed: {', '.join(allowed)})"
        if code == "missing":
            return "is missing; " + _MISSING.get(str(where[-1]), "add it")
        if code == "too_short":
            return "is empty; name at least one level, for example [room, block, rack]"
        if code == "too_long":
            return "has too many levels; Kueue takes 15 and the host name"
        if code == "invalid_key":
            return "is not a key that is known here: keys are text"
        if code in {"dict_type", "model_type", "model_attributes_type", "mapping_type"}:
            field = next((str(step) for step in reversed(where) if step in _SHAPES), "")
            return f"is {names.show(given)}; {_SHAPES.get(field, 'it is a mapping, for example {key: value}')}"
        if code == "string_type":
            return f"is {names.show(given)}; write text, in quotes where it looks like a number"
        return f"is {names.show(given)}, which does not fit here: {fault['msg']}"

    def shape_of(self, kind: type[BaseModel]) -> str:
        return f"it is a mapping with the keys {', '.join(kind.model_fields)}"


def _rule(code: str, where: KeyPath) -> str:
    """Stable name for programs: `unknown-key`, `missing`, or the field that has the wrong value."""
    named = {"extra_forbidden": "unknown-key", "invalid_key": "unknown-key", "missing": "missing"}
    return named.get(code) or next((str(step).replace("_", "-") for step in where if isinstance(step, str)), "shape")


_BY_POOL = "it is GPUs by pool, for example {h100: 8}"
_SHAPES = {
    "quota": _BY_POOL,
    "borrow": _BY_POOL,
    "lend": _BY_POOL,
    "reserve": _BY_POOL,
    "gpu_hours": "it is budgets by pool, for example {h100: {budget: 5000}}",
    "projects": "it is projects by name, for example {llm: {gpu_hours: {h100: {budget: 5000}}}}",
}
_MISSING = {
    "model": "name the GPU model, for example H100-SXM5-80GB",
    "budget": "give the GPU-hours of the period, for example 5000",
    "image": "name the image, for example gang-check",
    "interface": "name the network interface, for example ens1f0np0",
}


def _fields_at(kind: type[BaseModel] | None, where: KeyPath) -> list[str]:
    """Keys that are allowed in the part at `where`."""
    inner: dict[str, type[BaseModel]] = {
        "projects": model.Project,
        "gpu_hours": model.GpuHours,
        "warm": model.WarmImage,
        "rails": model.Rail,
    }
    inner["sharing"] = model.Sharing
    inner["projects"] = model.Project
    for step in where:
        if isinstance(step, str) and step in inner:
            kind = inner[step]
    return list(kind.model_fields) if kind is not None else []


def _take_out(value: Any, where: KeyPath, kind: type[BaseModel] | None) -> None:
    """Remove what stands at `where`, or put a placeholder where something is required."""
    holder = value
    for step in where[:-1]:
        try:
            # Tuples and foreign mappings are replaced by plain ones on the way down, so that they can be changed.
            child = holder[step]
            if isinstance(child, tuple | list):
                child = list(child)
            elif isinstance(child, Mapping):
                child = dict(child)
            holder[step] = child
            holder = child
        except (KeyError, IndexError, TypeError):
            return
    last = where[-1]
    # A part of a list or mapping stands two steps below its name: gpu_hours.h100.budget, warm[0].image.
    inside: dict[str, type[BaseModel]] = {"gpu_hours": model.GpuHours, "warm": model.WarmImage, "rails": model.Rail}
    owner = inside.get(str(where[-3])) if len(where) > 2 else kind if len(where) == 1 else None
    placeholder = _PLACEHOLDERS.get((owner, str(last))) if owner is not None else None
    if isinstance(holder, list):
        holder[int(last)] = _REFUSED
    elif placeholder is not None:
        holder[last] = placeholder
    else:
        # A key that is no text (null, a date) stands in the error as text.
        for key in [key for key in holder if key == last or str(key) == str(last)]:
            del holder[key]


_REFUSED = object()
"""Marks refused list items until all of a round are known: taking them out at once would shift the others."""


def _swept(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _swept(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_swept(inner) for inner in value if inner is not _REFUSED]
    return value
