"""What differs between two locks, by what a person decides about: versions, pins, sources, images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from myriad.stack.lock import Lock


@dataclass(frozen=True, kw_only=True)
class Change:
    """One difference. `field` is "" when a whole component came or went; values are JSON-like, None where absent."""

    component: str
    kind: Literal["added", "removed", "version", "changed"]
    field: str = ""
    old: Any = None
    new: Any = None

    def __str__(self) -> str:
        match self.kind:
            case "added":
                return f"{self.component}: added, {self.new}"
            case "removed":
                return f"{self.component}: removed, was {self.old}"
            case "version":
                return f"{self.component}: {self.old} -> {self.new}"
            case _:
                return f"{self.component}: {self.field} {_show(self.old)} -> {_show(self.new)}"


def _show(value: Any) -> str:
    if value is None:
        return "(nothing)"
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."


def diff_locks(old: Lock, new: Lock) -> list[Change]:
    """All changes from `old` to `new`, in the order of the components' names."""
    changes = []
    if old.go != new.go:
        changes.append(Change(component="go", kind="version", old=old.go, new=new.go))
    for name in sorted(old.components.keys() | new.components.keys()):
        before, after = old.components.get(name), new.components.get(name)
        if before is None and after is not None:
            changes.append(Change(component=name, kind="added", new=after.version))
        elif after is None and before is not None:
            changes.append(Change(component=name, kind="removed", old=before.version))
        elif before is not None and after is not None:
            if before.version != after.version:
                changes.append(Change(component=name, kind="version", old=before.version, new=after.version))
            flat_before = _flat(before.model_dump(mode="json", exclude={"version", "about"}))
            flat_after = _flat(after.model_dump(mode="json", exclude={"version", "about"}))
            for field in sorted(flat_before.keys() | flat_after.keys()):
                if flat_before.get(field) != flat_after.get(field):
                    one, other = flat_before.get(field), flat_after.get(field)
                    changes.append(Change(component=name, kind="changed", field=field, old=one, new=other))
    return changes


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings and lists as dotted keys; empty ones vanish."""
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = [
            (item["path"] if isinstance(item, dict) and "path" in item else i, item) for i, item in enumerate(value)
        ]
    else:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in items:
        flat |= _flat(item, f"{prefix}.{key}" if prefix else str(key))
    return flat
