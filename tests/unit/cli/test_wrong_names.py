"""Verbs that meet a kubeconfig or a name that is none: a sentence, and nothing starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from myriad.cli._playbook import check_limit
from myriad.cli.burnin import choose, named
from myriad.cli.portrait import looked
from myriad.cli.reboot import reboot
from myriad.errors import InputError
from myriad.fleet import check
from myriad.inventory import read_inventory
from myriad.kube.client import ClusterUnreachableError, connect
from myriad.kube.kinds import NODES

MACHINE = Path(__file__).parents[2] / "fixtures" / "machines" / "a10-x1"
EXAMPLE = Path(__file__).resolve().parents[3] / "inventories" / "example"


def kubeconfig(folder: Path, *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> Path:
    path = folder / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"} | (cluster or {})}],
                "users": [{"name": "a", "user": user or {"token": "x"}}],
                "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
                "current-context": "a",
            }
        )
    )
    return path


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({}, {"client-certificate-data": "!!", "client-key-data": "@@"}),
        ({}, {"client-certificate-data": "eA==", "client-key-data": "eA=="}),
        ({"certificate-authority-data": "eA=="}, {}),
        ({"certificate-authority": "/nonexistent"}, {}),
        ({"insecure-skip-tls-verify": True}, {"client-certificate-data": "eA==", "client-key-data": "eA=="}),
    ],
)
def test_certificates_that_are_none_are_told(tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> None:
    path = kubeconfig(tmp_path, cluster=cluster, user=user)
    with pytest.raises(ClusterUnreachableError, match="cannot be used") as caught:
        connect(path, in_cluster=False)
    assert str(path) in str(caught.value)


def test_a_kubeconfig_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnreachableError, match="there is no such kubeconfig"):
        connect(tmp_path / "gone", in_cluster=False)


@pytest.mark.parametrize("limit", ["gpu0001", "pool_h100,gpu0002", "all", "gpu*", "gpu00[01:03]", "all:!gpu0001", "@x"])
def test_limits_that_name_what_there_is_pass(limit: str) -> None:
    check_limit(EXAMPLE, limit)


@pytest.mark.parametrize(
    ("limit", "is_refused"),
    [("spare1", True), ("spare", True), ("spare1,spare2", True), ("gpu1", False), ("spare1,gpu1", False),
     ("all", False), ("spare*", False)],
)  # fmt: skip
def test_a_limit_to_machines_that_no_play_takes_is_refused(tmp_path: Path, limit: str, is_refused: bool) -> None:
    (tmp_path / "hosts.yml").write_text(
        "control_plane: {hosts: {cp1: {}}}\ngpu_nodes: {children: {pool_h100: {hosts: {gpu1: {}}}}}\n"
        "spare: {hosts: {spare1: {}, spare2: {}}}\n"
    )
    if not is_refused:
        check_limit(tmp_path, limit)
        return
    with pytest.raises(InputError, match="in none of the groups control_plane, gpu_nodes, registry"):
        check_limit(tmp_path, limit)


@pytest.mark.parametrize("limit", ["gpx0001", "gpu0001,pool_h10", "gpu0001:nobody"])
def test_a_limit_that_names_nobody_is_refused(limit: str) -> None:
    with pytest.raises(InputError, match="neither a host nor a group of the inventory; ") as caught:
        check_limit(EXAMPLE, limit)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nodes": "cp1,cp2"}, "cp1 is of no pool"),
        ({"nodes": ","}, "no node is named"),
        ({"nodes": "gpu0001", "pool": "serving"}, "no node of pool serving stands there"),
        ({"rack": "hall9"}, 'no node stands in "hall9"'),
    ],
)
def test_a_burn_in_of_nobody_is_refused(given: dict[str, str], said: str) -> None:
    fleet = check(read_inventory(EXAMPLE)).fleet
    with pytest.raises(InputError, match=said):
        choose(fleet, **{"rack": "", "pool": "", "nodes": ""} | given)
    with pytest.raises(InputError, match="of no pool"):
        named(fleet, "cp1")


def test_a_recording_that_cannot_be_kept_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="the recording cannot be kept there"):
        looked("gpu1", MACHINE, tmp_path / "file" / "below")


def test_an_order_of_gangs_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="allowed: together, wait or apart"):
        reboot(nodes=["gpu0001"], inventory=EXAMPLE, gangs="maybe")


def test_a_name_is_no_way_to_another_object() -> None:
    assert NODES.path(name="../../secrets?x#y") == "/api/v1/nodes/..%2F..%2Fsecrets%3Fx%23y"
    assert NODES.path(name="system:node") == "/api/v1/nodes/system:node"
