"""Interfaces between GPUs are as described, the management path is untouched, and lldpd runs where it is asked for."""

import json
from typing import Any

import pytest
from testinfra.host import Host

testinfra_hosts = ["ansible://gpu_nodes"]
PLAN = "/etc/myriad/fabric.json"
PROGRAM = "/usr/local/lib/myriad/fabric"


@pytest.fixture
def described(variables: dict[str, Any]) -> dict[str, Any]:
    """The fabric of this host's pool in the description; empty where it has none."""
    fabrics = variables.get("myriad_fabric") or {}
    pools = [name.removeprefix("pool_") for name in variables["group_names"] if name.startswith("pool_")]
    return next((dict(fabrics[pool]) for pool in pools if pool in fabrics), {})


def test_the_plan_is_there_where_a_fabric_is_described_and_only_there(host: Host, described: dict[str, Any]) -> None:
    assert host.file(PLAN).exists is bool(described)


def test_rails_have_the_described_mtu_an_address_and_are_up(host: Host, described: dict[str, Any]) -> None:
    rails = json.loads(host.check_output(f"{PROGRAM} status {PLAN}"))["rails"] if described else []
    assert [rail["interface"] for rail in rails] == [rail["interface"] for rail in described.get("rails", [])]
    wrong = [rail for rail in rails if not rail["present"] or rail["mtu"] != described["mtu"] or rail["state"] != "up"]
    assert wrong == []
    assert [rail["interface"] for rail in rails if not rail["addresses"]] == []


def test_the_management_path_is_not_ours(host: Host, described: dict[str, Any], variables: dict[str, Any]) -> None:
    rails = {rail["interface"] for rail in described.get("rails", [])}
    assert host.interface.default().name not in rails
    carrying = {
        line.split()[1]
        for line in host.check_output("ip -o address show").splitlines()
        if f" {variables['ansible_host']}/" in line
    }
    assert carrying and not carrying & rails


def test_links_come_back_after_a_reboot(host: Host, described: dict[str, Any]) -> None:
    assert host.service("myriad-fabric").is_enabled is bool(described)


def test_a_rail_on_the_management_path_is_refused(host: Host, described: dict[str, Any]) -> None:
    if not described:
        assert not host.file(PLAN).exists
        return
    plan = json.loads(host.file(PLAN).content_string)
    plan["rails"] = [{"interface": host.interface.default().name, "address": "", "peer": ""}]
    done = host.run("printf '%%s' %s > /tmp/plan.json; %s check /tmp/plan.json", json.dumps(plan), PROGRAM)
    assert done.rc == 1 and "is on the management path: the default route goes through" in done.stderr


def test_lldpd_runs_where_switches_are_described(host: Host, variables: dict[str, Any]) -> None:
    wanted = bool((variables.get("myriad_topology") or {}).get("switches"))
    assert host.file("/etc/lldpd.d/50-myriad.conf").exists is wanted
    if wanted:
        assert host.service("lldpd").is_running and host.service("lldpd").is_enabled
        assert "lldp" in json.loads(host.check_output("lldpcli -f json0 show neighbors"))


def test_packages_are_the_locked_ones_and_held(host: Host, described: dict[str, Any]) -> None:
    held = set(host.check_output("apt-mark showhold").split())
    wanted = {"rdma-core", "ibverbs-providers", "perftest"} if described else set()
    assert wanted <= held
