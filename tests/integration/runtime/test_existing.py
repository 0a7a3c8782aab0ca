"""Runtimes that are on a node already: refused by name, adopted, replaced, and given back by a reset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(600)]

PACKAGED = "/usr/lib/systemd/system/containerd.service"
#: What a package of a container engine leaves: its CRI plugin is off.
FOREIGN_CONFIG = 'version = 3\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n'


def unit(command: str) -> str:
    return f"[Service]\nExecStart={command}\nDelegate=yes\nKillMode=process\n[Install]\nWantedBy=multi-user.target\n"


@pytest.fixture
def bare(bare_node: Any) -> Iterator[Any]:
    """The bare node; what a test put there is taken away again."""
    yield bare_node
    bare_node.sh("systemctl unmask containerd.service; systemctl disable --now containerd crio k3s", check=False)
    bare_node.sh(
        f"rm -rf {PACKAGED} /usr/lib/systemd/system/crio.service /usr/lib/systemd/system/k3s.service /etc/containerd "
        "/run/k3s /usr/bin/containerd* /usr/bin/ctr; systemctl daemon-reload; systemctl reset-failed"
    )


def packaged(node: Any, program: str = "/usr/bin/containerd") -> None:
    """The bundle's containerd where a distribution's package has it, started, with a package's configuration."""
    bundle = node.nodes.bundle
    for name in ("containerd", "containerd-shim-runc-v2", "ctr"):
        url = f"{node.nodes.server}/v2/artifacts/blobs/sha256:{bundle.file(name).sha256}"
        node.sh(f"curl -sSf -o /usr/bin/{name} {url} && chmod 755 /usr/bin/{name}")
    node.write("/etc/containerd/config.toml", FOREIGN_CONFIG)
    node.write(PACKAGED, unit(program))
    node.sh("systemctl daemon-reload && systemctl enable --now containerd && sleep 1 && systemctl is-active containerd")


def test_t03_a_containerd_that_is_too_old_is_refused_with_its_unit_and_the_choices(bare: Any) -> None:
    """A10: what Debian 12 itself has."""
    version = "github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1"
    bare.write("/usr/bin/containerd", f"#!/bin/sh\necho containerd {version}\n", 0o755)
    bare.write(PACKAGED, unit("/usr/bin/containerd"))
    bare.sh("systemctl daemon-reload")
    for existing in ("refuse", "adopt"):
        done = bare.play("container_runtime", container_runtime_existing=existing)
        assert done.code != 0
        assert "containerd 1.6.20~ds1 is already on this node" in done.message
        assert "(containerd.service in /lib/systemd/system/containerd.service" in done.message
        assert "cannot be adopted: containerd 1.6.20~ds1 reads configuration up to version 2" in done.message
        assert "replace puts the lock's containerd in its place" in done.message
    assert bare.sh("ls /usr/local/bin") == "", "nothing was installed"


def test_t03_a_masked_unit_is_somebodys_decision(bare: Any) -> None:
    bare.sh("systemctl mask containerd.service")
    done = bare.play("container_runtime", container_runtime_existing="adopt")
    assert done.code != 0
    assert "containerd.service is masked on this node" in done.message
    assert "systemctl unmask containerd.service" in done.message
    assert "container_runtime_existing: replace" in done.message


def test_t03_k3s_is_found_by_its_socket_and_neither_adopted_nor_replaced(bare: Any) -> None:
    """A7: a whole Kubernetes with a containerd of its own."""
    serve = (
        "import os,socket,time; os.makedirs('/run/k3s/containerd', exist_ok=True); s=socket.socket(socket.AF_UNIX); "
        "s.bind('/run/k3s/containerd/containerd.sock'); s.listen(); time.sleep(600)"
    )
    bare.write("/usr/lib/systemd/system/k3s.service", unit(f'/usr/bin/python3 -c "{serve}"'))
    bare.sh("systemctl daemon-reload && systemctl start k3s && sleep 1")
    done = bare.play("container_runtime", container_runtime_existing="replace")
    assert done.code != 0
    assert "k3s is on this node (k3s.service in /lib/systemd/system/k3s.service, active" in done.message
    assert "socket /run/k3s/containerd/containerd.sock" in done.message
    assert "k3s-uninstall.sh" in done.message


def test_t03_an_adopted_containerd_keeps_its_program_and_a_reset_gives_its_configuration_back(bare: Any) -> None:
    packaged(bare)
    refused = bare.play("container_runtime")
    assert "adopt keeps containerd 2." in refused.message and "/etc/containerd/config.toml" in refused.message
    bare.converge("container_runtime", container_runtime_existing="adopt")
    assert "/usr/bin/containerd" in bare.sh("readlink /proc/$(systemctl show -p MainPID --value containerd)/exe")
    assert "RuntimeReady" in bare.sh("/usr/local/bin/crictl info"), "the role owns the configuration now"
    bare.unchanged("container_runtime", container_runtime_existing="adopt")
    done = bare.reset()
    assert done.code == 0, done.text
    assert bare.sh("cat /etc/containerd/config.toml") == FOREIGN_CONFIG
    assert bare.sh("systemctl is-active containerd") == "active\n"
    assert bare.sh("ls /usr/local/bin") == ""


def test_t03_a_replaced_containerd_and_cri_o_come_back_with_a_reset(bare: Any) -> None:
    packaged(bare)
    bare.write("/usr/lib/systemd/system/crio.service", unit("/usr/bin/sleep infinity"))
    bare.sh("systemctl daemon-reload && systemctl enable --now crio")
    refused = bare.play("container_runtime")
    assert "CRI-O is on this node (crio.service" in refused.message and "is already on this node" in refused.message
    bare.converge("container_runtime", container_runtime_existing="replace")
    assert "/usr/local/bin/containerd" in bare.sh("readlink /proc/$(systemctl show -p MainPID --value containerd)/exe")
    assert bare.sh("systemctl is-active crio; systemctl is-enabled crio", check=False) == "inactive\ndisabled\n"
    bare.unchanged("container_runtime", container_runtime_existing="replace")
    done = bare.reset()
    assert done.code == 0, done.text
    assert bare.sh("systemctl is-active crio") == "active\n"
    assert bare.sh("cat /etc/containerd/config.toml") == FOREIGN_CONFIG
    assert "/usr/bin/containerd" in bare.sh("readlink /proc/$(systemctl show -p MainPID --value containerd)/exe")
