"""The site phase: ansible-playbook as a person would type it, its events read while it runs."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from myriad.lab.display import Display, duration
from myriad.lab.events import Progress, Tail
from myriad.lab.state import LabPaths

#: What ansible-playbook means by its exit codes, in Myriad's: 0 converged, 2 failed, 3 some hosts unreachable.
_EXIT = {0: 0, 2: 2, 4: 3}


#: How long ansible-playbook may take to end after Ctrl-C until it is told once more.
INTERRUPT_S = 10.0


@dataclass
class SiteRun:
    """How a run ended.

    Attributes:
        code: 0 converged, 2 failed, 3 some hosts unreachable and the rest converged.
        seconds: wall time.
        progress: what was seen of it.
        log: the file with everything it printed.
    """

    code: int
    seconds: float
    progress: Progress
    log: Path

    @property
    def changed(self) -> bool:
        """Whether any task changed anything."""
        return any(self.progress.changed.values())


def command(arguments: Sequence[str] = (), *, playbook: str = "site", inventory: str = "lab") -> list[str]:
    """The command line, as it is printed and as it is run in the clone's folder."""
    return ["ansible-playbook", f"playbooks/{playbook}.yml", "-i", f"inventories/{inventory}", *arguments]


def run_site(paths: LabPaths, display: Display, arguments: Sequence[str] = (), *, playbook: str = "site") -> SiteRun:
    """Run the playbook to its end, showing where it is.

    A Ctrl-C reaches ansible-playbook too (same terminal); it is waited for, so that no half-run goes on behind.
    """
    argv = command(arguments, playbook=playbook, inventory=paths.inventory.name)
    log, events = paths.logs / f"{playbook}.log", paths.logs / f"{playbook}-events.jsonl"
    events.unlink(missing_ok=True)
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(paths.clone / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "MYRIAD_EVENTS": str(events),
        "MYRIAD_LAB_STATE": str(paths.state),
    }
    display.say(shlex.join(argv))
    started = time.monotonic()
    tail, progress = Tail(events), Progress()
    shown = _Steps(display)
    with log.open("w") as output:
        process = subprocess.Popen(
            [program, *argv[1:]], cwd=paths.clone, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None:
                _take(tail, progress, shown, display)
                time.sleep(0.2)
        except KeyboardInterrupt:
            # A terminal has sent the signal to it as well; one more would cut its own end short.
            try:
                process.wait(timeout=INTERRUPT_S)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                process.wait()
            raise
    _take(tail, progress, shown, display)
    shown.close(progress)
    return SiteRun(_EXIT.get(process.returncode, 2), time.monotonic() - started, progress, log)


def _take(tail: Tail, progress: Progress, shown: _Steps, display: Display) -> None:
    for event in tail.read():
        progress.add(event)
        shown.follow(progress)
    display.detail(progress.where)


class _Steps:
    """One line for each play that has ended: its hosts, and how long it took."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._play = ""
        self._since = time.monotonic()
        self._before: dict[str, int] = {}
        self._tasks: dict[str, int] = {}

    def follow(self, progress: Progress) -> None:
        """Print the play before when another one has begun."""
        if progress.play != self._play:
            self.close(progress)
            self._play, self._since = progress.play, time.monotonic()
            self._before, self._tasks = dict(progress.changed), dict(progress.tasks)

    def close(self, progress: Progress) -> None:
        """Print the play that has ended, if any host did something in it."""
        hosts = [host for host, count in progress.tasks.items() if count > self._tasks.get(host, 0)]
        if not self._play or not hosts:
            return
        words = []
        for host in hosts:
            if host in progress.unreachable:
                word = "unreachable"
            elif host in progress.failed:
                word = "failed"
            else:
                word = "changed" if progress.changed.get(host, 0) > self._before.get(host, 0) else "ok"
            words.append(f"{host} {word}")
        text = "  ".join(words)
        line = f"  {self._play:<14} {text}"
        self._display.line(f"{line:<95} {duration(time.monotonic() - self._since):>10}")
        self._play = ""
