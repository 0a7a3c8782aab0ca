"""A pin exists once, and what must be equal is equal."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GALAXY = yaml.safe_load((ROOT / "galaxy.yml").read_text())


def distribution_name(requirement: str) -> str:
    """The name in a requirement, as the package index spells it."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return found.group().lower()


def installed_collection_version(name: str) -> str:
    """The version of a collection that the installed `ansible` package carries."""
    spec = importlib.util.find_spec("ansible_collections")
    assert spec and spec.submodule_search_locations
    namespace, short = name.split(".")
    for folder in spec.submodule_search_locations:
        manifest = Path(folder) / namespace / short / "MANIFEST.json"
        if manifest.is_file():
            return str(json.loads(manifest.read_text())["collection_info"]["version"])
    pytest.fail(f"the package ansible does not carry {name}")


def test_the_collection_has_the_version_of_the_package() -> None:
    assert GALAXY["version"] == PROJECT["project"]["version"]


def test_the_changelog_tells_of_this_version() -> None:
    assert f"## {PROJECT['project']['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_h4_requirements_name_the_collections_of_the_locked_ansible() -> None:
    named = yaml.safe_load((ROOT / "requirements.yml").read_text())["collections"]
    assert {item["name"]: item["version"] for item in named} == {
        item["name"]: installed_collection_version(item["name"]) for item in named
    }


def test_requirements_name_what_the_collection_depends_on() -> None:
    named = {item["name"] for item in yaml.safe_load((ROOT / "requirements.yml").read_text())["collections"]}
    assert named == set(GALAXY["dependencies"])


def test_every_collection_that_is_used_is_named() -> None:
    used = set()
    module = re.compile(r"\b((?:community|kubernetes|ansible)\.(?!builtin\b|legacy\b)[a-z_]+)\.[a-z_]+:")
    for folder in ("roles", "playbooks", "molecule"):
        for path in (ROOT / folder).rglob("*.yml"):
            used |= set(module.findall(path.read_text()))
    assert used <= set(GALAXY["dependencies"]), sorted(used)


def test_a_role_never_pins_a_version_of_the_stack() -> None:
    """Versions stand in stack.lock.yml; a role is given them."""
    lock = yaml.safe_load((ROOT / "stack.lock.yml").read_text())
    versions = {str(component["version"]) for component in lock["components"].values()}
    pattern = re.compile(r"(?<![\w.])v?(" + "|".join(re.escape(version) for version in versions) + r")(?![\w.])")
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for folder in ("roles", "playbooks", "inventories", "molecule")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix in {".yml", ".j2"}
        for match in pattern.finditer(path.read_text())
    ]
    assert found == []


def test_every_dependency_has_its_reason() -> None:
    """docs/adr/0002 names each dependency of pyproject.toml in a row of its table."""
    text = (ROOT / "docs" / "adr" / "0002-dependencies.md").read_text()
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    rows = {name.strip(" `").lower() for cell in cells for name in cell.split(",")}
    groups = PROJECT["dependency-groups"]
    wanted = {
        distribution_name(item)
        for items in (
            PROJECT["project"]["dependencies"],
            *PROJECT["project"]["optional-dependencies"].values(),
            *groups.values(),
        )
        for item in items
        if isinstance(item, str)
    }
    assert sorted(wanted - rows) == []


def test_the_extension_needs_nothing_that_the_package_does_not_lock() -> None:
    core = {distribution_name(item) for item in PROJECT["project"]["dependencies"]}
    extension = {distribution_name(item) for item in PROJECT["dependency-groups"]["extension"]}
    assert extension <= core
