"""The way of a host to the API servers: its own unit, for this host alone, with every control plane behind it."""

import re
from typing import Any

from testinfra.host import Host

testinfra_hosts = ["ansible://control_plane", "ansible://gpu_nodes"]
CONFIG = "/etc/myriad/api-load-balancer.cfg"


def endpoint(host: Host) -> str:
    found = re.search(r"^\s*bind (\S+)$", host.file(CONFIG).content_string, re.MULTILINE)
    assert found
    return found.group(1)


def test_it_runs_and_starts_at_boot(host: Host) -> None:
    unit = host.service("myriad-api-load-balancer.service")
    assert unit.is_running
    assert unit.is_enabled


def test_nobody_but_this_host_can_use_it(host: Host) -> None:
    address, port = endpoint(host).split(":")
    assert address.startswith("127.")
    listening = [line.split()[3] for line in host.check_output("ss -Hltn").splitlines()]
    assert [found for found in listening if found.endswith(f":{port}")] == [f"{address}:{port}"]


def test_every_control_plane_stands_behind_it(host: Host, variables: dict[str, Any]) -> None:
    servers = dict(
        re.findall(r"^\s*server (\S+) \[?([^\s\]]+?)\]?:\d+$", host.file(CONFIG).content_string, re.MULTILINE)
    )
    assert set(servers) == set(variables["groups"]["control_plane"])


def test_the_program_takes_the_file(host: Host) -> None:
    assert host.run(f"/usr/sbin/haproxy -c -q -f {CONFIG}").rc == 0


def test_the_unit_of_the_package_does_not_run_beside_it(host: Host) -> None:
    assert not host.service("haproxy.service").is_running


def test_the_version_is_the_locked_one_and_held(host: Host) -> None:
    assert "haproxy" in host.check_output("apt-mark showhold").split()
