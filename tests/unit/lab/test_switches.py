"""The lab's top-of-rack switches: which there are, and names that a kernel takes."""

from __future__ import annotations

from myriad.lab.switches import bridge_name, racks, switch_places
from myriad.lab.topology import LabNode


def node(name: str, location: str = "") -> LabNode:
    return LabNode(name=name, address="10.77.0.10", location=location)


def test_each_rack_has_one_switch_and_a_control_plane_none() -> None:
    nodes = [node("cp1"), node("gpu1", "hall1/b1/r1"), node("gpu2", "hall1/b1/r1"), node("gpu3", "hall1/b1/r2")]
    assert {switch: [one.name for one in on] for switch, on in racks(nodes).items()} == {
        "tor-r1": ["gpu1", "gpu2"], "tor-r2": ["gpu3"],
    }  # fmt: skip
    assert switch_places(nodes) == {"tor-r1": "hall1/b1/r1", "tor-r2": "hall1/b1/r2"}


def test_racks_of_one_name_in_two_blocks_have_two_switches() -> None:
    assert switch_places([node("a", "h/b1/r1"), node("b", "h/b2/r1")]) == {
        "tor-h-b1-r1": "h/b1/r1", "tor-h-b2-r1": "h/b2/r1",
    }  # fmt: skip


def test_a_bridge_has_a_short_name_of_its_own() -> None:
    one, other = bridge_name("myriad-e85142-tor-r1"), bridge_name("myriad-e85142-tor-r2")
    assert one != other and len(one) <= 15
