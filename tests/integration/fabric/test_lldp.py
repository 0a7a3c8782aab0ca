"""Real lldpd between containers: a switch of each rack, two nodes, and the description that puts them elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import docker
import pytest

from myriad.fleet.crosscheck import check_node, cross_check
from myriad.fleet.neighbours import Sighting, lldp_sightings
from myriad.lab.nodes import IMAGE, LABEL, exec_text, remove_lab
from myriad.lab.state import Detected, HostRecord, LabState
from myriad.lab.switches import switches_down, switches_up
from myriad.lab.topology import LabNode

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(300)]

NAME = "myriad-lldp-test"
NODES = [LabNode("gpu1", "", location="hall1/b1/r1"), LabNode("gpu2", "", location="hall1/b1/r2")]


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    with closing(docker.from_env()) as engine:
        yield engine


@pytest.fixture(scope="module")
def wired(client: docker.DockerClient) -> Iterator[tuple[LabState, dict[str, str]]]:
    """Two nodes with lldpd, each cabled to the switch of its rack."""
    tags = [tag for image in client.images.list(name=IMAGE) for tag in image.tags]
    if not tags:
        pytest.skip("no node image is here: `make lab` or `molecule test` makes it")
    remove_lab(client, NAME)
    # The engine's own flags do not matter here; a node without CAP_SYS_RESOURCE starts everywhere.
    state = LabState(name=NAME, node_image=tags[0], detected=Detected(cap_sys_resource=False))
    try:
        # Nodes first by the switch's own image: it is the node image with lldpd.
        bare = LabState(name=NAME, node_image=tags[0], detected=state.detected)
        switches_up(client, bare, [])
        image = tags[0].replace(IMAGE, "myriad-lab-switch")
        for node in NODES:
            container = client.containers.run(
                image,
                name=f"{NAME}-{node.name}",
                hostname=node.name,
                entrypoint=["sh"],
                command=["-c", "mkdir -p /run/lldpd && exec lldpd -d"],
                cap_add=["NET_ADMIN", "NET_RAW"],
                cap_drop=["SYS_RESOURCE"],
                labels={LABEL: NAME},
                detach=True,
            )
            state.hosts[node.name] = HostRecord(address="", container=str(container.id))
        yield state, switches_up(client, state, NODES)
    finally:
        remove_lab(client, NAME)


def seen(client: docker.DockerClient, state: LabState, *, timeout_s: float = 60) -> list[Sighting]:
    """What both nodes see, once each sees its switch."""
    until = time.monotonic() + timeout_s
    while True:
        found = [
            sighting
            for node in NODES
            for sighting in lldp_sightings(
                node.name,
                exec_text(client.containers.get(state.hosts[node.name].container), "lldpcli -f json0 show neighbors")[
                    1
                ],
            )
        ]
        if {one.node for one in found if one.peer.startswith("tor-")} == {node.name for node in NODES}:
            return found
        assert time.monotonic() < until, f"no switch was seen within {timeout_s} s: {found}"
        time.sleep(1)


def places(**given: str) -> dict[str, Any]:
    return {node: tuple(place.split("/")) for node, place in given.items()}


def test_nodes_hear_the_switch_of_their_rack(
    client: docker.DockerClient, wired: tuple[LabState, dict[str, str]]
) -> None:
    state, switches = wired
    assert switches == {"tor-r1": "hall1/b1/r1", "tor-r2": "hall1/b1/r2"}
    found = seen(client, state)
    assert {(one.node, one.peer) for one in found} == {("gpu1", "tor-r1"), ("gpu2", "tor-r2")}
    assert all(one.interface != "eth0" and one.chassis.count(":") == 5 for one in found)
    assert cross_check(places(gpu1="hall1/b1/r1", gpu2="hall1/b1/r2"), found, switches=switches).ok


def test_a_swap_in_the_description_is_told_with_both_names(
    client: docker.DockerClient, wired: tuple[LabState, dict[str, str]]
) -> None:
    state, switches = wired
    found = seen(client, state)
    report = cross_check(places(gpu1="hall1/b1/r2", gpu2="hall1/b1/r1"), found, switches=switches)
    assert [(one.node, one.swapped_with) for one in report.mismatches] == [("gpu1", "gpu2"), ("gpu2", "gpu1")]
    assert "gpu1 and gpu2 are swapped" in report.mismatches[0].message
    own = [one for one in found if one.node == "gpu1"]
    finding = check_node("gpu1", ("hall1", "b1", "r2"), switches, own)
    assert not finding.ok and "its neighbour tor-r1 stands in hall1/b1/r1 (LLDP, eth1" in finding.cause


def test_switches_go_and_leave_the_nodes(client: docker.DockerClient, wired: tuple[LabState, dict[str, str]]) -> None:
    state, _ = wired
    seen(client, state)
    switches_down(client, state, NODES)
    left = client.containers.list(filters={"label": f"{LABEL}={NAME}"})
    assert {container.name for container in left} == {f"{NAME}-gpu1", f"{NAME}-gpu2"}
    assert client.networks.list(filters={"label": f"{LABEL}={NAME}"}) == []
    assert "eth1" not in exec_text(left[0], "ls /sys/class/net")[1]
