"""The description is read once for a run, and by nobody's task."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError

LAB = Path(__file__).parents[3] / "inventories" / "lab"


@pytest.fixture
def described(plugin):
    module = plugin("plugin_utils.described")
    yield module
    module.forget()


@pytest.fixture
def inventory(tmp_path):
    return Path(shutil.copytree(LAB, tmp_path / "inventory"))


def teams(inventory: Path, text: str) -> None:
    (inventory / "group_vars" / "all" / "teams.yml").write_text(text)


def test_what_was_kept_is_what_every_task_sees(described, inventory):
    sources = [str(inventory)]
    described.keep(sources)
    first = described.fleet_of(sources)
    teams(inventory, "myriad_teams: {other: {namespaces: [other], quota: {h100: 8}, cohort: research}}\n")
    assert described.fleet_of(sources) is first
    assert described.raw_inventory(sources) is described.raw_inventory(sources)
    described.forget()
    after = described.fleet_of(sources)
    assert json.dumps(after["objects"]) != json.dumps(first["objects"])


def test_nothing_is_kept_by_reading(described, inventory):
    sources = [str(inventory)]
    before = described.fleet_of(sources)
    teams(inventory, "myriad_teams: {other: {namespaces: [other], quota: {h100: 8}, cohort: research}}\n")
    assert described.fleet_of(sources) != before


def test_a_wrong_description_is_told_by_the_task_that_needs_it(described, inventory, plugin):
    teams(inventory, "myriad_teams: {other: {namespaces: [], quota: {h100: -1}}}\n")
    described.keep([str(inventory)])
    with pytest.raises(AnsibleFilterError, match="nothing was touched"):
        described.fleet_of([str(inventory)])
    problems = plugin("filter.fleet").fleet_problems([str(inventory)])
    assert any("other" in json.dumps(problem) for problem in problems)


def test_sources_that_are_not_there_do_not_stop_the_run_before_it_begins(described, tmp_path):
    described.keep([str(tmp_path / "nowhere")])
    with pytest.raises(AnsibleFilterError):
        described.fleet_of([str(tmp_path / "nowhere")])
    with pytest.raises(AnsibleFilterError, match="give the inventory sources"):
        described.fleet_of({})
