"""Rules of the code that runs on nodes: old Pythons, the standard library, options that equal their documentation."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
import yaml

PLUGINS = Path(__file__).parents[3] / "plugins"
NODE_CODE = sorted([*(PLUGINS / "modules").glob("*.py"), *(PLUGINS / "module_utils").glob("*.py")])
MODULES = sorted(path.stem for path in (PLUGINS / "modules").glob("*.py"))
ALLOWED = ("ansible.module_utils", "ansible_collections.myriad.gpu.plugins.module_utils", "__future__")


@pytest.mark.parametrize("path", NODE_CODE, ids=lambda path: path.stem)
def test_parses_on_python_3_9_and_imports_the_standard_library_only(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    for statement in ast.walk(tree):
        names = []
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            names = [statement.module or ""]
        for name in names:
            assert name.split(".")[0] in sys.stdlib_module_names or name.startswith(ALLOWED), f"{path.name}: {name}"
        # Syntax of 3.10 that feature_version lets through.
        assert not isinstance(statement, ast.Match)


def documented(name: str, plugin) -> dict:
    module = plugin(f"modules.{name}")
    options = yaml.safe_load(module.DOCUMENTATION)["options"]
    if "extends_documentation_fragment" in yaml.safe_load(module.DOCUMENTATION):
        fragment = plugin("doc_fragments.state").ModuleDocFragment.DOCUMENTATION
        options = {**yaml.safe_load(fragment)["options"], **options}
    return options


def compare(where: str, options: dict, arguments: dict) -> list[str]:
    problems = [f"{where}{name} is documented and not accepted" for name in set(options) - set(arguments)]
    problems += [f"{where}{name} is accepted and not documented" for name in set(arguments) - set(options)]
    for name in set(options) & set(arguments):
        option, argument = options[name], arguments[name]
        for key, default in (
            ("type", "str"),
            ("default", None),
            ("required", False),
            ("elements", None),
            ("choices", None),
        ):
            if option.get(key, default) != argument.get(key, default):
                problems.append(f"{where}{name}: {key} is {argument.get(key)!r}, documented {option.get(key)!r}")
        if "suboptions" in option:
            problems += compare(f"{where}{name}.", option["suboptions"], argument.get("options", {}))
    return problems


@pytest.mark.parametrize("name", MODULES)
def test_options_equal_their_documentation(name, plugin):
    module = plugin(f"modules.{name}")
    assert compare("", documented(name, plugin), module.ARGUMENTS) == []


@pytest.mark.parametrize("name", MODULES)
def test_examples_and_return_values_are_yaml_and_name_the_module(name, plugin):
    module = plugin(f"modules.{name}")
    tasks = yaml.safe_load(module.EXAMPLES)
    assert any(f"myriad.gpu.{name}" in task for task in tasks)
    options = documented(name, plugin)
    for task in tasks:
        assert set(task.get(f"myriad.gpu.{name}", {})) <= set(options), task["name"]
    assert all("description" in value for value in yaml.safe_load(module.RETURN).values())
