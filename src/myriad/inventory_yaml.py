"""YAML files of an inventory, looked at as text: syntax errors, keys written twice, and the line of every definition.

Ansible stops at the first file that it cannot parse and lets the last of two equal keys win with a warning; a
description is checked whole, so all of that is collected here first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from myriad.fleet import names
from myriad.fleet.problems import Origin, Problem
from myriad.fleet.schema import dotted
from myriad.fleet.source import KeyPath

_VAULT_HEADER = b"$ANSIBLE_VAULT"
_MERGE_KEY = "<<"
_TEXT, _NUMBER = "tag:yaml.org,2002:str", "tag:yaml.org,2002:int"
# YAML 1.1 reads 010 as 8 and 12:30 as 750 (https://yaml.org/type/int.html): a rack or a name would silently be another.
_OTHER_NUMBER = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+)")
_GROUP_PARTS = {
    "hosts": "for example hosts: {gpu1: {}}",
    "children": "for example children: {rack1: {}}",
    "vars": "for example vars: {name: value}",
}


@dataclass(slots=True)
class Definitions:
    """Where groups and hosts are defined, by name, and what is wrong with the files.

    Attributes:
        broken: whether a file could not be parsed.
        has_plugins: whether a file configures an inventory plugin instead of listing groups.
    """

    groups: dict[str, Origin] = field(default_factory=dict)
    hosts: dict[str, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    broken: bool = False
    has_plugins: bool = False

    def report(self, rule: str, message: str, *, key: str, origin: Origin) -> None:
        """Note one error."""
        self.problems.append(Problem(rule, message, key=key, origin=origin))


def is_vault_file(path: Path) -> bool:
    """Whether a file is encrypted as a whole."""
    with path.open("rb") as stream:
        return stream.read(len(_VAULT_HEADER)) == _VAULT_HEADER


def is_mapping(path: Path) -> bool:
    """Whether a file without a suffix is YAML: a host, or a heading of INI, is no mapping.

    Raises:
        OSError: it cannot be read.
    """
    return isinstance(parse(path, "", []), yaml.MappingNode)


def parse(path: Path, shown: str, problems: list[Problem]) -> yaml.Node | None:
    """Node tree of a file; None where it is empty or cannot be parsed (then `problems` says so).

    Raises:
        OSError: the file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return yaml.compose(stream, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        what = error.problem or "cannot be parsed"
        begin = f" that begins on line {error.context_mark.line + 1}" if error.context_mark else ""
        around = f" ({error.context}{begin})" if error.context else ""
        if line is not None and _begins_with_tab(path, line):
            what, around = "the line begins with a tab; indent with spaces", ""
        problems.append(
            Problem(
                "yaml-syntax", f"is not valid YAML: {what}{around}", key=_line_key(line), origin=Origin(shown, line)
            )
        )
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problems.append(
            Problem(
                "yaml-syntax", f"is not valid YAML: {str(error).splitlines()[0]}", key="the file", origin=Origin(shown)
            )
        )
    return None


def _line_key(line: int | None) -> str:
    return f"line {line}" if line is not None else "the file"


def scan_variables(path: Path, shown: str, prefix: KeyPath = ()) -> tuple[list[Problem], bool]:
    """Problems of a variables file, and whether it can be read at all."""
    problems: list[Problem] = []
    node = parse(path, shown, problems)
    if node is None:
        return problems, not problems
    if not isinstance(node, yaml.MappingNode):
        problems.append(
            Problem(
                "file-shape",
                "is not a mapping; a variables file holds lines `name: value`",
                key="the file",
                origin=Origin(shown, node.start_mark.line + 1),
            )
        )
        return problems, False
    problems += _doubled_keys(node, shown, prefix)
    problems += _other_numbers(node, shown, prefix)
    return problems, True


def scan_inventory(path: Path, shown: str, expand: Callable[[str], list[str]], found: Definitions) -> None:
    """Note the groups and hosts that an inventory file in YAML defines, and what is wrong with it.

    Args:
        path: the file.
        shown: how to name it in messages.
        expand: gives the hosts of a pattern with ranges; raises ValueError with a sentence.
        found: gets what was found.
    """
    before = len(found.problems)
    if is_vault_file(path):
        found.broken = True
        message = "is encrypted as a whole; hosts are no secret: `ansible-vault decrypt` it, and encrypt single values"
        found.report("encrypted", message, key="the file", origin=Origin(shown))
        return
    node = parse(path, shown, found.problems)
    if node is None:
        found.broken = found.broken or len(found.problems) > before
        return
    if not isinstance(node, yaml.MappingNode):
        found.broken = True
        found.problems.append(
            Problem(
                "file-shape",
                "is not an inventory: it holds no mapping of groups; begin with `all:` and its children",
                key="the file",
                origin=Origin(shown, node.start_mark.line + 1),
            )
        )
        return
    if any(key.value == "plugin" for key, _value in _pairs(node)):
        found.has_plugins = True
        return
    for name, group in _pairs(node):
        _scan_group(name, group, shown, expand, found)
    found.problems += _doubled_here(node, shown, ())


def _scan_group(
    name: yaml.Node, group: yaml.Node, shown: str, expand: Callable[[str], list[str]], found: Definitions
) -> None:
    title = str(name.value)
    here = Origin(shown, name.start_mark.line + 1)
    # A group may be named in several places; the one that says something about it is where it is defined.
    if title not in found.groups or (isinstance(group, yaml.MappingNode) and group.value):
        found.groups[title] = here
    found.problems += _doubled_here(group, shown, (f"group {title}",))
    for key, value in _pairs(group):
        part = str(key.value)
        if part not in _GROUP_PARTS:
            found.broken = True
            best = names.closest(part, _GROUP_PARTS)
            offer = f'; did you mean "{best}"?' if best else ""
            found.report(
                "group-part",
                f'has a part "{part}", which Ansible would skip{offer} (allowed: hosts, children, vars)',
                key=f"group {title}",
                origin=Origin(shown, key.start_mark.line + 1),
            )
        elif isinstance(value, yaml.SequenceNode):
            found.broken = True
            found.report(
                "file-shape",
                f"lists its {part} with [ ] or dashes; write a mapping, {_GROUP_PARTS[part]}",
                key=f"group {title}",
                origin=Origin(shown, value.start_mark.line + 1),
            )
        elif part == "children":
            found.problems += _doubled_here(value, shown, (f"group {title}", "children"))
            for child_name, child in _pairs(value):
                _scan_group(child_name, child, shown, expand, found)
        elif part == "hosts":
            _scan_hosts(title, value, shown, expand, found)
        else:
            found.problems += _doubled_keys(value, shown, (f"group {title}", "vars"))
            found.problems += _other_numbers(value, shown, ())


def _scan_hosts(
    group: str, hosts: yaml.Node, shown: str, expand: Callable[[str], list[str]], found: Definitions
) -> None:
    seen: dict[str, int] = {}
    for pattern, variables in _pairs(hosts):
        line = pattern.start_mark.line + 1
        written, here = str(pattern.value), Origin(shown, line)
        if written == _MERGE_KEY:
            continue
        if pattern.tag != _TEXT:
            found.broken = True
            found.report("host-name", f'"{written}" is no text for YAML: write it in quotes', key="host", origin=here)
            continue
        try:
            hosts_of_pattern = expand(written)
        except ValueError as error:
            found.broken = True
            found.report("host-range", f'"{written}" {error}', key=f"group {group}", origin=here)
            continue
        for host in hosts_of_pattern:
            first = seen.get(host)
            seen.setdefault(host, line)
            if host not in found.hosts or (isinstance(variables, yaml.MappingNode) and variables.value):
                found.hosts[host] = here
            if first is not None:
                report_host_twice(found.problems, host, group, first, line, shown)
        found.problems += _doubled_keys(variables, shown, (written,))
        found.problems += _other_numbers(variables, shown, ())


def report_host_twice(problems: list[Problem], host: str, group: str, first: int, line: int, shown: str) -> None:
    """Note that a group lists a host on two lines, or twice on one."""
    message = f"is listed twice in group {group} ({_both(first, line)}); remove one of them"
    problems.append(Problem("host-twice", message, hosts=(host,), origin=Origin(shown, line)))


def report_key_twice(problems: list[Problem], key: KeyPath, first: int, line: int, shown: str) -> None:
    """Note that a key is written on two lines, or twice on one."""
    lines = f"line {line}" if first == line else f"lines {first} and {line}"
    message = f"is written twice ({lines}); the second would silently win: remove one of them"
    problems.append(Problem("key-twice", message, key=dotted(key), origin=Origin(shown, line)))


def _both(first: int, line: int) -> str:
    return f"both on line {line}" if first == line else f"lines {first} and {line}"


def _begins_with_tab(path: Path, line: int) -> bool:
    """Whether a line (counted from 1) is indented with a tab: the parser only says that a token cannot start."""
    lines = path.read_bytes().splitlines()
    text = lines[line - 1] if line <= len(lines) else b""
    return b"\t" in text[: len(text) - len(text.lstrip())]


def _pairs(node: yaml.Node) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        yield from node.value


def _doubled_here(node: yaml.Node, shown: str, prefix: KeyPath) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for key, _value in _pairs(node):
        if not isinstance(key, yaml.ScalarNode) or key.value == _MERGE_KEY:
            continue
        line = key.start_mark.line + 1
        first = seen.get(key.value)
        if first is None:
            seen[key.value] = line
            continue
        found: list[Problem] = []
        report_key_twice(found, (*prefix, key.value), first, line, shown)
        yield from found


def _nodes(node: yaml.Node, path: KeyPath) -> Iterator[tuple[yaml.Node, KeyPath]]:
    """Every node of a document with where it stands, from the top down."""
    yield node, path
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _nodes(value, (*path, str(key.value)))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _nodes(value, (*path, index))


def _other_numbers(node: yaml.Node, shown: str, prefix: KeyPath) -> Iterator[Problem]:
    """Numbers of the description that YAML reads as others than they look."""
    for key, value in _pairs(node):
        if not str(key.value).startswith("myriad_"):
            continue
        for found, path in _nodes(value, (*prefix, str(key.value))):
            if (
                isinstance(found, yaml.ScalarNode)
                and not found.style
                and found.tag == _NUMBER
                and _OTHER_NUMBER.fullmatch(found.value)
            ):
                read = yaml.safe_load(found.value)
                yield Problem(
                    "other-number",
                    f"is written {found.value}, and YAML reads the number {read}; "
                    f'write "{found.value}" in quotes, or {read}',
                    key=dotted(path),
                    origin=Origin(shown, found.start_mark.line + 1),
                )


def _doubled_keys(node: yaml.Node, shown: str, prefix: KeyPath) -> Iterator[Problem]:
    for found, path in _nodes(node, prefix):
        yield from _doubled_here(found, shown, path)
