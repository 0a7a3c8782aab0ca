"""What a build reports while it works: small values for a progress display, a log, or nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Event:
    """One step of a build.

    Attributes:
        state: `start`, `progress`, `done` (made now), `cached` (was there), `left_out` (optional and not to be had),
            `note` (a sentence).
        what: the artifact, image or module that it is about.
        how: `release`, `module`, `package`, `local`, `image`, or "".
        seconds: how long it took, for `done`.
        what, for `progress` of a Go build: a phrase with the binaries and counts of modules and packages.
        done_bytes, total_bytes: for `progress` of a download; total is None when the server does not say.
        text: a sentence for people, for `left_out` and `note`.
    """

    state: Literal["start", "progress", "done", "cached", "left_out", "note"]
    what: str
    how: str = ""
    seconds: float = 0.0
    done_bytes: int = 0
    total_bytes: int | None = None
    text: str = ""


OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """An OnEvent that reports to nobody."""


def plain_line(event: Event) -> str | None:
    """The event as one plain line, or None for those that a log does not need."""
    verb = {"release": "downloaded", "image": "wrote image"}.get(event.how, "built")
    if event.how == "package":
        verb = "unpacked"
    match event.state:
        case "done":
            return f"{verb} {event.what} {event.seconds:.0f} s" if event.seconds >= 1 else f"{verb} {event.what}"
        case "left_out":
            return f"{event.what}: {event.text}"
        case "note":
            return event.text
        case "start" if event.how == "module":
            return f"building {event.what}"
        case _:
            return None
