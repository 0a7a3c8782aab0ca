"""Filter over `myriad.symptoms`: what an error message means."""

from __future__ import annotations

from typing import Any

from myriad.symptoms import diagnose

_OUTPUTS = ("stderr", "stdout", "msg", "exception", "module_stderr", "module_stdout")


def _text(value: Any) -> str:
    """The words of a registered result (its outputs, item by item where it looped), of a list, or of a text."""
    if isinstance(value, dict):
        parts = [_text(value[key]) for key in _OUTPUTS if value.get(key)]
        return "\n".join([*parts, *(_text(item) for item in value.get("results") or ())])
    if isinstance(value, list):
        return "\n".join(_text(item) for item in value)
    return "" if value is None else str(value)


def diagnosis(
    value: Any,
    node: str | None = None,
    inventory: str | None = None,
    where: str | None = None,
    otherwise: str = "",
) -> str:
    """Cause and next step in one sentence; `otherwise` where no symptom of the catalogue is in the text."""
    context = {"node": node, "inventory": inventory, "where": where}
    found = diagnose(_text(value), {name: str(word) for name, word in context.items() if word})
    return found.sentence() if found else otherwise


class FilterModule:
    """The filter of the collection that explains errors."""

    def filters(self) -> dict[str, Any]:
        """Filters by name."""
        return {"diagnosis": diagnosis}
