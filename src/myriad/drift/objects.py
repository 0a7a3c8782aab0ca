"""A prediction of `kube_objects` as differences, field by field. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

# Beyond so many fields of one object the object itself is the finding.
_FIELDS = 12
_TEXT = 120
_MISSING = object()


def differences(set_name: str, diff: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """What a dry run would change, as role, kind, item, expected and found.

    Args:
        set_name: the set of objects.
        diff: objects as YAML, `before` as they are and `after` as they should be; "" where there is none.
    """
    found = []
    for entry in diff:
        item = str(entry.get("after_header") or "")
        live, wanted = _read(entry.get("before")), _read(entry.get("after"))
        if live is None or wanted is None:
            expected, is_ = ("present", "absent") if live is None else ("absent", "present")
            found.append({"role": set_name, "kind": "object", "item": item, "expected": expected, "found": is_})
            continue
        fields = list(_compare(wanted, live, ""))
        if not fields:
            found.append({"role": set_name, "kind": "object", "item": item, "expected": "applied by this version",
                          "found": "recorded by another one"})  # fmt: skip
        for path, expected, is_ in fields[:_FIELDS]:
            found.append(
                {"role": set_name, "kind": "object", "item": f"{item} {path}", "expected": expected, "found": is_}
            )
        if len(fields) > _FIELDS:
            more = f"{len(fields) - _FIELDS} further fields"
            found.append({"role": set_name, "kind": "object", "item": item, "expected": more, "found": "others"})
    return found


def _read(text: str | None) -> Any:
    return yaml.safe_load(text) if text else None


def _compare(wanted: Any, live: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """(path, wanted, live) of each leaf that differs."""
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        for key in sorted({*wanted, *live}, key=str):
            one, other = wanted.get(key, _MISSING), live.get(key, _MISSING)
            yield from _compare(one, other, f"{path}.{key}" if path else str(key))
    elif isinstance(wanted, list) and isinstance(live, list) and len(wanted) == len(live):
        for number, (one, other) in enumerate(zip(wanted, live, strict=True)):
            named = one.get("name") if isinstance(one, Mapping) else None
            yield from _compare(one, other, f"{path}[{named or number}]")
    elif wanted != live:
        yield path, _text(wanted), _text(live)


def _text(value: Any) -> str:
    if value is _MISSING:
        return "absent"
    text = value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True, width=10_000)
    text = " ".join(text.replace("\n...", "").split())
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}..."
