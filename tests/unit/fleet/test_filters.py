"""The filters of the collection, called as Ansible's templates call them."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.myriad.gpu.plugins.filter import fleet as plugin

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "inventories" / "example"
BROKEN = ROOT / "tests" / "fixtures" / "broken"

FILTERS = plugin.FilterModule().filters()
DESCRIPTION: dict[str, Any] = {
    "myriad_pools": {"h100": {"model": "H100-SXM5-80GB"}},
    "myriad_teams": {"vision": {"namespaces": ["vision"], "quota": {"h100": 16}}},
}
GROUPS = {
    "all": ["cp1", "gpu1", "gpu2"],
    "ungrouped": [],
    "control_plane": ["cp1"],
    "gpu_nodes": ["gpu1", "gpu2"],
    "pool_h100": ["gpu1", "gpu2"],
    "pool1_rack": ["gpu1"],
}
LOCATIONS = {"gpu1": "a/b/c", "gpu2": "a/b/d"}


def test_objects_from_the_variables_of_a_play() -> None:
    objects = FILTERS["fleet_objects"](copy.deepcopy(DESCRIPTION), GROUPS, LOCATIONS)
    kinds = [item["kind"] for item in objects]
    assert kinds[0] == "Namespace"
    assert kinds.index("LocalQueue") < kinds.index("ConfigMap")
    assert "ClusterQueue" in kinds


def test_a_wrong_description_fails_with_all_that_is_wrong() -> None:
    wrong = copy.deepcopy(DESCRIPTION)
    wrong["myriad_teams"]["vision"] |= {"weight": 0, "cohort": "research"}
    with pytest.raises(AnsibleFilterError, match="nothing was touched") as failure:
        FILTERS["fleet_objects"](wrong, GROUPS, {"gpu1": "a/b/c"})
    text = str(failure.value)
    assert "gpu2 myriad_location is missing" in text
    assert "myriad_teams.vision.weight is 0" in text
    assert 'myriad_teams.vision.cohort "research" is not a cohort' in text


def test_the_inventory_gives_the_same_objects_as_the_variables_of_the_play() -> None:
    read = FILTERS["fleet_from_inventory"]([str(EXAMPLE)])
    variables = {}
    for file in sorted((EXAMPLE / "group_vars" / "all").glob("*.yml")):
        variables |= yaml.safe_load(file.read_text(encoding="utf-8"))
    groups: dict[str, list[str]] = {"all": list(read["hosts"]), "gpu_nodes": [], "control_plane": []}
    locations = {}
    for name, host in read["hosts"].items():
        if host["is_control_plane"]:
            groups["control_plane"].append(name)
        if host["pool"]:
            groups["gpu_nodes"].append(name)
            groups.setdefault(f"pool_{host['pool']}", []).append(name)
            locations[name] = "/".join(host["location"])
    assert FILTERS["fleet_objects"](variables, groups, locations) == read["objects"]
    assert read["capacity"] == {"h100": 4000, "h200": 5000, "serving": 1000}
    assert read["hosts"]["gpu0001"]["labels"]["myriad.dev/rack"] == "hall1.b1.r01"
    assert read["cluster"]["name"] == "example"


def test_results_are_plain_data_that_ansible_can_pass_on() -> None:
    read = FILTERS["fleet_from_inventory"](str(EXAMPLE))
    assert json.loads(json.dumps(read)) == read


def test_labels_of_one_node_equal_those_of_the_inventory() -> None:
    labels = FILTERS["node_labels"]("a/b/c", ["gpu_nodes", "pool_h100"], {}, DESCRIPTION["myriad_pools"])
    assert labels["myriad.dev/rack"] == "a.b.c"
    assert labels["myriad.dev/gpu-expected"] == "8"
    with pytest.raises(AnsibleFilterError, match="cannot be derived"):
        FILTERS["node_labels"]("a/b/c", ["pool_h100"], {}, {"h100": {"model": "nothing"}})


def test_pod_networks() -> None:
    assert FILTERS["pod_cidr"]("10.77.0.11", "10.77.0.0/24", "10.244.0.0/16") == "10.244.11.0/24"
    with pytest.raises(AnsibleFilterError, match=r"no pod network for 10\.1\.1\.1: address 10\.1\.1\.1 is not in"):
        FILTERS["pod_cidr"]("10.1.1.1", "10.77.0.0/24", "10.244.0.0/16", 24)


def test_problems_are_given_without_failing() -> None:
    assert FILTERS["fleet_problems"]([str(EXAMPLE)]) == []
    (problem,) = FILTERS["fleet_problems"]([str(BROKEN / "location-depth")])
    assert problem["subject"] == "gpu3"
    assert problem["severity"] == "error"
    with pytest.raises(AnsibleFilterError, match="give the inventory sources"):
        FILTERS["fleet_problems"]([])


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_every_filter_is_documented_with_the_arguments_that_it_has(name: str) -> None:
    text = (ROOT / "plugins" / "filter" / f"{name}.yml").read_text(encoding="utf-8")
    documented = yaml.safe_load(text)
    assert documented["DOCUMENTATION"]["name"] == name
    function = FILTERS[name]
    arguments = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    options = documented["DOCUMENTATION"]["options"]
    assert set(options) == {"_input", *arguments}
    required = arguments[: len(arguments) - len(function.__defaults__ or ())]
    assert [option for option in arguments if options[option].get("required")] == list(required)
    assert f"myriad.gpu.{name}" in documented["EXAMPLES"]


PLAYBOOK = """\
- hosts: localhost
  gather_facts: false
  vars:
    read: "{{ ansible_inventory_sources | myriad.gpu.fleet_from_inventory }}"
    description: "{{ dict(names | zip(names | map('extract', vars))) }}"
    names: [myriad_cluster, myriad_pools, myriad_teams, myriad_cohorts, myriad_priorities]
    first: "{{ groups.gpu_nodes | first }}"
  tasks:
    - ansible.builtin.assert:
        that:
          - read.objects | length == 37
          - ansible_inventory_sources | myriad.gpu.fleet_problems | map(attribute='rule') == ['quota-above-capacity']
          - description | myriad.gpu.fleet_objects(groups, locations) == read.objects
          - >-
            hostvars[first].myriad_location
            | myriad.gpu.node_labels(hostvars[first].group_names, myriad_cluster, myriad_pools)
            == read.hosts[first].labels
          - "'10.77.0.11' | myriad.gpu.pod_cidr('10.77.0.0/24', '10.244.0.0/16', 24) == '10.244.11.0/24'"
      vars:
        locations: "{{ dict(groups.gpu_nodes | zip(groups.gpu_nodes | map('extract', hostvars, 'myriad_location'))) }}"
"""


def test_a_playbook_calls_them_as_documented(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAYBOOK, encoding="utf-8")
    program = Path(sys.executable).with_name("ansible-playbook")
    result = subprocess.run(
        [program, "-i", BROKEN / "quota-above-capacity", tmp_path / "play.yml"],
        cwd=tmp_path,
        env={**os.environ, "ANSIBLE_LOCALHOST_WARNING": "false", "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "failed=0" in result.stdout
