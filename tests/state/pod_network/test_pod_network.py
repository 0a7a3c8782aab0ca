"""Each node has its own share of the pod network, and a route to the share of each peer."""

import ipaddress
import json
from typing import Any

from testinfra.host import Host

testinfra_hosts = ["ansible://control_plane", "ansible://gpu_nodes"]


def own_share(host: Host) -> ipaddress.IPv4Network:
    document = json.loads(host.file("/etc/cni/net.d/10-myriad.conflist").content_string)
    bridge = next(plugin for plugin in document["plugins"] if plugin["type"] == "bridge")
    return ipaddress.IPv4Network(bridge["ipam"]["ranges"][0][0]["subnet"])


def routes(host: Host) -> dict[str, str]:
    """Network to next hop of the routes that the role set."""
    lines = host.check_output("ip -4 route show proto 77").splitlines()
    return {line.split()[0]: line.split()[2] for line in lines}


def test_the_configuration_is_what_plugins_of_this_version_take(host: Host) -> None:
    document = json.loads(host.file("/etc/cni/net.d/10-myriad.conflist").content_string)
    assert document["cniVersion"] == "1.0.0"
    assert [plugin["type"] for plugin in document["plugins"]] == ["bridge", "portmap"]
    for plugin in ("bridge", "portmap", "host-local"):
        assert host.file(f"/opt/cni/bin/{plugin}").mode & 0o111


def test_the_runtime_took_it(host: Host) -> None:
    answer = json.loads(host.check_output("/usr/local/bin/crictl info"))
    assert {item["type"]: item["status"] for item in answer["status"]["conditions"]}["NetworkReady"] is True


def test_every_peer_has_a_route_and_nobody_else(host: Host, variables: dict[str, Any]) -> None:
    names = {*variables["groups"]["control_plane"], *variables["groups"]["gpu_nodes"]} - {host.backend.get_hostname()}
    peer = host.backend.ansible_runner.get_variables
    addresses = {peer(name)["ansible_host"] for name in names}
    assert addresses
    assert set(routes(host).values()) == addresses


def test_the_own_share_is_not_routed_away(host: Host) -> None:
    assert all(not own_share(host).overlaps(ipaddress.IPv4Network(network)) for network in routes(host))


def test_shares_are_apart(host: Host) -> None:
    networks = [*map(ipaddress.IPv4Network, routes(host)), own_share(host)]
    assert all(not one.overlaps(other) for one in networks for other in networks if one is not other)


def test_routes_come_back_after_a_reboot(host: Host) -> None:
    assert host.service("myriad-routes").is_enabled
    assert host.service("myriad-routes").is_running


def test_the_default_route_is_not_ours(host: Host) -> None:
    assert "proto 77" not in host.check_output("ip -4 route show default")
