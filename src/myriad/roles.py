"""What the roles of the collection take: their argument specs, read and asked about.

Ansible checks the variables that a spec names and passes over those that it does not, so `kueue_replica: 3` would be
taken without a word. A name in a role's own space that its spec does not have is an error here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Reads role files: `!unsafe` marks a default that holds a template and must not be rendered with the spec."""


def _unsafe(loader: yaml.Loader, node: yaml.Node) -> Any:
    return loader.construct_scalar(node)  # type: ignore[arg-type]  # the tag stands before scalars only


_Loader.add_constructor("!unsafe", _unsafe)


def load_yaml(path: Path) -> Any:
    """A YAML file of a role, with `!unsafe` scalars as plain text; None when it is empty."""
    return yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 (a SafeLoader with one more tag)


def declared_variables(roles: Path) -> dict[str, frozenset[str]]:
    """Role to the variables of its spec.

    Args:
        roles: the folder that holds the roles.
    """
    found = {}
    for path in sorted(roles.glob("*/meta/argument_specs.yml")):
        options = load_yaml(path)["argument_specs"]["main"].get("options") or {}
        found[path.parents[1].name] = frozenset(options)
    return found


def role_of(name: str, roles: Iterable[str]) -> str | None:
    """The role in whose space a variable's name is: the longest role name that it begins with."""
    return max((role for role in roles if name.startswith(f"{role}_")), key=len, default=None)


def unknown_variables(names: Iterable[str], declared: Mapping[str, frozenset[str]]) -> list[str]:
    """A sentence for every name in a role's space that the role does not take, with what was probably meant."""
    sentences = []
    for name in sorted(set(names)):
        role = role_of(name, declared)
        if role is None or name in declared[role]:
            continue
        # The common prefix makes no two names alike.
        short = {other.removeprefix(f"{role}_"): other for other in declared[role]}
        close = difflib.get_close_matches(name.removeprefix(f"{role}_"), short, n=1)
        meant = f'; did you mean "{short[close[0]]}"?' if close else f"; roles/{role}/README.md lists them"
        sentences.append(f"{name} is no variable of the role {role}{meant}")
    return sentences
