"""What a person sees while the lab comes up: live on a terminal, plain lines elsewhere, the same words in both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

NAME_WIDTH, TEXT_WIDTH = 16, 78


@dataclass
class Phase:
    """A phase that runs: what it says at its end, and what it is doing now."""

    name: str
    started: float
    result: str = ""
    detail: str = ""
    notes: list[str] = field(default_factory=list)
    ended: float | None = None

    @property
    def seconds(self) -> float:
        """How long it took, or has taken so far."""
        return (self.ended or time.monotonic()) - self.started


def duration(seconds: float) -> str:
    """`0.4 s`, `18 s` or `11 m 40 s`."""
    if seconds < 0.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 100 else f"{whole // 60} m {whole % 60} s"


def row(name: str, text: str, seconds: float | None = None) -> str:
    """One line of the report: name, text, and the time at the right where it fits."""
    line = f"{name:<{NAME_WIDTH}} {text}"
    return line if seconds is None else f"{line:<{NAME_WIDTH + 1 + TEXT_WIDTH}} {duration(seconds):>10}"


class Display:
    """Prints phases. On a terminal the running one moves; elsewhere each line is printed once it is true."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.phases: list[Phase] = []
        self._live: Live | None = None

    @property
    def current(self) -> Phase | None:
        """The phase that runs, for a message when it is cut short."""
        return self.phases[-1] if self.phases else None

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        """Run a phase: its line is printed at its end, with its time. An exception leaves no line."""
        phase = Phase(name, time.monotonic())
        self.phases.append(phase)
        if self.console.is_terminal:
            with Live(
                get_renderable=lambda: self._moving(phase), console=self.console, refresh_per_second=5, transient=True
            ) as live:
                self._live = live
                try:
                    yield phase
                finally:
                    self._live = None
        else:
            yield phase
        phase.ended = time.monotonic()
        label = "" if phase.notes else name
        self.line(row(label, phase.result, phase.seconds) if phase.result else row(label, "done", phase.seconds))

    def say(self, text: str) -> None:
        """A sentence of the running phase: under its name the first time, indented afterwards."""
        phase = self.current
        name = phase.name if phase and not phase.notes else ""
        if phase:
            phase.notes.append(text)
        self.line(row(name, text))

    def detail(self, text: str) -> None:
        """What the running phase does now; seen on a terminal only."""
        if self.current:
            self.current.detail = text

    def line(self, text: str = "") -> None:
        """A line that stays."""
        self.console.print(text, markup=False, highlight=False)

    def as_json(self) -> list[dict[str, object]]:
        """The phases so far, for `--json`; one that was cut short has not ended."""
        return [
            {
                "phase": phase.name,
                "ended": phase.ended is not None,
                "result": phase.result,
                "notes": phase.notes,
                "seconds": round(phase.seconds, 1),
            }
            for phase in self.phases
        ]

    def _moving(self, phase: Phase) -> RenderableType:
        marks = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
        mark = marks[int(phase.seconds * 8) % len(marks)]
        room = max(20, self.console.width - NAME_WIDTH - 16)
        text = phase.detail if len(phase.detail) <= room else phase.detail[: room - 1] + "…"
        return Text(f"{phase.name:<{NAME_WIDTH}} {mark} {text:<{room}} {duration(phase.seconds):>9}", style="dim")
