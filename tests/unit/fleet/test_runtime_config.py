"""What becomes of a runtime that is there already, and which configuration a containerd reads.

The facts are composed from what the units, sockets and programs of these projects are documented to be (their sources
stand in the module); none was recorded on a machine.
"""

from __future__ import annotations

from typing import Any

import pytest

from myriad.fleet import runtime_config
from myriad.fleet.runtime_config import RuntimeConfigError, config_version, decide


def unit(**values: str) -> dict[str, str]:
    return {
        "load": "loaded",
        "active": "active",
        "enabled": "enabled",
        "fragment": "",
        "package": "",
        "program": "",
        **values,
    }


def facts(**values: Any) -> dict[str, Any]:
    kubelet = {"running": False, "endpoint": "", "source": ""}
    return {"units": {}, "sockets": [], "versions": {}, "kubelet": kubelet, "config": "", "own": False, **values}


def containerd(version: str, **values: str) -> dict[str, Any]:
    """A containerd of a package with this version."""
    found = unit(fragment="/lib/systemd/system/containerd.service", program="/usr/bin/containerd", **values)
    return {"units": {"containerd.service": found}, "versions": {"/usr/bin/containerd": version}}


@pytest.mark.parametrize(
    ("version", "number"),
    [("2.3.4", 4), ("v2.3.0-rc.1", 4), ("2.4.2", 4), ("3.0.0", 4), ("2.2.9", 3), ("2.0.0", 3), ("2.1.4-ds1", 3)],
)
def test_a6_the_version_of_the_configuration_follows_from_that_of_containerd(version: str, number: int) -> None:
    assert config_version(version) == number


@pytest.mark.parametrize("version", ["1.6.20~ds1", "1.7.24"])
def test_a6_a_containerd_before_2_cannot_be_configured(version: str) -> None:
    with pytest.raises(RuntimeConfigError, match=r"reads configuration up to version 2.*2\.0 is the oldest"):
        config_version(version)


def test_a6_what_is_no_version_is_said() -> None:
    with pytest.raises(RuntimeConfigError, match='"unknown" is no version of containerd'):
        config_version("unknown")


def test_nothing_there_is_installed() -> None:
    assert decide(facts(), "refuse").action == "install"


def test_its_own_runtime_stays_whatever_the_input_says() -> None:
    own = facts(**containerd("2.3.4"), own=True)
    assert {decide(own, existing).action for existing in ("refuse", "adopt", "replace")} == {"own"}


def test_a_leftover_configuration_alone_stands_in_nobodys_way() -> None:
    assert decide(facts(config="/etc/containerd/config.toml"), "refuse").action == "install"


def test_a10_t03_an_old_one_of_the_distribution_is_refused_with_unit_package_and_choices() -> None:
    found = facts(**containerd("1.6.20~ds1", package="containerd"), config="/etc/containerd/config.toml")
    for existing in ("refuse", "adopt"):
        (said,) = decide(found, existing).refusals
        assert "containerd 1.6.20~ds1 is already on this node" in said
        assert "containerd.service in /lib/systemd/system/containerd.service of package containerd, active" in said
        assert "/etc/containerd/config.toml" in said
        assert "It cannot be adopted" in said and "replace puts the lock's containerd" in said
    assert decide(found, "replace").action == "replace"


def test_a10_a_newer_one_is_adopted_with_its_program_and_version() -> None:
    found = facts(**containerd("2.1.4", package="containerd.io"))
    (said,) = decide(found, "refuse").refusals
    assert "adopt keeps containerd 2.1.4" in said and "version 3" in said
    adopted = decide(found, "adopt")
    assert (adopted.action, adopted.program, adopted.version) == ("adopt", "/usr/bin/containerd", "2.1.4")


def test_a10_that_docker_uses_it_is_told() -> None:
    found = containerd("2.1.4", package="containerd.io")
    found["units"]["docker.service"] = unit(fragment="/lib/systemd/system/docker.service")
    (said,) = decide(facts(**found), "refuse").refusals
    assert "docker.service uses it." in said


def test_a10_a_masked_unit_is_refused_but_by_replace_which_unmasks_it() -> None:
    found = facts(units={"containerd.service": unit(load="masked", active="inactive", enabled="masked")})
    for existing in ("refuse", "adopt"):
        (said,) = decide(found, existing).refusals
        assert "is masked on this node" in said and "systemctl unmask containerd.service" in said
    assert decide(found, "replace").unmask is True


@pytest.mark.parametrize(
    ("name", "unit_name", "socket"),
    [
        ("k3s", "k3s.service", "/run/k3s/containerd/containerd.sock"),
        ("k3s", "k3s-agent.service", "/run/k3s/containerd/containerd.sock"),
        ("rke2", "rke2-server.service", "/run/k3s/containerd/containerd.sock"),
        ("k0s", "k0sworker.service", "/run/k0s/containerd.sock"),
        ("microk8s", "snap.microk8s.daemon-containerd.service", "/var/snap/microk8s/common/run/containerd.sock"),
    ],
)
@pytest.mark.parametrize("existing", ["refuse", "adopt", "replace"])
def test_a7_t03_a_whole_kubernetes_is_always_refused_by_its_name(
    name: str, unit_name: str, socket: str, existing: runtime_config.Existing
) -> None:
    found = facts(units={unit_name: unit(fragment=f"/etc/systemd/system/{unit_name}")}, sockets=[socket])
    (said,) = decide(found, existing).refusals
    assert said.startswith(
        f"{name} is on this node ({unit_name} in /etc/systemd/system/{unit_name}, active, socket {socket})"
    )
    assert "can be neither adopted nor replaced" in said


def test_a7_a_socket_that_somebody_listens_on_is_enough() -> None:
    (said,) = decide(facts(sockets=["/run/k3s/containerd/containerd.sock"]), "adopt").refusals
    assert "socket /run/k3s/containerd/containerd.sock" in said and "k3s-uninstall.sh" in said


def test_a7_one_that_is_installed_but_neither_runs_nor_starts_stands_in_nobodys_way() -> None:
    found = facts(units={"k3s.service": unit(active="inactive", enabled="disabled")})
    assert decide(found, "refuse").action == "install"


def test_a7_the_socket_of_a_running_kubelet_decides() -> None:
    kubelet = {"running": True, "endpoint": "unix:///opt/own/containerd.sock", "source": "/var/lib/kubelet/config.yaml"}
    (said,) = decide(facts(kubelet=kubelet), "replace").refusals
    assert "uses unix:///opt/own/containerd.sock (set in /var/lib/kubelet/config.yaml)" in said


@pytest.mark.parametrize(
    "endpoint", ["", "unix:///run/containerd/containerd.sock", "unix:///var/run/containerd/containerd.sock"]
)
def test_a7_a_kubelet_on_containerds_own_socket_is_right(endpoint: str) -> None:
    found = facts(own=True, kubelet={"running": True, "endpoint": endpoint, "source": ""})
    assert decide(found, "refuse").action == "own"


def test_a7_what_is_told_by_its_name_is_not_told_again_by_the_kubelets_socket() -> None:
    kubelet = {"running": True, "endpoint": "unix:///run/k3s/containerd/containerd.sock", "source": "its command line"}
    found = facts(sockets=["/run/k3s/containerd/containerd.sock"], kubelet=kubelet)
    assert len(decide(found, "refuse").refusals) == 1


def test_t03_cri_o_is_stopped_by_replace_and_asked_for_again_when_it_is_down() -> None:
    crio = {"crio.service": unit(fragment="/lib/systemd/system/crio.service", package="cri-o")}
    (said,) = decide(facts(units=crio), "refuse").refusals
    assert "CRI-O is on this node (crio.service in /lib/systemd/system/crio.service of package cri-o" in said
    assert decide(facts(units=crio), "adopt").action == "refuse"
    assert decide(facts(units=crio), "replace").stop == ("crio.service",)
    down = {"crio.service": unit(active="inactive", enabled="disabled")}
    assert decide(facts(units=down, own=True), "replace").stop == ("crio.service",)


def test_everything_that_stands_in_the_way_is_told_at_once() -> None:
    found = containerd("1.7.24")
    found["units"]["crio.service"] = unit()
    found["units"]["k0sworker.service"] = unit()
    assert len(decide(facts(**found), "refuse").refusals) == 3
