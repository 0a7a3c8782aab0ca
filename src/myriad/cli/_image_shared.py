"""What the verbs that build images share: the folder of a name, the build's context, and how progress is shown."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from myriad.cli.output import err_console
from myriad.images.context import BuildContext, BuildEvent, find_repository
from myriad.stack.settings import cache_root

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A folder of images/, its path, or a variant.")]
ImagesOption = Annotated[Path | None, typer.Option("--images", help="Folder with the definitions; by default images/.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Events and the result as JSON, one object a line.")]
TagOption = Annotated[str, typer.Option("--tag", help="Tag and version label; by default Myriad's version.")]
CaOption = Annotated[Path | None, typer.Option("--ca", help="Certificate of the registry's CA.")]


def images_folder(given: Path | None) -> Path:
    """Where definitions are: the given folder, `images` here, or that of the checkout."""
    if given is not None:
        return given
    here = Path("images")
    return here if here.is_dir() else find_repository() / "images"


def tag_or_version(tag: str) -> str:
    """The tag of an image that nobody gave one."""
    return tag or version("myriad")


def context(on_event: Any, *, fresh: bool = False) -> BuildContext:
    """The build's store and caches: `store` and `images` below `~/.cache/myriad`."""
    root = cache_root()
    return BuildContext(
        store=root / "store",
        cache_dir=root / "images",
        repository=find_repository(),
        on_event=on_event,
        fresh=fresh,
        strict=True,
    )


@contextmanager
def progress(as_json: bool) -> Iterator[Any]:
    """A listener for build events: bars on a terminal, lines elsewhere, JSON lines on standard output on request."""
    if as_json:
        yield _json_event
    elif err_console.is_terminal:
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            DownloadColumn(),
            TimeElapsedColumn(),
            console=err_console,
            transient=True,
        ) as bars:
            yield _Bars(bars)
    else:
        yield _lines()


_WRITING = threading.Lock()


def _json_event(event: BuildEvent) -> None:
    value = {"event": event.state, **{key: part for key, part in asdict(event).items() if part and key != "state"}}
    emit_line(value)


def emit_line(value: dict[str, Any]) -> None:
    """One JSON object on a line of its own."""
    with _WRITING:
        sys.stdout.write(json.dumps(value, default=str) + "\n")
        sys.stdout.flush()


class _Bars:
    """A bar for each step that takes a while."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, event: BuildEvent) -> None:
        if event.state == "started":
            self._tasks[event.step] = self._bars.add_task(event.step, total=event.total or None)
        elif event.state == "progress" and event.step in self._tasks:
            task = self._tasks[event.step]
            if event.total:
                self._bars.update(task, completed=event.size, total=event.total)
            else:
                self._bars.update(task, description=f"{event.step}: {event.detail[:60]}")
        elif event.state == "finished" and event.step in self._tasks:
            self._bars.remove_task(self._tasks.pop(event.step))
            self._bars.print(_line(event), markup=False)


def _lines() -> Any:
    """A line for what begins and ends; progress at most every ten seconds, so that a log stays readable."""
    said: dict[str, float] = {}

    def told(event: BuildEvent) -> None:
        if event.state == "progress":
            now = time.monotonic()
            if now - said.setdefault(event.step, now) < 10:
                return
            said[event.step] = now
        if event.state != "cached":
            err_console.print(_line(event), markup=False)

    return told


def _line(event: BuildEvent) -> str:
    size = f"{megabytes(event.size)}" if event.size else ""
    if event.total and event.state == "progress":
        size = f"{megabytes(event.size)} of {megabytes(event.total)}"
    word = {"started": "begun", "progress": "", "finished": "done", "cached": "there"}[event.state]
    detail = "" if event.detail.startswith("sha256:") else event.detail
    seconds = f"{event.seconds:.1f} s" if event.state == "finished" and event.seconds else ""
    return "   ".join(part for part in (event.step.ljust(40), word, detail, size, seconds) if part.strip())


def megabytes(size: float) -> str:
    """`540 MB`, `3.1 GB`, `12 kB`."""
    for factor, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= factor:
            number = size / factor
            return f"{number:.1f} {unit}" if number < 10 else f"{number:.0f} {unit}"
    return f"{size:.0f} B"


def listed_seconds(seconds: float) -> str:
    """`41 s`, `2 min 5 s`, `0.4 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 100 else f"{int(seconds) // 60} min {int(seconds) % 60} s"
