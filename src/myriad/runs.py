"""What a playbook run's events say: per host, exit code, tasks a host saw, seconds for each play. Pure.

The events are written by the callback ``myriad.gpu.progress`` (one JSON object a line) into the file that
``MYRIAD_EVENTS`` names::

    {"event": "start", "playbook", "check"}
    {"event": "play", "name"}
    {"event": "task", "name", "role", "play", "action"}
    {"event": "result", "host", "task", "role", "play", "action", "status", "changed", "changed_items", "seconds",
                        "message", "ignored", "reboot", "drift", "notes", "report"}
    {"event": "stats", "hosts", "tasks", "skipped", "plays", "seconds"}

``status`` is ok, changed, failed, unreachable or skipped; every event has ``time`` in seconds since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from myriad.errors import MyriadError

CONVERGED = 0
FAILED = 2
UNREACHABLE = 3


@dataclass(slots=True)
class HostResult:
    """One host in one run.

    Attributes:
        tasks: tasks that ran on it; skipped ones are not counted.
        changed: tasks that changed something, as (role, task).
        changed_items: what they changed, item by item, where the module tells.
        failures: (role, task, sentence) of what failed and was not ignored or rescued.
        unreachable: the sentence of why it could not be reached; empty when it could.
        reboot: why it has to be rebooted before what was done holds.
    """

    name: str
    ok: int = 0
    tasks: int = 0
    skipped: int = 0
    changed: list[tuple[str, str]] = field(default_factory=list)
    changed_items: list[str] = field(default_factory=list)
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    unreachable: str = ""
    reboot: list[str] = field(default_factory=list)

    @property
    def is_converged(self) -> bool:
        """Whether it came to its end."""
        return not self.failures and not self.unreachable


@dataclass(slots=True)
class RunResult:
    """A run as a whole.

    Attributes:
        hosts: by name, those that a task ran on.
        play_seconds: wall time for each play, in the order in which they ran; plays of one name added up.
        seconds: wall time of the run.
        is_check: whether it was a prediction.
        is_finished: whether it came to its end (False: killed, or still running).
    """

    hosts: dict[str, HostResult] = field(default_factory=dict)
    play_seconds: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    is_check: bool = False
    is_finished: bool = False

    @property
    def exit_code(self) -> int:
        """0 converged, 2 failed somewhere or broken off, 3 some hosts unreachable and the rest converged."""
        if not self.is_finished or any(host.failures for host in self.hosts.values()):
            return FAILED
        if any(host.unreachable for host in self.hosts.values()):
            return UNREACHABLE
        return CONVERGED

    @property
    def changed_count(self) -> int:
        """Tasks that changed something, over all hosts."""
        return sum(len(host.changed) for host in self.hosts.values())

    @property
    def unreachable_hosts(self) -> list[str]:
        """Names of hosts that could not be reached."""
        return sorted(name for name, host in self.hosts.items() if host.unreachable)

    @property
    def failed_hosts(self) -> list[str]:
        """Names of hosts on which something failed."""
        return sorted(name for name, host in self.hosts.items() if host.failures)

    def task_counts(self) -> dict[str, int]:
        """Tasks that each host saw."""
        return {name: host.tasks for name, host in sorted(self.hosts.items())}

    def changed_tasks(self) -> set[tuple[str, str, str]]:
        """(host, role, task) of everything that changed something: what a prediction is compared with."""
        return {(host.name, role, task) for host in self.hosts.values() for role, task in host.changed}


@dataclass(frozen=True, slots=True)
class Prediction:
    """A ``--check`` run beside the run that followed.

    Attributes:
        hit: tasks that were predicted and then changed something.
        missed: tasks that changed something unforeseen.
        false: tasks that were predicted and then changed nothing.
    """

    hit: frozenset[tuple[str, str, str]]
    missed: frozenset[tuple[str, str, str]]
    false: frozenset[tuple[str, str, str]]

    @property
    def share(self) -> float:
        """The share of the real changes that was predicted, 0 to 1; 1 where nothing changed."""
        real = len(self.hit) + len(self.missed)
        return len(self.hit) / real if real else 1.0


def compare(predicted: RunResult, real: RunResult) -> Prediction:
    """How well a prediction foretold a run."""
    before, after = predicted.changed_tasks(), real.changed_tasks()
    return Prediction(frozenset(before & after), frozenset(after - before), frozenset(before - after))


def parse(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Events from the lines of a file; a half-written last line (a killed run) is left out.

    Raises:
        MyriadError: a line in the middle is no event.
    """
    events: list[dict[str, Any]] = []
    broken: int | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if broken is not None:
            raise MyriadError(
                f"line {broken} of the events is no JSON object", hint="was the file written by two runs?"
            )
        try:
            event = json.loads(line)
        except ValueError:
            broken = number
            continue
        if not isinstance(event, dict):
            broken = number
            continue
        events.append(event)
    return events


def result_of(events: Iterable[Mapping[str, Any]]) -> RunResult:
    """What the events of one run say."""
    result = RunResult()
    first: float | None = None
    last = 0.0
    play: tuple[str, float] | None = None

    def close(until: float) -> None:
        if play is not None:
            name, since = play
            result.play_seconds[name] = result.play_seconds.get(name, 0.0) + max(0.0, until - since)

    for event in events:
        at = float(event.get("time") or last)
        first = at if first is None else first
        last = max(last, at)
        kind = event.get("event")
        if kind == "start":
            result.is_check = bool(event.get("check"))
        elif kind == "play":
            close(at)
            play = (str(event.get("name") or ""), at)
        elif kind == "result":
            _add(result, event)
        elif kind == "stats":
            result.is_finished = True
            close(at)
            play = None
            _settle(result, event.get("hosts") or {})
    close(last)
    result.seconds = last - first if first is not None else 0.0
    return result


def _add(result: RunResult, event: Mapping[str, Any]) -> None:
    name = str(event.get("host") or "")
    host = result.hosts.setdefault(name, HostResult(name))
    status = event.get("status")
    role, task = str(event.get("role") or ""), str(event.get("task") or "")
    if status == "skipped":
        host.skipped += 1
        return
    host.tasks += 1
    if status in ("ok", "changed"):
        host.ok += 1
    if event.get("changed"):
        host.changed.append((role, task))
        host.changed_items.extend(str(item) for item in event.get("changed_items") or [])
    host.reboot.extend(reason for reason in event.get("reboot") or [] if reason not in host.reboot)
    if event.get("ignored"):
        return
    message = str(event.get("message") or status)
    if status == "failed":
        host.failures.append((role, task, message))
    elif status == "unreachable":
        host.unreachable = message


def _settle(result: RunResult, stats: Mapping[str, Any]) -> None:
    """Ansible's own count knows what a block rescued: a rescued failure is none."""
    for name, found in stats.items():
        host = result.hosts.get(name)
        if host is None:
            continue
        if not found.get("failures"):
            host.failures.clear()
        if not found.get("unreachable"):
            host.unreachable = ""
