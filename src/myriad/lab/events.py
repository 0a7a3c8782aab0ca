"""The events that a playbook run writes (one JSON object a line), read while it runs.

Written by the callback `myriad.gpu.progress` into the file that MYRIAD_EVENTS names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Tail:
    """Reads the lines that were added since the last look; a half-written last line is read at the next one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def read(self) -> Iterator[dict[str, Any]]:
        """New events, in order."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                block = file.read()
        except FileNotFoundError:
            return
        end = block.rfind(b"\n") + 1
        self._offset += end
        for line in block[:end].splitlines():
            if line.strip():
                event = json.loads(line)
                if isinstance(event, dict):
                    yield event


@dataclass
class Progress:
    """What is known of a run so far.

    Attributes:
        play, role, task: where it is now.
        changed: host -> number of changed tasks.
        failed: host -> sentence of what failed there.
        unreachable: host -> sentence.
        tasks: host -> number of tasks seen.
        plays: play -> seconds, known at the end.
    """

    play: str = ""
    role: str = ""
    task: str = ""
    changed: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, int] = field(default_factory=dict)
    plays: dict[str, float] = field(default_factory=dict)

    def add(self, event: dict[str, Any]) -> None:
        """Take one event in."""
        kind = event.get("event")
        if kind == "play":
            self.play, self.role, self.task = str(event.get("name", "")), "", ""
        elif kind == "task":
            self.role = str(event.get("role") or "")
            self.task = str(event.get("name", ""))
        elif kind == "result":
            self._result(str(event.get("host", "")), event)
        elif kind == "stats":
            self.tasks = {str(host): int(count) for host, count in (event.get("tasks") or {}).items()}
            self.plays = {str(play["name"]): float(play["seconds"]) for play in event.get("plays") or []}

    def _result(self, host: str, event: dict[str, Any]) -> None:
        status = str(event.get("status", ""))
        if status != "skipped":
            self.tasks[host] = self.tasks.get(host, 0) + 1
        if event.get("changed"):
            self.changed[host] = self.changed.get(host, 0) + 1
        if status in ("failed", "unreachable") and not event.get("ignored"):
            into = self.failed if status == "failed" else self.unreachable
            into[host] = f"{event.get('task', '')}: {event.get('message') or status}"

    @property
    def where(self) -> str:
        """The place for a progress line: role and task."""
        return ": ".join(part for part in (self.role or self.play, self.task) if part)
