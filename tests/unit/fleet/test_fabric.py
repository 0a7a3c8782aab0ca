"""Interfaces of a fabric: addresses from patterns, what is refused, and what a node must show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from myriad.fleet import Checked
from myriad.fleet.fabric import address, expected_interfaces, interface_faults, peers, plan
from myriad.fleet.model import Fabric

ROCE = {
    "kind": "roce",
    "mtu": 9000,
    "rate_gbit_s": 400,
    "pfc": True,
    "ecn": True,
    "rails": [
        {"interface": "ens1f0np0", "address": "10.200.{rail}.{number}/24"},
        {"interface": "ens2f0np0", "address": "10.200.{rail}.{number}/24"},
    ],
}


def fabric(**changes: Any) -> Fabric:
    return Fabric.model_validate(ROCE | changes)


def test_addresses_follow_from_the_node_alone() -> None:
    node = plan("gpu0017", "10.0.3.17", fabric())
    assert [(rail.interface, rail.address) for rail in node.rails] == [
        ("ens1f0np0", "10.200.0.17/24"),
        ("ens2f0np0", "10.200.1.17/24"),
    ]
    assert address("10.{rail}.{o3}.{o4}/16", rail=4, node="a", management="10.0.3.17") == "10.4.3.17/16"
    assert address("fd00:{rail}::{number:x}/64", rail=1, node="gpu255", management="x") == "fd00:1::ff/64"
    assert address("10.10{rail}.{high}.{low}/16", rail=3, node="gpu1250", management="x") == "10.103.4.226/16"
    assert address(None, rail=0, node="a", management="x") == ""


@pytest.mark.parametrize(
    ("pattern", "node", "sentence"),
    [
        ("10.0.{row}.1/24", "gpu1", "{row} is not known: use {rail}, {number}, {high}, {low}, {o1}, {o2}, {o3}, {o4}"),
        ("10.0.0.{number}/24", "alpha", "alpha has a name without a number, so {number} is not known"),
        ("10.0.0.{o4}/24", "gpu1", '"gpu1.example.org" as ansible_host, no IPv4 address'),
        ("10.0.0.{number}", "gpu1", "no address with prefix length"),
        ("10.0.0.{number}/24", "gpu300", 'for gpu300 "10.0.0.300/24"; that is no address'),
        ("10.0.0.0/24", "gpu1", "the network's own address"),
        ("10.0.0.{number/24", "gpu1", "the braces do not fit"),
    ],
)
def test_a_pattern_that_gives_no_address_is_refused_with_the_node(pattern: str, node: str, sentence: str) -> None:
    with pytest.raises(ValueError) as refused:
        address(pattern, rail=0, node=node, management=f"{node}.example.org")
    assert sentence in str(refused.value)


def test_each_node_asks_the_next_one() -> None:
    plans = [plan(f"gpu{n}", f"10.0.0.{n}", fabric()) for n in (1, 2, 3)]
    ring = peers(plans)
    assert {node: peer.node for node, peer in ring.items()} == {"gpu1": "gpu2", "gpu2": "gpu3", "gpu3": "gpu1"}
    assert plans[0].as_dict(peer=ring["gpu1"])["rails"][1] == {
        "interface": "ens2f0np0", "address": "10.200.1.1/24", "peer": "10.200.1.2",
    }  # fmt: skip
    assert peers(plans[:1]) == {}


def nic(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "kind": "roce", "state": "up", "mtu": 9000, "rate_gbit_s": 400, **changes}


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, ""),
        ({"rate_gbit_s": 800}, ""),
        ({"state": "down", "rate_gbit_s": None}, "ens1f0np0 is down: cable, transceiver or switch port"),
        ({"mtu": 1500}, "ens1f0np0 has MTU 1500, described is 9000"),
        ({"rate_gbit_s": 200}, "ens1f0np0 runs at 200 Gb/s, described is 400"),
        ({"kind": "ethernet"}, "ens1f0np0 is ethernet, described is roce"),
    ],
)
def test_an_interface_must_be_as_described(changes: dict[str, Any], cause: str) -> None:
    expected = expected_interfaces(plan("gpu1", "10.0.0.1", fabric()))
    assert expected["ens1f0np0"] == {"kind": "roce", "mtu": 9000, "rate_gbit_s": 400}
    faults = interface_faults(expected, [nic("ens1f0np0", **changes), nic("ens2f0np0"), nic("eno1", mtu=1500)])
    assert len(faults) == bool(cause)
    assert all(cause in fault[3] for fault in faults)


def test_an_interface_that_is_not_there_is_named_with_those_that_are() -> None:
    expected = expected_interfaces(plan("gpu1", "10.0.0.1", fabric()))
    (fault,) = interface_faults(expected, [nic("ens1f0np0"), nic("eno1")])
    assert fault == (
        "ens2f0np0", "roce, 400 Gb/s, MTU 9000", "not there",
        "ens2f0np0 is described and not there; interfaces: eno1, ens1f0np0",
    )  # fmt: skip


# The description


def test_a_right_fabric_says_nothing(checked: Callable[..., Checked]) -> None:
    result = checked(myriad_fabric={"h100": ROCE}, myriad_burn_in={"h100": {"gb_s": 40.5}})
    assert result.problems == ()
    assert result.fleet.fabrics["h100"].rails[1].interface == "ens2f0np0"
    assert float(result.fleet.burn_in["h100"].gb_s or 0) == 40.5


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kind": "rocev2"}, 'kind: is "rocev2"; allowed: roce or infiniband; did you mean "roce"?'),
        ({"mtu": 12}, "mtu: is 12; an MTU is a number of bytes from 1280 to 9978"),
        (
            {"mtu": 9000, "kind": "infiniband", "pfc": False, "ecn": False},
            "mtu: is 9000; an InfiniBand interface takes",
        ),
        ({"kind": "infiniband", "mtu": 4092, "ecn": False}, "pfc: is for RoCE; InfiniBand loses no packets by itself"),
        ({"pfc": "yes"}, 'pfc: is "yes"; write true or false'),
        ({"priority": 8}, "priority: is 8; the priority of lossless traffic is a number from 0 to 7"),
        ({"rails": []}, "has no rails; list the interfaces"),
        ({"rails": "ens1"}, 'rails: is "ens1"; write a list, for example [{interface: ens1f0np0}]'),
        ({"rails": [{"address": "10.0.0.{number}/24"}]}, "rails[0].interface: is missing; name the network interface"),
        ({"rails": [{"interface": "ens1/f0"}]}, 'rails[0].interface: is "ens1/f0"; write the name of a network'),
        ({"rails": [{"interface": "a"}, {"interface": "a"}]}, "rails[1].interface: is a, as rails[0] is"),
        (
            {"rails": [{"interface": "a", "address": "10.0.0.{rail}/8"}]},
            'rails[0].address: is "10.0.0.{rail}/8", for gpu1 "10.0.0.0/8"; that is the network',
        ),
        (
            {"rails": [{"interface": "a", "address": "10.0.0.7/24"}]},
            'rails[0].address: is "10.0.0.7/24"; gpu2 a and gpu1 a would both be 10.0.0.7',
        ),
    ],
)
def test_a_wrong_fabric_is_refused_in_a_sentence(
    said: Callable[..., list[str]], changes: dict[str, Any], sentence: str
) -> None:
    told = said(myriad_fabric={"h100": ROCE | changes})
    assert any(f"myriad_fabric.h100{'.' if ': ' in sentence else ': '}{sentence}" in line for line in told), told


def test_a_fabric_of_no_pool_and_a_threshold_below_nothing(said: Callable[..., list[str]]) -> None:
    assert said(myriad_fabric={"h1O0": ROCE}, myriad_burn_in={"a100": {"gb_s": 0}}) == [
        'myriad_burn_in.a100: "a100" is not a pool; did you mean "h100"?',
        "myriad_burn_in.a100.gb_s: is 0; a threshold is a number of gigabytes a second above 0",
        'myriad_fabric.h1O0: "h1O0" is not a Kubernetes name: lower-case letters, digits and hyphens, beginning and '
        'ending with a letter or digit; for example "h1o0"',
        'myriad_fabric.h1O0: "h1O0" is not a pool; did you mean "h100"?',
    ]
