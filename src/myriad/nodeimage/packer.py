"""Runs packer through packer-py, with what packer-py lacks: events while it runs, deadlines by stage, a cause when it
hangs.

packer-py composes the command and knows packer's verbs; its `execute_cmd` waits for the end and hands back bytes. Here
it is overridden to read packer's machine-readable lines as they come: `timestamp,target,type,data...`, with
`%!(PACKER_COMMA)` for a comma and `\\n`, `\\r` for line ends (https://developer.hashicorp.com/packer/docs/commands).
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from packerpy import PackerExecutable

from myriad.errors import MyriadError
from myriad.nodeimage.definition import Deadlines
from myriad.nodeimage.guest import console_lines
from myriad.nodeimage.hang import Evidence, classify, keep
from myriad.nodeimage.tools import end_group, need, which

Stage = Literal["start", "ssh", "provision", "shutdown", "finish"]
STAGES: tuple[Stage, ...] = ("start", "ssh", "provision", "shutdown", "finish")
#: What packer says when a stage begins.
_BEGINS: tuple[tuple[str, Stage], ...] = (
    ("Waiting for SSH to become available", "ssh"),
    ("Connected to SSH", "provision"),
    ("Gracefully halting virtual machine", "shutdown"),
    ("Halting the virtual machine", "shutdown"),
    ("Stopping the source instance", "shutdown"),
    ("Converting hard drive", "finish"),
)
#: packer removes the machine and the unfinished disk that it made when it is asked to stop.
_CLEANUP_S = 20
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True)
class PackerEvent:
    """One line of packer's machine-readable output.

    Attributes:
        time: seconds since 1970.
        target: the build it is about, such as `qemu.node`; empty for packer itself.
        kind: `ui`, `artifact`, `error`, `version` and the like.
        data: its fields, with commas and line ends as they were.
    """

    time: int
    target: str
    kind: str
    data: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What it says to people; empty for what is for programs only."""
        return self.data[1] if self.kind == "ui" and len(self.data) > 1 else ""

    @property
    def is_error(self) -> bool:
        """Whether it tells of an error. An unknown builder or bad syntax comes as `ui,error` alone."""
        return self.kind == "error" or (self.kind == "ui" and self.data[:1] == ("error",))


OnEvent = Callable[[Stage, PackerEvent], None]


def parse_line(line: str) -> PackerEvent | None:
    """An event from a line, or None for what is none (a warning of the Go runtime, a line cut short)."""
    parts = line.rstrip("\r\n").split(",")
    if len(parts) < 3 or not parts[0].isdigit() or not parts[2]:
        return None
    data = tuple(part.replace("%!(PACKER_COMMA)", ",").replace("\\n", "\n").replace("\\r", "\r") for part in parts[3:])
    return PackerEvent(int(parts[0]), parts[1], parts[2], data)


def stage_of(event: PackerEvent, now: Stage) -> Stage:
    """The stage after an event; it never goes back."""
    for words, stage in _BEGINS:
        if words in event.text and STAGES.index(stage) > STAGES.index(now):
            return stage
    return now


@dataclass
class PackerResult:
    """How a run of packer ended.

    Attributes:
        seconds: by stage, those that were come to.
        artifacts: files of artifacts by target.
    """

    code: int = 0
    stage: Stage = "start"
    late: bool = False
    seconds: dict[Stage, float] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    artifacts: dict[str, list[str]] = field(default_factory=dict)


class Packer(PackerExecutable):  # type: ignore[misc]
    """packer-py's executable that tells what happens while it happens, and stops what hangs.

    Args:
        deadlines: seconds for each stage; None waits for ever.
        on_event: told every event with the stage that it belongs to.
        log: file of packer's own log.
        env: further variables.
    """

    def __init__(
        self,
        *,
        deadlines: Deadlines | None = None,
        on_event: OnEvent = lambda stage, event: None,
        log: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        need(["packer"])
        super().__init__(executable_path=which("packer"))
        self._deadlines = deadlines
        self._on_event = on_event
        self._environment = {**os.environ, "CHECKPOINT_DISABLE": "1", **(env or {})}
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.unlink(missing_ok=True)
            self._environment |= {"PACKER_LOG": "1", "PACKER_LOG_PATH": str(log)}

    def execute_cmd(self, packer_cmd: str, template: str | None = None, **kwargs: Any) -> PackerResult:
        """Run a verb to its end. packer-py's own verbs (`build`, `validate`, `inspect`, `version`) call this."""
        command = [self.configuration[self.PATH], packer_cmd, "-machine-readable", *self._explode_args(**kwargs)]
        if template:
            command.append(template)
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=self._environment,
            start_new_session=True,
        ) as process:
            try:
                return self._follow(process)
            finally:
                if process.poll() is None:
                    # Asked first: packer removes the machine and the unfinished disk that it made.
                    end_group(process, grace_s=_CLEANUP_S)

    def _follow(self, process: subprocess.Popen[str]) -> PackerResult:
        result = PackerResult()
        begun = {result.stage: time.monotonic()}
        for line in _lines(process, lambda: self._left(result.stage, begun[result.stage])):
            if line is None:
                result.late = True
                break
            event = parse_line(line)
            if event is None:
                if line.strip():
                    result.said.append(line.strip())
                continue
            stage = stage_of(event, result.stage)
            if stage != result.stage:
                result.seconds[result.stage] = time.monotonic() - begun[result.stage]
                begun[stage] = time.monotonic()
                result.stage = stage
            _take(result, event)
            self._on_event(result.stage, event)
        result.seconds[result.stage] = time.monotonic() - begun[result.stage]
        if not result.late:
            result.code = process.wait()
        return result

    def _left(self, stage: Stage, begun: float) -> float | None:
        if self._deadlines is None:
            return None
        return cast(int, getattr(self._deadlines, stage)) - (time.monotonic() - begun)


def _take(result: PackerResult, event: PackerEvent) -> None:
    if event.text:
        result.said.append(event.text)
    if event.is_error:
        text = event.text or (event.data[0] if event.data else "")
        if text.strip() and text.strip() not in result.errors:
            result.errors.append(text.strip())
    if event.kind == "artifact" and len(event.data) >= 4 and event.data[1] == "file":
        result.artifacts.setdefault(event.target, []).append(event.data[3])


def _lines(process: subprocess.Popen[str], left: Callable[[], float | None]) -> Iterator[str | None]:
    """Lines as they come; None when the time that is left is over before the next one."""
    arrived: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout or ():
            arrived.put(line)
        arrived.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        seconds = left()
        try:
            line = arrived.get(timeout=None if seconds is None else max(0.01, seconds))
        except queue.Empty:
            yield None
            return
        if line is None:
            return
        yield line


def version(packer: Packer | None = None) -> tuple[int, int, int]:
    """packer's version. Raises MyriadError when it does not tell."""
    result: PackerResult = (packer or Packer()).version()
    for text in result.said:
        match = _VERSION.search(text)
        if match:
            return int(match[1]), int(match[2]), int(match[3])
    raise MyriadError("packer does not tell its version", where=" | ".join(result.said) or None)


def validate(template: Path, *, syntax_only: bool = False, only: Sequence[str] = ()) -> None:
    """Have packer read a template.

    Raises:
        MyriadError: it refuses it; with all that it says.
    """
    options: dict[str, Any] = {"syntax_only": True} if syntax_only else {}
    if only:
        options["only"] = ",".join(only)
    result: PackerResult = Packer().validate(str(template), **options)
    if result.code != 0:
        raise MyriadError(
            f"packer refuses the template: {' | '.join(result.errors or result.said)}", where=str(template)
        )


def build(
    template: Path,
    *,
    target: str,
    deadlines: Deadlines,
    on_event: OnEvent,
    log: Path,
    console: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> PackerResult:
    """Build one target of a template to its end.

    Args:
        console: what the machine's serial console wrote, for targets that have one.

    Raises:
        MyriadError: it failed or hung; with the stage, the cause as far as the evidence tells it, and what to do.
    """
    packer = Packer(deadlines=deadlines, on_event=on_event, log=log, env=env)
    result: PackerResult = packer.build(str(template), only=target, force=True, color="false")
    if not result.late and result.code == 0:
        return result
    evidence = Evidence(
        stage=result.stage,
        late=result.late,
        seconds=result.seconds.get(result.stage, 0.0),
        errors=tuple(result.errors),
        said=tuple(result.said[-60:]),
        console=tuple(console_lines(console)) if console else (),
        log=tuple(console_lines(log)),
    )
    keep(evidence, log.with_name("evidence.json"))
    cause = classify(evidence)
    raise MyriadError(f"{target}: {cause.sentence}", where=str(console or log), hint=cause.hint)
