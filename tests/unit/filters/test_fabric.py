"""Filters that give a node its interfaces: from its own variables and those of the next node of its pool."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.myriad.gpu.plugins.filter.fabric import fabric_plan, has_fabric, locked_packages

GROUPS = {"pool_h100": ["gpu1", "gpu2"], "pool_l40s": ["gpu9"], "gpu_nodes": ["gpu1", "gpu2", "gpu9"]}
HOSTVARS = {name: {"ansible_host": f"10.0.0.{name[3:]}"} for name in GROUPS["gpu_nodes"]}
FABRICS: dict[str, Any] = {"h100": {"mtu": 9000, "rails": [{"interface": "ens1", "address": "10.200.{rail}.{o4}/24"}]}}


def test_a_node_gets_its_rails_and_its_neighbour_in_the_ring() -> None:
    plan = fabric_plan(FABRICS, "gpu2", ["gpu_nodes", "pool_h100"], GROUPS, HOSTVARS)
    assert plan["rails"] == [{"interface": "ens1", "address": "10.200.0.2/24", "peer": "10.200.0.1"}]
    assert (plan["kind"], plan["mtu"], plan["pfc"]) == ("roce", 9000, False)


def test_a_node_of_a_pool_without_a_fabric_gets_nothing() -> None:
    assert fabric_plan(FABRICS, "gpu9", ["gpu_nodes", "pool_l40s"], GROUPS, HOSTVARS) == {}
    assert fabric_plan({}, "gpu1", ["pool_h100"], GROUPS, HOSTVARS) == {}


def test_a_pattern_that_gives_no_address_names_the_pool() -> None:
    wrong = {"h100": {"rails": [{"interface": "ens1", "address": "10.200.{row}.1/24"}]}}
    with pytest.raises(
        AnsibleFilterError, match=r"myriad_fabric\.h100: the address pattern is .* \{row\} is not known"
    ):
        fabric_plan(wrong, "gpu1", ["pool_h100"], GROUPS, HOSTVARS)
    with pytest.raises(AnsibleFilterError, match=r"myriad_fabric\.h100 is wrong"):
        fabric_plan({"h100": {"mtu": 1}}, "gpu1", ["pool_h100"], GROUPS, HOSTVARS)


@pytest.mark.parametrize(
    ("fabrics", "topology", "groups", "wanted"),
    [
        ({}, {}, ["gpu_nodes", "pool_h100"], False),
        (None, None, ["gpu_nodes", "pool_h100"], False),
        (FABRICS, {}, ["gpu_nodes", "pool_h100"], True),
        (FABRICS, {}, ["gpu_nodes", "pool_l40s"], False),
        ({}, {"switches": {"tor-r1": "r1"}}, ["gpu_nodes", "pool_l40s"], True),
        ({}, {"switches": {"tor-r1": "r1"}}, ["control_plane"], False),
    ],
)
def test_only_nodes_with_something_to_do_are_told_apart(
    fabrics: Any, topology: Any, groups: list[str], wanted: bool
) -> None:
    assert has_fabric(fabrics, topology, groups) is wanted


def test_packages_come_from_the_lock_with_exact_versions() -> None:
    packages = locked_packages("rdma", "Debian", "12.11")
    assert {"rdma-core", "ibverbs-providers", "perftest"} <= set(packages) and all(packages.values())
    assert set(locked_packages("lldpd", "Debian", "12")) == {"lldpd"}
    assert locked_packages("rdma", "Ubuntu", "24.04") == {}
