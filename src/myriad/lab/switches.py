"""Top-of-rack switches of the lab: one container a rack that speaks LLDP over a link of its own to the rack's nodes.

Not part of `make lab`: a lab without them costs nothing more. `switches_up` works on the running nodes; what it makes
carries the lab's label, so `make lab-down` removes it too.

Each rack gets an internal network of its own, which is the cable: the switch's lldpd speaks on it, the nodes' lldpd
hears it on an interface beside their first one. A Linux bridge keeps LLDP frames to itself (IEEE 802.1D reserves their
address) until its group_fwd_mask lets them through. Unlike a switch's port the bridge also shows the nodes of a rack to
each other.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import docker
from docker.errors import ImageNotFound, NotFound

from myriad.errors import MyriadError
from myriad.lab.nodes import LABEL, exec_text
from myriad.lab.state import LabState
from myriad.lab.topology import LabNode

IMAGE = "myriad-lab-switch"
#: Bit 14: frames to 01:80:c2:00:00:0e, which is where LLDP goes.
LLDP_MASK = "0x4000"
#: Seconds between two announcements. A real switch takes 30; tests need not wait for that.
INTERVAL_S = 2

Say = Callable[[str], None]


def racks(nodes: Iterable[LabNode]) -> dict[str, list[LabNode]]:
    """Nodes with a place by the switch of their rack, `tor-<rack>`; racks of one name in two blocks are told apart."""
    by_place: dict[str, list[LabNode]] = {}
    for node in nodes:
        if node.location:
            by_place.setdefault(node.location, []).append(node)
    last = [place.rsplit("/", 1)[-1] for place in by_place]
    return {
        f"tor-{place.rsplit('/', 1)[-1] if last.count(place.rsplit('/', 1)[-1]) == 1 else place.replace('/', '-')}": on
        for place, on in by_place.items()
    }


def switch_places(nodes: Iterable[LabNode]) -> dict[str, str]:
    """`myriad_topology.switches` for the lab as it is wired."""
    return {switch: on[0].location for switch, on in racks(nodes).items()}


def bridge_name(network: str) -> str:
    """Name of a network's bridge: a kernel allows 15 characters."""
    return "myr" + hashlib.sha256(network.encode()).hexdigest()[:10]


def switches_up(
    client: docker.DockerClient, state: LabState, nodes: Iterable[LabNode], say: Say = lambda text: None
) -> dict[str, str]:
    """Make the switches and cable the running nodes to them; what is there already is kept.

    Returns:
        Switch -> place, as `myriad_topology.switches` takes it.

    Raises:
        MyriadError: lldpd cannot be installed into the switch's image.
    """
    wired = list(nodes)
    image = _image(client, state.node_image, say)
    for switch, on in racks(wired).items():
        network = _network(client, f"{state.name}-{switch}", state.name)
        for node in on:
            _cable(network, f"{state.name}-{node.name}", state.hosts[node.name].container)
        _switch(client, f"{state.name}-{switch}", switch, network, image, state)
        say(f"{switch} speaks LLDP to {', '.join(node.name for node in on)}")
    return switch_places(wired)


def switches_down(client: docker.DockerClient, state: LabState, nodes: Iterable[LabNode]) -> None:
    """Remove the switches and take their cables off the nodes."""
    for switch in racks(nodes):
        name = f"{state.name}-{switch}"
        with contextlib.suppress(NotFound):
            client.containers.get(name).remove(force=True, v=True)
        try:
            network = client.networks.get(name)
        except NotFound:
            continue
        network.reload()
        for container in network.containers:
            network.disconnect(container, force=True)
        network.remove()


def _image(client: docker.DockerClient, base: str, say: Say) -> str:
    """The node image with lldpd; made once for each node image."""
    reference = f"{IMAGE}:{base.rpartition(':')[2]}"
    try:
        client.images.get(reference)
        return reference
    except ImageNotFound:
        say("lldpd goes into the image of the lab's switches")
    container = client.containers.create(base, entrypoint=["sleep"], command=["600"], labels={f"{LABEL}.image": "1"})
    try:
        container.start()
        code, output = exec_text(
            container,
            "apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends lldpd"
            " && apt-get clean && mkdir -p /etc/lldpd.d",
        )
        if code:
            raise MyriadError(
                f"lldpd cannot be installed into {base}: {' '.join(output.split())[-300:]}",
                where=reference,
                hint="the engine's containers need the distribution's packages (a mirror or a proxy for apt)",
            )
        container.commit(repository=IMAGE, tag=reference.rpartition(":")[2], changes=f"LABEL {LABEL}.image=1")
    finally:
        container.remove(force=True, v=True)
    return reference


def _network(client: docker.DockerClient, name: str, lab: str) -> Any:
    """The cable of a rack: no gateway and no way out, so the nodes' default route stays where it is."""
    try:
        network = client.networks.get(name)
    except NotFound:
        options = {"com.docker.network.bridge.name": bridge_name(name)}
        network = client.networks.create(name, driver="bridge", internal=True, options=options, labels={LABEL: lab})
    return network


def _let_lldp_through(client: docker.DockerClient, network: str, image: str, state: LabState) -> None:
    """Set the bridge's mask from a container in the engine's own network: the engine may be another machine."""
    client.containers.run(
        image,
        entrypoint=["ip"],
        command=["link", "set", bridge_name(network), "type", "bridge", "group_fwd_mask", LLDP_MASK],
        network_mode="host",
        cap_add=["NET_ADMIN"],
        cap_drop=[] if state.detected.cap_sys_resource else ["SYS_RESOURCE"],
        remove=True,
    )


def _cable(network: Any, name: str, container: str) -> None:
    network.reload()
    if not any(one.name == name for one in network.containers):
        network.connect(container)


def _switch(client: docker.DockerClient, name: str, switch: str, network: Any, image: str, state: LabState) -> None:
    # The bridge exists once something is cabled to it.
    _let_lldp_through(client, network.name, image, state)
    try:
        if client.containers.get(name).status == "running":
            return
        client.containers.get(name).remove(force=True, v=True)
    except NotFound:
        pass
    client.containers.run(
        image,
        name=name,
        hostname=switch,
        entrypoint=["sh"],
        command=[
            "-c",
            "mkdir -p /run/lldpd && "
            f"echo 'configure lldp tx-interval {INTERVAL_S}' > /etc/lldpd.d/lab.conf && exec lldpd -d",
        ],
        cap_add=["NET_ADMIN", "NET_RAW"],
        cap_drop=[] if state.detected.cap_sys_resource else ["SYS_RESOURCE"],
        network=network.name,
        labels={LABEL: state.name},
        detach=True,
    )
