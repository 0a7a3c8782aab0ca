"""What is wrong with an image.yml or matrix.yml, as lines for people: the key, what it is, what is allowed."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from myriad.errors import InputError
from myriad.fleet.names import did_you_mean

Problem = tuple[str, str]
"""A key with dots, and a sentence that begins with is, has or needs."""

_SHOWN = 60


class _Loader(yaml.SafeLoader):
    """Remembers keys that are written twice: YAML lets the last one win without a word."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.twice: list[Problem] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    self.twice.append((key.value, f"is written twice, on lines {seen[key.value]} and {line}"))
                seen[key.value] = line
        return super().construct_mapping(node, deep=deep)


def read_yaml(path: Path, *, hint: str) -> tuple[Any, list[Problem]]:
    """A YAML file's value, and the keys that are written twice.

    Raises:
        InputError: it is missing, not text, no YAML, or no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"there is no {path.name}", where=str(path.parent), hint=hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from error
    loader: _Loader | None = None
    try:
        loader = _Loader(text.removeprefix("\ufeff"))
        value = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        tab = mark is not None and text.splitlines()[mark.line : mark.line + 1] and "\t" in text.splitlines()[mark.line]
        what = "the line holds a tab; indent with spaces" if tab else error.problem or "it cannot be parsed"
        raise InputError(f"not YAML: {what}", where=place) from error
    except yaml.reader.ReaderError as error:
        # The reader looks for such characters before anything is parsed.
        line = text.count("\n", 0, error.position) + 1
        what = f"the character {error.character!r} cannot stand in YAML"
        raise InputError(f"not YAML: {what}", where=f"{path}:{line}", hint="write the file anew as text") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # Values that look like a date or a number and are none, such as 2026-13-40, and lists a thousand deep.
        raise InputError(f"not YAML: {error}", where=str(path)) from error
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(value, dict):
        kind = "is empty" if value is None else f"holds a {type(value).__name__}"
        raise InputError(f"{kind}; it must be a mapping of keys to values", where=str(path))
    return value, loader.twice


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Pydantic's findings as a key and a sentence each."""
    found: dict[str, str] = {}
    for one in error.errors():
        path = _without_branch(one["loc"])
        key = ".".join(str(part) for part in path) or "the file"
        sentence = _sentence(one, path, model)
        # A value that fits none of several kinds is reported once for each; the most telling one is kept.
        if key not in found or (one["type"] == "value_error" and key in found):
            found[key] = sentence
    return list(found.items())


def _without_branch(path: Sequence[Any]) -> list[Any]:
    """A path without the word that pydantic puts behind `base` for the kind of base."""
    return [part for number, part in enumerate(path) if not (number == 1 and path[0] == "base")]


def report(problems: Sequence[Problem]) -> str:
    """All problems as one text, a line each."""
    width = max(len(key) for key, _ in problems)
    lines = [f"  {key.ljust(width)}  {sentence}" for key, sentence in problems]
    count = f"{len(problems)} error{'' if len(problems) == 1 else 's'}"
    return "\n".join((count, *lines))


def _sentence(one: Any, path: Sequence[Any], model: type[BaseModel]) -> str:
    allowed = _allowed(path, model)
    kind, value = one["type"], one.get("input")
    if kind == "extra_forbidden":
        keys = list(_keys(path[:-1], model))
        return f"is no key here{did_you_mean(str(path[-1]), keys) or '; allowed: ' + ', '.join(keys)}"
    if kind == "invalid_key":
        return "is no text to YAML, and keys are words; write it in quotes if it is meant"
    if kind == "missing":
        return f"is missing; {allowed}" if allowed else "is missing"
    if kind == "value_error":
        return str(one["ctx"]["error"])
    if value is None:
        return f"is empty; {allowed or one['msg']}"
    if isinstance(value, dict | list) and kind not in ("too_short",):
        return f"is a {'mapping' if isinstance(value, dict) else 'list'}; {allowed or one['msg']}"
    shown = repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
    return f"is {shown}; {allowed or one['msg']}"


def _fields(path: Sequence[Any], model: type[BaseModel]) -> Iterator[tuple[type[BaseModel], str]]:
    """The model and field name of each text part of a path."""
    current: tuple[type[BaseModel], ...] = (model,)
    for part in path:
        if not isinstance(part, str):
            continue
        for owner in current:
            name = next((n for n, field in owner.model_fields.items() if part in (n, field.alias)), None)
            if name is not None:
                yield owner, name
                current = tuple(_models(owner.model_fields[name].annotation))
                break
        else:
            return


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models inside a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _models(inner)


def _allowed(path: Sequence[Any], model: type[BaseModel]) -> str:
    fields = list(_fields(path, model))
    if not fields or (isinstance(path[-1], str) and fields[-1][1] != path[-1] and not _is_alias(fields[-1], path[-1])):
        # A key of a free mapping, such as pins.torch: what its mapping says.
        return fields[-1][0].model_fields[fields[-1][1]].description or "" if fields else ""
    owner, name = fields[-1]
    return owner.model_fields[name].description or ""


def _is_alias(found: tuple[type[BaseModel], str], part: str) -> bool:
    return found[0].model_fields[found[1]].alias == part


def _keys(path: Sequence[Any], model: type[BaseModel]) -> Iterator[str]:
    """The keys that are allowed at a path."""
    owners: Sequence[type[BaseModel]] = (model,)
    fields = list(_fields(path, model))
    if fields:
        owners = tuple(_models(fields[-1][0].model_fields[fields[-1][1]].annotation))
    for owner in owners:
        for name, field in owner.model_fields.items():
            yield field.alias or name
