"""Labels of nodes, from the fleet and from one host's variables alike."""

from __future__ import annotations

from collections.abc import Callable

from myriad.fleet import Checked, node_labels
from myriad.fleet.labels import labels_from_variables, place_text


def test_labels_hold_the_whole_path_so_that_one_value_names_one_place(checked: Callable[..., Checked]) -> None:
    fleet = checked().fleet
    assert node_labels(fleet, "gpu3") == {
        "myriad.dev/room": "hall1",
        "myriad.dev/block": "hall1.b1",
        "myriad.dev/rack": "hall1.b1.r2",
        "myriad.dev/pool": "h100",
        "myriad.dev/gpu-model": "H100-SXM5-80GB",
        "myriad.dev/gpu-expected": "8",
    }
    assert node_labels(fleet, "cp1") == {}
    assert place_text("hall1.b1.r2") == "hall1/b1/r2"


def test_a_playbook_gets_the_same_labels_from_one_hosts_variables(checked: Callable[..., Checked]) -> None:
    pools = {"a100-80": {"model": "A100-SXM4-80GB", "gpus_per_node": 4}}
    cluster = {"topology_levels": ["hall", "rack"]}
    result = checked(
        {"myriad_cluster": cluster, "myriad_pools": pools},
        groups={"control_plane": ["cp1"], "gpu_nodes": ["gpu1"], "pool_a100_80": ["gpu1"]},
        locations={"gpu1": "h1/r7"},
    )
    assert result.errors == []
    expected = node_labels(result.fleet, "gpu1")
    assert expected["myriad.dev/pool"] == "a100-80"
    assert expected["myriad.dev/hall"] == "h1"
    given = {"location": "h1/r7", "group_names": ["gpu_nodes", "pool_a100_80"], "cluster": cluster, "pools": pools}
    assert labels_from_variables(**given) == expected
    assert labels_from_variables(**given, gpus=3) == expected | {"myriad.dev/gpu-expected": "3"}
    assert labels_from_variables(**given | {"group_names": ["control_plane"]}) == {}
