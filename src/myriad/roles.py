"""What the roles of the collection take: their argument specs, read and asked about.

Ansible checks the variables that a spec names and passes over those that it does not, so `kueue_replica: 3` would be
taken without a word. A name in a role's own space that its spec does not have is an error here.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from myriad.errors import MyriadError
from myriad.fleet import Checked
from myriad.fleet.driver import channel_refusals
from myriad.fleet.names import show
from myriad.fleet.problems import Problem, fold
from myriad.fleet.source import RawInventory, RawSetting

_WORDS = {
    "bool": "yes or no (true or false)",
    "dict": "a mapping of names to values",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "path": "a path",
    "str": "text",
}
"""What an option's type means to a person."""


class _Loader(yaml.SafeLoader):
    """Reads role files: `!unsafe` marks a default that holds a template and must not be rendered with the spec."""


def _unsafe(loader: yaml.Loader, node: yaml.Node) -> Any:
    return loader.construct_scalar(node)  # type: ignore[arg-type]  # the tag stands before scalars only


_Loader.add_constructor("!unsafe", _unsafe)


def load_yaml(path: Path) -> Any:
    """A YAML file of a role, with `!unsafe` scalars as plain text; None when it is empty."""
    return yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 (a SafeLoader with one more tag)


def roles_folder() -> Path:
    """The roles of the installed collection, or of the clone that this package is run from.

    Raises:
        MyriadError: neither is there.
    """
    places = [Path(entry) / "ansible_collections" / "myriad" / "gpu" / "roles" for entry in sys.path]
    for folder in (*places, Path(__file__).parents[2] / "roles"):
        if folder.is_dir():
            return folder
    raise MyriadError(
        "the roles of the collection myriad.gpu are not installed",
        where=str(Path(__file__).parent),
        hint="Install the wheel again, or run `make env` in a clone.",
    )


def declared_options(roles: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Role to the variables of its spec, each with its option as in meta/argument_specs.yml.

    Args:
        roles: the folder that holds the roles.
    """
    found = {}
    for path in sorted(roles.glob("*/meta/argument_specs.yml")):
        found[path.parents[1].name] = load_yaml(path)["argument_specs"]["main"].get("options") or {}
    return found


def declared_variables(roles: Path) -> dict[str, frozenset[str]]:
    """Role to the variables of its spec."""
    return {role: frozenset(options) for role, options in declared_options(roles).items()}


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


def with_role_settings(checked: Checked, raw: RawInventory, roles: Path) -> Checked:
    """The check of a description, and with it what is wrong with the inventory's variables of roles."""
    found = setting_problems(raw.settings, declared_options(roles))
    return replace(checked, problems=tuple(fold([*checked.problems, *found])))


def setting_problems(
    settings: Iterable[RawSetting], options: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> Iterator[Problem]:
    """What is wrong with variables of roles in an inventory: a name that the role lacks, a value that it refuses.

    Args:
        settings: as the inventory has them. A value with a template in it is judged when the role runs.
        options: as `declared_options` gives them.
    """
    declared = {role: frozenset(taken) for role, taken in options.items()}
    for setting in settings:
        role = role_of(setting.name, options)
        if role is None:
            continue
        option = options[role].get(setting.name)
        if option is None:
            sentence = unknown_variables([setting.name], declared)[0].removeprefix(f"{setting.name} ")
            yield _problem("unknown-role-variable", setting, sentence)
        elif not _has_template(setting.value):
            faults = list(_faults(setting, option))
            if setting.name == "gpu_driver_channel" and not faults:
                faults = [f"is wrong: {refusal.what}; {refusal.todo}" for refusal in channel_refusals(setting.value)]
            for fault in faults:
                yield _problem("role-variable", setting, fault)


def _problem(rule: str, setting: RawSetting, message: str) -> Problem:
    kind, _, name = setting.holder.partition(" ")
    if kind == "host":
        return Problem(rule, f"{setting.name} {message}", key=setting.name, hosts=(name,), origin=setting.origin)
    place = "" if name == "all" else f"({setting.holder}) "
    return Problem(rule, place + message, key=setting.name, origin=setting.origin)


def _has_template(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_has_template(inner) for pair in value.items() for inner in pair)
    if isinstance(value, list):
        return any(_has_template(inner) for inner in value)
    return isinstance(value, str) and ("{{" in value or "{%" in value or value == "(encrypted)")


def _faults(setting: RawSetting, option: Mapping[str, Any]) -> Iterator[str]:
    """Sentences, judged by the validator with which Ansible judges the role's arguments."""
    # Late: most of this module's users need no Ansible.
    from ansible.module_utils import errors as ansible_errors
    from ansible.module_utils.common import arg_spec

    spec = {setting.name: {key: value for key, value in option.items() if key != "description"}}
    judged = arg_spec.ArgumentSpecValidator(spec).validate({setting.name: setting.value})
    for error in judged.errors.errors:
        if isinstance(error, ansible_errors.ArgumentValueError) and setting.value not in (option.get("choices") or ()):
            choices = [str(choice) for choice in option.get("choices") or ()]
            if choices and not isinstance(setting.value, list | dict):
                close = difflib.get_close_matches(str(setting.value), choices, n=1)
                meant = f'; did you mean "{close[0]}"?' if close else ""
                yield f"is {show(setting.value)}; it may be {', '.join(choices)}{meant}"
                continue
        kind = str(option.get("type") or "str")
        if isinstance(error, ansible_errors.ElementError):
            yield f"has an item that is not {_WORDS.get(str(option.get('elements')), option.get('elements'))}"
        elif isinstance(error, ansible_errors.ArgumentTypeError) and "found in" not in error.msg:
            yield f"is {show(setting.value)}; it has to be {_WORDS.get(kind, kind)}"
        elif not isinstance(error, ansible_errors.NoLogError):  # says again, in other words, what another error says
            yield f"is not what the role takes: {error.msg}"
