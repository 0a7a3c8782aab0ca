"""Pod networks from node addresses."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myriad.fleet import pod_cidr


def test_the_nth_address_gets_the_nth_block() -> None:
    networks = {"node_network": "10.77.0.0/24", "pod_network": "10.244.0.0/16", "prefix": 24}
    assert pod_cidr("10.77.0.11", **networks) == "10.244.11.0/24"
    assert pod_cidr("10.77.0.0", **networks) == "10.244.0.0/24"


def test_prefix_lengths_between_bytes_and_ipv6() -> None:
    assert (
        pod_cidr("10.4.1.2", node_network="10.4.0.0/20", pod_network="10.128.0.0/10", prefix=26) == "10.128.64.128/26"
    )
    assert pod_cidr("fd00::a", node_network="fd00::/64", pod_network="fd01::/48", prefix=64) == "fd01:0:0:a::/64"


@given(first=st.integers(0, 4095), second=st.integers(0, 4095))
def test_two_nodes_never_share_a_block_and_stay_inside(first: int, second: int) -> None:
    base = int(ipaddress.ip_address("10.4.0.0"))
    blocks = [
        ipaddress.ip_network(
            pod_cidr(
                str(ipaddress.ip_address(base + index)),
                node_network="10.4.0.0/20",
                pod_network="10.128.0.0/13",
                prefix=25,
            )
        )
        for index in (first, second)
    ]
    assert all(block.subnet_of(ipaddress.ip_network("10.128.0.0/13")) for block in blocks)
    assert blocks[0].overlaps(blocks[1]) == (first == second)


@pytest.mark.parametrize(
    ("address", "node_network", "pod_network", "prefix", "sentence"),
    [
        ("10.78.0.1", "10.77.0.0/24", "10.244.0.0/16", 24, "address 10.78.0.1 is not in the node network 10.77.0.0/24"),
        ("10.77.1.1", "10.77.0.0/16", "10.244.0.0/16", 24, "number 257 of 10.77.0.0/16, but .* only 256 blocks of /24"),
        ("10.77.0.1", "10.77.0.0/16", "10.244.0.0/16", 15, "prefix length is 15; it lies between .*16. and 32"),
        ("cp1", "10.77.0.0/16", "10.244.0.0/16", 24, "'cp1' does not appear to be an IPv4 or IPv6 address"),
    ],
)
def test_what_cannot_be_is_refused(
    address: str, node_network: str, pod_network: str, prefix: int, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        pod_cidr(address, node_network=node_network, pod_network=pod_network, prefix=prefix)
