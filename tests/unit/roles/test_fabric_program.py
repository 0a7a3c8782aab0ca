"""The program that sets the interfaces of a node: what it refuses, what it does, what it takes back."""

from __future__ import annotations

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[3] / "roles/fabric/templates/install/usr/local/lib/myriad/fabric"


@pytest.fixture(scope="module")
def fabric() -> ModuleType:
    loader = SourceFileLoader("myriad_fabric_program", str(PROGRAM))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def link(name: str, *addresses: str, mtu: int = 1500, master: str = "", up: bool = True, **more: Any) -> dict[str, Any]:
    flags = ["UP", "LOWER_UP"] if up else []
    infos = [{"local": one.split("/")[0], "prefixlen": int(one.split("/")[1]), "scope": "global"} for one in addresses]
    return {
        "ifname": name,
        "mtu": mtu,
        "flags": flags,
        "addr_info": infos,
        **({"master": master} if master else {}),
        **more,
    }


#: As `ip -json address show` of iproute2 prints a host with a bond below the management path and two free ports.
LINKS = [
    link("lo", "127.0.0.1/8"),
    link("eno1", master="bond0"),
    link("bond0", "10.0.3.17/24"),
    link("eno3", "10.9.0.17/24"),
    link("ens1f0np0", max_mtu=9978),
    link("ens2f0np0", mtu=4200, up=False),
]


def config(*rails: tuple[str, str], **changes: Any) -> dict[str, Any]:
    rows = [{"interface": name, "address": address, "peer": ""} for name, address in rails]
    return {
        "kind": "roce", "mtu": 4200, "pfc": False, "ecn": False, "priority": 3, "trust": "dscp", "rails": rows,
        "management": ["gpu0017.mgmt"], "mlnx_qos": "/nowhere/mlnx_qos", "rdma_required": False, **changes,
    }  # fmt: skip


def facts(fabric: ModuleType, description: dict[str, Any], ssh: str = "", net: str = "/nowhere") -> dict[str, Any]:
    def ip(*arguments: str) -> list[dict[str, Any]]:
        if arguments[0] == "address":
            return LINKS
        return [{"dst": "default", "gateway": "10.0.3.1", "dev": "bond0"}] if arguments[0] == "-4" else []

    found: dict[str, Any] = fabric.facts(description, run_ip=ip, environment={"SSH_CONNECTION": ssh}, net=net)
    return found


def look(name: str, port: object) -> list[Any]:
    if name != "gpu0017.mgmt":
        raise OSError("no such name")
    return [(2, 1, 6, "", ("10.9.0.17", 0))]


@pytest.mark.parametrize(
    ("interface", "sentence"),
    [
        ("bond0", "bond0 is on the management path: the default route goes through bond0. It is left alone"),
        ("eno1", "eno1 is on the management path: the default route goes through bond0"),
        ("eno3", "eno3 is on the management path: eno3 has 10.9.0.17, by which this host is managed"),
        (
            "ens9",
            "ens9 is described and this host has no such interface; it has bond0, eno1, eno3, ens1f0np0, ens2f0np0",
        ),
    ],
)
def test_what_would_cut_the_host_off_is_refused(fabric: ModuleType, interface: str, sentence: str) -> None:
    description = config((interface, "10.200.0.17/24"))
    (said,) = fabric.problems(description, facts(fabric, description), look)
    assert said.startswith(sentence)


def test_the_address_of_the_running_session_counts_as_management(fabric: ModuleType) -> None:
    description = config(("eno3", ""), management=[])
    assert fabric.problems(description, facts(fabric, description), look) == []
    found = facts(fabric, description, ssh="10.9.0.1 51000 10.9.0.17 22")
    assert "by which this host is managed" in fabric.problems(description, found, look)[0]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, ""),
        ({"mtu": 9990}, "ens1f0np0 takes an MTU of 9978 at most; described is 9990"),
        ({"rdma_required": True}, "ens1f0np0 has no RDMA device, so it carries no RoCE"),
        ({"rdma_required": True, "kind": "infiniband"}, "ens1f0np0 has no RDMA device, so it carries no InfiniBand"),
        ({"pfc": True}, "PFC is described and /nowhere/mlnx_qos is not here"),
    ],
)
def test_what_cannot_work_is_refused(fabric: ModuleType, changes: dict[str, Any], sentence: str) -> None:
    description = config(("ens1f0np0", "10.200.0.17/24"), **changes)
    said = fabric.problems(description, facts(fabric, description), look)
    assert len(said) == bool(sentence) and all(sentence in line for line in said)


def test_an_address_that_another_interface_has_is_refused(fabric: ModuleType) -> None:
    description = config(("ens1f0np0", "10.9.0.17/24"), management=[])
    (said,) = fabric.problems(description, facts(fabric, description), look)
    assert said == "ens1f0np0 would get 10.9.0.17, which eno3 has already"


def test_an_rdma_device_is_found_behind_its_interface(fabric: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "ens1f0np0" / "device" / "infiniband" / "mlx5_0").mkdir(parents=True)
    description = config(("ens1f0np0", ""), rdma_required=True)
    found = facts(fabric, description, net=str(tmp_path))
    assert found["links"]["ens1f0np0"]["rdma"] == "mlx5_0"
    assert fabric.problems(description, found, look) == []


def test_only_what_differs_is_set(fabric: ModuleType) -> None:
    description = config(("ens1f0np0", "10.200.0.17/24"), ("ens2f0np0", ""))
    todo = fabric.actions(description, facts(fabric, description), {})
    assert [" ".join(command) for _, command in todo] == [
        "ip link set dev ens1f0np0 mtu 4200",
        "ip address add 10.200.0.17/24 dev ens1f0np0",
        "ip link set dev ens2f0np0 up",
    ]


def test_what_an_earlier_description_set_is_taken_back(fabric: ModuleType) -> None:
    before = {
        "eno3": {"mtu": 9000, "addresses": ["10.9.0.17/24"]},
        "gone0": {"mtu": 1500, "addresses": ["10.1.0.1/24"]},
    }
    description = config(("ens1f0np0", ""), mtu=1500)
    todo = fabric.actions(description, facts(fabric, description), before)
    assert [" ".join(command) for _, command in todo] == [
        "ip address delete 10.9.0.17/24 dev eno3", "ip link set dev eno3 mtu 9000",
    ]  # fmt: skip


def test_an_address_of_somebody_else_stays(fabric: ModuleType) -> None:
    description = config(("eno3", "10.200.0.17/24"), management=[], mtu=1500)
    todo = fabric.actions(description, facts(fabric, description), {"eno3": {"mtu": 1500, "addresses": []}})
    assert [" ".join(command) for _, command in todo] == ["ip address add 10.200.0.17/24 dev eno3"]


def test_pfc_and_ecn_are_set_for_one_priority(fabric: ModuleType, tmp_path: Path) -> None:
    description = config(("ens1f0np0", ""), pfc=True, ecn=True)
    qos, notify, react = fabric.lossless(description, description["rails"][0], net=str(tmp_path))
    assert qos == ("/nowhere/mlnx_qos", "-i", "ens1f0np0", "--pfc", "0,0,0,1,0,0,0,0", "--trust", "dscp")
    assert [path.removeprefix(str(tmp_path)) for path, _ in (notify, react)] == [
        "/ens1f0np0/ecn/roce_np/enable/3", "/ens1f0np0/ecn/roce_rp/enable/3",
    ]  # fmt: skip
    with pytest.raises(fabric.Refused, match="the driver of this interface has no switch for it"):
        fabric.write_sysfs(*notify)
    Path(notify[0]).parent.mkdir(parents=True)
    Path(notify[0]).write_text("0\n")
    assert fabric.write_sysfs(*notify) == [f"{notify[0]} 1"]
    assert fabric.write_sysfs(*notify) == []


def test_a_wrong_call_is_told_how_to_call(fabric: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert fabric.main(["aply"]) == 2
    assert "fabric check FILE" in capsys.readouterr().err
