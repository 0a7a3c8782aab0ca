"""What a program's text means and what to do about it, where the catalogue of symptoms knows the text. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """Cause as a sentence and the next steps, at most two; none where the catalogue does not know the text."""

    cause: str
    next: str = ""


def advise(text: str, node: str, *, where: str = "gpu") -> Advice:
    """Cause and next step of a fault's text; the text itself as cause where it is no known symptom.

    Args:
        text: what was said; empty gives an empty advice.
        node: the node's name, for commands.
        where: where it was said, as the catalogue names places.
    """
    if not text:
        return Advice("")
    # Imported here: the catalogue costs an agent memory and 0.1 s, and a healthy node never needs it.
    from myriad.symptoms import diagnose

    found = diagnose(text, {"node": node, "where": where})
    if found is None:
        return Advice(text)
    said = (
        found.cause if found.cause.casefold() in text.casefold() else f"{found.cause} ({' '.join(text.split())[:200]})"
    )
    return Advice(said, "; then ".join(" ".join(step.split()) for step in found.next[:2]))
