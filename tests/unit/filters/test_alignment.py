"""Policies of one node's kubelet, from the pool that it is in."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.myriad.gpu.plugins.filter.alignment import node_alignment

STATIC = {"topology_manager": "restricted", "cpu_manager": "static", "reserved_cpus": "0-1"}
POOLS = {"h100": {"model": "H100-SXM5-80GB", "alignment": STATIC}, "plain": {"model": "H100-SXM5-80GB"}}
DEFAULT = {"topology_manager": "none", "scope": "container", "cpu_manager": "none", "reserved_cpus": ""}


def test_a_node_gets_what_its_pool_says() -> None:
    assert node_alignment(POOLS, ["gpu_nodes", "pool_h100"]) == {
        "topology_manager": "restricted",
        "scope": "container",
        "cpu_manager": "static",
        "reserved_cpus": "0-1",
    }


@pytest.mark.parametrize("groups", [["gpu_nodes", "pool_plain"], ["control_plane"], ["pool_gone"]])
def test_others_get_the_kubelets_own_defaults(groups: list[str]) -> None:
    assert node_alignment(POOLS, groups) == DEFAULT


def test_a_wrong_word_is_named() -> None:
    with pytest.raises(AnsibleFilterError, match=r"myriad_pools\.h100\.alignment is wrong"):
        node_alignment({"h100": {"alignment": {"cpu_manager": "dynamic"}}}, ["pool_h100"])
