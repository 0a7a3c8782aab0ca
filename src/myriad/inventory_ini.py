"""Inventory files in INI, looked at as text: the line of every group and host, and what would go wrong unseen.

Ansible refuses such a file without saying on which line, and takes a host that is listed twice for one host whose
second line wins. The rules for lines are those of its plugin `ini`.

Source: https://docs.ansible.com/ansible/latest/collections/ansible/builtin/ini_inventory.html
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

from myriad.fleet import names
from myriad.fleet.problems import Origin
from myriad.inventory_yaml import Definitions, report_host_twice, report_key_twice

_HEADING = re.compile(r"^\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?$")
_KINDS = ("hosts", "children", "vars")
_FEW = 5
_HEADINGS = "a heading is [group], [group:children] or [group:vars], without spaces"


def scan_ini(path: Path, shown: str, expand: Callable[[str], list[str]], found: Definitions) -> None:
    """Note the groups and hosts that an inventory file in INI defines, and what is wrong with it.

    Args:
        path: the file.
        shown: how to name it in messages.
        expand: gives the hosts of a pattern with ranges; raises ValueError with a sentence.
        found: gets what was found.

    Raises:
        OSError: the file cannot be read.
    """
    before = len(found.problems)
    scan = _Scan(shown, expand, found)
    for number, line in enumerate(path.read_bytes().decode("utf-8", "replace").splitlines(), start=1):
        text = line.strip()
        if text and text[0] not in "#;":
            scan.line(text, Origin(shown, number), number)
    if scan.refused > _FEW:
        # Another kind of file that lies here: its lines are no faults of a description.
        first = found.problems[before].origin
        del found.problems[before:]
        message = f"is no inventory: {scan.refused} lines are neither host, heading nor variable; move it elsewhere"
        found.report("not-an-inventory", message, key="the file", origin=first or Origin(shown))


class _Scan:
    """Where one file has come to."""

    def __init__(self, shown: str, expand: Callable[[str], list[str]], found: Definitions) -> None:
        self.shown = shown
        self.expand = expand
        self.found = found
        self.group = "ungrouped"
        self.kind = "hosts"
        self.refused = 0
        self.hosts: dict[tuple[str, str], int] = {}
        self.variables: dict[tuple[str, str], int] = {}

    def line(self, text: str, here: Origin, number: int) -> None:
        """Read one line."""
        heading = _HEADING.match(text)
        if heading is not None:
            self.heading(heading[1], heading[2] or "hosts", here)
        elif text.startswith("[") and (text.endswith("]") or "]" not in text):
            self.refuse("ini-heading", f'"{text}" is no heading; {_HEADINGS}', here)
        elif self.kind == "hosts":
            self.host(text, here, number)
        elif self.kind == "vars":
            self.variable(text, here, number)

    def heading(self, group: str, kind: str, here: Origin) -> None:
        """Begin a section."""
        self.group, self.kind = group, kind
        if kind not in _KINDS:
            best = names.closest(kind, _KINDS)
            offer = f'; did you mean "{best}"?' if best else ""
            self.refuse("ini-heading", f"[{group}:{kind}] is no heading{offer} ({_HEADINGS})", here)
        elif kind != "vars":
            self.found.groups.setdefault(group, here)

    def host(self, text: str, here: Origin, number: int) -> None:
        """Read a host, or a range of hosts, with its variables."""
        try:
            words = shlex.split(text, comments=True)
        except ValueError:
            self.refuse("ini-line", "has a quote that is not closed", here)
            return
        try:
            hosts = self.expand(words[0])
        except ValueError as error:
            self.refuse("host-range", f'"{words[0]}" {error}', here)
            return
        settings = [word.partition("=") for word in words[1:]]
        for name, equals, _value in settings:
            if not equals:
                self.refuse("ini-line", f'has "{name}" behind the host; write {name}=VALUE', here)
        written = [name for name, _equals, _value in settings]
        for name in sorted({name for name in written if written.count(name) > 1}):
            report_key_twice(self.found.problems, (words[0], name), number, number, self.shown)
        for host in hosts:
            first = self.hosts.setdefault((self.group, host), number)
            if host not in self.found.hosts or settings:
                self.found.hosts[host] = here
            # The same line again is the same section written once.
            if first != number:
                report_host_twice(self.found.problems, host, self.group, first, number, self.shown)

    def variable(self, text: str, here: Origin, number: int) -> None:
        """Read a variable of a group."""
        name, equals, _value = (part.strip() for part in text.partition("="))
        if not equals:
            self.refuse("ini-line", f'has "{text}" among the variables of a group; write name=value', here)
            return
        first = self.variables.setdefault((self.group, name), number)
        if first != number:
            report_key_twice(self.found.problems, (f"group {self.group}", "vars", name), first, number, self.shown)

    def refuse(self, rule: str, message: str, here: Origin) -> None:
        """Note what Ansible could not read."""
        self.found.broken = True
        self.refused += 1
        self.found.report(rule, message, key=f"line {here.line}", origin=here)
