"""The filter brake_sizes, as a template calls it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.myriad.gpu.plugins.filter.gate import FilterModule

brake_sizes = FilterModule().filters()["brake_sizes"]


def test_sizes_of_pools_from_node_objects() -> None:
    labels = {"myriad.dev/pool": "h100", "myriad.dev/block": "hall1.b1", "myriad.dev/rack": "hall1.b1.r1"}
    nodes = [{"metadata": {"name": name, "labels": labels}} for name in ("gpu1", "gpu2")]
    assert brake_sizes(nodes) == {"h100": {"nodes": 2, "blocks": {"hall1.b1": 2}, "racks": {"hall1.b1.r1": 2}}}


@pytest.mark.parametrize("wrong", ["nodes", {"a": 1}, ["gpu1"], None])
def test_what_is_no_list_of_nodes_is_a_sentence(wrong: Any) -> None:
    with pytest.raises(AnsibleFilterError, match="takes a list of Node objects"):
        brake_sizes(wrong)
