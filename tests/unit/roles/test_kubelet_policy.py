"""The program that stands before the kubelet when its policy for CPUs changes, run as the node runs it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

TEMPLATE = Path(__file__).parents[3] / "roles/kubernetes_node/templates/install/usr/local/lib/myriad/kubelet-policy.j2"
STATIC = "cpuManagerPolicy: static\nreservedSystemCPUs: 0-1\n"


class Node:
    """A node's folders below a temporary one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.program = root / "kubelet-policy"
        self.program.write_text(TEMPLATE.read_text().replace("{{ ansible_managed | comment }}", "# managed"))
        self.program.chmod(0o755)
        self.write("var/lib/kubelet/cpu_manager_state", '{"policyName":"none","defaultCpuSet":"","checksum":1}')

    def write(self, path: str, text: str) -> Path:
        """A file of the node."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def configure(self, text: str) -> None:
        """The kubelet's configuration."""
        self.write("etc/kubernetes/kubelet.conf.d/50-myriad.conf", text)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The program, with this node's folders."""
        return subprocess.run(
            [str(self.program), *arguments],
            env={**os.environ, "KUBELET_POLICY_ROOT": str(self.root)},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def has_state(self) -> bool:
        """Whether the kubelet would find what it kept."""
        return (self.root / "var/lib/kubelet/cpu_manager_state").exists()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def pod_with_a_gpu(node: Node, uid: str = "11-22") -> None:
    node.write(
        "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
        f'{{"Data":{{"PodDeviceEntries":[{{"PodUID":"{uid}","ResourceName":"nvidia.com/gpu"}}]}}}}',
    )
    (node.root / "var/lib/kubelet/pods" / uid).mkdir(parents=True)


def test_the_default_policy_keeps_what_the_kubelet_keeps(node: Node) -> None:
    node.configure("cpuManagerPolicy: none\ntopologyManagerPolicy: none\n")
    assert node.run("settle").returncode == 0
    assert node.has_state


def test_another_policy_forgets_it_once(node: Node) -> None:
    node.configure(STATIC)
    assert node.run("settle").returncode == 0
    assert not node.has_state
    node.write("var/lib/kubelet/cpu_manager_state", '{"policyName":"static"}')
    assert node.run("settle").returncode == 0
    assert node.has_state, "a restart of the kubelet under the same policy keeps the CPUs of its pods"


def test_other_reserved_cpus_are_another_policy(node: Node) -> None:
    node.configure(STATIC)
    node.run("settle")
    node.write("var/lib/kubelet/cpu_manager_state", "{}")
    node.configure(STATIC.replace("0-1", "0-3"))
    node.run("settle")
    assert not node.has_state


def test_a_change_is_refused_while_a_pod_has_a_gpu(node: Node) -> None:
    pod_with_a_gpu(node)
    done = node.run("check", str(node.write("new.conf", STATIC)))
    assert done.returncode == 1
    assert "11-22" in done.stderr
    assert "Drain the node" in done.stderr


def test_and_not_when_the_pod_is_gone(node: Node) -> None:
    pod_with_a_gpu(node)
    (node.root / "var/lib/kubelet/pods/11-22").rmdir()
    assert node.run("check", str(node.write("new.conf", STATIC))).returncode == 0


def test_a_change_of_something_else_is_never_refused(node: Node) -> None:
    pod_with_a_gpu(node)
    text = "cpuManagerPolicy: none\ntopologyManagerPolicy: restricted\nmaxPods: 200\n"
    assert node.run("check", str(node.write("new.conf", text))).returncode == 0


def test_quotes_of_the_configuration_do_not_count(node: Node) -> None:
    node.configure(STATIC.replace("0-1", "'0-1'"))
    node.run("settle")
    pod_with_a_gpu(node)
    assert node.run("check", str(node.write("new.conf", STATIC))).returncode == 0
