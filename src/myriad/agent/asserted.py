"""Labels and taints of a Node that the agent asserts, with what it wrote before: nothing of anybody else's. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from myriad.fleet.labels import PREFIX
from myriad.fleet.portrait import Taint

Json = dict[str, Any]

ASSERTED_ANNOTATION = f"{PREFIX}asserted"
"""Keys of the labels and taints that the agent wrote, so that it takes away its own when they are wanted no more."""


def operations(node: Json, labels: Mapping[str, str], taints: Sequence[Taint], *, complete: bool) -> list[Json]:
    """JSON patch operations that make the Node carry `labels` and `taints`; empty where it does.

    The first operation tests the resourceVersion: taints are a list without names, and replacing it must not undo
    somebody else's change.

    Args:
        complete: False where the GPUs could not be asked: labels that are then missing are left as they were.
    """
    metadata = node["metadata"]
    current: Mapping[str, str] = metadata.get("labels") or {}
    before_labels, before_taints = _asserted(node)
    gone = {key for key in before_labels - labels.keys() if key in current} if complete else set()
    found: list[Json] = []
    if metadata.get("labels") is None and labels:
        found.append({"op": "add", "path": "/metadata/labels", "value": dict(labels)})
    else:
        found += [_add("labels", key, value) for key, value in labels.items() if current.get(key) != value]
        found += [{"op": "remove", "path": f"/metadata/labels/{_escaped(key)}"} for key in sorted(gone)]
    have: list[Json] = list((node.get("spec") or {}).get("taints") or [])
    want = _tainted(have, taints, before_taints)
    if want != have:
        found.append({"op": "add", "path": "/spec/taints", "value": want})
    kept = before_labels if not complete else set()
    text = _text(kept | labels.keys(), {_name(taint.key, taint.effect) for taint in taints})
    annotations = metadata.get("annotations")
    if annotations is None:
        found.append({"op": "add", "path": "/metadata/annotations", "value": {ASSERTED_ANNOTATION: text}})
    elif annotations.get(ASSERTED_ANNOTATION) != text:
        found.append(_add("annotations", ASSERTED_ANNOTATION, text))
    if not found:
        return []
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}, *found]


def _asserted(node: Json) -> tuple[set[str], set[str]]:
    text = (node["metadata"].get("annotations") or {}).get(ASSERTED_ANNOTATION)
    try:
        body = json.loads(text or "{}")
        return set(body.get("labels") or ()), set(body.get("taints") or ())
    except (ValueError, AttributeError, TypeError):
        return set(), set()


def _text(labels: set[str], taints: set[str]) -> str:
    return json.dumps({"labels": sorted(labels), "taints": sorted(taints)}, separators=(",", ":"))


def _tainted(have: Sequence[Json], wanted: Sequence[Taint], before: set[str]) -> list[Json]:
    names = {_name(taint.key, taint.effect) for taint in wanted}
    dropped = before - names
    kept = [taint for taint in have if _name(taint["key"], str(taint.get("effect"))) not in dropped]
    there = {_name(taint["key"], str(taint.get("effect"))) for taint in kept}
    for taint in wanted:
        if _name(taint.key, taint.effect) not in there:
            kept.append({"key": taint.key, "effect": taint.effect, **({"value": taint.value} if taint.value else {})})
    return kept


def _name(key: str, effect: str) -> str:
    return f"{key}:{effect}"


def _add(field: str, key: str, value: str) -> Json:
    return {"op": "add", "path": f"/metadata/{field}/{_escaped(key)}", "value": value}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
