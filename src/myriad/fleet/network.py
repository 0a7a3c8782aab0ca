"""Pod networks of nodes, derived from their addresses: nothing has to be handed out or remembered."""

from __future__ import annotations

import ipaddress


def pod_cidr(address: str, *, node_network: str, pod_network: str, prefix: int) -> str:
    """Pod CIDR of a node: pod_network + (address - node_network) * 2^(bits - prefix).

    The n-th address of the node network gets the n-th block of the pod network, so two nodes never share one.

    Args:
        address: the node's address, e.g. 10.77.0.11.
        node_network: network that all nodes are in, e.g. 10.77.0.0/24.
        pod_network: network that all pods are in, e.g. 10.244.0.0/16.
        prefix: prefix length of one node's block, e.g. 24.

    Returns:
        The block, e.g. 10.244.11.0/24.

    Raises:
        ValueError: an argument is no address or network, or the node's block lies outside the pod network.
    """
    node = ipaddress.ip_address(address)
    nodes = ipaddress.ip_network(node_network)
    pods = ipaddress.ip_network(pod_network)
    if node not in nodes:
        raise ValueError(f"address {node} is not in the node network {nodes}")
    if not pods.prefixlen <= prefix <= pods.max_prefixlen:
        raise ValueError(
            f"a node's prefix length is {prefix}; it lies between that of the pod network ({pods.prefixlen}) "
            f"and {pods.max_prefixlen}"
        )
    index = int(node) - int(nodes.network_address)
    blocks = 2 ** (prefix - pods.prefixlen)
    if index >= blocks:
        raise ValueError(
            f"address {node} is number {index} of {nodes}, but {pods} has only {blocks} blocks of /{prefix}; "
            "choose a larger pod network, a longer prefix, or a node network that begins nearer to its nodes"
        )
    start = int(pods.network_address) + index * 2 ** (pods.max_prefixlen - prefix)
    return f"{type(pods.network_address)(start)}/{prefix}"
