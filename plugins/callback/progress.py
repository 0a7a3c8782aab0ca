"""What a run shows: one line a task, errors that read as sentences, a recap; and its events as JSON lines."""

from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: stdout
short_description: Progress of a Myriad run, and its events as JSON lines
description:
  - On a terminal a live view shows the phase (the play), the task, the state of each host and the time that has passed.
    Elsewhere each task is one line when it has ended.
  - Under C(--diff) the differences are printed item by item. An error names host, task, message and the last lines of
    what a program said.
  - The recap shows each host, how many tasks a host saw, seconds for each play and the slowest tasks.
  - When the environment names a file in E(MYRIAD_EVENTS), every play, task and result is written to it as one JSON
    object a line.
options:
  show_skipped:
    description: Print tasks that were skipped on every host.
    type: bool
    default: false
    ini: [{section: myriad, key: show_skipped}]
    env: [{name: MYRIAD_SHOW_SKIPPED}]
  slowest:
    description: How many of the slowest tasks the recap names.
    type: int
    default: 5
    ini: [{section: myriad, key: slowest}]
    env: [{name: MYRIAD_SLOWEST}]
requirements:
  - The Python package rich for the live view; without it lines are printed.
author: The developers of Myriad
"""

import atexit
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible import constants as C
from ansible.playbook.task_include import TaskInclude
from ansible.plugins.callback import CallbackBase
from ansible_collections.myriad.gpu.plugins.plugin_utils.preload import preload, preload_description

EVENTS_VARIABLE = "MYRIAD_EVENTS"
ARGUMENT_CHECK = "Validating arguments against arg spec"
NAMED_HOSTS = 4
LIVE_HOSTS = 12
TAIL_LINES = 10
# Keys under which modules name what they changed, one entry an item.
ITEM_KEYS = ("changed_items", "changed_paths", "sent")


#: Of a result, what ansible adds to what the action gave.
_OF_ANSIBLE = frozenset({"changed", "failed", "skipped", "item", "ansible_loop_var", "ansible_index_var", "invocation"})


@dataclass
class TaskState:
    """One task as far as it has come."""

    name: str
    role: str
    play: str
    action: str
    started: float
    hosts: dict[str, str] = field(default_factory=dict)
    ended: float | None = None
    printed: bool = False
    #: What a task of debug says, and the hosts that say it.
    said: dict[str, list[str]] = field(default_factory=dict)

    def count(self, status: str) -> int:
        return sum(1 for found in self.hosts.values() if found == status)

    @property
    def title(self) -> str:
        """Role and task; ansible's own long name for the check of a role's arguments in two words."""
        name = "check of the arguments" if self.name.startswith(ARGUMENT_CHECK) else self.name
        return f"{self.role}: {name}" if self.role else name


class Events:
    """The file of events; nothing without the environment's word."""

    def __init__(self) -> None:
        self._stream = None
        name = os.environ.get(EVENTS_VARIABLE)
        if name:
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            # One line a write, so that a run that is killed leaves whole lines.
            self._stream = path.open("a", encoding="utf-8", buffering=1)

    def write(self, event: str, **values: Any) -> None:
        if self._stream is not None:
            line = json.dumps({"event": event, "time": round(time.time(), 3), **values}, default=str)
            self._stream.write(line + "\n")


class LiveView:
    """The live lines at the bottom of a terminal, drawn by rich."""

    def __init__(self, callback: CallbackModule) -> None:
        from rich.console import Console
        from rich.live import Live

        self._callback = callback
        self._pid = os.getpid()
        console = Console(file=sys.stdout)
        self._live = Live(
            console=console, refresh_per_second=5, transient=True, redirect_stderr=True, get_renderable=self._render
        )
        # Workers are forked while the refresh thread may hold a lock of rich: take both around every fork.
        locks = (self._live._lock, console._lock)
        os.register_at_fork(
            before=lambda: [lock.acquire() for lock in locks],
            after_in_parent=lambda: [lock.release() for lock in reversed(locks)],
            after_in_child=lambda: [lock.release() for lock in reversed(locks)],
        )
        self._live.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        if os.getpid() == self._pid:
            self._live.stop()

    def _render(self) -> Any:
        from rich.text import Text

        text = Text()
        callback = self._callback
        task = callback.current
        text.append(f"{callback.elapsed():8.1f}s  ", style="dim")
        text.append(callback.play_name or "starting", style="bold")
        if task is None:
            return text
        text.append(f" · {task.title}  ")
        text.append(f"{time.monotonic() - task.started:.0f} s", style="dim")
        running = [host for host, status in task.hosts.items() if status == "running"]
        if len(task.hosts) > LIVE_HOSTS:
            text.append(f"\n           {len(task.hosts) - len(running)} of {len(task.hosts)} hosts")
            if running:
                text.append(f", waiting for {', '.join(running[:NAMED_HOSTS])}")
            return text
        styles = {"ok": "green", "changed": "yellow", "failed": "red", "unreachable": "red", "running": "cyan"}
        for host, status in task.hosts.items():
            text.append(f"\n           {host:<16} ")
            text.append(status, style=styles.get(status, "dim"))
        return text


class CallbackModule(CallbackBase):
    """The stdout callback myriad.gpu.progress."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "myriad.gpu.progress"

    def __init__(self, display: Any = None, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(display, options)
        self.started = time.monotonic()
        self.play_name = ""
        self.current: TaskState | None = None
        self._tasks: dict[str, TaskState] = {}
        self._order: list[TaskState] = []
        self._plays: list[tuple[str, float]] = []
        self._seen: dict[str, int] = {}
        self._skipped: dict[str, int] = {}
        self._errors: list[tuple[str, str, str]] = []
        self._reboots: dict[str, list[str]] = {}
        self._events = Events()
        self._live: LiveView | None = None
        self._check = False
        self._described = False

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    # Plays and tasks

    def v2_playbook_on_start(self, playbook: Any) -> None:
        from ansible import context

        self._check = bool(context.CLIARGS.get("check"))
        self._events.write("start", playbook=str(playbook._file_name), check=self._check)
        listing = any(context.CLIARGS.get(name) for name in ("listtasks", "listtags", "listhosts", "syntax"))
        if not listing:
            preload()
        # -vvv prints what a live view would scroll away.
        if sys.stdout.isatty() and not listing and self._display.verbosity < 3 and os.environ.get("TERM") != "dumb":
            with contextlib.suppress(ImportError):
                self._live = LiveView(self)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._flush()
        self.play_name = play.get_name().strip()
        self._describe(play)
        self._plays.append((self.play_name, time.monotonic()))
        self._events.write("play", name=self.play_name)
        mode = " (check mode, nothing is changed)" if self._check and len(self._plays) == 1 else ""
        self._say(f"{self._stamp()} {self.play_name}{mode}", color=C.COLOR_HIGHLIGHT)

    def _describe(self, play: Any) -> None:
        """Read the description once, before the first play whose variables follow from it."""
        sources = getattr(getattr(play.get_variable_manager(), "_inventory", None), "_sources", None)
        if play.vars_files and sources and not self._described:
            self._described = True
            preload_description([str(source) for source in sources])

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self._start(task)

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        self._start(task)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        self._state(task).hosts.setdefault(host.get_name(), "running")

    def v2_playbook_on_no_hosts_matched(self) -> None:
        self._say(f"{self._stamp()} {self.play_name}: no host of this play is in the inventory", color=C.COLOR_SKIP)
        self._events.write("no_hosts", play=self.play_name)

    def v2_playbook_on_no_hosts_remaining(self) -> None:
        self._flush()
        self._say("no host is left to go on with", color=C.COLOR_ERROR)

    def _start(self, task: Any) -> None:
        self._flush()
        state = self._state(task)
        state.started = time.monotonic()
        self.current = state
        self._events.write("task", name=state.name, role=state.role, play=state.play, action=state.action)

    def _state(self, task: Any) -> TaskState:
        state = self._tasks.get(task._uuid)
        if state is None:
            role = task._role.get_name(include_role_fqcn=False) if task._role is not None else ""
            # The name may be a template that was not rendered for any host; it is shown as it is written then.
            name = (task.name or task.action or "").strip()
            state = TaskState(name, role, self.play_name, str(task.action), time.monotonic())
            self._tasks[task._uuid] = state
            self._order.append(state)
        return state

    # Results

    def v2_runner_on_ok(self, result: Any) -> None:
        if isinstance(result.task, TaskInclude):
            # What it brings in are tasks of their own.
            self._state(result.task).printed = True
            return
        self._handle_warnings(result.result)
        self._result(result, "changed" if result.result.get("changed") else "ok")

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._result(result, "skipped")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        if self._display.verbosity >= 3:
            self._handle_warnings_and_exception(result)
        self._result(result, "failed", ignored=bool(ignore_errors))

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._result(result, "unreachable", ignored=bool(result.task.ignore_unreachable))

    def v2_runner_retry(self, result: Any) -> None:
        values = result.result
        words = f"{result.host.get_name()}: again ({values.get('attempts')} of {values.get('retries')})"
        self._say(f"{self._stamp()}   {words}", color=C.COLOR_DEBUG)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        self._handle_warnings(result.result)

    def v2_on_file_diff(self, result: Any) -> None:
        values = result.result
        for entry in values.get("results") or [values]:
            if isinstance(entry, Mapping) and entry.get("diff") and entry.get("changed"):
                text = self._get_diff(entry["diff"])
                if text.strip():
                    self._say(f"{result.host.get_name()} · {self._state(result.task).title}", color=C.COLOR_CHANGED)
                    self._say(text.rstrip("\n"))

    def _result(self, result: Any, status: str, *, ignored: bool = False) -> None:
        host = result.host.get_name()
        values = result.result
        state = self._state(result.task)
        state.hosts[host] = status
        if status == "skipped":
            self._skipped[host] = self._skipped.get(host, 0) + 1
        else:
            state.ended = time.monotonic()
            self._seen[host] = self._seen.get(host, 0) + 1
        message = ""
        if status in ("failed", "unreachable"):
            message = _message(values)
            self._error(host, state, status, message, values, ignored)
        reboot = [str(reason) for reason in values.get("reboot_required") or []]
        for reason in reboot:
            if reason not in self._reboots.setdefault(host, []):
                self._reboots[host].append(reason)
        self._events.write(
            "result",
            host=host,
            task=state.name,
            role=state.role,
            play=state.play,
            action=state.action,
            status=status,
            changed=bool(values.get("changed")),
            changed_items=_items(values),
            seconds=round(time.monotonic() - state.started, 3),
            **({"message": message, "ignored": ignored} if message or ignored else {}),
            **({"reboot": reboot} if reboot else {}),
            **{key: values[key] for key in ("drift", "notes") if isinstance(values.get(key), list) and values[key]},
            **({"report": values["report"]} if isinstance(values.get("report"), Mapping) else {}),
        )
        said = _said(values)
        for text in said:
            state.said.setdefault(text, []).append(host)
        if self._display.verbosity > 0 and not said and status in ("ok", "changed"):
            self._say(f"{host} · {state.title} => {self._dump_results(values)}", color=_color(status))
        if state.printed and self.current is not state:
            # A strategy that does not wait for all hosts: the line of the task is out already.
            self._say(f"{self._stamp()} {state.play} · {state.title}   {host} {status}", color=_color(status))

    def _error(
        self, host: str, state: TaskState, status: str, message: str, values: Mapping[str, Any], ignored: bool
    ) -> None:
        if ignored:
            return
        self._errors.append((host, state.title, message))
        lines = [f"{status.upper()}  {host} · {state.title}"]
        lines.extend("  " + line for line in message.splitlines())
        tail = _tail(values, message)
        if tail:
            lines.append("  it said:")
            lines.extend("    " + line for line in tail)
        lines.extend("  " + line for line in _meaning(values, message, host))
        self._say("\n".join(lines), color=C.COLOR_ERROR)
        if self._display.verbosity > 0:
            self._say(self._dump_results(values), color=C.COLOR_ERROR)

    # Output

    def _stamp(self) -> str:
        return f"[{self.elapsed():6.1f}s]"

    def _say(self, text: str, color: str | None = None) -> None:
        self._display.display(text, color=color)

    def _flush(self) -> None:
        """The line of the task that has ended."""
        state = self.current
        if state is None or state.printed:
            return
        state.printed = True
        counts = {name: state.count(name) for name in ("ok", "changed", "failed", "unreachable", "skipped")}
        running = state.count("running")
        if counts["skipped"] == len(state.hosts) and not self.get_option("show_skipped"):
            return
        words = []
        for name, count in counts.items():
            if not count or (name == "skipped" and len(state.hosts) > count):
                continue
            hosts = [host for host, status in state.hosts.items() if status == name]
            named = f" ({', '.join(hosts)})" if name != "ok" and name != "skipped" and count <= NAMED_HOSTS else ""
            words.append(f"{name} {count}{named}")
        if running:
            words.append(f"running {running}")
        title = f"{state.play} · {state.title}"
        worst = next((name for name in ("failed", "unreachable", "changed") if counts[name]), "ok")
        columns = shutil.get_terminal_size((110, 24)).columns
        self._say(f"{self._stamp()} {title:<{max(30, min(72, columns - 40))}} {'  '.join(words)}", color=_color(worst))
        for text, speakers in state.said.items():
            more = f" and {len(speakers) - NAMED_HOSTS} more" if len(speakers) > NAMED_HOSTS else ""
            head = f"{', '.join(speakers[:NAMED_HOSTS])}{more}: " if len(state.hosts) > 1 else ""
            self._say(
                "\n".join(f"    {head if number == 0 else ''}{line}" for number, line in enumerate(text.splitlines()))
            )

    # The end

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._flush()
        if self._live is not None:
            self._live.stop()
        now = time.monotonic()
        hosts = {host: stats.summarize(host) for host in sorted(stats.processed)}
        plays = _play_seconds(self._plays, now)
        self._events.write(
            "stats",
            hosts=hosts,
            tasks=self._seen,
            skipped=self._skipped,
            plays=[{"name": name, "seconds": round(seconds, 3)} for name, seconds in plays],
            seconds=round(self.elapsed(), 3),
        )
        self._say("")
        for line, color in self._recap(hosts):
            self._say(line, color=color)
        self._say("")
        if self._seen:
            most = max(self._seen.values())
            who = [host for host, count in self._seen.items() if count == most and host != "localhost"]
            least = f", {min(self._seen.values())} at least" if len(set(self._seen.values())) > 1 else ""
            self._say(f"tasks    a host saw {most} tasks at most{f' ({who[0]})' if who else ''}{least}")
        self._say("plays    " + "   ".join(f"{name} {seconds:.1f} s" for name, seconds in plays if seconds >= 0.05))
        slowest = sorted(
            ((state.ended - state.started, state) for state in self._order if state.ended is not None),
            key=lambda pair: -pair[0],
        )[: self.get_option("slowest")]
        for number, (seconds, state) in enumerate(slowest):
            self._say(f"{'slowest' if number == 0 else '':<8} {seconds:6.1f} s  {state.play} · {state.title}")
        for host, reasons in self._reboots.items():
            self._say(f"reboot   {host}: {'; '.join(reasons)}", color=C.COLOR_CHANGED)
        if self._reboots:
            nodes = " ".join(self._reboots)
            self._say(f"         next: myriad reboot -i INVENTORY {nodes}   # drains first, one batch at a time")
        if self._errors:
            self._next()

    def _recap(self, hosts: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, str | None]]:
        """One line a host; hosts that are merely fine are counted when there are many."""
        fine = 0
        many = len(hosts) > 40
        for host, found in hosts.items():
            failed, unreachable = found["failures"], found["unreachable"]
            if many and not failed and not unreachable:
                fine += 1
                continue
            words = [f"ok {found['ok']}", f"changed {found['changed']}"]
            words += [f"failed {failed}"] if failed else []
            words += ["unreachable"] if unreachable else []
            status = "failed" if failed or unreachable else "changed" if found["changed"] else "ok"
            yield f"{host:<24} {'   '.join(words)}", _color(status)
        if many:
            changed = sum(1 for found in hosts.values() if found["changed"])
            yield f"{fine} of {len(hosts)} hosts are right; something changed on {changed}", None

    def _next(self) -> None:
        hosts = list(dict.fromkeys(host for host, _task, _message in self._errors))
        self._say("")
        for host, task, message in self._errors[:20]:
            first = message.splitlines()[0] if message else ""
            self._say(f"failed   {host} · {task}: {first}", color=C.COLOR_ERROR)
        limit = ",".join(hosts) if len(hosts) <= 8 else "@FILE with those hosts"
        self._say(
            "next     repair what is named above and run the same command again: it goes on where it stopped; "
            f"for these hosts alone: --limit {limit}"
        )


def _play_seconds(plays: list[tuple[str, float]], now: float) -> list[tuple[str, float]]:
    """Seconds for each play, plays of one name added up."""
    ends = [*(started for _name, started in plays[1:]), now]
    seconds: dict[str, float] = {}
    for (name, started), ended in zip(plays, ends, strict=False):
        seconds[name] = seconds.get(name, 0.0) + ended - started
    return list(seconds.items())


def _color(status: str) -> str | None:
    return {
        "ok": C.COLOR_OK,
        "changed": C.COLOR_CHANGED,
        "failed": C.COLOR_ERROR,
        "unreachable": C.COLOR_UNREACHABLE,
        "skipped": C.COLOR_SKIP,
    }.get(status)


def _items(values: Mapping[str, Any]) -> list[str]:
    """What a module says it changed, item by item."""
    if not values.get("changed"):
        return []
    for key in ITEM_KEYS:
        found = values.get(key)
        if isinstance(found, list) and found:
            return [str(item) for item in found]
    items: list[str] = []
    for entry in values.get("results") or []:
        if isinstance(entry, Mapping) and entry.get("changed"):
            items.append(str(entry.get("item", "")))
    return items


def _said(values: Mapping[str, Any]) -> list[str]:
    """What a task of debug has to say, one text for each of its items: it has no other purpose than to be read."""
    texts = []
    for entry in values.get("results") or [values]:
        if not isinstance(entry, Mapping) or entry.get("_ansible_verbose_always") is not True:
            continue
        if "censored" in entry or entry.get("_ansible_no_log"):
            continue
        # `msg`, or with `var` the name of a variable and its value.
        found = {key: value for key, value in entry.items() if not key.startswith("_") and key not in _OF_ANSIBLE}
        said = found.get("msg", found)
        if isinstance(said, list):
            said = "\n".join(map(str, said))
        texts.append(said if isinstance(said, str) else json.dumps(said, indent=2, ensure_ascii=False, default=str))
    return [text for text in texts if text.strip()]


def _message(values: Mapping[str, Any]) -> str:
    """The sentence of a failure; of a loop or a list, each one."""
    failed = [
        f"{entry.get('item', '')}: {entry.get('msg', '')}"
        for entry in values.get("results") or []
        if isinstance(entry, Mapping) and entry.get("failed")
    ]
    if failed:
        return "\n".join(failed)
    if values.get("censored"):
        return str(values["censored"])
    message = str(values.get("msg") or "").strip()
    if message.startswith("non-zero return code") or not message:
        command = values.get("cmd")
        words = " ".join(map(str, command)) if isinstance(command, list) else str(command or "")
        message = f"`{words}` ended with {values.get('rc')}" if words else message or "it failed without a word"
    return message


def _meaning(values: Mapping[str, Any], message: str, host: str) -> list[str]:
    """Cause and next step where what was said is a known symptom, and the message does not tell them already."""
    from myriad.symptoms import diagnose

    said = [str(values.get(key) or "") for key in ("stderr", "module_stderr", "stdout", "module_stdout")]
    found = None if values.get("censored") else diagnose("\n".join([message, *said]), {"node": host})
    return [] if found is None or found.cause in message else found.text().splitlines()


def _tail(values: Mapping[str, Any], message: str) -> list[str]:
    """The last lines of what a program said, unless the message holds them."""
    if values.get("censored"):
        return []
    for key in ("stderr", "module_stderr", "stdout", "module_stdout"):
        text = str(values.get(key) or "").strip()
        if text:
            told = {line.strip() for line in message.splitlines()}
            return [line for line in text.splitlines()[-TAIL_LINES:] if line.strip() and line.strip() not in told]
    return []
