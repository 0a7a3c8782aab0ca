"""A lab without a way out: only its own addresses are reached, and packages come from the bundle.

Blocked twice, each by itself enough: in every node (OUTPUT for the node, FORWARD for its pods), and on the lab's
network, where the engine forwards for it. The second is set by a short container in the engine's own network namespace,
so that it also works where the engine is not on this machine. Names may still resolve, by the engine's resolver;
connections to what they name are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import docker
from docker.errors import ContainerError

from myriad.errors import MyriadError
from myriad.lab.nodes import IMAGE, exec_text, exec_whole
from myriad.lab.state import LabState
from myriad.roles import roles_folder
from myriad.stack.bundle import Bundle
from myriad.stack.bundle_offline import OfflineWish
from myriad.stack.serve import BundleServer

CHAIN = "MYRIAD-OFFLINE"
#: Pods and Services live here; they lead to nodes of the lab.
CLUSTER_NETWORKS = ("10.244.0.0/16", "10.96.0.0/12")
#: The nodes of the lab are Debian 12.
DISTRIBUTION = "debian12"
Say = Callable[[str], None]


def wish() -> OfflineWish:
    """What the lab's bundle holds besides the stack: packages of its nodes' distribution. The controller is there."""
    return OfflineWish(distributions=(DISTRIBUTION,), roles=roles_folder())


def node_script(subnet: str) -> str:
    """Shell that lets a node and its pods reach the lab alone. Running it again changes nothing."""
    allowed = ("127.0.0.0/8", subnet, *CLUSTER_NETWORKS)
    lines = [
        "set -e",
        f"iptables -w 10 -N {CHAIN} 2>/dev/null || iptables -w 10 -F {CHAIN}",
        *(f"iptables -w 10 -A {CHAIN} -d {network} -j RETURN" for network in allowed),
        f"iptables -w 10 -A {CHAIN} -j REJECT --reject-with icmp-admin-prohibited",
    ]
    for chain in ("OUTPUT", "FORWARD"):
        jump = f"{chain} -j {CHAIN}"
        lines.append(f"iptables -w 10 -C {jump} 2>/dev/null || iptables -w 10 -I {chain} 1 -j {CHAIN}")
    return "\n".join(lines)


def node_script_undo() -> str:
    """Shell that takes the block of a node back."""
    steps = (f"-D OUTPUT -j {CHAIN}", f"-D FORWARD -j {CHAIN}", f"-F {CHAIN}", f"-X {CHAIN}")
    return "\n".join([*(f"iptables -w 10 {step} 2>/dev/null" for step in steps), "true"])


def network_script(name: str, subnet: str) -> str:
    """Shell for the engine's own namespace: nothing of the lab's network is forwarded out of it."""
    rule = f"-s {subnet} ! -d {subnet} -m comment --comment {name} -j REJECT --reject-with icmp-admin-prohibited"
    return f"{network_script_undo(name)}\niptables -w 10 -I FORWARD 1 {rule}"


def network_script_undo(name: str) -> str:
    """Shell that takes back what `network_script` set for this lab, whatever its subnet was."""
    mine = f"""iptables -w 10 -S FORWARD | grep -E -- '--comment "?{name}"? ' | sed 's/^-A /-D /'"""
    return f'set -e\n{{ {mine} || true; }} | while read -r rule; do echo "$rule" | xargs iptables -w 10; done'


def block(client: docker.DockerClient, state: LabState) -> None:
    """Block every node of the lab and its network.

    Raises:
        MyriadError: where a rule could not be set; nothing is half-blocked without a word.
    """
    block_nodes(client, state)
    block_network(client, state)


def block_nodes(client: docker.DockerClient, state: LabState) -> None:
    """Block every node by its own packet filter."""
    _on_nodes(client, state, node_script(state.subnet))


def block_network(client: docker.DockerClient, state: LabState) -> None:
    """Block the lab's network where the engine forwards for it."""
    _in_engine(client, network_script(state.network, state.subnet), state.node_image)


def unblock(client: docker.DockerClient, state: LabState) -> None:
    """Take all of it back."""
    _on_nodes(client, state, node_script_undo())
    unblock_network(client, state.network)


def unblock_network(client: docker.DockerClient, name: str) -> None:
    """Take back the block of a lab's network by the lab's name alone; without a node image there was none."""
    images = client.images.list(IMAGE)
    if images:
        _in_engine(client, network_script_undo(name), str(images[0].id))


def refused(client: docker.DockerClient, state: LabState, host: str) -> int:
    """How many packets of a node and its pods were refused so far."""
    container = client.containers.get(state.hosts[host].container)
    code, text = exec_whole(container, f"iptables -w 10 -L {CHAIN} -v -n -x")
    if code != 0:
        raise MyriadError(f"the node has no block: {text.strip()}", where=host)
    return sum(int(line.split()[0]) for line in text.splitlines() if "REJECT" in line)


def _on_nodes(client: docker.DockerClient, state: LabState, script: str) -> None:
    def one(name: str) -> None:
        code, text = exec_text(client.containers.get(state.hosts[name].container), script)
        if code != 0:
            raise MyriadError(f"the packet filter was not changed: {text.strip()}", where=name)

    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(one, state.hosts))


def _in_engine(client: docker.DockerClient, script: str, image: str) -> None:
    options: dict[str, Any] = {"network_mode": "host", "cap_add": ["NET_ADMIN", "NET_RAW"], "remove": True}
    try:
        client.containers.run(image, ["-c", script], entrypoint=["sh"], stderr=True, **options)
    except ContainerError as error:
        text = error.stderr.decode(errors="replace") if isinstance(error.stderr, bytes) else str(error.stderr)
        raise MyriadError(
            f"the packet filter of the engine was not changed: {text.strip()}", where="FORWARD"
        ) from error


@dataclass
class Served:
    """A bundle that is served to a lab.

    Attributes:
        url: of the server, as the nodes reach it.
        requests: (client, method, status, path) of each, in order.
        arguments: for ansible-playbook, so that the nodes take packages from it alone.
    """

    url: str
    requests: list[tuple[str, str, int, str]] = field(default_factory=list)

    @property
    def arguments(self) -> list[str]:
        """See the class."""
        return ["-e", f"site_apt_repository={self.url}/apt"]


@contextmanager
def served(bundle: Bundle, address: str) -> Iterator[Served]:
    """Serve a bundle on this machine's address in the lab's network, for as long as the block lasts.

    Args:
        bundle: with packages.
        address: the gateway of the lab's network.
    """
    requests: list[tuple[str, str, int, str]] = []
    with BundleServer(bundle, address=address, on_request=lambda *what: requests.append(what)) as server:
        yield Served(url=server.url(address), requests=requests)
