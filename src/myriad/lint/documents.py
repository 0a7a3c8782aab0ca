"""YAML and JSON read into objects that know the file and line of each of their keys. Pure: text in, objects out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from myriad.errors import InputError

Json = dict[str, Any]
KeyPath = tuple[str | int, ...]

_MERGE_KEY = "<<"
_BYTE_ORDER_MARK = re.compile("^\ufeff+", re.MULTILINE)
#: Lists within lists; nobody writes more than one, and an alias can make it endless.
_DEEPEST = 8
#: Keys by which a Volcano scheduler configuration that stands alone (no ConfigMap around it) is known.
_VOLCANO_KEYS = frozenset({"actions", "tiers"})
#: Kind given to it, so that rules find it like any other.
VOLCANO_CONFIGURATION = "VolcanoSchedulerConfiguration"


class _Loader(yaml.CSafeLoader):
    """Kubernetes has no dates: what looks like one stays a text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


class NotAnObject(InputError):
    """A document is a list or a text: fine beside objects in a folder, wrong where an object is asked for."""


@dataclass(frozen=True, slots=True)
class Doubled:
    """A key that a mapping has twice.

    Attributes:
        key: the key.
        line: where it stands the second time, counted from 1.
        first: where it stands first.
    """

    key: str
    line: int
    first: int


@dataclass(frozen=True, slots=True)
class Document:
    """One object and where it was written.

    Attributes:
        body: the object.
        file: path as the user gave it; empty for an object of a cluster or of an inventory.
        node: the parser's tree of it, None where lines are not known.
        offset: lines in the file before the text that was parsed.
        doubled: keys that stand twice.
    """

    body: Json
    file: str = ""
    node: yaml.Node | None = None
    offset: int = 0
    doubled: tuple[Doubled, ...] = ()

    def line(self, path: KeyPath = ()) -> int | None:
        """Line of the key at `path`, counted from 1, or of the nearest part around it that was written."""
        if self.node is None:
            return None
        node, mark = self.node, self.node.start_mark
        for part in path:
            step = _step(node, part)
            if step is None:
                break
            mark, node = step
        return int(mark.line) + 1 + self.offset

    def part(self, path: KeyPath, body: Json) -> Document:
        """The same place for an object inside this one (an item of a List)."""
        node = self.node
        for part in path:
            step = _step(node, part) if node is not None else None
            node = step[1] if step else None
        return Document(body, self.file, node, self.offset, self.doubled)

    def inner(self, path: KeyPath, text: str) -> list[Document]:
        """Documents in a text that stands at `path` (a configuration file in a ConfigMap).

        Raises:
            InputError: the text is not YAML.
        """
        node: yaml.Node | None = self.node
        for part in path:
            step = _step(node, part) if node is not None else None
            node = step[1] if step else None
        offset: int | None = None
        if node is not None:
            # The content of a block begins on the line after its `|`; of any other text only the first line is known.
            literal = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
            offset = self.offset + int(node.start_mark.line) + (1 if literal else 0)
        where = f"{self.file}, {'.'.join(map(str, path))}" if self.file else ".".join(map(str, path))
        try:
            documents = list(_parse(text, self.file, offset or 0))
        except InputError as error:
            raise InputError(
                error.message, where=error.where if offset is not None else where, hint=error.hint
            ) from None
        if offset is None:
            return [Document(d.body, d.file) for d in documents]
        return documents


def read_text(text: str, file: str) -> list[Document]:
    """Every object of a text; empty documents are left out, lists are taken apart.

    Args:
        text: YAML with any number of documents, or JSON.
        file: how to name it in messages.

    Raises:
        InputError: it is neither, or a document is no object. Names file and line.
    """
    return [item for document in _parse(text, file, 0) for item in _flatten(document)]


def is_object(body: Mapping[str, Any]) -> bool:
    """Whether a mapping says what it is: apiVersion and kind."""
    return isinstance(body.get("kind"), str) and isinstance(body.get("apiVersion"), str)


def is_volcano_configuration(body: Mapping[str, Any]) -> bool:
    """Whether a mapping is the content of Volcano's scheduler configuration file."""
    return "kind" not in body and set(body) <= _VOLCANO_KEYS | {"configurations", "metrics"} and "actions" in body


def _flatten(document: Document, depth: int = 0) -> Iterator[Document]:
    body = document.body
    kind, items = str(body.get("kind", "")), body.get("items")
    if not kind.endswith("List") or not (isinstance(items, list) or ("items" in body and items is None)):
        yield document
        return
    if depth > _DEEPEST:
        raise InputError(
            "holds a list within a list without end",
            where=_where(document.file, document.line()),
            hint="write the objects one after the other, with --- between them",
        )
    # The API server writes what all items of a JobList are only once, in the list.
    shared = {"apiVersion": body.get("apiVersion"), "kind": kind.removesuffix("List")} if kind != "List" else {}
    for index, item in enumerate(items or ()):
        if not isinstance(item, dict):
            raise _not_an_object(item, document.file, document.line(("items", index)))
        yield from _flatten(document.part(("items", index), {**shared, **item}), depth + 1)


def _parse(text: str, file: str, offset: int) -> Iterator[Document]:
    # Each of several files that were joined brings its own mark.
    text = _BYTE_ORDER_MARK.sub("", text)
    parsed = _parse_json(text, file, offset) if text.lstrip()[:1] in ("{", "[") else None
    for document in parsed if parsed is not None else _parse_yaml(text, file, offset):
        if document.body is None:
            continue
        if not isinstance(document.body, dict):
            raise _not_an_object(document.body, file, document.line())
        yield document


def _not_an_object(value: Any, file: str, line: int | None) -> NotAnObject:
    what = {list: "a list", str: "a text", bool: "a truth value", int: "a number", float: "a number"}.get(
        type(value), f"a {type(value).__name__}"
    )
    shown = next(iter(value.splitlines()), "")[:40] if isinstance(value, str) else ""
    return NotAnObject(
        f"this is {what}, not an object" + (f": {shown!r}" if shown else ""),
        where=_where(file, line),
        hint="each document is a mapping with apiVersion, kind, metadata and spec",
    )


def _where(file: str, line: int | None) -> str:
    return f"{file}:{line}" if line is not None else file


def _parse_json(text: str, file: str, offset: int) -> list[Document] | None:
    """Documents of JSON, one after the other; None where it is not JSON (flow YAML begins with a brace too)."""
    decoder = json.JSONDecoder()
    found: list[Document] = []
    at = 0
    while at < len(text):
        while at < len(text) and text[at] in " \t\r\n":
            at += 1
        if at >= len(text):
            break
        try:
            body, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return None
        before = text.count("\n", 0, at) + offset
        node: yaml.Node | None = None
        doubled: tuple[Doubled, ...] = ()
        try:
            # JSON may indent with tabs, which YAML may not; a tab cannot stand in a JSON text unescaped.
            node = yaml.compose(text[at:end].replace("\t", " "), Loader=_Loader)
            doubled = _doubled(node, before) if node is not None else ()
        except yaml.YAMLError:
            # Escapes that YAML lacks: the object is known, its lines are not.
            node = None
        found.append(Document(body, file, node, before, doubled))
        at = end
    return found


def _parse_yaml(text: str, file: str, offset: int) -> Iterator[Document]:
    try:
        loader = _Loader(text)
    except yaml.YAMLError as error:
        raise _syntax(error, text, file, offset) from None
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                break
            doubled = _doubled(node, offset)
            body = loader.construct_document(node)
            yield Document(body, file, node, offset, doubled)
    except yaml.YAMLError as error:
        raise _syntax(error, text, file, offset) from None
    except RecursionError:
        raise InputError("is nested too deeply to be read", where=file, hint="give a Kubernetes manifest") from None
    except (ValueError, OverflowError) as error:
        # A number such as 0x or 1_: the form is taken for a number that Python cannot read.
        raise InputError(f"cannot be read as YAML: {error}", where=file, hint="quote the text that it names") from None
    finally:
        loader.dispose()


def _syntax(error: yaml.YAMLError, text: str, file: str, offset: int) -> InputError:
    line: int | None = None
    what = str(error).splitlines()[0]
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = int(mark.line) + 1 if mark else None
        what = error.problem or what
        if error.context:
            begin = f" that begins on line {error.context_mark.line + 1 + offset}" if error.context_mark else ""
            what += f" ({error.context}{begin})"
    elif isinstance(error, yaml.reader.ReaderError):
        position = error.position if isinstance(error.position, int) else 0
        line = text.count("\n", 0, position) + 1
        # The two parsers of PyYAML give the character as a text or as its number.
        code = ord(error.character) if isinstance(error.character, str) else error.character
        what = f"it holds the character {code:#04x}, which no text has"
    lines = text.splitlines()
    shown = lines[line - 1] if line is not None and line <= len(lines) else ""
    hint = "correct it there"
    if shown[: len(shown) - len(shown.lstrip())].count("\t"):
        what, hint = "the line begins with a tab", "indent with spaces"
    elif "{{" in shown or "{%" in shown:
        hint = "this looks like a template: render it first (`helm template`, `myriad render`) and lint what comes out"
    elif "constructor for the tag" in what:
        hint = "Kubernetes knows no tags: write the value itself"
    return InputError(f"is not valid YAML: {what}", where=_where(file, line + offset if line else None), hint=hint)


def _doubled(root: yaml.Node, offset: int) -> tuple[Doubled, ...]:
    """Keys that stand twice in a mapping. Each node is looked at once, however many aliases lead to it."""
    found: list[Doubled] = []
    seen: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            stack.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            keys: dict[str, int] = {}
            for key, value in node.value:
                stack.append(value)
                if not isinstance(key, yaml.ScalarNode) or key.value == _MERGE_KEY:
                    continue
                line = int(key.start_mark.line) + 1 + offset
                if key.value in keys:
                    found.append(Doubled(str(key.value), line, keys[key.value]))
                else:
                    keys[key.value] = line
    return tuple(sorted(found, key=lambda item: item.line))


def _step(node: yaml.Node, part: str | int) -> tuple[yaml.Mark, yaml.Node] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and 0 <= part < len(node.value):
        value = node.value[part]
        return value.start_mark, value
    if isinstance(node, yaml.MappingNode):
        # What is merged by `<<` stands before the mapping's own keys, so the last one counts.
        for key, value in reversed(node.value):
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                return key.start_mark, value
    return None
