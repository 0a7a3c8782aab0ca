"""Cables against the description: two swapped, one moved, nothing seen, strangers, accepted, thousands of nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from myriad.fleet import Checked
from myriad.fleet.crosscheck import check_node, cross_check, switches_near
from myriad.fleet.neighbours import (
    NeighbourFormatError,
    Sighting,
    ib_sightings,
    lldp_sightings,
    nvlink_sightings,
)

RECORDED = Path(__file__).parents[2] / "fixtures" / "neighbours"
LAB = {"gpu1": ("hall1", "b1", "r1"), "gpu2": ("hall1", "b1", "r1"), "gpu3": ("hall1", "b1", "r2")}
SWITCHES = {"tor-r1": "hall1/b1/r1", "tor-r2": "hall1/b1/r2"}


def lldp(node: str, peer: str, interface: str = "eth0", at: str = "2026-11-29T21:03:10Z") -> Sighting:
    return Sighting(node, peer, "LLDP", interface, "swp1", at=at)


def seen(**peers: str) -> list[Sighting]:
    return [lldp(node, peer) for node, peer in peers.items()]


def site(racks: int, nodes: int) -> tuple[dict[str, tuple[str, ...]], list[Sighting]]:
    """A site where every node stands where it is described, with two switches a rack."""
    places = {
        f"gpu{rack * nodes + node:04}": ("hall1", f"b{rack // 8}", f"r{rack}")
        for rack in range(racks)
        for node in range(nodes)
    }
    sightings = [
        lldp(node, f"tor-{place[2]}-{side}", f"eth{side}") for node, place in places.items() for side in (0, 1)
    ]
    return places, sightings


# What the tools print


@pytest.mark.parametrize("file", ["lldpcli-json0.json", "lldpcli-json.json"])
def test_lldpcli_says_the_switch_in_both_forms(file: str) -> None:
    (found,) = lldp_sightings("gpu1", (RECORDED / file).read_text())
    assert (found.node, found.peer, found.interface, found.chassis) == ("gpu1", "tor-r1", "eth0", "02:42:0a:c7:07:02")
    assert found.source == "LLDP"


@pytest.mark.parametrize("file", ["lldpcli-json0-two.json", "lldpcli-json-two.json"])
def test_two_neighbours_on_one_interface_are_two(file: str) -> None:
    assert {one.peer for one in lldp_sightings("gpu2", (RECORDED / file).read_text())} == {"tor-r1", "gpu1"}


@pytest.mark.parametrize("text", ['{"lldp": [{}]}', '{"lldp": {}}', "{}", ""])
def test_no_neighbour_is_an_empty_answer(text: str) -> None:
    assert lldp_sightings("gpu1", text) == ()


@pytest.mark.parametrize("text", ["unable to connect to socket", "[1]", '{"neighbors": []}'])
def test_what_lldpcli_does_not_print_is_refused(text: str) -> None:
    with pytest.raises(NeighbourFormatError, match="lldpcli printed"):
        lldp_sightings("gpu1", text)


def test_a_switch_without_a_name_is_known_by_its_chassis() -> None:
    document = json.loads((RECORDED / "lldpcli-json0.json").read_text())
    del document["lldp"][0]["interface"][0]["chassis"][0]["name"]
    (found,) = lldp_sightings("gpu1", json.dumps(document))
    assert found.peer == "02:42:0a:c7:07:02"


def test_ibnetdiscover_tells_which_host_hangs_on_which_leaf() -> None:
    found = ib_sightings((RECORDED / "ibnetdiscover-two-racks.txt").read_text())
    assert {(one.node, one.peer, one.interface, one.port) for one in found} == {
        ("gpu1", "leaf-b1-0", "mlx5_0", "1"),
        ("gpu2", "leaf-b1-0", "mlx5_0", "2"),
        ("gpu3", "leaf-b2-0", "mlx5_0", "1"),
        ("gpu4", "leaf-b2-0", "mlx5_0", "2"),
    }
    assert {one.chassis for one in found} == {"0xb83fd203004dae00", "0xb83fd203004dae40"}


def test_a_text_without_a_switch_is_no_ibnetdiscover() -> None:
    with pytest.raises(NeighbourFormatError, match="no switch is in it"):
        ib_sightings("ibwarn: mad_rpc_open_port: can't open UMAD port")


def test_gpus_of_a_board_of_their_own_form_no_domain() -> None:
    zero = "00000000-0000-0000-0000-000000000000"
    assert nvlink_sightings("gpu1", [(zero, "0"), ("N/A", "N/A"), ("", "")]) == ()
    cluster = "8DA3B9C2-1111-4222-8333-944455566677"
    (found,) = nvlink_sightings("gpu1", [(cluster, "1"), (cluster, "1"), (zero, "0")])
    assert (found.peer, found.source) == (f"{cluster.lower()}/1", "NVLink")


# The whole site, switches described


def test_cables_that_agree_say_nothing() -> None:
    report = cross_check(LAB, seen(gpu1="tor-r1", gpu2="tor-r1", gpu3="tor-r2"), switches=SWITCHES)
    assert report.ok and report.agreeing == ("gpu1", "gpu2", "gpu3")
    assert (report.mismatches, report.unseen, report.unknown, report.unused) == ((), (), {}, ())


def test_two_swapped_nodes_are_both_named_with_both_sides() -> None:
    """Must-show 4: gpu2 and gpu3 stand in each other's place."""
    report = cross_check(LAB, seen(gpu1="tor-r1", gpu2="tor-r2", gpu3="tor-r1"), switches=SWITCHES)
    assert not report.ok and report.agreeing == ("gpu1",)
    first, second = report.mismatches
    assert (first.node, first.swapped_with, second.node, second.swapped_with) == ("gpu2", "gpu3", "gpu3", "gpu2")
    assert first.message == (
        "gpu2 is hall1/b1/r1 in the description; its neighbour tor-r2 stands in hall1/b1/r2 (LLDP, eth0, seen 21:03). "
        "gpu3 the other way round: hall1/b1/r2 in the description, its neighbour is tor-r1 (LLDP, eth0, seen 21:03): "
        "gpu2 and gpu3 are swapped. Correct myriad_location of both, or accept it with "
        "myriad_topology.accept: [gpu2, gpu3]."
    )
    assert "gpu2 and gpu3 are swapped" in second.message


def test_a_moved_node_has_no_partner() -> None:
    report = cross_check(LAB, seen(gpu1="tor-r2", gpu2="tor-r1", gpu3="tor-r2"), switches=SWITCHES)
    (found,) = report.mismatches
    assert (found.node, found.swapped_with, found.found) == ("gpu1", "", ("hall1", "b1", "r2"))
    assert found.message.endswith(
        "Correct myriad_location to hall1/b1/r2, or accept it with myriad_topology.accept: [gpu1]."
    )


def test_three_in_a_circle_are_three_moves_and_no_swap() -> None:
    places = {f"gpu{n}": ("h", f"r{n}") for n in range(3)}
    switches = {f"tor{n}": f"h/r{n}" for n in range(3)}
    report = cross_check(places, seen(gpu0="tor1", gpu1="tor2", gpu2="tor0"), switches=switches)
    assert [(one.node, one.swapped_with) for one in report.mismatches] == [("gpu0", ""), ("gpu1", ""), ("gpu2", "")]


def test_two_pairs_between_the_same_racks_pair_up_once() -> None:
    places = {"a1": ("r1",), "a2": ("r1",), "b1": ("r2",), "b2": ("r2",)}
    report = cross_check(places, seen(a1="t2", a2="t2", b1="t1", b2="t1"), switches={"t1": "r1", "t2": "r2"})
    pairs = {frozenset((one.node, one.swapped_with)) for one in report.mismatches}
    assert len(pairs) == 2 and frozenset.union(*pairs) == {"a1", "a2", "b1", "b2"}


def test_one_wrong_cable_of_two_is_a_mismatch() -> None:
    sightings = [lldp("gpu1", "tor-r1", "eth0"), lldp("gpu1", "tor-r2", "eth1")]
    (found,) = cross_check(LAB, sightings, switches=SWITCHES).mismatches
    assert (found.node, found.sightings[0].interface) == ("gpu1", "eth1")


def test_a_node_without_neighbours_is_told_and_contradicts_nothing() -> None:
    report = cross_check(LAB, seen(gpu1="tor-r1", gpu3="tor-r2"), switches=SWITCHES)
    assert report.ok and report.unseen == ("gpu2",)


def test_an_unknown_switch_is_a_mismatch_where_the_place_has_a_described_one() -> None:
    report = cross_check(LAB, seen(gpu1="tor-x", gpu2="tor-r1", gpu3="tor-r2"), switches=SWITCHES)
    assert report.unknown == {"gpu1": ("tor-x",)}
    (found,) = report.mismatches
    assert "where tor-r1 stands; its neighbour is tor-x" in found.message


def test_an_unknown_switch_is_only_told_where_none_is_described() -> None:
    report = cross_check(LAB, seen(gpu1="tor-r1", gpu2="tor-r1", gpu3="tor-x"), switches={"tor-r1": "hall1/b1/r1"})
    assert report.ok and report.unknown == {"gpu3": ("tor-x",)}


def test_an_accepted_mismatch_is_shown_and_counts_no_more() -> None:
    report = cross_check(LAB, seen(gpu1="tor-r2", gpu2="tor-r1", gpu3="tor-r2"), switches=SWITCHES, accept=["gpu1"])
    assert report.ok and report.open == ()
    assert [(one.node, one.accepted) for one in report.mismatches] == [("gpu1", True)]


def test_nodes_that_see_each_other_say_nothing_about_places() -> None:
    report = cross_check(LAB, seen(gpu1="gpu3", gpu2="tor-r1", stranger="tor-r2"), switches=SWITCHES)
    assert report.ok and report.unseen == ("gpu1", "gpu3") and report.unused == ("tor-r2",)


def test_a_switch_is_known_by_chassis_and_without_its_domain() -> None:
    by_chassis = Sighting("gpu1", "sw17", "LLDP", "eth0", "", "02:42:0A:c7:07:02")
    report = cross_check(LAB, [by_chassis], switches={"02:42:0a:c7:07:02": "hall1/b1/r2"})
    assert [one.node for one in report.mismatches] == ["gpu1"]
    report = cross_check(LAB, [lldp("gpu1", "TOR-R2.example.org")], switches=SWITCHES)
    assert [one.node for one in report.mismatches] == ["gpu1"]


@pytest.mark.parametrize("said", ["AA:BB:CC:00:07:02", "aabb.cc00.0702", "aa-bb-cc-00-07-02", "aabbcc000702"])
def test_a_chassis_is_one_however_it_is_written(said: str) -> None:
    by_chassis = Sighting("gpu3", "some-switch", "LLDP", "eth0", "1", said)
    for described in ("aa:bb:cc:00:07:02", "AABB.CC00.0702"):
        assert cross_check(LAB, [by_chassis], switches={described: "hall1/b1/r2"}).agreeing == ("gpu3",)


def test_an_address_is_no_host_name_with_a_domain() -> None:
    switches = {"10.0.1.1": "hall1/b1/r1", "10.0.2.1": "hall1/b1/r2"}
    assert cross_check(LAB, seen(gpu3="10.0.2.1"), switches=switches).agreeing == ("gpu3",)
    (found,) = cross_check(LAB, seen(gpu1="tor-r1", gpu3="10.0.9.1"), switches=switches | SWITCHES).mismatches
    assert found.found == () and "its neighbour is 10.0.9.1 (LLDP" in found.message


def test_a_short_name_of_two_switches_names_neither() -> None:
    switches = {"sw1.r1.lan": "hall1/b1/r1", "sw1.r2.lan": "hall1/b1/r2", "sw9.lan": "hall1/b1/r2"}
    report = cross_check(LAB, seen(gpu1="sw1.r1.lan", gpu3="SW1.r2.lan"), switches=switches)
    assert report.agreeing == ("gpu1", "gpu3")
    assert not check_node("gpu3", LAB["gpu3"], switches, seen(gpu3="sw1")).ok
    assert "of which no place" in check_node("gpu3", LAB["gpu3"], switches, seen(gpu3="sw1")).cause
    assert check_node("gpu3", LAB["gpu3"], switches, seen(gpu3="sw9")).ok


def test_machines_of_the_inventory_are_no_switches_by_any_of_their_names() -> None:
    sightings = [lldp("gpu1", peer) for peer in ("GPU3.example.org", "gpu2.lan", "cp1.lan", "CP1")]
    assert "gpu1" in cross_check(LAB, sightings, hosts=["cp1"]).unseen
    assert cross_check(LAB, [*sightings, lldp("gpu1", "tor-r1")], switches=SWITCHES, hosts=["cp1"]).ok


def test_switches_without_a_name_of_their_own_are_told_apart_by_chassis() -> None:
    places = {f"{rack}-{number}": ("h", rack) for rack in ("r1", "r2") for number in range(3)}
    sightings = [
        Sighting(node, "Switch" if node.endswith("0") else "switch", "LLDP", "eth0", "1", f"AA:BB:CC:00:00:0{rack[1]}")
        for node, (_, rack) in places.items()
    ]
    report = cross_check(places, sightings)
    assert len(report.agreeing) == 6
    assert sorted(report.inferred) == ["Switch (aa:bb:cc:00:00:01)", "Switch (aa:bb:cc:00:00:02)"]


def test_a_telephone_at_the_other_end_is_no_switch() -> None:
    def answer(enabled: bool) -> str:
        chassis = {
            "name": [{"value": "SEP1"}],
            "capability": [{"type": "Bridge", "enabled": True}, {"type": "Tel", "enabled": enabled}],
        }
        return json.dumps({"lldp": [{"interface": [{"name": "eth0", "chassis": [chassis], "port": [{}]}]}]})

    assert lldp_sightings("gpu1", answer(True)) == ()
    assert [one.peer for one in lldp_sightings("gpu1", answer(False))] == ["SEP1"]


def test_a_leaf_of_a_block_serves_all_its_racks() -> None:
    places = {
        "gpu1": ("h", "b1", "r1"),
        "gpu2": ("h", "b1", "r2"),
        "gpu3": ("h", "b2", "r3"),
        "gpu4": ("h", "b1", "r1"),
    }
    sightings = ib_sightings((RECORDED / "ibnetdiscover-two-racks.txt").read_text())
    report = cross_check(places, sightings, switches={"leaf-b1-0": "h/b1", "0xb83fd203004dae40": "h/b2"})
    (found,) = report.mismatches
    assert found.node == "gpu4" and found.found == ("h", "b2")
    assert "(ibnetdiscover, mlx5_0 to port 2)" in found.message
    assert report.agreeing == ("gpu1", "gpu2", "gpu3")


# No switch described: most nodes tell


def test_places_of_switches_are_inferred_from_most_of_their_nodes() -> None:
    places, sightings = site(racks=4, nodes=4)
    places["gpu0000"], places["gpu0012"] = places["gpu0012"], places["gpu0000"]
    report = cross_check(places, sightings)
    assert {(one.node, one.swapped_with) for one in report.mismatches} == {
        ("gpu0000", "gpu0012"), ("gpu0012", "gpu0000"),
    }  # fmt: skip
    assert report.inferred["tor-r0-0"] == ("hall1", "b0", "r0")


def test_without_a_majority_all_are_named_and_nobody_is_blamed() -> None:
    places = {**LAB, "gpu2": LAB["gpu3"], "gpu3": LAB["gpu2"]}
    report = cross_check(places, seen(gpu1="tor-r1", gpu2="tor-r1", gpu3="tor-r2"))
    assert [one.node for one in report.mismatches] == ["gpu1", "gpu2", "gpu3"]
    assert report.mismatches[0].message.startswith(
        "tor-r1 joins nodes of different places (LLDP, eth0): gpu1 in hall1/b1/r1; gpu2 in hall1/b1/r2; "
        "gpu3, described in hall1/b1/r1 too, hangs on tor-r2. No majority tells who stands elsewhere"
    )
    assert report.inferred == {}


def test_a_rail_fabric_is_judged_by_blocks_and_not_by_racks() -> None:
    places = {f"gpu{n}": ("h", f"b{n // 4}", f"r{n // 2}") for n in range(8)}
    sightings = [
        Sighting(node, f"leaf-{place[1]}-{rail}", "ibnetdiscover", f"mlx5_{rail}") for node, place in places.items()
        for rail in range(2)
    ]  # fmt: skip
    assert cross_check(places, sightings).ok
    places["gpu0"] = ("h", "b1", "r2")
    (found,) = cross_check(places, sightings).mismatches
    assert (found.node, found.described, found.found) == ("gpu0", ("h", "b1", "r2"), ("h", "b0"))


def test_gpus_of_one_nvlink_domain_stand_in_one_rack() -> None:
    cluster = {"a": "8da3b9c2-1111-4222-8333-944455566677", "b": "9da3b9c2-1111-4222-8333-944455566677"}
    places = {f"gpu{n}": ("h", "r1" if n < 4 else "r2") for n in range(8)}
    sightings = [
        one
        for node, place in places.items()
        for one in nvlink_sightings(node, [(cluster["ab"[place[1] == "r2"]], "0")])
    ]
    assert cross_check(places, sightings).ok
    places["gpu0"] = ("h", "r2")
    (found,) = cross_check(places, sightings).mismatches
    assert found.node == "gpu0" and "NVLink" in found.message and found.found == ("h", "r1")


def test_described_top_of_rack_switches_leave_other_witnesses_to_inference() -> None:
    sightings = seen(gpu1="tor-r1", gpu2="tor-r1", gpu3="tor-r2")
    sightings += [Sighting(node, "leaf-1", "ibnetdiscover", "mlx5_0") for node in LAB]
    report = cross_check(LAB, sightings, switches=SWITCHES)
    assert report.ok and report.inferred == {"leaf-1": ("hall1", "b1")}


def test_1250_nodes_of_which_two_are_swapped() -> None:
    places, sightings = site(racks=157, nodes=8)
    assert len(places) == 1256
    switches = {f"tor-{place[2]}-{side}": "/".join(place) for place in places.values() for side in (0, 1)}
    places["gpu0008"], places["gpu1200"] = places["gpu1200"], places["gpu0008"]
    for described in (switches, {}):
        report = cross_check(places, sightings, switches=described)
        assert [one.node for one in report.mismatches] == ["gpu0008", "gpu1200"]
        assert len(report.agreeing) == 1254


# One node by itself


def test_a_node_knows_only_the_switches_around_it() -> None:
    switches = {"tor-r1": "h/b1/r1", "tor-r2": "h/b1/r2", "tor-r9": "h/b2/r9", "leaf-b1": "h/b1", "core": "h"}
    assert switches_near(switches, ("h", "b1", "r1")) == {
        "tor-r1": "h/b1/r1", "tor-r2": "h/b1/r2", "leaf-b1": "h/b1", "core": "h",
    }  # fmt: skip
    assert switches_near({"tor-r1": "r1", "tor-r2": "r2"}, ("r1",)) == {"tor-r1": "r1", "tor-r2": "r2"}


@pytest.mark.parametrize(
    ("peer", "ok", "cause"),
    [
        ("tor-r1", True, ""),
        ("tor-r2", False, "gpu1 is hall1/b1/r1 in the description; its neighbour tor-r2 stands in hall1/b1/r2"),
        ("tor-r9", False, "its neighbour is tor-r9 (LLDP, eth0, seen 21:03), of which no place near it is described"),
    ],
)
def test_a_node_judges_itself(peer: str, ok: bool, cause: str) -> None:
    finding = check_node("gpu1", LAB["gpu1"], SWITCHES, seen(gpu1=peer))
    assert finding.ok is ok and cause in finding.cause
    assert finding.expected == "hall1/b1/r1 (tor-r1)" and finding.found == peer
    assert bool(finding.next) is not ok


def test_a_node_that_sees_nothing_stays_out_only_where_that_is_required() -> None:
    assert check_node("gpu1", LAB["gpu1"], SWITCHES, []).ok
    finding = check_node("gpu1", LAB["gpu1"], SWITCHES, [], required=True)
    assert not finding.ok and "tor-r1 should be at the other end" in finding.cause and "lldpcli" in finding.next


def test_an_accepted_node_and_one_of_a_place_without_switches_are_open() -> None:
    assert check_node("gpu1", LAB["gpu1"], SWITCHES, seen(gpu1="tor-r2"), accepted=True).ok
    assert check_node("gpu1", LAB["gpu1"], {}, seen(gpu1="tor-r2")).ok


# The description


def test_switches_are_checked_against_the_places_of_nodes(said: Callable[..., list[str]]) -> None:
    assert said(myriad_topology={"switches": {"tor-r1": "hall1/b1/r1", "leaf": "hall1/b1"}, "accept": ["gpu1"]}) == []
    assert said(
        myriad_topology={
            "switches": {"tor-r1": "hall1/b1/r7", "gpu1": "hall1/b1/r1"},
            "accept": ["gpu9"],
            "required": 1,
        }
    ) == [
        'myriad_topology.accept[0]: "gpu9" is not a host of the inventory; known: cp1, gpu1, gpu2, gpu3',
        "myriad_topology.required: is 1; write true or false",
        "myriad_topology.switches.gpu1: is a host of the inventory; name the switch as it calls itself in LLDP",
        'myriad_topology.switches.tor-r1: is "hall1/b1/r7", where no node of the description stands; '
        "known: hall1/b1/r1, hall1/b1/r2",
    ]
    assert said(myriad_topology={"switches": ["tor-r1"], "switch": {}}) == [
        'myriad_topology.switch: is not a key that is known here; did you mean "switches"? '
        "(allowed: switches, accept, required)",
        "myriad_topology.switches: is a list; write switch: place, for example {tor-r1: hall1/b1/r1}",
    ]


def test_the_fleet_carries_its_switches(checked: Callable[..., Checked]) -> None:
    fleet = checked(myriad_topology={"switches": SWITCHES, "accept": ["gpu2"]}).fleet
    assert dict(fleet.topology.switches) == SWITCHES and fleet.topology.accept == ("gpu2",)
    assert not fleet.topology.required
